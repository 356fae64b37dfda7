"""Every loss of the package, once: tests parametrize over this table, so a new loss gets all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from longtail.losses import LOSSES as KINDS
from tests.reference.losses import weighted_loss

COUNTS = [5000, 1077, 232, 50, 9]


@dataclass(frozen=True)
class Loss:
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Tensor]:
        return KINDS[self.name].function

    @property
    def module(self) -> Callable[..., torch.nn.Module]:
        return KINDS[self.name].module

    @property
    def multi_hot(self) -> bool:
        return KINDS[self.name].is_sigmoid

    def options_for(self, counts: Any) -> dict[str, Any]:
        """Its options, and the counts if it needs them."""
        return self.options | ({"counts": counts} if KINDS[self.name].needs_counts else {})

    def build(self, weight: Any = None, *, counts: Any = COUNTS, **kwargs: Any) -> torch.nn.Module:
        """The module, for five classes."""
        return self.module(weight, **self.options_for(counts), **kwargs)

    def __call__(self, logits: Any, *args: Any, counts: Any = None, **kwargs: Any) -> Tensor:
        counts = counts_like(logits) if counts is None else counts
        return self.function(logits, *args, **self.options_for(counts), **kwargs)

    def reference(self, logits: Any, *args: Any, **kwargs: Any) -> Any:
        options = self.options_for(counts_like(torch.as_tensor(logits)).numpy())
        return weighted_loss(self.name, logits, *args, **options, **kwargs)


# Options to test other than the defaults; a loss that is not here is tested with its defaults.
OPTIONS = {
    "focal": [{"gamma": gamma} for gamma in (0.0, 0.5, 1.0, 2.0, 3.7)],
    "logit_adjusted": [{"tau": 1.5}],
    # At the default scale of 30, float32 itself is not as precise as the tests that are for all losses ask for.
    "ldam": [{"max_margin": 0.7, "scale": 2.0}],
    "asymmetric": [
        {"gamma_negative": 4.0, "gamma_positive": 0.0, "clip": 0.05},
        {"gamma_negative": 0.5, "gamma_positive": 2.0, "clip": 0.0},
    ],
    "vector_scaling": [
        {"gamma_scaling": 0.15, "tau": 1.25, "max_margin": 0.0},
        {"gamma_scaling": 0.3, "tau": 1.0, "max_margin": 0.7},
    ],
}
LOSSES = [Loss(name, options) for name, kind in KINDS.items() for options in OPTIONS.get(name, [dict(kind.options)])]
every_loss = pytest.mark.parametrize(
    "loss", LOSSES, ids=lambda loss: "-".join(map(str, (loss.name, *loss.options.values())))
)
every_name = pytest.mark.parametrize("name", sorted({loss.name for loss in LOSSES}))


def counts_like(logits):
    """Samples per class for logits: those of COUNTS for five classes."""
    if not isinstance(logits, Tensor) or not logits.dim():
        return COUNTS
    classes = logits.shape[1] if logits.dim() > 1 else logits.shape[0]
    counts = COUNTS if classes == len(COUNTS) else [round(5000 / (1 + k) ** 1.5) or 1 for k in range(classes)]
    return torch.tensor(counts, dtype=torch.float64, device=logits.device)


def batch(n=6, c=5, *dims, dtype=torch.float64, seed=0):
    """Logits that require a gradient, class indices and class weights."""
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(n, c, *dims, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    target = torch.randint(c, (n, *dims), generator=generator)
    weight = torch.rand(c, generator=generator, dtype=torch.float64) + 0.1
    return logits, target, weight
