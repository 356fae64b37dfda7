"""Prototypes of classes, where the truth is known."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import effective_number, long_tailed_counts
from longtail._neighbours import count_neighbours
from longtail.prototypes import _from_alone, _from_volume, estimate_prototypes

Z = 1.959963984540054


def by_pairs(features, radius):
    """All distances at once, as differences in float64."""
    distances = np.linalg.norm(features[:, None] - features[None], axis=2)
    return (distances <= radius).sum(axis=1) - 1


def drawn(prototypes, n, trials, seed=0):
    """Samples alone and prototypes seen in each of many draws, with no formula of the paper."""
    samples = np.sort(np.random.default_rng(seed).integers(prototypes, size=(trials, n)), axis=1)
    same = samples[:, 1:] == samples[:, :-1]
    before, after = np.pad(same, ((0, 0), (1, 0))), np.pad(same, ((0, 0), (0, 1)))
    return (~before & ~after).sum(axis=1).astype(float), n - same.sum(axis=1).astype(float)


def prototype_features(prototypes, counts, seed=0, dimensions=6):
    """Samples of classes that have ``prototypes`` each, far apart, with noise far below the distance between them."""
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    chosen = draw.integers(prototypes, size=len(labels))
    digits = (chosen[:, None] // 10 ** np.arange(dimensions)) % 10
    return digits + draw.uniform(-0.01, 0.01, digits.shape), labels


@pytest.mark.parametrize("block", [7, 64, 2048])
def test_neighbours_are_those_of_all_pairs(block):
    features = np.random.default_rng(1).normal(size=(150, 5))
    for radius in (0.0, 1e-300, 0.5, 1.5, 3.0, 100.0, 1e300):
        assert count_neighbours(features, radius, block).tolist() == by_pairs(features, radius).tolist()


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1e-3, 1.0, 1e6, 1e30]), st.sampled_from([0.0, 1e3, -1e6]))
@settings(max_examples=40, deadline=None)
def test_neighbours_at_the_radius_are_exact(seed, scale, shift):
    """On a lattice many pairs are exactly at the radius, or a float64's last digit away, where float32 sees nothing."""
    draw = np.random.default_rng(seed)
    features = (draw.integers(-4, 5, size=(60, 3)) + shift) * scale
    features *= 1 + draw.integers(-2, 3, size=features.shape) * 1e-15
    radius = scale * draw.integers(1, 5)
    assert count_neighbours(features, radius, 16).tolist() == by_pairs(features, radius).tolist()


def test_equal_samples_are_neighbours_at_radius_0():
    assert count_neighbours(np.full((5, 3), 0.1), 0.0).tolist() == [4] * 5
    assert count_neighbours(np.array([[1e100], [1e100], [0.0]]), 0.0).tolist() == [1, 1, 0]


def test_memory_does_not_grow_with_the_pairs():
    """Twice the samples are four times the pairs; the blocks stay what they are."""
    peaks = []
    for size in (4096, 8192):
        features = np.random.default_rng(0).normal(size=(size, 4))
        tracemalloc.start()
        count_neighbours(features, 1.0, block=512)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The pairs of 8192 samples, a byte each, are 67 MB; what grows are the samples.
    assert peaks[1] < 8e6
    assert peaks[1] < 2 * peaks[0]


