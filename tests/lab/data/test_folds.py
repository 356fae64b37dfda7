"""Cross-validation: every image is held out once, evenly, and no class is ever without training images."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.lab.data import DataError, FoldOptions, ImageDataset, InMemoryImages, open_dataset
from longtail.lab.data.folds import fold_of_samples

labellings = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(np.array)


@settings(deadline=None)
@given(labellings, st.integers(2, 9), st.integers(0, 99))
def test_every_sample_that_can_be_spared_is_held_out_in_one_fold(labels, folds, seed):
    fold = fold_of_samples(labels, folds, seed)
    assert fold.dtype == np.int64
    assert fold.max() < folds
    alone = np.bincount(labels)[labels] == 1
    assert np.array_equal(fold == -1, alone)


@settings(deadline=None)
@given(labellings, st.integers(2, 9), st.integers(0, 99))
def test_folds_are_even_over_all_and_in_every_class(labels, folds, seed):
    fold = fold_of_samples(labels, folds, seed)
    sizes = np.bincount(fold[fold >= 0], minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    for label in np.unique(labels):
        of_class = fold[labels == label]
        sizes = np.bincount(of_class[of_class >= 0], minlength=folds)
        assert sizes.max() - sizes.min() <= 1
        assert sizes.max() < len(of_class)


@settings(deadline=None)
@given(labellings, st.integers(2, 9), st.integers(0, 99), st.integers(0, 99))
def test_folds_are_a_pure_function_of_labels_number_and_seed(labels, folds, seed, other):
    before = labels.copy()
    fold = fold_of_samples(labels, folds, seed)
    np.random.seed(other)  # noqa: NPY002 - the global one, which must not matter
    assert np.array_equal(fold, fold_of_samples(before, folds, seed))
    assert np.array_equal(labels, before)


def test_another_seed_is_another_choice():
    labels = np.arange(100) % 4
    assert not np.array_equal(fold_of_samples(labels, 5, 0), fold_of_samples(labels, 5, 1))


def numbered(labels, test=2):
    """Training images that say which they are; test images are 255."""
    labels = np.asarray(labels)
    train = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None]
    return ImageDataset(
        name="numbered",
        classes=tuple(f"c{label}" for label in range(labels.max() + 1)),
        train=InMemoryImages(train, labels),
        test=InMemoryImages(torch.full((test, 1, 1, 1), 255, dtype=torch.uint8), [0] * test),
    )


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=6, max_size=60), st.integers(2, 4), st.integers(0, 9))
def test_train_and_test_are_apart_and_together_all_training_images(values, folds, seed):
    dataset = numbered(np.unique(values, return_inverse=True)[1])
    counts = np.bincount(dataset.train.labels.numpy())
    spared = counts[counts > 1].sum()
    held_out = []
    for fold in range(folds):
        options = FoldOptions(folds=folds, fold=fold, fold_seed=seed)
        if fold >= spared:
            with pytest.raises(DataError, match="holds out no image"):
                options.choose(dataset)
            continue
        chosen = options.choose(dataset)
        train, test = (images.images.flatten().tolist() for images in (chosen.train, chosen.test))
        assert sorted(train + test) == list(range(len(values)))
        assert chosen.classes == dataset.classes
        assert chosen.counts.min() >= 1
        for images in (chosen.train, chosen.test):
            assert torch.equal(dataset.train.labels[images.images.flatten().long()], images.labels)
        held_out += test
    assert len(held_out) == len(set(held_out)) == spared


def test_the_seed_says_which_images_are_held_out():
    digits = open_dataset("digits")
    first, again, other = (
        FoldOptions(folds=5, fold=0, fold_seed=seed).choose(digits).test.images for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_without_folds_the_data_set_is_as_it_is():
    digits = open_dataset("digits")
    assert FoldOptions().choose(digits) is digits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1, "fold": 0}, "folds must be from 2 to the 1297 training images, got 1"),
        ({"folds": 0, "fold": 0}, "folds must be from 2 to the 1297 training images, got 0"),
        ({"folds": 1298, "fold": 0}, "folds must be from 2 to the 1297 training images, got 1298"),
        ({"folds": 5, "fold": 5}, "fold must be from 0 to 4, got 5"),
        ({"folds": 5, "fold": -1}, "fold must be from 0 to 4, got -1"),
        ({"folds": 5}, "folds and fold must be given together"),
        ({"fold": 0}, "folds and fold must be given together"),
        ({"fold_seed": 3}, "fold_seed 3 requires folds"),
    ],
)
def test_bad_values_are_refused_by_name(options, message):
    with pytest.raises(DataError, match=message):
        FoldOptions(**options).choose(open_dataset("digits"))


def test_a_fold_without_images_is_refused():
    with pytest.raises(DataError, match="fold 2 of 3 holds out no image"):
        FoldOptions(folds=3, fold=2).choose(numbered([0, 0, 1]))
