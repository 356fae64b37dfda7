"""The losses of a linear layer, each beside the loss of logits that it fuses with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from longtail import functional


@dataclass(frozen=True)
class LinearCase:
    name: str
    option: float | None = None

    @property
    def fused(self) -> Callable[..., torch.Tensor]:
        return getattr(functional, f"linear_{self.name}")

    def options(self, classes: int) -> dict[str, Any]:
        if self.name == "logit_adjusted_cross_entropy":
            return {"tau": self.option, "counts": [round(5000 / (1 + k) ** 1.5) or 1 for k in range(classes)]}
        return {} if self.option is None else {"gamma": self.option}

    def __call__(self, features, weight, target, *args, **options):
        return self.fused(
            features, weight, target, *args, **self.options(options.pop("classes", len(weight))), **options
        )

    def unfused(self, features, weight, target, *args, bias=None, **options):
        """``F.linear``, then the loss of logits."""
        logits = F.linear(features, weight, bias).flatten(0, -2)
        loss = getattr(functional, self.name)(logits, target.flatten(), *args, **self.options(len(weight)), **options)
        return loss.view(target.shape) if loss.dim() else loss


CASES = [
    LinearCase("softmax_cross_entropy"),
    LinearCase("logit_adjusted_cross_entropy", 1.5),
    LinearCase("sigmoid_cross_entropy"),
    *(LinearCase("focal_loss", gamma) for gamma in (0.0, 0.5, 1.0, 2.0, 3.7)),
    *(LinearCase("softmax_focal_loss", gamma) for gamma in (0.5, 2.0)),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.option}")


def layer(n=7, d=5, c=13, dtype=torch.float64, seed=0):
    """Features, weight and bias that require a gradient, class indices and class weights."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()

    inputs = random(n, d), random(c, d), random(c)
    target = torch.randint(c, (n,), generator=generator)
    return inputs, target, torch.rand(c, generator=generator, dtype=torch.float64) + 0.1
