"""What all losses share: checks, the weight of a sample, reductions, and the choice of the way to compute."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from longtail._checks import check_choice, check_in_unit_interval, check_integer
from longtail.counts import check_labels_in_range
from longtail.functional._blocked import (
    RowLoss,
    compute_dtype,
    differentiable_rows,
    fused_loss,
    mean_weight,
    weighted_loss,
)
from longtail.functional._sharded import is_sharded, sharded_loss

__all__ = [
    "REDUCTIONS",
    "apply_loss",
    "check_inputs",
    "columns",
    "is_traced",
    "look_up",
    "mean_weight",
    "no_indices",
    "reduce_rows",
    "row_maximum",
    "sample_weights",
]

REDUCTIONS = ("mean", "sum", "none", "weighted_mean")

# Up to here PyTorch's own cross-entropy is faster than the blocks, and what it holds, three times the logits and six
# times those of 16 bits, is small. Adjusted logits that need no widening are soon better off in blocks.
NATIVE_ELEMENTS = 1_048_576
ADJUSTED_NATIVE_ELEMENTS = 262_144
# Logits up to here are as precise as the log-priors that are added to them.
NEAR_ZERO = 16.0
# PyTorch before 2.7 does not tell an export from a compilation: both trace the definition of the loss.
_is_exporting = getattr(torch.compiler, "is_exporting", is_compiling)
_NO_LABEL = -(2**62)
_PLAIN = (Tensor, nn.Parameter, type(None))


def apply_loss(
    row_loss: RowLoss,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    label_smoothing: float,
    ignore_index: int,
    reduction: str,
    *,
    checked: bool = False,
) -> Tensor:
    """Weigh, reduce and return a loss that is given by its value per sample; ``checked`` says that inputs are."""
    if not checked:
        check_inputs(logits, target, class_weight)
    if label_smoothing or reduction not in REDUCTIONS:
        check_in_unit_interval("label_smoothing", label_smoothing)
        check_choice("reduction", reduction, REDUCTIONS)
    if type(ignore_index) is not int or not -(2**63) <= ignore_index < 2**63:
        check_integer("ignore_index", ignore_index)
        ignore_index = int(ignore_index)
    if type(logits) not in _PLAIN and is_sharded(logits):
        rest = (class_weight, label_smoothing, ignore_index)
        return sharded_loss(partial(_rows_and_divisor, row_loss, rest, reduction), logits, target, reduction != "none")
    shape = logits.shape
    dense = target.dim() == len(shape)
    if len(shape) == 1:
        if dense and row_loss.separable and not _is_transformed():
            raise _no_batch(shape[0])
        logits, target = logits.unsqueeze(0), target.unsqueeze(0)
    elif len(shape) > 3:
        logits, target = logits.flatten(2), target.flatten(2 if dense else 1)
    if class_weight is None:
        class_weight = torch.ones(logits.shape[1], dtype=compute_dtype(logits.dtype), device=logits.device)
    elif class_weight.dtype != compute_dtype(logits.dtype):
        class_weight = class_weight.to(compute_dtype(logits.dtype))
    loss = _choose(row_loss, logits, target, class_weight, label_smoothing, ignore_index, reduction)
    return loss if reduction != "none" else loss.view(shape[:1] + shape[2:] if len(shape) > 1 else ())


def _choose(
    row_loss: RowLoss,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor,
    label_smoothing: float,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """The loss, by the fastest way that gives the derivatives that can be asked for."""
    dense = target.dim() == logits.dim()
    per_class = row_loss.per_class
    traced = is_traced(logits, target, class_weight, per_class)
    definition = (
        class_weight.requires_grad or target.requires_grad or (per_class is not None and per_class.requires_grad)
    )
    native = row_loss.is_cross_entropy and not (dense or label_smoothing or definition)
    if native and (traced or not logits.is_cpu or _is_small(row_loss, logits)):
        # The shift itself widens logits of 16 bits, if no offset goes first.
        near_zero = per_class is not None and not traced and logits.is_cpu and _is_near_zero(logits)
        z = logits if near_zero or logits.dtype == class_weight.dtype else logits.to(class_weight.dtype)
        z = row_loss.shifted(z, near_zero)
        return _cross_entropy(z, target, class_weight, ignore_index, reduction, traced)
    if dense:
        weight, valid = mean_weight(target, class_weight, blocked=not (traced or definition)), None
    else:
        target, weight, valid = sample_weights(target, class_weight, ignore_index, check=not traced)
    fused = traced and row_loss.separable and not (dense or label_smoothing) and _is_fusible(logits, target)
    if definition or (traced and not fused):
        rows = differentiable_rows(row_loss, logits.to(class_weight.dtype), target, label_smoothing)
        return reduce_rows(rows, weight, valid, reduction)
    weight = _scale(weight, valid, reduction)
    if fused:
        return fused_loss(row_loss, logits, target, weight, total=reduction != "none")
    return weighted_loss(row_loss, logits, target, weight, label_smoothing, total=reduction != "none")


def _is_near_zero(logits: Tensor) -> bool:
    """Whether logits are so small that a number per class can be added without a loss of digits."""
    if not logits.numel():
        return True
    low, high = logits.detach().aminmax()
    return low.item() > -NEAR_ZERO and high.item() < NEAR_ZERO


def _is_small(row_loss: RowLoss, logits: Tensor) -> bool:
    adjusted = row_loss.per_class is not None and logits.dtype == compute_dtype(logits.dtype)
    return logits.numel() <= (ADJUSTED_NATIVE_ELEMENTS if adjusted else NATIVE_ELEMENTS)


def _rows_and_divisor(
    row_loss: RowLoss, rest: tuple[Any, float, int], reduction: str, logits: Tensor, target: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Losses of some of the samples, and what they add to what the reduction divides by."""
    class_weight, _, ignore_index = rest
    rows = apply_loss(row_loss, logits, target, *rest, "none")
    if reduction not in ("mean", "weighted_mean"):
        return rows, None
    if target.dim() < logits.dim():
        valid = (target != ignore_index).to(rows.dtype)
        if reduction == "mean" or class_weight is None:
            return rows, valid.sum()
        return rows, (look_up(class_weight, target.long() * valid.long()) * valid).sum()
    if reduction == "mean" or class_weight is None:
        return rows, torch.ones_like(rows).sum()
    return rows, mean_weight(target, class_weight).sum()


