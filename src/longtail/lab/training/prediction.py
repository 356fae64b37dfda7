"""Predict the classes of image files, in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from longtail._checks import check_positive_integer
from longtail.lab.data import DataError, InputSpec
from longtail.lab.data.decode import read_image, read_view, resize
from longtail.lab.data.loaders import reader_processes

PREDICTION_BATCH = 32


@dataclass(frozen=True)
class Transform:
    """From an image file to what a network saw in its evaluation, shape (channels, height, width)."""

    shape: Sequence[int] | None
    """Of the images in memory that the network was trained on; None if they were files."""
    size: int | None
    """Width and height of the network's input; None where it takes images in memory as they are."""
    mean: Sequence[float]
    """Subtracted from each channel, of pixels from 0 to 255."""
    std: Sequence[float]
    """What each channel is then divided by."""
    interpolation: str = InputSpec.interpolation
    """``"bilinear"`` or ``"bicubic"``."""
    crop_fraction: float = InputSpec.crop_fraction
    """Of the shorter side of an image file, that the centre crop keeps."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels, height and width of what comes out."""
        if self.size is not None:
            return len(self.mean), self.size, self.size
        assert self.shape is not None
        return tuple(self.shape)

    def __call__(self, path: Path) -> Tensor:
        """The image in a file."""
        if self.shape is None:
            assert self.size is not None
            pixels = read_view(path, self.size, self.interpolation, self.crop_fraction)
        else:
            pixels = self._whole(path, *self.shape)
            if self.size is not None:
                pixels = resize(pixels.to(torch.uint8)[None], self.size, self.interpolation)[0]
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels.float() - mean) / std

    def _whole(self, path: Path, channels: int, height: int, width: int) -> Tensor:
        """The whole image, scaled to the size of those in memory, in grey if they are."""
        pixels = torch.from_numpy(read_image(path)).permute(2, 0, 1)[None]
        if pixels.shape[2:] != (height, width):
            pixels = F.interpolate(pixels, (height, width), mode="bilinear", antialias=True)
        return pixels[0] if channels == 3 else pixels[0].float().mean(dim=0, keepdim=True).round()


class Classifier(Protocol):
    """A finished run, or a network that was exported."""

    @property
    def transform(self) -> Transform:
        """From an image file to what the network takes."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names."""

    def probabilities(self, images: Tensor) -> Tensor:
        """Of each class, for images that were transformed, shape (N, C)."""


def predict(
    run: Classifier,
    paths: Sequence[Path],
    top: int = 5,
    *,
    workers: int | None = None,
    unreadable: Callable[[DataError], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """The most probable classes of image files, most probable first.

    Args:
        run: a finished run (:func:`load_run`), or an exported network (:func:`load_exported`).
        paths: the image files.
        top: how many classes to name.
        workers: processes that read them; by default one for each core, up to 8, and none for a few images.
        unreadable: is given the error of each image that cannot be read, and the others follow; without it, the first
            such error is raised.

    Example:
        >>> from longtail.lab.training import load_run
        >>> list(predict(load_run("runs/digits-…"), [Path("photo.png")], top=1))  # doctest: +SKIP
        [{'path': 'photo.png', 'classes': ['7'], 'probabilities': [0.93]}]
    """
    check_positive_integer("top", top)
    if isinstance(paths, (str, Path)):
        raise TypeError(f"paths must be a list of paths, got {paths!r}")
    remaining = iter(paths)
    for images, errors in read_batches(paths, run.transform, workers):
        best: Iterator[tuple[Tensor, Tensor]] = iter(())
        if len(images):
            best = zip(*run.probabilities(images).topk(min(top, len(run.classes))), strict=True)
        for error, path in zip(errors, remaining, strict=False):
            if error is None:
                values, labels = (each.tolist() for each in next(best))
                yield {"path": str(path), "classes": [run.classes[label] for label in labels], "probabilities": values}
            elif unreadable is None:
                raise DataError(error)
            else:
                unreadable(DataError(error))


def read_batches(
    paths: Sequence[Path], transform: Transform, workers: int | None = None
) -> Iterator[tuple[Tensor, list[str | None]]]:
    """Image files in batches: those that can be read, and for each file what is wrong with it."""
    if workers is None:
        batches = math.ceil(len(paths) / PREDICTION_BATCH)
        workers = min(reader_processes(None), batches) if batches > 1 else 0
    files = _Files(paths, transform)
    yield from DataLoader(files, PREDICTION_BATCH, collate_fn=_stack, num_workers=workers, generator=torch.Generator())


class _Files(Dataset[Any]):
    """Reads an image file for the network, in a worker process; of one that cannot be read it has the reason."""

    def __init__(self, paths: Sequence[Path], transform: Transform) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return self.transform(self.paths[index])
        except DataError as error:
            return str(error)


def _stack(items: list[Tensor | str]) -> tuple[Tensor, list[str | None]]:
    """The images that could be read in one tensor, and for each item what is wrong with it."""
    images = [item for item in items if isinstance(item, Tensor)]
    return torch.stack(images) if images else torch.empty(0), [
        item if isinstance(item, str) else None for item in items
    ]
