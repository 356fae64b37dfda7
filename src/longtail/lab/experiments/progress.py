"""Progress of many runs: a bar in a terminal, else lines; always with an ETA."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Column

from longtail.lab.training import RunFolder
from longtail.lab.training.cost import duration
from longtail.lab.training.display import ProgressDisplay


class Progress(ProgressDisplay):
    """Shows how many runs are done, running and failed, and how long the rest takes.

    Example:
        >>> import sys
        >>> with Progress(Console(file=sys.stdout), total=2) as progress:
        ...     progress.finished(4.0, "softmax: error 9.00%")
        1/2 softmax: error 9.00%
    """

    def __init__(self, console: Console | None, total: int) -> None:
        last = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        columns = BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[state]}"), last
        super().__init__(console, "", *columns, total=total, state="")
        self.total, self.done, self.failed, self.skipped = total, 0, 0, 0
        self.seconds: list[float] = []
        self.expected: float | None = None
        self.waits, self.opened = False, time.time()
        self.first, self.ended_before = self.began, 0

    def expect(self, seconds: float) -> None:
        """How long a run takes, as long as none is complete; the first one begins now."""
        self.expected = seconds
        self.first, self.ended_before = time.monotonic(), self.done + self.failed

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

    def show(self, runs: Sequence[RunFolder], elsewhere: int, slots: int) -> None:
        """Bring the bar up to date, or write a line if there was none for a minute.

        Args:
            runs: those that are under way or about to begin; their folders say how far they are.
            elsewhere: how many another process has.
            slots: how many run at a time.
        """
        found = [progress for run in runs if (progress := run.progress(self.opened))]
        total, ended = self.total - self.skipped, self.done + self.failed
        seconds = self._seconds_left(total - ended, found, slots)
        others = f" + {elsewhere} elsewhere" if elsewhere else ""
        failed = f", {self.failed} failed" if self.failed else ""
        eta = "" if seconds is None else f", {duration(seconds)} left"
        state = f"{min(len(runs), slots)}{others} running{failed}{eta}"
        self.bar.update(self.task, completed=ended + sum(share for share, _ in found), total=total, state=state)
        is_first = self.expected is None and seconds is not None
        if self.is_line_due or (is_first and not self.console.is_terminal):
            self.say(f"{self.done}/{total} runs done, {state}")
        if self.expected is None and seconds is not None:
            self.expected = seconds * slots / max(total - ended, 1)

    def _seconds_left(self, runs: int, found: Sequence[tuple[float, float]], slots: int) -> float | None:
        """Of so many runs, some of which say how far they are."""
        whole = self.seconds or [left / (1 - share) for share, left in found if share < 1]
        if not whole and self.expected is None:
            return None
        mean_seconds = mean(whole or [self.expected or 0.0])
        ended = self.done + self.failed - self.ended_before
        if ended >= 2 * slots:  # enough to know what a run takes here, start and other load included
            mean_seconds = max(mean_seconds, (time.monotonic() - self.first) * slots / ended)
        left = [seconds for _, seconds in found]
        waiting = max(runs - len(found), 0) * mean_seconds
        return max([(sum(left) + waiting) / slots, *left])
