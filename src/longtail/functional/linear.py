"""Losses fused with the last layer: features and weights in, loss out, and never the logits of all classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from longtail._checks import check_loss_option
from longtail.functional._linear import linear_loss
from longtail.functional._tiles import Odds, Separable
from longtail.functional.sigmoid import focal_loss, sigmoid_cross_entropy
from longtail.functional.softmax import softmax_cross_entropy
from longtail.functional.softmax_focal import softmax_focal_loss

__all__ = [
    "linear_focal_loss",
    "linear_logit_adjusted_cross_entropy",
    "linear_sigmoid_cross_entropy",
    "linear_softmax_cross_entropy",
    "linear_softmax_focal_loss",
]


def linear_softmax_cross_entropy(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    r"""Softmax cross-entropy of a linear layer, for many classes.

    .. math:: L(x, y) = -\alpha_y \log \frac{\exp z_y}{\sum_j \exp z_j}, \qquad z = W x + b

    The value and the gradients of ``softmax_cross_entropy(F.linear(features, weight, bias), target, class_weight)``,
    from two sweeps over blocks of classes: the (N, C) logits are never held.

    Shapes: features (…, D), weight (C, D), bias (C), target (…); losses (…).

    Args:
        features: what the last layer sees. Matrix products are computed in their dtype, or in that of autocast, and
            in float32 for float16; all else in float32 or wider.
        weight: of the last layer; may be wider than the features.
        target: class indices.
        class_weight: α, a tensor of shape (C,), such as ``torch.as_tensor(class_weights(counts))``; default all ones.
        bias: of the last layer; default none.
        ignore_index: samples with this class index do not count, and cost nothing.
        reduction: ``"mean"``, ``"sum"``, ``"none"`` or ``"weighted_mean"``; ``"none"`` forms the logits once more in
            backward.
        group: the processes that share the classes: each gives its own samples, and weight and bias of its own
            classes, those of rank 0 first. ``class_weight`` is that of all classes. The loss is that of the samples
            of all ranks.

    Returns:
        A scalar, or one loss per sample for ``"none"``, in float32 or wider.

    Example:
        >>> import torch
        >>> features, weight = torch.tensor([[2.0, 0.0], [0.5, 1.0]]), torch.eye(3, 2)
        >>> linear_softmax_cross_entropy(features, weight, torch.tensor([0, 2]), torch.tensor([0.2, 0.8, 2.0]))
        tensor(1.7042)

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019; Wijmans et al., Cut Your
        Losses in Large-Vocabulary Language Models, ICLR 2025, for the blocks of classes.
    """
    options = (class_weight, bias, ignore_index, reduction, group)
    return linear_loss(Odds(), softmax_cross_entropy, features, weight, target, *options)


def linear_logit_adjusted_cross_entropy(  # noqa: D417
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    counts: Any,
    tau: float = 1.0,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    r"""Logit-adjusted cross-entropy of a linear layer, for many classes; τ = 1 is balanced softmax.

    .. math:: L(x, y) = -\alpha_y \log \frac{\exp(z_y + \tau \log \pi_y)}{\sum_j \exp(z_j + \tau \log \pi_j)},
        \qquad z = W x + b, \quad \pi_j = \frac{n_j}{\sum_k n_k}

    What :func:`longtail.functional.logit_adjusted_cross_entropy` gives for the logits, from two sweeps over blocks of
    classes.

    Shapes: features (…, D), weight (C, D), bias (C), target (…); losses (…).

    Args:
        features, weight, target, class_weight, bias, ignore_index, reduction, group: as in
            :func:`linear_softmax_cross_entropy`.
        counts: n, samples per class in the training set, shape (C,); of all classes, also with a ``group``.
        tau: τ ≥ 0; 0 is :func:`linear_softmax_cross_entropy`.

    Returns:
        A scalar, or one loss per sample for ``"none"``, in float32 or wider.

    Example:
        >>> import torch
        >>> features, weight = torch.zeros(1, 2), torch.eye(3, 2)
        >>> linear_logit_adjusted_cross_entropy(features, weight, torch.tensor([2]), counts=[80, 15, 5])  # -log 0.05
        tensor(2.9957)

    Reference:
        Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS 2020; Menon et al., Long-Tail
        Learning via Logit Adjustment, ICLR 2021.
    """
    check_loss_option("tau", tau)
    options = (class_weight, bias, ignore_index, reduction, group)
    return linear_loss(Odds(), softmax_cross_entropy, features, weight, target, *options, counts, tau)


def linear_softmax_focal_loss(  # noqa: D417
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    gamma: float = 0.5,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    r"""Focal loss over the softmax of a linear layer, for many classes.

    .. math:: L(x, y) = -\alpha_y (1 - p_y)^\gamma \log p_y, \qquad p = \operatorname{softmax}(W x + b)

    What :func:`longtail.functional.softmax_focal_loss` gives for the logits, from two sweeps over blocks of classes.

    Shapes: features (…, D), weight (C, D), bias (C), target (…); losses (…).

    Args:
        features, weight, target, class_weight, bias, ignore_index, reduction, group: as in
            :func:`linear_softmax_cross_entropy`.
        gamma: γ ≥ 0.

    Returns:
        A scalar, or one loss per sample for ``"none"``, in float32 or wider.

    Example:
        >>> import torch
        >>> features, weight = torch.tensor([[2.0, 0.0], [0.5, 1.0]]), torch.eye(3, 2)
        >>> linear_softmax_focal_loss(features, weight, torch.tensor([0, 2]), gamma=2.0)
        tensor(0.5617)

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, with softmax for sigmoid.
    """
    check_loss_option("gamma", gamma)
    definition = partial(softmax_focal_loss, gamma=gamma)
    options = (class_weight, bias, ignore_index, reduction, group)
    return linear_loss(Odds(gamma), definition, features, weight, target, *options)


def linear_sigmoid_cross_entropy(  # noqa: D417
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    r"""Sigmoid cross-entropy of a linear layer, summed over classes, for many classes.

    .. math:: L(x, y) = -\alpha_y \sum_{i=1}^{C} \log \operatorname{sigmoid}(z_i^t), \qquad z = W x + b, \quad
        z_i^t = z_i \text{ if } i = y, \text{ else } -z_i

    What :func:`longtail.functional.sigmoid_cross_entropy` gives for the logits, from one sweep over blocks of classes.

    Shapes: features (…, D), weight (C, D), bias (C), target (…); losses (…).

    Args:
        features, weight, target, class_weight, bias, ignore_index, reduction, group: as in
            :func:`linear_softmax_cross_entropy`.

    Returns:
        A scalar, or one loss per sample for ``"none"``, in float32 or wider.

    Example:
        >>> import torch
        >>> features, weight = torch.tensor([[2.0, 0.0], [0.5, 1.0]]), torch.eye(3, 2)
        >>> linear_sigmoid_cross_entropy(features, weight, torch.tensor([0, 2]))
        tensor(2.2469)

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, section 4.2.
    """
    options = (class_weight, bias, ignore_index, reduction, group)
    return linear_loss(Separable(0.0), sigmoid_cross_entropy, features, weight, target, *options)


def linear_focal_loss(  # noqa: D417
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    gamma: float = 0.5,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    r"""Focal loss of a linear layer, for many classes.

    .. math:: L(x, y) = -\alpha_y \sum_{i=1}^{C} (1 - p_i^t)^\gamma \log p_i^t, \qquad
        p_i^t = \operatorname{sigmoid}(z_i^t), \quad z = W x + b

    What :func:`longtail.functional.focal_loss` gives for the logits, from one sweep over blocks of classes.

    Shapes: features (…, D), weight (C, D), bias (C), target (…); losses (…).

    Args:
        features, weight, target, class_weight, bias, ignore_index, reduction, group: as in
            :func:`linear_softmax_cross_entropy`.
        gamma: γ ≥ 0; 0 is :func:`linear_sigmoid_cross_entropy`.

    Returns:
        A scalar, or one loss per sample for ``"none"``, in float32 or wider.

    Example:
        >>> import torch
        >>> features, weight = torch.tensor([[2.0, 0.0], [0.5, 1.0]]), torch.eye(3, 2)
        >>> linear_focal_loss(features, weight, torch.tensor([0, 2]), gamma=2.0)
        tensor(0.8005)

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017; Cui et al., Class-Balanced Loss Based on Effective
        Number of Samples, CVPR 2019, section 4.3.
    """
    check_loss_option("gamma", gamma)
    definition = partial(focal_loss, gamma=gamma)
    options = (class_weight, bias, ignore_index, reduction, group)
    return linear_loss(Separable(gamma), definition, features, weight, target, *options)
