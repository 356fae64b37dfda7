"""Stateless losses over logits.

Each takes ``(logits, target, class_weight=None, *, …, label_smoothing, ignore_index, reduction)`` and obeys the same
conventions: see ``docs/reference/conventions.md``. Those named ``linear_…`` are fused with the last layer, for heads of
many classes, and take ``(features, weight, target, class_weight=None, *, bias, …, ignore_index, reduction, group)``.
"""

from longtail.functional.asymmetric import asymmetric_loss
from longtail.functional.ldam import ldam_loss
from longtail.functional.linear import (
    linear_focal_loss,
    linear_logit_adjusted_cross_entropy,
    linear_sigmoid_cross_entropy,
    linear_softmax_cross_entropy,
    linear_softmax_focal_loss,
)
from longtail.functional.sigmoid import focal_loss, sigmoid_cross_entropy
from longtail.functional.softmax import logit_adjusted_cross_entropy, softmax_cross_entropy
from longtail.functional.softmax_focal import softmax_focal_loss
from longtail.functional.vector_scaling import vector_scaling_loss

__all__ = [
    "asymmetric_loss",
    "focal_loss",
    "ldam_loss",
    "linear_focal_loss",
    "linear_logit_adjusted_cross_entropy",
    "linear_sigmoid_cross_entropy",
    "linear_softmax_cross_entropy",
    "linear_softmax_focal_loss",
    "logit_adjusted_cross_entropy",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "softmax_focal_loss",
    "vector_scaling_loss",
]
