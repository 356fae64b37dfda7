"""Progress of many runs: a table in a terminal, else lines; always with an ETA."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from longtail.lab.training.cost import duration

__all__ = ["Progress"]

LINE_SECONDS = 60.0
"""Without a terminal there is a line at least this often."""


class Progress:
    """Shows how many runs are done, running and failed, and how long the rest takes.

    Args:
        console: where to; None is nowhere.
        total: how many runs there are.

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
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.last, self.waits, self.said = "", False, time.monotonic()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def expect(self, seconds: float) -> None:
        """How long a run takes, as long as none has told."""
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
        self.last = f"{self.done + self.failed}/{self.total} {text}"
        if stays or not self.console.is_terminal:
            self.say(self.last)

    def waits_for(self, run_id: str) -> None:
        """Another process has a run; a table of progress shows how many there are."""
        if not self.waits and not self.console.is_terminal:
            self.say(f"waiting for {run_id}, which is in use by another process")
        self.waits = True

    def show(self, running: int, elsewhere: int, slots: int) -> None:
        """Bring the table up to date, or write a line if there was none for a minute."""
        left = self.total - self.done - self.failed - self.skipped
        mean = sum(self.seconds) / len(self.seconds) if self.seconds else self.expected
        eta = "?" if mean is None else duration(left * mean / slots)
        others = f" + {elsewhere} elsewhere" if elsewhere else ""
        if not self.console.is_terminal:
            if time.monotonic() - self.said >= LINE_SECONDS:
                self.say(f"{self.done}/{self.total - self.skipped} runs done, {running}{others} running, {eta} left")
            return
        table = Table(box=None, pad_edge=False)
        cells = {
            "done": f"{self.done}/{self.total - self.skipped}",
            "running": f"{running}{others}",
            "failed": str(self.failed),
            "ETA": eta,
            "last": self.last,
        }
        for name in cells:
            table.add_column(name, no_wrap=True)
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in cells.values()))
        self.live.update(table, refresh=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.said = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
