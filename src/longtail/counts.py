"""Labels → samples per class, and the long-tailed profiles of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader

from longtail._checks import check_choice, check_non_negative, check_positive_integer

__all__ = ["class_counts", "imbalance_factor", "long_tailed_counts"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MOST_CLASSES = 10**9
"""A list of more counts would not fit in memory."""


@overload
def class_counts(labels: Tensor, num_classes: int | None = None) -> Tensor: ...
@overload
def class_counts(labels: Any, num_classes: int | None = None) -> Any: ...
def class_counts(labels: Any, num_classes: int | None = None) -> Any:
    r"""Count the samples of each class.

    .. math:: n_i = \#\{k : y_k = i\}, \qquad i = 0, \dots, C-1

    For a multi-hot matrix, :math:`n_i` is the number of samples that carry class :math:`i`. Count the
    whole training set, not a batch.

    Args:
        labels: class indices of shape (N,), or a multi-hot matrix of shape (N, C): a list, a NumPy array, a
            tensor, a pandas Series or DataFrame; or a data set with ``.targets`` or ``.labels``, or a
            ``Subset``, ``ConcatDataset`` or ``TensorDataset`` over such.
        num_classes: C. Without it the largest label + 1, or the number of columns. Give it whenever the last
            classes could be missing from ``labels``.

    Returns:
        int64 counts of shape (C,): a tensor on the labels' device if the labels are a tensor, else a NumPy array.

    Example:
        >>> class_counts([0, 0, 0, 2, 1, 0])
        array([4, 1, 1])
        >>> class_counts(torch.tensor([[1, 0, 1], [1, 0, 0]]))
        tensor([2, 0, 1])
    """
    if num_classes is not None:
        check_positive_integer("num_classes", num_classes, MOST_CLASSES)
    found = find_labels(labels)
    values = check_labels(found)
    if values.ndim == 2:
        counts = _count_multi_hot(values, num_classes)
    elif values.ndim == 1:
        counts = _count_indices(values, num_classes)
    else:
        raise ValueError(
            f"labels must have shape (N,) or, multi-hot, (N, C), got {values.shape}; flatten maps of labels first"
        )
    return like(found, counts)


def check_labels(labels: Any) -> npt.NDArray[Any]:
    """Return labels as a NumPy array of numbers, or say how to make them one."""
    check_not_masked("labels", labels)
    try:
        values = to_numpy(labels)
    except ValueError:
        raise ValueError("labels must be class indices (N,) or a multi-hot matrix (N, C), got ragged lists") from None
    if values.ndim == 0:
        raise TypeError(f"labels must be a sequence, got {type(labels).__name__}: pass list(labels)")
    if values.dtype.kind not in "biuf":
        raise TypeError(
            f"labels must be integers, got dtype {values.dtype}; number them with "
            "classes, labels = numpy.unique(labels, return_inverse=True)"
        )
    return values


def _count_indices(values: npt.NDArray[Any], num_classes: int | None) -> IntArray:
    if num_classes is None and not values.size:
        raise ValueError("labels are empty: pass num_classes")
    indices = class_indices(values)
    classes = int(indices.max()) + 1 if num_classes is None else num_classes
    check_labels_in_range("labels", indices, classes)
    return np.bincount(indices, minlength=classes).astype(np.int64)


def class_indices(labels: npt.NDArray[Any]) -> IntArray:
    """Class indices of any dtype as int64."""
    wrong = ~((labels == np.floor(labels)) & (np.abs(labels) < 2**53))  # NaN and infinity included
    if wrong.any():
        raise ValueError(f"labels must be whole numbers, got {labels[wrong][0]}")
    return labels.astype(np.int64)


def _count_multi_hot(values: npt.NDArray[Any], num_classes: int | None) -> IntArray:
    if num_classes is not None and values.shape[1] != num_classes:
        raise ValueError(f"labels have {values.shape[1]} columns but num_classes is {num_classes}")
    if values.shape[1] == 1:
        raise ValueError(f"labels of shape {values.shape} are one column: pass labels[:, 0] for class indices")
    strange = (values != 0) & (values != 1)
    if strange.any():
        raise ValueError(
            f"multi-hot labels of shape {values.shape} must be 0 or 1, got {values[strange][0]}; "
            "class indices must have shape (N,)"
        )
    counts: IntArray = np.count_nonzero(values, axis=0)
    return counts


def check_labels_in_range(argument: str, indices: IntArray, num_classes: int) -> None:
    """Refuse class indices outside [0, num_classes), naming the first one and where it is."""
    outside = (indices < 0) | (indices >= num_classes)
    if outside.any():
        where = np.argwhere(outside)[0].tolist()
        index = where[0] if len(where) == 1 else tuple(where)
        label = int(indices[outside][0])
        hint = "; classes start at 0" if label == num_classes else ""
        if argument == "target" and label < 0:
            hint = f"; to skip it pass ignore_index={label}"
        raise ValueError(
            f"{argument} must be in [0, {num_classes}) for {num_classes} classes, got {label} at index {index}{hint}"
        )


def imbalance_factor(counts: Any) -> float:
    r"""Samples of the largest class over samples of the smallest: :math:`\max_i n_i / \min_i n_i`.

    Args:
        counts: samples per class, shape (C,).

    Example:
        >>> imbalance_factor([5000, 500, 50])
        100.0
    """
    values = check_counts(counts)
    check_no_class_is_absent(values)
    return float(values.max() / values.min())


def long_tailed_counts(max_count: int, num_classes: int, imbalance: float, profile: str = "exponential") -> IntArray:
    r"""Samples per class of the paper's long-tailed data sets.

    .. math:: n_i = \lfloor n_{\max} \cdot \rho^{-i/(C-1)} \rfloor \quad\text{(exponential)}, \qquad
        n_i = n_{\max} \text{ for } i < \lfloor C/2 \rfloor, \text{ else } \lfloor n_{\max} / \rho \rfloor
        \quad\text{(step)}

    Args:
        max_count: samples of the largest class, :math:`n_{\max}`.
        num_classes: C.
        imbalance: largest over smallest class, :math:`\rho \ge 1`; 1 gives a balanced set.
        profile: ``"exponential"`` (the paper) or ``"step"``.

    Returns:
        int64 counts of shape (C,), largest first.

    Example:
        >>> long_tailed_counts(5000, 10, 100)
        array([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
        >>> long_tailed_counts(5000, 4, 10, profile="step")
        array([5000, 5000,  500,  500])
    """
    check_choice("profile", profile, ("exponential", "step"))
    check_positive_integer("max_count", max_count)
    check_positive_integer("num_classes", num_classes, MOST_CLASSES)
    if isinstance(imbalance, Real) and not 1 <= imbalance < math.inf:
        raise ValueError(f"imbalance must be a finite number >= 1, got {imbalance}")
    check_non_negative("imbalance", imbalance)
    ranks = np.arange(num_classes)
    if profile == "exponential":
        depth = ranks / max(num_classes - 1, 1)
    else:
        depth = (ranks >= num_classes // 2).astype(np.float64) if num_classes > 1 else np.zeros(1)
    # Division keeps the last class exact, and Python's power, unlike NumPy's, does not depend on SIMD. What it rounds
    # to just below a whole number is that number: 32 images at imbalance 32 in six classes are 32, 16, 8, 4, 2, 1.
    exact = [max_count / float(imbalance) ** float(d) for d in depth]
    counts = np.array([min(int(count * (1 + 1e-14)), max_count) for count in exact], dtype=np.int64)
    if counts.min() < 1:
        raise ValueError(
            f"imbalance {imbalance} leaves class {int(np.argmin(counts))} without samples at max_count {max_count}"
        )
    return counts


def check_counts(counts: Any) -> FloatArray:
    """Return counts as a float64 array of shape (C,), or refuse them naming the class that is wrong."""
    check_not_masked("counts", counts)
    if isinstance(counts, Mapping):
        counts = _in_order_of_classes(counts)
    try:
        values = to_numpy(counts)
    except ValueError:
        values = np.zeros((), dtype=object)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"counts must be one number per class, each below 2**64, got {counts!r:.60}")
    values = values.astype(np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"counts must have shape (C,), got {values.shape}")
    if hasattr(counts, "to_numpy") and hasattr(counts, "index"):
        _check_order_of_classes(counts.index)
    wrong = ~np.isfinite(values) | (values < 0)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise ValueError(f"counts must be finite and >= 0, got {values[index]} for class {index}")
    share = (values > 0) & (values < 1)
    if share.any():
        index = int(np.argmax(share))
        raise ValueError(f"counts must be numbers of samples, not shares, got {values[index]} for class {index}")
    return values


def _in_order_of_classes(counts: Mapping[Any, Any]) -> list[Any]:
    """Counts by class index, such as those of a ``collections.Counter``, as a list; a class without a key has none."""
    for label in counts:
        if not isinstance(label, Integral) or not 0 <= int(label) < MOST_CLASSES:
            raise ValueError(
                f"counts must have class indices as keys, got {label!r}: pass [counts[name] for name in classes], "
                "in the order of the network's outputs"
            )
    return [counts.get(label, 0) for label in range(max(map(int, counts), default=-1) + 1)]


def check_not_masked(argument: str, values: Any) -> None:
    """Refuse masked arrays with masked elements: as plain numbers they would count."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"{argument} has masked elements: pass {argument}.compressed() to drop them, or {argument}.filled(…)"
        )


def _check_order_of_classes(index: Any) -> None:
    """Refuse counts of pandas that are ordered by size, as those of value_counts() are, or that lack a class."""
    names = index.tolist()
    if names and all(isinstance(name, tuple) and len(name) == 1 for name in names):  # of a table with one column
        names = [name for (name,) in names]
    numbered = all(isinstance(name, Real) and not isinstance(name, bool) for name in names)
    if names == list(range(len(names))) if numbered else index.is_monotonic_increasing:
        return
    shown = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
    remedy = "reindex(range(C), fill_value=0)" if numbered and names == sorted(names) else "sort_index()"
    raise ValueError(
        f"counts have the index {shown}, which is not that of classes in order: pass counts.{remedy}, or "
        "counts.to_numpy() if they are, with a count for each class"
    )


def check_no_class_is_absent(counts: FloatArray, remedy: str = "") -> None:
    """Refuse counts with a zero, naming the classes."""
    absent = np.flatnonzero(counts == 0)
    if absent.size:
        names = ", ".join(map(str, absent[:5])) + (", …" if absent.size > 5 else "")
        noun = "class" if absent.size == 1 else "classes"
        cause = "labels must start at 0" if absent.tolist() == [0] else "count the whole training set"
        raise ValueError(f"counts are 0 for {noun} {names}: {cause}{remedy}")


def find_labels(source: Any) -> Any:
    """Follow a data set to its labels; anything that already is labels comes back as it is."""
    if isinstance(source, (Tensor, np.ndarray, list, tuple)) or hasattr(source, "to_numpy"):
        return source
    if isinstance(source, DataLoader):
        raise TypeError("labels are of a data set, not of a DataLoader: pass loader.dataset")
    for attribute in ("targets", "labels"):
        if getattr(source, attribute, None) is not None:
            return getattr(source, attribute)
    if hasattr(source, "dataset") and hasattr(source, "indices"):
        labels = find_labels(source.dataset)
        indices = np.asarray(source.indices, dtype=np.int64)
        return labels[torch.from_numpy(indices)] if isinstance(labels, Tensor) else to_numpy(labels)[indices]
    if isinstance(source, ConcatDataset):
        return np.concatenate([to_numpy(find_labels(part)) for part in source.datasets])
    if hasattr(source, "tensors"):
        return source.tensors[-1]
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, (str, range)):
        raise TypeError(
            f"{type(source).__name__} has neither .targets nor .labels: pass the labels themselves, "
            "such as [label for _, label in dataset]"
        )
    return source


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return values as a NumPy array: tensors of any device and dtype, pandas objects, sequences."""
    if isinstance(values, Tensor):
        if values.is_meta:
            raise TypeError("a tensor on the meta device has no values: pass a list or an array")
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    array = np.asarray(values)
    if array.dtype == object and hasattr(values, "dtypes"):  # of pandas: nullable, or columns of several dtypes
        kinds = {dtype.kind for dtype in np.atleast_1d(np.asarray(values.dtypes, dtype=object))}
        if kinds <= set("biuf"):
            array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return array


def to_tensor(values: Any) -> Tensor:
    """Return values as a tensor: a tensor as it is, all else copied, from arrays of any order."""
    if isinstance(values, Tensor):
        return values
    array = to_numpy(values)
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def like(source: Any, values: npt.NDArray[Any]) -> Any:
    """Tensor in, tensor out, on its device; NumPy for all else."""
    return torch.as_tensor(values, device=source.device) if isinstance(source, Tensor) else values
