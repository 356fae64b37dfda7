"""The loop's parts: pieces of batches, tests at the epochs asked for, and a training that diverges."""

import copy
import io
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from longtail import ClassBalancedLoss
from longtail.lab.config import LossConfig, RunOptions, with_fields
from longtail.lab.data import Batch, Shard
from longtail.lab.data.batches import BatchPlan, in_order
from longtail.lab.training import RunFolder, TrainingError, loop, train
from longtail.lab.training.build import open_data
from longtail.lab.training.loop import Training, split, train_step
from longtail.lab.training.metrics import ClassifierMetrics, without_details
from longtail.lab.training.processes import make_fabric
from tests.lab.training.runs import small_config


@settings(deadline=None)
@given(st.data(), st.integers(1, 9), st.none() | st.integers(1, 70))
def test_every_process_cuts_its_part_of_a_batch_into_as_many_pieces(data, processes, size):
    total = data.draw(st.integers(processes, 200))
    of_rank = []
    for rank in range(processes):
        part, _ = BatchPlan(in_order(total), total, Shard(rank, processes)).part(0)
        samples = torch.arange(part.start, part.stop)
        of_rank.append(split(Batch(samples[:, None], samples, total), size, processes))
    assert len({len(pieces) for pieces in of_rank}) == 1
    assert all(len(labels) for pieces in of_rank for _, labels in pieces)
    assert all(torch.equal(images[:, 0], labels) for pieces in of_rank for images, labels in pieces)
    assert torch.cat([labels for pieces in of_rank for _, labels in pieces]).tolist() == list(range(total))
    if size is None:
        assert {len(pieces) for pieces in of_rank} == {1}
    elif total % processes == 0:
        assert max(len(labels) for pieces in of_rank for _, labels in pieces) <= size
        assert len(of_rank[0]) == math.ceil(total / processes / size)


class WithoutNorms(nn.Module):
    """Each image is seen alone, so that a gradient does not depend on how its batch is cut."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4, 10)

    def forward(self, images):
        return self.fc(self.conv1(images).tanh().mean(dim=(2, 3)))


@pytest.fixture
def without_norms(monkeypatch):
    monkeypatch.setattr(loop, "build_network", lambda config, dataset: WithoutNorms())


@pytest.mark.parametrize("mixup", [0.0, 0.5])
@pytest.mark.parametrize("size", [None, 1, 5, 16, 40, 1000])
def test_a_step_follows_the_mean_gradient_of_its_batch_however_it_is_cut(tmp_path, size, mixup):
    plain = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "warmup_epochs": 0.0}
    loss = LossConfig(name="focal", beta=0.9, gamma=2.0)
    config = with_fields(small_config(loss=loss, micro_batch_size=size, **plain), {"mixup": mixup})
    rate = config.optimizer.lr_at(0.0)
    dataset = open_data(config).dataset
    fabric = make_fabric(config, "cpu", 1)
    training = Training(config, RunOptions(), fabric, dataset, RunFolder(tmp_path), WithoutNorms())
    criterion = ClassBalancedLoss(dataset.counts, "focal", 0.9, gamma=2.0)
    batches = list(training.loader.epoch(0))
    assert len({batch.total for batch in batches}) == 2  # the last one is smaller
    for batch in batches:
        network = copy.deepcopy(training.network)
        mean = criterion(network(batch.images), batch.labels)
        mean.backward()
        summed = training.state.loss.item()
        train_step(training, batch)
        assert training.state.loss.item() - summed == pytest.approx(mean.item() * batch.total, rel=1e-5)
        for before, after in zip(network.parameters(), training.network.parameters(), strict=True):
            torch.testing.assert_close(before.detach() - after.detach(), rate * before.grad, rtol=1e-5, atol=1e-6)


def test_micro_batches_end_with_the_same_weights(tmp_path, without_norms):
    whole = small_config(epochs=2)
    cut = replace(whole, optimizer=replace(whole.optimizer, micro_batch_size=10))
    first, second = (load_file(train(each, RunOptions(runs=tmp_path)) / "model.safetensors") for each in (whole, cut))
    assert not any(torch.equal(first[name], torch.zeros_like(first[name])) for name in first)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_weights_that_diverge_without_a_bad_loss_stop_the_run_with_advice(tmp_path):
    config = small_config(epochs=1, batch_size=1000, lr=1e9, warmup_epochs=0)
    with pytest.raises(TrainingError, match=r"outputs are not finite numbers after epoch 1: try a lower optimizer.lr"):
        train(config, RunOptions(runs=tmp_path))
    assert not (tmp_path / config.run_id / "result.json").exists()
    assert not (tmp_path / config.run_id / "checkpoint.pt").exists()


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_are_measured_as_such(value, label):
    metrics = ClassifierMetrics(torch.tensor([3, 3]).numpy(), "softmax")
    metrics.update(torch.tensor([[value, 0.0], [0.0, 1.0]]), torch.tensor([label, 1]))
    assert not math.isfinite(metrics.compute()["nll"])


def run_tested(tmp_path, epochs, test_every):
    shown = io.StringIO()
    config = replace(small_config(epochs=epochs, imbalance=100.0), test_every=test_every)
    folder = RunFolder(train(config, RunOptions(runs=tmp_path), Console(file=shown, width=200)))
    return folder, [line for line in shown.getvalue().splitlines() if line.startswith("epoch ")]


@pytest.mark.parametrize(("test_every", "expected"), [(1, [1, 2, 3]), (2, [2, 3]), (3, [3]), (5, [3]), (0, [3])])
def test_only_the_epochs_asked_for_are_tested_and_always_the_last(tmp_path, test_every, expected):
    folder, shown = run_tested(tmp_path, 3, test_every)
    lines = folder.metrics()
    tested = {line["epoch"]: line["error"] for line in lines if "error" in line}
    assert list(tested) == expected
    assert all(("recall" in line) == (line["epoch"] in tested) for line in lines)
    assert without_details(folder.result()["final"]) == lines[-1]
    assert folder.result()["best_error"] == min(tested.values())
    assert folder.result()["seconds"] == pytest.approx(sum(line["seconds"] for line in lines))
    assert len(shown) == 3
    for epoch, text in enumerate(shown, start=1):
        assert text.startswith(f"epoch {epoch}/3: loss ")
        known = [error for when, error in tested.items() if when <= epoch]
        assert (f"test error {known[-1]:.2f}%" if known else "not tested yet") in text


def test_how_often_it_is_tested_does_not_change_the_weights(tmp_path):
    weights = [run_tested(tmp_path / str(often), 2, often)[0].path / "checkpoint.pt" for often in (0, 1)]
    first, second = (torch.load(path, weights_only=True)["model"] for path in weights)
    assert all(torch.equal(first[name], second[name]) for name in first)
