"""Features of frozen backbones, computed once before the runs that need them: here, or in shards on a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.data import ImageDataset
from longtail.lab.experiments.executors import Executor, LocalExecutor
from longtail.lab.experiments.task import FeatureShard
from longtail.lab.models.features import SHARD_SIZE
from longtail.lab.training import TrainingError, stop_signals
from longtail.lab.training.display import FeatureProgress
from longtail.lab.training.frozen import FrozenBackbone


def prepare_features(
    config: RunConfig, dataset: ImageDataset, options: RunOptions, executor: Executor, console: Console | None = None
) -> None:
    """Compute the features of a run with a frozen backbone that are not in the cache, with all cores or a cluster.

    Raises:
        Interrupted: by SIGINT or SIGTERM; what was written stays.
    """
    if not config.model.freeze:
        return
    backbone = FrozenBackbone(config, dataset)
    if isinstance(executor, LocalExecutor):
        backbone.compute(workers=options.workers, console=console)
        return
    shards = list(_shards(backbone))
    total = sum(len(shard.requests) for shard in shards)
    with stop_signals() as stop, FeatureProgress(console, total, config.model.name) as progress:
        for shard in shards:
            executor.submit(shard, config)
        done, left = 0, len(shards)
        while left:
            if stop.requested:
                executor.stop()
                raise progress.interrupted()
            for task, _, outcome in executor.wait(0.5):
                if outcome.kind != "done":
                    raise TrainingError(f"cannot compute features on the cluster: {outcome.message}")
                assert isinstance(task, FeatureShard)
                left, done = left - 1, done + len(task.requests)
                progress.show(done)
    if missing := backbone.missing():
        count = sum(len(part.requests) for part in missing)
        raise TrainingError(
            f"the features of {count:,} images that the cluster computed are not in {backbone.store.folder}: "
            "workers need the same cache folder, such as an XDG_CACHE_HOME that all nodes share"
        )


def _shards(backbone: FrozenBackbone) -> Iterable[FeatureShard]:
    for split, (images, views) in enumerate(backbone.splits()):
        for part in backbone.missing([(images, views)]):
            for first in range(0, len(part.requests), SHARD_SIZE):
                yield FeatureShard(split, tuple(part.requests[first : first + SHARD_SIZE]))
