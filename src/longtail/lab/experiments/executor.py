"""Executors: where the runs of an experiment go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, Self

from longtail._checks import check_positive_integer
from longtail.lab.config import ConfigError, RunConfig, RunOptions, config_errors
from longtail.lab.experiments.task import Outcome, Task

__all__ = ["Executor", "ExecutorOptions", "Finished", "make_executor"]

Finished = tuple[Task, RunConfig, Outcome]


class Executor(Protocol):
    """Does tasks, several at a time; used in a ``with`` statement, which ends what it started."""

    @property
    def slots(self) -> int:
        """How many tasks it does at a time."""

    def submit(self, task: Task, config: RunConfig) -> None:
        """Do this as soon as there is room for it."""

    def wait(self, seconds: float) -> list[Finished]:
        """What was finished since the last call, as soon as there is anything, or nothing after ``seconds``."""

    def stop(self) -> list[Finished]:
        """Let runs save where they are and leave; what was not begun is dropped."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where runs go, and what each of them gets.

    Example:
        >>> ExecutorOptions(executor="local", address="auto")
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: address auto would do nothing: only the executor ray has one
    """

    executor: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a Ray cluster."""
    cpus_per_run: int = 1
    """Threads of a run; there are as many runs at a time as cores allow."""
    gpus_per_run: float | None = None
    """GPUs of a run, at most 1; by default 1 where there are any, and 0 on a cluster."""
    address: str | None = None
    """Of a Ray cluster that is running, auto for that of this machine; without it one is started here."""

    @config_errors()
    def __post_init__(self) -> None:
        check_positive_integer("cpus_per_run", self.cpus_per_run)
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run <= 1:
            raise ValueError(f"gpus_per_run must be from 0 to 1, got {self.gpus_per_run:g}")
        if self.address is not None and self.executor != "ray":
            raise ConfigError(f"address {self.address} would do nothing: only the executor ray has one")


def make_executor(where: ExecutorOptions, options: RunOptions) -> Executor:
    """The executor that was asked for."""
    if where.executor == "local":
        from longtail.lab.experiments.local import LocalExecutor

        return LocalExecutor(where, options)
    from longtail.lab.experiments.cluster import RayExecutor

    return RayExecutor(where, options)
