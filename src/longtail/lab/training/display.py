"""What a training shows while it runs: a bar in a terminal, else a line for each epoch; and TensorBoard's events."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from longtail.lab.training.cost import duration

__all__ = ["Display"]

LINE_SECONDS = 60.0
"""Without a terminal there is a line at least this often."""

CURVE = 40
"""Characters of a curve at most."""


class Position(Protocol):
    """Where a training is."""

    epoch: int
    step: int


class Display:
    """Shows a training to people; without a console it only writes TensorBoard's events.

    Args:
        folder: of the run; None writes nothing.
        console: where to show.
        epochs: of the whole training.
        steps: of an epoch.
        start: where the training resumes.
    """

    def __init__(self, folder: Path | None, console: Console | None, epochs: int, steps: int, start: Position) -> None:
        self.console = console or Console(quiet=True)
        self.epochs, self.steps = epochs, steps
        self.began = self.said = time.monotonic()
        self.start = start.epoch * steps + start.step
        self.lines: list[dict[str, Any]] = []
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[errors]}"),
        )
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(
            "starting", total=epochs * steps, completed=start.epoch * steps + start.step, errors=""
        )
        from torch.utils.tensorboard import SummaryWriter  # slow to import: only who trains waits for it

        # Events after the step that this run resumes from are of steps that are made again.
        self.events = SummaryWriter(str(folder), purge_step=start.epoch + 1) if folder else None

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.bar.stop()
        if kind is None and self.console.is_terminal and len(self.lines) > 1:
            self.say(self.summary())
        if self.events:
            self.events.close()

    def step(self, now: Position) -> None:
        """A step was made."""
        self.bar.update(
            self.task,
            completed=now.epoch * self.steps + now.step,
            description=f"epoch {now.epoch + 1}/{self.epochs}",
        )
        if not self.console.is_terminal and time.monotonic() - self.said >= LINE_SECONDS:
            done = now.epoch * self.steps + now.step
            pace = (time.monotonic() - self.began) / max(done - self.start, 1)
            left = duration(pace * (self.epochs * self.steps - done))
            self.say(f"epoch {now.epoch + 1}/{self.epochs}: step {now.step}/{self.steps}, {left} left")

    def testing(self) -> None:
        """The test images are being looked at."""
        self.bar.update(self.task, description="testing")

    def epoch(self, lines: list[dict[str, Any]]) -> None:
        """An epoch is over."""
        line, self.lines = lines[-1], lines
        tested = [line["error"] for line in lines if "error" in line]
        errors = f"error {tested[-1]:.2f}%, best {min(tested):.2f}%" if tested else "not tested yet"
        if "validation_balanced_accuracy" in line:
            errors += f", balanced accuracy on validation images {line['validation_balanced_accuracy']:.1%}"
        self.bar.update(self.task, errors=f"loss {line['train_loss']:.4g}, {errors}")
        if not self.console.is_terminal:
            self.say(
                f"epoch {line['epoch']}/{self.epochs}: loss {line['train_loss']:.4g}, {errors}, "
                f"learning rate {line['lr']:.3g}, {line['images_per_second']:,.0f} images/s"
            )
        self.record(line)

    def summary(self) -> str:
        """What the bar showed, as curves that stay."""
        took = duration(time.monotonic() - self.began)
        told = [f"{self.lines[-1]['epoch']} epochs in {took}"]
        for name, title, unit in (("train_loss", "training loss", ""), ("error", "test error", "%")):
            values = [line[name] for line in self.lines if name in line]
            if len(values) > 1:
                told.append(f"{title:<13} {values[0]:.4g}{unit} {curve(values)} {values[-1]:.4g}{unit}")
        return "\n".join(told)

    def record(self, line: dict[str, Any]) -> None:
        """For TensorBoard."""
        if self.events:
            for name, value in line.items():
                if isinstance(value, float):
                    self.events.add_scalar(name, value, line["epoch"])

    def say(self, text: str) -> None:
        """A message that stays."""
        self.said = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


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
