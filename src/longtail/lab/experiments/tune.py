"""Tuning: which loss, which β and which γ, by cross-validation on the training images alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from longtail.lab.config import ConfigError, LossConfig, RunConfig, RunOptions
from longtail.lab.data import GROUPS, FoldOptions
from longtail.lab.experiments.executors import ExecutorOptions, make_executor
from longtail.lab.experiments.prepare import prepare_features
from longtail.lab.experiments.progress import Progress
from longtail.lab.experiments.runs import Runs
from longtail.lab.experiments.search import Candidate, Grid, SearchOptions, Tpe, is_hopeless
from longtail.lab.experiments.sweep import measure_speeds
from longtail.lab.files import write_atomically
from longtail.lab.training import RunFolder, TrainingError, open_data
from longtail.lab.training.cost import duration
from longtail.lab.training.frozen import FrozenBackbone

FOLDS = 5


@dataclass(frozen=True)
class TuneResult:
    """What a search has found.

    Example:
        >>> result = tune(lambda loss: cifar(loss=loss, epochs=20))  # doctest: +SKIP
        >>> result.candidates[0].loss.title, result.test["error"]  # doctest: +SKIP
        ('class-balanced focal, β 0.999, γ 0.5', 8.6)
    """

    folder: Path
    """Of the search; ``result.json`` in it holds all of this."""
    candidates: list[Candidate]
    """Best first: those with all folds, those that were pruned, and those that failed."""
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
    that it was not trained on; the test images are looked at once, by the best loss, at the very end. The run folders
    are the state of the search: it resumes where it was, and several processes with the same arguments share one.

    Args:
        configure: the run for a loss; its ``data.fold.folds`` says how many folds there are, 5 if it does not.
        search: what to try.
        options: of all runs.
        where: the executor.
        console: where to show progress.

    Example:
        >>> from longtail.lab.recipes import cifar
        >>> tune(lambda loss: cifar(loss=loss, epochs=20)).winner.loss.title  # doctest: +SKIP
        'class-balanced focal, β 0.999, γ 0.5'
    """
    with _Tuning(configure, search, options, where, console) as tuning:
        prepare_features(tuning.final(LossConfig()), tuning.dataset, options, tuning.executor, console)
        tuning.announce()
        tuning.run()
        result = tuning.finish()
    content = _content(result, search, tuning.folds)
    write_atomically(result.folder / "result.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return result


def estimate_tuning(
    configure: Callable[[LossConfig], RunConfig],
    search: SearchOptions = SearchOptions(),
    options: RunOptions = RunOptions(),
    where: ExecutorOptions = ExecutorOptions(),
    console: Console | None = None,
) -> float:
    """Say what :func:`tune` would try, and return how many seconds it would take here without pruning.

    Example:
        >>> estimate_tuning(lambda loss: cifar(loss=loss, epochs=20))  # doctest: +SKIP
        5400.0
    """
    with _Tuning(configure, search, options, where, console) as tuning:
        config = tuning.final(LossConfig())
        features = FrozenBackbone(config, tuning.dataset).seconds(options.workers) if config.model.freeze else 0.0
        return tuning.announce(features)


def _folder(
    configure: Callable[[LossConfig], RunConfig], search: SearchOptions, folds: int, options: RunOptions
) -> Path:
    """That of the search, named by all that it depends on."""
    everything = [asdict(search), folds, *(configure(loss).to_json() for loss in search.space())]
    name = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:10]
    readable = configure(LossConfig()).run_id.split("-softmax")[0]
    return options.runs / "tune" / f"{readable}-{search.search}-{name}"


def _cut(config: RunConfig, fold: FoldOptions = FoldOptions()) -> RunConfig:
    """Trained without a fold, or on all; tested after the last epoch, unless validation images choose the epoch."""
    test_every = config.test_every if config.keep == "best" else 0
    return replace(config, data=replace(config.data, fold=fold), test_every=test_every)


