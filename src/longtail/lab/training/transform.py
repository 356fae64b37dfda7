"""Image files in batches, as the network of a run sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from longtail.lab.data import DataError, InputSpec
from longtail.lab.data.decode import read_image, read_view, resize
from longtail.lab.data.loaders import available_cores

__all__ = ["PREDICTION_BATCH", "Transform", "read_batches"]

PREDICTION_BATCH = 32


class Transform:
    """From an image file to what a network saw in its evaluation, shape (channels, height, width).

    Args:
        shape: of the images in memory that the network was trained on; None if they were files.
        size: width and height of the network's input; None where it takes images in memory as they are.
        mean: subtracted from each channel, of pixels from 0 to 255.
        std: what each channel is then divided by.
        interpolation: ``"bilinear"`` or ``"bicubic"``.
        crop_fraction: of the shorter side of an image file, that the centre crop keeps.
    """

    def __init__(
        self,
        shape: list[int] | None,
        size: int | None,
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: str = InputSpec.interpolation,
        crop_fraction: float = InputSpec.crop_fraction,
    ) -> None:
        self.shape, self.interpolation, self.crop_fraction = shape, interpolation, crop_fraction
        self.size = InputSpec.input_size if shape is None and size is None else size
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what comes out."""
        if self.size is not None:
            return len(self.mean), self.size, self.size
        assert self.shape is not None
        channels, height, width = self.shape
        return channels, height, width

    def __call__(self, path: Path) -> Tensor:
        """The image in a file."""
        if self.shape is None:
            assert self.size is not None
            pixels = read_view(path, self.size, self.interpolation, self.crop_fraction)
        else:
            pixels = self._whole(path, *self.shape)
            if self.size is not None:
                pixels = resize(pixels.to(torch.uint8)[None], self.size, self.interpolation)[0]
        return (pixels.float() - self.mean) / self.std

    def _whole(self, path: Path, channels: int, height: int, width: int) -> Tensor:
        """The whole image, scaled to the size of those in memory, in grey if they are."""
        pixels = torch.from_numpy(read_image(path)).permute(2, 0, 1)[None]
        if pixels.shape[2:] != (height, width):
            pixels = F.interpolate(pixels, (height, width), mode="bilinear", antialias=True)
        return pixels[0] if channels == 3 else pixels[0].float().mean(dim=0, keepdim=True).round()


def read_batches(
    paths: Sequence[Path], transform: Callable[[Path], Tensor], workers: int | None = None
) -> Iterator[tuple[Tensor, list[str | None]]]:
    """Image files in batches: those that can be read, and for each file what is wrong with it."""
    if workers is None:
        batches = math.ceil(len(paths) / PREDICTION_BATCH)
        workers = min(8, available_cores(), batches) if batches > 1 else 0
    files = _Files(paths, transform)
    yield from DataLoader(
        files, PREDICTION_BATCH, collate_fn=files.stack, num_workers=workers, generator=torch.Generator()
    )


class _Files(Dataset[Any]):
    """Reads an image file for the network, in a worker process; of one that cannot be read it has the reason."""

    def __init__(self, paths: Sequence[Path], transform: Callable[[Path], Tensor]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return self.transform(self.paths[index])
        except DataError as error:
            return str(error)

    def stack(self, items: list[Tensor | str]) -> tuple[Tensor, list[str | None]]:
        """The images that could be read in one tensor, and for each item what is wrong with it."""
        images = [item for item in items if isinstance(item, Tensor)]
        errors = [item if isinstance(item, str) else None for item in items]
        return torch.stack(images) if images else torch.empty(0), errors
