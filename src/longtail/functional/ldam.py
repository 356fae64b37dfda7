"""LDAM: softmax cross-entropy with margins."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longtail._checks import check_loss_option
from longtail._docstrings import with_shared_paragraphs
from longtail.functional._apply import apply_loss, check_inputs
from longtail.functional._counts import counts_beside, margins
from longtail.functional.softmax_focal import OddsLoss

__all__ = ["ldam_loss"]


@with_shared_paragraphs
def ldam_loss(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    counts: Any,
    max_margin: float = 0.5,
    scale: float = 30.0,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Label-distribution-aware margin loss: softmax cross-entropy with a margin that is larger for rarer classes.

    .. math:: L(z, y) = -\alpha_y \log \frac{e^{s(z_y - \Delta_y)}}{e^{s(z_y - \Delta_y)} + \sum_{j \ne y} e^{s z_j}},
        \qquad \Delta_j = \Delta_{\max} \left(\frac{\min_k n_k}{n_j}\right)^{1/4}

    It is meant for the cosines of :class:`longtail.NormedLinear`: margins have a meaning where logits are bounded. At
    test time probabilities are :math:`\operatorname{softmax}(s z)`, without margins.

    {shapes}

    Args:
        logits: scores before scaling; float16 and bfloat16 are computed in float32.
        target: class indices (N) or (N, d1, …), or probabilities of the logits' shape (soft labels, mixup): with
            :math:`t_i` the target, the loss is :math:`\sum_i t_i L(z, i)`, each class with its own margin.
        class_weight: {class_weight}
        counts: {counts}
        max_margin: :math:`\Delta_{\max}` ≥ 0, the margin of the smallest class.
        scale: s > 0. With ``max_margin=0`` and ``scale=1`` this is :func:`softmax_cross_entropy`.
        label_smoothing: {label_smoothing}
        ignore_index: {ignore_index}
        reduction: {reduction}

    Returns:
        {returns}

    Example:
        >>> import torch
        >>> cosines = torch.tensor([[0.9, 0.2, -0.1], [0.3, 0.1, 0.8]])
        >>> ldam_loss(cosines, torch.tensor([0, 2]), counts=[5000, 500, 50])
        tensor(0.3472)

    Reference:
        Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019.
    """
    check_loss_option("max_margin", max_margin)
    check_loss_option("scale", scale)
    check_inputs(logits, target, class_weight)
    margin = float(scale) * margins(counts_beside(logits, counts), float(max_margin))
    row_loss = OddsLoss(0.0, float(scale), margin)
    options = (label_smoothing, ignore_index, reduction)
    return apply_loss(row_loss, logits, target, class_weight, *options, checked=True)
