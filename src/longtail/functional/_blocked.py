"""Loss and gradient in one sweep over blocks that fit the cache.

Written as plain tensor operations, a focal loss allocates a dozen tensors of the size of the logits and reads each from
main memory. Here the logits are cut into blocks; of each block the losses *and* the gradient are formed while it is in
the cache, and only the gradient is kept. Backward then has nothing left to do but scale it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["RowLoss", "compute_dtype", "weighted_loss"]

# Elements of a block, for each thread: the four buffers of the focal loss then take 1 MiB, which a second-level cache
# holds, and PyTorch still gives every thread more than the 32,768 elements it asks for. Half and twice as many measure
# slower or no faster. An accelerator has no such cache to mind, and takes the largest block that memory allows.
BLOCK_PER_THREAD = 65_536
# Below this, memory is not worth another launch of every operation.
SMALLEST_BLOCK = 32_768


class RowLoss(Protocol):
    """One loss per sample ("row"), written twice: to be differentiated, and to be fast.

    Logits have shape (N, C) or (N, C, D), class indices (N) or (N, D), losses (N) or (N, D).
    """

    buffers: int
    """Temporaries of a block's size that :meth:`block_` needs."""

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        """Loss of each sample, as differentiable operations: the definition."""
        ...

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        """The same for a target of the logits' shape, linear in the target."""
        ...

    def block_(self, logits: Tensor, target: Tensor, scale: Tensor, work: list[Tensor], gradient: bool) -> Tensor:
        """Terms whose sum over dimension 1 is ``scale`` × the loss of each sample of a block.

        If ``gradient``, ``logits`` is overwritten with the gradient of that; it may be overwritten in any case.
        ``target`` and ``scale`` keep the class dimension, with size 1.
        """
        ...


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Losses of 16-bit logits are computed and returned in float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def weighted_loss(row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, total: bool) -> Tensor:
    """``scale`` × loss of each sample, or the total of it, as one node of the graph."""
    if logits.requires_grad and torch.is_grad_enabled():
        loss: Tensor = _Blocked.apply(logits, target, scale, row_loss, total)  # type: ignore[no-untyped-call]
        return loss
    return _sweep(row_loss, logits, target, scale, None, total)


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, scale: Tensor, row_loss: RowLoss, total: bool) -> Tensor:
        # A float16 gradient must be born with the loss scale of mixed-precision training in it, or it underflows;
        # that scale is known only in backward.
        ctx.gradient = None if logits.dtype == torch.float16 else torch.empty_like(logits)
        ctx.row_loss = row_loss
        ctx.total = total
        ctx.save_for_backward(logits, target, scale)
        return _sweep(row_loss, logits, target, scale, ctx.gradient, total)

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: somebody will differentiate this gradient
            logits, target, scale = ctx.saved_tensors
            rows = ctx.row_loss.from_indices(logits.to(scale.dtype), target) * scale
            loss = rows.sum() if ctx.total else rows
            (gradient,) = torch.autograd.grad(loss, logits, grad_loss, create_graph=True)
        elif ctx.gradient is not None:
            # Handed over, not copied: a second backward (retain_graph=True) forms it anew below.
            gradient, ctx.gradient = ctx.gradient, None
            if not ctx.total:
                gradient.mul_(grad_loss.unsqueeze(1))
            elif grad_loss.device.type != "cpu" or grad_loss.item() != 1:  # on the CPU .item() is no sync
                gradient.mul_(grad_loss)
        else:
            logits, target, scale = ctx.saved_tensors
            gradient = torch.empty_like(logits)
            _sweep(ctx.row_loss, logits, target, scale * grad_loss, gradient, total=True)
        return gradient, None, None, None, None


def _sweep(
    row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, gradient: Tensor | None, total: bool
) -> Tensor:
    """Run :meth:`RowLoss.block_` over all blocks, into ``gradient`` if there is one."""
    target, scale = target.unsqueeze(1), scale.unsqueeze(1)
    height, width = _block_shape(logits, row_loss.buffers)
    if height >= logits.shape[0] and width >= logits.shape[2:].numel():
        terms = _block(row_loss, logits, target, scale, gradient, _buffers(row_loss, logits, gradient))
        return terms.sum() if total else terms.sum(1)
    buffers = _buffers(row_loss, logits[:height, :, :width] if logits.dim() == 3 else logits[:height], gradient)
    rows = torch.empty_like(scale)
    parts = (logits, target, scale, rows, logits if gradient is None else gradient)
    for z, y, s, out, g in zip(*(_cut(part, height, width) for part in parts), strict=True):
        work = buffers if z.shape == buffers[0].shape else [_cut_to(buffer, z.shape) for buffer in buffers]
        terms = _block(row_loss, z, y, s, None if gradient is None else g, work)
        torch.sum(terms, 1, keepdim=True, out=out)
    return rows.sum() if total else rows.squeeze(1)


def _block(
    row_loss: RowLoss, logits: Tensor, target: Tensor, scale: Tensor, gradient: Tensor | None, work: list[Tensor]
) -> Tensor:
    if gradient is None:
        return row_loss.block_(work[-1].copy_(logits), target, scale, work[:-1], False)
    if gradient.dtype == scale.dtype:
        return row_loss.block_(gradient.copy_(logits), target, scale, work, True)
    terms = row_loss.block_(work[-1].copy_(logits), target, scale, work[:-1], True)
    gradient.copy_(work[-1])
    return terms


def _cut_to(buffer: Tensor, shape: torch.Size) -> Tensor:
    buffer = buffer.narrow(0, 0, shape[0])
    return buffer.narrow(2, 0, shape[2]) if len(shape) == 3 else buffer


def _cut(tensor: Tensor, height: int, width: int) -> Iterator[Tensor]:
    """Blocks of up to ``height`` samples and ``width`` positions."""
    for rows in torch.split(tensor, height):
        if rows.dim() == 3:
            yield from torch.split(rows, width, 2)
        else:
            yield rows


def _buffers(row_loss: RowLoss, block: Tensor, gradient: Tensor | None) -> list[Tensor]:
    """Temporaries of the size of ``block``, one more where the gradient cannot serve as one."""
    dtype = compute_dtype(block.dtype)
    in_place = gradient is not None and gradient.dtype == dtype
    return [torch.empty_like(block, dtype=dtype) for _ in range(row_loss.buffers + (not in_place))]


def _block_shape(logits: Tensor, buffers: int) -> tuple[int, int]:
    """How many samples, and how many positions of each, a block has."""
    positions = logits.shape[2:].numel()
    elements = logits.numel()
    size = BLOCK_PER_THREAD * torch.get_num_threads() if logits.device.type == "cpu" else elements
    # However many threads there are, the buffers of a large batch take no more than half of what its logits take.
    widening = compute_dtype(logits.dtype).itemsize // logits.dtype.itemsize
    size = min(size, max(SMALLEST_BLOCK, elements // (2 * widening * (buffers + 1))))
    per_sample = logits.shape[1] * positions
    if per_sample <= size:
        return size // max(per_sample, 1), max(positions, 1)
    return 1, max(1, size // logits.shape[1])
