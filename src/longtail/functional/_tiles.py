"""Losses of a linear layer, tile by tile: the N × C logits never exist as a whole.

A tile holds the logits of some samples for some classes. Its losses and its share of the three gradients are formed
while it is in the cache, then the next tile overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from longtail.functional._blocked import compute_dtype

__all__ = ["Gradients", "Kind", "Needs", "Odds", "Problem", "Ranks", "Separable"]

# Elements of a tile for each thread, and at most: 1 MiB in float32 stays in a second-level cache, and is large enough
# for the matrix products. Half and twice as many measure no faster. An accelerator is given fewer, larger ones.
TILE_PER_THREAD = 262_144
LARGEST_TILE = 2_097_152
ACCELERATOR_TILE = 16_777_216
TALLEST_TILE = 2048
# Elements that the first of two sweeps keeps for the second, 64 MB in float32: with the first tiles, a product less.
KEPT_ELEMENTS = 16_777_216

Needs = tuple[bool, bool, bool]
"""Whether features, weight and offset need a gradient."""


class Ranks(Protocol):
    """Sums and maxima over the processes that share the classes."""

    def sum(self, value: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place."""
        ...

    def maximum(self, value: Tensor) -> Tensor:
        """Elementwise maximum over all ranks, in place."""
        ...


class Gradients(NamedTuple):
    """By features (N, D), weight (C, D) and offset (C,); None where none is needed."""

    features: Tensor | None
    weight: Tensor | None
    offset: Tensor | None


@dataclass(frozen=True)
class Problem:
    """A linear layer and what it should predict: logits are features @ weight.T + offset.

    ``target`` holds class indices relative to the first row of ``weight``. Those outside of it belong to other ranks.
    Products of matrices are computed in the dtype of ``features``, to which ``weight`` is cast block by block.
    """

    features: Tensor
    weight: Tensor
    offset: Tensor | None
    target: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of logits and losses."""
        return compute_dtype(self.features.dtype)

    def per_sample(self, value: float) -> Tensor:
        """One number per sample."""
        return torch.full((len(self.features), 1), value, dtype=self.dtype, device=self.features.device)

    def buffers(self, number: int) -> list[Tensor]:
        """Memory for the elements of a tile, several times."""
        height, width = self._tile_shape()
        return [torch.empty(height * width, dtype=self.dtype, device=self.features.device) for _ in range(number)]

    def tiles(self) -> Iterator[Tile]:
        """All tiles, those of the same classes one after another."""
        height, width = self._tile_shape()
        classes = len(self.weight)
        starts = range(0, classes, width)
        edges = torch.tensor([*starts, classes], device=self.target.device)
        chunks = []
        for first in range(0, len(self.features), height):
            labels, order = self.target[first : first + height].sort()
            chunks.append((first, labels, order, torch.searchsorted(labels, edges).tolist()))
        for index, start in enumerate(starts):
            weight = self.weight[start : start + width].to(self.features.dtype)
            for first, labels, order, bounds in chunks:
                rows, columns = slice(first, first + len(order)), slice(start, start + len(weight))
                mine = slice(bounds[index], bounds[index + 1])
                own = order[mine] * len(weight) + (labels[mine] - start) if mine.start < mine.stop else None
                yield Tile(self, rows, columns, weight, own, order[mine])

    def _tile_shape(self) -> tuple[int, int]:
        samples, classes = max(1, len(self.features)), max(1, len(self.weight))
        if self.features.is_cpu:
            size = min(LARGEST_TILE, TILE_PER_THREAD * torch.get_num_threads())
        else:
            size = ACCELERATOR_TILE
        height = min(samples, TALLEST_TILE)
        return height, min(classes, max(1, size // height))


@dataclass(frozen=True)
class Tile:
    """Some samples (``rows``) and some classes (``columns``), and where in it samples meet their own class."""

    problem: Problem
    rows: slice
    columns: slice
    weight: Tensor
    own: Tensor | None
    """Positions of these in the flat tile; None if there are none."""
    own_rows: Tensor
    """The samples they belong to, counted from the first of the tile."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    def view(self, buffer: Tensor) -> Tensor:
        """The part of a flat buffer that this tile takes."""
        height, width = self.shape
        return buffer[: height * width].view(height, width)

    def logits(self, buffer: Tensor, minus: Tensor | None = None) -> Tensor:
        """The logits in ``buffer``; ``minus``, one number per sample, is subtracted."""
        problem, z = self.problem, self.view(buffer)
        features = problem.features[self.rows]
        offset = None if problem.offset is None else problem.offset[self.columns]
        if minus is not None:
            offset = -minus[self.rows] if offset is None else offset - minus[self.rows]
        if z.dtype != features.dtype:
            z.copy_(features @ self.weight.T)
            return z if offset is None else z.add_(offset)
        if offset is None:
            return torch.mm(features, self.weight.T, out=z)
        return z.copy_(offset).addmm_(features, self.weight.T)

    def flip_own(self, values: Tensor) -> None:
        """Change the sign of samples' own classes, in place."""
        if self.own is not None:
            flat = values.view(-1)
            flat[self.own] = -flat[self.own]


