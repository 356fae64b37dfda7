"""What an executor does with a configuration, and what comes of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.models import CIFAR_DEPTHS
from longtail.lab.training import Interrupted, RunFolder, RunInUse, open_data, train
from longtail.lab.training.loop import Training, train_step
from longtail.lab.training.processes import make_fabric

__all__ = ["Outcome", "Speeds", "Task", "estimated_seconds", "perform"]

Task = Literal["train", "measure"]
MEASURED_SECONDS = 2.0


@dataclass(frozen=True)
class Outcome:
    """What came of a task.

    Example:
        >>> Outcome("failed", "the loss became NaN").kind
        'failed'
    """

    kind: Literal["done", "failed", "busy", "interrupted"]
    """busy: another process has the run."""
    message: str = ""
    value: dict[str, Any] = field(default_factory=dict)
    """What was found."""


def perform(task: Task, config: RunConfig, options: RunOptions) -> Outcome:
    """Train, or measure how fast that would be; whatever happens is an outcome.

    Example:
        >>> from longtail.lab.config import DataConfig
        >>> perform("measure", RunConfig(data=DataConfig(name="nowhere")), RunOptions()).kind
        'failed'
    """
    try:
        if task == "measure":
            return Outcome("done", value=_measure(config, options))
        result = RunFolder(train(config, options)).result()
        assert result is not None
        return Outcome("done", value={"error": result["final"]["error"], "seconds": result["seconds"]})
    except RunInUse:
        return Outcome("busy")
    except (Interrupted, KeyboardInterrupt) as stop:
        return Outcome("interrupted", str(stop))
    except Exception as error:
        if task == "train" and config.is_identified:
            RunFolder(options.runs / config.run_id).record_failure(config, error)
        return Outcome("failed", " ".join(str(error).split()) or type(error).__name__)


def _measure(config: RunConfig, options: RunOptions) -> dict[str, Any]:
    """Images per second of training and testing."""
    dataset, _, config = open_data(config, options.data_dir)
    # A batch of a thousand photographs would take minutes on a CPU; the speed of an image hardly depends on it.
    batch_size = min(config.optimizer.batch_size, 128 if config.model.name in _SMALL else 16)
    small = replace(config, optimizer=replace(config.optimizer, batch_size=batch_size))
    training = Training.new(
        small, options, make_fabric(small.precision, options.accelerator, 1), dataset, RunFolder(Path("nowhere"))
    )
    batch = next(training.loader.epoch(0))

    @torch.no_grad()
    def look() -> None:
        training.model(batch.images)

    return {
        "train": len(batch.labels) / _seconds(lambda: train_step(training, batch)),
        "test": len(batch.labels) / _seconds(look),
    }


def _seconds(call: Any) -> float:
    """Of one call, from several of them."""
    call()
    began, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - began < MEASURED_SECONDS:
        call()
        calls += 1
    return (time.perf_counter() - began) / calls


_SMALL = {f"resnet{depth}" for depth in CIFAR_DEPTHS}


class Speeds(NamedTuple):
    """Images per second."""

    train: float
    test: float


def estimated_seconds(config: RunConfig, train_images: int, test_images: int, speeds: Speeds) -> float:
    """How long a run would take.

    Example:
        >>> from longtail.lab.recipes import cifar
        >>> estimated_seconds(cifar(), 50_000, 10_000, Speeds(250.0, 1000.0)) / 3600
        11.66...
    """
    epochs = config.optimizer.epochs
    tests = sum(config.is_tested_after(epoch) for epoch in range(1, epochs + 1))
    return epochs * train_images / speeds.train + tests * test_images / speeds.test
