"""The recipes of the paper: functions that return a whole configuration."""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from longtail.lab.config import (
    OF_WEIGHTS,
    DataConfig,
    HeadConfig,
    LossConfig,
    OptimizerConfig,
    RunConfig,
    RunOptions,
    field_places,
    shortest,
)

__all__ = [
    "RECIPES",
    "Recipe",
    "cifar",
    "default_recipe",
    "large",
    "late_options",
    "rebalanced",
    "retrained",
    "scaled",
    "train_command",
    "usual_weighting",
]

SMALL_IMAGES = ("digits", "cifar10", "cifar20", "cifar100")

LATE = ("defer_reweighting", "anneal_beta")
"""Flags that are in epochs of the recipe, and stretched with the rest of its schedule."""


Part = TypeVar("Part", LossConfig, OptimizerConfig)


class Recipe(Protocol):
    """How to train on some data with some loss."""

    def __call__(self, data: DataConfig, loss: LossConfig, epochs: int | None = None) -> RunConfig:
        """The whole configuration; with other ``epochs`` than the recipe's, the schedule is scaled."""


def cifar(data: DataConfig = DataConfig(), loss: LossConfig = LossConfig(), epochs: int | None = None) -> RunConfig:
    """ResNet-32 on small images, as in section 5.2 of the paper: 200 epochs, and drops by 100 at 160 and 180.

    Example:
        >>> cifar(DataConfig(data="cifar10"), epochs=50).optimizer.milestones
        (40.0, 45.0)
    """
    return RunConfig(data=data, loss=loss, model="resnet32", optimizer=scaled(OptimizerConfig(), epochs))


def large(data: DataConfig = DataConfig(), loss: LossConfig = LossConfig(), epochs: int | None = None) -> RunConfig:
    """ResNet-50 on photographs, as in section 5.2 of the paper: the recipe of Goyal et al., 90 epochs, batches of 1024.

    With the focal loss, which is smaller than the others, the learning rate is twice as large, on iNaturalist four
    times.

    Example:
        >>> config = large(DataConfig(data="inaturalist2018"), LossConfig(loss="focal"))
        >>> config.optimizer.learning_rate_at(10)
        1.6

    Reference:
        Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017.
    """
    factor = 1 if loss.loss != "focal" else 4 if data.data.startswith("inaturalist") else 2
    optimizer = OptimizerConfig(
        epochs=90,
        batch_size=1024,
        learning_rate=0.1 * factor,
        learning_rate_batch=256,
        nesterov=True,
        weight_decay=1e-4,
        decay_norms=False,
        milestones=(30.0, 60.0, 80.0),
        drop=0.1,
    )
    return RunConfig(data=data, loss=loss, model="resnet50", optimizer=scaled(optimizer, epochs))


RECIPES: Mapping[str, Recipe] = {"cifar": cifar, "large": large}


def retrained(parent: RunConfig, epochs: int | None = 10, of: str | None = None) -> RunConfig:
    """A new last layer for a finished run: trained alone, on all classes alike, with the plain loss of the run's kind.

    Args:
        parent: what the run is.
        epochs: of the new layer; the schedule of the run is scaled to them, if there are any.
        of: the name of the run, if it is not its id.

    Example:
        >>> retrained(cifar()).run_id[:50], retrained(cifar()).optimizer.milestones
        ('digits-resnet32-softmax-class_balanced-s0-retrain-', (8.0, 9.0))

    Reference:
        Kang et al., *Decoupling Representation and Classifier for Long-Tailed Recognition*, ICLR 2020, section 4.
    """
    loss = replace(_without(parent.loss, *OF_WEIGHTS), weighting="uniform", beta=None)
    return replace(
        parent,
        data=replace(parent.data, sampling="class_balanced", sampling_beta=None),
        # Balanced classes need no logit adjustment: without it, that loss is the softmax one.
        loss=LossConfig(weighting="uniform") if loss.loss == "logit_adjusted" else loss,
        optimizer=scaled(_without(parent.optimizer, *OF_WEIGHTS), epochs),
        sync_batch_norm=False,
        head=HeadConfig(head_of=of or parent.run_id, head_method="retrain"),
    )


def _without(config: Part, *names: str) -> Part:
    """A part of a configuration with some of its fields as they are by default."""
    kept = {item.name: getattr(config, item.name) for item in fields(config) if item.name not in names}
    return type(config)(**kept)