class _Sums:
    """The three gradients, added up over tiles.

    The weights of samples are not multiplied into the tiles, but into the features beforehand and into their gradient
    afterwards: one pass over N × C numbers less.
    """

    def __init__(self, problem: Problem, scale: Tensor, needs: Needs) -> None:
        features, weight = problem.features, problem.weight
        self.scale = scale
        self.scaled = (features.to(scale.dtype) * scale).to(features.dtype) if needs[1] else features
        self.features = torch.zeros_like(features, dtype=scale.dtype) if needs[0] else None
        self.weight = torch.empty_like(weight) if needs[1] else None
        self.offset = torch.empty(len(weight), dtype=scale.dtype, device=scale.device) if needs[2] else None
        if not len(features):
            for gradient in (self.weight, self.offset):
                if gradient is not None:
                    gradient.zero_()
        self._block: Tensor | None = None

    def add(self, tile: Tile, slope: Tensor) -> None:
        """Add the share of a tile, from the derivative by its logits."""
        narrow = slope.to(tile.weight.dtype)
        if self.features is not None:
            sums = self.features[tile.rows]
            if narrow.dtype == sums.dtype:
                sums.addmm_(narrow, tile.weight)
            else:
                sums.add_(narrow @ tile.weight)
        if self.offset is not None:
            _put(self.offset[tile.columns], slope.T @ self.scale[tile.rows, 0], first=tile.rows.start == 0)
        if self.weight is not None:
            self._add_weight(tile, narrow)

    def _add_weight(self, tile: Tile, slope: Tensor) -> None:
        assert self.weight is not None
        block, scaled = self.weight[tile.columns], self.scaled[tile.rows]
        last = tile.rows.stop == len(self.scaled)
        if block.dtype == scaled.dtype and (block.dtype == self.scale.dtype or (last and tile.rows.start == 0)):
            if tile.rows.start == 0:
                torch.mm(slope.T, scaled, out=block)
            else:
                block.addmm_(slope.T, scaled)
            return
        # Sums over samples in 16 bits would lose the small ones.
        part = (slope.T @ scaled).to(self.scale.dtype)
        self._block = part if tile.rows.start == 0 or self._block is None else self._block.add_(part)
        if last:
            block.copy_(self._block)
            self._block = None

    def totals(self) -> Gradients:
        if self.features is not None:
            self.features.mul_(self.scale)
        return Gradients(self.features, self.weight, self.offset)


def _put(out: Tensor, part: Tensor, first: bool) -> None:
    if first:
        out.copy_(part)
    else:
        out.add_(part)


class Kind(Protocol):
    """A loss of a linear layer's logits."""

    def sweep(self, problem: Problem, scale: Tensor, needs: Needs, ranks: Ranks | None) -> tuple[Tensor, Gradients]:
        """Loss of each sample, and the gradients of the sum of ``scale`` × loss, those that are needed.

        Losses (N, 1) are of all ranks, and not yet multiplied by ``scale`` (N, 1). Of the gradient by features each
        rank has a share, to be summed.
        """
        ...


