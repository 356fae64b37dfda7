"""What a run is: one frozen tree of values, the same object from the same JSON, and an id that follows from it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from tyro.conf import Fixed

from longtail._checks import check_choice, check_non_negative
from longtail.lab.config.encoding import decode, encode, without_defaults
from longtail.lab.config.errors import ConfigError, config_errors, shortest
from longtail.lab.config.parts import DataConfig, HeadConfig, LossConfig, OptimizerConfig
from longtail.lab.models import MODELS

__all__ = ["RunConfig", "RunOptions", "Setting", "field_places", "with_values"]

VERSION = 1


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
    """Whether torch.compile compiles the network: faster steps, after a longer start."""
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
        >>> from longtail.lab.data import SubsetOptions
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
        # A name with a dot before it would hide the run.
        name = Path(self.data.data).stem.lstrip(".") or "data"
        parts = [name, *([f"{imbalance:g}"] if imbalance else []), self.model, self.label]
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
        inner[leaf] = encode(value)
    with config_errors():
        changed: RunConfig = decode(content, RunConfig, "")
    return changed
