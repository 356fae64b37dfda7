"""What a run is: one frozen tree of values, the same object from the same JSON, and an id that follows from it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from tyro.conf import Fixed

from longtail._checks import (
    check_choice,
    check_in_unit_interval,
    check_loss_option,
    check_non_negative,
    check_positive_integer,
)
from longtail.lab.data import FoldOptions, OwnImages, SubsetOptions
from longtail.lab.encoding import decode, encode, without_defaults
from longtail.lab.models import MODELS
from longtail.losses import LOSSES, owners_of
from longtail.samplers import SAMPLINGS
from longtail.weights import NORMALIZATIONS, SCHEMES

__all__ = [
    "ConfigError",
    "DataConfig",
    "HeadConfig",
    "LossConfig",
    "OptimizerConfig",
    "RunConfig",
    "RunOptions",
    "Setting",
    "config_errors",
    "field_places",
    "shortest",
    "with_values",
]

VERSION = 1
LARGEST = 10**9
OWN_OPTIONS = tuple(dict.fromkeys(name for kind in LOSSES.values() for name in kind.options))
"""What some of the losses have beside their weights: γ, τ, margins and so on."""


class ConfigError(Exception):
    """A configuration or a run folder that cannot be used; the message is one line that names the value or the file."""

    exit_code = 2


@contextlib.contextmanager
def config_errors() -> Iterator[None]:
    """Not a ValueError, which the command line's parser would put into a box of its own."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def shortest(value: object) -> str:
    """A value as a person would write it, if that is the same number.

    Example:
        >>> shortest(50.0), shortest(0.9999999), shortest((160.0, 180.0))
        ('50', '0.9999999', '160 180')
    """
    if isinstance(value, (list, tuple)):
        return " ".join(map(shortest, value))
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


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
    """Weights of the classes: effective (class-balanced), inverse, inverse_sqrt, or uniform (plain), which is
    usual with logit_adjusted: it corrects for the sizes of the classes by itself."""
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
    """At learning_rate_batch images; it grows in proportion with the batch size."""
    learning_rate_batch: int = 128
    """Batch size that learning_rate is meant for."""
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
            if getattr(self, name) > LARGEST:
                raise ValueError(f"{name} must be at most {LARGEST:,}")
        if self.micro_batch_size is not None:
            check_positive_integer("micro_batch_size", self.micro_batch_size)
        for name in ("learning_rate", "momentum", "weight_decay", "warmup_epochs", "drop"):
            check_non_negative(name, getattr(self, name))
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


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that a training depends on but the loss."""

    data: DataConfig = DataConfig()
    model: str = "resnet32"
    """For small images resnet8, 14, 20, 32, 44, 56 or 110; for photographs resnet18, 34, 50, 101 or 152."""
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: int = 0
    """Of the weights, the order of the images and their augmentation."""
    test_every: int = 1
    """Epochs from one test to the next; there always is one after the last epoch, with 0 that one alone."""
    precision: str = "32-true"
    """Of the arithmetic: 32-true, bf16-mixed or 16-mixed."""
    compile: bool = False
    """Whether torch.compile makes the network faster."""
    sync_batch_norm: bool = False
    """Whether batch norms use the statistics of the whole batch, over all processes, and not of each one's part."""

    @config_errors()
    def __post_init__(self) -> None:
        check_choice("model", self.model, MODELS)
        check_choice("precision", self.precision, ("32-true", "bf16-mixed", "16-mixed"))
        check_non_negative("test_every", self.test_every)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2**32), got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Setting):
    """All that a training depends on: the same configuration gives the same run.

    Example:
        >>> config = RunConfig(data=DataConfig(subset=SubsetOptions(imbalance=50)), model="resnet8")
        >>> RunConfig.from_json(config.to_json()) == config, config.run_id[:32]
        (True, 'digits-50-resnet8-softmax_0.999-')
    """

    version: Fixed[int] = VERSION
    """Of the form of this configuration."""
    loss: LossConfig = LossConfig()
    head: HeadConfig = HeadConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head.head_method == "logit_adjustment" and self.loss.loss == "logit_adjusted":
            raise ConfigError("logit_adjustment would correct twice: the loss logit_adjusted has done so in training")
        if self.head.head_method == "retrain" and self.sync_batch_norm:
            raise ConfigError(
                "sync_batch_norm would do nothing: a head is retrained with batch norms that stay as they are"
            )
        if self.version != VERSION:
            raise ConfigError(f"a configuration of version {self.version}; this is for version {VERSION}")
        late, span, beta = self.optimizer.defer_reweighting, self.optimizer.anneal_beta, self.loss.beta
        if late is not None and self.loss.is_plain:
            raise ConfigError(f"defer_reweighting {late:g} would do nothing: there are no class weights")
        if span is not None and (beta is None or not 0 < beta < 1):
            has = "there is none" if beta is None else f"it is {beta:g}"
            raise ConfigError(f"anneal_beta {span:g} needs a β between 0 and 1: {has}")

    @property
    def label(self) -> str:
        """That of the loss, and when its weights come: ``softmax_0.9999_drw160`` begins in epoch 160."""
        when = {"drw": self.optimizer.defer_reweighting, "annealed": self.optimizer.anneal_beta}
        return "_".join([self.loss.label, *(f"{name}{value:g}" for name, value in when.items() if value is not None)])

    def is_tested_after(self, epochs: int) -> bool:
        """Whether there is a test after so many epochs."""
        return epochs == self.optimizer.epochs or bool(self.test_every and epochs % self.test_every == 0)

    def to_json(self) -> str:
        """Canonical: the same configuration gives the same text."""
        return json.dumps(encode(self), sort_keys=True, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: object = "the configuration") -> RunConfig:
        """Read what :meth:`to_json` wrote; unknown keys and values of another kind are refused by name."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source} is no JSON: {error}") from None
        if isinstance(content, dict) and content.get("version", VERSION) != VERSION:
            raise ConfigError(f"{source} has version {content['version']!r}; this is for version {VERSION}")
        try:
            config: RunConfig = decode(content, cls, "")
        except (ConfigError, OverflowError, ValueError) as error:
            raise ConfigError(f"{source}: {error}") from None
        return config

    @functools.cached_property
    def run_id(self) -> str:
        """What was run, for people, and a hash of all of it."""
        imbalance, fold = self.data.subset.imbalance, self.data.fold.fold
        parts = [Path(self.data.data).stem, *([f"{imbalance:g}"] if imbalance else []), self.model, self.label]
        parts += [self.data.sampling_label] if self.data.sampling_label else []
        parts += [f"{name}_{shortest(alpha)}" for name in ("mixup", "cutmix") if (alpha := getattr(self.data, name))]
        parts += [f"s{self.seed}"]
        parts += [f"fold{fold}"] if fold is not None else []
        parts += [self.head.label] if self.head.label else []
        readable = "-".join(re.sub(r"[^\w.]+", "_", part) for part in parts)
        # Of what differs from the defaults: an option that comes later does not rename the runs before it.
        canonical = json.dumps({"version": self.version} | without_defaults(self), sort_keys=True)
        return f"{readable}-{hashlib.sha256(canonical.encode()).hexdigest()[:10]}"

    @property
    def setting_id(self) -> str:
        """The same for runs that differ by their seed alone.

        Example:
            >>> RunConfig(seed=3).setting_id == RunConfig().setting_id, RunConfig().setting_id[:30]
            (True, 'digits-resnet32-softmax_0.999-')
        """
        return dataclasses.replace(self, seed=0).run_id.replace("-s0-", "-", 1)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how to run; on one kind of device and as many threads, nothing of what comes out depends on it."""

    runs: Path = Path("runs")
    """Folder of the run folders."""
    data_dir: Path | None = None
    """Folder of the data sets; $LONGTAIL_DATA by default."""
    accelerator: str = "auto"
    """cpu, cuda, mps or auto."""
    workers: int | None = None
    """Processes that read image files; one for each core, up to 8, by default."""
    checkpoint_minutes: float = 10.0
    """Longest time between two checkpoints; there is one after each epoch, too."""

    @config_errors()
    def __post_init__(self) -> None:
        check_choice("accelerator", self.accelerator, ("auto", "cpu", "cuda", "mps"))
        check_non_negative("checkpoint_minutes", self.checkpoint_minutes)
        if self.workers is not None:
            check_non_negative("workers", self.workers)

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(encode(self))

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        """What :meth:`to_json` wrote."""
        with config_errors():
            options: RunOptions = decode(json.loads(text), cls, "")
        return options


def field_places(kind: Any = RunConfig, place: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Where in a configuration each value is, by its flat name, which is also its flag.

    Example:
        >>> field_places()["imbalance"], field_places()["seed"]
        (('data', 'subset', 'imbalance'), ('seed',))
    """
    places: dict[str, tuple[str, ...]] = {}
    for name, inner in get_type_hints(kind).items():
        here = (*place, name)
        places |= field_places(inner, here) if dataclasses.is_dataclass(inner) else {name: here}
    return places


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The configuration with other values, by their flat names.

    Example:
        >>> with_values(RunConfig(), {"imbalance": 50, "seed": 3}).run_id[:32]
        'digits-50-resnet32-softmax_0.999'
    """
    content = encode(config)
    places = field_places()
    for name, value in values.items():
        check_choice("name", name, tuple(places))
        *parents, leaf = places[name]
        inner = content
        for parent in parents:
            inner = inner[parent]
        inner[leaf] = value
    with config_errors():
        changed: RunConfig = decode(content, RunConfig, "")
    return changed