def _cross_entropy(
    logits: Tensor, target: Tensor, class_weight: Tensor, ignore_index: int, reduction: str, traced: bool
) -> Tensor:
    """The loss by PyTorch's own kernel. Dividing the C weights by N costs less than dividing loss and gradient."""
    if target.dtype != torch.int64:
        target = target.long()
    checked = not traced and logits.is_cpu
    try:
        if reduction == "weighted_mean":
            _, own, _ = sample_weights(target, class_weight, ignore_index, check=checked)
            total = own.sum()
            weight = class_weight / torch.where(total > 0, total, 1)
            return F.cross_entropy(logits, target, weight, ignore_index=ignore_index, reduction="sum")
        if reduction != "mean":
            return F.cross_entropy(logits, target, class_weight, ignore_index=ignore_index, reduction=reduction)
        if checked and not 0 <= ignore_index < class_weight.shape[0]:
            # PyTorch's kernel refuses labels out of range. Where it does not, none is ignored either.
            weight = class_weight / max(target.numel(), 1)
            return F.cross_entropy(logits, target, weight, ignore_index=_NO_LABEL, reduction="sum")
    except IndexError:
        sample_weights(target, class_weight, ignore_index, check=checked)
    weight = class_weight / (target != ignore_index).sum().clamp(min=1)
    return F.cross_entropy(logits, target, weight, ignore_index=ignore_index, reduction="sum")


