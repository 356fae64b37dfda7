"""Tuning: which loss, which β and which γ, by cross-validation on the training images alone."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from longtail.lab.config import ConfigError, LossConfig, RunConfig, RunOptions
from longtail.lab.data import GROUPS
from longtail.lab.experiments.executors import Executor, ExecutorOptions, make_executor
from longtail.lab.experiments.journal import Journal
from longtail.lab.experiments.search import Candidate, SearchOptions
from longtail.lab.experiments.task import Outcome
from longtail.lab.files import write_atomically
from longtail.lab.training import Interrupted, RunFolder, TrainingError, open_data, stop_signals

if TYPE_CHECKING:
    import optuna

__all__ = ["TuneResult", "tune"]

FOLDS = 5
# How long to leave alone a run that another process has, or the trials of another process.
AGAIN_SECONDS = 1.0


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
    dataset, _ = open_data(_final_run(base), options.data_dir)
    for fold in range(folds):
        replace(base.data.fold, folds=folds, fold=fold).choose(dataset)
    folder = _folder(configure, search, folds, options)
    with (
        Journal(folder, search) as journal,
        make_executor(where, options) as executor,
        stop_signals() as stop,
    ):
        tuning = _Tuning(configure, folds, options, journal, executor, console or Console(quiet=True))
        tuning.run(lambda: _check(stop.requested, executor))
        return tuning.finish(lambda: _check(stop.requested, executor))


def _folder(
    configure: Callable[[LossConfig], RunConfig], search: SearchOptions, folds: int, options: RunOptions
) -> Path:
    """That of the search, named by all that it depends on."""
    everything = [asdict(search), folds, *(configure(loss).to_json() for loss in search.space())]
    name = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:10]
    readable = configure(LossConfig()).run_id.split("-softmax")[0]
    return options.runs / "tune" / f"{readable}-{search.search}-{name}"


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


@dataclass
class _Tuning:
    """A search under way, in this process."""

    configure: Callable[[LossConfig], RunConfig]
    folds: int
    options: RunOptions
    journal: Journal
    executor: Executor
    console: Console
    open: dict[RunConfig, list[tuple[optuna.Trial, Candidate]]] = field(default_factory=dict)
    """What this process has submitted, and for which trials: a search may draw a loss twice."""
    waits: bool = False
    """Whether it was said that another process has something that this one waits for."""

    def run(self, check: Callable[[], None]) -> None:
        """Try losses until there is none left to try, in this process or in others."""
        waiting: list[RunConfig] = []
        asked = time.monotonic()
        while True:
            check()
            while len(self.open) < self.executor.slots and (trial := self.journal.next()):
                self._submit(trial, Candidate(self.journal.loss(trial)))
            if not self.open:
                if not self.journal.is_busy():
                    return
                self._wait_for("what another process is trying")
                time.sleep(AGAIN_SECONDS)
            for _, config, outcome in self.executor.wait(0.5):
                if outcome.kind in ("busy", "interrupted"):
                    waiting.append(config)
                    if outcome.kind == "busy":
                        self._wait_for(f"{config.run_id}, which is in use by another process")
                    continue
                self._finished(config, outcome)
            if waiting and time.monotonic() - asked > AGAIN_SECONDS:
                asked = time.monotonic()
                for config in waiting:
                    self.executor.submit("train", config)
                waiting.clear()

    def finish(self, check: Callable[[], None]) -> TuneResult:
        """Train with the best loss on all training images."""
        candidates = [replace(each, groups=self._groups(each)) for each in self.journal.candidates()]
        complete = [candidate for candidate in candidates if candidate.state == "complete"]
        if not complete:
            errors = [candidate.error for candidate in candidates if candidate.error]
            raise TrainingError(f"no loss has a result: {errors[0] if errors else 'nothing was tried'}")
        winner = _final_run(self.configure(complete[0].loss))
        self.console.print(f"training with {winner.loss.label} on all training images", soft_wrap=True)
        self.executor.submit("train", winner)
        while True:
            check()
            outcomes = [outcome for _, _, outcome in self.executor.wait(0.5)]
            if any(outcome.kind == "failed" for outcome in outcomes):
                raise TrainingError(outcomes[0].message)
            if any(outcome.kind == "done" for outcome in outcomes):
                break
            if outcomes:  # another process has it
                self._wait_for(f"{winner.run_id}, which is in use by another process")
                time.sleep(AGAIN_SECONDS)
                self.executor.submit("train", winner)
        found = RunFolder(self.options.runs / winner.run_id).result()
        assert found is not None
        result = TuneResult(
            folder=self.journal.folder,
            candidates=candidates,
            winner=winner,
            test=found["final"],
            runs=sum(len(candidate.scores) for candidate in candidates),
            grid_runs=len(candidates) * self.folds,
        )
        self._write(result)
        return result

    def _wait_for(self, what: str) -> None:
        if not self.waits:
            self.console.print(f"waiting for {what}", soft_wrap=True)
        self.waits = True

    def _submit(self, trial: optuna.Trial, candidate: Candidate) -> None:
        config = _fold_run(self.configure(candidate.loss), len(candidate.scores), self.folds)
        if config not in self.open:
            self.executor.submit("train", config)
        self.open.setdefault(config, []).append((trial, candidate))

    def _finished(self, config: RunConfig, outcome: Outcome) -> None:
        for trial, candidate in self.open.pop(config):
            self._scored(trial, candidate, config, outcome)

    def _scored(self, trial: optuna.Trial, candidate: Candidate, config: RunConfig, outcome: Outcome) -> None:
        if outcome.kind == "failed":
            candidate.state, candidate.error = "failed", outcome.message
        else:
            result = RunFolder(self.options.runs / config.run_id).result()
            assert result is not None
            candidate.scores.append(float(result["final"]["balanced_accuracy"]))
            hopeless = self.journal.is_hopeless(trial, candidate.scores)
            if len(candidate.scores) == self.folds:
                candidate.state = "complete"
            elif hopeless:
                candidate.state = "pruned"
            else:
                self._submit(trial, candidate)
                return
        self.journal.tell(trial, candidate)
        said = {"complete": "all folds", "pruned": f"given up after {len(candidate.scores)} folds"}
        score = f"{candidate.mean:.1%}, " if candidate.scores else ""
        ending = said.get(candidate.state, "failed")
        self.console.print(f"{candidate.loss.label}: balanced accuracy {score}{ending}", soft_wrap=True)

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
            "search": asdict(self.journal.search),
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
        write_atomically(self.journal.folder / "result.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
