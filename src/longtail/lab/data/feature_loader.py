"""Features in memory → batches for a head."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from longtail.lab.data.batches import CROPS, BatchPlan, Order, Shard, in_order
from longtail.lab.data.loaders import Batch
from longtail.lab.data.mixing import Mixing

__all__ = ["FeatureLoader"]


class FeatureLoader:
    """Batches of features, each sample in one of its views, drawn anew in each epoch.

    Args:
        features: float32, shape (N, V, D): V views of each image.
        labels: class indices, shape (N,).
        batch_size: most samples of a batch, over all processes.
        order: which samples an epoch holds; each one once, as they come, by default.
        seed: of the views.
        mixing: Mixup of the features of a batch.
        shard: the part of this process.
        device: where the features are kept, and the batches are to be.

    Example:
        >>> loader = FeatureLoader(torch.zeros(10, 1, 64), torch.arange(10), batch_size=4)
        >>> [tuple(batch.images.shape) for batch in loader.epoch(0)]
        [(4, 64), (3, 64), (3, 64)]
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        batch_size: int,
        *,
        order: Order | None = None,
        seed: int = 0,
        mixing: Mixing | None = None,
        shard: Shard = Shard(),
        device: torch.device | str = "cpu",
    ) -> None:
        self.views = features.shape[1]
        self.rows, self.labels = features.flatten(0, 1).to(device), labels.to(device)
        self.order, self.seed, self.mixing = order or in_order(len(features)), seed, mixing
        self.plan = BatchPlan(len(self.order(0)), batch_size, shard)

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""
        order = self.plan.samples(self.order, epoch)
        rows = order * self.views
        if self.views > 1:
            rows = rows + np.random.default_rng([self.seed, epoch, CROPS]).integers(0, self.views, len(order))
        samples, chosen = (torch.from_numpy(each).to(self.labels.device) for each in (order, rows))
        for batch in self.plan.batches_from(start):
            part, total = self.plan.part(batch)
            features = self.rows.index_select(0, chosen[part])
            labels = self.labels.index_select(0, samples[part])
            if self.mixing:
                features, labels = self.mixing(features, labels, epoch, batch)
            yield Batch(features, labels, total)
