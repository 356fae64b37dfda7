"""Metrics of a classifier: over all images, by class and by group of classes, and its calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.counts import IntArray
from longtail.lab.data import GROUPS, class_groups
from longtail.losses import LOSSES

FloatArray = npt.NDArray[np.float64]

BINS = 15

DETAILS = ("precision", "f1", "recall_interval", "precision_interval", "confusion", "mistakes")
"""Metrics of the result alone: for thousands of classes they would be too long for a line of each epoch."""

MISTAKES_PER_CLASS, MOST_MISTAKES = 3, 60
"""Of the result: the most confident errors of each class, and of all classes, the rarest first."""

NORMAL_QUANTILE = 1.959963984540054
"""Of 97.5%, for intervals of 95%."""


def rarest_quarter(counts: IntArray) -> npt.NDArray[np.bool_]:
    """Which classes are the rarest quarter by training images; classes as frequent as its largest are in it, too.

    Example:
        >>> rarest_quarter(np.array([500, 200, 100, 50, 20, 10, 5, 2])).nonzero()[0]
        array([6, 7])
    """
    limit = np.sort(counts)[math.ceil(len(counts) / 4) - 1]
    chosen: npt.NDArray[np.bool_] = counts <= limit
    return chosen


def wilson_interval(successes: FloatArray, trials: FloatArray) -> FloatArray:
    r"""Wilson's score interval of proportions, at 95% confidence.

    .. math:: \frac{\hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4n^2}}}
        {1 + \frac{z^2}{n}}, \qquad \hat p = k/n, \; z = 1.96

    Unlike the normal approximation, it stays within [0, 1] and has a width where all or none succeed.

    Shapes: successes and trials (C,); limits (C, 2), NaN where there are no trials.

    Example:
        >>> wilson_interval(np.array([8.0, 10.0]), np.array([10.0, 10.0])).round(3)
        array([[0.49 , 0.943],
               [0.722, 1.   ]])

    Reference:
        Wilson, *Probable Inference, the Law of Succession, and Statistical Inference*, JASA 1927.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share, z2 = successes / trials, NORMAL_QUANTILE**2 / trials
        centre = share + z2 / 2
        radius = np.sqrt(z2 * (share * (1 - share) + z2 / 4))
        limits = np.stack([centre - radius, centre + radius], axis=-1) / (1 + z2)[..., None]
    return np.clip(limits, 0.0, 1.0)


def balanced_accuracy_error(recall: FloatArray, images: FloatArray) -> float:
    r"""Standard error of the balanced accuracy that comes from the number of test images.

    .. math:: \frac{1}{C} \sqrt{\sum_i \frac{\tilde r_i (1 - \tilde r_i)}{n_i + 4}}, \qquad
        \tilde r_i = \frac{n_i r_i + 2}{n_i + 4}

    Two successes and two failures are added to each class (Agresti and Coull), so that a class of few images, all of
    them right, still counts as uncertain. Shapes: (C,), classes with test images.

    Example:
        >>> round(balanced_accuracy_error(np.array([0.9, 0.5]), np.array([100.0, 10.0])), 3)
        0.069
    """
    shrunken = (recall * images + 2) / (images + 4)
    return float(np.sqrt((shrunken * (1 - shrunken) / (images + 4)).sum()) / len(recall))


