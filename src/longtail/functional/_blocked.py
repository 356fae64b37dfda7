"""Loss and gradient in one sweep over blocks that fit the cache.

Written as plain tensor operations, a focal loss allocates a dozen tensors of the size of the logits and reads each from
main memory. Here the logits are cut into blocks; of each block the losses *and* the gradient are formed while it is in
the cache, and only the gradient is kept. Backward then has nothing left to do but scale it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch

__all__ = [
    "LOG2_E",
    "Buffers",
    "RowLoss",
    "compute_dtype",
    "differentiable_rows",
    "fused_loss",
    "is_own_class",
    "mean_weight",
    "weighted_loss",
]

# Elements of all buffers of a block, for each thread: 4 MiB in float32, which the caches hold. Half as many measure
# slower. PyTorch gives every thread at least 32,768 elements, and no buffer has fewer. An accelerator has no such cache
# to mind, and takes the largest block that memory allows.
BLOCK_PER_THREAD = 1_048_576
# Up to here one block without buffers is fastest, and memory is not worth another launch of every operation.
SMALLEST_BLOCK = 32_768
# Tensors of a block's size that autograd keeps for the definition of a loss with dense targets.
DENSE_BUFFERS = 24

Buffers = Sequence[Tensor | None]
NO_BUFFERS: Buffers = (None,) * 5

LOG2_E = 1 / math.log(2)
"""exp(x) is exp2(x · LOG2_E), which PyTorch computes in less time."""


class RowLoss:
    """One loss per sample ("row"), written twice: to be differentiated, and to be fast.

    Logits have shape (N, C) or (N, C, D), class indices (N) or (N, D), losses (N) or (N, D).
    """

    buffers: int
    """Tensors of a block's size that :meth:`block` fills, 5 at most, the gradient among them."""
    per_class: Tensor | None = None
    """One number per class that the loss depends on, such as the log-priors; a gradient may be asked for it."""
    separable = False
    """Whether the loss is a sum over the classes; then :meth:`block` treats all of them as absent ones."""
    symmetric = False
    """Whether it is, and the term of a present class at z is that of an absent one at -z."""
    is_cross_entropy = False
    """Whether it is ``F.cross_entropy`` of :meth:`shifted` logits."""

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        """Loss of each sample, as differentiable operations: the definition."""
        raise NotImplementedError

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        """The same for a target of the logits' shape, linear in the target."""
        raise NotImplementedError

    def block(
        self, logits: Tensor, target: Tensor, scale: Tensor, out: Buffers, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Terms whose sum over dimension 1 is the loss of each sample of a block, and ``scale`` × its gradient.

        ``target`` and ``scale`` keep the class dimension, with size 1; the logits have the dtype of ``scale``. ``out``
        holds buffers of that dtype for the ``out=`` of operations, the first for the gradient; or None where these had
        better allocate. Where no ``gradient`` is asked for, the second value has no meaning.
        """
        raise NotImplementedError

    def positives(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """Terms of the samples' own classes, and their derivatives, of a separable loss."""
        raise NotImplementedError

    def shifted(self, logits: Tensor, near_zero: bool = False) -> Tensor:
        """What ``F.cross_entropy`` is applied to; ``near_zero`` says that no logit is far from 0."""
        return logits


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Losses of 16-bit logits are computed and returned in float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def is_own_class(logits: Tensor, target: Tensor) -> Tensor:
    """Where in the logits each sample's own class is."""
    # A comparison, and not a scatter into zeros, so that a compiler can fuse it with all that follows.
    classes = torch.arange(logits.shape[1], device=logits.device, dtype=torch.int32)
    return target.to(torch.int32).unsqueeze(1) == classes.view(-1, *(1,) * (logits.dim() - 2))


def differentiable_rows(row_loss: RowLoss, logits: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """Loss of each sample by the definition, for class indices and for targets of the logits' shape."""
    if target.dim() < logits.dim() and not label_smoothing:
        return row_loss.from_indices(logits, target)
    return row_loss.from_probabilities(logits, _soft_target(logits, target, label_smoothing))


def _soft_target(logits: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    if target.dim() < logits.dim():
        target = F.one_hot(target, logits.shape[1]).movedim(-1, 1)
    target = target.to(logits.dtype)
    return target if not label_smoothing else (1 - label_smoothing) * target + label_smoothing / logits.shape[1]


def weighted_loss(
    row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, label_smoothing: float, total: bool
) -> Tensor:
    """``scale`` × loss of each sample, or the total of it, as one node of the graph."""
    rest = (row_loss, target, scale, label_smoothing, total)
    if logits.requires_grad and torch.is_grad_enabled():
        loss: Tensor = _Blocked.apply(logits, rest)  # type: ignore[no-untyped-call]
        return loss
    return _sweep(logits, *rest, gradient=False)[0]


class _Blocked(torch.autograd.Function):
    # Only the logits are differentiated, so all else comes as one argument that autograd need not look at.
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rest: tuple[RowLoss, Tensor, Tensor, float, bool]) -> Tensor:
        row_loss, target, scale, label_smoothing, total = rest
        ctx.save_for_backward(logits, target, scale)
        ctx.row_loss, ctx.label_smoothing, ctx.total = row_loss, label_smoothing, total
        # A float16 gradient must be born with the loss scale of mixed-precision training in it, or it underflows;
        # that scale is known only in backward.
        loss, ctx.gradient = _sweep(logits, *rest, gradient=logits.dtype != torch.float16)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, None]:
        if torch.is_grad_enabled():  # create_graph=True: somebody will differentiate this gradient
            logits, target, scale = ctx.saved_tensors
            alias = logits.view_as(logits)  # so that hooks on the logits see their gradient once, and not here
            rows = differentiable_rows(ctx.row_loss, alias.to(scale.dtype), target, ctx.label_smoothing) * scale
            loss = rows.sum() if ctx.total else rows
            return torch.autograd.grad(loss, alias, grad_loss, create_graph=True)[0], None
        if _functorch.is_batchedtensor(grad_loss) or _functorch.is_legacy_batchedtensor(grad_loss):
            # is_grads_batched=True: many gradients at once, which in-place operations refuse
            return _gradient(ctx, 1) * (grad_loss if ctx.total else grad_loss.unsqueeze(1)), None
        return _scaled_gradient(ctx, grad_loss), None


def _gradient(ctx: Any, factor: Tensor | int) -> Tensor:
    """The gradient of the losses × ``factor``, formed anew."""
    logits, target, scale = ctx.saved_tensors
    gradient = _sweep(logits, ctx.row_loss, target, scale * factor, ctx.label_smoothing, total=True, gradient=True)[1]
    assert gradient is not None
    return gradient


def _scaled_gradient(ctx: Any, grad_loss: Tensor) -> Tensor:
    # Handed over, not copied: a second backward (retain_graph=True) forms it anew, by the same operations.
    gradient: Tensor | None = ctx.gradient
    ctx.gradient = None
    if gradient is None:
        if ctx.saved_tensors[0].dtype == torch.float16:
            return _gradient(ctx, grad_loss)
        gradient = _gradient(ctx, 1)
    if not ctx.total:
        gradient.mul_(grad_loss.unsqueeze(1))
    elif not grad_loss.is_cpu or grad_loss.item() != 1:  # on the CPU .item() is no sync
        gradient.mul_(grad_loss)
    return gradient


def fused_loss(row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, total: bool) -> Tensor:
    """The same for a compiler: one pass over the logits forward, and one backward, which forms the gradient anew."""
    loss: Tensor = _Fused.apply(logits, target, scale, (row_loss, total))  # type: ignore[no-untyped-call]
    return loss


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, scale: Tensor, rest: tuple[RowLoss, bool]) -> Tensor:
        ctx.save_for_backward(logits, target, scale)
        ctx.rest = rest
        row_loss, total = rest
        wide, own_class = logits.to(scale.dtype), target.unsqueeze(1)
        terms, _ = row_loss.block(wide, own_class, scale.unsqueeze(1), NO_BUFFERS, gradient=False)
        value, _ = row_loss.positives(wide.gather(1, own_class))
        rows = (torch.where(is_own_class(wide, target), 0, terms).sum(1) + value.squeeze(1)) * scale
        return rows.sum() if total else rows

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target, scale = ctx.saved_tensors
        row_loss, _ = ctx.rest
        wide, own_class, scale = logits.to(scale.dtype), target.unsqueeze(1), (scale * grad_loss).unsqueeze(1)
        _, slope = row_loss.block(wide, own_class, scale, NO_BUFFERS, gradient=True)
        _, own_slope = row_loss.positives(wide.gather(1, own_class))
        return slope.scatter(1, own_class, own_slope * scale).to(logits.dtype), None, None, None


