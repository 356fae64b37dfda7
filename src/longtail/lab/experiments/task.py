"""What an executor does with a configuration, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.data.views import ImageViews, ViewRequest
from longtail.lab.models.features import store_features
from longtail.lab.training import Interrupted, RunFolder, RunInUse, open_data, train
from longtail.lab.training.build import build_head, build_network
from longtail.lab.training.cost import available_memory, check_memory, measure_inputs
from longtail.lab.training.frozen import FrozenBackbone
from longtail.lab.training.processes import make_fabric

MEASURED_SECONDS = 1.0


@dataclass(frozen=True)
class FeatureShard:
    """Features to compute and to write into the cache, all of one split of a run's images."""

    split: int
    """Which one of the run's splits."""
    requests: tuple[ViewRequest, ...]


Task = Literal["train", "measure"] | FeatureShard


@dataclass(frozen=True)
class Outcome:
    """What came of a task."""

    kind: Literal["done", "failed", "busy", "interrupted"]
    """busy: another process has the run."""
    message: str = ""
    value: dict[str, Any] = field(default_factory=dict)
    """What was found."""


def perform(task: Task, config: RunConfig, options: RunOptions) -> Outcome:
    """Train, measure how fast that would be, or compute features; whatever happens is an outcome."""
    try:
        if task == "measure":
            return Outcome("done", value=_measure(config, options))
        if isinstance(task, FeatureShard):
            _compute(task, config, options)
            return Outcome("done")
        result = RunFolder(train(config, options)).finished_result()
        return Outcome("done", value={"error": result["final"]["error"], "seconds": result["seconds"]})
    except RunInUse:
        return Outcome("busy")
    except (Interrupted, KeyboardInterrupt) as stop:
        return Outcome("interrupted", str(stop))
    except Exception as error:
        if task == "train" and config.is_identified:
            RunFolder(options.runs / config.run_id).record_failure(config, error)
        return Outcome("failed", " ".join(str(error).split()) or type(error).__name__)


def _compute(shard: FeatureShard, config: RunConfig, options: RunOptions) -> None:
    """Compute features in this process, and write them into the cache."""
    dataset, _, config = open_data(config, options.data_dir)
    fabric = make_fabric(config, options.accelerator, 1)
    backbone = FrozenBackbone(config, dataset)
    views = ImageViews(dataset, backbone.splits()[shard.split][0])
    store_features(backbone.store, backbone.extractor(views, fabric.device), views, shard.requests)


def _measure(config: RunConfig, options: RunOptions) -> dict[str, Any]:
    """Images per second of training and testing."""
    dataset, _, config = open_data(config, options.data_dir)
    fabric = make_fabric(config, options.accelerator, 1)
    if config.model.freeze:
        network: nn.Module = build_head(config, FrozenBackbone(config, dataset).size, len(dataset.classes))
    else:
        network = build_network(config, dataset)
    # A batch of a thousand photographs would take minutes on a CPU; the speed of an image hardly depends on it.
    cost = measure_inputs(config, fabric, dataset, network, MEASURED_SECONDS, photographs=16)
    check_memory(config, cost, available_memory(fabric.device))  # once, and not in each run
    return {"train": cost.images_per_second, "test": cost.tested_per_second}