class _Tuning(contextlib.ExitStack):
    """A search under way in this process; all that it knows is in the run folders."""

    def __init__(
        self,
        configure: Callable[[LossConfig], RunConfig],
        search: SearchOptions,
        options: RunOptions,
        where: ExecutorOptions,
        console: Console | None,
    ) -> None:
        super().__init__()
        base = configure(LossConfig())
        if base.data.fold.fold is not None:
            raise ConfigError("fold must not be given: all folds are tried")
        self.folds, self.search = base.data.fold.folds or FOLDS, search
        # Before anything starts: data that cannot be opened or cut.
        self.dataset, _, opened = open_data(_cut(base), options.data_dir, runs=options.runs)
        data = replace(opened.data, fold=base.data.fold)
        # With the images and initial weights that were found.
        self.configure: Callable[[LossConfig], RunConfig] = lambda loss: replace(
            configure(loss), data=data, model=opened.model
        )
        cut = [replace(data.fold, folds=self.folds, fold=fold).choose(self.dataset) for fold in range(self.folds)]
        notes = self.dataset.notes
        self.notes = [*notes, *(note for each in cut for note in each.notes[len(notes) :])]
        self.folder = _folder(self.configure, search, self.folds, options)
        self.space = Grid(search) if search.search == "grid" else Tpe(search, self.folder)
        self.candidates: dict[LossConfig, Candidate] = {}
        self.open: dict[RunConfig, Candidate] = {}
        """Folds that are trained, here or elsewhere."""
        self.options, self.progress = options, Progress(console, self.space.total * self.folds + 1)
        self.executor = self.enter_context(make_executor(where, options))

    def announce(self, features: float = 0.0) -> float:
        """Say what is tried and return how long it takes; a fold is trained on the others, and tested on itself.

        Args:
            features: seconds that the features of a frozen backbone take first.
        """
        self.runs = self.enter_context(Runs.begun(self.executor, self.options, self.progress))
        for note in self.notes:
            self.progress.say(note)
        self._refresh()
        known = self.candidates.values()
        done = sum(len(each.scores) if each.state == "running" else self.folds for each in known)
        runs = self.space.total * self.folds - done
        losses = f"{self.space.total} losses × {self.folds} folds"
        if not runs:
            return 0.0
        config = self._fold(next(iter(self.candidates), LossConfig()), 0)
        self.progress.say(f"{losses}, {self.executor.slots} runs at a time; measuring …")
        train_images = len(self.dataset.train)
        held_out = train_images // self.folds
        seconds = measure_speeds(self.executor, config, self.runs.check).seconds(
            config, train_images - held_out, held_out
        )
        pruned = ", less what pruning saves" if self.search.prune else ""
        total = features + runs * seconds / self.executor.slots
        first = f", of which the features of the backbone take {duration(features)} once" if features else ""
        self.progress.say(f"about {duration(total)}{first}{pruned}")
        self.progress.expect(seconds)
        return total

    def run(self) -> None:
        """Train folds until every loss is complete, pruned or failed, by this process or another."""
        while True:
            self.runs.check()
            self._refresh()
            while len(self.runs.training) < self.executor.slots and (candidate := self._next()):
                config = self._fold(candidate.loss, len(candidate.scores))
                self.open[config] = candidate
                self.runs.train(config)
            if not self.open:
                return
            for config, outcome in self.runs.wait():
                candidate = self.open.pop(config)
                if outcome.kind == "failed":
                    candidate.state, candidate.error = "failed", outcome.message

    def _next(self) -> Candidate | None:
        """A loss whose next fold nobody trains."""
        taken = {id(candidate) for candidate in self.open.values()}
        for candidate in self.candidates.values():
            if candidate.state == "running" and id(candidate) not in taken:
                return candidate
        if self.space.extend():
            self._refresh()
            return self._next()
        return None

    def _refresh(self) -> None:
        """Read the folds that are complete, whoever trained them, and decide what is pruned."""
        for loss in self.space.losses():
            self.candidates.setdefault(loss, Candidate(loss))
        known = list(self.candidates.values())
        for candidate in known:
            while candidate.state == "running" and len(candidate.scores) < self.folds:
                result = self._result(candidate.loss, len(candidate.scores))
                if result is None:
                    break
                candidate.scores.append(float(result["final"]["balanced_accuracy"]))
                self.progress.finished(float(result["seconds"]))
            if candidate.state == "running" and len(candidate.scores) == self.folds:
                candidate.state = "complete"
        complete = [candidate for candidate in known if candidate.state == "complete"]
        best = max(complete, key=lambda each: each.mean, default=None)
        for candidate in known:
            if candidate.state == "running" and best is not None and self.search.prune:
                hopeless = is_hopeless(candidate.scores, best.scores, self.search.prune_threshold)
                candidate.state = "pruned" if hopeless else "running"
            if candidate.state != "running" and not candidate.told:
                candidate.told = True
                self.space.tell(candidate)
                self._report(candidate)

    def _report(self, candidate: Candidate) -> None:
        self.progress.skip(self.folds - len(candidate.scores))
        endings = {"complete": "", "pruned": f", pruned after {len(candidate.scores)} folds"}
        ending = endings.get(candidate.state, f"failed: {candidate.error}")
        score = f"balanced accuracy {candidate.mean:.1%}" if candidate.scores else ""
        self.progress.say(f"{candidate.loss.title}: {score}{ending}")

    def finish(self) -> TuneResult:
        """Train with the best loss on all training images."""
        states = ("complete", "pruned", "failed")
        found = sorted(
            self.candidates.values(), key=lambda each: (states.index(each.state), -each.mean if each.scores else 0.0)
        )
        found = [replace(each, groups=self._groups(each)) for each in found]
        if not found or found[0].state != "complete":
            errors = [candidate.error for candidate in found if candidate.error]
            raise TrainingError(f"no loss has a result: {errors[0] if errors else 'nothing was tried'}")
        winner = self.final(found[0].loss)
        folder = self.runs.folder(winner)
        if folder.result() is None:
            self.progress.say(f"training with {winner.loss.title} on all training images")
            self.runs.train(winner)
        while (result := folder.result()) is None:
            self.runs.check()
            for _, outcome in self.runs.wait():
                if outcome.kind == "failed":
                    raise TrainingError(outcome.message)
        return TuneResult(
            folder=self.folder,
            candidates=found,
            winner=winner,
            test=result["final"],
            runs=sum(len(candidate.scores) for candidate in found),
            grid_runs=len(found) * self.folds,
        )

    def final(self, loss: LossConfig) -> RunConfig:
        """The run of a loss on all training images."""
        return _cut(self.configure(loss))

    def _fold(self, loss: LossConfig, fold: int) -> RunConfig:
        config = self.configure(loss)
        return _cut(config, replace(config.data.fold, folds=self.folds, fold=fold))

    def _result(self, loss: LossConfig, fold: int) -> dict[str, Any] | None:
        return RunFolder(self.options.runs / self._fold(loss, fold).run_id).result()

    def _groups(self, candidate: Candidate) -> dict[str, float | None]:
        values: dict[str, list[float]] = {name: [] for name in GROUPS}
        for fold in range(len(candidate.scores)):
            result = self._result(candidate.loss, fold)
            for name in GROUPS:
                if result is not None and result["final"][name] is not None:
                    values[name].append(result["final"][name])
        return {name: mean(each) if each else None for name, each in values.items()}


def _content(result: TuneResult, search: SearchOptions, folds: int) -> dict[str, Any]:
    return {
        "winner": {"title": result.winner.loss.title, "run_id": result.winner.run_id},
        "config": json.loads(result.winner.to_json()),
        "test": result.test,
        "search": asdict(search),
        "folds": folds,
        "runs": result.runs,
        "runs_without_pruning": result.grid_runs,
        "candidates": [
            {
                "title": candidate.loss.title,
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
