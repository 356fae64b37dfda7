"""What every data set is: images and labels to train on and to test on, and the names of the classes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from longtail.counts import IntArray, check_labels_in_range, class_counts
from longtail.lab.data.decode import CROP_FRACTION, read_image
from longtail.lab.data.errors import DataError

IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)

Texts = Iterable[str] | npt.NDArray[np.bytes_]


class InMemoryImages(Dataset[tuple[Tensor, int]]):
    """Small images of one size, all in one tensor.

    Args:
        images: uint8, shape (N, channels, height, width).
        labels: class indices, shape (N,).

    Example:
        >>> images = InMemoryImages(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), [0, 2, 2])
        >>> len(images), images.labels, images.subset([1, 2]).labels
        (3, tensor([0, 2, 2]), tensor([2, 2]))
    """

    groups: npt.NDArray[np.bytes_] | None = None

    def __init__(self, images: Tensor, labels: Any) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise TypeError(f"images must be uint8 of shape (N, C, H, W), got {images.dtype} of {tuple(images.shape)}")
        self.images = images
        self.labels = torch.as_tensor(np.asarray(labels), dtype=torch.int64)
        _check_as_many("images", len(images), self.labels)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])

    def subset(self, indices: Any) -> Self:
        """The images at ``indices``, in that order."""
        chosen = torch.as_tensor(np.asarray(indices), dtype=torch.int64)
        return type(self)(self.images[chosen], self.labels[chosen])


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Images that stay in their files until they are needed.

    Args:
        root: folder that ``paths`` are relative to.
        paths: one path for each image.
        labels: class indices, shape (N,).
        groups: what each image shows, such as an animal or a patient: images of a group stay together when the data
            are split.

    Example:
        >>> files = ImageFiles(Path("photos"), ["owl/1.jpg", "cat/2.png"], [1, 0])
        >>> len(files), files.labels, files.path(1).as_posix()
        (2, tensor([1, 0]), 'photos/cat/2.png')
    """

    def __init__(self, root: Path, paths: Texts, labels: Any, groups: Texts | None = None) -> None:
        self.root = root
        self.paths = _as_bytes(paths)
        self.labels = torch.as_tensor(np.asarray(labels), dtype=torch.int64)
        self.groups = None if groups is None else _as_bytes(groups)
        _check_as_many("paths", len(self.paths), self.labels)
        if self.groups is not None:
            _check_as_many("groups", len(self.groups), self.labels)

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> Path:
        """Where image ``index`` is."""
        return self.root / os.fsdecode(bytes(self.paths[index]))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(read_image(self.path(index)).transpose(2, 0, 1).copy()), int(self.labels[index])

    def subset(self, indices: Any) -> Self:
        """The images at ``indices``, in that order."""
        chosen = np.asarray(indices)
        labels = self.labels[torch.as_tensor(chosen, dtype=torch.int64)]
        return type(self)(self.root, self.paths[chosen], labels, None if self.groups is None else self.groups[chosen])


Images = InMemoryImages | ImageFiles


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """What a network takes: size and range of its input, and how images are scaled and cropped for evaluation.

    Example:
        >>> InputSpec(input_size=320).mean
        (123.675, 116.28, 103.53)
    """

    input_size: int = 224
    """Width and height in pixels."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    """Subtracted from each channel, of pixels from 0 to 255."""
    std: tuple[float, ...] = IMAGENET_STD
    """What each channel is then divided by."""
    interpolation: str = "bilinear"
    """``"bilinear"`` or ``"bicubic"``."""
    crop_fraction: float = CROP_FRACTION
    """Of the shorter side, that the centre crop of evaluation keeps."""


@dataclass(frozen=True, kw_only=True)
class ImageDataset:
    """Training and test images with their class names, and how to prepare them for a network.

    Example:
        >>> images = InMemoryImages(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), [0, 1, 1])
        >>> dataset = ImageDataset(name="tiny", classes=("cat", "owl"), train=images, test=images)
        >>> dataset.counts
        array([1, 2])
    """

    name: str
    classes: tuple[str, ...]
    """One name for each class index."""
    train: Images
    test: Images
    mean: tuple[float, ...] = IMAGENET_MEAN
    """Subtracted from each channel, of pixels from 0 to 255."""
    std: tuple[float, ...] = IMAGENET_STD
    """What each channel is then divided by."""
    input_size: int | None = None
    """Width and height of the network's input: images in memory keep their size by default, files are scaled to 224."""
    interpolation: str = InputSpec.interpolation
    """How images are scaled: ``"bilinear"`` or ``"bicubic"``."""
    crop_fraction: float = InputSpec.crop_fraction
    """Of the shorter side of an image file, that the centre crop of evaluation keeps."""
    pad: int = 0
    """Black pixels around an image in memory before a random crop of the same size."""
    flip: bool = True
    """Whether a mirrored image still shows its class."""
    notes: tuple[str, ...] = ()
    """What was found and left out when the data set was opened."""
    validation: Images | None = None
    """Training images that were held out to choose by; None if there are none."""
    allow_absent: bool = False
    """Whether classes may have no training images, as in a fold that holds out the only group of a class."""

    def __post_init__(self) -> None:
        for split, images in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            if images is None:
                continue
            if not len(images):
                raise DataError(f"{self.name} has no {split} images")
            check_labels_in_range(f"{split} labels of {self.name}", images.labels.numpy(), len(self.classes))
        absent = np.flatnonzero(self.counts == 0)
        if absent.size and not self.allow_absent:
            raise DataError(f"{self.name}: class {self.classes[absent[0]]!r} has no training images")

    @property
    def counts(self) -> IntArray:
        """Training images of each class."""
        counts: IntArray = class_counts(self.train.labels.numpy(), len(self.classes))
        return counts

    def prepared_for(self, spec: InputSpec) -> ImageDataset:
        """The same images, scaled, cropped and normalised as a network takes them."""
        return replace(self, **vars(spec))

    def split(self, name: str) -> Images:
        """The images of ``"train"``, ``"test"`` or ``"validation"``."""
        images: Images | None = {"train": self.train, "test": self.test, "validation": self.validation}[name]
        if images is None:
            raise DataError(f"{self.name} has no {name} images: validation_fraction was 0")
        return images

    def with_train(self, indices: IntArray) -> ImageDataset:
        """The same data set with only the training images at ``indices``; the test set is never touched."""
        return replace(self, train=self.train.subset(indices))


def _as_bytes(texts: Texts) -> npt.NDArray[np.bytes_]:
    """One array of bytes: a list of a million strings would be copied page by page into every loader process."""
    return texts if isinstance(texts, np.ndarray) else np.array([os.fsencode(text) for text in texts], "S")


def _check_as_many(what: str, count: int, labels: Tensor) -> None:
    if labels.ndim != 1 or len(labels) != count:
        raise ValueError(f"labels must have shape ({count},), one for each of the {what}, got {tuple(labels.shape)}")
