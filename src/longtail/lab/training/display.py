"""What a training shows while it runs: a bar in a terminal, else a line for each epoch; and TensorBoard's events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from longtail.lab.training.checkpoint import State
from longtail.lab.training.cost import duration, speed
from longtail.lab.training.errors import Interrupted

LINE_SECONDS = 60.0
"""Without a terminal there is a line at least this often."""
REPORT_SECONDS = 1.0
"""How often those who wait for the run are told how far it is."""

SETTLED_SECONDS = 2.0
"""After which the speed is known well enough to say how long the rest takes."""

CURVE = 40
"""Characters of a curve at most."""


class ProgressDisplay:
    """A bar in a terminal, else lines."""

    def __init__(self, console: Console | None, description: str, *columns: ProgressColumn, **task: Any) -> None:
        self.console = console or Console(quiet=True)
        self.began = self.last_line = time.monotonic()
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(description, **task)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bar.stop()

    @property
    def is_line_due(self) -> bool:
        """Whether there was no line for a minute."""
        return not self.console.is_terminal and time.monotonic() - self.last_line >= LINE_SECONDS

    def say(self, *lines: str) -> None:
        """A message that stays."""
        self.last_line = time.monotonic()
        self.console.print(*lines, sep="\n", highlight=False, markup=False, soft_wrap=True)


def _bar() -> tuple[ProgressColumn, ...]:
    return TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()


class FeatureProgress(ProgressDisplay):
    """Shows how many features are computed."""

    def __init__(self, console: Console | None, total: int, name: str) -> None:
        columns = TextColumn("images,"), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
        super().__init__(console, f"features of {name}", *_bar(), *columns, total=total)
        self.total, self.name, self.done = total, name, 0
        self.first: tuple[float, int] | None = None
        """When the first batch was done, and how large it was: workers start and warm up before."""
        self.announced = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        if kind is None and self.total:
            seconds = time.monotonic() - self.began
            self.say(f"computed the features of {self.total:,} images in {duration(seconds)}")

    def show(self, done: int) -> None:
        """So many are computed."""
        self.done = done
        self.bar.update(self.task, completed=done)
        now = time.monotonic()
        if self.first is None:
            self.first = now, done
        since, earlier = self.first
        per_second = (done - earlier) / (now - since) if now > since else 0.0
        if not per_second:
            return
        if not self.announced and now - since > SETTLED_SECONDS:
            self.announced = True
            self.say(
                f"computing the features of {self.total:,} images with {self.name}, once: "
                f"about {duration(self.total / per_second)} ({speed(per_second)})"
            )
        elif self.announced and self.is_line_due:
            self.say(f"{done:,} of {self.total:,} images, {duration((self.total - done) / per_second)} left")

    def interrupted(self) -> Interrupted:
        """How far it is."""
        so_far = f"the features of {self.done:,} of {self.total:,} images computed"
        return Interrupted(f"interrupted with {so_far}; run the same command to resume")


class Display(ProgressDisplay):
    """Shows a training, and writes TensorBoard's events."""

    def __init__(
        self,
        folder: Path | None,
        console: Console | None,
        epochs: int,
        steps: int,
        start: State,
        report: Callable[[float, float], None] = lambda share, seconds: None,
    ) -> None:
        columns = TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[errors]}")
        self.epochs, self.steps, self.report = epochs, steps, report
        self.reported = time.monotonic()
        self.start = start.epoch * steps + start.step
        super().__init__(console, "starting", *_bar(), *columns, total=epochs * steps, completed=self.start, errors="")
        self.lines: list[dict[str, Any]] = []
        from torch.utils.tensorboard import SummaryWriter  # slow to import: only who trains waits for it

        # Events after the step that this run resumes from are of steps that are made again.
        self.events = SummaryWriter(str(folder), purge_step=start.epoch + 1) if folder else None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        if kind is None and self.console.is_terminal and len(self.lines) > 1:
            self.say(*self.summary())
        if self.events:
            self.events.close()

    def step(self, now: State) -> None:
        """A step was made."""
        done, clock = now.epoch * self.steps + now.step, time.monotonic()
        if not self.console.quiet:  # as that of a worker, to which it would cost a tenth of the step of a head
            self.bar.update(self.task, completed=done, description=f"epoch {now.epoch + 1}/{self.epochs}")
        if clock - self.reported < REPORT_SECONDS:
            return
        self.reported, total = clock, self.epochs * self.steps
        left = (clock - self.began) / max(done - self.start, 1) * (total - done)
        self.report(done / total, left)
        if self.is_line_due:
            self.say(f"epoch {now.epoch + 1}/{self.epochs}: step {now.step}/{self.steps}, {duration(left)} left")

    def testing(self, images: int) -> None:
        """So many of the test or validation images were looked at."""
        self.bar.update(self.task, description="testing")
        if self.is_line_due:
            self.say(f"testing: {images:,} images done")

    def epoch(self, lines: list[dict[str, Any]]) -> None:
        """An epoch is over."""
        line, self.lines = lines[-1], lines
        tested = [line["error"] for line in lines if "error" in line]
        errors = f"test error {tested[-1]:.2f}%" if tested else "not tested yet"
        if "validation_balanced_accuracy" in line:
            errors += f", balanced accuracy on validation images {line['validation_balanced_accuracy']:.1%}"
        self.bar.update(self.task, errors=f"loss {line['train_loss']:.4g}, {errors}")
        if not self.console.is_terminal:
            self.say(
                f"epoch {line['epoch']}/{self.epochs}: loss {line['train_loss']:.4g}, {errors}, "
                f"learning rate {line['lr']:.3g}, {line['images_per_second']:,.0f} images/s"
            )
        if self.events:
            for name, value in line.items():
                if isinstance(value, float):
                    self.events.add_scalar(name, value, line["epoch"])

    def summary(self) -> list[str]:
        """What the bar showed, as curves that stay, a line each."""
        took = duration(time.monotonic() - self.began)
        told = [f"{self.lines[-1]['epoch']} epochs in {took}"]
        for name, title, unit in (("train_loss", "training loss", ""), ("error", "test error", "%")):
            values = [line[name] for line in self.lines if name in line]
            if len(values) > 1:
                told.append(f"{title:<13} {values[0]:.4g}{unit} {curve(values)} {values[-1]:.4g}{unit}")
        return told


def curve(values: Sequence[float]) -> str:
    """Values as a line of blocks, the lowest and the highest as the lowest and the highest block.

    Example:
        >>> curve([3.0, 2.0, 1.5, 1.0, 1.0])
        '█▅▃▁▁'
    """
    blocks = "▁▂▃▄▅▆▇█"
    chosen = [values[round(index)] for index in np.linspace(0, len(values) - 1, min(len(values), CURVE))]
    low, high = min(chosen), max(chosen)
    scale = (len(blocks) - 1) / (high - low) if math.isfinite(high - low) and high > low else 0.0
    return "".join(blocks[round((value - low) * scale)] if scale else blocks[0] for value in chosen)
