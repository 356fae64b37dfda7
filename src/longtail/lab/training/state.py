"""Where a training is, and when it is to save or to stop."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longtail.lab.training.errors import TrainingError
from longtail.lab.training.metrics import sums_dtype
from longtail.lab.training.processes import total

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["ADVICE", "State", "Stop", "Timer", "stop_signals"]

# Steps after which several processes ask one another whether to stop or to save.
AGREE_EVERY = 10

NEVER = 2**31 - 1

ADVICE = "try a lower optimizer.lr or more optimizer.warmup_epochs"


class State:
    """Where a training is: what a checkpoint holds beside the weights."""

    CONTENT = frozenset({"epoch", "step", "rate", "loss", "model", "optimizer", "precision"})

    def __init__(self, device: torch.device) -> None:
        self.epoch = self.step = 0
        self.rate = 0.0
        self.loss = torch.zeros((), dtype=sums_dtype(device), device=device)
        self.rates: dict[int, float] = {}
        """Learning rate of each step of the epoch, from 1 on."""
        self.first_bad = torch.tensor(NEVER, device=device)
        self.saved = time.monotonic()
        """When the last checkpoint was written, or the training began."""
        self.best: dict[str, Any] | None = None
        """The best epoch on validation images so far: ``epoch``, ``score`` and the weights, ``model``."""

    def add(self, loss: Tensor) -> None:
        """Count the loss of a piece of a batch, without waiting for the device."""
        self.loss += loss
        self.rates[self.step + 1] = self.rate
        self.first_bad = torch.where(loss.isfinite(), self.first_bad, self.first_bad.clamp(max=self.step + 1))

    def end_epoch(self) -> Tensor:
        """Start counting anew, and return the loss of the epoch, summed over samples."""
        self.epoch, self.step, self.rates = self.epoch + 1, 0, {}
        loss, self.loss = self.loss, torch.zeros_like(self.loss)
        return loss

    def keep_best(self, score: float, nll: float, network: nn.Module) -> None:
        """Keep the weights of this epoch if its score is the highest so far; of equal ones the lowest loss decides."""
        if self.best is None or (score, -nll) > (self.best["score"], -self.best["nll"]):
            weights = {name: value.detach().to("cpu", copy=True) for name, value in network.state_dict().items()}
            self.best = {"epoch": self.epoch + 1, "score": score, "nll": nll, "model": weights}

    def check_finite(self, fabric: Fabric) -> None:
        """Stop a training whose loss is not a number any more, in any process: nothing good follows."""
        first_bad = fabric.all_reduce(self.first_bad.clone(), reduce_op="min")
        assert isinstance(first_bad, Tensor)
        if (step := int(first_bad.item())) != NEVER:
            raise TrainingError(
                f"the loss became infinite or NaN in epoch {self.epoch + 1}, step {step}, at learning rate "
                f"{self.rates[step]:g}: {ADVICE}"
            )

    @classmethod
    def check(cls, content: dict[str, Any]) -> None:
        """Refuse what is not the content of a checkpoint."""
        if not set(content) >= cls.CONTENT:
            raise ValueError("it is not a checkpoint")
        for name in ("epoch", "step"):
            if type(content[name]) is not int or content[name] < 0:
                raise TypeError(f"{name} is {content[name]!r:.60}")
        if not isinstance(content["rate"], float):
            raise TypeError(f"rate is {content['rate']!r:.60}")
        if not isinstance(content["loss"], Tensor) or content["loss"].ndim:
            raise TypeError(f"loss is {content['loss']!r:.60}")
        if (best := content.get("best")) is not None and (
            type(best["epoch"]) is not int
            or not 1 <= best["epoch"] <= content["epoch"]
            or not isinstance(best["score"], float)
            or not isinstance(best["nll"], float)
            or best["model"].keys() != content["model"].keys()
        ):
            raise TypeError(
                f"best is of epoch {best['epoch']!r:.60} with {best['score']!r:.60} and {best['nll']!r:.60}"
            )

    def content(self, network: nn.Module, optimizer: Any, fabric: Fabric) -> dict[str, Any]:
        """All that is needed to go on."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "rate": self.rate,
            "loss": total(fabric, self.loss).cpu(),
            "model": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "precision": fabric.strategy.precision.state_dict(),
            "best": self.best,
        }

    def restore(self, content: dict[str, Any], network: nn.Module, optimizer: Any, fabric: Fabric) -> None:
        """Go on from there."""
        self.epoch, self.step, self.rate = content["epoch"], content["step"], content["rate"]
        self.best = content.get("best")
        if fabric.is_global_zero:
            self.loss += content["loss"].to(self.loss.device)
        network.load_state_dict(content["model"])
        settings = [{**group, "params": None} for group in optimizer.param_groups]
        optimizer.load_state_dict(content["optimizer"])
        for group, setting in zip(optimizer.param_groups, settings, strict=True):
            group.update(setting | {"params": group["params"]})  # the configuration's, whatever the file says
        for parameter, kept in optimizer.state.items():
            for name, value in kept.items():
                if value is not None and (not isinstance(value, Tensor) or value.shape not in ((), parameter.shape)):
                    raise TypeError(f"{name} of the optimizer is {value!r:.60}")
        fabric.strategy.precision.load_state_dict(content["precision"])


class Timer:
    """Seconds of an epoch, and whether it is time for a checkpoint."""

    def __init__(self, checkpoint_minutes: float) -> None:
        self.began = self.saved = time.monotonic()
        self.every = 60 * checkpoint_minutes

    def seconds(self) -> float:
        """Since the epoch began, or was resumed."""
        return time.monotonic() - self.began

    def is_due(self, fabric: Fabric, step: int) -> bool:
        """The first process decides, and not at every step."""
        due = time.monotonic() - self.saved > self.every
        if fabric.world_size > 1:
            due = bool(fabric.broadcast(due)) if step % AGREE_EVERY == 0 else False
        if due:
            self.saved = time.monotonic()
        return due


class Stop:
    """Whether a signal asked the training to end."""

    def __init__(self) -> None:
        self.requested = False
        self.calls = 0

    def agreed(self, fabric: Fabric) -> bool:
        """Whether any process was asked to: one that stopped alone would leave the others waiting."""
        if fabric.world_size == 1:
            return self.requested
        self.calls += 1
        return self.calls % AGREE_EVERY == 0 and bool(
            total(fabric, torch.tensor(float(self.requested), device=fabric.device))
        )


@contextlib.contextmanager
def stop_signals(interrupt: Callable[[], Exception] | None = None) -> Iterator[Stop]:
    """SIGINT and SIGTERM ask to stop after the step; a second SIGINT interrupts at once.

    Args:
        interrupt: what is raised at once, where nothing needs to be finished first.

    Example:
        >>> with stop_signals() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     stop.requested
        True
    """
    stop = Stop()

    def request(number: int, frame: object) -> None:
        if stop.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.requested = True
        if interrupt:
            raise interrupt()

    try:
        before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals do not arrive either
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
