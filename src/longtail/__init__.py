"""Class-balanced losses for long-tailed data.

Labels → counts → effective numbers → class weights → losses, after Cui et al., *Class-Balanced Loss Based on Effective
Number of Samples*, CVPR 2019.

Example:
    >>> import torch
    >>> from longtail import ClassBalancedLoss
    >>> criterion = ClassBalancedLoss.from_labels([0, 0, 0, 0, 0, 0, 1, 1, 2], loss="focal", beta=0.99, gamma=0.5)
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> criterion(logits, torch.tensor([0, 1, 2, 0])).backward()
"""

from longtail import functional, losses, prototypes, samplers, schedules, theory
from longtail.counts import class_counts, imbalance_factor, long_tailed_counts
from longtail.fused import FusedLinearLoss
from longtail.heads import NormedLinear, adjust_logits, init_classifier_bias_, param_groups
from longtail.losses import *  # noqa: F403
from longtail.weights import (
    beta_from_prototypes,
    class_weight_dict,
    class_weights,
    effective_number,
    sample_weights,
)

__all__ = [
    "FusedLinearLoss",
    "NormedLinear",
    "adjust_logits",
    "beta_from_prototypes",
    "class_counts",
    "class_weight_dict",
    "class_weights",
    "effective_number",
    "functional",
    "imbalance_factor",
    "init_classifier_bias_",
    "long_tailed_counts",
    "param_groups",
    "prototypes",
    "sample_weights",
    "samplers",
    "schedules",
    "theory",
]
__all__ += losses.__all__

__version__ = "0.2.0"
