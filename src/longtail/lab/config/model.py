"""The network, where its weights start, and how much of it is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from longtail._checks import check_choice
from longtail.lab.config.errors import ConfigError, config_errors
from longtail.lab.models import MODELS

__all__ = ["ModelConfig"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network, where its weights start, and how much of it is trained.

    Example:
        >>> ModelConfig(name="resnet8").freeze
        False
    """

    name: str = "resnet32"
    """For small images resnet8, 14, 20, 32, 44, 56 or 110; for photographs resnet18, 34, 50, 101 or 152."""
    weights: str | None = None
    """Initial weights: random by default, or those of a finished run or a safetensors file."""
    weights_sha256: str | None = None
    """SHA-256 of the file of initial weights; filled in when it is found."""
    weights_path: Path | None = field(default=None, compare=False)
    """Where the initial weights were found; not part of the run's identity."""
    freeze: bool = False
    """Train a new head only; the backbone keeps its initial weights."""

    @config_errors()
    def __post_init__(self) -> None:
        check_choice("model", self.name, MODELS)
        if self.freeze and self.weights is None:
            raise ConfigError("freeze requires initial weights: a random backbone has nothing to keep")