def without_details(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics as a line of each epoch has them."""
    return {name: value for name, value in metrics.items() if name not in DETAILS}


def log_probabilities(logits: Tensor, loss: str) -> Tensor:
    r"""Log-probabilities of the classes under a loss, in float32.

    :math:`\log \mathrm{softmax}(z)`. Sigmoid, focal and asymmetric losses give each class its own probability,
    which are scaled to sum to 1: :math:`p_i = \sigma(z_i) / \sum_j \sigma(z_j)`. The prior of the logit-adjusted loss
    and the margins of LDAM are for training alone: they are not in the logits.

    Example:
        >>> log_probabilities(torch.tensor([[0.0, 0.0]]), "focal").exp()
        tensor([[0.5000, 0.5000]])
    """
    scores = logits.float()
    return F.log_softmax(F.logsigmoid(scores) if LOSSES[loss].is_sigmoid else scores, dim=-1)


def sums_dtype(device: torch.device) -> torch.dtype:
    """For sums over many images: float64, where the device has it."""
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
        >>> round(found["error"], 1), found["recall"], found["medium"], found["confusion"]
        (33.3, [1.0, 0.5], None, [[0, 0, 1], [1, 0, 1], [1, 1, 1]])
    """

    def __init__(self, counts: IntArray, loss: str, device: torch.device = torch.device("cpu")) -> None:
        self.counts, self.loss = counts, loss
        sizes = (len(counts), len(counts), len(counts), 1, 1, 3 * BINS)
        # One tensor, so that the processes add up all of it at once; the others are parts of it.
        self.sums = torch.zeros(sum(sizes), dtype=sums_dtype(device), device=device)
        parts = torch.split(self.sums, list(sizes))
        self.correct, self.total, self.predicted, self.in_top5, self.log_loss = parts[:-1]
        self.bins = parts[-1].view(3, BINS)
        # The confusion matrix by the numbers of its cells, one for each image: of thousands of classes most are empty.
        self.cells: list[Tensor] = []
        # Index, class, predicted class and confidence of each image that was misclassified.
        self.wrong: list[Tensor] = []

    def update(self, logits: Tensor, labels: Tensor, first: int = 0) -> None:
        """Add the images of a batch; ``first`` is the index of the first one among all images."""
        if not len(labels):
            return
        log_p = log_probabilities(logits, self.loss)
        confidence, predicted = log_p.max(dim=1)
        right = (predicted == labels).to(self.sums.dtype)
        self.correct.index_add_(0, labels, right)
        self.total.index_add_(0, labels, torch.ones_like(right))
        self.predicted.index_add_(0, predicted, torch.ones_like(right))
        self.cells.append(labels * len(self.counts) + predicted)
        top5 = log_p.topk(min(5, log_p.shape[1]), dim=1).indices
        self.in_top5 += (top5 == labels[:, None]).any(dim=1).sum()
        # An infinite output is not a number for any class, also where the probability of this one is.
        log_p_label = log_p.gather(1, labels[:, None])[:, 0].where(logits.isfinite().all(dim=1), torch.nan)
        self.log_loss -= log_p_label.to(self.sums.dtype).sum()
        sure = confidence.exp().to(self.sums.dtype)
        index = first + torch.arange(len(labels), device=labels.device)
        rows = torch.stack([each.to(self.sums.dtype) for each in (index, labels, predicted, sure)], dim=1)
        self.wrong.append(rows[predicted != labels])
        bin_index = (sure.nan_to_num() * BINS).long().clamp_(0, BINS - 1)
        self.bins.index_add_(1, bin_index, torch.stack([torch.ones_like(sure), sure, right]))

    def compute(
        self, total: Callable[[Tensor], Tensor] | None = None, gather: Callable[[Tensor], Tensor] | None = None
    ) -> dict[str, Any]:
        """Errors in percent, all other shares from 0 to 1; what has no images is null.

        - ``balanced_accuracy``, ``many``, ``medium``, ``few`` and ``rarest_quarter`` are mean recalls, ``macro_f1`` is
          the mean F1, of classes that have test images.
        - ``recall``, ``precision`` and ``f1`` have a value for each class, the intervals [low, high] for each class.
        - ``confusion`` has a row for each cell that is not empty: class, predicted class, images.
        - ``mistakes`` has a row for each of the most confident errors of the rarest classes: image, class, predicted
          class, confidence.
        - ``calibration`` has a row for each of 15 bins of the confidence: images, mean confidence, accuracy.

        Args:
            total: the sum over all processes.
            gather: the vectors of all processes, one after another.
        """
        cells = torch.cat(self.cells) if self.cells else torch.empty(0, dtype=torch.int64, device=self.sums.device)
        if total:
            self.sums.copy_(total(self.sums))
        wrong = torch.cat(self.wrong) if self.wrong else self.sums.new_empty(0, 4)
        if gather:
            cells, wrong = gather(cells), gather(wrong.flatten()).view(-1, 4)
        images = self.total.sum().item()
        weight, sure, right = self.bins
        return {
            "error": 100 * (1 - self.correct.sum().item() / images),
            "error_top5": 100 * (1 - self.in_top5.item() / images) if len(self.counts) > 5 else None,
            **self._by_class(),
            "nll": self.log_loss.item() / images,
            "calibration_error": ((sure - right).abs().sum() / weight.sum()).item(),
            "calibration": [
                [int(count), *((confidence / count, correct / count) if count else (None, None))]
                for count, confidence, correct in self.bins.T.tolist()
            ],
            "confusion": _sparse(cells, len(self.counts)),
            "mistakes": self._mistakes(wrong.tolist()),
        }

    def _mistakes(self, wrong: list[list[float]]) -> list[list[float]]:
        """The most confident errors of each class, the rarest class first."""
        of_class: dict[int, list[list[float]]] = {}
        for index, label, predicted, confidence in sorted(wrong, key=lambda row: (-row[3], row[0])):
            rows = of_class.setdefault(int(label), [])
            rows += [[int(index), int(label), int(predicted), round(confidence, 4)]]
        rarest = sorted(of_class, key=lambda label: (self.counts[label], label))
        return [row for label in rarest for row in of_class[label][:MISTAKES_PER_CLASS]][:MOST_MISTAKES]

    def _by_class(self) -> dict[str, Any]:
        """Recall, precision and F1 of each class, and their means."""
        correct, total, predicted = (sums.double().cpu().numpy() for sums in (self.correct, self.total, self.predicted))
        tested = total > 0
        with np.errstate(invalid="ignore"):
            recall, precision, f1 = correct / total, correct / predicted, 2 * correct / (total + predicted)
        f1[~tested] = np.nan  # though images of other classes may be taken for it
        groups = class_groups(self.counts)

        def mean(values: FloatArray, chosen: Any = True) -> float | None:
            return float(values[chosen & tested].mean()) if (chosen & tested).any() else None

        return {
            "balanced_accuracy": mean(recall),
            "macro_f1": mean(f1),
            **{name: mean(recall, groups == index) for index, name in enumerate(GROUPS)},
            "rarest_quarter": mean(recall, rarest_quarter(self.counts)),
            "recall": _values(recall),
            "precision": _values(precision),
            "f1": _values(f1),
            "recall_interval": _values(wilson_interval(correct, total).round(4)),
            "precision_interval": _values(wilson_interval(correct, predicted).round(4)),
        }


def _values(values: FloatArray) -> list[Any]:
    """As JSON has them: what is not defined is null."""
    known = ~np.isnan(values.reshape(len(values), -1)[:, 0])
    return [value if there else None for value, there in zip(values.tolist(), known.tolist(), strict=True)]


def _sparse(cells: Tensor, classes: int) -> list[list[int]]:
    """Class, predicted class and number of images, of the cells that occur, in order."""
    numbers, images = (values.cpu() for values in torch.unique(cells, return_counts=True))
    rows: list[list[int]] = torch.stack([numbers // classes, numbers % classes, images], dim=1).tolist()
    return rows
