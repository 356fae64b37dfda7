"""Tuning: which loss, which β and which γ, by cross-validation on the training images alone."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.console import Console

from longtail._checks import check_in_unit_interval, check_non_negative, check_positive_integer
from longtail.lab.config import ConfigError, LossConfig, RunConfig, RunOptions, config_errors
from longtail.lab.data import GROUPS
from longtail.lab.data.summary import BETAS
from longtail.lab.experiments.executor import Executor, ExecutorOptions, make_executor
from longtail.lab.experiments.paper import GAMMAS, losses
from longtail.lab.experiments.task import Outcome
from longtail.lab.files import write_atomically
from longtail.lab.training import Interrupted, RunFolder, TrainingError, open_data, stop_signals

if TYPE_CHECKING:
    import optuna

__all__ = ["Candidate", "SearchOptions", "TuneResult", "tune"]

KINDS = ("softmax", "sigmoid", "focal")
FOLDS = 5
# How long to leave alone a run that another process has, or the trials of another process.
AGAIN_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Which losses to try, and how.

    Example:
        >>> [loss.label for loss in SearchOptions(losses=("softmax",), betas=(0.9, 0.999)).space()]
        ['softmax', 'softmax_0.9', 'softmax_0.999']
    """

    search: Literal["grid", "tpe"] = "grid"
    """grid: every combination of the values below. tpe: Optuna's search over N = 1/(1-β), log-uniform, and γ."""
    losses: tuple[str, ...] = KINDS
    """Kinds of losses; each is also tried plain, without weights."""
    betas: tuple[float, ...] = BETAS
    """Of the grid: β of the class-balanced losses."""
    gammas: tuple[float, ...] = GAMMAS
    """Of the grid: γ of the focal loss."""
    trials: int | None = None
    """Of tpe: how many losses to try, 25 if not given."""
    prune: bool = True
    """Whether a loss that is worse than the best so far, fold by fold, is given up before its last fold."""
    prune_threshold: float = 0.5
    """The probability, in Wilcoxon's test, below which it is."""

    @config_errors()
    def __post_init__(self) -> None:
        unknown = [name for name in self.losses if name not in KINDS]
        if unknown or not self.losses:
            raise ValueError(f"losses must be among {', '.join(KINDS)}, got {' '.join(self.losses) or 'none'}")
        for beta in self.betas:
            check_in_unit_interval("betas", beta)
        for gamma in self.gammas:
            check_non_negative("gammas", gamma)
        check_in_unit_interval("prune_threshold", self.prune_threshold)
        if self.trials is not None:
            check_positive_integer("trials", self.trials)
        idle = {
            "grid": ("trials",),
            "tpe": ("betas", "gammas"),
        }[self.search]
        for name in idle:
            if getattr(self, name) != getattr(SearchOptions, name):
                raise ConfigError(f"{name} would do nothing in the search {self.search}")

    def space(self) -> list[LossConfig]:
        """What the grid tries."""
        return [loss for loss in losses((None, *self.betas), self.gammas) if loss.loss in self.losses]


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


@dataclass(frozen=True)
class TuneResult:
    """What a search has found.

    Example:
        >>> result = tune(lambda loss: cifar(loss=loss, epochs=20))  # doctest: +SKIP
        >>> result.candidates[0].loss.label, result.test["error"]  # doctest: +SKIP
        ('focal_0.5_0.999', 8.6)
    """

    folder: Path
    """Of the search; ``result.json`` in it holds all of this."""
    candidates: list[Candidate]
    """Best first: those with all folds, those that were given up, and those that failed."""
    winner: RunConfig
    """The run of the best loss on all training images."""
    test: dict[str, Any]
    """Its metrics on the test images."""
    runs: int
    """How many folds were trained."""
    grid_runs: int
    """How many there would have been without pruning."""


