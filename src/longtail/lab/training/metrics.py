"""How good a classifier is: over all images, over classes, over groups of classes, and how sure it may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.counts import IntArray
from longtail.lab.data import GROUPS, class_groups
from longtail.losses import LOSSES

__all__ = ["ClassifierMetrics", "log_probabilities", "sums_dtype"]

BINS = 15


def log_probabilities(logits: Tensor, loss: str) -> Tensor:
    r"""Log-probabilities of the classes under a loss, in float32.

    :math:`\log \mathrm{softmax}(z)`. Sigmoid, focal and asymmetric losses give each class a probability of its own,
    which are scaled to sum to 1: :math:`p_i = \sigma(z_i) / \sum_j \sigma(z_j)`. The prior of the logit-adjusted loss
    and the margins of LDAM are for training alone: they are not in the logits.

    Example:
        >>> log_probabilities(torch.tensor([[0.0, 0.0]]), "focal").exp()
        tensor([[0.5000, 0.5000]])
    """
    scores = logits.float()
    return F.log_softmax(F.logsigmoid(scores) if LOSSES[loss].is_sigmoid else scores, dim=-1)


def sums_dtype(device: torch.device) -> torch.dtype:
    """For sums over many images: float64, where the device has it.

    Example:
        >>> sums_dtype(torch.device("cpu")), sums_dtype(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if device.type == "mps" else torch.float64


class ClassifierMetrics:
    """Sums over batches and processes, and what follows from them; every image counts once.

    Args:
        counts: training images of each class, for the groups many, medium and few.
        loss: the loss the classifier was trained with, for its probabilities.
        device: where the logits are.

    Example:
        >>> metrics = ClassifierMetrics(np.array([500, 10]), "softmax")
        >>> metrics.update(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]))
        >>> found = metrics.compute()
        >>> round(found["error"], 1), found["recall"], found["medium"]
        (33.3, [1.0, 0.5], None)
    """

    def __init__(self, counts: IntArray, loss: str, device: torch.device = torch.device("cpu")) -> None:
        self.counts, self.loss = counts, loss
        sizes = (len(counts), len(counts), 1, 1, 3 * BINS)
        # One tensor, so that the processes add up all of it at once; the others are parts of it.
        self.sums = torch.zeros(sum(sizes), dtype=sums_dtype(device), device=device)
        self.correct, self.total, self.in_top5, self.log_loss, bins = torch.split(self.sums, list(sizes))
        self.bins = bins.view(3, BINS)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add the images of a batch."""
        if not len(labels):
            return
        log_p = log_probabilities(logits, self.loss)
        confidence, predicted = log_p.max(dim=1)
        right = (predicted == labels).to(self.sums.dtype)
        self.correct.index_add_(0, labels, right)
        self.total.index_add_(0, labels, torch.ones_like(right))
        top5 = log_p.topk(min(5, log_p.shape[1]), dim=1).indices
        self.in_top5 += (top5 == labels[:, None]).any(dim=1).sum()
        # An infinite output is no number for any class, also where the probability of this one is.
        own = log_p.gather(1, labels[:, None])[:, 0].where(logits.isfinite().all(dim=1), torch.nan)
        self.log_loss -= own.to(self.sums.dtype).sum()
        sure = confidence.exp().to(self.sums.dtype)
        place = (sure.nan_to_num() * BINS).long().clamp_(0, BINS - 1)
        self.bins.index_add_(1, place, torch.stack([torch.ones_like(sure), sure, right]))

    def compute(self, total: Callable[[Tensor], Tensor] | None = None) -> dict[str, Any]:
        """Errors in percent, recalls and accuracies from 0 to 1; what has no images is null.

        ``calibration`` has a row for each of 15 bins of the confidence: images, mean confidence, accuracy.

        Args:
            total: the sum over all processes.
        """
        if total:
            self.sums.copy_(total(self.sums))
        images = self.total.sum().item()
        recall = (self.correct / self.total).cpu().numpy()
        tested = self.total.cpu().numpy() > 0
        weight, sure, right = self.bins
        groups = class_groups(self.counts)

        def mean_recall(chosen: Any) -> float | None:
            return float(recall[chosen & tested].mean()) if (chosen & tested).any() else None

        return {
            "error": 100 * (1 - self.correct.sum().item() / images),
            "error_top5": 100 * (1 - self.in_top5.item() / images) if len(recall) > 5 else None,
            "balanced_accuracy": mean_recall(np.ones(len(recall), dtype=np.bool_)),
            **{name: mean_recall(groups == place) for place, name in enumerate(GROUPS)},
            "nll": self.log_loss.item() / images,
            "calibration_error": ((sure - right).abs().sum() / weight.sum()).item(),
            "calibration": [
                [int(count), *((confidence / count, correct / count) if count else (None, None))]
                for count, confidence, correct in self.bins.T.tolist()
            ],
            "recall": [float(value) if there else None for value, there in zip(recall, tested, strict=True)],
        }
