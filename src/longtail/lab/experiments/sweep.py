"""A sweep: many runs, of which it does what is missing."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from longtail.lab.config import ConfigError, DataConfig, RunConfig, RunOptions
from longtail.lab.data import ImageDataset, LongTailedSubset, open_dataset
from longtail.lab.experiments.executors import Executor, ExecutorOptions, make_executor
from longtail.lab.experiments.task import Outcome, Speeds, estimated_seconds
from longtail.lab.files import check_writable
from longtail.lab.training import Interrupted, RunFolder, TrainingError, open_data, stop_signals

__all__ = ["SweepResult", "complete_runs", "duration", "estimate", "run_sweep"]

# How long to leave alone a run that another process has.
AGAIN_SECONDS = 2.0


@dataclass(frozen=True)
class SweepResult:
    """What came of the runs of a sweep; ``done`` were complete already or are now.

    Example:
        >>> SweepResult().failed
        {}
    """

    done: list[RunConfig] = field(default_factory=list)
    failed: dict[RunConfig, str] = field(default_factory=dict)
    """Why each of these has no result."""


def run_sweep(
    configs: Iterable[RunConfig],
    options: RunOptions = RunOptions(),
    where: ExecutorOptions = ExecutorOptions(),
    console: Console | None = None,
) -> SweepResult:
    """Train all of these that are not complete.

    A run that fails is recorded with its error, and the others go on. One that another process has is left to it, and
    taken over should that process die. An interrupt leaves everything so that the next call goes on from there.

    Args:
        configs: the runs; what is there twice is run once.
        options: of all runs.
        where: the executor.
        console: where to show progress.

    Example:
        >>> from longtail.lab.experiments import rescaled, table2
        >>> run_sweep(rescaled(table2("cifar10"), epochs=30, model="resnet8"))  # doctest: +SKIP
    """
    wanted = list(dict.fromkeys(configs))
    folders = {config: RunFolder(options.runs / config.run_id) for config in wanted}
    result = SweepResult(done=complete_runs(wanted, options))
    complete = set(result.done)
    missing = deque(config for config in wanted if config not in complete)
    if not missing:
        return result
    check_writable(options.runs)
    if where.executor == "local":
        # Data that cannot be opened is one error, and not one of each run.
        # What is wrong with one run alone, such as an imbalance it is too small for, is that run's error.
        for data in {config.data.data: config.data for config in missing}.values():
            open_dataset(data.data, options.data_dir, own=data.own, on_error=data.on_error, console=console)
    began = time.time()
    elsewhere: list[RunConfig] = []
    with (
        make_executor(where, options) as executor,
        stop_signals() as stop,
        _Display(console, wanted, result) as display,
    ):
        in_flight: set[RunConfig] = set()
        asked = time.monotonic()
        while missing or in_flight or elsewhere:
            if stop.requested:
                executor.stop()
                done = f"{len(result.done)} of {len(wanted)} runs done"
                raise Interrupted(f"interrupted with {done}; the same command goes on from there")
            # Twice as many as there is room for: a cluster that can grow is to see that there is more to do.
            while missing and len(in_flight) < 2 * executor.slots:
                config = missing.popleft()
                in_flight.add(config)
                executor.submit("train", config)
            for _, config, outcome in executor.wait(0.5):
                in_flight.remove(config)
                if outcome.kind == "busy":
                    elsewhere.append(config)
                    display.waits_for(config)
                elif outcome.kind == "interrupted":  # by somebody else, from outside
                    missing.append(config)
                else:
                    display.finished(config, outcome)
            if elsewhere and time.monotonic() - asked > AGAIN_SECONDS:
                asked = time.monotonic()
                missing += [config for config in elsewhere if not display.settled(folders[config], config, began)]
                elsewhere.clear()
            display.show(min(len(in_flight), executor.slots), len(elsewhere), executor.slots)
    return result


def complete_runs(configs: Iterable[RunConfig], options: RunOptions) -> list[RunConfig]:
    """Those that have a result; one that cannot be read is none, so that its run is tried, and fails by name.

    Runs of your own images are refused if those have changed since: old and new ones cannot be compared.

    Example:
        >>> from pathlib import Path
        >>> complete_runs([RunConfig()], RunOptions(runs=Path("nowhere")))
        []
    """

    @functools.cache
    def opened(data: DataConfig) -> tuple[ImageDataset, LongTailedSubset]:
        return open_data(RunConfig(data=data), options.data_dir)

    def is_complete(config: RunConfig) -> bool:
        folder, found = RunFolder(options.runs / config.run_id), False
        with contextlib.suppress(ConfigError):
            found = folder.result() is not None
        if found and config.data.places_exist:
            folder.check_data(*opened(config.data))
        return found

    return [config for config in configs if is_complete(config)]


class _Display:
    """One table of progress in a terminal, else a line for each run."""

    def __init__(self, console: Console | None, wanted: Sequence[RunConfig], result: SweepResult) -> None:
        self.console = console or Console(quiet=True)
        self.total, self.result = len(wanted), result
        self.seconds: list[float] = []
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.last = ""
        self.waits = False

    def __enter__(self) -> Self:
        if self.result.done:
            self._say(f"{len(self.result.done)} of {self.total} runs are complete already")
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def finished(self, config: RunConfig, outcome: Outcome) -> None:
        """A run is complete, or failed."""
        if outcome.kind == "failed":
            self.result.failed[config] = outcome.message
            said = f"failed: {outcome.message}"
        else:
            self.result.done.append(config)
            self.seconds.append(outcome.value.get("seconds", 0.0))
            said = f"error {outcome.value['error']:.2f}% in {duration(self.seconds[-1])}"
        number = len(self.result.done) + len(self.result.failed)
        self.last = f"{number}/{self.total} {config.run_id}: {said}"
        if outcome.kind == "failed" or not self.console.is_terminal:
            self._say(self.last)

    def waits_for(self, config: RunConfig) -> None:
        """Another process has a run; a table of progress shows how many there are."""
        if not self.waits and not self.console.is_terminal:
            self._say(f"{config.run_id} is in use by another process: this one waits for it")
        self.waits = True

    def settled(self, folder: RunFolder, config: RunConfig, began: float) -> bool:
        """Whether the process that had the run has brought it to an end."""
        outcome = None
        with contextlib.suppress(FileNotFoundError, ConfigError):  # files come and go while others work
            if found := folder.result():
                outcome = Outcome("done", value={"error": found["final"]["error"], "seconds": found["seconds"]})
            elif folder.error_file.stat().st_mtime >= began and (failure := folder.failure()):
                outcome = Outcome("failed", failure["error"])
        if outcome is not None:
            self.finished(config, outcome)
        return outcome is not None

    def show(self, running: int, elsewhere: int, slots: int) -> None:
        """Bring the table up to date."""
        if not self.console.is_terminal:
            return
        left = self.total - len(self.result.done) - len(self.result.failed)
        eta = "?"
        if self.seconds:
            eta = duration(left * sum(self.seconds) / len(self.seconds) / slots)
        table = Table(box=None, pad_edge=False)
        cells = {
            "done": f"{len(self.result.done)}/{self.total}",
            "running": str(running) + (f" + {elsewhere} elsewhere" if elsewhere else ""),
            "failed": str(len(self.result.failed)),
            "ETA": eta,
            "last": self.last,
        }
        for name in cells:
            table.add_column(name, no_wrap=True)
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in cells.values()))
        self.live.update(table, refresh=True)

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def estimate(
    configs: Sequence[RunConfig], options: RunOptions = RunOptions(), where: ExecutorOptions = ExecutorOptions()
) -> tuple[dict[RunConfig, float], int]:
    """The seconds of each run, from a few steps of each network, and how many are run at a time.

    As many processes measure at the same time as runs would, for they slow down one another.

    Example:
        >>> seconds, slots = estimate(table2("cifar10"))  # doctest: +SKIP
    """
    images: dict[DataConfig, tuple[int, int]] = {}
    speeds: dict[tuple[object, ...], Speeds] = {}
    seconds: dict[RunConfig, float] = {}
    with make_executor(where, options) as executor:
        for config in configs:
            if config.data not in images:
                dataset, _ = open_data(config, options.data_dir)
                images[config.data] = (len(dataset.train), len(dataset.test))
            kind = (config.data.data, config.data.image_size, config.model, config.precision, config.compile)
            if kind not in speeds:
                speeds[kind] = _measured(executor, config)
            seconds[config] = estimated_seconds(config, *images[config.data], speeds[kind])
        return seconds, executor.slots


def _measured(executor: Executor, config: RunConfig) -> Speeds:
    outcomes: list[Outcome] = []
    slots = executor.slots
    for _ in range(slots):
        executor.submit("measure", config)
    while len(outcomes) < slots:
        outcomes += [outcome for _, _, outcome in executor.wait(60.0)]
    for outcome in outcomes:
        if outcome.kind != "done":
            raise TrainingError(f"cannot measure {config.model} on {config.data.data}: {outcome.message}")
    train, test = (sum(outcome.value[name] for outcome in outcomes) / slots for name in ("train", "test"))
    return Speeds(train, test)


def duration(seconds: float) -> str:
    """In words.

    Example:
        >>> duration(4.2), duration(119.7), duration(7300), duration(200_000)
        ('4 s', '2 min 0 s', '2 h 1 min', '2 d 7 h')
    """
    whole = round(seconds)
    for unit, parts, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {parts}"
    return f"{whole} s"
