"""What all losses share: checks, the weight of a sample, reductions, and the choice of the way to compute."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from longtail._checks import check_choice, check_in_unit_interval, check_integer
from longtail.counts import check_labels_in_range
from longtail.functional._blocked import RowLoss, compute_dtype, weighted_loss

__all__ = [
    "REDUCTIONS",
    "apply_loss",
    "check_inputs",
    "columns",
    "is_traced",
    "look_up",
    "mean_weight",
    "no_indices",
    "own_weight",
    "reduce_rows",
]

REDUCTIONS = ("mean", "sum", "none", "weighted_mean")


def apply_loss(
    row_loss: RowLoss,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    label_smoothing: float,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """Weigh, reduce and return a loss that is given by its value per sample."""
    check_inputs(logits, target, class_weight)
    if label_smoothing or reduction not in REDUCTIONS:
        check_in_unit_interval("label_smoothing", label_smoothing)
        check_choice("reduction", reduction, REDUCTIONS)
    shape = logits.shape
    dense = target.dim() == len(shape)
    if len(shape) == 1:
        logits, target = logits.unsqueeze(0), target.unsqueeze(0)
    elif len(shape) > 3:
        logits, target = logits.flatten(2), target.flatten(2 if dense else 1)
    dtype = compute_dtype(logits.dtype)
    traced = is_traced(logits)
    if class_weight is None:
        class_weight = torch.ones(logits.shape[1], dtype=dtype, device=logits.device)
    elif class_weight.dtype != dtype:
        class_weight = class_weight.to(dtype)
    if dense:
        target = target.to(dtype)
        weight, valid = mean_weight(target, class_weight), None
    else:
        target, weight, valid = own_weight(target, class_weight, ignore_index, check=not traced)
    if dense or label_smoothing or traced or weight.requires_grad:
        rows = _differentiable_rows(row_loss, logits.to(dtype), target, label_smoothing)
        loss = reduce_rows(rows, weight, valid, reduction)
    else:
        weight = _scale(weight, valid, reduction)
        loss = weighted_loss(row_loss, logits, target, weight, total=reduction != "none")
    return loss if reduction != "none" else loss.view(shape[:1] + shape[2:] if len(shape) > 1 else ())


def _differentiable_rows(row_loss: RowLoss, logits: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    if label_smoothing:
        if target.dim() < logits.dim():
            target = F.one_hot(target, logits.shape[1]).movedim(-1, 1).to(logits.dtype)
        target = (1 - label_smoothing) * target + label_smoothing / logits.shape[1]
    if target.dim() < logits.dim():
        return row_loss.from_indices(logits, target)
    return row_loss.from_probabilities(logits, target)


def own_weight(
    target: Tensor, class_weight: Tensor, ignore_index: int, check: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Class indices as int64 with 0 for the ignored, the weight of each, and which count: None for all of them.

    Labels are checked only where that costs no sync: on the CPU, outside the compiler and function transforms.
    Elsewhere a label out of range stops the look-up of its weight.
    """
    if target.dtype != torch.int64:
        target = target.long()
    if not isinstance(ignore_index, int):
        check_integer("ignore_index", ignore_index)
        ignore_index = int(ignore_index)
    classes = class_weight.shape[0]
    check = check and target.is_cpu
    if check and not 0 <= ignore_index < classes:
        try:  # The look-up itself refuses labels out of range. Where it does not, none is ignored either.
            return target, look_up(class_weight, target), None
        except IndexError:
            pass
    valid = target != ignore_index
    target = target * valid
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
    return per_class.view(-1, *(1,) * (logits.dim() - 2))


def mean_weight(target: Tensor, class_weight: Tensor) -> Tensor:
    """Weight of each sample with a target of the logits' shape: the mean under it, and 1 for a target of zeros."""
    mass = target.sum(1)
    total = (target * columns(class_weight, target)).sum(1)
    return torch.where(mass > 0, total / torch.where(mass > 0, mass, 1), 1)


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


def is_traced(logits: Tensor) -> bool:
    """Whether operations to trace are wanted: by the compiler, forward-mode AD, a transform or a tensor subclass."""
    return (
        is_compiling()
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or type(logits) not in (Tensor, nn.Parameter)
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
