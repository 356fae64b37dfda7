"""Mixed batches: the same λ and box for the label as for the image, and all of it from seed, epoch and batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.lab.data import Shard, training_loader
from longtail.lab.data.mixing import Mixing
from tests.lab.data.test_loaders import files, numbered  # noqa: F401

SIZES = {"batch": st.integers(1, 9), "height": st.integers(1, 40), "width": st.integers(1, 40)}


def told(count, height, width):
    """Images of one brightness each, their number from 1 on, and labels that are their numbers."""
    images = torch.arange(1.0, count + 1)[:, None, None, None].expand(count, 2, height, width)
    return images.contiguous(), torch.arange(count)


def shares(soft):
    """Of a batch in which every image is a class of its own: λ, and each image's partner, itself where λ is 1 or 0."""
    own = soft.diagonal()
    others = soft.clone()
    others.fill_diagonal_(0)
    return own, others.argmax(1)


@settings(deadline=None)
@given(alpha=st.floats(0.01, 10), seed=st.integers(0, 99), **SIZES)
def test_mixup_blends_images_as_it_blends_labels(alpha, seed, batch, height, width):
    images, labels = told(batch, height, width)
    mixed, soft = Mixing(mixup=alpha, classes=batch, seed=seed)(images, labels, epoch=3, batch=1)
    expected = np.einsum("bi,ichw->bchw", soft.double().numpy(), images.double().numpy())
    assert np.allclose(mixed.numpy(), expected, rtol=1e-5)
    assert torch.allclose(soft.sum(1), torch.ones(batch))
    assert soft.dtype == torch.float32
    assert torch.equal(images, told(batch, height, width)[0])


@settings(deadline=None)
@given(alpha=st.floats(0.01, 10), seed=st.integers(0, 99), **SIZES)
def test_the_box_of_cutmix_has_exactly_the_area_that_the_label_says(alpha, seed, batch, height, width):
    images, labels = told(batch, height, width)
    mixed, soft = Mixing(cutmix=alpha, classes=batch, seed=seed)(images, labels, epoch=0, batch=0)
    own, partner = shares(soft)
    for place in range(batch):
        foreign = (mixed[place] != images[place])[0]
        if own[place] == 1:  # mixed with itself, or no box
            assert not foreign.any()
            continue
        area = int(foreign.sum())
        assert own[place].item() == pytest.approx(1 - area / (height * width), abs=1e-6)
        rows, columns = np.nonzero(foreign.numpy())
        assert area == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        assert (mixed[place][:, foreign] == images[partner[place], 0, 0, 0]).all()
    assert torch.allclose(soft.sum(1), torch.ones(batch))


def test_lambda_is_of_the_beta_distribution_and_the_box_of_its_size():
    """Means over many batches of two; where an image is mixed with itself, nothing is seen of λ."""
    images, labels = told(2, 64, 64)

    def mean(**options):
        found = [Mixing(**options, classes=2)(images, labels, 0, batch)[1][0, 0].item() for batch in range(1000)]
        return np.mean([max(share, 1 - share) for share in found if share < 1])

    draw = np.random.default_rng(1)
    share = draw.beta(0.3, 0.3, 100_000)
    assert mean(mixup=0.3) == pytest.approx(np.maximum(share, 1 - share).mean(), abs=0.02)
    side, place = np.sqrt(1 - draw.random((1, 100_000))), draw.random((2, 100_000))
    # What is left of the box inside the image.
    area = (np.minimum(place + side / 2, 1) - np.maximum(place - side / 2, 0)).prod(axis=0)
    assert mean(cutmix=1.0) == pytest.approx(np.maximum(area, 1 - area).mean(), abs=0.02)


def test_with_both_each_batch_has_one_of_them():
    images, labels = told(8, 8, 8)
    mixing = Mixing(mixup=1.0, cutmix=1.0, classes=8)
    kinds = []
    for batch in range(300):
        mixed, soft = mixing(images, labels, 0, batch)
        moved = shares(soft)[0] < 1
        whole = mixed.flatten(1).std(1) == 0
        if moved.any():
            kinds.append(bool(whole[moved].all()))
            assert whole[moved].all() or not whole[moved].any()
    assert 0.4 < np.mean(kinds) < 0.6


