"""Images → batches for a network: augmented, normalised, and reproducible from seed and epoch."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, default_collate

from longtail.counts import IntArray
from longtail.lab.data.batches import CROPS, BatchPlan, Order, Shard, in_order, shuffled
from longtail.lab.data.dataset import ImageDataset, ImageFiles, Images, InMemoryImages, InputSpec
from longtail.lab.data.decode import read_view, resize
from longtail.lab.data.errors import DataError
from longtail.lab.data.mixing import Mixing


class Batch(NamedTuple):
    """What a network sees in one step.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> images, labels, total = next(evaluation_loader(open_dataset("digits"), batch_size=50).epoch(0))
        >>> images.shape, labels.shape, total
        (torch.Size([50, 1, 8, 8]), torch.Size([50]), 50)
    """

    images: Tensor
    """float32, normalised, shape (B, channels, height, width)."""
    labels: Tensor
    """int64, shape (B,); of mixed images float32, shape (B, C)."""
    total: int
    """Samples of the batch over all processes."""


class Loader:
    """Batches, epoch by epoch.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> loader: Loader = training_loader(open_dataset("digits"), batch_size=128)
        >>> len(list(loader.epoch(0))), len(list(loader.epoch(0, start=8)))
        (11, 3)
    """

    def __init__(self, plan: BatchPlan, mixing: Mixing | None) -> None:
        self.plan, self.mixing = plan, mixing

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.plan)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on: a run resumes where it stopped."""
        for batch, (inputs, labels) in enumerate(self._read(epoch, start), start):
            if self.mixing:
                inputs, labels = self.mixing(inputs, labels, epoch, batch)
            yield Batch(inputs, labels, self.plan.part(batch)[1])

    def _read(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        raise NotImplementedError


def training_loader(
    dataset: ImageDataset,
    batch_size: int,
    *,
    seed: int = 0,
    order: Order | None = None,
    augment: bool = True,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    shard: Shard = Shard(),
    device: torch.device | str = "cpu",
    workers: int | None = None,
) -> Loader:
    """Batches of the training images, in random order and augmented.

    Images in memory are padded with black pixels, cropped at random and mirrored, a whole batch at once; of image files
    a random part is scaled to the data set's ``input_size`` and mirrored, in worker processes. Images in memory are
    scaled to it where there is one, and grey ones repeated in three channels. The sequence
    of batches is a pure function of (seed, epoch), whatever the number of processes and workers; but an image is mixed
    with one of the same process's part of the batch, by the λ and the box of the whole batch.

    Args:
        dataset: what to train on.
        batch_size: most images of a batch, over all processes.
        seed: of the order and of the augmentation.
        order: which images an epoch holds; each one once, shuffled, by default.
        augment: whether to; without it, image files are cropped as for evaluation.
        mixup: α of Mixup, 0 for none. The labels of mixed images are soft. Whether images are also augmented is up to
            ``augment``.
        cutmix: α of CutMix, 0 for none; with both, each batch has one of them.
        shard: the part of this process.
        device: where the batches are to be. Images in memory are kept there as a whole.
        workers: processes that read image files: one for each core, up to 8, by default; 0 reads in this one.

    Example:
        >>> from longtail.lab.data.digits import open_digits
        >>> loader = training_loader(open_digits(), batch_size=128)
        >>> batch = next(loader.epoch(0))
        >>> len(loader), batch.images.shape, batch.labels.shape
        (11, torch.Size([118, 1, 8, 8]), torch.Size([118]))
    """
    plan = BatchPlan(order or shuffled(len(dataset.train), seed), batch_size, shard)
    if plan.smallest < shard.processes:
        raise ValueError(f"a batch of {plan.smallest} images is too small for {shard.processes} processes")
    mixing = Mixing(mixup, cutmix, classes=len(dataset.classes), seed=seed)
    return _loader(dataset, dataset.train, plan, device, workers, seed if augment else None, mixing)


def evaluation_loader(
    dataset: ImageDataset,
    batch_size: int,
    *,
    images: Images | None = None,
    shard: Shard = Shard(),
    device: torch.device | str = "cpu",
    workers: int | None = None,
) -> Loader:
    """Batches of the test images, in order and not augmented, each image once over all processes.

    Image files are cropped in the middle; the crop's sides are the data set's ``crop_fraction`` of the shorter side.

    Args:
        dataset: what to evaluate on, and how its images are normalised.
        batch_size: most images of a batch, over all processes.
        images: others than the test images.
        shard: the part of this process; its part of a batch can be empty.
        device: where the batches are to be.
        workers: processes that read image files.

    Example:
        >>> from longtail.lab.data.digits import open_digits
        >>> sum(len(batch.labels) for batch in evaluation_loader(open_digits(), batch_size=128).epoch(0))
        500
    """
    chosen = dataset.test if images is None else images
    return _loader(dataset, chosen, BatchPlan(in_order(len(chosen)), batch_size, shard), device, workers)


def _loader(
    dataset: ImageDataset,
    images: Images,
    plan: BatchPlan,
    device: torch.device | str,
    workers: int | None,
    augment_seed: int | None = None,
    mixing: Mixing | None = None,
) -> Loader:
    normalise = _Normalise(dataset, torch.device(device))
    if isinstance(images, InMemoryImages):
        return _ImageLoader(plan, mixing, dataset, images, augment_seed, normalise)
    return _FileLoader(plan, mixing, _Crops(dataset, images, augment_seed), normalise, reader_processes(workers))


def leave_signals_to_parent(_: int) -> None:
    """A signal for the whole group of processes: the one that trains saves and then ends the others."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reader_processes(workers: int | None) -> int:
    """Processes that read image files: as many as are asked for, or one for each core, up to 8."""
    return min(8, available_cores()) if workers is None else workers


class _Normalise:
    """uint8 pixels → (x - mean) / std, in float32 on the device."""

    def __init__(self, dataset: ImageDataset, device: torch.device) -> None:
        self.device = device
        mean, std = (torch.tensor(values, dtype=torch.float64) for values in (dataset.mean, dataset.std))
        self.of_channel = 1 / std, -mean / std
        self.of_pixel: tuple[Tensor, Tensor] | None = None

    def __call__(self, pixels: Tensor) -> Tensor:
        values = pixels.to(self.device, non_blocking=True).to(torch.float32)
        if not len(values):
            return values
        if self.of_pixel is None:
            # A value for each pixel, in the order in memory that the images have: one value for each channel would
            # make this twice as slow where the channels of a pixel lie side by side.
            scale, shift = (
                torch.empty_like(values[:1]).copy_(channels[:, None, None])[0] for channels in self.of_channel
            )
            self.of_pixel = scale, shift
        scale, shift = self.of_pixel
        return torch.addcmul(shift, values, scale, out=values)


class _InMemoryLoader(Loader):
    """Batches of what is in memory on the device."""

    def __init__(self, plan: BatchPlan, mixing: Mixing | None, labels: Tensor) -> None:
        super().__init__(plan, mixing)
        self.labels = labels

    def _read(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.plan.samples(epoch)
        samples, drawn = (torch.from_numpy(each).to(self.labels.device) for each in (order, self._draw(epoch, order)))
        for part in self.plan.parts_from(start):
            yield self._take(samples[part], drawn[part]), self.labels.index_select(0, samples[part])

    def _draw(self, epoch: int, order: IntArray) -> IntArray:
        """A random number for each sample of an epoch."""
        raise NotImplementedError

    def _take(self, samples: Tensor, drawn: Tensor) -> Tensor:
        """Samples of a batch, by their random numbers."""
        raise NotImplementedError


class FeatureLoader(_InMemoryLoader):
    """Batches of features for a head, each sample in one of its views, drawn anew in each epoch by ``seed``.

    Features are float32 of shape (N, V, D), V views of each image; by default samples come in order. The rest is as in
    :func:`training_loader`.

    Example:
        >>> loader = FeatureLoader(torch.zeros(10, 1, 64), torch.arange(10), batch_size=4)
        >>> [tuple(batch.images.shape) for batch in loader.epoch(0)]
        [(4, 64), (3, 64), (3, 64)]
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        batch_size: int,
        *,
        order: Order | None = None,
        seed: int = 0,
        mixing: Mixing | None = None,
        shard: Shard = Shard(),
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(BatchPlan(order or in_order(len(features)), batch_size, shard), mixing, labels.to(device))
        self.rows, self.views, self.seed = features.flatten(0, 1).to(device), features.shape[1], seed

    def _draw(self, epoch: int, order: IntArray) -> IntArray:
        rows = order * self.views
        if self.views > 1:
            rows = rows + np.random.default_rng([self.seed, epoch, CROPS]).integers(0, self.views, len(order))
        return rows

    def _take(self, samples: Tensor, drawn: Tensor) -> Tensor:
        return self.rows.index_select(0, drawn)


class _ImageLoader(_InMemoryLoader):
    """Batches of images in memory as the network takes them: cropped, scaled, grey repeated in each channel."""

    def __init__(
        self,
        plan: BatchPlan,
        mixing: Mixing | None,
        dataset: ImageDataset,
        images: InMemoryImages,
        augment_seed: int | None,
        normalise: _Normalise,
    ) -> None:
        super().__init__(plan, mixing, images.labels.to(normalise.device))
        self.images, self.normalise = images.images.to(normalise.device), normalise
        self.size, self.interpolation, self.channels = dataset.input_size, dataset.interpolation, len(dataset.mean)
        self.pad, self.flip, self.augment_seed = dataset.pad, dataset.flip, augment_seed

    def _draw(self, epoch: int, order: IntArray) -> IntArray:
        if self.augment_seed is None:
            return order
        choices = (2 if self.flip else 1, 2 * self.pad + 1, 2 * self.pad + 1)
        return np.random.default_rng([self.augment_seed, epoch, CROPS]).integers(0, choices, (len(order), 3))

    def _take(self, samples: Tensor, drawn: Tensor) -> Tensor:
        pixels = self.images.index_select(0, samples)
        if self.augment_seed is not None:
            pixels = _crop(pixels, self.pad, *drawn.T)
        if self.size is not None and len(pixels):
            pixels = resize(pixels, self.size, self.interpolation).expand(-1, self.channels, -1, -1)
        return self.normalise(pixels)


def _crop(images: Tensor, pad: int, mirrored: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """A crop of each image of its own size, mirrored first or not, from the image in a black frame."""
    height, width = images.shape[2:]
    shown = torch.where(mirrored.bool()[:, None, None, None], images.flip(3), images)
    windows = F.pad(shown, (pad,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=images.device), :, top, left]


class _Crops(Dataset[Any]):
    """Reads the crop of one image file in a worker process; a broken file is returned as its error."""

    def __init__(self, dataset: ImageDataset, files: ImageFiles, augment_seed: int | None) -> None:
        self.files, self.augment_seed, self.flip = files, augment_seed, dataset.flip
        self.size = dataset.input_size or InputSpec.input_size
        self.interpolation, self.crop_fraction = dataset.interpolation, dataset.crop_fraction

    def __getitem__(self, request: tuple[int, int, int]) -> tuple[Tensor | DataError, int]:
        epoch, position, index = request
        path, label = self.files.path(index), int(self.files.labels[index])
        # By position, so that an image that is drawn twice in an epoch is not cropped twice in the same way.
        seed = self.augment_seed
        draw = None if seed is None else random.Random(f"{seed} {epoch} {position}")
        try:
            return read_view(path, self.size, self.interpolation, self.crop_fraction, draw, self.flip), label
        except DataError as error:
            return error, label

    def stack(self, items: list[tuple[Tensor | DataError, int]]) -> tuple[Tensor, Tensor] | DataError:
        """A batch of crops; the first error among them instead, for the main process to raise as it is."""
        errors = [content for content, _ in items if isinstance(content, DataError)]
        if errors:
            return errors[0]
        if not items:
            return torch.empty((0, 3, self.size, self.size), dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
        # PyTorch's own puts the batch where the main process can read it, instead of copying it there afterwards.
        pixels, labels = default_collate(items)
        return pixels, labels


class _Requests:
    """What to read next: the loader and its workers live for the whole training, the epoch changes."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        order = self.plan.samples(self.epoch)
        for part in self.plan.parts_from(self.start):
            positions = range(part.start, part.stop)
            yield [(self.epoch, *request) for request in zip(positions, order[part].tolist(), strict=True)]


class _FileLoader(Loader):
    """Batches of image files, read by worker processes."""

    def __init__(
        self, plan: BatchPlan, mixing: Mixing | None, crops: _Crops, normalise: _Normalise, workers: int
    ) -> None:
        super().__init__(plan, mixing)
        self.normalise, self._requests = normalise, _Requests(plan)
        self._loader = DataLoader(
            crops,
            batch_sampler=self._requests,
            collate_fn=crops.stack,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=leave_signals_to_parent,
            pin_memory=normalise.device.type == "cuda",
            # Else each epoch would draw a seed from PyTorch's global generator, which the training may depend on.
            generator=torch.Generator(),
        )

    def _read(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        self._requests.epoch, self._requests.start = epoch, start
        for loaded in self._loader:
            if isinstance(loaded, DataError):
                # Another one: a variable here that held the error raised would tie this frame, and with it the workers,
                # into a cycle, and PyTorch waits 5 seconds for each worker that the garbage collector finds.
                raise DataError(str(loaded))
            pixels, labels = loaded
            yield self.normalise(pixels), labels.to(self.normalise.device, non_blocking=True)
