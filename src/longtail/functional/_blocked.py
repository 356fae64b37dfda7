"""Loss and gradient in one sweep over blocks that fit the cache.

Written as plain tensor operations, a focal loss allocates a dozen tensors of the size of the logits and reads each from
main memory. Here the logits are cut into blocks; of each block the losses *and* the gradient are formed while it is in
the cache, and only the gradient is kept. Backward then has nothing left to do but scale it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["RowLoss", "compute_dtype", "weighted_loss"]

# Elements of a block, for each thread: the four buffers of the focal loss then take 1 MiB, which a second-level cache
# holds, and PyTorch still gives every thread more than the 32,768 elements it asks for. Half and twice as many measure
# slower or no faster. An accelerator has no such cache to mind, and takes the largest block that memory allows.
BLOCK_PER_THREAD = 65_536
# Up to here one block without buffers is fastest, and memory is not worth another launch of every operation.
SMALLEST_BLOCK = 32_768

Buffers = Sequence[Tensor | None]
NO_BUFFERS: Buffers = (None,) * 4


class RowLoss(Protocol):
    """One loss per sample ("row"), written twice: to be differentiated, and to be fast.

    Logits have shape (N, C) or (N, C, D), class indices (N) or (N, D), losses (N) or (N, D).
    """

    buffers: int
    """Tensors of a block's size that :meth:`block` fills, 4 at most, the gradient among them."""

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        """Loss of each sample, as differentiable operations: the definition."""
        ...

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        """The same for a target of the logits' shape, linear in the target."""
        ...

    def block(
        self, logits: Tensor, target: Tensor, scale: Tensor, out: Buffers, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Terms whose sum over dimension 1 is ``scale`` × the loss of each sample of a block, and its gradient.

        ``target`` and ``scale`` keep the class dimension, with size 1. ``out`` holds buffers of the dtype of ``scale``
        for the ``out=`` of operations, the first for the gradient; or None where these had better allocate, and then
        the logits have that dtype, too. Where no ``gradient`` is asked for, the second value has no meaning.
        """
        ...


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Losses of 16-bit logits are computed and returned in float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def weighted_loss(row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, total: bool) -> Tensor:
    """``scale`` × loss of each sample, or the total of it, as one node of the graph."""
    if logits.requires_grad and torch.is_grad_enabled():
        loss: Tensor = _Blocked.apply(logits, (row_loss, target, scale, total))  # type: ignore[no-untyped-call]
        return loss
    return _sweep(row_loss, logits, target, scale, total, gradient=False)[0]


class _Blocked(torch.autograd.Function):
    # Only the logits are differentiated, so all else comes as one argument that autograd need not look at.
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rest: tuple[RowLoss, Tensor, Tensor, bool]) -> Tensor:
        row_loss, target, scale, total = rest
        ctx.save_for_backward(logits, target, scale)
        ctx.row_loss, ctx.total = row_loss, total
        # A float16 gradient must be born with the loss scale of mixed-precision training in it, or it underflows;
        # that scale is known only in backward.
        loss, ctx.gradient = _sweep(row_loss, logits, target, scale, total, gradient=logits.dtype != torch.float16)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, None]:
        if torch.is_grad_enabled():  # create_graph=True: somebody will differentiate this gradient
            logits, target, scale = ctx.saved_tensors
            alias = logits.view_as(logits)  # so that hooks on the logits see their gradient once, and not here
            rows = ctx.row_loss.from_indices(alias.to(scale.dtype), target) * scale
            loss = rows.sum() if ctx.total else rows
            return torch.autograd.grad(loss, alias, grad_loss, create_graph=True)[0], None
        try:
            return _scaled_gradient(ctx, grad_loss), None
        except RuntimeError:  # is_grads_batched=True: many gradients at once, which in-place operations refuse
            logits, target, scale = ctx.saved_tensors
            _, gradient = _sweep(ctx.row_loss, logits, target, scale, total=True, gradient=True)
            return gradient * (grad_loss if ctx.total else grad_loss.unsqueeze(1)), None  # type: ignore[operator]


def _scaled_gradient(ctx: Any, grad_loss: Tensor) -> Tensor | None:
    if ctx.gradient is None:
        logits, target, scale = ctx.saved_tensors
        return _sweep(ctx.row_loss, logits, target, scale * grad_loss, total=True, gradient=True)[1]
    # Handed over, not copied: a second backward (retain_graph=True) forms it anew.
    gradient: Tensor = ctx.gradient
    ctx.gradient = None
    if not ctx.total:
        gradient.mul_(grad_loss.unsqueeze(1))
    elif not grad_loss.is_cpu or grad_loss.item() != 1:  # on the CPU .item() is no sync
        gradient.mul_(grad_loss)
    return gradient


def _sweep(
    row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, total: bool, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Loss, in total or of each sample, and its gradient if asked for."""
    target, scale = target.unsqueeze(1), scale.unsqueeze(1)
    if logits.numel() > SMALLEST_BLOCK:
        rows, slope = _sweep_blocks(row_loss, logits, target, scale, gradient)
        return (rows.sum() if total else rows.squeeze(1)), slope
    wide = logits if logits.dtype == scale.dtype else logits.to(scale.dtype)
    terms, slope = row_loss.block(wide, target, scale, NO_BUFFERS, gradient)
    if wide is not logits:
        slope = slope.to(logits.dtype)
    return (terms.sum() if total else terms.sum(1)), (slope if gradient else None)


def _sweep_blocks(
    row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    slope = torch.empty_like(logits) if gradient else None
    rows = torch.empty_like(scale)
    height, width = _block_shape(logits, row_loss.buffers)
    first = next(_cut(logits, height, width))
    in_place = slope is not None and slope.dtype == scale.dtype
    buffers = [torch.empty_like(first, dtype=scale.dtype) for _ in range(row_loss.buffers - in_place)]
    parts = (logits, target, scale, rows, logits if slope is None else slope)
    for z, y, s, row, g in zip(*(_cut(part, height, width) for part in parts), strict=True):
        out = buffers if z.shape == first.shape else [_cut_to(buffer, z.shape) for buffer in buffers]
        terms, block_slope = row_loss.block(z, y, s, [g, *out] if in_place else out, gradient)
        torch.sum(terms, 1, keepdim=True, out=row)
        if gradient and not in_place:
            g.copy_(block_slope)
    return rows, slope


def _cut(tensor: Tensor, height: int, width: int) -> Iterator[Tensor]:
    """Blocks of up to ``height`` samples and ``width`` positions."""
    for rows in torch.split(tensor, height):
        if rows.dim() == 3:
            yield from torch.split(rows, width, 2)
        else:
            yield rows


def _cut_to(buffer: Tensor, shape: torch.Size) -> Tensor:
    buffer = buffer.narrow(0, 0, shape[0])
    return buffer.narrow(2, 0, shape[2]) if len(shape) == 3 else buffer


def _block_shape(logits: Tensor, buffers: int) -> tuple[int, int]:
    """How many samples, and how many positions of each, a block has."""
    elements, classes, positions = logits.numel(), logits.shape[1], logits.shape[2:].numel()
    size = BLOCK_PER_THREAD * torch.get_num_threads() if logits.device.type == "cpu" else elements
    # However many threads there are, the buffers of a large batch, with one that an operation may allocate by itself
    # and a few numbers per sample, take no more than half of what its logits take.
    width = compute_dtype(logits.dtype).itemsize
    spare = logits.nbytes // 2 - 4 * width * elements // classes
    size = min(size, max(SMALLEST_BLOCK, spare // (width * (buffers + 1))))
    if classes * positions <= size:
        return size // (classes * positions), positions
    return 1, max(1, size // classes)
