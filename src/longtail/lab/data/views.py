"""Views of images for a frozen network: the crop of evaluation, and augmented ones that are the same every time."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from longtail.lab.data.dataset import ImageDataset, ImageFiles, Images, InputSpec
from longtail.lab.data.decode import read_view, resize
from longtail.lab.data.errors import DataError
from longtail.lab.data.file_cache import content_digests


class ViewRequest(NamedTuple):
    """One view of one image."""

    image: int
    """Its index."""
    view: int
    """0 is the crop of evaluation; the others are augmented."""
    key: bytes
    """What the view depends on beside the transform, 32 bytes; an augmented view is drawn from it."""


class ImageViews(Dataset[Any]):
    """Reads views of images, one by one, as a network takes them; a broken file is returned as its error.

    An augmented view is a pure function of its number and the image's content: a random part of a photograph, or a
    random crop of a padded image in memory, mirrored or not where a mirrored image still shows its class.
    """

    def __init__(self, dataset: ImageDataset, images: Images) -> None:
        self.images, self.flip, self.pad = images, dataset.flip, dataset.pad
        self.input_size, self.interpolation = dataset.input_size, dataset.interpolation
        self.crop_fraction, self.mean, self.std = dataset.crop_fraction, dataset.mean, dataset.std

    @property
    def transform(self) -> dict[str, Any]:
        """All that the crop of evaluation depends on beside the image."""
        names = ("input_size", "interpolation", "crop_fraction", "mean", "std")
        kind = "files" if isinstance(self.images, ImageFiles) else "memory"
        return {"images": kind} | {name: getattr(self, name) for name in names}

    def requests(self, views: int = 0) -> list[ViewRequest]:
        """Each image in each of its views, image by image: the crop of evaluation, and ``views`` augmented ones."""
        requests = []
        for index, digest in enumerate(content_digests(self.images)):
            requests.append(ViewRequest(index, 0, digest))
            for view in range(1, views + 1):
                augmentation = f" view {view} flip {self.flip} pad {self.pad}"
                requests.append(ViewRequest(index, view, hashlib.sha256(digest + augmentation.encode()).digest()))
        return requests

    def __getitem__(self, request: ViewRequest) -> Tensor | DataError:
        draw = random.Random(request.key) if request.view else None
        if not isinstance(self.images, ImageFiles):
            return self._from_memory(self.images.images[request.image], draw)
        path, size = self.images.path(request.image), self.input_size or InputSpec.input_size
        try:
            return read_view(path, size, self.interpolation, self.crop_fraction, draw, self.flip)
        except DataError as error:
            return error

    def _from_memory(self, pixels: Tensor, draw: random.Random | None) -> Tensor:
        if draw is not None:
            mirror = self.flip and draw.random() < 0.5
            top, left = draw.randint(0, 2 * self.pad), draw.randint(0, 2 * self.pad)
            _, height, width = pixels.shape
            pixels = F.pad(pixels, (self.pad,) * 4)[:, top : top + height, left : left + width]
            pixels = pixels.flip(2) if mirror else pixels
        if self.input_size is None:
            return pixels
        return resize(pixels[None], self.input_size, self.interpolation)[0].expand(len(self.mean), -1, -1)

    def stack(self, items: Sequence[Tensor | DataError]) -> Tensor | DataError:
        """A batch of uint8 pixels; the first error among them instead, for the main process to raise."""
        errors = [item for item in items if isinstance(item, DataError)]
        return errors[0] if errors else torch.stack([item for item in items if isinstance(item, Tensor)])

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 pixels → (x - mean) / std in float32, the channels of a pixel side by side."""
        mean, std = (torch.tensor(values, device=pixels.device)[:, None, None] for values in (self.mean, self.std))
        values = pixels.to(torch.float32, memory_format=torch.channels_last)
        return values.sub_(mean).div_(std)
