"""What to train and test on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from longtail._checks import check_choice, check_in_unit_interval, check_non_negative, check_positive_integer
from longtail.lab.config.errors import ConfigError, check_at_most, config_errors, shortest
from longtail.lab.data import CATALOG, FoldOptions, ImageFolderOptions, SubsetOptions
from longtail.samplers import SAMPLINGS

LARGEST_IMAGE = 10_000
MOST_VIEWS = 1_000


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train and test on, and how images are sampled and augmented."""

    name: str = "digits"
    """A data set of longtail data list, or the path of a folder or list of images."""
    fingerprint: str | None = None
    """SHA-256 of the class names, relative paths and sizes of your own images; filled in when they are opened."""
    path: Path | None = field(default=None, compare=False)
    """Where your own images were found; not part of the run's identity."""
    subset: SubsetOptions = SubsetOptions()
    fold: FoldOptions = FoldOptions()
    files: ImageFolderOptions = ImageFolderOptions()
    validation_fraction: float = 0.0
    """Fraction of the training images of each class held out for validation."""
    on_error: Literal["stop", "skip"] = "stop"
    """How to handle unreadable images: stop, or skip them (every image is decoded once first)."""
    image_size: int | None = None
    """Width and height of the network's input in pixels; the network's own by default. Images in memory keep theirs."""
    mixup: float = 0.0
    """α of Mixup; 0 turns it off."""
    cutmix: float = 0.0
    """α of CutMix; 0 turns it off. With both, each batch uses one of the two."""
    augment: bool = True
    """Random crops and flips of training images."""
    views: int = 0
    """Augmented views of each training image whose features a frozen backbone computes, beside the centre crop."""
    sampling: str = "shuffled"
    """Training samples of an epoch: shuffled, class_balanced, square_root, progressive or effective."""
    sampling_beta: float | None = None
    """β of effective sampling, 0.999 by default."""

    @config_errors()
    def __post_init__(self) -> None:
        if self.image_size is not None:
            check_positive_integer("image_size", self.image_size, LARGEST_IMAGE)
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction}")
        for name in ("mixup", "cutmix", "views"):
            check_non_negative(name, getattr(self, name))
        check_at_most("views", self.views, MOST_VIEWS)
        check_choice("sampling", self.sampling, ("shuffled", *SAMPLINGS))
        if self.sampling == "effective" and self.sampling_beta is None:
            object.__setattr__(self, "sampling_beta", 0.999)
        elif self.sampling != "effective" and self.sampling_beta is not None:
            raise ConfigError('sampling_beta requires sampling "effective"')
        if self.sampling_beta is not None:
            check_in_unit_interval("sampling_beta", self.sampling_beta)

    @property
    def is_catalogued(self) -> bool:
        """Whether this is a data set with a name, not a folder or list of your own images."""
        return self.name in CATALOG and self.fingerprint is None

    @property
    def source(self) -> str:
        """What to open: the name of a data set, or the path of your own images."""
        return self.name if self.path is None else str(self.path)

    @property
    def missing_path(self) -> Path | None:
        """Where your own images were found, if they are no longer there."""
        if self.fingerprint is None:
            return None
        return next(
            (path for path in (Path(self.source), *self.files.locations.values()) if path and not path.exists()), None
        )

    def identified(self, fingerprint: str) -> Self:
        """The same images named by what they are: the path is kept beside the identity, as an absolute one."""
        path = Path(self.source).absolute()
        roots: dict[str, Any] = {name: value and value.absolute() for name, value in self.files.locations.items()}
        name = self.name
        if self.fingerprint != fingerprint:
            name = path.resolve().stem.lstrip(".") or "data"  # a leading dot would hide the run folder
        return replace(self, name=name, fingerprint=fingerprint, path=path, files=replace(self.files, **roots))

    @property
    def sampling_slug(self) -> str | None:
        """For folder names: ``effective_0.999`` is effective sampling with β 0.999; None for plain shuffling."""
        beta = "" if self.sampling_beta is None else f"_{shortest(self.sampling_beta)}"
        return None if self.sampling == "shuffled" else self.sampling + beta
