"""Long-tailed subsets of a data set, as in section 5.1 of the paper."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longtail._checks import check_choice
from longtail.counts import IntArray, class_counts, find_labels, long_tailed_counts, to_numpy
from longtail.lab.data.dataset import ImageDataset
from longtail.lab.data.errors import DataError
from longtail.lab.files import write_atomically

VERSION = 1
CLASS_ORDERS = ("label", "size")


@dataclass(frozen=True, kw_only=True)
class LongTailedSubset:
    """Which samples of a data set a long-tailed subset holds, and how they were chosen.

    Example:
        >>> subset = long_tailed_subset([0, 1, 0, 1, 0, 1, 0, 1], imbalance=4)
        >>> subset.counts, len(subset.indices), subset.sha256[:8]
        (array([4, 1]), 5, '4884924c')
    """

    imbalance: float
    profile: str
    seed: int
    counts: IntArray
    """Samples of each class in the subset."""
    indices: IntArray
    """Sorted positions in the data set it was drawn from."""
    labels_sha256: str
    """Of the labels it was drawn from."""

    @property
    def sha256(self) -> str:
        """Hash of the indices: two subsets with the same one hold the same samples."""
        return _sha256(self.indices)

    def save(self, path: Path, dataset: str, classes: Sequence[str], **about: Any) -> None:
        """Write a manifest: all of this, the hash, the data set's name and class index, and what else there is."""
        manifest = {
            "version": VERSION,
            "dataset": dataset,
            "classes": list(classes),
            "imbalance": self.imbalance,
            "profile": self.profile,
            "seed": self.seed,
            "counts": self.counts.tolist(),
            "labels_sha256": self.labels_sha256,
            "sha256": self.sha256,
            "indices": self.indices.tolist(),
            **about,
        }
        write_atomically(path, json.dumps(manifest, ensure_ascii=False) + "\n")


