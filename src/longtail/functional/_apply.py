"""What all losses share: checks, the weight of a sample, reductions, and the choice of the way to compute."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import check_choice, check_in_unit_interval
from longtail.counts import check_labels_in_range
from longtail.functional._blocked import RowLoss, compute_dtype, weighted_loss

__all__ = ["REDUCTIONS", "apply_loss", "find_valid", "is_traced", "reduce_rows", "sample_weight"]

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
    if label_smoothing:
        check_in_unit_interval("label_smoothing", label_smoothing)
    if reduction not in REDUCTIONS:
        check_choice("reduction", reduction, REDUCTIONS)
    check_inputs(logits, target)
    if class_weight is not None:
        check_class_weight(class_weight, logits.shape[min(logits.dim(), 2) - 1], logits.device)
    shape = logits.shape
    dense = target.dim() == logits.dim()
    if logits.dim() == 1:
        logits, target = logits.unsqueeze(0), target.unsqueeze(0)
    elif logits.dim() > 3:
        logits, target = logits.flatten(2), target.flatten(2 if dense else 1)
    dtype = compute_dtype(logits.dtype)
    traced = is_traced(logits)
    if traced and class_weight is None:
        # Looking up a weight is what stops a label out of range where labels cannot be checked.
        class_weight = torch.ones(logits.shape[1], dtype=dtype, device=logits.device)
    valid = None
    if dense:
        target = target.to(dtype)
    else:
        target, valid = find_valid(target, logits.shape[1], ignore_index, check=not traced)
    weight = sample_weight(target, class_weight, valid, dtype)
    if dense or label_smoothing or traced or weight.requires_grad:
        rows = _differentiable_rows(row_loss, logits.to(dtype), target, label_smoothing)
        loss = reduce_rows(rows, weight, valid, reduction)
    else:
        scale = _scale(weight, valid, reduction)
        loss = weighted_loss(row_loss, logits, target, scale, total=reduction != "none")
    return loss.view(shape[:1] + shape[2:] if len(shape) > 1 else ()) if reduction == "none" else loss


def _differentiable_rows(row_loss: RowLoss, logits: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    if label_smoothing:
        if target.dim() < logits.dim():
            target = F.one_hot(target, logits.shape[1]).movedim(-1, 1).to(logits.dtype)
        target = (1 - label_smoothing) * target + label_smoothing / logits.shape[1]
    if target.dim() < logits.dim():
        return row_loss.from_indices(logits, target)
    return row_loss.from_probabilities(logits, target)


def find_valid(target: Tensor, num_classes: int, ignore_index: int, check: bool) -> tuple[Tensor, Tensor | None]:
    """Class indices as int64, with 0 for the ignored, and which are not ignored: None for all of them.

    Labels are checked only where that costs no sync: on the CPU, outside the compiler and function transforms.
    Elsewhere a label out of range stops the indexing operation itself.
    """
    target = target.long()
    check = check and target.device.type == "cpu" and target.numel() > 0
    if check and _in_range(target, num_classes) and not 0 <= ignore_index < num_classes:
        return target, None
    valid = target != ignore_index
    target = target * valid
    if check and not _in_range(target, num_classes):
        check_labels_in_range("target", target.numpy(), num_classes)
    return target, valid


def _in_range(target: Tensor, num_classes: int) -> bool:
    low, high = target.aminmax()
    return low.item() >= 0 and high.item() < num_classes


def sample_weight(target: Tensor, class_weight: Tensor | None, valid: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Weight of each sample: the mean of the class weights under its target; 0 where it is not valid.

    That is its class's weight for a class index, the mean over its positives for a multi-hot row, and 1 for a row
    without any.
    """
    if target.is_floating_point():
        mass = target.sum(1)
        if class_weight is None:
            return torch.ones_like(mass)
        columns = class_weight.to(dtype).view(-1, *(1,) * (target.dim() - 2))
        return torch.where(mass > 0, (target * columns).sum(1) / torch.where(mass > 0, mass, 1), 1)
    if class_weight is None:
        return torch.ones_like(target, dtype=dtype) if valid is None else valid.to(dtype)
    if class_weight.dtype != dtype:
        class_weight = class_weight.to(dtype)
    weight = class_weight.gather(0, target.flatten()).view(target.shape)
    return weight if valid is None else weight * valid


def _scale(weight: Tensor, valid: Tensor | None, reduction: str) -> Tensor:
    """Weight of each sample over what its reduction divides by: every reduction becomes a sum."""
    if reduction == "mean":
        return weight / (max(weight.numel(), 1) if valid is None else valid.sum().clamp(min=1))
    if reduction == "weighted_mean":
        total = weight.sum()
        return weight / torch.where(total > 0, total, 1)
    return weight


def reduce_rows(rows: Tensor, weight: Tensor, valid: Tensor | None, reduction: str) -> Tensor:
    """Weigh losses per sample and reduce them."""
    rows = rows * _scale(weight, valid, reduction)
    return rows if reduction == "none" else rows.sum()


def is_traced(logits: Tensor) -> bool:
    """Whether operations to trace are wanted: by the compiler, a function transform or a tensor subclass."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or type(logits) not in (Tensor, nn.Parameter)
    )


def check_inputs(logits: Tensor, target: Tensor) -> None:
    """Refuse logits and targets that do not fit each other."""
    if not isinstance(target, Tensor) or not isinstance(logits, Tensor):
        argument, value = ("target", target) if isinstance(logits, Tensor) else ("logits", logits)
        raise TypeError(f"{argument} must be a tensor, got {type(value).__name__}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    if logits.dim() == 0:
        raise ValueError("logits must have shape (N, C), (N, C, d1, …) or (C,), got a scalar")
    if target.device != logits.device:
        raise ValueError(f"target is on {target.device}, but logits are on {logits.device}")
    if target.shape == logits.shape:
        return
    expected = logits.shape[:1] + logits.shape[2:] if logits.dim() > 1 else logits.shape[:0]
    if target.shape != expected:
        raise ValueError(
            f"target has shape {tuple(target.shape)}, but logits of shape {tuple(logits.shape)} need class indices of "
            f"shape {tuple(expected)} or probabilities of shape {tuple(logits.shape)}"
        )
    if target.is_floating_point() or target.dtype == torch.bool:
        raise TypeError(
            f"target of shape {tuple(target.shape)} holds class indices, which must be integers, not {target.dtype}"
        )


def check_class_weight(class_weight: Tensor, num_classes: int, device: torch.device) -> None:
    """Refuse weights that are not one per class, or are elsewhere."""
    if class_weight.shape != (num_classes,):
        raise ValueError(
            f"class_weight has shape {tuple(class_weight.shape)}, but logits have {num_classes} classes: "
            f"it must have shape ({num_classes},)"
        )
    if class_weight.device != device:
        raise ValueError(
            f"class_weight is on {class_weight.device}, but logits are on {device}: move the loss with .to()"
        )
