"""The random covering behind the effective number (paper, section 3): simulation and closed form."""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail._checks import check_positive_integer
from longtail.counts import FloatArray, IntArray, like, to_numpy
from longtail.weights import beta_from_prototypes, check_beta, effective_number

__all__ = ["expected_volume", "marginal_contribution", "simulate_covering"]


def simulate_covering(prototypes: int, draws: int, trials: int = 1000, seed: int = 0) -> IntArray:
    r"""Draw samples from N prototypes and record how many distinct ones are covered after each draw.

    A sample is one of N prototypes of volume 1, all equally likely: a new sample lies entirely inside what is
    covered or entirely outside, as the paper assumes. The mean over trials estimates :math:`E_n`. No formula of
    the paper enters the simulation, so it is evidence for Proposition 1 and not a restatement of it.

    Args:
        prototypes: N ≥ 1.
        draws: n, samples drawn in each trial.
        trials: independent repetitions.
        seed: seed of the generator.

    Returns:
        int64 array of shape (trials, draws): covered volume after 1, …, n draws.

    Example:
        >>> volume = simulate_covering(prototypes=10, draws=20, trials=20_000)
        >>> volume.mean(axis=0)[[0, 4, 19]].round(1)
        array([1. , 4.1, 8.8])
        >>> expected_volume([1, 5, 20], prototypes=10).round(1)
        array([1. , 4.1, 8.8])
    """
    for argument, value in (("prototypes", prototypes), ("draws", draws), ("trials", trials)):
        check_positive_integer(argument, value)
    drawn = np.random.default_rng(seed).integers(prototypes, size=(trials, draws))
    # A stable sort puts equal prototypes side by side with the earliest draw first: that one covers new ground.
    order = np.argsort(drawn, axis=1, kind="stable")
    ranked = np.take_along_axis(drawn, order, axis=1)
    first = np.ones_like(ranked)
    first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    new = np.empty_like(first)
    np.put_along_axis(new, order, first, axis=1)
    volume: IntArray = new.cumsum(axis=1)
    return volume


def expected_volume(draws: Any, prototypes: Any) -> Any:
    r"""Closed form of the covering: :math:`E_n` with :math:`\beta = (N-1)/N`.

    Example:
        >>> expected_volume([1, 100, 10_000], prototypes=100).round(2)
        array([  1. ,  63.4, 100. ])
    """
    return effective_number(draws, beta_from_prototypes(prototypes))


def marginal_contribution(j: Any, beta: Any) -> Any:
    r"""What the j-th sample of a class adds to the effective number: :math:`\beta^{j-1}`.

    Args:
        j: position of the sample, 1, 2, …; any shape.
        beta: β in [0, 1], a number or an array that broadcasts against ``j``.

    Example:
        >>> marginal_contribution([1, 2, 3], beta=0.9)
        array([1.  , 0.9 , 0.81])
    """
    positions: FloatArray = to_numpy(j).astype(np.float64)
    if not np.all(positions >= 1):
        raise ValueError(f"j must be at least 1, got {positions[~(positions >= 1)].flat[0]}")
    return like(j, np.power(check_beta(beta), positions - 1)[()])
