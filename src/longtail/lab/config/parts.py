"""The parts of a run: its data, its loss, its schedule and its last layer, each a frozen group of values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Fixed

from longtail._checks import (
    check_choice,
    check_in_unit_interval,
    check_loss_option,
    check_non_negative,
    check_positive_integer,
)
from longtail.lab.config.errors import ConfigError, config_errors, shortest
from longtail.lab.data import CATALOG, FoldOptions, OwnImages, SubsetOptions
from longtail.losses import LOSSES, owners_of
from longtail.samplers import SAMPLINGS
from longtail.weights import NORMALIZATIONS, SCHEMES

__all__ = ["OF_WEIGHTS", "OWN_OPTIONS", "DataConfig", "HeadConfig", "LossConfig", "OptimizerConfig"]

LARGEST = 10**9
"""Of most values: what is computed from them stays far below what 32 bits of a float can hold."""
LARGEST_IMAGE = 10_000
OWN_OPTIONS = tuple(dict.fromkeys(name for kind in LOSSES.values() for name in kind.options))
"""What some of the losses have beside their weights: γ, τ, margins and so on."""

OF_WEIGHTS = ("weighting", "beta", "betas", "normalize", "defer_reweighting", "anneal_beta")
"""What says how classes are weighted in a loss, and when."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train and test on."""

    data: str = "digits"
    """A name of longtail data list, or a folder or list of your own images."""
    subset: SubsetOptions = SubsetOptions()
    fold: FoldOptions = FoldOptions()
    own: OwnImages = OwnImages()
    on_error: Literal["stop", "skip"] = "stop"
    """What a broken image file does: skip reads all of them first, and leaves the broken ones out."""
    image_size: int = 224
    """Width and height of what the network sees of image files; images in memory keep their own."""
    mixup: float = 0.0
    """α of Mixup: training images and their labels are blended in pairs, by a λ from Beta(α, α); 0 does not."""
    cutmix: float = 0.0
    """α of CutMix: a box of another image, 1-λ of the area, is put in; with both, each batch has one of the two."""
    augment: bool = True
    """Whether training images are cropped and mirrored at random."""
    sampling: str = "shuffled"
    """Images of an epoch: shuffled, each once; or by class: class_balanced, square_root, progressive or effective."""
    sampling_beta: float | None = None
    """β of the effective sampling, 0.999 if not given: 0 draws all images alike, 1 all classes."""

    @config_errors()
    def __post_init__(self) -> None:
        check_positive_integer("image_size", self.image_size)
        _check_at_most("image_size", self.image_size, LARGEST_IMAGE)
        for name in ("mixup", "cutmix"):
            check_non_negative(name, getattr(self, name))
        check_choice("sampling", self.sampling, ("shuffled", *SAMPLINGS))
        if self.sampling == "effective" and self.sampling_beta is None:
            object.__setattr__(self, "sampling_beta", 0.999)
        elif self.sampling != "effective" and self.sampling_beta is not None:
            raise ConfigError(
                f"sampling_beta {self.sampling_beta:g} would do nothing: only the sampling effective has one"
            )
        if self.sampling_beta is not None:
            check_in_unit_interval("sampling_beta", self.sampling_beta)

    @property
    def places(self) -> dict[str, Path]:
        """Where your own images are, by the flags that say so; empty for a data set that has a name."""
        if self.data in CATALOG:
            return {}
        named = {"data": Path(self.data), "test_data": self.own.test_data, "image_root": self.own.image_root}
        return {flag: place for flag, place in named.items() if place is not None}

    @property
    def places_exist(self) -> bool:
        """Whether your own images are there, so that they can be compared with those of a run."""
        return bool(self.places) and all(place.exists() for place in self.places.values())

    @property
    def sampling_label(self) -> str | None:
        """A short name: ``effective_0.999`` has β 0.999; none where each image comes once."""
        beta = "" if self.sampling_beta is None else f"_{shortest(self.sampling_beta)}"
        return None if self.sampling == "shuffled" else self.sampling + beta


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The loss, and how classes are weighted in it."""

    loss: str = "softmax"
    """softmax, sigmoid, focal, softmax_focal, logit_adjusted (balanced softmax), ldam or asymmetric."""
    weighting: str = "effective"
    """Of the classes: effective (class-balanced), inverse, inverse_sqrt, or uniform (plain; for logit_adjusted)."""
    beta: float | None = None
    """β of the effective weights, 0.999 if not given: 0 weights all classes alike, 1 by inverse frequency."""
    betas: tuple[float, ...] = ()
    """β of each class instead of one for all, such as longtail advise suggests."""
    gamma: float | None = None
    """γ of the focal and softmax_focal losses, 0.5 if not given."""
    normalize: str = "classes"
    """Whether the weights are 1 on average over classes or over samples."""
    tau: float | None = None
    """τ of the logit_adjusted loss, 1 if not given: how much of the class prior its logits carry."""
    max_margin: float | None = None
    """Margin of the smallest class in the ldam loss, 0.5 if not given."""
    scale: float | None = None
    """What the ldam loss multiplies cosines by, 30 if not given."""
    gamma_negative: float | None = None
    """γ of absent classes in the asymmetric loss, 4 if not given."""
    gamma_positive: float | None = None
    """γ of the own class in the asymmetric loss, 0 if not given."""
    clip: float | None = None
    """What the asymmetric loss lowers the probabilities of absent classes by, 0.05 if not given."""

    @config_errors()
    def __post_init__(self) -> None:
        check_choice("loss", self.loss, tuple(LOSSES))
        check_choice("weighting", self.weighting, SCHEMES)
        check_choice("normalize", self.normalize, NORMALIZATIONS)
        self._check_betas()
        self._fill(
            "beta",
            0.999 if self.weighting == "effective" and not self.betas else None,
            "the weighting effective has one",
        )
        for name in OWN_OPTIONS:
            owners = " and ".join(owners_of(name))
            have = f"the losses {owners} have one" if " and " in owners else f"the loss {owners} has one"
            self._fill(name, LOSSES[self.loss].options.get(name), have)
            if getattr(self, name) is not None:
                check_loss_option(name, getattr(self, name))
                _check_at_most(name, getattr(self, name))
        if self.beta is not None:
            check_in_unit_interval("beta", self.beta)

    def _fill(self, name: str, default: float | None, owner: str) -> None:
        """A value that was not given is the default; one that was, where there is none, is refused."""
        value = getattr(self, name)
        if value is None:
            object.__setattr__(self, name, default)
        elif default is None:
            raise ConfigError(f"{name} {value:g} would do nothing: only {owner}")

    @property
    def own_options(self) -> dict[str, float]:
        """What this loss has beside its weights.

        Example:
            >>> LossConfig(loss="ldam", scale=20).own_options
            {'max_margin': 0.5, 'scale': 20}
        """
        return {name: getattr(self, name) for name in LOSSES[self.loss].options}

    @property
    def is_sigmoid(self) -> bool:
        """Whether each class is a question of its own: the last bias then starts at the class prior."""
        return LOSSES[self.loss].is_sigmoid

    @property
    def is_plain(self) -> bool:
        """Whether all classes weigh the same, whatever their images."""
        return self.weighting == "uniform" or not any(self.betas or (self.beta != 0,))

    @property
    def cosine_scale(self) -> float | None:
        """What the network multiplies cosines by, if its last layer is to give such."""
        return self.scale if self.loss == "ldam" else None

    def _check_betas(self) -> None:
        for beta in self.betas:
            check_in_unit_interval("betas", beta)
        if self.betas and self.weighting != "effective":
            raise ConfigError("betas would do nothing: only the weighting effective has them")
        if self.betas and self.beta not in (None, 0.999):
            raise ConfigError(f"beta {self.beta:g} would do nothing: betas gives one for each class")
        if self.betas:
            object.__setattr__(self, "beta", None)  # the default of flags and files, or nothing

    @property
    def label(self) -> str:
        """A short name: ``focal_0.5_0.999`` has γ 0.5 and β 0.999; ``ldam_scale20_0.999`` a scale that is not usual."""
        weighting = {"effective": self.beta, "uniform": None}.get(self.weighting, self.weighting)
        weighting = "betas" if self.betas else weighting
        usual = LOSSES[self.loss].options
        own = {name: value for name, value in self.own_options.items() if name != "gamma" and value != usual[name]}
        parts = (self.loss, self.gamma, *(f"{name}{shortest(float(value))}" for name, value in own.items()), weighting)
        return "_".join(shortest(part) for part in parts if part is not None)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Stochastic gradient descent with momentum, and its schedule; epochs may be fractions."""

    epochs: int = 200
    """How often each image is seen."""
    batch_size: int = 128
    """Images of a step, over all processes."""
    micro_batch_size: int | None = None
    """Images at once of a process: a larger batch is cut, and its gradients are added up."""
    learning_rate: float = 0.1
    """For batches of --learning-rate-batch images; it grows in proportion with the batch size."""
    learning_rate_batch: int = 128
    """Batch size that --learning-rate is meant for."""
    momentum: float = 0.9
    """Of the gradient."""
    nesterov: bool = False
    """Whether the momentum is Nesterov's."""
    weight_decay: float = 2e-4
    """L2 penalty; never on the last bias of sigmoid, focal and asymmetric losses."""
    decay_norms: bool = True
    """Whether it applies to the parameters of batch norms, and to the last bias of the other losses."""
    warmup_epochs: float = 5.0
    """Over which the learning rate grows from 0, step by step."""
    milestones: tuple[float, ...] = (160.0, 180.0)
    """Epochs at which it drops."""
    drop: float = 0.01
    """What it is then multiplied by."""
    defer_reweighting: Fixed[float | None] = None
    """Epoch at which the class weights begin; from the start if not given."""
    anneal_beta: Fixed[float | None] = None
    """Epochs over which β then grows from 0; at once if not given."""

    @config_errors()
    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate_batch"):
            check_positive_integer(name, getattr(self, name))
            _check_at_most(name, getattr(self, name))
        if self.micro_batch_size is not None:
            check_positive_integer("micro_batch_size", self.micro_batch_size)
        for name in ("learning_rate", "momentum", "weight_decay", "warmup_epochs", "drop"):
            check_non_negative(name, getattr(self, name))
            _check_at_most(name, getattr(self, name))
        for milestone in self.milestones:
            check_non_negative("milestones", milestone)
        if list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"milestones must be in order, got {self.milestones}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        self._check_reweighting()

    def _check_reweighting(self) -> None:
        for name in ("defer_reweighting", "anneal_beta"):
            value = getattr(self, name)
            if value is not None:
                check_non_negative(name, value)
                if not value:
                    raise ValueError(f"{name} 0 would do nothing")
        start, span = self.defer_reweighting or 0.0, self.anneal_beta or 0.0
        if start >= self.epochs:
            raise ValueError(f"defer_reweighting {start:g} would never begin: there are {self.epochs} epochs")
        if start + span > self.epochs * (1 + 1e-9):  # which are fractions where the schedule was scaled
            raise ValueError(f"anneal_beta {span:g} would not end: there are {self.epochs - start:g} epochs left")

    def learning_rate_at(self, epoch: float) -> float:
        """The learning rate after ``epoch`` epochs.

        Example:
            >>> OptimizerConfig().learning_rate_at(2.5), OptimizerConfig().learning_rate_at(170)
            (0.05, 0.001)
        """
        full = self.learning_rate * self.batch_size / self.learning_rate_batch
        if epoch < self.warmup_epochs:
            return full * epoch / self.warmup_epochs
        return full * self.drop ** sum(epoch >= milestone for milestone in self.milestones)


