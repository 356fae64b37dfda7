"""What the vector-scaling loss contains; values and gradients are tested with those of all losses."""

import pytest
import torch
import torch.nn.functional as F

from longtail import functional
from tests.loss_table import COUNTS, batch


@pytest.mark.parametrize("dense", [False, True])
def test_other_losses_are_special_cases(dense):
    logits, target, weight = batch()
    target = torch.softmax(torch.randn(6, 5, dtype=torch.float64), 1) if dense else target
    for options, name, others in (
        ({"gamma_scaling": 0, "tau": 1.5}, "logit_adjusted_cross_entropy", {"counts": COUNTS, "tau": 1.5}),
        ({"gamma_scaling": 0, "tau": 0, "max_margin": 0.7}, "ldam_loss", {"max_margin": 0.7, "scale": 1}),
        ({"gamma_scaling": 0, "tau": 0}, "softmax_cross_entropy", {}),
    ):
        others |= {"counts": COUNTS} if name == "ldam_loss" else {}
        value = functional.vector_scaling_loss(logits, target, weight, counts=COUNTS, **options)
        expected = getattr(functional, name)(logits, target, weight, **others)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(
            torch.autograd.grad(value, logits)[0], torch.autograd.grad(expected, logits)[0], rtol=1e-6, atol=1e-9
        )


def test_it_is_that_of_the_authors_code():
    """There, logits are divided by (n_max / n)^γ, and the log-prior times τ is added."""
    logits, target, _ = batch()
    counts = torch.tensor(COUNTS, dtype=torch.float64)
    adjusted = logits / (counts.max() / counts) ** 0.15 + 1.25 * torch.log(counts / counts.sum())
    value = functional.vector_scaling_loss(logits, target, counts=COUNTS, gamma_scaling=0.15, tau=1.25)
    torch.testing.assert_close(value, F.cross_entropy(adjusted, target))


@pytest.mark.parametrize("option", ["gamma_scaling", "tau", "max_margin"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), 10**30])
def test_bad_options_are_named(option, value):
    with pytest.raises(ValueError, match=f"{option} must be "):
        functional.vector_scaling_loss(torch.zeros(1, 5), torch.tensor([0]), counts=COUNTS, **{option: value})
