"""What an executor does with a configuration, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.training import Interrupted, RunFolder, RunInUse, open_data, train
from longtail.lab.training.build import build_loss, build_network, probe_images
from longtail.lab.training.cost import available_memory, check_memory, measure_cost
from longtail.lab.training.processes import make_fabric

__all__ = ["Outcome", "Task", "perform"]

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
    fabric = make_fabric(config.precision, options.accelerator, 1)
    network, criterion = build_network(config, dataset), build_loss(config, dataset.counts)
    # A batch of a thousand photographs would take minutes on a CPU; the speed of an image hardly depends on it.
    images = probe_images(config, dataset, photographs=16)
    cost = measure_cost(config, fabric, network, criterion, images, MEASURED_SECONDS)
    check_memory(config, cost, available_memory(fabric.device))  # once, and not in each run
    return {"train": cost.images_per_second, "test": cost.tested_per_second}
