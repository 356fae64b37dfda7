"""Softmax cross-entropy, plain and with adjusted logits: classes exclude each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import check_loss_option
from longtail._docstrings import with_shared_paragraphs
from longtail.functional._apply import apply_loss, check_inputs, columns, row_maximum
from longtail.functional._blocked import LOG2_E, Buffers, RowLoss
from longtail.functional._counts import adjustment

__all__ = ["logit_adjusted_cross_entropy", "softmax_cross_entropy"]


@with_shared_paragraphs
def softmax_cross_entropy(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Softmax cross-entropy with class weights.

    .. math:: L(z, y) = -\alpha_y \log \frac{\exp z_y}{\sum_j \exp z_j}

    ``"mean"`` divides by the number of samples, as the paper's code does, and not by the sum of their weights, as
    ``F.cross_entropy(weight=…)`` does; that one is called ``"weighted_mean"`` here.

    {shapes}

    Args:
        logits: {softmax_logits}
        target: class indices (N) or (N, d1, …), or probabilities of the logits' shape (soft labels, mixup).
        class_weight: {class_weight}
        label_smoothing: {label_smoothing}
        ignore_index: {ignore_index}
        reduction: {reduction}

    Returns:
        {returns}

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
        >>> softmax_cross_entropy(logits, torch.tensor([0, 2]), torch.tensor([0.2, 0.8, 2.0]))
        tensor(0.6973)

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, section 4.1.
    """
    return apply_loss(_SOFTMAX, logits, target, class_weight, label_smoothing, ignore_index, reduction)


@with_shared_paragraphs
def logit_adjusted_cross_entropy(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    counts: Any,
    tau: float = 1.0,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Softmax cross-entropy of logits that carry the class prior; τ = 1 is balanced softmax.

    .. math:: L(z, y) = -\alpha_y \log \frac{\exp(z_y + \tau \log \pi_y)}{\sum_j \exp(z_j + \tau \log \pi_j)},
        \qquad \pi_j = \frac{n_j}{\sum_k n_k}

    The prior is added in training only: the network learns what is left, and its own logits are those of balanced
    classes. To adjust a network that was trained without it, see :func:`longtail.adjust_logits`.

    {shapes}

    Args:
        logits: scores before the softmax, without the prior; float16 and bfloat16 are computed in float32.
        target: class indices (N) or (N, d1, …), or probabilities of the logits' shape (soft labels, mixup).
        class_weight: α, a tensor of shape (C,); default all ones. The prior alone corrects for the classes' sizes, so
            weights on top of it correct twice.
        counts: {counts}
        tau: τ ≥ 0; 0 is :func:`softmax_cross_entropy`.
        label_smoothing: {label_smoothing}
        ignore_index: {ignore_index}
        reduction: {reduction}

    Returns:
        {returns}

    Example:
        >>> logits = torch.zeros(1, 3)
        >>> logit_adjusted_cross_entropy(logits, torch.tensor([2]), counts=[80, 15, 5])  # -log 0.05
        tensor(2.9957)

    Reference:
        Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS 2020; Menon et al., Long-Tail
        Learning via Logit Adjustment, ICLR 2021.
    """
    check_loss_option("tau", tau)
    check_inputs(logits, target, class_weight)
    row_loss = _Softmax(*adjustment(logits, counts, float(tau)))
    options = (label_smoothing, ignore_index, reduction)
    return apply_loss(row_loss, logits, target, class_weight, *options, checked=True)


class _Softmax(RowLoss):
    """-log softmax, of logits that have ``shift``, one number per class, added to them.

    ``flat`` says that the shifts are so close together that no sum of exponentials underflows where the largest logit
    was subtracted before the shift was added.
    """

    buffers = 1
    is_cross_entropy = True

    def __init__(self, shift: Tensor | None = None, flat: bool = True) -> None:
        self.per_class, self.flat = shift, flat

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.shifted(logits), target, reduction="none")

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        return -(target * F.log_softmax(self.shifted(logits), 1)).sum(1)

    def shifted(self, logits: Tensor, near_zero: bool = False) -> Tensor:
        """The logits with the shift; an offset common to all classes would cost its digits, and goes first."""
        if self.per_class is None:
            return logits
        if not near_zero:
            logits = logits - row_maximum(logits)
        return logits + columns(self.per_class, logits)

    def block(
        self, logits: Tensor, target: Tensor, scale: Tensor, out: Buffers, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        # PyTorch's exp2 takes less time than the exponentials of its softmax.
        z = torch.sub(logits, row_maximum(logits), out=out[0])
        if self.per_class is None:
            z.mul_(LOG2_E)
        else:
            torch.add(columns(self.per_class * LOG2_E, logits), z, alpha=LOG2_E, out=z)
        if not self.flat:
            z.sub_(row_maximum(z))
        own = z.gather(1, target)
        total = z.exp2_().sum(1, keepdim=True)
        if gradient:
            z.mul_(scale / total).scatter_add_(1, target, -scale)
        return total.log_().sub_(own, alpha=1 / LOG2_E), z


_SOFTMAX = _Softmax()
