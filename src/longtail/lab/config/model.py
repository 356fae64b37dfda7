"""The network, where its weights start, and how much of it is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from longtail.lab.config.errors import ConfigError, config_errors
from longtail.lab.models import CIFAR_MODELS, IMAGENET


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network, where its weights start, and how much of it is trained.

    Example:
        >>> ModelConfig(name="resnet8").freeze
        False
    """

    name: str = "resnet32"
    """For small images resnet8, 14, 20, 32, 44, 56 or 110; or any model of timm, such as resnet50."""
    weights: str | None = None
    """Initial weights: random by default; imagenet for those of timm, a finished run, or a file of weights."""
    weights_sha256: str | None = None
    """SHA-256 of the file of initial weights; filled in when it is found."""
    weights_path: Path | None = field(default=None, compare=False)
    """Where the initial weights were found; not part of the run's identity."""
    freeze: bool = False
    """Train a new head only, on features of the backbone, which are computed once and cached."""
    warm_start: bool = False
    """Start the head of a backbone that is trained from a linear probe on its initial features."""
    normalize_features: bool = False
    """Scale the features of a frozen backbone to length 1."""

    @property
    def saves_head_only(self) -> bool:
        """Whether runs keep the head alone: anyone has the weights of ImageNet, but not those of a run or a file."""
        return self.freeze and self.weights == IMAGENET

    @config_errors()
    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("the model must have a name")
        if self.weights == IMAGENET and self.name in CIFAR_MODELS:
            raise ConfigError(f"{self.name} has no ImageNet weights; choose a model.name of timm, such as resnet50")
        if self.freeze and self.weights is None:
            raise ConfigError("freeze requires initial weights: a random backbone has nothing to keep")
        if self.warm_start and (self.freeze or self.weights is None):
            raise ConfigError("warm_start requires initial weights and a backbone that is trained")
        if self.normalize_features and not self.freeze:
            raise ConfigError("normalize_features requires freeze")
