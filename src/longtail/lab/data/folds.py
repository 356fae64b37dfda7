"""Splits: images held out for a test, for validation, and fold by fold; images of a group stay together."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from longtail.counts import IntArray, class_counts
from longtail.lab.data.dataset import ImageDataset
from longtail.lab.data.errors import DataError
from longtail.lab.data.subset import shuffled_by_class

MOST_PARTS = 20
"""A held-out part is cut to the nearest of so many."""

Groups = npt.NDArray[np.bytes_]
Mask = npt.NDArray[np.bool_]


def fold_of_samples(labels: IntArray, folds: int, seed: int = 0) -> IntArray:
    """The fold that each sample is held out in, or -1 for the only sample of a class, which is always trained on.

    The samples of a class, in an order that depends on the seed alone, go to the folds in turn, and the next class goes
    on where it ended: folds are equally large, and every class is spread over them as evenly as can be. A class with
    fewer samples than folds is held out in as many folds as it has samples. No fold holds out all of a class.

    Example:
        >>> fold_of_samples(np.array([0, 0, 0, 0, 1, 1, 2]), folds=3)
        array([ 0,  2,  0,  1,  1,  2, -1])
    """
    fold = np.full(len(labels), -1, dtype=np.int64)
    placed = 0
    for samples in shuffled_by_class(labels, seed):
        if len(samples) > 1:
            fold[samples] = (placed + np.arange(len(samples))) % folds
            placed += len(samples)
    return fold


def fold_of_groups(labels: IntArray, groups: Groups, folds: int, seed: int = 0) -> IntArray:
    """The fold that each sample is held out in: that of its group, by scikit-learn's ``StratifiedGroupKFold``.

    Classes are spread over the folds as evenly as whole groups allow; a fold may hold out all of a class.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    count = len(np.unique(groups))
    if not 2 <= folds <= count:
        raise DataError(f"folds must be from 2 to the {count} groups of the training images, got {folds}")
    if folds > class_counts(labels).max():
        raise DataError(f"folds must be at most the images of the largest class, got {folds}")
    fold = np.empty(len(labels), dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class of fewer images than folds: it is not in all of them
        splits = StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(labels, labels, groups)
        for number, (_, held_out) in enumerate(splits):
            fold[held_out] = number
    return fold


def held_out_part(
    labels: IntArray, fraction: float, seed: int = 0, groups: Groups | None = None, name: str = "fraction"
) -> Mask:
    """Mark samples to hold out: about ``fraction`` of each class, and never all of a class.

    Without groups at least one sample of every class is marked that has two. With groups, whole groups are: classes are
    spread as evenly as that allows. The smallest group of a class that would be held out altogether is not, and that of
    a class of which nothing would be held out is, where it shares no image with classes that are.

    Example:
        >>> held_out_part(np.array([0, 0, 0, 0, 1, 1, 2]), fraction=0.25).astype(int)
        array([0, 0, 1, 0, 1, 0, 0])
        >>> groups = np.array(["a", "a", "b", "b", "c", "c", "d"], "S")
        >>> held_out = held_out_part(np.array([0, 0, 0, 0, 1, 1, 1]), 0.25, groups=groups)
        >>> set(groups[held_out]) & set(groups[~held_out])
        set()
    """
    if not 0 < fraction < 1:
        raise ValueError(f"{name} must be between 0 and 1, got {fraction}")
    if groups is not None:
        return _held_out_groups(labels, fraction, seed, groups)
    marked = np.zeros(len(labels), dtype=np.bool_)
    for samples in shuffled_by_class(labels, seed):
        marked[samples[: min(max(round(fraction * len(samples)), 1), len(samples) - 1)]] = True
    return marked


def _held_out_groups(labels: IntArray, fraction: float, seed: int, groups: Groups) -> Mask:
    names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    most = min(MOST_PARTS, len(names), int(class_counts(labels).max()))
    if most < 2:
        return np.zeros(len(labels), dtype=np.bool_)
    # m of n parts: the fraction, or the nearest one that so few groups can have.
    share = min(max(Fraction(fraction).limit_denominator(most), Fraction(1, most)), Fraction(most - 1, most))
    part = fold_of_groups(labels, groups, share.denominator, seed)
    part_sizes = np.bincount(part, minlength=share.denominator)
    # A group can be larger than a part: those m parts, neighbours by size, that are nearest to the fraction.
    order = np.argsort(part_sizes, kind="stable")
    totals = np.convolve(part_sizes[order], np.ones(share.numerator, dtype=np.int64), "valid")
    start = int(np.abs(totals - fraction * len(labels)).argmin())
    marked = np.isin(part, order[start : start + share.numerator])
    for label in np.unique(labels):
        of_class = labels == label
        inside = np.unique(group[of_class])
        smallest = group == inside[sizes[inside].argmin()]
        if marked[of_class].all():
            marked[smallest] = False
        elif not marked[of_class].any() and len(inside) > 1:
            others = np.isin(labels, labels[smallest]) & ~smallest
            # Only where no other class gets more than its share, and each one still has images to train on.
            if not marked[others].any() and np.isin(labels[smallest], labels[others]).all():
                marked[smallest] = True
    return marked


def hold_out_validation(dataset: ImageDataset, fraction: float) -> ImageDataset:
    """The data set with a part of its training images as validation images; 0 leaves it as it is."""
    if not fraction:
        return dataset
    images = dataset.train
    marked = held_out_part(images.labels.numpy(), fraction, groups=images.groups, name="validation_fraction")
    if not marked.any():
        why = "every class has a single image" if images.groups is None else "each group has the only images of a class"
        raise DataError(f"validation_fraction {fraction:g} holds out no training image of {dataset.name}: {why}")
    validation = images.subset(np.flatnonzero(marked))
    chosen = replace(dataset.with_train(np.flatnonzero(~marked)), validation=validation)
    without = np.flatnonzero(class_counts(validation.labels.numpy(), len(dataset.classes)) == 0)
    if not without.size:
        return chosen
    note = f"{without.size} of {len(dataset.classes)} classes have no validation images, such as "
    return replace(chosen, notes=(*chosen.notes, f"{note}{dataset.classes[without[0]]!r}"))


@dataclass(frozen=True, kw_only=True)
class FoldOptions:
    """Cross-validation: train on a part of the training images, and test on the rest of them.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> digits = FoldOptions(folds=5, fold=0).choose(open_dataset("digits"))
        >>> len(digits.train), len(digits.test)
        (1037, 260)
    """

    folds: int | None = None
    """For cross-validation: how many parts the training images are cut into."""
    fold: int | None = None
    """The part, from 0 on, to test on instead of the test images; the others are trained on."""
    fold_seed: int = 0
    """How the images are spread over the folds."""

    def choose(self, dataset: ImageDataset) -> ImageDataset:
        """The data set with one fold of its training images instead of its test images."""
        if self.folds is None and self.fold is None:
            if self.fold_seed:
                raise DataError(f"fold_seed {self.fold_seed} requires folds")
            return dataset
        if self.folds is None or self.fold is None:
            raise DataError("folds and fold must be given together")
        labels, groups = dataset.train.labels.numpy(), dataset.train.groups
        if groups is None and not 2 <= self.folds <= len(dataset.train):
            raise DataError(f"folds must be from 2 to the {len(dataset.train)} training images, got {self.folds}")
        if not 0 <= self.fold_seed < 2**32:
            raise DataError(f"fold_seed must be in [0, 2**32), got {self.fold_seed}")
        if not 0 <= self.fold < self.folds:
            raise DataError(f"fold must be from 0 to {self.folds - 1}, got {self.fold}")
        if groups is None:
            fold = fold_of_samples(labels, self.folds, self.fold_seed)
        else:
            fold = fold_of_groups(labels, groups, self.folds, self.fold_seed)
        held_out = np.flatnonzero(fold == self.fold)
        if not held_out.size:
            raise DataError(f"fold {self.fold} of {self.folds} holds out no image: there are too few to spare")
        chosen = replace(dataset, test=dataset.train.subset(held_out), allow_absent=groups is not None)
        chosen = chosen.with_train(np.flatnonzero(fold != self.fold))
        absent = np.flatnonzero(chosen.counts == 0)
        if not absent.size:
            return chosen
        note = f"{absent.size} of {len(chosen.classes)} classes have no training images in fold {self.fold}"
        note += f", such as {chosen.classes[absent[0]]!r}: all of their groups are held out, and their weight is 0"
        return replace(chosen, notes=(*chosen.notes, note))