def _sweep(
    logits: Tensor,
    row_loss: RowLoss,
    target: Tensor,
    scale: Tensor,
    label_smoothing: float,
    total: bool,
    gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """Loss, in total or of each sample, and its gradient if asked for."""
    if label_smoothing or target.dim() == logits.dim():
        rows, slope = _sweep_dense(row_loss, logits, target, scale, label_smoothing, gradient)
        return (rows.sum() if total else rows), slope
    target, scale = target.unsqueeze(1), scale.unsqueeze(1)
    if logits.numel() > SMALLEST_BLOCK:
        rows, slope = _sweep_blocks(row_loss, logits, target, scale, gradient)
        return (rows.sum() if total else rows.squeeze(1)), slope
    terms, slope = _small_block(row_loss, logits.to(scale.dtype), target, scale, gradient)
    loss = terms.mul_(scale).sum() if total else terms.sum(1).mul_(scale.squeeze(1))
    return loss, (slope.to(logits.dtype) if gradient else None)


def _small_block(
    row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Terms and gradient of logits so few that the number of operations decides."""
    if not row_loss.separable:
        return row_loss.block(logits, target, scale, NO_BUFFERS, gradient)
    if row_loss.symmetric:
        flipped = torch.scatter(logits, 1, target, -1.0, reduce="multiply")
        terms, slope = row_loss.block(flipped, target, scale, NO_BUFFERS, gradient)
        return terms, (slope.scatter_(1, target, -1.0, reduce="multiply") if gradient else slope)
    terms, slope = row_loss.block(logits, target, scale, NO_BUFFERS, gradient)
    value, own_slope = row_loss.positives(logits.gather(1, target))
    terms.scatter_(1, target, value)
    return terms, (slope.scatter_(1, target, own_slope.mul_(scale)) if gradient else slope)


def _sweep_blocks(
    row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    slope = torch.empty_like(logits) if gradient else None
    rows = torch.empty_like(scale)
    in_place = slope is not None and slope.dtype == scale.dtype
    height, width = _block_shape(logits, row_loss.buffers, row_loss.buffers - in_place)
    first = next(_cut(logits, height, width))
    buffers = [torch.empty_like(first, dtype=scale.dtype) for _ in range(row_loss.buffers - in_place)]
    parts = (logits, target, scale, rows, logits if slope is None else slope)
    # The samples' own classes are few numbers: one call forms those of many blocks.
    many, long = _shape_for(SMALLEST_BLOCK // 4, 1, logits.shape[2:].numel())
    many, long = max(many // height, 1) * height, max(long // width, 1) * width
    for z, y, s, row, g in zip(*(_cut(part, many, long) for part in parts), strict=True):
        own = row_loss.positives(z.gather(1, y).to(s.dtype)) if row_loss.separable else (row, row)
        for block in zip(*(_cut(part, height, width) for part in (z, y, s, row, *own, g)), strict=True):
            out = buffers if block[0].shape == first.shape else [_cut_to(buffer, block[0].shape) for buffer in buffers]
            _fill_block(row_loss, block, [block[-1], *out] if in_place else out, gradient)
    return rows.mul_(scale), slope


def _fill_block(row_loss: RowLoss, block: tuple[Tensor, ...], out: list[Tensor], gradient: bool) -> None:
    logits, target, scale, row, own, own_slope, slope = block
    wide = logits if logits.dtype == scale.dtype else out[0].copy_(logits)
    terms, block_slope = row_loss.block(wide, target, scale, out, gradient)
    if row_loss.separable:
        terms.scatter_(1, target, own)
        if gradient:
            block_slope.scatter_(1, target, own_slope * scale)
    torch.sum(terms, 1, keepdim=True, out=row)
    if gradient and block_slope.dtype != slope.dtype:
        slope.copy_(block_slope)


def _sweep_dense(
    row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, label_smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The same for targets that are no class indices: the definition, differentiated block by block."""
    slope = torch.empty_like(logits) if gradient else None
    scale = scale.unsqueeze(1)
    rows = torch.empty_like(scale)
    height, width = _block_shape(logits, DENSE_BUFFERS, DENSE_BUFFERS)
    target = target if target.dim() == logits.dim() else target.unsqueeze(1)
    parts = (logits, target, scale, rows, logits if slope is None else slope)
    for z, t, s, row, g in zip(*(_cut(part, height, width) for part in parts), strict=True):
        z = z.detach().to(scale.dtype)
        with torch.set_grad_enabled(gradient):
            t = t if t.shape == z.shape else t.squeeze(1)
            losses = differentiable_rows(row_loss, z.requires_grad_(gradient), t, label_smoothing).unsqueeze(1)
        torch.mul(losses.detach(), s, out=row)
        if gradient:
            g.copy_(torch.autograd.grad(losses, z, s)[0])
    return rows.squeeze(1), slope


def _cut(tensor: Tensor, height: int, width: int) -> Iterator[Tensor]:
    """Blocks of up to ``height`` samples and ``width`` positions."""
    for rows in torch.split(tensor, height):
        if rows.dim() == 3:
            yield from torch.split(rows, width, 2)
        else:
            yield rows


def mean_weight(target: Tensor, class_weight: Tensor, blocked: bool = False) -> Tensor:
    """Weight of each sample with a target of the logits' shape: the mean under it, and 1 for a target of zeros."""
    per_class = class_weight.view(-1, *(1,) * (target.dim() - 2))
    if not blocked or target.numel() <= SMALLEST_BLOCK:
        target = target.to(class_weight.dtype)
        mass, total = target.sum(1), (target * per_class).sum(1)
    else:
        height, width = _shape_for(2 * SMALLEST_BLOCK, target.shape[1], target.shape[2:].numel())
        mass = torch.empty_like(target[:, :1], dtype=class_weight.dtype)
        total = torch.empty_like(mass)
        for block, m, t in zip(*(_cut(part, height, width) for part in (target, mass, total)), strict=True):
            torch.sum(block, 1, keepdim=True, dtype=m.dtype, out=m)
            torch.sum(block * per_class, 1, keepdim=True, out=t)
        mass, total = mass.squeeze(1), total.squeeze(1)
    return torch.where(mass > 0, total / torch.where(mass > 0, mass, 1), 1)


def _cut_to(buffer: Tensor, shape: torch.Size) -> Tensor:
    buffer = buffer.narrow(0, 0, shape[0])
    return buffer.narrow(2, 0, shape[2]) if len(shape) == 3 else buffer


def _block_shape(logits: Tensor, buffers: int, allocated: int) -> tuple[int, int]:
    """How many samples, and how many positions of each, a block has, if so many of its buffers must be allocated."""
    elements, classes, positions = logits.numel(), logits.shape[1], logits.shape[2:].numel()
    size = max(SMALLEST_BLOCK, BLOCK_PER_THREAD // buffers) * torch.get_num_threads() if logits.is_cpu else elements
    if not allocated:
        return _shape_for(size, classes, positions)
    # However many threads there are, the buffers of a large batch, with one that operations on several of them or on
    # parts of samples may allocate, and a few numbers per sample, take no more than half of what its logits take.
    width = compute_dtype(logits.dtype).itemsize
    spare = logits.nbytes // 2 - 6 * width * elements // max(classes, 1)
    reserved = buffers > 1 or positions > 1
    size = min(size, max(SMALLEST_BLOCK, spare // (width * (allocated + reserved))))
    return _shape_for(size, classes, positions)


def _shape_for(size: int, classes: int, positions: int) -> tuple[int, int]:
    """Samples, and positions of each, that have no more than ``size`` elements."""
    if classes * positions <= size:
        return size // max(1, classes * positions), max(1, positions)
    return 1, max(1, size // classes)
