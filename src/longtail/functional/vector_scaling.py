"""Vector-scaling (VS) loss: softmax cross-entropy of logits with one factor and one offset per class."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longtail._checks import check_loss_option
from longtail._docstrings import with_shared_paragraphs
from longtail.functional._apply import apply_loss, check_inputs, columns, is_traced, row_maximum
from longtail.functional._blocked import Buffers
from longtail.functional._counts import counts_beside, log_prior, margins
from longtail.functional.softmax_focal import OddsLoss

__all__ = ["vector_scaling_loss"]


@with_shared_paragraphs
def vector_scaling_loss(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    counts: Any,
    gamma_scaling: float = 0.3,
    tau: float = 1.0,
    max_margin: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Vector-scaling (VS) loss: softmax cross-entropy of logits that are scaled and shifted class by class.

    .. math:: L(z, y) = -\alpha_y \log \frac{e^{\Delta_y z_y + \iota_y - m_y}}
        {e^{\Delta_y z_y + \iota_y - m_y} + \sum_{j \ne y} e^{\Delta_j z_j + \iota_j}}, \qquad
        \Delta_j = \Bigl(\frac{n_j}{\max_k n_k}\Bigr)^{\gamma}, \quad \iota_j = \tau \log \frac{n_j}{\sum_k n_k}, \quad
        m_j = m_{\max} \Bigl(\frac{\min_k n_k}{n_j}\Bigr)^{1/4}

    The offsets ι act early in training; once the training samples are fitted, only the factors Δ still move the
    boundary between frequent and rare classes. The network's own logits z, unchanged, are those to predict with.

    γ = 0 is :func:`logit_adjusted_cross_entropy`, with τ = 0, too, :func:`softmax_cross_entropy`. Kini et al. have no
    margin m; with γ = τ = 0 it is that of :func:`ldam_loss` with ``scale=1``.

    {shapes}

    Args:
        logits: {softmax_logits}
        target: class indices (N) or (N, d1, …), or probabilities of the logits' shape (soft labels, mixup): with
            :math:`t_i` the target, the loss is :math:`\sum_i t_i L(z, i)`.
        class_weight: {class_weight}
        counts: {counts}
        gamma_scaling: γ ≥ 0 of the factors; the default is that of the authors' code.
        tau: τ ≥ 0 of the offsets.
        max_margin: :math:`m_{\max}` ≥ 0, the margin of the smallest class.
        label_smoothing: {label_smoothing}
        ignore_index: {ignore_index}
        reduction: {reduction}

    Returns:
        {returns}

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
        >>> vector_scaling_loss(logits, torch.tensor([0, 2]), counts=[5000, 500, 50])
        tensor(2.4673)

    Reference:
        Kini et al., Label-Imbalanced and Group-Sensitive Classification under Overparameterization, NeurIPS 2021.
    """
    options = {"gamma_scaling": gamma_scaling, "tau": tau, "max_margin": max_margin}
    for name, value in options.items():
        check_loss_option(name, value)
    check_inputs(logits, target, class_weight)
    n = counts_beside(logits, counts)
    # Margins of 0 where the counts are differentiated or traced, which the block engine does with margins only.
    margin = margins(n, max_margin) if max_margin or n.requires_grad or is_traced(n) else None
    row_loss = _VectorScaling((n / n.max()) ** gamma_scaling, tau * log_prior(n), margin)
    rest = (label_smoothing, ignore_index, reduction)
    return apply_loss(row_loss, logits, target, class_weight, *rest, checked=True)


class _VectorScaling(OddsLoss):
    """-log softmax of ``factor`` × logits + ``offset``, less the ``margin`` for each sample's own class."""

    def __init__(self, factor: Tensor, offset: Tensor, margin: Tensor | None) -> None:
        super().__init__(gamma=0.0, margin=margin)
        self.factor, self.offset = factor, offset

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        return super().from_indices(self._adjusted(logits), target)

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        return super().from_probabilities(self._adjusted(logits), target)

    def _adjusted(self, logits: Tensor) -> Tensor:
        scaled = logits * columns(self.factor, logits)
        return scaled - row_maximum(scaled) + columns(self.offset, logits)

    def block(
        self, logits: Tensor, target: Tensor, scale: Tensor, out: Buffers, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        factor = columns(self.factor, logits)
        z = logits.clone() if out[1] is None else out[1].copy_(logits)
        z.mul_(factor)
        z.sub_(row_maximum(z)).add_(columns(self.offset, logits))
        terms, slope = super().block(z, target, scale, out, gradient)
        return terms, slope.mul_(factor) if gradient else slope
