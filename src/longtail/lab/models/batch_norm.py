"""Batch norm over the batches of all processes, on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist


class SyncBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with the statistics of the whole batch; PyTorch's own does that on accelerators only."""

    def forward(self, maps: Tensor) -> Tensor:
        """Normalised maps of the same shape."""
        if not self.training:
            return super().forward(maps)
        values = maps.float()
        count = values.numel() // values.shape[1]
        # Sums of squares in float64: the difference of two of them is all that may be left of a small variance.
        variance, mean = (part.double() for part in torch.var_mean(values, dim=(0, 2, 3), correction=0))
        sums = torch.cat([count * mean, count * (variance + mean.square()), mean.new_tensor([count])])
        sums = _SumOverProcesses.apply(sums)  # type: ignore[no-untyped-call]
        total = sums[-1]
        mean, square = (sums[:-1] / total).chunk(2)
        variance = (square - mean.square()).clamp_min(0).float()
        mean, total = mean.float(), total.float()
        with torch.no_grad():
            momentum = 0.1 if self.momentum is None else self.momentum
            assert self.running_mean is not None
            assert self.running_var is not None
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (total / (total - 1).clamp_min(1)), momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * scale
        normalised: Tensor = values * scale[:, None, None] + shift[:, None, None]
        return normalised.to(maps.dtype)


class SyncBatchNormAct2d(SyncBatchNorm2d):
    """The same with the activation that models of timm have in their batch norms."""

    drop: nn.Module
    act: nn.Module

    def forward(self, maps: Tensor) -> Tensor:
        """Normalised and activated maps of the same shape."""
        activated: Tensor = self.act(self.drop(super().forward(maps)))
        return activated


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def synchronise_batch_norms(network: nn.Module) -> nn.Module:
    """Replace the batch norms of a network by ones that see all processes, with the same parameters."""
    for module in network.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d
        elif type(module).__name__ == "BatchNormAct2d":  # of timm
            module.__class__ = SyncBatchNormAct2d
    return network
