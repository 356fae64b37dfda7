"""Losses of logits that are sharded over processes (DTensor), as in tensor-parallel training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["is_sharded", "sharded_loss"]


def is_sharded(logits: Tensor) -> bool:
    """Whether the logits are a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # where it is not imported, nothing is one
    return module is not None and isinstance(logits, module.DTensor)


def sharded_loss(
    rows_and_divisor: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]], logits: Any, target: Any, total: bool
) -> Tensor:
    """The loss of a DTensor, as a DTensor: each process computes that of its samples, with all of their classes.

    Samples stay where they are; classes that are sharded are gathered, so that each process holds whole rows of logits.
    ``rows_and_divisor`` returns the losses of some samples, and what to divide their sum by, if by anything.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh, batched = logits.device_mesh, logits.dim() > 1
    samples = [Shard(0) if batched and placement == Shard(0) else Replicate() for placement in logits.placements]
    if isinstance(target, DTensor):
        target = target.redistribute(mesh, samples)
    else:  # the labels of all samples, the same in every process
        target = distribute_tensor(target, mesh, samples, src_data_rank=None)
    local = logits.redistribute(mesh, samples).to_local(grad_placements=samples)
    rows, divisor = rows_and_divisor(local, target.to_local())
    losses: Tensor = DTensor.from_local(rows, mesh, samples, run_check=False)
    if not total:
        return losses
    loss: Tensor = losses.sum().redistribute(mesh, [Replicate()] * mesh.ndim)  # type: ignore[attr-defined]
    if divisor is None:
        return loss
    sums = [Partial() if placement == Shard(0) else placement for placement in samples]
    whole: Tensor = DTensor.from_local(divisor, mesh, sums, run_check=False)
    whole = whole.redistribute(mesh, [Replicate()] * mesh.ndim)  # type: ignore[attr-defined]
    return loss / torch.where(whole > 0, whole, 1)