HEAD_METHODS = ("retrain", "tau_norm", "logit_adjustment")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Another last layer for the network of a finished run: what longtail retrain and longtail rebalance make."""

    head_of: str | None = None
    """The finished run, by its name, in the same folder of runs; without one, the whole network is trained."""
    head_method: str | None = None
    """retrain trains a new last layer alone; tau_norm and logit_adjustment change the one that there is."""
    head_tau: float | None = None
    """τ of tau_norm and logit_adjustment, 1 if not given: 0 changes nothing but the bias that tau_norm drops."""

    @config_errors()
    def __post_init__(self) -> None:
        if (self.head_of is None) != (self.head_method is None):
            raise ValueError("head_of and head_method are only of use together")
        if self.head_method is not None:
            check_choice("head_method", self.head_method, HEAD_METHODS)
        if self.head_of is not None and (Path(self.head_of).name != self.head_of or self.head_of in ("", "..")):
            raise ValueError(f"head_of must be the name of a run, not a path, got {self.head_of!r}")
        if self.is_rebalanced and self.head_tau is None:
            object.__setattr__(self, "head_tau", 1.0)
        elif not self.is_rebalanced and self.head_tau is not None:
            raise ValueError(
                f"head_tau {self.head_tau:g} would do nothing: only tau_norm and logit_adjustment have one"
            )
        if self.head_tau is not None:
            check_non_negative("head_tau", self.head_tau)

    @property
    def is_rebalanced(self) -> bool:
        """Whether the last layer is computed, and nothing is trained."""
        return self.head_method in HEAD_METHODS[1:]

    @property
    def label(self) -> str | None:
        """A short name: ``tau_norm_0.7`` has τ 0.7."""
        return self.head_method if self.head_tau is None else f"{self.head_method}_{shortest(self.head_tau)}"


def _check_at_most(name: str, value: float, largest: int = LARGEST) -> None:
    if value > largest:
        raise ValueError(f"{name} must be at most {largest:,}, got {value:,}")
