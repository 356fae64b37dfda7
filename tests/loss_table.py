"""Every loss of the package, once: tests parametrize over this table, so a new loss gets all of them by one line."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import longtail
from longtail import functional
from tests.reference.losses import weighted_loss


@dataclass(frozen=True)
class Loss:
    name: str
    function: Callable[..., Tensor]
    module: Callable[..., torch.nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    multi_hot: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.function(*args, **self.options, **kwargs)

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        return weighted_loss(self.name, *args, **self.options, **kwargs)


LOSSES = [
    Loss("softmax", functional.softmax_cross_entropy, longtail.SoftmaxCrossEntropy),
    Loss("sigmoid", functional.sigmoid_cross_entropy, longtail.SigmoidCrossEntropy, multi_hot=True),
    *(
        Loss("focal", functional.focal_loss, longtail.FocalLoss, {"gamma": gamma}, multi_hot=True)
        for gamma in (0.0, 0.5, 1.0, 2.0, 3.7)
    ),
]
every_loss = pytest.mark.parametrize(
    "loss", LOSSES, ids=lambda loss: "-".join(map(str, (loss.name, *loss.options.values())))
)
every_name = pytest.mark.parametrize("name", sorted({loss.name for loss in LOSSES}))


def batch(n=6, c=5, *dims, dtype=torch.float64, seed=0):
    """Logits that require a gradient, class indices and class weights."""
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(n, c, *dims, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    target = torch.randint(c, (n, *dims), generator=generator)
    weight = torch.rand(c, generator=generator, dtype=torch.float64) + 0.1
    return logits, target, weight
