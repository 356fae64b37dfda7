"""The candidates of a search: a grid of losses, or Optuna's TPE."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from longtail._checks import check_in_unit_interval, check_non_negative, check_positive_integer
from longtail.lab.config import ConfigError, LossConfig, config_errors
from longtail.lab.data.summary import BETAS
from longtail.lab.experiments.paper import GAMMAS, losses
from longtail.losses import LOSSES, find_loss, owners_of

KINDS = ("softmax", "sigmoid", "focal", "logit_adjusted")
"""The losses of the paper, and balanced softmax, which accounts for the class prior and is tried without weights."""
PRIOR_AWARE = tuple(name for name, kind in LOSSES.items() if kind.scheme == "uniform")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Which losses to try, and how.

    Example:
        >>> [loss.slug for loss in SearchOptions(losses=("softmax",), betas=(0.9, 0.999)).space()]
        ['softmax', 'softmax_0.9', 'softmax_0.999']
    """

    search: Literal["grid", "tpe"] = "grid"
    """grid: every combination of losses, β and γ. tpe: Optuna's search over N = 1/(1-β), log-uniform, and γ."""
    losses: tuple[str, ...] = KINDS
    """Losses to try, with each β and plain; balanced softmax (logit_adjusted) plain only."""
    betas: tuple[float, ...] = BETAS
    """β to try (grid)."""
    gammas: tuple[float, ...] = GAMMAS
    """γ of the focal losses to try (grid)."""
    trials: int | None = None
    """Number of losses to try (tpe); 25 by default."""
    prune: bool = True
    """Skip the remaining folds of a loss that is clearly worse than the best so far."""
    prune_threshold: float = 0.5
    """p-value of Wilcoxon's signed-rank test below which a loss is pruned."""

    @config_errors()
    def __post_init__(self) -> None:
        if not self.losses:
            raise ValueError(f"losses must be among {', '.join(LOSSES)}, got none")
        object.__setattr__(self, "losses", tuple(map(find_loss, self.losses)))
        for beta in self.betas:
            check_in_unit_interval("betas", beta)
        for gamma in self.gammas:
            check_non_negative("gammas", gamma)
        check_in_unit_interval("prune_threshold", self.prune_threshold)
        there = {loss.name for loss in self.space()}
        if missing := [name for name in self.losses if name not in there]:
            raise ValueError(f"gammas must have a value for {' and '.join(missing)}")
        unused = {"grid": ("trials",), "tpe": ("betas", "gammas")}[self.search]
        for name in unused:
            if getattr(self, name) != getattr(SearchOptions, name):
                raise ConfigError(f"{name} has no effect with search {self.search}")
        if self.trials is not None:
            check_positive_integer("trials", self.trials)
            if self.trials < len(there):
                raise ValueError(f"trials must be at least {len(there)}: each loss is tried plain first")

    def space(self) -> list[LossConfig]:
        """What the grid tries."""
        weighted = [name for name in LOSSES if name in self.losses and name not in PRIOR_AWARE]
        plain = [name for name in PRIOR_AWARE if name in self.losses]
        return [*losses((None, *self.betas), self.gammas, weighted), *losses((None,), self.gammas, plain)]


@dataclass
class Candidate:
    """A loss and its scores in the folds that were trained.

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
    """running, complete, pruned or failed."""
    error: str = ""
    told: bool = field(default=False, compare=False)
    """Whether the end of it was reported."""

    @property
    def mean(self) -> float:
        """Balanced accuracy over its folds."""
        return mean(self.scores) if self.scores else float("nan")

    @property
    def spread(self) -> float | None:
        """Standard deviation over its folds."""
        return stdev(self.scores) if len(self.scores) > 1 else None


def is_hopeless(scores: Sequence[float], best: Sequence[float], threshold: float) -> bool:
    """Whether scores are worse than the best ones, fold by fold: Wilcoxon's signed-rank test, as Optuna's pruner does.

    Example:
        >>> is_hopeless([0.5, 0.6], [0.7, 0.75, 0.8], threshold=0.5), is_hopeless([0.7], [0.9, 0.9], threshold=0.5)
        (True, False)
    """
    pairs = list(zip(scores, best, strict=False))
    if len(pairs) < 2 or mean(scores) >= mean(best):
        return False
    from scipy.stats import wilcoxon  # slow to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few pairs have no exact distribution
        found = wilcoxon([one - other for one, other in pairs], alternative="less", zero_method="zsplit")
    return bool(found.pvalue < threshold)


class Grid:
    """All losses of the options, in order; nothing is kept beside the run folders."""

    def __init__(self, options: SearchOptions) -> None:
        self.options = options
        self.total = len(options.space())

    def losses(self) -> list[LossConfig]:
        """What to try."""
        return self.options.space()

    def extend(self) -> bool:
        """Add a loss, if there is one left."""
        return False

    def tell(self, candidate: Candidate) -> None:
        """A candidate is complete, pruned or failed."""


class Tpe:
    """Optuna's TPE, with its own journal storage: what it asked for is tried by whoever is at the search."""

    def __init__(self, options: SearchOptions, folder: Path) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        folder.mkdir(parents=True, exist_ok=True)
        self.options, self.total = options, options.trials or 25
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(constant_liar=True)
            file = folder / "journal.log"
            try:
                storage = JournalStorage(JournalFileBackend(str(file)))
                self.study = optuna.create_study(
                    storage=storage, study_name="tune", direction="maximize", sampler=sampler, load_if_exists=True
                )
            except (ValueError, KeyError) as error:
                hint = "delete it to search anew; folds that are trained are kept"
                raise ConfigError(f"{file} is damaged: {error}: {hint}") from None
        sampler.reseed_rng()
        if not self.study.trials:  # each loss plain first: the others are compared with it
            for kind in options.losses:
                plain = {} if kind in PRIOR_AWARE else {"prototypes": 1.0}
                self.study.enqueue_trial({"loss": kind} | plain, skip_if_exists=True)

    def losses(self) -> list[LossConfig]:
        """What was asked for so far, by this process or another."""
        trials = [trial for trial in self.study.get_trials(deepcopy=False) if trial.params]
        return list(dict.fromkeys(self._loss(trial.params) for trial in trials))

    def extend(self) -> bool:
        """Add a loss, if there is one left."""
        trials = self.study.get_trials(deepcopy=False)
        if sum(trial.state.name != "WAITING" for trial in trials) >= self.total:
            return False
        trial = self.study.ask()
        kind = trial.suggest_categorical("loss", self.options.losses)
        if kind not in PRIOR_AWARE:
            trial.suggest_float("prototypes", 1.0, 1e5, log=True)
        if kind in owners_of("gamma"):
            trial.suggest_float("gamma", 0.0, 3.0)
        return True

    def tell(self, candidate: Candidate) -> None:
        """A candidate is complete, pruned or failed."""
        import optuna

        if not candidate.scores:
            return
        for trial in self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            if trial.params and self._loss(trial.params) == candidate.loss:
                # A pruned one has the mean of the folds it has: worse than the best, and by how much.
                self.study.tell(trial.number, candidate.mean, skip_if_finished=True)

    def _loss(self, values: dict[str, Any]) -> LossConfig:
        gamma = values.get("gamma")
        # As many digits as a training can tell apart, which are also those of its name: β = 0.9988, not 0.9987654321.
        share = float(f"{1 / values.get('prototypes', 1.0):.2g}")
        beta = float(f"{1 - share:.9g}") or None
        return LossConfig(name=values["loss"], beta=beta, gamma=None if gamma is None else round(gamma, 2))
