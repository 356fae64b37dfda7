"""Class-aware sampling: which samples an epoch holds, a pure function of seed and epoch, over any processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import distributed
from torch.utils.data import Sampler

from longtail._checks import check_choice, check_non_negative, check_positive_integer
from longtail.counts import FloatArray, IntArray, check_counts, check_labels, class_counts, find_labels
from longtail.weights import DEFAULT_BETA, class_weights

__all__ = ["ClassAwareSampler", "class_aware_order", "sampling_probabilities"]

SAMPLINGS = {"class_balanced": "inverse", "square_root": "inverse_sqrt", "effective": "effective", "progressive": ""}
"""Schemes of sampling, and those of the weights that weigh classes alike."""


def sampling_probabilities(
    counts: Any,
    scheme: str = "class_balanced",
    *,
    beta: Any = DEFAULT_BETA,
    progress: float | None = None,
    absent: str = "error",
) -> FloatArray:
    r"""Probability that a sample of an epoch is of each class.

    .. math:: p_j \propto 1 \;(\text{class\_balanced}), \quad \sqrt{n_j} \;(\text{square\_root}), \quad
        n_j / E_{n_j} \;(\text{effective}), \qquad
        p_j = (1-t)\,\frac{n_j}{\sum_k n_k} + t\,\frac{1}{C} \;(\text{progressive})

    Sampling by a scheme weighs classes as :func:`longtail.class_weights` does in a loss, on average:
    :math:`p_j \propto n_j \alpha_j` with α inverse, inverse_sqrt or effective. β = 0 draws all samples alike, β = 1 all
    classes.

    Args:
        counts: samples per class, shape (C,).
        scheme: ``"class_balanced"``, ``"square_root"``, ``"effective"`` or ``"progressive"``.
        beta: β in [0, 1] of the scheme ``"effective"`` (the others have none), one for all or one per class.
        progress: t in [0, 1] of the scheme ``"progressive"`` (the others have none).
        absent: what a count of 0 means: ``"error"``, or ``"ignore"``: probability 0.

    Returns:
        float64 array of shape (C,) that sums to 1.

    Example:
        >>> sampling_probabilities([900, 90, 10], "square_root").round(3)
        array([0.703, 0.222, 0.074])
        >>> sampling_probabilities([900, 90, 10], "progressive", progress=0.5).round(3)
        array([0.617, 0.212, 0.172])

    Reference:
        Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, ICLR 2020, section 3.
    """
    check_choice("scheme", scheme, tuple(SAMPLINGS))
    n = check_counts(counts)
    if scheme != "progressive":
        return _shares(n * class_weights(n, SAMPLINGS[scheme], beta, absent=absent))
    if progress is None or not 0 <= progress <= 1:
        raise ValueError(f"progress must be in [0, 1] for the scheme progressive, got {progress}")
    balanced = _shares(n * class_weights(n, "inverse", absent=absent))
    return (1 - progress) * _shares(n) + progress * balanced


def _shares(values: FloatArray) -> FloatArray:
    shares: FloatArray = values / values.sum()
    return shares


def class_aware_order(
    labels: Any,
    scheme: str = "class_balanced",
    *,
    seed: int = 0,
    epoch: int = 0,
    beta: Any = DEFAULT_BETA,
    epochs: int | None = None,
    num_samples: int | None = None,
    absent: str = "error",
) -> IntArray:
    """The samples of an epoch, one after the other: always the same for the same arguments.

    A class of probability p has ⌊pN⌋ or ⌈pN⌉ of the N positions, at random such that pN is the mean, and they are
    spread over the epoch at random. They are filled in rounds: every sample of the class comes once, in random order,
    before any comes again. Independent draws would have the same means, but repeat some samples and leave out others by
    chance, even where each could come once; in rounds, β = 0 is an ordinary shuffled epoch.

    Args:
        labels: class indices, shape (N,): as in :func:`longtail.class_counts`, a data set included.
        scheme: as in :func:`sampling_probabilities`, like ``beta`` and ``absent``.
        seed: of the random numbers, at least 0.
        epoch: from 0 on.
        beta: β of the scheme ``"effective"``.
        epochs: T of the scheme ``"progressive"`` (the others have none), which is at t = epoch / T.
        num_samples: length of the epoch; as many as there are labels without it.
        absent: what a class without samples means.

    Returns:
        int64 indices of shape (num_samples,).

    Example:
        >>> labels = [0, 0, 0, 0, 0, 0, 1, 1, 2]
        >>> sorted(class_aware_order(labels, seed=1).tolist())
        [1, 3, 4, 6, 6, 7, 8, 8, 8]
        >>> sorted(class_aware_order(labels, "effective", beta=0).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    classes = _class_indices(labels)
    counts: IntArray = class_counts(classes)
    progress = min(epoch / epochs, 1.0) if scheme == "progressive" and epochs else None
    if scheme == "progressive" and epochs is None:
        raise ValueError("the scheme progressive needs epochs: how many there are in all")
    probabilities = sampling_probabilities(counts, scheme, beta=beta, progress=progress, absent=absent)
    random = np.random.default_rng([seed, epoch])
    draws = _draws(probabilities, len(classes) if num_samples is None else num_samples, random)
    samples = _in_rounds(classes, counts, draws, random)
    # Which class has which position; the samples of a class then fill its positions from the first to the last.
    positions = np.argsort(random.permutation(np.repeat(np.arange(len(counts)), draws)), kind="stable")
    order = np.empty_like(samples)
    order[positions] = samples
    return order


def _class_indices(labels: Any) -> IntArray:
    values = check_labels(find_labels(labels))
    if values.ndim != 1:
        raise ValueError(f"labels must have shape (N,), one class for each sample, got {values.shape}")
    class_counts(values)  # which refuses what is no class index
    return values.astype(np.int64)


def _draws(probabilities: FloatArray, count: int, random: np.random.Generator) -> IntArray:
    """How many of ``count`` positions each class has: the expected number, rounded up or down at random."""
    # Rounded: where the expected numbers are whole, they stay what they are whatever is drawn.
    edges = np.round(np.cumsum(probabilities) * count, 6)
    edges[-1] = count
    ends: IntArray = np.floor(edges + random.random()).astype(np.int64)
    return np.diff(ends, prepend=ends.dtype.type(0))


def _in_rounds(classes: IntArray, counts: IntArray, draws: IntArray, random: np.random.Generator) -> IntArray:
    """As many samples of each class as it has draws, class by class: all of its samples, shuffled, again and again."""
    rounds = -(-draws // np.maximum(counts, 1))
    of_sample = rounds[classes]
    samples = np.repeat(np.arange(len(classes)), of_sample)
    number = np.arange(len(samples)) - np.repeat(np.cumsum(of_sample) - of_sample, of_sample)
    samples = samples[np.lexsort((random.random(len(samples)), number, classes[samples]))]
    sizes = counts * rounds
    position = np.arange(len(samples)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen: IntArray = samples[position < np.repeat(draws, sizes)]
    return chosen


class ClassAwareSampler(Sampler[int]):
    r"""Samples for a ``DataLoader`` such that rare classes come more often.

    The order of an epoch is :func:`class_aware_order`, a pure function of seed and epoch. Process r of R takes its
    positions r, r + R, r + 2R, … of that one order: together the processes see what a single one would, each as many
    samples, and at most R - 1 positions at the end are left out. Call :meth:`set_epoch` before each epoch.

    Args:
        labels: class indices, shape (N,): as in :func:`longtail.class_counts`, a data set included.
        scheme: ``"class_balanced"``: all classes alike; ``"square_root"``: by √n; ``"progressive"``: from all samples
            alike to all classes alike, over ``epochs``; ``"effective"``: by n / E_n.
        beta: β in [0, 1] of the scheme ``"effective"``: 0 draws all samples alike, 1 all classes.
        epochs: of the whole training, for the scheme ``"progressive"``.
        seed: the same in all processes.
        num_samples: of an epoch, over all processes; as many as there are labels without it.
        rank: which process this is, from 0 on, and
        num_replicas: of how many; without them, those of ``torch.distributed`` once that is initialised, else one.
            Lightning needs ``use_distributed_sampler=False``; for Accelerate, which deals out batches, pass 0 and 1.
        absent: what a class without samples means: ``"error"``, or ``"ignore"``.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> labels = torch.tensor([0] * 90 + [1] * 9 + [2])
        >>> data = TensorDataset(torch.randn(100, 8), labels)
        >>> sampler = ClassAwareSampler(labels, num_samples=99)
        >>> for epoch in range(2):
        ...     sampler.set_epoch(epoch)
        ...     seen = torch.cat([target for _, target in DataLoader(data, batch_size=10, sampler=sampler)])
        ...     print(seen.bincount().tolist())
        [33, 33, 33]
        [33, 33, 33]

    Reference:
        Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, ICLR 2020, section 3.
    """

    def __init__(
        self,
        labels: Any,
        scheme: str = "class_balanced",
        *,
        beta: Any = DEFAULT_BETA,
        epochs: int | None = None,
        seed: int = 0,
        num_samples: int | None = None,
        rank: int | None = None,
        num_replicas: int | None = None,
        absent: str = "error",
    ) -> None:
        for name, value in (("epochs", epochs), ("num_samples", num_samples), ("num_replicas", num_replicas)):
            if value is not None:
                check_positive_integer(name, value)
        check_non_negative("seed", seed)
        if (rank is None) != (num_replicas is None):
            raise ValueError("rank and num_replicas are only of use together")
        if rank is not None and num_replicas is not None and not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be in [0, {num_replicas}) for {num_replicas} replicas, got {rank}")
        self.labels = _class_indices(labels)
        self.scheme, self.beta, self.epochs, self.seed, self.absent = scheme, beta, epochs, seed, absent
        self.num_samples = len(self.labels) if num_samples is None else num_samples
        self.rank, self.num_replicas = rank, num_replicas
        self.epoch = self.start = 0
        self.order()  # what cannot be is refused here, and not in the first epoch

    def order(self) -> IntArray:
        """The samples of the epoch, of all processes."""
        return class_aware_order(
            self.labels,
            self.scheme,
            seed=self.seed,
            epoch=self.epoch,
            beta=self.beta,
            epochs=self.epochs,
            num_samples=self.num_samples,
            absent=self.absent,
        )

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Say which epoch comes next, from 0 on, in all processes.

        Args:
            epoch: the epoch.
            start: samples of it that this process has seen already: for a training that resumes in the middle of an
                epoch, its steps times the batch size of a process. The sampler cannot know it, since the workers of a
                ``DataLoader`` are ahead of the training.

        Example:
            >>> sampler = ClassAwareSampler([0, 0, 0, 1])
            >>> sampler.set_epoch(3)
            >>> whole = list(sampler)
            >>> sampler.set_epoch(3, start=2)
            >>> list(sampler) == whole[2:], len(sampler)
            (True, 2)
        """
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        _, processes = self._process()
        if not 0 <= start <= self.num_samples // processes:
            raise ValueError(f"start must be in [0, {self.num_samples // processes}], got {start}")
        self.epoch, self.start = epoch, start

    def _process(self) -> tuple[int, int]:
        """Which one this is, and of how many: asked late, since samplers are often built before the processes meet."""
        if self.rank is not None and self.num_replicas is not None:
            return self.rank, self.num_replicas
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1

    def __len__(self) -> int:
        _, processes = self._process()
        return self.num_samples // processes - self.start

    def __iter__(self) -> Iterator[int]:
        rank, processes = self._process()
        each = self.num_samples // processes
        if not each:
            raise ValueError(f"{self.num_samples} samples are too few for {processes} processes")
        return iter(self.order()[rank::processes][self.start : each].tolist())