def long_tailed_subset(
    labels: Any,
    imbalance: float,
    seed: int = 0,
    *,
    profile: str = "exponential",
    max_count: int | None = None,
    class_order: str = "label",
    classes: Sequence[str] | None = None,
) -> LongTailedSubset:
    r"""Choose a long-tailed subset of a data set.

    .. math:: n_i = \lfloor n_{\max} \cdot \rho^{-i/(C-1)} \rfloor

    Class :math:`i` keeps the first :math:`n_i` of its samples in an order that depends on the seed alone, so subsets
    of one seed are nested: the one at imbalance 100 is inside the one at 50. Seed s chooses the images that LDAM-DRW's
    ``rand_number=s`` chooses, the subset that most papers on long-tailed CIFAR use (s = 0). Imbalance 1 without
    ``max_count`` is the data set as it is.

    Args:
        labels: class indices, shape (N,).
        imbalance: largest over smallest class, :math:`\rho \ge 1`.
        seed: which samples are chosen; their numbers do not depend on it.
        profile: ``"exponential"`` (the paper) or ``"step"``.
        max_count: :math:`n_{\max}`, samples of the first class; by default all that it has, or, with ``"step"``, that
            each class of the first half has.
        class_order: ``"label"`` (the paper): class 0 is the largest. ``"size"``: classes keep their order of size, and
            none needs more samples than it has; this makes a data set that is long-tailed already steeper.
        classes: class names, for error messages.

    Returns:
        The subset: ``indices`` are sorted.

    Example:
        >>> labels = [0] * 100 + [1] * 100 + [2] * 100
        >>> long_tailed_subset(labels, imbalance=100).counts
        array([100,  10,   1])
        >>> long_tailed_subset([0] * 5 + [1] * 100 + [2] * 30, imbalance=100, class_order="size").counts
        array([  1, 100,  10])

    Reference:
        Cui et al., *Class-Balanced Loss Based on Effective Number of Samples*, CVPR 2019, section 5.1.
    """
    values = to_numpy(find_labels(labels))
    available = class_counts(values)
    check_choice("class_order", class_order, CLASS_ORDERS)
    by_size = class_order == "size"
    ranked = np.argsort(-available, kind="stable") if by_size else np.arange(len(available))
    first = int(ranked[0])
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in [0, 2**32), got {seed}")
    most = max_count
    if most is None:
        # Whatever the imbalance: else subsets would not be nested.
        half = available[ranked[: max(1, len(available) // 2)]]
        most = max(1, int(half[0] if profile == "exponential" else half.min()))
    elif most > available[first] > 0:
        raise DataError(
            f"max_count {most} is more than the {available[first]} samples of class {_name(first, classes)}"
        )
    counts = np.empty_like(available)
    counts[ranked] = long_tailed_counts(most, len(available), imbalance, profile)
    if by_size:
        counts = np.minimum(counts, available)
    if imbalance == 1 and max_count is None:
        counts = available
    _check_enough(counts, available, imbalance, profile, classes)
    of_class = shuffled_by_class(values, seed)
    chosen = [samples[:count] for samples, count in zip(of_class, counts, strict=True)]
    return LongTailedSubset(
        imbalance=float(imbalance),
        profile=profile,
        seed=int(seed),
        counts=counts,
        indices=np.sort(np.concatenate(chosen)).astype(np.int64),
        labels_sha256=_sha256(values),
    )


def shuffled_by_class(labels: IntArray, seed: int) -> list[IntArray]:
    """The positions of the samples of each class, in an order that depends on the seed alone."""
    # The legacy generator: its stream is frozen for all versions of NumPy, so a seed means the same images forever.
    shuffle = np.random.RandomState(seed).shuffle
    of_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(class_counts(labels))[:-1])
    for samples in of_class:
        shuffle(samples)
    return of_class


@dataclass(frozen=True, kw_only=True)
class SubsetOptions:
    """A long-tailed subset of the training images.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> digits, subset = SubsetOptions(imbalance=10).choose(open_dataset("digits"))
        >>> len(digits.train), subset.imbalance
        (519, 10.0)
    """

    imbalance: float | None = None
    """Largest over smallest class; without it the data set is taken as it is."""
    profile: Literal["exponential", "step"] = "exponential"
    """How the classes shrink: each by the same factor, or the second half all at once."""
    max_count: int | None = None
    """Images of the first class; all that it has by default."""
    class_order: Literal["label", "size"] = "label"
    """label: class 0 stays the largest, as in the paper. size: classes keep their order of size."""
    subset_seed: int = 0
    """Which images are chosen."""

    def choose(self, dataset: ImageDataset) -> tuple[ImageDataset, LongTailedSubset]:
        """The data set with the chosen training images alone, and which those are."""
        if self.imbalance is None and self.profile != "exponential":
            raise DataError(f"profile {self.profile} requires an imbalance")
        if self.imbalance is None and self.class_order != "label":
            raise DataError(f"class_order {self.class_order} requires an imbalance")
        if self.imbalance is None and self.max_count is None and self.subset_seed:
            raise DataError(f"subset_seed {self.subset_seed} requires an imbalance")
        chosen = long_tailed_subset(
            dataset.train.labels,
            1 if self.imbalance is None else self.imbalance,
            self.subset_seed,
            profile=self.profile,
            max_count=self.max_count,
            class_order=self.class_order,
            classes=dataset.classes,
        )
        return dataset.with_train(chosen.indices), chosen


def _check_enough(
    counts: IntArray, available: IntArray, imbalance: float, profile: str, classes: Sequence[str] | None
) -> None:
    short = np.flatnonzero(counts > available)
    if not short.size:
        return
    label = int(short[0])
    shrink = min(float(have) / float(want) for have, want in zip(available, counts, strict=True))
    enough = int(counts[0] * shrink)
    remedy = ""
    with contextlib.suppress(ValueError):  # where even that leaves a class without samples
        long_tailed_counts(enough, len(counts), imbalance, profile)
        remedy = f": max_count {enough} would do"
    raise DataError(
        f"class {_name(label, classes)} has {available[label]} samples, fewer than the {counts[label]} of "
        f"imbalance {imbalance:g} ({profile}) with {counts[0]} in the first class{remedy}"
    )


def _name(label: int, classes: Sequence[str] | None) -> str:
    return f"{label} ({classes[label]})" if classes else str(label)


def _sha256(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<i8").tobytes()).hexdigest()