class Separable:
    """Σ over classes of sigmoid(v)^γ softplus(v), v = -z of the own class and z of all others: one sweep."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def sweep(self, problem: Problem, scale: Tensor, needs: Needs, ranks: Ranks | None) -> tuple[Tensor, Gradients]:
        """See :class:`Kind`."""
        rows = problem.per_sample(0.0)
        gradient, sums = any(needs), _Sums(problem, scale, needs)
        buffers = problem.buffers(4 if self.gamma else 3)
        for tile in problem.tiles():
            v = tile.logits(buffers[0])
            tile.flip_own(v)
            value, slope = value_and_slope(v, self.gamma, [tile.view(buffer) for buffer in buffers[1:]], gradient)
            rows[tile.rows] += value.sum(1, keepdim=True)
            if gradient:
                tile.flip_own(slope)
                sums.add(tile, slope)
        return rows if ranks is None else ranks.sum(rows), sums.totals()


class Odds:
    """sigmoid(v)^γ softplus(v), v = log Σ_{j≠y} exp z_j - z_y the log-odds against the own class: two sweeps.

    The first forms the sum over the other classes, the second the gradient: by z_j it is exp(z_j - log Σ) times the
    derivative by v, and by z_y that derivative with the other sign.
    """

    def __init__(self, gamma: float = 0.0) -> None:
        self.gamma = gamma

    def sweep(self, problem: Problem, scale: Tensor, needs: Needs, ranks: Ranks | None) -> tuple[Tensor, Gradients]:
        """See :class:`Kind`."""
        (buffer,) = problem.buffers(1)
        others, own, kept = self._others(problem, buffer, ranks, KEPT_ELEMENTS if any(needs) else 0)
        v = others - own
        value, slope = value_and_slope(v, self.gamma, [torch.empty_like(v) for _ in range(3)], gradient=True)
        sums = _Sums(problem, scale, needs)
        if any(needs):
            minus = others - slope.log()
            for tile, first in zip_longest(problem.tiles(), kept):
                if first is None:
                    share = tile.logits(buffer, minus).exp_()
                else:
                    share = first.shares.mul_(torch.exp(first.top - minus[tile.rows]))
                if tile.own is not None:
                    share.view(-1)[tile.own] = -slope[tile.rows][tile.own_rows, 0]
                sums.add(tile, share)
        return value, sums.totals()

    @staticmethod
    def _others(
        problem: Problem, buffer: Tensor, ranks: Ranks | None, spare: int
    ) -> tuple[Tensor, Tensor, list[_Kept]]:
        """The log-sum-exp of the logits of all classes but the own one, the own logit, and what is kept of tiles."""
        least = torch.finfo(problem.dtype).min  # and not -inf, whose difference to itself is NaN
        largest, total, own = problem.per_sample(least), problem.per_sample(0.0), problem.per_sample(0.0)
        kept: list[_Kept] = []
        for tile in problem.tiles():
            spare -= tile.shape[0] * tile.shape[1]
            z = tile.logits(buffer if spare < 0 else torch.empty_like(buffer))
            if tile.own is not None:
                flat = z.view(-1)
                own[tile.rows][tile.own_rows, 0] = flat[tile.own]
                flat[tile.own] = least
            top = torch.maximum(largest[tile.rows], z.amax(1, keepdim=True))
            total[tile.rows] *= torch.exp(largest[tile.rows] - top)
            largest[tile.rows] = top
            shares = z.sub_(top).exp_()
            total[tile.rows] += shares.sum(1, keepdim=True)
            if spare >= 0:
                kept.append(_Kept(shares, top))
        if ranks is not None:
            top = ranks.maximum(largest.clone())
            total, own = ranks.sum(torch.stack([total * torch.exp(largest - top), own])).unbind()
            largest = top
        return largest + total.log(), own, kept


class _Kept(NamedTuple):
    """The exponentials of a tile's logits minus ``top``."""

    shares: Tensor
    top: Tensor


# exp(40) + 1 = exp(40) even in float64, so from there on softplus(v) = v to the last bit.
SATURATED = 40.0


def value_and_slope(v: Tensor, gamma: float, out: list[Tensor], gradient: bool) -> tuple[Tensor, Tensor]:
    """sigmoid(v)^γ softplus(v) and its derivative, in the memory of ``v`` and of ``out``."""
    u, wrong = torch.clamp_max(v, SATURATED, out=out[0]).exp_().log1p_(), out[1]
    torch.maximum(u, v, out=u)
    if gamma == 0:
        return u, torch.sigmoid(v, out=wrong) if gradient else wrong
    torch.sigmoid(v, out=wrong)
    if gamma == 1:
        modulator = wrong
    elif gamma == 2:
        modulator = torch.mul(wrong, wrong, out=out[2])
    elif gamma == 0.5:
        modulator = torch.sqrt(wrong, out=out[2])
    else:
        modulator = torch.pow(wrong, gamma, out=out[2])
    if gradient:
        torch.addcmul(u, u, wrong, value=-1, out=v)
        torch.add(wrong, v, alpha=gamma, out=v).mul_(modulator)
    return u.mul_(modulator), v
