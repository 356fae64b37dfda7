"""Checkpoints: where a training is, and the last two of its states, each whole or not there."""

from __future__ import annotations

import contextlib
import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longtail.lab.files import atomic_file
from longtail.lab.training.errors import TrainingError
from longtail.lab.training.metrics import sums_dtype
from longtail.lab.training.processes import AGREE_EVERY, total

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LATEST, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
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

    def is_save_due(self, fabric: Fabric, minutes: float) -> bool:
        """Whether the last checkpoint is older than that; the first process decides, and not at every step."""
        due = time.monotonic() - self.saved > 60 * minutes
        if fabric.world_size == 1:
            return due
        return self.step % AGREE_EVERY == 0 and bool(fabric.broadcast(due))

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


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Save ``state``, tensors and plain values, and keep the one before it."""
    # To memory first: PyTorch's own writer does not say what was wrong with the disk.
    content = io.BytesIO()
    torch.save(state, content)
    with atomic_file(folder / LATEST) as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())  # before, not between: for as short a time as can be there is no latest one
        if (folder / LATEST).exists():
            os.replace(folder / LATEST, folder / PREVIOUS)


def load_checkpoint(
    folder: Path, check: Callable[[dict[str, Any]], object] = dict
) -> tuple[dict[str, Any] | None, list[str]]:
    """The latest state that is whole, if there is one, and what was wrong with the others.

    Loading runs no code that a file may hold.
    """
    notes: list[str] = []
    there = [folder / name for name in (LATEST, PREVIOUS) if (folder / name).exists()]
    for path in there:
        try:
            # PyTorch compares no checksums: a flipped bit in a tensor would go unnoticed.
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged:
                raise ValueError(f"checksum of {damaged}")
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict):
                raise TypeError("it is not a checkpoint")
            check(state)
            return state, notes
        except Exception as error:  # a damaged file can raise anything
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            following = "starting anew" if path == there[-1] else "resuming from the one before it"
            # Out of the way: the next checkpoint would push out the one before it, which is whole, for this one.
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                path.replace(path.with_suffix(".damaged"))
            notes.append(f"{path} is damaged ({reason}): {following}")
    return None, notes
