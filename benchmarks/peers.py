"""What the benchmark runs: PyTorch's own losses, those of longtail, and those of the peers on PyPI.

Each entry builds a loss for a case, outside of the timed call, the way its documentation says. They are not all the
same function: a "focal over softmax" raises one probability per sample to a power instead of one per class, the
sigmoid loss of balanced-loss is divided by the number of classes, and PyTorch's binary cross-entropy has no weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import longtail
from longtail.losses import LOSSES

__all__ = ["BASELINE", "IMPLEMENTATIONS", "PEERS", "Case", "Loss"]

BETA = 0.999
GAMMA = 0.5
BASELINE = "F.cross_entropy(weight=…)"
PEERS = ("balanced-loss", "cbloss", "imbalanced-losses")

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Case:
    """Logits of a shape and dtype with a long-tailed target, 100 times as many of the first class as of the last."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    counts: list[int] = field(init=False)
    class_weight: Tensor = field(init=False)
    logits: Tensor = field(init=False)
    target: Tensor = field(init=False)

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        counts = longtail.long_tailed_counts(5000, self.classes, 100)
        self.counts = counts.tolist()
        self.class_weight = torch.as_tensor(longtail.class_weights(counts, beta=BETA)).float()
        self.logits = torch.randn(self.shape, generator=random).to(self.dtype).requires_grad_()
        positions = (self.shape[0], *self.shape[2:])
        labels = torch.multinomial(torch.tensor(counts).float(), torch.Size(positions).numel(), True, generator=random)
        self.target = labels.view(positions)

    @property
    def classes(self) -> int:
        return self.shape[1]

    def step(self, loss: Loss) -> None:
        """Forward and backward, as in a step of training."""
        loss(self.logits, self.target).backward()


def _one_hot(logits: Tensor, target: Tensor) -> Tensor:
    return F.one_hot(target, logits.shape[1]).movedim(-1, 1).to(logits.dtype)


def _cross_entropy(case: Case) -> Loss:
    # PyTorch wants the weights in the dtype of the logits.
    return partial(F.cross_entropy, weight=case.class_weight.to(case.dtype))


def _binary_cross_entropy(case: Case) -> Loss:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        one_hot = _one_hot(logits, target)
        return F.binary_cross_entropy_with_logits(logits, one_hot, reduction="sum") / target.numel()

    return loss


def _longtail(name: str, case: Case) -> Loss:
    gamma = GAMMA if name == "focal" else None
    return longtail.ClassBalancedLoss(case.counts, loss=name, beta=BETA, gamma=gamma)


def _longtail_compiled(name: str, case: Case) -> Loss:
    if case.logits.numel() < 1024 * 1000 or len(case.shape) > 2 or case.dtype != torch.float32:
        raise ValueError("compiled losses are measured in float32, from 1024 × 1000 on")
    torch._dynamo.reset()
    return torch.compile(_longtail(name, case))


def _balanced_loss(name: str, case: Case) -> Loss:
    from balanced_loss import Loss as BalancedLoss

    # Weights are computed in every call: the module takes counts only.
    return BalancedLoss(name, beta=BETA, fl_gamma=GAMMA, samples_per_class=case.counts, class_balanced=True)


def _cbloss(base: Callable[[Case], nn.Module], case: Case) -> Loss:
    from cbloss.loss import ClassBalancedLoss

    return ClassBalancedLoss(case.counts, beta=BETA, num_classes=case.classes, loss_func=base(case))


def _cbloss_focal(case: Case) -> nn.Module:
    from cbloss.loss import FocalLoss

    return FocalLoss(num_classes=case.classes, gamma=GAMMA, reduction="none")


def _imbalanced_losses_softmax(case: Case) -> Loss:
    from imbalanced_losses import SoftmaxFocalLoss

    return SoftmaxFocalLoss(alpha=case.class_weight, gamma=GAMMA)


def _imbalanced_losses_sigmoid(case: Case) -> Loss:
    from imbalanced_losses import SigmoidFocalLoss

    module = SigmoidFocalLoss(alpha=-1, gamma=GAMMA, reduction="sum")
    class_weight = case.class_weight

    # Its alpha weighs positives against negatives, so the weight of a class has to come in as that of its samples.
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        sample_weight = class_weight[target].unsqueeze(1)
        return module(logits, _one_hot(logits, target), sample_weight=sample_weight) / target.numel()

    return loss


IMPLEMENTATIONS: dict[str, Callable[[Case], Loss]] = {
    BASELINE: _cross_entropy,
    "F.binary_cross_entropy_with_logits": _binary_cross_entropy,
    **{f"longtail {name}": partial(_longtail, name) for name in LOSSES},
    **{f"longtail {name}, compiled": partial(_longtail_compiled, name) for name in ("softmax", "sigmoid", "focal")},
    "balanced-loss softmax": partial(_balanced_loss, "cross_entropy"),
    "balanced-loss sigmoid": partial(_balanced_loss, "binary_cross_entropy"),
    "balanced-loss focal": partial(_balanced_loss, "focal_loss"),
    "cbloss softmax": partial(_cbloss, lambda case: nn.CrossEntropyLoss(reduction="none")),
    "cbloss sigmoid": partial(_cbloss, lambda case: nn.BCEWithLogitsLoss(reduction="none")),
    "cbloss focal over softmax": partial(_cbloss, _cbloss_focal),
    "imbalanced-losses focal over softmax": _imbalanced_losses_softmax,
    "imbalanced-losses focal over sigmoids": _imbalanced_losses_sigmoid,
}
