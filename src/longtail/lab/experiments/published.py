"""The numbers of the paper, to compare results with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from longtail.lab.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published result; errors in percent.

    Example:
        >>> Published(error=29.64, source="Cui et al. 2019, Table 2").error_top5 is None
        True
    """

    error: float
    """Of the test images."""
    error_top5: float | None = None
    """Images whose class is not among the five most probable ones."""
    source: str
    """Where it was published."""


def published(config: RunConfig) -> Published | None:
    """What the paper has for the data, network and loss of a run: the number of its full protocol.

    It is the same whatever the epochs, the rest of the schedule and the seed of the run, so it is to be shown beside
    the run's result, never as what the run should have given.

    Returns:
        The entry of Table 2 or 3, or None where these have none; the numbers in the paper's figures are not known.

    Example:
        >>> from longtail.lab.config import DataConfig, LossConfig
        >>> from longtail.lab.data import SubsetOptions
        >>> data = DataConfig(name="cifar10", subset=SubsetOptions(imbalance=100))
        >>> published(RunConfig(data=data, loss=LossConfig(name="focal", gamma=1.0, beta=0.9999)))
        Published(error=25.43, error_top5=None, source='Cui et al. 2019, Table 2')
    """
    data, subset, loss = config.data, config.data.subset, config.loss
    is_cifar = data.name in ("cifar10", "cifar100")
    imbalance = 1.0 if is_cifar and subset.imbalance is None else subset.imbalance
    if config.model.weights is not None or data.sampling != "shuffled":
        return None
    if data.fold.folds is not None or subset.max_count is not None or subset.profile != "exponential":
        return None
    if loss.normalize != "classes" and loss.weighting != "uniform":
        return None
    if data.mixup or data.cutmix or loss.betas or loss.defer_reweighting is not None:  # not in the paper
        return None
    size = None if is_cifar else data.image_size or 224
    setting = (data.name, imbalance, size, config.model.name, loss.name, loss.gamma, loss.weighting)
    # An effective weighting without a β is the starred one of equal classes, where all weights are 1 whatever the β.
    return _entries().get((*setting, loss.beta)) or _entries().get((*setting, None))


@cache
def _entries() -> dict[tuple[Any, ...], Published]:
    names = ("data", "imbalance", "image_size", "model", "loss", "gamma", "weighting", "beta")
    return {
        tuple(entry.get(name) for name in names): Published(
            error=entry["error"], error_top5=entry.get("error_top5"), source=entry["source"]
        )
        for entry in published_entries()
    }


def published_entries() -> list[dict[str, Any]]:
    """All of them, as they stand in the data file.

    Example:
        >>> sorted({entry["source"] for entry in published_entries()})
        ['Cui et al. 2019, Table 2', 'Cui et al. 2019, Table 3']
    """
    entries: list[dict[str, Any]] = json.loads(resources.files(__package__).joinpath("published.json").read_bytes())
    return entries