def tune(
    configure: Callable[[LossConfig], RunConfig],
    search: SearchOptions = SearchOptions(),
    options: RunOptions = RunOptions(),
    where: ExecutorOptions = ExecutorOptions(),
    console: Console | None = None,
) -> TuneResult:
    """Find the best loss by cross-validation on the training images, and train with it on all of them.

    The score is the balanced accuracy, the mean over folds. Each fold is an ordinary run, tested on the training images
    that it was not trained on; the test images are looked at once, by the best loss, at the very end. A search that
    was killed goes on; several processes with the same arguments share one.

    Args:
        configure: the run for a loss; its ``data.fold.folds`` says how many folds there are, 5 if it does not.
        search: what to try.
        options: of all runs.
        where: the executor.
        console: where to show progress.

    Example:
        >>> from longtail.lab.recipes import cifar
        >>> tune(lambda loss: cifar(loss=loss, epochs=20)).winner.loss.label  # doctest: +SKIP
        'focal_0.5_0.999'
    """
    base = configure(LossConfig())
    if base.data.fold.fold is not None:
        raise ConfigError(f"fold {base.data.fold.fold} would do nothing: all folds are tried")
    folds = base.data.fold.folds or FOLDS
    # Before anything starts: data that cannot be opened or cut.
    for fold in range(folds):
        open_data(_fold_run(base, fold, folds), options.data_dir)
    with (
        _Study(configure, search, folds, options, console) as study,
        make_executor(where, options) as executor,
        stop_signals() as stop,
    ):
        study.run(executor, lambda: _check(stop.requested, executor))
        return study.finish(executor, lambda: _check(stop.requested, executor))


def _check(stopped: bool, executor: Executor) -> None:
    if stopped:
        executor.stop()
        raise Interrupted("interrupted; the same command goes on from there")


def _fold_run(config: RunConfig, fold: int, folds: int) -> RunConfig:
    chosen = replace(config.data.fold, folds=folds, fold=fold)
    return replace(config, data=replace(config.data, fold=chosen), test_every=0)


def _final_run(config: RunConfig) -> RunConfig:
    whole = replace(config.data.fold, folds=None, fold=None, fold_seed=0)
    return replace(config, data=replace(config.data, fold=whole), test_every=0)


