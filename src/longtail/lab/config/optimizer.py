"""The optimizer and its learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from longtail._checks import check_choice, check_non_negative, check_positive_integer
from longtail.lab.config.errors import LARGEST, ConfigError, check_at_most, config_errors


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and its learning-rate schedule; epochs of the schedule may be fractions."""

    name: Literal["sgd", "adamw"] = "sgd"
    """sgd (with momentum) or adamw."""
    epochs: int = 200
    """Number of training epochs."""
    batch_size: int = 128
    """Images per step, over all processes."""
    micro_batch_size: int | None = None
    """Images per forward pass: larger batches are split and their gradients accumulated, which saves memory."""
    lr: float = 0.1
    """Learning rate at a batch size of lr_batch_size; it scales linearly with the batch size."""
    lr_batch_size: int = 128
    """Batch size that lr is given for."""
    momentum: float = 0.9
    """SGD momentum; β₁ of AdamW."""
    nesterov: bool = False
    """Nesterov momentum (SGD)."""
    weight_decay: float = 2e-4
    """Weight decay; never applied to the last bias of sigmoid, focal and asymmetric losses."""
    decay_norms: bool = True
    """Apply weight decay to norms and, except for sigmoid losses, to the last bias."""
    warmup_epochs: float = 5.0
    """Epochs of linear warm-up, step by step."""
    schedule: Literal["step", "cosine"] = "step"
    """step: multiply the learning rate by lr_decay at each milestone. cosine: decay it to 0."""
    milestones: tuple[float, ...] = (160.0, 180.0)
    """Epochs at which the learning rate decays (step schedule)."""
    lr_decay: float = 0.01
    """Learning-rate decay factor (step schedule)."""
    layer_decay: float = 1.0
    """Learning rate of a layer over that of the next one, towards the output; 1 trains all layers alike."""

    @config_errors()
    def __post_init__(self) -> None:
        check_choice("optimizer", self.name, ("sgd", "adamw"))
        check_choice("schedule", self.schedule, ("step", "cosine"))
        for name in ("epochs", "batch_size", "lr_batch_size"):
            check_positive_integer(name, getattr(self, name), LARGEST)
        if self.micro_batch_size is not None:
            check_positive_integer("micro_batch_size", self.micro_batch_size)
        for name in ("lr", "momentum", "weight_decay", "warmup_epochs", "lr_decay"):
            check_non_negative(name, getattr(self, name))
            check_at_most(name, getattr(self, name))
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must be in (0, 1], got {self.layer_decay:g}")
        for milestone in self.milestones:
            check_non_negative("milestones", milestone)
        if list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"milestones must be in order, got {self.milestones}")
        if self.nesterov and (self.name != "sgd" or not self.momentum):
            raise ConfigError("nesterov requires optimizer sgd with a momentum above 0")
        if self.name == "adamw" and self.momentum >= 1:
            raise ValueError(f"momentum must be below 1 with adamw, got {self.momentum:g}")
        if self.schedule == "cosine":  # which has neither
            for name, unused in (("milestones", ()), ("lr_decay", 0.0)):
                if getattr(self, name) not in (getattr(OptimizerConfig, name), unused):
                    raise ConfigError(f'{name} requires schedule "step"')
                object.__setattr__(self, name, unused)

    def lr_at(self, epoch: float) -> float:
        """The learning rate after ``epoch`` epochs.

        Example:
            >>> OptimizerConfig().lr_at(2.5), OptimizerConfig().lr_at(170)
            (0.05, 0.001)
            >>> OptimizerConfig(schedule="cosine", epochs=10, warmup_epochs=2).lr_at(6)
            0.05
        """
        full = self.lr * self.batch_size / self.lr_batch_size
        if epoch < self.warmup_epochs:
            return full * epoch / self.warmup_epochs
        if self.schedule == "cosine":
            done = (epoch - self.warmup_epochs) / max(self.epochs - self.warmup_epochs, 1e-9)
            return full * (1 + math.cos(math.pi * min(done, 1.0))) / 2
        return full * self.lr_decay ** sum(epoch >= milestone for milestone in self.milestones)

    def with_epochs(self, epochs: int | None) -> Self:
        """The schedule stretched to other epochs; None leaves it as it is.

        Example:
            >>> OptimizerConfig().with_epochs(20).milestones
            (16.0, 18.0)
        """
        if epochs is None:
            return self
        OptimizerConfig(epochs=epochs)  # refuses what cannot be
        return replace(
            self,
            epochs=epochs,
            warmup_epochs=self.warmup_epochs * epochs / self.epochs,
            milestones=tuple(milestone * epochs / self.epochs for milestone in self.milestones),
        )
