"""Stateless losses over logits.

Each takes ``(logits, target, class_weight=None, *, …, label_smoothing, ignore_index, reduction)`` and obeys the same
conventions: see ``docs/conventions.md``.
"""

from longtail.functional.asymmetric import asymmetric_loss
from longtail.functional.ldam import ldam_loss
from longtail.functional.sigmoid import focal_loss, sigmoid_cross_entropy
from longtail.functional.softmax import logit_adjusted_cross_entropy, softmax_cross_entropy
from longtail.functional.softmax_focal import softmax_focal_loss

__all__ = [
    "asymmetric_loss",
    "focal_loss",
    "ldam_loss",
    "logit_adjusted_cross_entropy",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "softmax_focal_loss",
]
