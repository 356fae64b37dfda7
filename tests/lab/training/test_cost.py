"""The cost of a training is known before it is paid: a batch that cannot fit is refused, and the time is said."""

import re
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

from longtail.lab.config import ConfigError, ModelConfig, OptimizerConfig, RunConfig, RunOptions
from longtail.lab.models import build_model
from longtail.lab.training import RunFolder, TrainingError, cost, loop, train
from longtail.lab.training.cost import Cost, available_memory, check_memory, measure_cost
from longtail.lab.training.processes import make_fabric
from tests.lab.training.runs import small_config

CONFIG = RunConfig()


def measured(network, images, config=CONFIG):
    criterion = nn.CrossEntropyLoss(reduction="sum")
    return measure_cost(config, make_fabric(RunConfig(), "cpu", 1), network, criterion, images)


def test_memory_is_what_forward_keeps_for_backward():
    """Two linear layers without a bias around a sigmoid: the input, the sigmoid and the logits' softmax are kept."""
    network = nn.Sequential(nn.Conv2d(3, 5, 1, bias=False), nn.Sigmoid(), nn.Flatten())
    network.add_module("fc", nn.Linear(5 * 64, 7, bias=False))
    found = measured(network, torch.randn(4, 3, 8, 8))
    kept = 4 * (3 * 64 + 2 * 5 * 64 + 7)  # bytes of an image
    assert found.image_bytes == pytest.approx(kept, rel=0.01)
    weights = 4 * (3 * 5 + 5 * 64 * 7)
    assert found.fixed_bytes == 3 * weights  # with gradients and momentum
    adamw = measured(network, torch.randn(4, 3, 8, 8), RunConfig(optimizer=OptimizerConfig(name="adamw")))
    assert adamw.fixed_bytes == 4 * weights


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_memory_of_an_image_does_not_depend_on_how_many_were_tried(name):
    network = build_model(name, 10)
    few, more = (measured(network, torch.zeros(count, 3, 32, 32)).image_bytes for count in (2, 8))
    assert few == pytest.approx(more, rel=0.05)


def test_measuring_changes_neither_the_network_nor_the_random_numbers():
    network = build_model("resnet8", 10)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.random.get_rng_state()
    measured(network, torch.randn(4, 3, 8, 8))
    torch.random.set_rng_state(state)
    after = torch.randn(3)
    torch.random.set_rng_state(state)
    images = torch.zeros(4, 3, 8, 8)
    measured(network, images)
    assert torch.equal(torch.randn(3), after)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())


@pytest.mark.parametrize(
    ("changes", "available", "message"),
    [
        ({}, 1e9, "a batch of 64 images needs about 9.7 GB and 1 GB are free: optimizer.micro_batch_size 4 fits"),
        ({"micro_batch_size": 32}, 1e9, "a batch of 32 images needs .*: optimizer.micro_batch_size 4 fits"),
        ({}, 1e6, "choose a smaller model.name or data.image_size"),
        ({"micro_batch_size": 4}, 1e9, None),
        ({}, None, None),
        ({}, 1e12, None),
    ],
)
def test_a_batch_that_cannot_fit_is_refused_with_one_that_can(changes, available, message):
    config = small_config(**changes)
    cost = Cost(1e8, 1e8, 1.0, 1.0)
    if message is None:
        check_memory(config, cost, available)
        return
    with pytest.raises(ConfigError, match=message) as error:
        check_memory(config, cost, available)
    if found := re.search(r"micro_batch_size (\d+)", str(error.value)):
        fits = int(found[1])
        assert cost.bytes_of(fits) <= available < cost.bytes_of(2 * fits)


def test_each_process_has_its_share_of_the_batch():
    cost = Cost(0, 1e9, 1.0, 1.0)
    check_memory(small_config(), cost, 48e9, processes=2)
    with pytest.raises(ConfigError, match="a batch of 64 images"):
        check_memory(small_config(), cost, 48e9, processes=1)


def test_a_training_that_cannot_fit_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "available_memory", lambda device: 1e6)
    with pytest.raises(ConfigError, match="are free"):
        train(small_config(), RunOptions(runs=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you t"),
    ],
)
def test_running_out_of_memory_all_the_same_is_one_line(tmp_path, monkeypatch, error):
    def step(*_):
        raise error

    monkeypatch.setattr(loop, "train_step", step)
    with pytest.raises(TrainingError, match="out of memory with 64 images at a time: lower optimizer"):
        train(small_config(), RunOptions(runs=tmp_path))


def test_another_error_is_not_taken_for_a_lack_of_memory(tmp_path, monkeypatch):
    def step(*_):
        raise RuntimeError("something else")

    monkeypatch.setattr(loop, "train_step", step)
    with pytest.raises(RuntimeError, match="something else"):
        train(small_config(), RunOptions(runs=tmp_path))


def test_what_is_trained_and_how_long_it_takes_is_said_before_the_first_epoch(tmp_path):
    said = StringIO()
    config = replace(small_config(epochs=2), model=ModelConfig(name="resnet8"))
    path = train(config, RunOptions(runs=tmp_path), Console(file=said, width=400))
    first, second, *_ = said.getvalue().splitlines()
    assert first.startswith("digits: 431 training and 500 test images, 10 classes; resnet8, class-balanced softmax")
    assert re.search(r"; 2 epochs: about \d+ s \([\d,]+ images/s\)$", first)
    assert second.startswith("epoch 1/2")
    assert RunFolder(path).result() is not None


def test_time_is_that_of_the_epochs_that_are_left():
    cost = Cost(0, 0, 100.0, 1000.0)
    config = small_config(epochs=10)
    assert cost.seconds(config, 1000, 500) == pytest.approx(10 * (10 + 0.5))
    assert cost.seconds(config, 1000, 500, epoch=8) == pytest.approx(2 * (10 + 0.5))
    assert cost.seconds(replace(config, test_every=0), 1000, 500) == pytest.approx(10 * 10 + 0.5)


def test_available_memory_is_that_of_this_machine_or_unknown(monkeypatch):
    found = available_memory(torch.device("cpu"))
    assert found is None or 1e8 < found < 1e14
    monkeypatch.setattr(cost, "Path", lambda path: __import__("pathlib").Path("nowhere"))
    assert available_memory(torch.device("cpu")) is None
