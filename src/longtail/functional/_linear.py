"""What the losses of a linear layer share: checks, reductions, and one node of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling

from longtail._checks import check_choice, check_integer
from longtail.functional._apply import REDUCTIONS, is_traced, no_indices, sample_weights
from longtail.functional._blocked import compute_dtype
from longtail.functional._class_shards import Shards
from longtail.functional._counts import counts_beside, log_prior
from longtail.functional._tiles import Gradients, Kind, Needs, Problem

__all__ = ["linear_loss"]


def _linear_loss(
    kind: Kind,
    definition: Callable[..., Tensor],
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    bias: Tensor | None,
    ignore_index: int,
    reduction: str,
    group: dist.ProcessGroup | None,
    counts: Any = None,
    tau: float = 0.0,
) -> Tensor:
    """Check, weigh, reduce and return the loss of a linear layer.

    With ``counts``, logits have τ log π added to them. ``definition`` is the loss of logits, for those who trace,
    transform or differentiate twice.
    """
    _check_inputs(features, weight, target, bias)
    check_choice("reduction", reduction, REDUCTIONS)
    check_integer("ignore_index", ignore_index)
    shape = target.shape
    features, target = features.reshape(-1, features.shape[-1]), target.reshape(-1)
    if is_traced(features) and group is None:
        logits = F.linear(features, weight, bias)
        logits = logits if counts is None else logits + _prior_shift(counts, tau, len(weight), features)
        plain = definition(logits, target, class_weight, ignore_index=ignore_index, reduction=reduction)
        return plain.view(shape) if reduction == "none" else plain
    kept = None
    if (target == ignore_index).any():  # of ignored samples no logit is formed
        kept = (target != ignore_index).nonzero().squeeze(1)
        features, target = features[kept], target[kept]
    shards = None if group is None else Shards.of(group, features, weight)
    classes = len(weight) if shards is None else sum(shards.classes)
    dtype = compute_dtype(features.dtype)
    if class_weight is None:
        class_weight = torch.ones(classes, dtype=dtype, device=features.device)
    _check_per_class("class_weight", class_weight, classes, features)
    target, sample_weight, _ = sample_weights(target, class_weight.to(dtype), ignore_index, check=True)
    offset = None if bias is None else bias.to(dtype)
    if counts is not None:
        shift = _prior_shift(counts, tau, classes, features)
        shift = shift if shards is None else shift.narrow(0, shards.first_class, len(weight))
        offset = shift if offset is None else offset + shift
    scale = sample_weight / _divisor(sample_weight, reduction, shards)
    call = _Call(kind, definition, target, scale.unsqueeze(1), reduction != "none", _product_dtype(features), shards)
    if scale.requires_grad:
        if shards is not None:
            raise ValueError("class_weight cannot have a gradient with a process group")
        call = replace(call, scale=torch.ones_like(call.scale).detach(), total=False)
    loss: Tensor
    if torch.is_grad_enabled():
        loss = _Tiled.apply(features, weight, offset, call)  # type: ignore[no-untyped-call]
    else:
        loss = _value(call, _sweep(call, features, weight, offset, call.scale, (False, False, False))[0])
    if scale.requires_grad:
        loss = loss * scale
    if reduction != "none":
        return loss if call.total else loss.sum()
    if kept is not None:
        loss = loss.new_zeros(shape.numel()).index_copy(0, kept, loss)
    return loss.view(shape)


def linear_loss(*arguments: Any) -> Tensor:
    """See :func:`_linear_loss`. A compiler, which would need the logits as a whole, calls it as it is."""
    if not is_compiling():
        return _linear_loss(*arguments)
    # Here, and not around the function: to disable imports the compiler, which takes a second.
    loss: Tensor = torch.compiler.disable(_linear_loss)(*arguments)  # type: ignore[no-untyped-call]
    return loss


@dataclass(frozen=True)
class _Call:
    """What autograd need not look at."""

    kind: Kind
    definition: Callable[..., Tensor]
    target: Tensor
    scale: Tensor
    """Weight of each sample over what its reduction divides by, (N, 1)."""
    total: bool
    product_dtype: torch.dtype
    shards: Shards | None


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, offset: Tensor | None, call: _Call) -> Tensor:
        ctx.save_for_backward(features, weight, offset)
        ctx.call, ctx.spent = call, False
        # The gradient of a sum is formed with its value. It is formed in backward where each loss has a factor of its
        # own, and in float16, where it must be born with the loss scale of mixed-precision training.
        now = call.total and weight.dtype != torch.float16
        needs = ctx.needs_input_grad[:3] if now else (False, False, False)
        rows, gradients = _sweep(call, features, weight, offset, call.scale, needs)
        ctx.gradients = gradients if any(needs) else None
        return _value(call, rows)

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.spent:
            raise RuntimeError("the gradients of a fused layer are handed over by its backward: call the loss anew")
        call: _Call = ctx.call
        features, weight, offset = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: somebody will differentiate this gradient
            return *_differentiable_gradients(call, features, weight, offset, grad_loss, ctx.needs_input_grad), None
        gradients: Gradients | None = ctx.gradients
        ctx.gradients, ctx.spent = None, True  # handed over, not copied
        if gradients is None:
            factor = grad_loss if call.total else grad_loss.unsqueeze(1)
            _, gradients = _sweep(call, features, weight, offset, call.scale * factor, ctx.needs_input_grad[:3])
        elif not grad_loss.is_cpu or grad_loss.item() != 1:  # on the CPU .item() is no sync
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(grad_loss)
        by_features = None if gradients.features is None else gradients.features.to(features.dtype)
        return by_features, gradients.weight, gradients.offset, None


def _value(call: _Call, rows: Tensor) -> Tensor:
    return rows.sum() if call.total else rows


def _sweep(
    call: _Call, features: Tensor, weight: Tensor, offset: Tensor | None, scale: Tensor, needs: Needs
) -> tuple[Tensor, Gradients]:
    """``scale`` × loss of each sample, and the gradients of their sum."""
    shards, target = call.shards, call.target
    # One step of mixed precision after another: the products are in its dtype, all else is not.
    with torch.autocast(features.device.type, enabled=False):
        if shards is not None:
            features, target, scale = shards.gather(features), shards.gather(target), shards.gather(scale)
            target = target - shards.first_class
        problem = Problem(features.to(call.product_dtype), weight, offset, target)
        rows, gradients = call.kind.sweep(problem, scale, needs, shards)
        rows = (rows * scale).squeeze(1)
        if shards is None:
            return rows, gradients
        if gradients.features is not None:
            gradients = gradients._replace(features=shards.sum_mine(gradients.features))
        return rows if call.total else shards.mine(rows), gradients


def _differentiable_gradients(
    call: _Call, features: Tensor, weight: Tensor, offset: Tensor | None, grad_loss: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients as functions of features, weight and offset, from all logits."""
    if call.shards is not None:
        raise RuntimeError("with a process group, gradients cannot be differentiated: create_graph=True is refused")
    # Views, so that hooks on the tensors see their gradient once, and not here.
    inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in (features, weight, offset)]
    x, w, b = inputs
    assert x is not None
    assert w is not None
    logits = x.to(call.product_dtype) @ w.to(call.product_dtype).T
    logits = logits.to(call.scale.dtype)
    rows = call.definition(logits if b is None else logits + b, call.target, reduction="none") * call.scale.squeeze(1)
    wanted = [tensor for tensor, need in zip(inputs, needs, strict=False) if need and tensor is not None]
    found = iter(torch.autograd.grad(rows.sum() if call.total else rows, wanted, grad_loss, create_graph=True))
    return tuple(
        next(found) if need and tensor is not None else None for tensor, need in zip(inputs, needs, strict=False)
    )