@pytest.mark.parametrize("options", [{"mixup": 0.3}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0}])
def test_batches_follow_from_seed_epoch_and_place_and_are_resumed_in_the_middle(options):
    dataset = numbered(50)
    whole = list(training_loader(dataset, 8, seed=3, **options).epoch(2))
    loader = training_loader(dataset, 8, seed=3, **options)
    assert len(loader) == len(whole)
    list(loader.epoch(1))
    torch.manual_seed(99)
    rest = list(loader.epoch(2, start=3))
    assert len(rest) == len(whole) - 3
    for one, other in zip(whole[3:], rest, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    for seed, epoch in ((3, 1), (4, 2)):
        other = next(training_loader(dataset, 8, seed=seed, **options).epoch(epoch))
        assert not torch.equal(other.labels, whole[0].labels)


@pytest.mark.parametrize("options", [{"mixup": 1.0}, {"cutmix": 1.0}])
def test_seed_epoch_and_batch_each_draw_anew(options):
    images, labels = torch.rand(16, 1, 32, 32), torch.arange(16) % 3

    def drawn(seed, epoch, batch):
        return tuple(Mixing(**options, classes=3, seed=seed)(images, labels, epoch, batch)[1].flatten().tolist())

    assert drawn(0, 0, 0) == drawn(0, 0, 0)
    assert len({drawn(0, 0, 0), drawn(1, 0, 0), drawn(0, 1, 0), drawn(0, 0, 1)}) == 4


def test_the_images_are_those_of_the_loader_without_mixing():
    dataset = numbered(20)
    for augment in (True, False):
        plain = next(training_loader(dataset, 20, augment=augment).epoch(0))
        mixed = next(training_loader(dataset, 20, augment=augment, mixup=0.5).epoch(0))
        images, labels = Mixing(0.5, classes=3)(plain.images, plain.labels, epoch=0, batch=0)
        assert torch.equal(mixed.images, images)
        assert torch.equal(mixed.labels, labels)
        assert mixed.total == 20


@pytest.mark.parametrize("options", [{"mixup": 1.0}, {"cutmix": 1.0}])
def test_processes_have_the_same_lambda_and_mix_within_their_parts(options):
    dataset = numbered(60, size=8)
    parts = [training_loader(dataset, 30, shard=Shard(rank, 2), **options).epoch(0) for rank in range(2)]
    plain = [training_loader(dataset, 30, shard=Shard(rank, 2)).epoch(0) for rank in range(2)]
    for batches in zip(*parts, *plain, strict=True):
        mixed, unmixed = batches[:2], batches[2:]
        kinds = [sorted(set(np.round(part.labels.flatten().tolist(), 5)) - {0.0, 1.0}) for part in mixed]
        assert kinds[0] == kinds[1]
        for part, own in zip(mixed, unmixed, strict=True):
            assert part.labels.sum(0).tolist() == pytest.approx(torch.bincount(own.labels, minlength=3).tolist())
            if "mixup" in options:
                assert part.images.sum().item() == pytest.approx(own.images.sum().item(), rel=1e-5)


@pytest.mark.parametrize("workers", [0, 2])
def test_image_files_are_mixed_alike_with_any_number_of_workers(files, workers):  # noqa: F811
    loader = training_loader(replace(files, input_size=16), 4, seed=2, workers=workers, mixup=0.4, cutmix=1.0)
    plain = training_loader(replace(files, input_size=16), 4, seed=2, workers=0)
    mixing = Mixing(0.4, 1.0, classes=2, seed=2)
    for number, (one, other) in enumerate(zip(loader.epoch(1, start=1), plain.epoch(1, start=1), strict=True), start=1):
        images, labels = mixing(other.images, other.labels, 1, number)
        assert torch.equal(one.images, images)
        assert torch.equal(one.labels, labels)


@pytest.mark.parametrize("options", [{"mixup": -1}, {"cutmix": float("nan")}])
def test_alphas_that_make_no_sense_are_named(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be a finite number >= 0, got"):
        training_loader(numbered(9), 3, **options)
