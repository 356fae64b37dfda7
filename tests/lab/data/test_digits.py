"""The embedded data set."""

import hashlib

import numpy as np
from sklearn.datasets import load_digits

from longtail import class_counts
from longtail.lab.data import long_tailed_subset, open_dataset


def test_digits_are_real_and_split_without_overlap():
    digits = open_dataset("digits")
    assert class_counts(digits.test).tolist() == [50] * 10
    together = np.concatenate([split.images.flatten(1).numpy() for split in (digits.train, digits.test)])
    real = load_digits().images.reshape(-1, 64)
    assert sorted(map(tuple, np.round(together / 255 * 16))) == sorted(map(tuple, real))


def test_the_split_is_fixed():
    test = open_dataset("digits").test
    content = hashlib.sha256(test.images.numpy().tobytes() + test.labels.numpy().tobytes())
    assert content.hexdigest().startswith("03fd68ba1e95e800")


def test_a_long_tailed_subset_of_the_digits():
    digits = open_dataset("digits")
    subset = long_tailed_subset(digits.train.labels, 10)
    assert subset.counts.tolist() == [int(128 * 10 ** (-label / 9)) for label in range(10)]
    assert len(digits.with_train(subset.indices).test) == 500
