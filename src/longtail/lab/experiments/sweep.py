"""A sweep: a list of runs, of which it trains those that are not complete."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.console import Console

from longtail.lab.config import ConfigError, DataConfig, RunConfig, RunOptions
from longtail.lab.data import DataError, open_dataset
from longtail.lab.experiments.executors import Executor, ExecutorOptions, make_executor
from longtail.lab.experiments.prepare import prepare_features
from longtail.lab.experiments.progress import Progress
from longtail.lab.experiments.runs import Runs
from longtail.lab.experiments.task import Outcome
from longtail.lab.files import check_writable
from longtail.lab.training import RunFolder, TrainingError, identify, open_data
from longtail.lab.training.cost import Cost, duration
from longtail.lab.training.frozen import FrozenBackbone
from longtail.lab.training.loop import tested_images


@dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep; ``done`` has all runs that are complete now.

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

    A run that fails is recorded with its error, and the others continue. One that another process is training is left
    to it, and resumed should that process die. After an interrupt, the next call resumes.

    Args:
        configs: the runs; what is there twice is run once.
        options: of all runs.
        where: the executor.
        console: where to show progress.

    Example:
        >>> from longtail.lab.experiments import rescaled, table2
        >>> run_sweep(rescaled(table2("cifar10"), epochs=30, model="resnet8"))  # doctest: +SKIP
    """
    wanted = list(dict.fromkeys(identify(configs, options.data_dir, console, options.runs)))
    result = SweepResult(done=complete_runs(wanted, options))
    complete = set(result.done)
    missing = deque(config for config in wanted if config not in complete)
    if not missing:
        return result
    check_writable(options.runs)
    if where.executor == "local":
        # Data that cannot be opened is one error, and not one of each run.
        # What is wrong with one run alone, such as an imbalance it is too small for, is that run's error.
        for data in {config.data.name: config.data for config in missing if config.data.is_catalogued}.values():
            open_dataset(data.name, options.data_dir, on_error=data.on_error, console=console)
    with make_executor(where, options) as executor:
        _prepare(missing, options, executor, console)
        with Runs.begun(executor, options, Progress(console, len(wanted))) as runs:
            if complete:
                runs.progress.say(f"{len(complete)} of {len(wanted)} runs are complete already")
            runs.progress.skip(len(complete))
            while missing or runs.training or runs.elsewhere:
                runs.check(f" with {len(result.done)} of {len(wanted)} runs done")
                # Twice as many as there is room for: a cluster that can grow is to see that there is more to do.
                while missing and len(runs.training) < 2 * executor.slots:
                    runs.train(missing.popleft())
                for config, outcome in runs.wait():
                    _finish(config, outcome, result, runs.progress)
    return result


def _prepare(configs: Iterable[RunConfig], options: RunOptions, executor: Executor, console: Console | None) -> None:
    """Compute the features of frozen backbones, once for all runs on the same images."""
    kinds = {_features_of(config): config for config in configs if config.model.freeze}
    for config in kinds.values():
        with contextlib.suppress(ConfigError, DataError):  # its run fails by name
            dataset, _, opened = open_data(config, options.data_dir)
            prepare_features(opened, dataset, options, executor, console)


def _features_of(config: RunConfig) -> tuple[object, ...]:
    """What the features of a frozen backbone depend on."""
    data = config.data
    return config.model, config.precision, data.source, data.subset, data.image_size, data.views


def complete_runs(configs: Iterable[RunConfig], options: RunOptions) -> list[RunConfig]:
    """Those that have a result; one that cannot be read is none, so that its run is tried, and fails by name."""

    def is_complete(config: RunConfig) -> bool:
        with contextlib.suppress(ConfigError):
            return RunFolder(options.runs / config.run_id).result() is not None
        return False

    return [config for config in configs if is_complete(config)]


def _finish(config: RunConfig, outcome: Outcome, result: SweepResult, progress: Progress) -> None:
    if outcome.kind == "failed":
        result.failed[config] = outcome.message
        progress.fail(f"{config.run_id}: failed: {outcome.message}")
        return
    result.done.append(config)
    seconds = outcome.value.get("seconds", 0.0)
    progress.finished(seconds, f"{config.run_id}: error {outcome.value['error']:.2f}% in {duration(seconds)}")


class Estimate(NamedTuple):
    """How long runs take.

    Example:
        >>> Estimate({RunConfig(): 60.0, RunConfig(seed=1): 60.0}, slots=2, features=10.0).total
        70.0
    """

    seconds: dict[RunConfig, float]
    """Of each run."""
    slots: int
    """Runs at a time."""
    features: float = 0.0
    """Seconds that the features of frozen backbones take first, where they are not in the cache."""

    @property
    def total(self) -> float:
        """Seconds of all of it."""
        return self.features + sum(self.seconds.values()) / self.slots


def estimate(
    configs: Sequence[RunConfig], options: RunOptions = RunOptions(), where: ExecutorOptions = ExecutorOptions()
) -> Estimate:
    """How long runs take here, from a few steps of each network.

    As many processes measure at the same time as runs would, for they slow down one another.

    Example:
        >>> estimate(table2("cifar10")).total  # doctest: +SKIP
    """
    images: dict[DataConfig, tuple[int, int]] = {}
    speeds: dict[tuple[object, ...], Cost] = {}
    seconds: dict[RunConfig, float] = {}
    computed: dict[tuple[object, ...], float] = {}
    with make_executor(where, options) as executor:
        for config in configs:
            features = _features_of(config)
            if config.data not in images or (config.model.freeze and features not in computed):
                dataset, _, opened = open_data(config, options.data_dir)
                images[config.data] = (len(dataset.train), tested_images(dataset))
                if config.model.freeze:
                    computed[features] = FrozenBackbone(opened, dataset).seconds(options.workers)
            kind = (config.data, config.model, config.precision, config.compile)
            if kind not in speeds:
                speeds[kind] = measure_speeds(executor, config)
            seconds[config] = speeds[kind].seconds(config, *images[config.data])
        return Estimate(seconds, executor.slots, sum(computed.values()))


def measure_speeds(executor: Executor, config: RunConfig, check: Callable[[], None] = lambda: None) -> Cost:
    """How fast a network trains and tests with as many processes as there will be; ``check`` may interrupt it."""
    outcomes: list[Outcome] = []
    slots = executor.slots
    for _ in range(slots):
        executor.submit("measure", config)
    while len(outcomes) < slots:
        check()
        outcomes += [outcome for _, _, outcome in executor.wait(0.5)]
    for outcome in outcomes:
        if outcome.kind != "done":
            raise TrainingError(f"cannot measure {config.model.name} on {config.data.name}: {outcome.message}")
    train, test = (sum(outcome.value[name] for outcome in outcomes) / slots for name in ("train", "test"))
    return Cost(0.0, 0.0, train, test)
