"""What a training shows while it runs: a bar in a terminal, else a line for each epoch; and TensorBoard's events."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from longtail.lab.training.cost import duration

__all__ = ["Display"]

LINE_SECONDS = 60.0
"""Without a terminal there is a line at least this often."""


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

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
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
        line = lines[-1]
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
