"""What a run is: one frozen tree of values, the same object from the same JSON, and an id that follows from it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longtail._checks import check_choice, check_non_negative, check_positive_integer
from longtail.lab.config.data import DataConfig
from longtail.lab.config.encoding import decode, encode, without_defaults
from longtail.lab.config.errors import ConfigError, FileError, config_errors, shortest
from longtail.lab.config.loss import LossConfig
from longtail.lab.config.model import ModelConfig
from longtail.lab.config.optimizer import OptimizerConfig
from longtail.lab.models import IMAGENET

VERSION = 2
FUSED_CLASSES = 30_000
"""From this many classes on, a fused head is at least about as fast as one that holds the logits, and takes far less
memory. In results/bench/linear_heads.md, with 512 samples of 128 features, it takes 0.98 to 1.06 times as long with
16,000 classes and 0.72 to 0.90 times with 100,000; and 0.20 to 0.61 times the memory with 16,000."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that a training depends on: the same configuration gives the same run.

    Example:
        >>> from longtail.lab.data import SubsetOptions
        >>> config = RunConfig(data=DataConfig(subset=SubsetOptions(imbalance=50)), loss=LossConfig(beta=0.999))
        >>> RunConfig.from_json(config.to_json()) == config, config.run_id[:32]
        (True, 'digits-50-resnet32-softmax_0.999')
    """

    version: int = VERSION
    """Of the format of this configuration."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: int = 0
    """Seed of the initial weights, the order of the images and their augmentation."""
    test_every: int = 1
    """Epochs between tests; 0 tests after the last epoch only."""
    keep: Literal["last", "best"] = "last"
    """Epoch whose weights are kept: the last, or the one with the best balanced accuracy on validation images."""
    precision: str = "32-true"
    """32-true, bf16-mixed or 16-mixed; with a frozen backbone, that of its features: heads are trained in 32-true."""
    compile: bool = False
    """Compile the network with torch.compile."""
    sync_batch_norm: bool = False
    """Synchronise batch norms over processes."""
    fused_head: bool | None = None
    """Fuse the last layer with the loss, without the logits of all classes; by default from 30,000 classes on."""

    @config_errors()
    def __post_init__(self) -> None:
        check_choice("precision", self.precision, ("32-true", "bf16-mixed", "16-mixed"))
        check_non_negative("test_every", self.test_every)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2**32), got {self.seed}")
        check_choice("keep", self.keep, ("last", "best"))
        if self.keep == "best" and not self.data.validation_fraction:
            raise ConfigError("keep best requires validation images (data.validation_fraction), not test images")
        if self.keep == "best" and not self.test_every:
            raise ConfigError("keep best requires test_every above 0: only the last epoch would be evaluated")
        if self.model.freeze:
            self._check_frozen()
        elif self.data.views:
            raise ConfigError("views requires a frozen backbone: one that is trained sees new crops in each epoch")
        if self.fused_head and (reason := self._not_fusible()):
            raise ConfigError(f"fused_head requires {reason}")
        if self.version != VERSION:
            raise ConfigError(f"configuration version {self.version}, expected {VERSION}")

    def fuses_head(self, classes: int) -> bool:
        """Whether the last layer is fused with the loss in training.

        Example:
            >>> RunConfig().fuses_head(1000), RunConfig().fuses_head(100_000), RunConfig(fused_head=True).fuses_head(10)
            (False, True, True)
        """
        if self.fused_head is None:
            return classes >= FUSED_CLASSES and not self._not_fusible()
        return self.fused_head

    def _not_fusible(self) -> str | None:
        """What a fused head requires and this configuration has not."""
        if not self.loss.is_fusible:
            return f"a loss that can be fused with the last layer, not {self.loss.name}"
        mixing = [name for name in ("mixup", "cutmix") if getattr(self.data, name)]
        return f"one label for each image, not {mixing[0]}" if mixing else None

    def _check_frozen(self) -> None:
        """Refuse what only a backbone that is trained can have."""
        if self.sync_batch_norm:
            raise ConfigError("sync_batch_norm requires a backbone that is trained: a frozen one keeps its statistics")
        if self.compile:
            raise ConfigError("compile requires a backbone that is trained: a head alone is as fast without")
        if self.data.cutmix:
            raise ConfigError(
                "cutmix requires a backbone that is trained: features have no boxes to cut; mixup mixes them"
            )
        if self.data.views and not self.data.augment:
            raise ConfigError("views requires augment")

    @property
    def title(self) -> str:
        """The loss and whatever else sets a method apart, for people.

        Example:
            >>> RunConfig(data=DataConfig(sampling="class_balanced")).title
            'softmax, class-balanced sampling'
        """
        data, beta = self.data, self.data.sampling_beta
        parts = [self.loss.title]
        retrained = self.model.freeze and self.model.weights != IMAGENET  # the weights are those of a run
        if retrained and data.sampling == "class_balanced":
            parts.append("cRT")
        elif data.sampling != "shuffled":
            kind = data.sampling.replace("class_balanced", "class-balanced").replace("square_root", "square-root")
            parts.append(f"{kind} sampling" + ("" if beta is None else f" β {shortest(beta)}"))
        parts += [f"{name} {shortest(alpha)}" for name in ("mixup", "cutmix") if (alpha := getattr(data, name))]
        return ", ".join(parts)

    @property
    def reweight_start(self) -> float | None:
        """The epoch from which deferred class weights apply.

        Example:
            >>> RunConfig(loss=LossConfig(beta=0.999, defer_reweighting=0.8)).reweight_start
            160.0
        """
        fraction = self.loss.defer_reweighting
        return None if fraction is None else round(fraction * self.optimizer.epochs, 6)

    def is_tested_after(self, epochs: int) -> bool:
        """Whether there is a test after this many epochs."""
        return epochs == self.optimizer.epochs or bool(self.test_every and epochs % self.test_every == 0)

    def to_json(self) -> str:
        """Canonical: the same configuration gives the same text."""
        return json.dumps(encode(self), sort_keys=True, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: object = "the configuration") -> RunConfig:
        """Read what :meth:`to_json` wrote; unknown keys and values of the wrong type are refused by name."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FileError(f"{source} is not valid JSON: {error}") from None
        if isinstance(content, dict) and (version := content.get("version", VERSION)) != VERSION:
            made = " (longtail 0.1)" if version == 1 else ""
            raise FileError(f"{source} has configuration version {version!r}{made}; this longtail reads {VERSION}")
        try:
            config: RunConfig = decode(content, cls, "")
        except (ConfigError, OverflowError, ValueError) as error:
            raise FileError(f"{source}: {error}") from None
        return config

    @functools.cached_property
    def run_id(self) -> str:
        """What was run, for people, and a hash of all of it."""
        data, imbalance, fold = self.data, self.data.subset.imbalance, self.data.fold.fold
        if not data.is_catalogued and data.fingerprint is None:
            raise ConfigError(f"the images of {data.name} have no fingerprint yet: open the data first")
        parts = [data.name, *([f"{imbalance:g}"] if imbalance else []), self.model.name, self.loss.slug]
        parts += [data.sampling_slug] if data.sampling_slug else []
        parts += [f"{name}_{shortest(alpha)}" for name in ("mixup", "cutmix") if (alpha := getattr(data, name))]
        parts += ["frozen"] if self.model.freeze else []
        parts += [f"s{self.seed}"]
        parts += [f"fold{fold}"] if fold is not None else []
        readable = "-".join(re.sub(r"[^\w.]+", "_", part) for part in parts)
        # Only what differs from the defaults: an option that is added later does not rename earlier runs.
        content = {"version": self.version} | without_defaults(self)
        if not data.is_catalogued:  # the fingerprint says which images they are, whatever their folder is called
            content["data"].pop("name", None)
        canonical = json.dumps(content, sort_keys=True)
        return f"{readable}-{hashlib.sha256(canonical.encode()).hexdigest()[:10]}"

    @property
    def is_identified(self) -> bool:
        """Whether the run id is known: not before your own images and initial weights have been opened once."""
        data, model = self.data, self.model
        return (data.is_catalogued or data.fingerprint is not None) and (
            model.weights is None or model.weights_sha256 is not None
        )

    @property
    def setting_id(self) -> str:
        """The same for runs that differ by their seed alone.

        Example:
            >>> RunConfig(seed=3).setting_id == RunConfig().setting_id, RunConfig().setting_id[:24]
            (True, 'digits-resnet32-softmax-')
        """
        return dataclasses.replace(self, seed=0).run_id.replace("-s0-", "-", 1)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how to run; on the same device and with as many threads, results do not depend on it."""

    runs: Path = Path("runs")
    """Folder of the run folders."""
    data_dir: Path | None = None
    """Folder of the named data sets; $LONGTAIL_DATA by default."""
    accelerator: str = "auto"
    """cpu, cuda, mps or auto."""
    workers: int | None = None
    """Loader processes for image files; one per core, up to 8, by default."""
    devices: int | None = None
    """Processes of a run, each with its GPU or its part of the CPU; one per GPU by default. torchrun overrides it."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints within an epoch; there is always one after each epoch."""

    @config_errors()
    def __post_init__(self) -> None:
        check_choice("accelerator", self.accelerator, ("auto", "cpu", "cuda", "mps"))
        check_non_negative("checkpoint_minutes", self.checkpoint_minutes)
        if self.workers is not None:
            check_non_negative("workers", self.workers)
        if self.devices is not None:
            check_positive_integer("devices", self.devices)
