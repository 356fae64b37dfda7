"""Handwritten digits, embedded: real images without a download."""

from __future__ import annotations

import numpy as np
import torch

from longtail.lab.data.dataset import ImageDataset, InMemoryImages

TEST_PER_CLASS = 50


def open_digits() -> ImageDataset:
    """The 1,797 digits of scikit-learn, 8 × 8 pixels: 50 of each class to test on, the others to train on.

    Example:
        >>> digits = open_digits()
        >>> digits.train.images.shape, digits.counts
        (torch.Size([1297, 1, 8, 8]), array([128, 132, 127, 133, 131, 132, 131, 129, 124, 130]))

    Reference:
        E. Alpaydin, C. Kaynak: *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, 1998.
    """
    from sklearn.datasets import load_digits  # takes a second, which only those should wait for who use the digits

    grey, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(np.round(grey * (255 / 16)).astype(np.uint8)).reshape(-1, 1, 8, 8)
    images = InMemoryImages(pixels, labels)
    # The split is part of the data set: the legacy generator keeps it the same for all versions of NumPy.
    order = np.random.RandomState(0).permutation(len(labels))
    of_class = [order[labels[order] == label] for label in range(10)]
    return ImageDataset(
        name="digits",
        classes=tuple("0123456789"),
        train=images.subset(np.sort(np.concatenate([samples[TEST_PER_CLASS:] for samples in of_class]))),
        test=images.subset(np.sort(np.concatenate([samples[:TEST_PER_CLASS] for samples in of_class]))),
        mean=(128.0,),
        std=(128.0,),
        pad=1,
        flip=False,
    )
