"""Weight decay where the authors have it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from longtail import ClassBalancedLoss, NormedLinear, class_weights
from longtail.lab.config import DataConfig, LossConfig, ModelConfig, RunConfig
from longtail.lab.files import write_atomically
from longtail.lab.models import build_model
from longtail.lab.recipes import cifar, retrained
from longtail.lab.training import build
from longtail.lab.training.build import build_loss, build_network, build_optimizer, build_order, identify, open_data
from longtail.losses import LOSSES
from longtail.samplers import SAMPLINGS, class_aware_order


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("decay_norms", [True, False])
def test_what_is_decayed_follows_the_recipe_and_the_loss(loss, decay_norms):
    config = RunConfig(loss=LossConfig(name=loss))
    config = replace(config, optimizer=replace(config.optimizer, decay_norms=decay_norms, weight_decay=0.25))
    network = build_model("resnet8", 10, cosine_scale=config.loss.cosine_scale)
    groups = build_optimizer(config, network).param_groups
    decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(network.parameters()))
    for module in network.modules():
        for name, weight in module.named_parameters(recurse=False):
            free = isinstance(module, nn.BatchNorm2d) and not decay_norms
            if module is network.fc and name == "bias":
                free = loss in ("sigmoid", "focal", "asymmetric") or not decay_norms
            assert decay[id(weight)] == (0 if free else 0.25)


def test_the_scaler_of_16_bit_gradients_leaves_infinite_ones_to_the_optimizer():
    network = build_model("resnet8", 10)
    optimizer = build_optimizer(RunConfig(precision="16-mixed"), network)
    assert optimizer._step_supports_amp_scaling  # else the scaler reads a value in each step
    before = [weight.detach().clone() for weight in network.parameters()]
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(network(torch.randn(4, 3, 32, 32)).sum() * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    assert scaler.get_scale() < 65536.0


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_of_a_run_is_that_of_the_library_with_the_counts_of_its_images(loss):
    config = RunConfig(loss=LossConfig(name=loss, beta=0.9))
    logits, labels, counts = torch.randn(6, 3), torch.arange(6) % 3, [90, 9, 3]
    found = build_loss(config, counts)(30 * logits if loss == "ldam" else logits, labels)
    expected = ClassBalancedLoss(counts, loss, 0.9, reduction="sum")(logits, labels)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("beta", [None, 0.9])
def test_a_class_without_images_has_no_weight_and_leaves_the_others_as_they_are(loss, beta):
    """As where a group-aware fold holds out all of a class."""
    config = RunConfig(loss=LossConfig(name=loss, beta=beta))
    logits, labels = torch.randn(6, 4), torch.arange(6) % 3
    criterion = build_loss(config, np.array([90, 9, 3, 0]))
    assert criterion.class_weight[3] == 0
    scheme = "uniform" if beta is None else "effective"
    torch.testing.assert_close(criterion.class_weight[:3], torch.tensor(class_weights([90, 9, 3], scheme, 0.9)).float())
    if loss == "ldam":
        margins = 0.5 * 30 * (3 / np.array([90.0, 9, 3])) ** 0.25
        expected = sum(
            float(criterion.class_weight[label])
            * -torch.log_softmax(row - margins[label] * torch.eye(4)[label], 0)[label]
            for row, label in zip(logits, labels.tolist(), strict=True)
        )
        torch.testing.assert_close(criterion(logits, labels), expected.float())
    assert criterion(logits, labels).isfinite()


@pytest.mark.parametrize("loss", LOSSES)
def test_sigmoid_losses_start_at_the_prior_and_ldam_on_cosines(loss):
    config = RunConfig(model=ModelConfig(name="resnet8"), loss=LossConfig(name=loss))
    network = build_network(config, open_data(config)[0])
    if loss == "ldam":
        assert isinstance(network.fc, NormedLinear)
        assert network(torch.randn(4, 1, 8, 8)).abs().max() <= 30
    else:
        assert (network.fc.bias.tolist()[0] < -2) == (loss in ("sigmoid", "focal", "asymmetric"))


@pytest.mark.parametrize("sampling", ["shuffled", *SAMPLINGS])
def test_each_seed_and_each_epoch_has_an_order_of_its_own(sampling):
    def orders(seed):
        beta = 0.99 if sampling == "effective" else None
        config = RunConfig(seed=seed, data=DataConfig(sampling=sampling, sampling_beta=beta))
        config = replace(config, optimizer=replace(config.optimizer, epochs=8, warmup_epochs=0.0, milestones=()))
        dataset = open_data(config).dataset
        labels, order = dataset.train.labels.numpy(), build_order(config, dataset)
        if sampling != "shuffled":
            for epoch in (0, 5):
                own = {"effective": {"beta": 0.99}, "progressive": {"epochs": 8}}.get(sampling, {})
                expected = class_aware_order(labels, sampling, seed=seed, epoch=epoch, **own)
                assert order(epoch).tolist() == expected.tolist()
        return [order(epoch).tolist() for epoch in (0, 0, 5)]

    first, again, later = orders(0)
    assert first == again
    assert len({tuple(each) for each in (first, later, *orders(1)[1:])}) == 4


def test_balancing_classes_twice_is_said():
    sampled = DataConfig(sampling="class_balanced")
    notes = open_data(RunConfig(data=sampled, loss=LossConfig(beta=0.9))).dataset.notes
    assert notes[-1] == "classes are balanced twice, by class_balanced sampling and by class weights"
    assert not open_data(RunConfig(data=sampled)).dataset.notes


def test_initial_weights_of_many_runs_are_hashed_once(tmp_path, monkeypatch):
    hashed = []
    monkeypatch.setattr(build, "sha256_of", lambda file: hashed.append(file) or "0" * 64)
    write_atomically(tmp_path / "parent.safetensors", b"weights")
    config = retrained(cifar(), str(tmp_path / "parent.safetensors"))
    found = identify([replace(config, seed=seed) for seed in range(3)])
    assert {each.model.weights_sha256 for each in found} == {"0" * 64}
    assert len({each.run_id for each in found}) == 3
    assert hashed == [tmp_path / "parent.safetensors"]


def test_images_and_weights_of_many_runs_are_fingerprinted_once(tmp_path, monkeypatch):
    for name in ("cat/1.png", "cat/2.png", "owl/1.png", "owl/2.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name)
    (tmp_path / "weights.pth").write_bytes(b"any")
    calls = []
    for function in ("open_dataset", "fingerprint", "names_of_images", "sha256_of"):
        real = getattr(build, function)
        monkeypatch.setattr(build, function, lambda *a, real=real, **kw: calls.append(real.__name__) or real(*a, **kw))
    model = ModelConfig(name="resnet8", weights=str(tmp_path / "weights.pth"))
    config = RunConfig(data=DataConfig(name=str(tmp_path / "photos")), model=model)
    found = identify([config, replace(config, seed=1), replace(config, seed=2)], runs=tmp_path)
    assert sorted(calls) == ["fingerprint", "names_of_images", "open_dataset", "sha256_of"]
    assert len({each.run_id for each in found}) == 3
    assert {each.data for each in found} == {identify([config])[0].data}
