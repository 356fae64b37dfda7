r"""How many prototypes a class has, from its samples: the N of β = (N-1)/N, estimated.

In the paper's model a sample is one of N equally likely prototypes, so none of the n-1 others shares its prototype with
probability :math:`\beta^{n-1}`. Samples that augmentation could turn into one another share one: those within a radius.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from longtail._checks import check_non_negative
from longtail._neighbours import count_neighbours
from longtail.counts import FloatArray, class_counts, like, to_numpy
from longtail.weights import effective_number

__all__ = ["PrototypeEstimate", "estimate_prototypes"]

Moments = Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray | float]]
"""From log N to the mean of a statistic, its standard deviation, and half of its steps."""

LARGEST = 64.0
"""Of log N; what is larger cannot be told from infinity."""


@dataclass(frozen=True)
class PrototypeEstimate:
    """Prototypes of each class, by two estimators; all arrays have shape (C,), tensors if the features were one.

    Example:
        >>> estimate = estimate_prototypes(np.array([[0.0], [0.1], [5.0], [9.0]]), [0, 0, 0, 1], radius=1.0)
        >>> estimate.alone, estimate.volume, estimate.growth.round(2)
        (array([1, 1]), array([2., 1.]), array([2.62,  nan]))
    """

    radius: float
    """Within which two samples are the same prototype."""
    level: float
    """Of the intervals."""
    pooled: float
    """N of a typical class: the centre of the prior of log N."""
    counts: Any
    """n: samples."""
    alone: Any
    """Samples with no other of their class within the radius."""
    volume: Any
    """Distinct samples: of each, the share 1/(1 + neighbours), summed. It is the mean, over all orders of the samples,
    of those that have no neighbour before them, the covered volume whose expectation the paper calls E."""
    prototypes: Any
    """N̂ from the samples alone: infinity if all are, 1 if none is, NaN for fewer than two samples."""
    low: Any
    high: Any
    growth: Any
    """N̂ from the volume, the second estimator; infinity and NaN as before."""
    growth_low: Any
    growth_high: Any
    shrunken: Any
    """N̂ of the first estimator, drawn towards the pooled one by how little the class says."""

    @property
    def beta(self) -> Any:
        """β̂ of each class, from ``prototypes``."""
        return 1 - 1 / self.prototypes

    @property
    def beta_low(self) -> Any:
        """Lower end of the interval of β."""
        return 1 - 1 / self.low

    @property
    def beta_high(self) -> Any:
        """Upper end of the interval of β."""
        return 1 - 1 / self.high

    @property
    def shrunken_beta(self) -> Any:
        """β of each class to train with, from ``shrunken``."""
        return 1 - 1 / self.shrunken

    @property
    def pooled_beta(self) -> float:
        """One β for all classes."""
        return 1 - 1 / self.pooled

    @property
    def effective(self) -> Any:
        """Ê: the effective number of the samples of each class, at its ``shrunken_beta``."""
        return effective_number(self.counts, to_numpy(self.shrunken_beta))


def estimate_prototypes(
    features: Any, labels: Any, radius: float, num_classes: int | None = None, level: float = 0.95
) -> PrototypeEstimate:
    r"""Estimate how many prototypes each class has.

    Two samples of a class are the same prototype if they are within ``radius``. With k of its n samples alone,

    .. math:: \hat\beta = (k/n)^{1/(n-1)}, \qquad \hat N = 1/(1-\hat\beta),

    and the interval holds every N for which k is within z standard deviations of its mean :math:`n\beta^{n-1}`. That is
    Wilson's, with the variance of occupancy instead of the binomial one, because samples stop being alone in pairs, and
    with a correction for continuity. The second estimator solves :math:`E_n = V` for the volume that the samples cover,
    :math:`V = \sum_j 1/(1+d_j)` with the neighbours :math:`d_j` of each: the covered volume after all samples, averaged
    over their orders. In the model, V is the number of prototypes seen, and says all that the samples say about N.

    A class with few samples says little. The ``shrunken`` estimates have a normal prior on log N that is fitted to all
    classes, by EM with Laplace's approximation; the likelihood is the binomial one of k, over its overdispersion.

    Where it fails: with n far below √N all samples are alone, and there is only a lower bound; with n far above N log N
    none is, the first estimator says 1, and only ``growth`` still knows. Where some prototypes are likelier than
    others, both grow with n, the first one beyond the truth. And both follow from the radius.

    Distances are exact and in blocks: memory does not grow with the number of pairs.

    Args:
        features: of each sample, shape (M, D): NumPy, or a tensor.
        labels: class of each sample, shape (M,).
        radius: r ≥ 0, in the space of the features: how far augmentation moves a sample.
        num_classes: C; the largest label + 1 without it.
        level: of the intervals.

    Returns:
        Arrays of shape (C,); tensors on the features' device if these are a tensor.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1], [1000, 50])
        >>> features = draw.integers(300, size=1050)[:, None]  # one of 300 prototypes each
        >>> estimate = estimate_prototypes(features, labels, radius=0.5)
        >>> estimate.prototypes.round(), estimate.low.round(), estimate.high.round()
        (array([304., 282.]), array([279., 121.]), array([331., 883.]))
        >>> estimate.shrunken.round(), round(estimate.pooled_beta, 4)
        (array([303., 303.]), 0.9967)

    Reference:
        Cui et al., *Class-Balanced Loss Based on Effective Number of Samples*, CVPR 2019, section 3; Good, *The
        Population Frequencies of Species and the Estimation of Population Parameters*, Biometrika 1953; Wilson,
        *Probable Inference, the Law of Succession, and Statistical Inference*, JASA 1927.
    """
    points, classes = _check_features(features, labels)
    _check_level(level)
    check_non_negative("radius", radius)
    counts = to_numpy(class_counts(classes, num_classes))
    if counts.max() < 2:
        raise ValueError("no class has two samples: nothing is said about their overlap")
    alone, volume = np.zeros(len(counts), dtype=np.int64), np.zeros(len(counts))
    order = np.argsort(classes, kind="stable")
    for label, members in enumerate(np.split(order, counts.cumsum()[:-1])):
        neighbours = count_neighbours(points[members], radius)
        alone[label] = np.count_nonzero(neighbours == 0)
        volume[label] = (1 / (1 + neighbours)).sum()
    n = counts.astype(np.float64)
    z = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)).item()
    first, second = _from_alone(n, alone.astype(np.float64), z), _from_volume(n, volume, z)
    shrunken, pooled = _shrunken(n, alone.astype(np.float64), first[0])
    arrays = (like(features, values) for values in (counts, alone, volume, *first, *second, shrunken))
    return PrototypeEstimate(float(radius), level, pooled, *arrays)


def _check_features(features: Any, labels: Any) -> tuple[FloatArray, Any]:
    points, classes = to_numpy(features).astype(np.float64), to_numpy(labels)
    if points.ndim != 2:
        raise ValueError(f"features must have shape (M, D), got {points.shape}")
    if classes.shape != (len(points),):
        raise ValueError(f"labels must have shape ({len(points)},), one for each sample, got {classes.shape}")
    wrong = ~np.isfinite(points).all(axis=1)
    if wrong.any():
        raise ValueError(f"features must be finite, but those of sample {int(np.argmax(wrong))} are not")
    return points, classes


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")


def _from_alone(n: FloatArray, alone: FloatArray, z: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """N̂ of the samples alone, and its interval."""
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = -1 / np.expm1(np.log(alone / n) / (n - 1))
    estimate = np.where(alone == n, np.inf, estimate)
    return _with_interval(estimate, n, alone, lambda x: _alone_moments(n, x), z)


def _from_volume(n: FloatArray, volume: FloatArray, z: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """N̂ of the volume, and its interval."""
    mean = _solve(lambda x: volume - _volume_moments(n, x)[0], n.shape)
    estimate = np.where(volume >= n, np.inf, np.exp(mean))
    return _with_interval(estimate, n, volume, lambda x: _volume_moments(n, x), z)


def _with_interval(
    estimate: FloatArray, n: FloatArray, observed: FloatArray, moments: Moments, z: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Every N from which what was observed is at most z standard deviations away."""

    def beyond(sign: float, x: FloatArray) -> FloatArray:
        mean, deviation, half_step = moments(x)
        return observed - mean - sign * (half_step + z * deviation)

    low = np.exp(_solve(lambda x: beyond(1, x), n.shape))
    high = np.exp(_solve(lambda x: beyond(-1, x), n.shape))
    high = np.where(high >= np.exp(LARGEST) / 2, np.inf, high)
    says = n >= 2
    return np.where(says, estimate, np.nan), np.where(says, low, 1.0), np.where(says, high, np.inf)


