"""Classes split over the ranks of a process group: who holds what, and what is sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Shards"]


@dataclass(frozen=True)
class Shards:
    """The batch and the classes of every rank.

    Each rank brings n samples and the weights of some classes. Sent are features and labels of the batch, three numbers
    per sample, and the gradient by features: nothing that grows with the number of classes.
    """

    group: dist.ProcessGroup
    samples: tuple[int, ...]
    """How many each rank has in this batch."""
    classes: tuple[int, ...]
    """How many each rank has; rank 0 has the first."""

    @classmethod
    def of(cls, group: dist.ProcessGroup, features: Tensor, weight: Tensor) -> Shards:
        """Ask all ranks for their numbers of samples and classes."""
        mine = torch.tensor([len(features), len(weight)], device=features.device)
        pairs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pairs, mine, group=group)
        samples, classes = zip(*(pair.tolist() for pair in pairs), strict=True)
        return cls(group, samples, classes)

    @property
    def rank(self) -> int:
        """Which rank of the group this process is."""
        return dist.get_rank(self.group)

    @property
    def first_class(self) -> int:
        """The class of the first row of this rank's weight."""
        return sum(self.classes[: self.rank])

    def gather(self, mine: Tensor) -> Tensor:
        """The rows of all ranks, in the order of ranks."""
        most = max(self.samples)
        padded = mine.new_zeros(most, *mine.shape[1:])
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in self.samples]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:rows] for part, rows in zip(parts, self.samples, strict=True)])

    def mine(self, rows: Tensor) -> Tensor:
        """Those of this rank, out of the rows of all."""
        first = sum(self.samples[: self.rank])
        return rows[first : first + self.samples[self.rank]]

    def sum_mine(self, rows: Tensor) -> Tensor:
        """The rows of this rank, summed over what all ranks have for them."""
        most = max(self.samples)
        parts = []
        for part in torch.split(rows, list(self.samples)):
            padded = rows.new_zeros(most, *rows.shape[1:])
            padded[: len(part)] = part
            parts.append(padded)
        out = torch.empty_like(parts[0])
        dist.reduce_scatter(out, parts, group=self.group)
        return out[: self.samples[self.rank]]

    def sum(self, value: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place."""
        dist.all_reduce(value, group=self.group)
        return value

    def maximum(self, value: Tensor) -> Tensor:
        """Elementwise maximum over all ranks, in place."""
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.group)
        return value
