"""Deferred re-weighting: plain first, class-balanced for the last part of training."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from longtail._checks import check_non_negative

__all__ = ["DeferredReweighting"]


class DeferredReweighting(nn.Module):
    r"""A loss without class weights until an epoch, with them from then on: deferred re-weighting, DRW.

    .. math:: \alpha_i(t) = 1 \text{ for } t < k, \qquad \alpha_i(t) = \alpha_i \text{ for } t \ge k

    The features are learned from the data as it is; the weights then move the boundaries, best at the epoch at which
    the learning rate drops. Which weights those are is the criterion's choice: Cao et al. take the class-balanced ones.

    The criterion itself is not changed. The weights in use are a pure function of the epoch: a resumed training needs
    ``set_epoch`` and nothing else. ``state_dict()`` holds the criterion's weights, whatever the epoch.

    Args:
        criterion: a loss of this package with class weights: :class:`longtail.ClassBalancedLoss`,
            :class:`longtail.ClassBalanced`, or any module with ``class_weight`` as a buffer and as an argument of
            ``forward(logits, target, class_weight=None)`` that replaces it for one call.
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

    class_weight: Tensor

    def __init__(self, criterion: nn.Module, epoch: float) -> None:
        check_non_negative("epoch", epoch)
        weights = _weights_of(criterion)
        if weights is None:
            raise ValueError(f"{type(criterion).__name__} has no class weights: there is nothing to defer")
        super().__init__()
        self.criterion = criterion
        # Not saved: it follows from the epoch. What is saved are the weights of the criterion, which never change.
        self.register_buffer("class_weight", torch.ones_like(weights), persistent=False)
        self.epoch = epoch
        self.set_epoch(0.0)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return what the criterion does, with the weights of the epoch."""
        loss: Tensor = self.criterion(logits, target, class_weight=self.class_weight)
        return loss

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


def _weights_of(criterion: nn.Module) -> Tensor | None:
    """The class weights of a loss, if it has any."""
    if (
        not isinstance(criterion, nn.Module)
        or "class_weight" not in criterion._buffers
        or "class_weight" not in inspect.signature(criterion.forward).parameters
    ):
        raise TypeError(
            "criterion must be a loss of this package, or have class_weight as a buffer and as an argument of forward, "
            f"got {type(criterion).__name__}"
        )
    return criterion._buffers["class_weight"]
