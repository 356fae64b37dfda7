"""The last layer fused with the loss: the same training, without the logits of all classes."""

import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from longtail import SoftmaxCrossEntropy
from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions, run
from longtail.lab.models import build_model
from longtail.lab.training import RunFolder, train
from longtail.lab.training.build import FusedNetwork
from longtail.lab.training.cost import measure_cost
from longtail.lab.training.processes import make_fabric
from tests.lab.training.runs import finish, small_config, start


@pytest.mark.parametrize(
    "loss",
    [
        LossConfig(beta=0.999, defer_reweighting=0.5),
        LossConfig(name="focal", beta=0.99),
        LossConfig(name="logit_adjusted"),
    ],
    ids=lambda loss: loss.slug,
)
def test_a_fused_head_trains_as_one_that_holds_the_logits(tmp_path, loss):
    config = small_config(epochs=2, loss=loss, lr=0.01)
    folders = [train(replace(config, fused_head=fused), RunOptions(runs=tmp_path)) for fused in (None, True)]
    plain, fused = (RunFolder(folder).metrics() for folder in folders)
    for line, other in zip(plain, fused, strict=True):
        assert other["train_loss"] == pytest.approx(line["train_loss"], rel=1e-4)
    assert fused[-1]["nll"] == pytest.approx(plain[-1]["nll"], rel=1e-3)
    weights, others = (load_file(folder / "model.safetensors") for folder in folders)
    assert weights.keys() == others.keys()


def test_a_run_with_a_fused_head_resumes_to_the_same_bits(tmp_path):
    config = replace(small_config(epochs=2), fused_head=True)
    whole, killed = tmp_path / "whole" / "runs", tmp_path / "killed" / "runs"
    for runs in (whole, killed):
        runs.mkdir(parents=True)
    assert finish(start(config, whole)) == 0
    ending = (signal.SIGKILL, "checkpoint.pt", 5)
    assert finish(start(config, killed, checkpoint_minutes=1e-9, ending=ending)) == -signal.SIGKILL
    assert finish(start(config, killed)) == 0
    weights, others = (load_file(runs / config.run_id / "model.safetensors") for runs in (whole, killed))
    for name, weight in weights.items():
        assert torch.equal(weight, others[name]), name


@pytest.mark.parametrize(("fused_head", "classes", "calls"), [(None, 10, True), (None, 11, False), (False, 10, False)])
def test_many_classes_have_a_fused_head_by_default(tmp_path, monkeypatch, fused_head, classes, calls):
    seen = []
    forward = FusedNetwork.forward
    monkeypatch.setattr(FusedNetwork, "forward", lambda *args: seen.append(args) or forward(*args))
    monkeypatch.setattr(run, "FUSED_CLASSES", classes)
    train(replace(small_config(epochs=1), fused_head=fused_head), RunOptions(runs=tmp_path))
    assert bool(seen) == calls


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": LossConfig(name="ldam")}, "a loss that can be fused with the last layer, not ldam"),
        ({"data": DataConfig(mixup=0.2)}, "one label for each image, not mixup"),
        ({"data": DataConfig(cutmix=1.0)}, "one label for each image, not cutmix"),
    ],
)
def test_what_cannot_be_fused_is_refused(change, message):
    with pytest.raises(ConfigError, match=f"fused_head requires {message}"):
        RunConfig(fused_head=True, **change)
    assert not RunConfig(**change).fuses_head(10**6)


def test_the_run_id_is_that_of_the_same_head_without_it():
    assert RunConfig(fused_head=None).run_id == RunConfig().run_id != RunConfig(fused_head=True).run_id
    assert RunConfig(model=ModelConfig(name="resnet8"), fused_head=True).fuses_head(2)


def test_the_estimated_memory_is_without_the_logits():
    network, images, fabric = (
        build_model("resnet8", 20_000),
        torch.zeros(2, 3, 32, 32),
        make_fabric(RunConfig(), "cpu", 1),
    )
    held, fused = (
        measure_cost(RunConfig(fused_head=fused), fabric, network, SoftmaxCrossEntropy(), images).image_bytes
        for fused in (False, True)
    )
    assert held - fused >= 4 * 20_000
