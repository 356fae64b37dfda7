"""What losses take from the samples per class: log-priors and margins."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor

from longtail.counts import check_counts, check_no_class_is_absent
from longtail.functional._apply import is_traced
from longtail.functional._blocked import compute_dtype

__all__ = ["adjustment", "counts_beside", "log_prior", "margins", "present_counts"]


def counts_beside(logits: Tensor, counts: Any) -> Tensor:
    """Counts as a tensor on the logits' device, in the dtype of the computation; what does not fit is refused.

    As with labels, values of tensors are checked only where that costs no sync.
    """
    classes = logits.shape[1] if logits.dim() > 1 else logits.shape[0]
    traced = is_traced(logits, counts if isinstance(counts, Tensor) else None)
    if not isinstance(counts, Tensor):
        values = counts if traced else present_counts(counts)
        counts = torch.as_tensor(values, dtype=compute_dtype(logits.dtype), device=logits.device)
    elif counts.device != logits.device:
        raise ValueError(f"counts are on {counts.device}, but logits are on {logits.device}: move the loss with .to()")
    elif counts.is_cpu and not traced and counts.numel():
        low, high = counts.aminmax()
        if not (low.item() >= 1 and high.item() < math.inf):
            present_counts(counts)
    if counts.shape != (classes,):
        raise ValueError(
            f"counts have shape {tuple(counts.shape)}, but logits of shape {tuple(logits.shape)} have {classes} "
            f"classes; if the last classes are missing from the labels, count with num_classes={classes}"
        )
    beside: Tensor = counts.to(compute_dtype(logits.dtype))
    return beside


def present_counts(counts: Any) -> Any:
    """Counts as float64, if there is a sample of every class."""
    values = check_counts(counts)
    check_no_class_is_absent(values)
    return values


# Checking the counts and taking logarithms of them takes longer than the loss of a small batch: done once for each
# tensor of counts, as the buffer of a module is, and again if its values change.
_ADJUSTMENTS: dict[int, tuple[weakref.ref[Tensor], Any, Tensor, bool]] = {}
# exp(-87) is about the smallest float, and a sum of exponentials that has a term this large loses no digits.
LARGEST_SPREAD = 60.0


def adjustment(logits: Tensor, counts: Any, tau: float) -> tuple[Tensor, bool]:
    """What logits are shifted by, τ log π, and whether none of these is far below 0."""
    if not isinstance(counts, Tensor) or is_traced(logits, counts) or counts.requires_grad or counts.is_inference():
        return tau * log_prior(counts_beside(logits, counts)), False
    key = (counts._version, counts.data_ptr(), logits.shape[1:2], logits.device, logits.dtype, tau)
    index = id(counts)
    cached = _ADJUSTMENTS.get(index)
    if cached is None or cached[0]() is not counts or cached[1] != key:
        with torch.inference_mode(False):
            shift = tau * log_prior(counts_beside(logits, counts))
        reference = weakref.ref(counts, lambda dead: _forget(index, dead))
        cached = _ADJUSTMENTS[index] = (reference, key, shift, _is_flat(shift))
    return cached[2:]


def _forget(index: int, dead: weakref.ref[Tensor]) -> None:
    """Drop what was kept for a tensor, unless another one has taken its place."""
    if index in _ADJUSTMENTS and _ADJUSTMENTS[index][0] is dead:
        del _ADJUSTMENTS[index]


def _is_flat(shift: Tensor) -> bool:
    """Whether a sum of exponentials cannot underflow, of numbers up to 0 that have the shift added to them."""
    if not shift.is_cpu or not shift.numel():
        return False
    return shift.amin().item() > -LARGEST_SPREAD


def log_prior(counts: Tensor) -> Tensor:
    """π, the share of each class, as log π."""
    return torch.log(counts) - torch.log(counts.sum())


def margins(counts: Tensor, max_margin: float) -> Tensor:
    """Δ ∝ n^(-1/4), that of the smallest class being ``max_margin``."""
    return max_margin * (counts.min() / counts) ** 0.25