def _product_dtype(features: Tensor) -> torch.dtype:
    """Dtype of the products of matrices: that of the features, or of autocast, and float32 for float16.

    Gradients by logits are as small as probabilities of rare classes: they underflow in float16.
    """
    device, dtype = features.device.type, features.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    return torch.float32 if dtype == torch.float16 else dtype


def _divisor(sample_weight: Tensor, reduction: str, shards: Shards | None) -> Tensor | float:
    """What the sum over samples, those of all ranks, is divided by."""
    if reduction in ("sum", "none"):
        return 1.0
    if reduction == "mean":
        return max(1, len(sample_weight) if shards is None else sum(shards.samples))
    total = sample_weight.sum()
    if shards is not None:
        total = shards.sum(total.detach().clone())
    return torch.where(total > 0, total, 1)


def _prior_shift(counts: Any, tau: float, classes: int, features: Tensor) -> Tensor:
    """τ log π of all classes."""
    found = counts.shape if isinstance(counts, Tensor) else (len(counts),)
    if tuple(found) != (classes,):
        raise ValueError(f"counts have shape {tuple(found)}, but weight has {classes} classes")
    logits = torch.empty(0, classes, dtype=features.dtype, device=features.device)
    return tau * log_prior(counts_beside(logits, counts))


def _check_inputs(features: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    """Refuse features, weights and targets that do not fit each other."""
    given = {"features": features, "weight": weight, "target": target} | ({} if bias is None else {"bias": bias})
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        if value.device != features.device:
            raise ValueError(f"{name} is on {value.device}, but features are on {features.device}")
        if name != "target" and not value.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {value.dtype}")
    if features.dim() < 1 or weight.dim() != 2 or features.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"features of shape {tuple(features.shape)} and weight of shape {tuple(weight.shape)} do not fit: they "
            "must be (…, D) and (C, D)"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}, but weight has {len(weight)} classes")
    if target.shape != features.shape[:-1]:
        raise ValueError(
            f"target has shape {tuple(target.shape)}, but features of shape {tuple(features.shape)} need class indices "
            f"of shape {tuple(features.shape[:-1])}"
        )
    if target.is_floating_point() or target.dtype == torch.bool:
        raise no_indices(target)


def _check_per_class(name: str, values: Tensor, classes: int, features: Tensor) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(values).__name__}: pass torch.as_tensor({name})")
    if values.shape != (classes,):
        raise ValueError(f"{name} has shape {tuple(values.shape)}, but weight has {classes} classes")
    if values.device != features.device:
        raise ValueError(f"{name} is on {values.device}, but features are on {features.device}")
