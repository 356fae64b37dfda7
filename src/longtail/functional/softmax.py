"""Softmax cross-entropy: classes exclude each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.functional._apply import apply_loss
from longtail.functional._blocked import Buffers

__all__ = ["softmax_cross_entropy"]


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

    Shapes: logits (N, C) or (N, C, d1, …) or (C,); losses (N), (N, d1, …) or ().

    Args:
        logits: scores before the softmax; float16 and bfloat16 are computed in float32.
        target: class indices (N) or (N, d1, …), or probabilities of the logits' shape (soft labels, mixup).
        class_weight: α, a tensor of shape (C,), such as ``torch.as_tensor(class_weights(counts))``; default all ones.
        label_smoothing: ε in [0, 1]: the target becomes (1-ε)·target + ε/C. The weight stays that of the sample's
            own class.
        ignore_index: samples with this class index do not count.
        reduction: ``"mean"``, ``"sum"``, ``"none"`` or ``"weighted_mean"``.

    Returns:
        A scalar, or one loss per sample for ``"none"``, in float32 or wider.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
        >>> softmax_cross_entropy(logits, torch.tensor([0, 2]), torch.tensor([0.2, 0.8, 2.0]))
        tensor(0.6973)

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, section 4.1.
    """
    return apply_loss(_SOFTMAX, logits, target, class_weight, label_smoothing, ignore_index, reduction)


class _Softmax:
    buffers = 2

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, reduction="none")

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        return -(target * F.log_softmax(logits, 1)).sum(1)

    def block(
        self, logits: Tensor, target: Tensor, scale: Tensor, out: Buffers, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        if logits.dtype != scale.dtype and out[0] is not None:
            logits = out[0].copy_(logits)
        log_p = torch.log_softmax(logits, 1, out=out[1])
        minus_scale = -scale
        terms = log_p.gather(1, target).mul_(minus_scale)
        if gradient:
            log_p = torch.exp(log_p, out=out[0]).mul_(scale).scatter_add_(1, target, minus_scale)
        return terms, log_p


_SOFTMAX = _Softmax()
