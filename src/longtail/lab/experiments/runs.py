"""Runs that an executor trains, and those that another process has."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Self

from longtail.lab.config import ConfigError, RunConfig, RunOptions
from longtail.lab.experiments.executors import Executor
from longtail.lab.experiments.progress import Progress
from longtail.lab.experiments.task import Outcome
from longtail.lab.training import Interrupted, RunFolder
from longtail.lab.training.processes import Stop, stop_signals

AGAIN_SECONDS = 2.0
"""How long to leave alone a run that another process has."""


class Runs:
    """Trains runs; one that another process has is left to it, and resumed should that process die."""

    def __init__(self, executor: Executor, options: RunOptions, progress: Progress, stop: Stop) -> None:
        self.executor, self.options, self.progress, self.stop = executor, options, progress, stop
        self.training: set[RunConfig] = set()
        self.elsewhere: dict[RunConfig, float] = {}
        """Those that another process has, and when that was found out."""
        self.began = time.time()

    @classmethod
    @contextlib.contextmanager
    def begun(cls, executor: Executor, options: RunOptions, progress: Progress) -> Iterator[Self]:
        """With progress shown, and signals heard."""
        with stop_signals() as stop, progress:
            yield cls(executor, options, progress, stop)

    def folder(self, config: RunConfig) -> RunFolder:
        """That of a run."""
        return RunFolder(self.options.runs / config.run_id)

    def check(self, so_far: str = "") -> None:
        """End everything if a signal has come."""
        if self.stop.requested:
            self.executor.stop()
            raise Interrupted(f"interrupted{so_far}; run the same command to resume")

    def train(self, config: RunConfig) -> None:
        """Train a run as soon as there is room for it."""
        self.training.add(config)
        self.executor.submit("train", config)

    def wait(self) -> list[tuple[RunConfig, Outcome]]:
        """The runs that were done or failed since the last call, here or elsewhere; none after half a second."""
        finished = []
        for _, config, outcome in self.executor.wait(0.5):
            self.training.remove(config)
            if outcome.kind == "busy":
                self.elsewhere[config] = time.monotonic()
                self.progress.waits_for(config.run_id)
            elif outcome.kind == "interrupted":  # by somebody else, from outside
                self.train(config)
            else:
                finished.append((config, outcome))
        for config, since in list(self.elsewhere.items()):
            if time.monotonic() - since > AGAIN_SECONDS:
                del self.elsewhere[config]
                if ended := self._ended(config):
                    finished.append((config, ended))
                else:
                    self.train(config)
        self.progress.show(list(map(self.folder, self.training)), len(self.elsewhere), self.executor.slots)
        return finished

    def _ended(self, config: RunConfig) -> Outcome | None:
        """How a run ended that another process had, if it did since this one began."""
        folder = self.folder(config)
        with contextlib.suppress(FileNotFoundError, ConfigError):  # files come and go while others work
            if found := folder.result():
                return Outcome("done", value={"error": found["final"]["error"], "seconds": found["seconds"]})
            if folder.error_file.stat().st_mtime >= self.began and (failure := folder.failure()):
                return Outcome("failed", failure["error"])
        return None
