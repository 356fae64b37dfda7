"""Cross-validation: parts of the training images, each in turn in the place of the test images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from longtail.counts import IntArray
from longtail.lab.data.dataset import ImageDataset
from longtail.lab.data.errors import DataError
from longtail.lab.data.subset import shuffled_by_class

__all__ = ["FoldOptions", "fold_of_samples"]


def fold_of_samples(labels: IntArray, folds: int, seed: int = 0) -> IntArray:
    """The fold that each sample is held out in, or -1 for the only sample of a class, which is always trained on.

    The samples of a class, in an order that depends on the seed alone, go to the folds in turn, and the next class goes
    on where it ended: folds are equally large, and every class is spread over them as evenly as can be. A class with
    fewer samples than folds is held out in as many folds as it has samples. No fold holds out all of a class.

    Args:
        labels: class indices, shape (N,).
        folds: how many, at least 2.
        seed: of the order.

    Returns:
        int64 of shape (N,).

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
    """The part, from 0 on, to test on in the place of the test images; the others are trained on."""
    fold_seed: int = 0
    """How the images are spread over the folds."""

    def choose(self, dataset: ImageDataset) -> ImageDataset:
        """The data set with one fold of its training images in the place of its test images."""
        if self.folds is None and self.fold is None:
            if self.fold_seed:
                raise DataError(f"fold_seed {self.fold_seed} would do nothing without folds")
            return dataset
        if self.folds is None or self.fold is None:
            raise DataError("folds and fold are only of use together")
        if not 2 <= self.folds <= len(dataset.train):
            raise DataError(f"folds must be from 2 to the {len(dataset.train)} training images, got {self.folds}")
        if not 0 <= self.fold_seed < 2**32:
            raise DataError(f"fold_seed must be in [0, 2**32), got {self.fold_seed}")
        if not 0 <= self.fold < self.folds:
            raise DataError(f"fold must be from 0 to {self.folds - 1}, got {self.fold}")
        fold = fold_of_samples(dataset.train.labels.numpy(), self.folds, self.fold_seed)
        held_out = np.flatnonzero(fold == self.fold)
        if not held_out.size:
            raise DataError(f"fold {self.fold} of {self.folds} holds out no image: there are too few to spare")
        test = dataset.train.subset(held_out)
        return replace(dataset.with_train(np.flatnonzero(fold != self.fold)), test=test)
