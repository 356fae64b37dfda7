"""Class weights that begin late: plain first, class-balanced then, at once or little by little."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from longtail._checks import check_non_negative
from longtail.counts import check_counts
from longtail.weights import check_beta, class_weights

__all__ = ["AnnealedReweighting", "DeferredReweighting"]


class _Reweighting(nn.Module):
    """A loss with the class weights of the epoch, which ``set_epoch`` writes in place: nothing is compiled anew."""

    class_weight: Tensor

    def __init__(self, criterion: nn.Module, like: Tensor) -> None:
        super().__init__()
        self.criterion = criterion
        # Not saved: it follows from the epoch. What is saved are the weights of the criterion, which never change.
        self.register_buffer("class_weight", torch.ones_like(like), persistent=False)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return what the criterion does, with the weights of the epoch."""
        loss: Tensor = functional_call(self.criterion, {"class_weight": self.class_weight}, (logits, target))
        return loss


class DeferredReweighting(_Reweighting):
    r"""A loss without class weights until an epoch, with them from then on: deferred re-weighting, DRW.

    .. math:: \alpha_i(t) = 1 \text{ for } t < k, \qquad \alpha_i(t) = \alpha_i \text{ for } t \ge k

    The features are learned from the data as it is; the weights then move the boundaries, best at the epoch at which
    the learning rate drops. Which weights those are is the criterion's choice: Cao et al. take the class-balanced ones.

    The criterion itself is not changed. The weights in use are a pure function of the epoch: a resumed training needs
    ``set_epoch`` and nothing else. ``state_dict()`` holds the criterion's weights, whatever the epoch.

    Args:
        criterion: a loss of this package with class weights: :class:`longtail.ClassBalancedLoss`,
            :class:`longtail.ClassBalanced`, or any module with ``class_weight`` as a buffer.
        epoch: k ≥ 0, from 0 on; may be a fraction.

    Attributes:
        class_weight: the weights in use, shape (C,).

    Example:
        >>> from longtail import ClassBalancedLoss
        >>> criterion = DeferredReweighting(ClassBalancedLoss([5000, 500, 50], beta=0.9999), epoch=160)
        >>> for epoch in (0, 159, 160):
        ...     criterion.set_epoch(epoch)
        ...     print(epoch, criterion.class_weight)
        0 tensor([1., 1., 1.])
        159 tensor([1., 1., 1.])
        160 tensor([0.0341, 0.2752, 2.6907])

    Reference:
        Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019, section 3.3.
    """

    def __init__(self, criterion: nn.Module, epoch: float) -> None:
        check_non_negative("epoch", epoch)
        weights = _weights_of(criterion)
        if weights is None:
            raise ValueError(f"{type(criterion).__name__} has no class weights: there is nothing to defer")
        super().__init__(criterion, weights)
        self.epoch = epoch
        self.set_epoch(0.0)

    def set_epoch(self, epoch: float) -> None:
        """Use the weights of an epoch, counted from 0; call it before each one, or before each step with fractions."""
        check_non_negative("epoch", epoch)
        if epoch < self.epoch:
            self.class_weight.fill_(1)
        else:
            self.class_weight.copy_(self.criterion.class_weight)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        return f"epoch={self.epoch:g}"


class AnnealedReweighting(_Reweighting):
    r"""A loss whose class weights come little by little: β grows from 0, plain, to its value.

    .. math:: \beta_t = 1 - (1-\beta)^s, \qquad s = \frac{t - t_0}{t_1 - t_0} \text{ within } [0, 1]

    so that :math:`N_t = 1/(1-\beta_t) = N^s`, the number of prototypes, grows by the same factor in every epoch. The
    weights at each time are :func:`longtail.class_weights` of :math:`\beta_t`.

    Args:
        criterion: a loss of this package; class weights of its own must be those of the end.
        counts: samples per class in the training set, shape (C,).
        beta: β in [0, 1) of the end, one for all or one per class.
        start: t₀ ≥ 0, the epoch until which the loss is plain; may be a fraction.
        end: t₁ > t₀, the epoch from which on β has its value.
        normalize, absent: as in :func:`longtail.class_weights`.

    Attributes:
        class_weight: the weights in use, shape (C,).

    Example:
        >>> from longtail import FocalLoss
        >>> criterion = AnnealedReweighting(FocalLoss(gamma=0.5), [5000, 500, 50], beta=0.9999, start=100, end=200)
        >>> for epoch in (100, 150, 200):
        ...     criterion.set_epoch(epoch)
        ...     print(epoch, criterion.class_weight)
        100 tensor([1., 1., 1.])
        150 tensor([0.6610, 0.6654, 1.6735])
        200 tensor([0.0341, 0.2752, 2.6907])

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019; the schedule is this package's.
    """

    def __init__(
        self,
        criterion: nn.Module,
        counts: Any,
        beta: Any = 0.999,
        *,
        start: float,
        end: float,
        normalize: str = "classes",
        absent: str = "error",
    ) -> None:
        check_non_negative("start", start)
        check_non_negative("end", end)
        if start >= end:
            raise ValueError(f"end must be after start, got start={start:g} and end={end:g}")
        n = check_counts(counts)
        last = torch.as_tensor(class_weights(n, "effective", beta, normalize, absent))
        own = _weights_of(criterion)
        if own is not None and not (
            own.shape == last.shape and torch.allclose(own.to(last), last, rtol=max(1e-3, torch.finfo(own.dtype).eps))
        ):
            raise ValueError(f"{type(criterion).__name__} has other class weights than those of beta={beta}")
        super().__init__(criterion, last.to(torch.get_default_dtype()) if own is None else own)
        self.counts, self.normalize, self.absent = n, normalize, absent
        self.beta, self.start, self.end = check_beta(beta), start, end
        if (self.beta == 1).any():
            raise ValueError("beta must be below 1 to be annealed: N = 1/(1-β) cannot grow to infinity by a factor")
        self.set_epoch(0.0)

    def set_epoch(self, epoch: float) -> None:
        """Use the weights of an epoch, counted from 0; call it before each one, or before each step with fractions."""
        check_non_negative("epoch", epoch)
        share = min(max((epoch - self.start) / (self.end - self.start), 0.0), 1.0)
        beta = self.beta if share == 1 else -np.expm1(share * np.log1p(-self.beta))
        weights = class_weights(self.counts, "effective", beta, self.normalize, self.absent)
        self.class_weight.copy_(torch.from_numpy(weights), non_blocking=True)

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        beta = f"{self.beta:g}" if self.beta.ndim == 0 else "one per class"
        return f"beta={beta}, start={self.start:g}, end={self.end:g}"


def _weights_of(criterion: nn.Module) -> Tensor | None:
    """The class weights of a loss, if it has any."""
    if not isinstance(criterion, nn.Module) or "class_weight" not in criterion._buffers:
        name = type(criterion).__name__
        raise TypeError(f"criterion must be a loss of this package or have class_weight as a buffer, got {name}")
    return criterion._buffers["class_weight"]
