"""β from the data: features of the images, how far augmentation moves them, and what that says of each class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from longtail._checks import check_in_unit_interval
from longtail.counts import FloatArray, IntArray
from longtail.lab.config import ConfigError
from longtail.lab.data import Batch, ImageDataset, ImageFiles, evaluation_loader, training_loader
from longtail.lab.models import pooled_features
from longtail.lab.training import LoadedRun, RunFolder
from longtail.prototypes import PrototypeEstimate, estimate_prototypes
from longtail.weights import class_weights

__all__ = ["QUANTILE", "Advice", "advise", "network_features", "pixel_features", "view_distances"]

Features = Callable[[Tensor], Tensor]
"""From normalised images (B, channels, height, width) to features (B, D)."""

QUANTILE = 0.5
"""Of the distances between two augmented views of one image: as near as a typical pair of them is one prototype."""

VIEWED = 2000
"""Images of which two views are compared."""

COMPONENTS = 64
"""Of the principal components of pixels; as many as the small networks have features."""

FITTED = 10_000
"""Images that the components are fitted to."""

THUMBNAIL = 32
"""Width and height at which pixels of image files are compared."""

BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What the images of a data set say about β.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> advice = advise(open_dataset("digits"))
        >>> advice.features, advice.beta, len(advice.betas)
        ('principal components of the pixels', 0.0, 10)
    """

    name: str
    """Of the data set."""
    classes: tuple[str, ...]
    features: str
    """What distances are between."""
    quantile: float
    estimate: PrototypeEstimate

    @property
    def beta(self) -> float:
        """One β for all classes, with three digits of N."""
        return _rounded(self.estimate.pooled_beta)

    @property
    def betas(self) -> tuple[float, ...]:
        """A β for each class, with three digits of N."""
        return tuple(map(_rounded, self.estimate.shrunken_beta.tolist()))

    @property
    def weights(self) -> FloatArray:
        """Class weights with a β for each class."""
        found: FloatArray = class_weights(self.estimate.counts, beta=self.betas)
        return found

    @property
    def global_weights(self) -> FloatArray:
        """Class weights with one β for all."""
        found: FloatArray = class_weights(self.estimate.counts, beta=self.beta)
        return found


def advise(dataset: ImageDataset, run: LoadedRun | None = None, quantile: float = QUANTILE, seed: int = 0) -> Advice:
    """Estimate the prototypes of each class from the training images.

    Args:
        dataset: with the training images that are to be weighted.
        run: whose network says how near two images are; without one, the principal components of their pixels do.
        quantile: of the distances between two augmented views of an image; that one is the radius of a prototype.
        seed: of the views.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> advise(open_dataset("digits"), quantile=0.1).estimate.counts
        array([128, 132, 127, 133, 131, 132, 131, 129, 124, 130])
    """
    check_in_unit_interval("quantile", quantile)
    size: int | None = THUMBNAIL
    if run is not None:
        dataset, size = _as_seen_by(run, dataset), None
    features = pixel_features(dataset, seed) if run is None else network_features(run)
    loader = evaluation_loader(dataset, BATCH, images=dataset.train, image_size=size)
    points = _embed(loader.epoch(0), features)
    distances = view_distances(dataset, features, image_size=size, seed=seed)
    return Advice(
        name=dataset.name,
        classes=dataset.classes,
        features="principal components of the pixels" if run is None else f"features of {run.path.name}",
        quantile=quantile,
        estimate=estimate_prototypes(
            points, dataset.train.labels.numpy(), float(np.quantile(distances, quantile)), len(dataset.classes)
        ),
    )


def network_features(run: LoadedRun) -> Features:
    """What the last layer of a trained network sees.

    Example:
        >>> from longtail.lab.training import load_run
        >>> features = network_features(load_run("runs/digits-…"))  # doctest: +SKIP
        >>> features(torch.zeros(2, 1, 8, 8)).shape  # doctest: +SKIP
        torch.Size([2, 64])
    """

    def features(images: Tensor) -> Tensor:
        with torch.no_grad():
            return pooled_features(run.model, images)

    return features


def pixel_features(dataset: ImageDataset, seed: int = 0) -> Features:
    """The principal components of the pixels, fitted to some of the training images; image files are made small.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> pixel_features(open_dataset("digits"))(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 64])
    """
    chosen = _some(len(dataset.train), FITTED, seed)
    loader = evaluation_loader(dataset, BATCH, images=dataset.train.subset(chosen), image_size=THUMBNAIL)
    pixels = torch.cat([batch.images.flatten(1) for batch in loader.epoch(0)])
    mean = pixels.mean(dim=0)
    count = min(COMPONENTS, *pixels.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        components = torch.svd_lowrank(pixels - mean, count, niter=4)[2]
    return lambda images: (images.flatten(1) - mean) @ components


def view_distances(
    dataset: ImageDataset,
    features: Features,
    *,
    image_size: int | None = THUMBNAIL,
    images: int = VIEWED,
    seed: int = 0,
) -> FloatArray:
    """Distances between the features of two augmented views of an image, for some of the training images.

    Views are what training sees: padded, cropped and mirrored at random, as the data set allows.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> dataset = open_dataset("digits")
        >>> view_distances(dataset, pixel_features(dataset), images=100).shape
        (100,)
    """
    chosen = _some(len(dataset.train), images, seed)
    loader = training_loader(dataset, BATCH, order=lambda epoch: chosen, seed=seed, image_size=image_size)
    first, second = (_embed(loader.epoch(epoch), features) for epoch in (0, 1))
    distances: FloatArray = np.linalg.norm(first - second, axis=1)
    return distances


def _rounded(beta: float) -> float:
    return round(1 - float(f"{1 - beta:.3g}"), 15)


def _embed(batches: Iterable[Batch], features: Features) -> FloatArray:
    return torch.cat([features(batch.images) for batch in batches]).double().numpy()


def _some(count: int, most: int, seed: int) -> IntArray:
    """As many of ``count`` images as are enough, drawn at random, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def _as_seen_by(run: LoadedRun, dataset: ImageDataset) -> ImageDataset:
    """The data set with the normalisation of a run, if its images are of the same kind."""
    data = RunFolder(run.path).data()
    shape = None if isinstance(dataset.train, ImageFiles) else list(dataset.train.images.shape[1:])
    if shape != data["image_shape"]:
        kinds = ["image files" if each is None else " × ".join(map(str, each)) for each in (data["image_shape"], shape)]
        raise ConfigError(f"{run.path} was trained on {kinds[0]}, but {dataset.name} has {kinds[1]}")
    return replace(
        dataset,
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        **(data.get("input") or {"input_size": run.config.data.image_size}),
    )
