"""Softmax focal loss: a function of the odds against a sample's own class, which LDAM shares."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import check_loss_option
from longtail._docstrings import with_shared_paragraphs
from longtail.functional._apply import apply_loss, columns, look_up, row_maximum
from longtail.functional._blocked import Buffers, RowLoss, is_own_class
from longtail.functional.sigmoid import focal_terms, focal_value_and_slope

__all__ = ["OddsLoss", "softmax_focal_loss"]


@with_shared_paragraphs
def softmax_focal_loss(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    gamma: float = 0.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Focal loss over the softmax, with class weights.

    .. math:: L(z, y) = -\alpha_y (1 - p_y)^\gamma \log p_y, \qquad p = \operatorname{softmax}(z)

    γ = 0 is :func:`softmax_cross_entropy`. Value and gradient are finite for every finite logit and every γ ≥ 0.
    :func:`focal_loss`, the paper's, has one such term for each class, over sigmoids.

    {shapes}

    Args:
        logits: {softmax_logits}
        target: class indices (N) or (N, d1, …), or probabilities of the logits' shape (soft labels, mixup): with
            :math:`t_i` the target, the loss is :math:`-\sum_i t_i (1 - p_i)^\gamma \log p_i`.
        class_weight: {class_weight}
        gamma: γ ≥ 0.
        label_smoothing: {label_smoothing}
        ignore_index: {ignore_index}
        reduction: {reduction}

    Returns:
        {returns}

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
        >>> softmax_focal_loss(logits, torch.tensor([0, 2]), torch.tensor([0.2, 0.8, 2.0]), gamma=2.0)
        tensor(0.1661)

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, with softmax for sigmoid.
    """
    check_loss_option("gamma", gamma)
    return apply_loss(OddsLoss(float(gamma)), logits, target, class_weight, label_smoothing, ignore_index, reduction)


class OddsLoss(RowLoss):
    r"""(1-p)^γ · -log p, p the softmax probability of the sample's own class.

    With v the log-odds against it, log Σ_{j≠y} exp z_j - z_y: -log p = softplus(v) and 1-p = sigmoid(v), as in the
    sigmoid focal loss, and as little can go wrong. Logits are multiplied by ``scale``, and the odds against class j
    by exp(``margin``_j), first.
    """

    buffers = 2

    def __init__(self, gamma: float, scale: float = 1.0, margin: Tensor | None = None) -> None:
        self.gamma, self.scale, self.per_class = gamma, scale, margin

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        """One loss per sample, of class indices."""
        z = self._scaled(logits)
        others = z.masked_fill(is_own_class(z, target), torch.finfo(z.dtype).min)
        v = torch.logsumexp(others, 1) - z.gather(1, target.unsqueeze(1)).squeeze(1)
        return focal_terms(v if self.per_class is None else v + look_up(self.per_class, target), self.gamma)

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        """One loss per sample, of probabilities."""
        v = log_odds_against(self._scaled(logits))
        v = v if self.per_class is None else v + columns(self.per_class, logits)
        return (target * focal_terms(v, self.gamma)).sum(1)

    def _scaled(self, logits: Tensor) -> Tensor:
        return (logits - row_maximum(logits)) * self.scale

    def block(
        self, logits: Tensor, target: Tensor, scale: Tensor, out: Buffers, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Losses of a block of samples, and their gradient."""
        z = torch.sub(logits, row_maximum(logits), out=out[1])
        if self.scale != 1:
            z.mul_(self.scale)
        own = z.gather(1, target)
        z.scatter_(1, target, torch.finfo(z.dtype).min)
        shares = torch.softmax(z, 1, out=out[0])
        # The largest share is exp(largest logit - log-sum-exp of the others), and never small.
        others = z.amax(1, keepdim=True) - shares.amax(1, keepdim=True).log_()
        v = others - own
        if self.per_class is not None:
            v += look_up(self.per_class, target)
        value, slope = focal_value_and_slope(v, self.gamma)
        if gradient:
            slope = slope.mul_(scale).mul_(self.scale)
            shares.mul_(slope).scatter_(1, target, -slope)
        return value, shares


def log_odds_against(logits: Tensor) -> Tensor:
    """For every class i, log Σ_{j≠i} exp z_j - z_i.

    It is log(1-p) - log p. Only the largest p can be so close to 1 that 1-p loses digits: that one is summed up anew.
    """
    log_p = F.log_softmax(logits, 1)
    largest = is_own_class(logits, logits.argmax(1))
    p = log_p.masked_fill(largest, -torch.inf).exp()
    others = torch.logsumexp(logits.masked_fill(largest, torch.finfo(logits.dtype).min), 1, keepdim=True)
    return torch.where(largest, others - logits, torch.log1p(-p) - log_p)