def sample_weights(
    target: Tensor, class_weight: Tensor, ignore_index: int, check: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Class indices as int64 with 0 for the ignored, the weight of each, and which count: None for all of them.

    Labels are checked only where that costs no sync: on the CPU, outside the compiler and function transforms.
    Elsewhere a label out of range stops the look-up of its weight.
    """
    if target.dtype != torch.int64:
        target = target.long()
    classes = class_weight.shape[0]
    traced = not check
    check = check and target.is_cpu
    if check and not 0 <= ignore_index < classes:
        try:  # The look-up itself refuses labels out of range. Where it does not, none is ignored either.
            return target, look_up(class_weight, target), None
        except IndexError:
            pass
    valid = target != ignore_index
    target = target * valid
    if traced:  # Inductor counts negative labels from the end; the one after the last it refuses.
        target = torch.where(target < 0, classes, target)
    if check and target.numel():
        low, high = target.aminmax()
        if low.item() < 0 or high.item() >= classes:
            check_labels_in_range("target", target.numpy(), classes)
    return target, look_up(class_weight, target) * valid, valid


def look_up(per_class: Tensor, target: Tensor) -> Tensor:
    """The number of each sample's own class."""
    if target.dim() == 1:
        return per_class.index_select(0, target)
    return per_class.index_select(0, target.flatten()).view(target.shape)


def columns(per_class: Tensor, logits: Tensor) -> Tensor:
    """One number per class in a shape that broadcasts against logits (N, C) or (N, C, D)."""
    extra = logits.dim() - 2
    return per_class.view(-1, *(1,) * extra) if extra > 0 else per_class


def row_maximum(logits: Tensor) -> Tensor:
    """The largest logit of each sample, as a constant: to subtract it changes no softmax, and saves its digits."""
    return logits.detach().amax(1, keepdim=True)


def _scale(weight: Tensor, valid: Tensor | None, reduction: str) -> Tensor:
    """Weight of each sample over what its reduction divides by: every reduction becomes a sum."""
    if reduction == "mean":
        return weight / (weight.numel() if valid is None else valid.sum().clamp(min=1))
    if reduction == "weighted_mean":
        total = weight.sum()
        return weight / torch.where(total > 0, total, 1)
    return weight


def reduce_rows(rows: Tensor, weight: Tensor, valid: Tensor | None, reduction: str) -> Tensor:
    """Weigh losses per sample and reduce them."""
    rows = rows * _scale(weight, valid, reduction)
    return rows if reduction == "none" else rows.sum()


def is_traced(*tensors: Any) -> bool:
    """Whether operations to trace are wanted: by the compiler, forward-mode AD, a transform or a tensor subclass."""
    if is_compiling() or torch._C._is_tracing() or _is_transformed():
        return True
    # A loop, which takes less time than ``any`` of a generator.
    for tensor in tensors:  # noqa: SIM110
        if type(tensor) not in _PLAIN:
            return True
    return False


def _is_transformed() -> bool:
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _is_fusible(*tensors: Tensor) -> bool:
    """Whether a compiler asks, and differentiates once: by the backward that it is given."""
    return (
        is_compiling()
        and not _is_exporting()
        and not _is_transformed()
        and all(type(tensor) in _PLAIN for tensor in tensors)
    )


def _no_batch(size: int) -> ValueError:
    return ValueError(
        f"logits and target of shape ({size},) are ambiguous: for {size} samples of one binary class unsqueeze both "
        f"at dimension 1, for one sample of {size} classes at dimension 0"
    )


def no_indices(target: Tensor) -> TypeError:
    """The error of class indices that are no integers."""
    shape = tuple(target.shape)
    return TypeError(f"target of shape {shape} holds class indices, which must be integers, not {target.dtype}")


def check_inputs(logits: Tensor, target: Tensor, class_weight: Tensor | None) -> None:
    """Refuse logits, targets and weights that do not fit each other."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a tensor, got {type(logits).__name__}")
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    shape, device = tuple(logits.shape), logits.device
    if not shape:
        raise ValueError("logits must have shape (N, C), (N, C, d1, …) or (C,), got a scalar")
    expected = shape[:1] + shape[2:] if len(shape) > 1 else ()
    if target.shape == expected:
        if target.dtype != torch.int64 and (target.is_floating_point() or target.dtype == torch.bool):
            raise no_indices(target)
    elif target.shape != shape:
        raise ValueError(
            f"target has shape {tuple(target.shape)}, but logits of shape {shape} need class indices of "
            f"shape {expected} or probabilities of shape {shape}"
        )
    if target.device != device:
        raise ValueError(f"target is on {target.device}, but logits are on {device}")
    if class_weight is None:
        return
    if not isinstance(class_weight, Tensor):
        name = type(class_weight).__name__
        raise TypeError(f"class_weight must be a tensor, got {name}: pass torch.as_tensor(class_weight)")
    classes = shape[1] if len(shape) > 1 else shape[0]
    if class_weight.shape != (classes,):
        raise ValueError(
            f"class_weight, from the counts, has shape {tuple(class_weight.shape)}, but logits of shape {shape} have "
            f"{classes} classes; if the last classes are missing from the labels, count with num_classes={classes}"
        )
    if class_weight.device != device:
        raise ValueError(
            f"class_weight is on {class_weight.device}, but logits are on {device}: move the loss with .to()"
        )
