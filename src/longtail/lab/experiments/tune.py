"""Tuning: which loss, which β and which γ, by cross-validation on the training images alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from longtail.lab.config import ConfigError, LossConfig, RunConfig, RunOptions
from longtail.lab.data import GROUPS, ImageDataset
from longtail.lab.experiments.executors import Executor, ExecutorOptions, make_executor
from longtail.lab.experiments.prepare import prepare_features
from longtail.lab.experiments.progress import Progress
from longtail.lab.experiments.search import Candidate, Grid, SearchOptions, Tpe, is_hopeless
from longtail.lab.experiments.sweep import measure_speeds
from longtail.lab.files import write_atomically
from longtail.lab.training import Interrupted, RunFolder, TrainingError, open_data, stop_signals
from longtail.lab.training.cost import duration
from longtail.lab.training.frozen import FrozenBackbone

__all__ = ["TuneResult", "estimate_tuning", "tune"]

FOLDS = 5
# How long to leave alone a run that another process has, or the trials of another process.
AGAIN_SECONDS = 1.0


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
    with _begun(configure, search, options, where, console, compute_features=True) as tuning:
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
    with _begun(configure, search, options, where, console) as tuning:
        config = tuning.final(LossConfig())
        features = FrozenBackbone(config, tuning.dataset).seconds(options.workers) if config.model.freeze else 0.0
        return tuning.announce(features)


@contextlib.contextmanager
def _begun(
    configure: Callable[[LossConfig], RunConfig],
    search: SearchOptions,
    options: RunOptions,
    where: ExecutorOptions,
    console: Console | None,
    compute_features: bool = False,
) -> Iterator[_Tuning]:
    """A search with its data, folds, executor and, if asked for, features; nothing is trained yet."""
    base = configure(LossConfig())
    if base.data.fold.fold is not None:
        raise ConfigError("fold must not be given: all folds are tried")
    folds = base.data.fold.folds or FOLDS
    # Before anything starts: data that cannot be opened or cut.
    dataset, _, opened = open_data(_final_run(base), options.data_dir, runs=options.runs)
    data = replace(opened.data, fold=base.data.fold)

    def found(loss: LossConfig) -> RunConfig:
        """With the images and initial weights that were found."""
        return replace(configure(loss), data=data, model=opened.model)

    cut = [replace(base.data.fold, folds=folds, fold=fold).choose(dataset) for fold in range(folds)]
    folder = _folder(found, search, folds, options)
    space = Grid(search) if search.search == "grid" else Tpe(search, folder)
    total = space.total * folds + 1
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(make_executor(where, options))
        if compute_features:
            prepare_features(_final_run(found(LossConfig())), dataset, options, executor, console)
        stop, progress = stack.enter_context(stop_signals()), stack.enter_context(Progress(console, total))
        for note in (*dataset.notes, *(note for each in cut for note in each.notes[len(dataset.notes) :])):
            progress.say(note)
        yield _Tuning(
            configure=found,
            folds=folds,
            search=search,
            space=space,
            options=options,
            executor=executor,
            progress=progress,
            stopped=lambda: stop.requested,
            dataset=dataset,
            folder=folder,
        )


def _folder(
    configure: Callable[[LossConfig], RunConfig], search: SearchOptions, folds: int, options: RunOptions
) -> Path:
    """That of the search, named by all that it depends on."""
    everything = [asdict(search), folds, *(configure(loss).to_json() for loss in search.space())]
    name = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:10]
    readable = configure(LossConfig()).run_id.split("-softmax")[0]
    return options.runs / "tune" / f"{readable}-{search.search}-{name}"


def _final_run(config: RunConfig) -> RunConfig:
    whole = replace(config.data.fold, folds=None, fold=None, fold_seed=0)
    return _tested_once(replace(config, data=replace(config.data, fold=whole)))


def _tested_once(config: RunConfig) -> RunConfig:
    """After the last epoch only, unless validation images choose the epoch."""
    return config if config.keep == "best" else replace(config, test_every=0)


@dataclass(eq=False)
class _Tuning:
    """A search under way in this process; all that it knows is in the run folders."""

    configure: Callable[[LossConfig], RunConfig]
    folds: int
    search: SearchOptions
    space: Grid | Tpe
    options: RunOptions
    executor: Executor
    progress: Progress
    stopped: Callable[[], bool]
    dataset: ImageDataset
    folder: Path
    candidates: dict[LossConfig, Candidate] = field(default_factory=dict)
    open: dict[RunConfig, Candidate] = field(default_factory=dict)
    """Folds that this process trains."""
    busy: dict[RunConfig, float] = field(default_factory=dict)
    """Folds that another process trains, and when that was found out."""

    def announce(self, features: float = 0.0) -> float:
        """Say what is tried and return how long it takes; a fold is trained on the others, and tested on itself.

        Args:
            features: seconds that the features of a frozen backbone take first.
        """
        self._refresh()
        done = sum(len(each.scores) for each in self.candidates.values())
        runs = self.space.total * self.folds - done
        losses = f"{self.space.total} losses × {self.folds} folds"
        if not runs:
            return 0.0
        config = self._fold(next(iter(self.candidates), LossConfig()), 0)
        self.progress.say(f"{losses}, {self.executor.slots} runs at a time; measuring …")
        train_images = len(self.dataset.train)
        held_out = train_images // self.folds
        seconds = measure_speeds(self.executor, config, self._check).seconds(config, train_images - held_out, held_out)
        pruned = ", less what pruning saves" if self.search.prune else ""
        total = features + runs * seconds / self.executor.slots
        first = f", of which the features of the backbone take {duration(features)} once" if features else ""
        self.progress.say(f"about {duration(total)}{first}{pruned}")
        self.progress.expect(seconds)
        return total

    def run(self) -> None:
        """Train folds until every loss is complete, pruned or failed, by this process or another."""
        while True:
            self._check()
            self._refresh()
            while len(self.open) < self.executor.slots and (candidate := self._next()):
                config = self._fold(candidate.loss, len(candidate.scores))
                self.open[config] = candidate
                self.executor.submit("train", config)
            if not self.open and not self.busy:
                return
            if not self.open:
                self.progress.waits_for(next(iter(self.busy)).run_id)
                time.sleep(min(AGAIN_SECONDS, 0.5))
            else:
                for _, config, outcome in self.executor.wait(0.5):
                    candidate = self.open.pop(config)
                    if outcome.kind == "failed":
                        candidate.state, candidate.error = "failed", outcome.message
                    elif outcome.kind == "busy":
                        self.busy[config] = time.monotonic()
            now = time.monotonic()
            self.busy = {config: since for config, since in self.busy.items() if now - since < AGAIN_SECONDS}
            self.progress.show(len(self.open), len(self.busy), self.executor.slots)

    def _next(self) -> Candidate | None:
        """A loss whose next fold nobody trains."""
        taken = {id(candidate) for candidate in self.open.values()}
        for candidate in self.candidates.values():
            free = candidate.state == "running" and id(candidate) not in taken
            if free and self._fold(candidate.loss, len(candidate.scores)) not in self.busy:
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
        self.progress.say(f"training with {winner.loss.title} on all training images")
        result = RunFolder(self.options.runs / winner.run_id).result()
        if result is None:
            self._train(winner)
            result = RunFolder(self.options.runs / winner.run_id).result()
        assert result is not None
        return TuneResult(
            folder=self.folder,
            candidates=found,
            winner=winner,
            test=result["final"],
            runs=sum(len(candidate.scores) for candidate in found),
            grid_runs=len(found) * self.folds,
        )

    def _train(self, config: RunConfig) -> None:
        self.executor.submit("train", config)
        while True:
            self._check()
            outcomes = [outcome for _, _, outcome in self.executor.wait(0.5)]
            if any(outcome.kind == "failed" for outcome in outcomes):
                raise TrainingError(outcomes[0].message)
            if any(outcome.kind == "done" for outcome in outcomes):
                return
            if outcomes:  # another process has it
                self.progress.waits_for(config.run_id)
                time.sleep(AGAIN_SECONDS)
                self.executor.submit("train", config)
            self.progress.show(1, 0, self.executor.slots)

    def _check(self) -> None:
        if self.stopped():
            self.executor.stop()
            raise Interrupted("interrupted; run the same command to resume")

    def final(self, loss: LossConfig) -> RunConfig:
        """The run of a loss on all training images."""
        return _final_run(self.configure(loss))

    def _fold(self, loss: LossConfig, fold: int) -> RunConfig:
        config = self.configure(loss)
        chosen = replace(config.data.fold, folds=self.folds, fold=fold)
        return _tested_once(replace(config, data=replace(config.data, fold=chosen)))

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
