"""Samples per class → effective numbers → class weights. Weights are normalised here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from longtail._checks import check_choice
from longtail.counts import (
    FloatArray,
    check_counts,
    check_labels,
    check_labels_in_range,
    check_no_class_is_absent,
    check_not_masked,
    class_indices,
    find_labels,
    like,
    to_numpy,
)

__all__ = [
    "beta_from_prototypes",
    "class_weight_dict",
    "class_weights",
    "effective_number",
    "sample_weights",
]

DEFAULT_BETA = 0.999
SCHEMES = ("effective", "inverse", "inverse_sqrt", "uniform")
NORMALIZATIONS = ("classes", "samples")


def effective_number(counts: Any, beta: Any) -> Any:
    r"""Effective number of samples, the expected volume that n samples cover (Proposition 1).

    .. math:: E_n = \frac{1-\beta^n}{1-\beta} = \sum_{j=1}^{n} \beta^{j-1}, \qquad
        E_n = n \text{ for } \beta = 1, \qquad E_0 = 0

    Computed in float64 with a relative error below 1e-12 for every β in [0, 1].

    Args:
        counts: samples per class, n ≥ 0, any shape.
        beta: β in [0, 1], one for all classes or an array that broadcasts against ``counts``.

    Returns:
        float64, the shape of ``counts``: a tensor on its device if ``counts`` is one, else NumPy.

    Example:
        >>> effective_number([5000, 500, 50], beta=0.999).round(1)
        array([993.3, 393.6,  48.8])
        >>> effective_number([5000, 500, 50], beta=1)
        array([5000.,  500.,   50.])

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, section 3.
    """
    check_not_masked("counts", counts)
    n = (check_counts(counts) if isinstance(counts, Mapping) else to_numpy(counts)).astype(np.float64)
    if not np.all(np.isfinite(n) & (n >= 0)):
        raise ValueError(f"counts must be finite and >= 0, got {n[~(np.isfinite(n) & (n >= 0))].flat[0]}")
    b = check_beta(beta)
    try:
        n, b = np.broadcast_arrays(n, b)
    except ValueError:
        raise ValueError(f"beta has shape {b.shape} but counts have shape {n.shape}") from None
    # expm1 keeps the digits that 1 - βⁿ loses when n(1 - β) is small.
    with np.errstate(divide="ignore", invalid="ignore"):
        volume = -np.expm1(n * np.log(b)) / (1 - b)
    volume = np.where(b == 1, n, volume)
    return like(counts, np.where(n == 0, 0.0, volume)[()])


def beta_from_prototypes(prototypes: Any) -> Any:
    r"""β of a class that has N unique prototypes: :math:`\beta = (N-1)/N`.

    Args:
        prototypes: N ≥ 1, a number or one per class; infinity gives β = 1.

    Returns:
        float64 β in [0, 1], NumPy in, NumPy out; tensor in, tensor out.

    Example:
        >>> float(beta_from_prototypes(1000))
        0.999
    """
    n = to_numpy(prototypes).astype(np.float64)
    if not np.all(n >= 1):
        raise ValueError(f"prototypes must be at least 1, got {n[~(n >= 1)].flat[0]}")
    finite = np.isfinite(n)
    safe = np.where(finite, n, 1.0)
    return like(prototypes, np.where(finite, (safe - 1) / safe, 1.0)[()])


def class_weights(
    counts: Any,
    scheme: str = "effective",
    beta: Any = DEFAULT_BETA,
    normalize: str = "classes",
    absent: str = "error",
) -> Any:
    r"""Weight of each class in the loss.

    .. math:: \alpha_i \propto 1/E_{n_i} \;(\text{effective}), \quad 1/n_i \;(\text{inverse}), \quad
        1/\sqrt{n_i} \;(\text{inverse\_sqrt}), \quad 1 \;(\text{uniform})

    scaled so that :math:`\sum_i \alpha_i = C` (``normalize="classes"``, the paper) or
    :math:`\sum_i n_i \alpha_i = \sum_i n_i` (``normalize="samples"``). Under the paper's scaling the average
    *sample* of a long-tailed set weighs far less than 1, so the loss and the effective learning rate shrink;
    under the second one it weighs 1.

    Args:
        counts: samples per class in the training set, shape (C,), or by class index, such as a
            ``collections.Counter`` of the labels.
        scheme: ``"effective"``, ``"inverse"``, ``"inverse_sqrt"`` or ``"uniform"``.
        beta: β in [0, 1] of the scheme ``"effective"`` (the others have none), one for all or one per class.
            0 gives no re-weighting, 1 inverse frequency.
        normalize: ``"classes"`` or ``"samples"``.
        absent: what a count of 0 means: ``"error"``, or ``"ignore"``: weight 0, and the normaliser counts only
            the classes that are present.

    Returns:
        float64 weights of shape (C,): a tensor on the counts' device if ``counts`` is one, else NumPy.

    Example:
        >>> class_weights([5000, 500, 50], beta=0.999).round(4)
        array([0.1256, 0.317 , 2.5574])
        >>> class_weights([5000, 500, 50], "inverse").round(4)
        array([0.027 , 0.2703, 2.7027])

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, section 4.
    """
    check_choice("scheme", scheme, SCHEMES, "; β is beta=…" if isinstance(scheme, float) else "")
    check_choice("normalize", normalize, NORMALIZATIONS)
    check_choice("absent", absent, ("error", "ignore"))
    n = check_counts(counts)
    if absent == "error":
        check_no_class_is_absent(n, ', or pass absent="ignore" where there truly is no sample')
    present = n > 0
    if not present.any():
        raise ValueError("counts are 0 for every class")
    raw = np.zeros_like(n)
    raw[present] = 1 / _volume(n, scheme, beta)[present]
    scale = present.sum() / raw.sum() if normalize == "classes" else n.sum() / (n * raw).sum()
    return like(counts, raw * scale)


def _volume(counts: FloatArray, scheme: str, beta: Any) -> FloatArray:
    """What each scheme takes a class of n samples to be worth."""
    if scheme == "effective":
        b = check_beta(beta)
        if b.ndim and b.shape != counts.shape:
            raise ValueError(f"beta has shape {b.shape} but counts have shape {counts.shape}")
        volume: FloatArray = effective_number(counts, b)
        return volume
    if scheme == "inverse":
        return counts
    return np.sqrt(counts) if scheme == "inverse_sqrt" else np.ones_like(counts)


def check_beta(beta: Any) -> FloatArray:
    """Return β as float64, or refuse what is outside [0, 1]."""
    check_not_masked("beta", beta)
    b = to_numpy(beta)
    if b.dtype.kind not in "biuf":
        raise TypeError(f"beta must be a number or one per class, got {beta!r:.60}")
    b = b.astype(np.float64)
    outside = ~((b >= 0) & (b <= 1))
    if outside.any():
        raise ValueError(f"beta must be in [0, 1], got {b[outside].flat[0]}")
    return b


def class_weight_dict(class_weight: Any, classes: Sequence[Any] | None = None) -> dict[Any, float]:
    """Weights as the ``class_weight`` dictionary of scikit-learn and Keras.

    Args:
        class_weight: weights of shape (C,), such as :func:`class_weights` returns.
        classes: names of the classes, in the order of the weights; 0 … C-1 without them.

    Example:
        >>> class_weight_dict(class_weights([30, 10], "inverse"))
        {0: 0.5, 1: 1.5}
        >>> class_weight_dict(class_weights([30, 10], "inverse"), classes=["cat", "lynx"])
        {'cat': 0.5, 'lynx': 1.5}
    """
    check_not_masked("class_weight", class_weight)
    weights = to_numpy(class_weight).tolist()
    if classes is None:
        classes = range(len(weights))
    names = classes.tolist() if hasattr(classes, "tolist") else list(classes)
    if len(names) != len(weights):
        raise ValueError(f"classes has {len(names)} names but class_weight has {len(weights)} weights")
    found = dict(zip(names, weights, strict=True))
    if len(found) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise ValueError(f"classes has the name {twice!r} twice")
    return found


def sample_weights(labels: Any, class_weight: Any) -> npt.NDArray[np.float64]:
    """Weight of each sample, for the ``sample_weight`` of scikit-learn and LightGBM and the ``weight`` of XGBoost.

    A sample weighs what its class weighs. With multi-hot labels it weighs the mean of its classes' weights, and 1
    if it has none: the rule of the losses.

    Args:
        labels: class indices (N,) or a multi-hot matrix (N, C), as in :func:`class_counts`.
        class_weight: weights of shape (C,).

    Returns:
        float64 array of shape (N,).

    Example:
        >>> sample_weights([0, 0, 1, 0], class_weight=[0.5, 1.5])
        array([0.5, 0.5, 1.5, 0.5])
    """
    values = check_labels(find_labels(labels))
    check_not_masked("class_weight", class_weight)
    weights = to_numpy(class_weight).astype(np.float64)
    if weights.ndim != 1:
        raise ValueError(f"class_weight must have shape (C,), got {weights.shape}")
    if values.ndim == 1:
        indices = class_indices(values)
        check_labels_in_range("labels", indices, weights.size)
        picked: npt.NDArray[np.float64] = weights[indices]
        return picked
    if values.ndim != 2 or values.shape[1] != weights.size:
        raise ValueError(f"labels of shape {values.shape} do not fit class_weight of shape {weights.shape}")
    mass = values.sum(axis=1)
    return np.where(mass > 0, values @ weights / np.where(mass > 0, mass, 1), 1.0)