def rebalanced(parent: RunConfig, method: str, tau: float | None = None, of: str | None = None) -> RunConfig:
    """The last layer of a finished run, changed and not trained, in favour of rare classes.

    Args:
        parent: what the run is.
        method: ``"tau_norm"`` or ``"logit_adjustment"``.
        tau: τ, 1 if not given.
        of: the name of the run, if it is not its id.

    Example:
        >>> rebalanced(cifar(), "tau_norm", 0.7).run_id[:46]
        'digits-resnet32-softmax_0.999-s0-tau_norm_0.7-'
    """
    return replace(parent, head=HeadConfig(head_of=of or parent.run_id, head_method=method, head_tau=tau))


def usual_weighting(loss: str) -> str:
    """How a loss weights classes if nothing else is said: logit adjustment corrects for their sizes by itself.

    Example:
        >>> usual_weighting("focal"), usual_weighting("logit_adjusted")
        ('effective', 'uniform')
    """
    return "uniform" if loss == "logit_adjusted" else "effective"


def late_options(loss: LossConfig) -> tuple[str, ...]:
    """Which of ``LATE`` a loss can have: weights that begin late, and one β that grows.

    Example:
        >>> late_options(LossConfig()), late_options(LossConfig(weighting="inverse")), late_options(LossConfig(beta=0))
        (('defer_reweighting', 'anneal_beta'), ('defer_reweighting',), ())
    """
    if loss.is_plain:
        return ()
    return LATE[:1] if loss.beta is None else LATE


def default_recipe(data: str) -> str:
    """The recipe for a data set.

    Example:
        >>> default_recipe("cifar100"), default_recipe("path/to/photos")
        ('cifar', 'large')
    """
    return "cifar" if data in SMALL_IMAGES else "large"


def train_command(config: RunConfig, options: RunOptions = RunOptions()) -> str:
    """The command that trains a configuration: what its recipe does not say itself.

    Args:
        config: the run.
        options: where its data and its folder are, and what else is not as usual.

    Example:
        >>> train_command(replace(cifar(loss=LossConfig(loss="focal"), epochs=40), model="resnet8", seed=1))
        'longtail train --data digits --loss focal --epochs 40 --model resnet8 --seed 1'
    """
    name, epochs = default_recipe(config.data.data), config.optimizer.epochs
    loss = LossConfig(loss=config.loss.loss, weighting=config.loss.weighting)
    start = RECIPES[name](DataConfig(data=config.data.data), loss, epochs)
    words = ["longtail", "train", "--data", config.data.data, "--loss", loss.loss]
    words += ["--weighting", loss.weighting] if loss.weighting != usual_weighting(loss.loss) else []
    words += ["--epochs", str(epochs)]
    for flag, place in field_places().items():
        value: Any = functools.reduce(getattr, place, config)
        if value is None or value == functools.reduce(getattr, place, start):
            continue
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}".replace("_", "-"))
            continue
        values = value if isinstance(value, tuple) else (value,)
        if flag in LATE:
            values = (_unscaled(value, epochs, RECIPES[name](start.data, loss).optimizer.epochs),)
        words += [f"--{flag}".replace("_", "-"), *map(shortest, values)]
    for item in fields(options):
        if (value := getattr(options, item.name)) != item.default:
            words += [f"--{item.name}".replace("_", "-"), str(value)]
    return shlex.join(words)


def _unscaled(value: float, epochs: int, of_recipe: int) -> float:
    """What :func:`scaled` makes ``value`` of: the roundest such number there is."""
    about = value * of_recipe / epochs
    near = [float(f"{about:.{digits}g}") for digits in range(1, 17)]
    near += [math.nextafter(about, math.inf), math.nextafter(about, 0.0)]
    return next((each for each in near if each * epochs / of_recipe == value), about)


def scaled(optimizer: OptimizerConfig, epochs: int | None) -> OptimizerConfig:
    """The schedule stretched to other epochs, if there are any.

    Example:
        >>> scaled(OptimizerConfig(), 20).warmup_epochs
        0.5
    """
    if epochs is None:
        return optimizer
    OptimizerConfig(epochs=epochs)  # which refuses what cannot be
    late = {name: getattr(optimizer, name) for name in LATE}
    return replace(
        optimizer,
        epochs=epochs,
        warmup_epochs=optimizer.warmup_epochs * epochs / optimizer.epochs,
        milestones=tuple(milestone * epochs / optimizer.epochs for milestone in optimizer.milestones),
        **{name: value and value * epochs / optimizer.epochs for name, value in late.items()},
    )
