"""Which samples are in which batch of which process: a pure function of the seed and the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from longtail._checks import check_positive_integer
from longtail.counts import IntArray

Order = Callable[[int], IntArray]
"""From the epoch to its samples, one after the other: what a sampler of any kind is here. All epochs are as long."""

# Streams of random numbers: what is drawn from one never depends on how much was drawn from another.
ORDER, CROPS, MIXING = 0, 1, 2


@dataclass(frozen=True)
class Shard:
    """Which of several processes this one is.

    Example:
        >>> Shard(rank=1, processes=4)
        Shard(rank=1, processes=4)
    """

    rank: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.processes:
            raise ValueError(f"rank must be in [0, {self.processes}) for {self.processes} processes, got {self.rank}")


def shuffled(count: int, seed: int) -> Order:
    """All of ``count`` samples, each once, in an order drawn from (seed, epoch).

    Example:
        >>> order = shuffled(5, seed=0)
        >>> sorted(order(3).tolist()), bool((order(3) == order(3)).all())
        ([0, 1, 2, 3, 4], True)
    """
    return lambda epoch: np.random.default_rng([seed, epoch, ORDER]).permutation(count)


def in_order(count: int) -> Order:
    """All of ``count`` samples, as they come.

    Example:
        >>> in_order(3)(7)
        array([0, 1, 2])
    """
    return lambda epoch: np.arange(count)


class BatchPlan:
    """How an epoch is cut into batches, and each batch is dealt out to the processes.

    There are as few batches as ``batch_size`` allows, all of the same size or one less, so that none is small at the
    end. The parts of all processes together are the batches of a single process: nothing is left out or repeated.

    Example:
        >>> plan = BatchPlan(in_order(10), batch_size=4)
        >>> [plan.part(batch) for batch in range(len(plan))]
        [(slice(0, 4, None), 4), (slice(4, 7, None), 3), (slice(7, 10, None), 3)]
        >>> BatchPlan(in_order(10), 4, Shard(rank=1, processes=2)).part(0)
        (slice(2, 4, None), 4)
    """

    def __init__(self, order: Order, batch_size: int, shard: Shard = Shard()) -> None:
        check_positive_integer("batch_size", batch_size)
        self.order, self.shard, self.count = order, shard, len(order(0))
        check_positive_integer("count", self.count)
        self._edges = cut(self.count, math.ceil(self.count / batch_size))
        self.smallest = self.count // len(self)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def samples(self, epoch: int) -> IntArray:
        """The samples of an epoch, all of them."""
        samples = np.ascontiguousarray(self.order(epoch), dtype=np.int64)
        if len(samples) != self.count:
            raise ValueError(f"order gives {len(samples)} samples in epoch {epoch}, but {self.count} in epoch 0")
        return samples

    def parts_from(self, start: int) -> Iterator[slice]:
        """Where in the epoch's order this process finds its parts of the batches from ``start`` on."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be in [0, {len(self)}] for {len(self)} batches, got {start}")
        return (self.part(batch)[0] for batch in range(start, len(self)))

    def part(self, batch: int) -> tuple[slice, int]:
        """Where in the epoch's order this process finds its part of a batch, and how large the whole batch is."""
        first, last = self._edges[batch], self._edges[batch + 1]
        parts = cut(last - first, self.shard.processes)
        return slice(first + parts[self.shard.rank], first + parts[self.shard.rank + 1]), last - first


def cut(count: int, parts: int) -> list[int]:
    """Edges of ``parts`` pieces of ``count``, the larger ones first.

    Example:
        >>> cut(10, 3)
        [0, 4, 7, 10]
    """
    size, larger = divmod(count, parts)
    return [part * size + min(part, larger) for part in range(parts + 1)]
