"""Stateless losses over logits.

Each takes ``(logits, target, class_weight=None, *, …, label_smoothing, ignore_index, reduction)`` and obeys the same
conventions: see ``docs/conventions.md``.
"""

from longtail.functional.sigmoid import focal_loss, sigmoid_cross_entropy
from longtail.functional.softmax import softmax_cross_entropy

__all__ = ["focal_loss", "sigmoid_cross_entropy", "softmax_cross_entropy"]