@pytest.mark.parametrize("prototypes", [10, 100, 1000, 10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("n", [5, 50, 500, 3000])
def test_intervals_cover_the_truth_as_often_as_they_say(prototypes, n):
    trials = 800
    alone, volume = drawn(prototypes, n, trials, seed=prototypes + n)
    samples = np.full(trials, float(n))
    for estimate, low, high in (_from_alone(samples, alone, Z), _from_volume(samples, volume, Z)):
        # Three standard errors of so many trials below 95 %.
        assert ((low <= prototypes) & (prototypes <= high)).mean() > 0.95 - 3 * np.sqrt(0.95 * 0.05 / trials)
        assert ((low <= estimate) & (estimate <= high)).all()


@pytest.mark.parametrize(("prototypes", "n"), [(100, 200), (1000, 1000), (10_000, 5000), (1_000_000, 5000)])
def test_intervals_are_no_wider_than_they_must_be(prototypes, n):
    """Where samples say something, the interval misses about as often as it may."""
    alone, volume = drawn(prototypes, n, 1000, seed=7)
    samples = np.full(1000, float(n))
    for _, low, high in (_from_alone(samples, alone, Z), _from_volume(samples, volume, Z)):
        assert ((low <= prototypes) & (prototypes <= high)).mean() < 0.985


def test_features_of_known_prototypes_give_them_back():
    counts = [3000, 600, 60, 1]
    estimate = estimate_prototypes(*prototype_features(1000, counts), radius=0.5)
    assert estimate.counts.tolist() == counts
    assert (estimate.low[:3] < 1000).all()
    assert (estimate.high[:3] > 1000).all()
    assert estimate.prototypes[:2] == pytest.approx([1000, 1000], rel=0.15)
    assert estimate.growth[:2] == pytest.approx([1000, 1000], rel=0.15)
    assert estimate.pooled_beta == pytest.approx(0.999, abs=2e-4)
    assert estimate.volume[0] == pytest.approx(effective_number(3000, 0.999), rel=0.03)
    assert estimate.effective == pytest.approx(effective_number(counts, 0.999), rel=0.1)


def test_the_definition_of_the_paper_is_the_estimate():
    estimate = estimate_prototypes(*prototype_features(500, [400, 90]), radius=0.5)
    assert estimate.beta == pytest.approx((estimate.alone / estimate.counts) ** (1 / (estimate.counts - 1)), rel=1e-12)


def test_rare_classes_borrow_what_they_do_not_know():
    counts = np.array([2000, 1500, 30, 12, 5, 2, 1, 0])
    features, labels = prototype_features(800, counts, seed=3)
    estimate = estimate_prototypes(features, labels, radius=0.5, num_classes=8)
    assert np.isinf(estimate.prototypes[5])
    assert np.isnan(estimate.prototypes[6:]).all()
    assert (estimate.low[6:], estimate.high[6:]) == (pytest.approx([1, 1]), pytest.approx([np.inf, np.inf]))
    assert estimate.shrunken == pytest.approx(np.full(8, 800), rel=0.15)
    assert estimate.shrunken[6:] == pytest.approx(estimate.pooled)


def test_classes_that_know_keep_what_they_know():
    """Classes of 50 and of 5000 prototypes: large ones are told apart, and the spread of all widens the prior."""
    few = prototype_features(50, [200, 200, 200], seed=1)
    many = prototype_features(5000, [2000, 2000, 2000], seed=2)
    features, labels = np.concatenate([few[0], many[0]]), np.concatenate([few[1], many[1] + 3])
    estimate = estimate_prototypes(features, labels, radius=0.5)
    assert estimate.shrunken == pytest.approx(estimate.prototypes, rel=0.1)
    assert 300 < estimate.pooled < 800


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_shrunken_estimates_are_nearer_to_the_truth(spread):
    """Than each class's own, and than one for all; 100 classes, of which a part says nothing by itself."""
    draw = np.random.default_rng(1)
    truth = np.exp(np.log(300) + spread * draw.normal(size=100)).round().clip(2)
    counts = long_tailed_counts(500, 100, 50)
    labels = np.repeat(np.arange(100), counts)
    features = draw.integers(truth[labels].astype(np.int64))[:, None]
    estimate = estimate_prototypes(features, labels, radius=0.5)
    told = np.isfinite(estimate.prototypes)

    def error(values, where=...):
        return np.sqrt(np.mean(np.log(values / truth)[where] ** 2))

    assert 0 < (~told).sum() < 50
    assert error(estimate.shrunken, told) < 0.75 * error(estimate.prototypes, told)
    assert error(estimate.shrunken) < 0.75 * error(np.full(100, estimate.pooled))
    assert 200 < estimate.pooled < 450


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda counts: max(counts) > 1), st.integers(0, 999))
def test_every_estimate_is_a_number_of_prototypes(counts, seed):
    features, labels = prototype_features(30, counts, seed)
    estimate = estimate_prototypes(features, labels, radius=0.5, num_classes=len(counts))
    assert (estimate.shrunken >= 1).all()
    assert estimate.pooled >= 1
    says = np.array(counts) >= 2
    for values in (estimate.prototypes, estimate.growth):
        assert (values[says] >= 1).all()
    assert (estimate.low <= estimate.high).all()
    assert ((estimate.beta_low >= 0) & (estimate.beta_high <= 1)).all()


def test_all_alone_is_a_lower_bound_and_none_alone_is_one_prototype():
    apart = estimate_prototypes(np.arange(100.0)[:, None], [0] * 100, radius=0.5)
    assert (apart.prototypes[0], apart.high[0], apart.pooled_beta) == (np.inf, np.inf, 1)
    assert 500 < apart.low[0] < 2000
    same = estimate_prototypes(np.zeros((100, 2)), [0] * 100, radius=0.5)
    assert (same.prototypes[0], same.beta[0], same.growth[0], same.low[0]) == (1, 0, pytest.approx(1), 1)
    assert same.high[0] < 40
    assert (same.pooled_beta, same.effective.tolist()) == (0, [1])


def test_with_many_samples_none_is_alone_and_only_the_volume_still_knows():
    estimate = estimate_prototypes(*prototype_features(20, [1000]), radius=0.5)
    assert estimate.prototypes[0] == 1
    assert estimate.growth[0] == pytest.approx(20)
    assert estimate.low[0] <= 20 <= estimate.high[0]


def test_tensors_in_tensors_out():
    features, labels = prototype_features(50, [80, 20])
    plain = estimate_prototypes(features, labels, 0.5)
    given = estimate_prototypes(torch.tensor(features), torch.tensor(labels), 0.5)
    assert torch.equal(given.shrunken, torch.from_numpy(plain.shrunken))
    assert isinstance(given.effective, torch.Tensor)
    half = estimate_prototypes(torch.tensor(features, dtype=torch.bfloat16), labels.tolist(), 0.5)
    assert half.counts.tolist() == [80, 20]


def test_the_order_of_the_samples_does_not_matter():
    features, labels = prototype_features(50, [80, 20])
    order = np.random.default_rng(0).permutation(100)
    mixed = estimate_prototypes(features[order], labels[order], 0.5)
    assert mixed.alone.tolist() == estimate_prototypes(features, labels, 0.5).alone.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: estimate_prototypes([0.0, 1.0], [0, 0], 1), r"features must have shape \(M, D\), got \(2,\)"),
        (lambda: estimate_prototypes([[0.0], [1.0]], [0], 1), r"labels must have shape \(2,\)"),
        (lambda: estimate_prototypes([[0.0], [np.nan]], [0, 0], 1), "features must be finite, but those of sample 1"),
        (lambda: estimate_prototypes([[0.0], [1.0]], [0, 0], -1), "radius must be a finite number >= 0, got -1"),
        (lambda: estimate_prototypes([[0.0], [1.0]], [0, 1], 1), "no class has two samples"),
        (lambda: estimate_prototypes([[0.0], [1.0]], [0, 0], 1, level=1), "level must be between 0 and 1, got 1"),
        (lambda: estimate_prototypes([[0.0], [1.0]], [0, 2], 1, num_classes=2), r"labels must be in \[0, 2\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