def _solve(decreasing: Callable[[FloatArray], FloatArray], shape: tuple[int, ...]) -> FloatArray:
    """Where a decreasing function of log N is 0, by bisection; the first or last value if it is so nowhere."""
    low, high = np.zeros(shape), np.full(shape, LARGEST)
    for _ in range(60):
        middle = (low + high) / 2
        above = decreasing(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(low == 0, 0.0, (low + high) / 2)


def _alone_moments(n: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean and standard deviation of the samples alone; half a step: of one sample, or of a pair if N is large."""
    share, rest = _shares(n, x)
    spread = _overdispersion(n, x)
    return n * share, np.sqrt(n * share * rest * spread), np.maximum(spread, 1) / 2


def _shares(n: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """β^(n-1) at N = exp(x), and what is left of 1, with the digits that a subtraction would lose."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_share = np.where(n > 1, (n - 1) * np.log1p(-np.exp(-x)), 0.0)
    return np.exp(log_share), -np.expm1(log_share)


def _overdispersion(n: FloatArray, x: FloatArray) -> FloatArray:
    r"""Variance of the samples alone over the binomial one: 2 if N is large, where they are lost in pairs.

    Two samples are both alone with probability :math:`\frac{N-1}{N} (\frac{N-2}{N})^{n-2}`. Over that of independent
    ones this is :math:`(1 - (N-1)^{-2})^{n-2} / \beta`, in which no digits cancel.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share, rest = _shares(n, x)
        both = np.where(n > 2, (n - 2) * np.log1p(-np.minimum(np.expm1(x) ** -2.0, 1)), 0) - np.log1p(-np.exp(-x))
        spread = 1 + (n - 1) * share * np.expm1(both) / rest
    return np.where(np.isfinite(spread), np.maximum(spread, 0.05), 1.0)


def _volume_moments(n: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Mean and standard deviation of the prototypes seen; half a step."""
    prototypes = np.exp(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_unseen = n * np.log1p(-1 / prototypes)
        unseen, seen = np.exp(log_unseen), -np.expm1(log_unseen)
        both = np.expm1(n * np.log1p(-np.minimum(np.expm1(x) ** -2.0, 1)))
        variance = prototypes * unseen * seen + prototypes * (prototypes - 1) * unseen**2 * both
    variance = np.where(np.isfinite(variance), np.maximum(variance, 0), 0)
    return prototypes * seen, np.sqrt(variance), 0.5


def _shrunken(n: FloatArray, alone: FloatArray, estimate: FloatArray) -> tuple[FloatArray, float]:
    """N of each class under a normal prior on log N that is fitted to all classes, and the centre of that prior."""
    says = n >= 2
    if (alone[says] == n[says]).all() or not alone[says].any():
        same = np.inf if alone[says].any() else 1.0
        return np.full(n.shape, same), same
    within = says & (alone > 0) & (alone < n)
    start = np.log(np.clip(np.nan_to_num(estimate, nan=1.0), 1.01, np.exp(LARGEST)))
    centre, variance = float(np.median(start[within if within.any() else says])), 1.0
    mode, spread = np.where(within, start, centre), _overdispersion(n, start)
    for _ in range(1000):
        slope, information = _slope(n, alone, spread, mode)
        # One step towards the most probable log N of each class, then the prior that fits them and their uncertainty.
        step = (slope - (mode - centre) / variance) / (information + 1 / variance)
        mode = np.maximum(mode + np.clip(step, -0.5, 0.5), 1e-6)
        before = centre, variance
        centre = float(mode[says].mean())
        variance = float(((mode - centre) ** 2 + 1 / (information + 1 / variance))[says].mean())
        if np.abs(step).max() + abs(centre - before[0]) + abs(variance - before[1]) < 1e-6:
            break
    return np.where(says, np.exp(mode), np.exp(centre)), float(np.exp(centre))


def _slope(n: FloatArray, alone: FloatArray, spread: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Derivative of the log-likelihood at log N = x, and what the samples say there: their Fisher information."""
    share, rest = _shares(n, x)
    rest = np.maximum(rest, np.finfo(float).tiny)
    rate = (n - 1) / np.expm1(x)
    return rate * (n - (n - alone) / rest) / spread, rate**2 * n * share / rest / spread
