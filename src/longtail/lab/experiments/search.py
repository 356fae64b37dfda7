"""What tuning tries, and what it finds out about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Literal

from longtail._checks import check_in_unit_interval, check_non_negative, check_positive_integer
from longtail.lab.config import ConfigError, LossConfig, config_errors
from longtail.lab.data.summary import BETAS
from longtail.lab.experiments.paper import GAMMAS, losses
from longtail.losses import LOSSES

__all__ = ["Candidate", "SearchOptions"]

KINDS = ("softmax", "sigmoid", "focal")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Which losses to try, and how.

    Example:
        >>> [loss.slug for loss in SearchOptions(losses=("softmax",), betas=(0.9, 0.999)).space()]
        ['softmax', 'softmax_0.9', 'softmax_0.999']
    """

    search: Literal["grid", "tpe"] = "grid"
    """grid: every combination of the values below. tpe: Optuna's search over N = 1/(1-β), log-uniform, and γ."""
    losses: tuple[str, ...] = KINDS
    """Kinds of losses, as in longtail train; each is also tried plain, without weights."""
    betas: tuple[float, ...] = BETAS
    """Of the grid: β of the class-balanced losses."""
    gammas: tuple[float, ...] = GAMMAS
    """Of the grid: γ of the focal and softmax_focal losses."""
    trials: int | None = None
    """Of tpe: how many losses to try, 25 if not given."""
    prune: bool = True
    """Whether a loss that is worse than the best so far, fold by fold, is given up before its last fold."""
    prune_threshold: float = 0.5
    """The probability, in Wilcoxon's test, below which it is."""

    @config_errors()
    def __post_init__(self) -> None:
        unknown = [name for name in self.losses if name not in LOSSES]
        if unknown or not self.losses:
            raise ValueError(f"losses must be among {', '.join(LOSSES)}, got {' '.join(self.losses) or 'none'}")
        for beta in self.betas:
            check_in_unit_interval("betas", beta)
        for gamma in self.gammas:
            check_non_negative("gammas", gamma)
        check_in_unit_interval("prune_threshold", self.prune_threshold)
        there = {loss.name for loss in self.space()}
        if missing := [name for name in self.losses if name not in there]:
            raise ValueError(f"gammas must have a value for {' and '.join(missing)}")
        if self.trials is not None:
            check_positive_integer("trials", self.trials)
            if self.trials < len(there):
                raise ValueError(f"trials must be at least {len(there)}: each loss is tried plain first")
        idle = {
            "grid": ("trials",),
            "tpe": ("betas", "gammas"),
        }[self.search]
        for name in idle:
            if getattr(self, name) != getattr(SearchOptions, name):
                raise ConfigError(f"{name} has no effect with search {self.search}")

    def space(self) -> list[LossConfig]:
        """What the grid tries."""
        return losses((None, *self.betas), self.gammas, [name for name in LOSSES if name in self.losses])


@dataclass
class Candidate:
    """A loss, and how good it was in the folds that were tried.

    Example:
        >>> candidate = Candidate(LossConfig(beta=0.99), scores=[0.7, 0.8])
        >>> f"{candidate.mean:.2f} ± {candidate.spread:.2f}"
        '0.75 ± 0.07'
    """

    loss: LossConfig
    scores: list[float] = field(default_factory=list)
    """Balanced accuracy of each fold."""
    groups: dict[str, float | None] = field(default_factory=dict)
    """Mean recall of many, medium and few."""
    state: str = "running"
    """complete, pruned or failed."""
    error: str = ""

    @property
    def mean(self) -> float:
        """Balanced accuracy over its folds."""
        return mean(self.scores) if self.scores else float("nan")

    @property
    def spread(self) -> float | None:
        """Standard deviation over its folds."""
        return stdev(self.scores) if len(self.scores) > 1 else None
