import numpy as np
import pytest

from longtail import effective_number
from longtail.theory import expected_volume, marginal_contribution, simulate_covering


@pytest.mark.parametrize(("prototypes", "draws"), [(1, 10), (2, 20), (10, 50), (100, 300), (10_000, 200)])
def test_proposition_1(prototypes, draws):
    """The simulated mean is within five standard errors of the closed form after every draw.

    One trial more or less is added to the error: where hardly any trial differs, the spread says nothing.
    """
    volume = simulate_covering(prototypes, draws, trials=4000, seed=1)
    tolerance = 5 * (volume.std(axis=0) / np.sqrt(len(volume)) + 1 / len(volume))
    off = np.abs(volume.mean(axis=0) - expected_volume(np.arange(1, draws + 1), prototypes))
    assert (off < tolerance).all()


def test_one_prototype_is_one_sample_however_many_are_drawn():
    assert (simulate_covering(1, 100, trials=10) == 1).all()


def test_with_prototypes_without_end_every_sample_is_new():
    assert (simulate_covering(10**15, 100, trials=50) == np.arange(1, 101)).all()


def test_volume_grows_by_nothing_or_one_and_counts_distinct_draws():
    volume = simulate_covering(20, 200, trials=30, seed=3)
    drawn = np.random.default_rng(3).integers(20, size=(30, 200))
    assert set(np.unique(np.diff(volume, axis=1))) == {0, 1}
    assert volume[:, -1].tolist() == [len(set(row)) for row in drawn.tolist()]


def test_a_seed_repeats_a_simulation():
    assert np.array_equal(simulate_covering(9, 9, 9, seed=5), simulate_covering(9, 9, 9, seed=5))
    assert not np.array_equal(simulate_covering(9, 9, 9, seed=5), simulate_covering(9, 9, 9, seed=6))


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.999, 1.0])
def test_contributions_add_up_to_the_effective_number(beta):
    total = marginal_contribution(np.arange(1, 501), beta).sum()
    assert total == pytest.approx(effective_number(500, beta), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate_covering(0, 1), "prototypes must be at least 1, got 0"),
        (lambda: simulate_covering(1, 0), "draws must be at least 1, got 0"),
        (lambda: simulate_covering(1, 1, 0), "trials must be at least 1, got 0"),
        (lambda: marginal_contribution(0, 0.9), "j must be at least 1, got 0"),
        (lambda: marginal_contribution(1, 2), r"beta must be in \[0, 1\], got 2"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