class _Study:
    """A search: Optuna's study in a journal, and the trials of this process."""

    def __init__(
        self,
        configure: Callable[[LossConfig], RunConfig],
        search: SearchOptions,
        folds: int,
        options: RunOptions,
        console: Console | None,
    ) -> None:
        self.configure, self.search, self.folds, self.options = configure, search, folds, options
        self.console = console or Console(quiet=True)
        self.space = {loss.label: loss for loss in search.space()}
        everything = [asdict(search), folds, *(configure(loss).to_json() for loss in search.space())]
        name = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:10]
        readable = configure(LossConfig()).run_id.split("-softmax")[0]
        self.folder = options.runs / "tune" / f"{readable}-{search.search}-{name}"
        self.open: dict[RunConfig, tuple[optuna.Trial, Candidate]] = {}
        """What this process has submitted."""

    def __enter__(self) -> Self:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self.folder.mkdir(parents=True, exist_ok=True)
        self.life = contextlib.ExitStack()
        self.process = f"process-{os.getpid()}-{time.time_ns()}.lock"
        alone = not list(self._living())
        self.life.enter_context(_held(self.folder / self.process))
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = JournalStorage(JournalFileBackend(str(self.folder / "journal.log")))
            pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
            if self.search.prune:
                pruner = optuna.pruners.WilcoxonPruner(p_threshold=self.search.prune_threshold, n_startup_steps=2)
            self.study = optuna.create_study(
                storage=storage, study_name="tune", direction="maximize", pruner=pruner, load_if_exists=True
            )
            # Alike in every search, but not in several processes at once, which would all try the same.
            seed = len(self.study.trials) if alone else os.getpid()
            if self.search.search == "grid":
                sampler = optuna.samplers.GridSampler({"loss": list(self.space)}, seed=0)
                # At the end of the grid it would stop a loop of Optuna's own, and complain that there is none.
                sampler.after_trial = lambda *_: None  # type: ignore[method-assign]
                self.study.sampler = sampler
            else:
                self.study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.life.close()

    def run(self, executor: Executor, check: Callable[[], None]) -> None:
        """Try losses until there is none left to try, in this process or in others."""
        waiting: list[RunConfig] = []
        asked = time.monotonic()
        while True:
            check()
            self._give_up_dead_trials()
            while len(self.open) < executor.slots and (trial := self._next_trial()):
                candidate = Candidate(self._loss(trial))
                self._submit(executor, trial, candidate)
            if not self.open:
                if not self._others_are_busy():
                    return
                time.sleep(AGAIN_SECONDS)
            for _, config, outcome in executor.wait(0.5):
                if outcome.kind in ("busy", "interrupted"):
                    waiting.append(config)
                    continue
                self._finished(executor, config, outcome)
            if waiting and time.monotonic() - asked > AGAIN_SECONDS:
                asked = time.monotonic()
                for config in waiting:
                    executor.submit("train", config)
                waiting.clear()

    def finish(self, executor: Executor, check: Callable[[], None]) -> TuneResult:
        """Train with the best loss on all training images."""
        candidates = self._candidates()
        complete = [candidate for candidate in candidates if candidate.state == "complete"]
        if not complete:
            errors = [candidate.error for candidate in candidates if candidate.error]
            raise TrainingError(f"no loss has a result: {errors[0] if errors else 'nothing was tried'}")
        winner = _final_run(self.configure(complete[0].loss))
        self.console.print(f"training with {winner.loss.label} on all training images", soft_wrap=True)
        executor.submit("train", winner)
        while True:
            check()
            outcomes = [outcome for _, _, outcome in executor.wait(0.5)]
            if any(outcome.kind == "failed" for outcome in outcomes):
                raise TrainingError(outcomes[0].message)
            if any(outcome.kind == "done" for outcome in outcomes):
                break
            if outcomes:  # another process has it
                time.sleep(AGAIN_SECONDS)
                executor.submit("train", winner)
        found = RunFolder(self.options.runs / winner.run_id).result()
        assert found is not None
        result = TuneResult(
            folder=self.folder,
            candidates=candidates,
            winner=winner,
            test=found["final"],
            runs=sum(len(candidate.scores) for candidate in candidates),
            grid_runs=len(candidates) * self.folds,
        )
        self._write(result)
        return result

    def _next_trial(self) -> optuna.Trial | None:
        trials = self.study.get_trials(deepcopy=False)
        tried = [trial for trial in trials if trial.state.name != "FAIL" or "error" in trial.user_attrs]
        if self.search.search == "tpe":
            return self._begun() if len(tried) < (self.search.trials or 25) else None
        labels = {trial.params.get("loss") for trial in tried}
        missing = [label for label in self.space if label not in labels]
        if not missing:
            return None
        trial = self._begun()
        if trial.suggest_categorical("loss", list(self.space)) not in missing:
            # The sampler believes what a process that died had begun to be done.
            self.study.tell(trial, state=_state("FAIL"))
            self.study.enqueue_trial({"loss": missing[0]})
            trial = self._begun()
            trial.suggest_categorical("loss", list(self.space))
        return trial

    def _begun(self) -> optuna.Trial:
        trial = self.study.ask()
        trial.set_user_attr("process", self.process)
        return trial

    def _loss(self, trial: optuna.Trial) -> LossConfig:
        if self.search.search == "grid":
            return self.space[trial.suggest_categorical("loss", list(self.space))]
        kind = trial.suggest_categorical("loss", self.search.losses)
        prototypes = trial.suggest_float("prototypes", 1.0, 1e5, log=True)
        gamma = trial.suggest_float("gamma", 0.0, 3.0) if kind == "focal" else None
        return LossConfig(loss=kind, beta=1 - 1 / prototypes, gamma=gamma)

    def _submit(self, executor: Executor, trial: optuna.Trial, candidate: Candidate) -> None:
        config = _fold_run(self.configure(candidate.loss), len(candidate.scores), self.folds)
        self.open[config] = (trial, candidate)
        executor.submit("train", config)

    def _finished(self, executor: Executor, config: RunConfig, outcome: Outcome) -> None:
        trial, candidate = self.open.pop(config)
        if outcome.kind == "failed":
            trial.set_user_attr("error", outcome.message)
            self._tell(trial, candidate, "FAIL")
            return
        candidate.scores.append(self._score(config))
        trial.report(candidate.scores[-1], step=len(candidate.scores) - 1)
        if len(candidate.scores) == self.folds:
            self._tell(trial, candidate, "COMPLETE")
        elif self._is_hopeless(trial):
            self._tell(trial, candidate, "PRUNED")
        else:
            self._submit(executor, trial, candidate)

    def _is_hopeless(self, trial: optuna.Trial) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy's about few pairs, and Optuna's about its experiments
            return trial.should_prune()

    def _tell(self, trial: optuna.Trial, candidate: Candidate, state: str) -> None:
        trial.set_user_attr("scores", candidate.scores)
        self.study.tell(trial, candidate.mean if state == "COMPLETE" else None, state=_state(state))
        said = {"COMPLETE": "all folds", "PRUNED": f"given up after {len(candidate.scores)} folds"}.get(state, "failed")
        score = f"{candidate.mean:.1%}, " if candidate.scores else ""
        self.console.print(f"{candidate.loss.label}: balanced accuracy {score}{said}", soft_wrap=True)

    def _score(self, config: RunConfig) -> float:
        result = RunFolder(self.options.runs / config.run_id).result()
        assert result is not None
        return float(result["final"]["balanced_accuracy"])

    def _candidates(self) -> list[Candidate]:
        """All that were tried, best first."""
        states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        found: dict[str, Candidate] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.name not in states or "scores" not in trial.user_attrs:
                continue
            loss = self._loss(_Fixed(trial.params))  # type: ignore[arg-type]
            candidate = Candidate(
                loss,
                scores=list(trial.user_attrs["scores"]),
                state=states[trial.state.name],
                error=trial.user_attrs.get("error", ""),
            )
            candidate.groups = self._groups(candidate)
            found.setdefault(loss.label if self.search.search == "grid" else str(trial.number), candidate)
        places = {label: place for place, label in enumerate(self.space)}
        order = ("complete", "pruned", "failed")
        return sorted(
            found.values(),
            key=lambda each: (
                order.index(each.state),
                -each.mean if each.scores else 0.0,
                places.get(each.loss.label, 0),
            ),
        )

    def _groups(self, candidate: Candidate) -> dict[str, float | None]:
        values: dict[str, list[float]] = {name: [] for name in GROUPS}
        for fold in range(len(candidate.scores)):
            run = _fold_run(self.configure(candidate.loss), fold, self.folds)
            result = RunFolder(self.options.runs / run.run_id).result()
            for name in GROUPS:
                if result is not None and result["final"][name] is not None:
                    values[name].append(result["final"][name])
        return {name: mean(each) if each else None for name, each in values.items()}

    def _write(self, result: TuneResult) -> None:
        content = {
            "winner": {"label": result.winner.loss.label, "run_id": result.winner.run_id},
            "config": json.loads(result.winner.to_json()),
            "test": result.test,
            "search": asdict(self.search),
            "folds": self.folds,
            "runs": result.runs,
            "runs_without_pruning": result.grid_runs,
            "candidates": [
                {
                    "label": candidate.loss.label,
                    "loss": asdict(candidate.loss),
                    "state": candidate.state,
                    "balanced_accuracy": candidate.mean if candidate.scores else None,
                    "spread": candidate.spread,
                    "scores": candidate.scores,
                    **candidate.groups,
                    "error": candidate.error or None,
                }
                for candidate in result.candidates
            ],
        }
        write_atomically(self.folder / "result.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _give_up_dead_trials(self) -> None:
        """What a process that is gone had begun is begun anew; its folds are still there."""
        living = set(self._living())
        for trial in self.study.get_trials(deepcopy=False, states=(_state("RUNNING"),)):
            process = trial.user_attrs.get("process")
            if process != self.process and process not in living:
                with contextlib.suppress(Exception):  # another process was faster
                    self.study.tell(trial.number, state=_state("FAIL"))

    def _others_are_busy(self) -> bool:
        return bool(self.study.get_trials(deepcopy=False, states=(_state("RUNNING"),)))

    def _living(self) -> Iterator[str]:
        """Processes that are at this search, by the locks that they hold."""
        for path in self.folder.glob("process-*.lock"):
            if path.name == getattr(self, "process", None):
                continue
            with path.open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield path.name
                else:
                    path.unlink(missing_ok=True)


class _Fixed:
    """The values of a trial that is over, asked for as they were."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def suggest_categorical(self, name: str, choices: object) -> Any:
        return self.values[name]

    def suggest_float(self, name: str, *limits: float, log: bool = False) -> float:
        return float(self.values[name])


def _state(name: str) -> optuna.trial.TrialState:
    import optuna

    return optuna.trial.TrialState[name]


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """A lock that ends with this process, however it ends."""
    while True:
        file = path.open("a")
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            break
        file.close()  # another process has just tidied it away
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
