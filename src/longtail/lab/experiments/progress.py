"""Progress of many runs: a bar in a terminal, else lines; always with an ETA."""

from __future__ import annotations

import time
from typing import Self

from rich import progress
from rich.console import Console
from rich.table import Column

from longtail.lab.training.cost import duration

__all__ = ["Progress"]

LINE_SECONDS = 60.0
"""Without a terminal there is a line at least this often."""


class Progress:
    """Shows how many runs are done, running and failed, and how long the rest takes.

    Example:
        >>> import sys
        >>> with Progress(Console(file=sys.stdout), total=2) as progress:
        ...     progress.finished(4.0, "softmax: error 9.00%")
        1/2 softmax: error 9.00%
    """

    def __init__(self, console: Console | None, total: int) -> None:
        self.console = console or Console(quiet=True)
        self.total, self.done, self.failed, self.skipped = total, 0, 0, 0
        self.seconds: list[float] = []
        self.expected: float | None = None
        last = progress.TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        columns = (progress.BarColumn(24), progress.MofNCompleteColumn(), progress.TextColumn("{task.fields[state]}"))
        is_terminal = self.console.is_terminal
        self.bar = progress.Progress(*columns, last, console=self.console, transient=True, disable=not is_terminal)
        self.task = self.bar.add_task("", total=total, state="")
        self.waits, self.last_line = False, time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def expect(self, seconds: float) -> None:
        """How long a run takes, as long as none is complete."""
        self.expected = seconds

    def finished(self, seconds: float, text: str | None = None) -> None:
        """A run is complete."""
        self.done += 1
        self.seconds.append(seconds)
        self._ended(text)

    def fail(self, text: str) -> None:
        """A run has failed: that stays on the screen."""
        self.failed += 1
        self._ended(text, stays=True)

    def skip(self, runs: int) -> None:
        """Runs that are not needed any more."""
        self.skipped += runs

    def _ended(self, text: str | None, stays: bool = False) -> None:
        if text is None:
            return
        last = f"{self.done + self.failed}/{self.total} {text}"
        self.bar.update(self.task, description=last.replace("[", "\\["))
        if stays or not self.console.is_terminal:
            self.say(last)

    def waits_for(self, run_id: str) -> None:
        """Another process has a run; a bar shows how many there are."""
        if not self.waits and not self.console.is_terminal:
            self.say(f"waiting for {run_id}, which is in use by another process")
        self.waits = True

    def show(self, running: int, elsewhere: int, slots: int) -> None:
        """Bring the bar up to date, or write a line if there was none for a minute."""
        left = self.total - self.done - self.failed - self.skipped
        mean = sum(self.seconds) / len(self.seconds) if self.seconds else self.expected
        others = f" + {elsewhere} elsewhere" if elsewhere else ""
        failed = f", {self.failed} failed" if self.failed else ""
        eta = "" if mean is None else f", {duration(left * mean / slots)} left"
        state = f"{running}{others} running{failed}{eta}"
        total = self.total - self.skipped
        self.bar.update(self.task, completed=self.done + self.failed, total=total, state=state)
        if not self.console.is_terminal and time.monotonic() - self.last_line >= LINE_SECONDS:
            self.say(f"{self.done}/{total} runs done, {state}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.last_line = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
