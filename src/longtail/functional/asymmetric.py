"""Asymmetric loss: sigmoids whose positives and negatives are focused apart, for many labels per sample."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail._checks import check_loss_option
from longtail._docstrings import with_shared_paragraphs
from longtail.functional._apply import apply_loss
from longtail.functional._blocked import Buffers, RowLoss, is_own_class
from longtail.functional.sigmoid import _Focal, focal_terms, focal_value_and_slope, power

__all__ = ["asymmetric_loss"]


@with_shared_paragraphs
def asymmetric_loss(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    gamma_negative: float = 4.0,
    gamma_positive: float = 0.0,
    clip: float = 0.05,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Asymmetric loss over sigmoids, summed over classes, with class weights.

    .. math:: L(z, t) = -\alpha \sum_{i=1}^{C} \bigl( t_i (1 - p_i)^{\gamma_+} \log p_i
        + (1 - t_i) \, \bar p_i^{\gamma_-} \log (1 - \bar p_i) \bigr), \qquad
        p_i = \operatorname{sigmoid}(z_i), \quad \bar p_i = \max(p_i - m, 0)

    Of many labels most are absent, and easy. Their terms are focused harder than those of the positives, and from
    :math:`p_i \le m` on they are 0. With equal γ and m = 0 this is :func:`focal_loss`, with γ = 0, too,
    :func:`sigmoid_cross_entropy`. Value and gradient are finite for every finite logit and all γ ≥ 0.

    {shapes}

    Args:
        logits: {sigmoid_logits}
        target: class indices (N) or (N, d1, …), or t of the logits' shape, multi-hot or soft. Weights as in
            :func:`sigmoid_cross_entropy`.
        class_weight: {class_weight}
        gamma_negative: :math:`\gamma_-` ≥ 0 of absent labels.
        gamma_positive: :math:`\gamma_+` ≥ 0 of present ones: 0 as in the paper; its code has 1.
        clip: m in [0, 1], what the probabilities of absent labels are lowered by.
        label_smoothing: {label_smoothing}
        ignore_index: {ignore_index}
        reduction: {reduction}

    Returns:
        {returns}

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
        >>> asymmetric_loss(logits, torch.tensor([[1, 1, 0], [0, 0, 0]]), reduction="none")
        tensor([0.8206, 0.3616])

    Reference:
        Ridnik et al., Asymmetric Loss for Multi-Label Classification, ICCV 2021.
    """
    check_loss_option("gamma_negative", gamma_negative)
    check_loss_option("gamma_positive", gamma_positive)
    check_loss_option("clip", clip)
    row_loss = _Asymmetric(float(gamma_negative), float(gamma_positive), float(clip))
    return apply_loss(row_loss, logits, target, class_weight, label_smoothing, ignore_index, reduction)


class _Asymmetric(RowLoss):
    """Focal terms of positives and of negatives; those of negatives from probabilities lowered by ``clip``.

    With k = 1 - p + clip, the term of a negative is (1-k)^γ · -log k where k < 1, else 0. k is at least ``clip``, so
    its logarithm is harmless; without clip, the focal loss knows how to take it.
    """

    buffers = 5
    separable = True

    def __init__(self, gamma_negative: float, gamma_positive: float, clip: float) -> None:
        self.gamma_negative, self.gamma_positive, self.clip = gamma_negative, gamma_positive, clip

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        positives, negatives = self._terms(logits)
        return torch.where(is_own_class(logits, target), positives, negatives).sum(1)

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        positives, negatives = self._terms(logits)
        return (target * positives + (1 - target) * negatives).sum(1)

    def _terms(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        positives = focal_terms(-logits, self.gamma_positive)
        if self.clip == 0:
            return positives, focal_terms(logits, self.gamma_negative)
        k = torch.sigmoid(-logits) + self.clip
        counted = k < 1
        k = torch.where(counted, k, 0.5)  # any number that has a slope: what comes of it is dropped
        return positives, torch.where(counted, (1 - k) ** self.gamma_negative * -torch.log(k), 0)

    def positives(self, own: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = focal_value_and_slope(-own, self.gamma_positive)
        return value, -slope

    def block(
        self, logits: Tensor, target: Tensor, scale: Tensor, out: Buffers, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Terms, and their derivative x^γ (γ -log(k)/x + 1/k) · p(1-p), with x = 1 - k."""
        if self.clip == 0:
            return _Focal(self.gamma_negative).block(logits, target, scale, out, gradient)
        right = torch.neg(logits, out=out[0]).sigmoid_()
        k = torch.add(right, self.clip, out=out[1]).clamp_max_(1)
        x = torch.neg(k, out=out[2]).add_(1)
        modulator = power(x, self.gamma_negative, out[3])
        terms = torch.log(k, out=out[4]).mul_(modulator).neg_()
        if not gradient:
            return terms, terms
        slope = torch.addcmul(right, right, right, value=-1, out=out[0]).mul_(scale)
        # x^γ · (-γ log(k)/x + 1/k) · sign(x), the last being 0 where the term is clipped
        slope.mul_(x.sign())
        k.reciprocal_().mul_(modulator)
        x.clamp_min_(torch.finfo(x.dtype).tiny)
        return terms, slope.mul_(k.addcdiv_(terms, x, value=self.gamma_negative))
