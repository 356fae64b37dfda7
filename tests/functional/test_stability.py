"""Finite, and right, for logits as large as the dtype holds and every γ. What the naive formula does there is shown."""

import mpmath
import pytest
import torch

from longtail import functional
from longtail.functional import _apply, sigmoid
from tests.loss_table import every_loss

LARGEST = {torch.float16: 6e4, torch.bfloat16: 1e4, torch.float32: 1e4, torch.float64: 1e4}
GAMMAS = (0.0, 0.1, 0.5, 0.9, 1.0, 1.5, 2.0, 5.0)


def extreme_logits(dtype):
    big = LARGEST[dtype]
    values = [0.0, 1e-3, -1e-3, 17.0, -17.0, 40.0, -40.0, 41.0, -41.0, 90.0, -90.0, 104.0, -104.0, big, -big]
    return torch.tensor([[a, b, 0.5] for a in values for b in values], dtype=dtype, requires_grad=True)


def naive_focal_loss(logits, target, gamma):
    """What peers write: probabilities first, powers and logarithms of them after."""
    one_hot = torch.nn.functional.one_hot(target, logits.shape[1])
    p = torch.where(one_hot.bool(), logits.sigmoid(), 1 - logits.sigmoid())
    return (-((1 - p) ** gamma) * p.log()).sum(1).mean()


@every_loss
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_every_loss_is_finite_at_the_ends_of_the_dtype(loss, dtype, smoothing):
    logits = extreme_logits(dtype)
    for label in range(3):
        logits.grad = None
        value = loss(logits, torch.full((len(logits),), label), label_smoothing=smoothing)
        value.backward()
        assert value.isfinite()
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("road", ["few", "blocks", "differentiable"])
def test_focal_loss_is_right_at_the_ends_of_the_dtype(dtype, gamma, road, monkeypatch):
    monkeypatch.setattr(sigmoid, "_FEW", 0 if road == "blocks" else 4096)
    logits = extreme_logits(dtype)
    target = torch.zeros(len(logits), dtype=torch.int64)
    soft = torch.nn.functional.one_hot(target, 3)
    rows = functional.focal_loss(logits, soft if road == "differentiable" else target, gamma=gamma, reduction="none")
    (gradient,) = torch.autograd.grad(rows.sum(), logits)
    exact = [[focal_term(v if k else -v, gamma) for k, v in enumerate(row)] for row in logits.tolist()]
    expected = torch.tensor([[float(sum(value for value, _ in row))] for row in exact])[:, 0]
    slopes = torch.tensor([[float(d if k else -d) for k, (_, d) in enumerate(row)] for row in exact])
    torch.testing.assert_close(rows.float(), expected, rtol=1e-5, atol=1e-30)
    torch.testing.assert_close(gradient.float(), slopes, rtol=8e-3 if dtype.itemsize == 2 else 2e-5, atol=1e-7)


def focal_term(v, gamma):
    """sigmoid(v)^γ softplus(v) and its derivative, to 50 digits."""
    with mpmath.workdps(50):
        v = mpmath.mpf(v)
        wrong, right = 1 / (1 + mpmath.exp(-v)), 1 / (1 + mpmath.exp(v))
        u = mpmath.log1p(mpmath.exp(v)) if v < 200 else v
        modulator = wrong ** mpmath.mpf(gamma)
        return modulator * u, modulator * (gamma * right * u + wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("road", ["blocks", "differentiable"])
def test_softmax_focal_loss_is_right_at_the_ends_of_the_dtype(dtype, gamma, road):
    logits = extreme_logits(dtype)
    target = torch.zeros(len(logits), dtype=torch.int64)
    soft = torch.nn.functional.one_hot(target, 3)
    rows = functional.softmax_focal_loss(logits, target if road == "blocks" else soft, gamma=gamma, reduction="none")
    (gradient,) = torch.autograd.grad(rows.sum(), logits)
    with mpmath.workdps(50):
        exact = []
        for own, *others in logits.tolist():
            parts = [mpmath.exp(mpmath.mpf(z)) for z in others]
            value, slope = focal_term(mpmath.log(sum(parts)) - own, gamma)
            exact.append([float(value), float(-slope), *(float(slope * part / sum(parts)) for part in parts)])
    expected = torch.tensor(exact, dtype=torch.float64)
    torch.testing.assert_close(rows.double(), expected[:, 0], rtol=2e-5, atol=1e-30)
    torch.testing.assert_close(gradient.double(), expected[:, 1:], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("road", ["blocks", "differentiable"])
@pytest.mark.parametrize("clip", [0.0, 1e-12, 0.05, 1.0])
@pytest.mark.parametrize("gammas", [(0.0, 0.0), (0.1, 0.5), (1.0, 4.0), (5.0, 0.5)], ids=str)
def test_the_asymmetric_loss_is_finite_for_every_gamma_and_clip(dtype, road, clip, gammas):
    logits = extreme_logits(dtype)
    target = torch.arange(len(logits)) % 3
    target = target if road == "blocks" else torch.nn.functional.one_hot(target, 3)
    options = {"gamma_positive": gammas[0], "gamma_negative": gammas[1], "clip": clip}
    rows = functional.asymmetric_loss(logits, target, **options, reduction="none")
    (gradient,) = torch.autograd.grad(rows.sum(), logits)
    assert rows.isfinite().all()
    assert (rows >= 0).all()
    assert gradient.isfinite().all()


def test_with_a_single_class_there_is_nothing_to_lose():
    for loss, options in ((functional.softmax_focal_loss, {}), (functional.ldam_loss, {"counts": [3]})):
        for target in (torch.tensor([0]), torch.tensor([[1.0]])):
            logits = torch.tensor([[5.0]], requires_grad=True)
            value = loss(logits, target, **options)
            value.backward()
            assert (value.item(), logits.grad.item()) == (0, 0)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_a_hard_positive_keeps_its_gradient(gamma, dtype):
    logits = torch.tensor([[-LARGEST[dtype], -LARGEST[dtype]]], dtype=dtype, requires_grad=True)
    value = functional.focal_loss(logits, torch.tensor([0]), gamma=gamma)
    value.backward()
    assert value.item() == pytest.approx(-logits[0, 0].item(), rel=1e-6)
    assert logits.grad.tolist() == [[-1.0, 0.0]]


def test_what_the_naive_formula_does():
    hard = torch.tensor([[-200.0, -200.0]], requires_grad=True)
    value = naive_focal_loss(hard, torch.tensor([0]), gamma=2.0)
    value.backward()
    assert value.isinf()
    assert hard.grad.isnan().any()

    easy = torch.tensor([[30.0, -30.0]], requires_grad=True)
    naive_focal_loss(easy, torch.tensor([0]), gamma=0.5).backward()
    assert easy.grad.isnan().any()

    for logits in (hard, easy):
        (gradient,) = torch.autograd.grad(functional.focal_loss(logits, torch.tensor([0]), gamma=0.5), logits)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["softmax_cross_entropy", "logit_adjusted_cross_entropy"])
@pytest.mark.parametrize("tau", [1.0, 30.0])
def test_a_loss_whose_probability_underflows_is_exact_in_blocks(name, dtype, tau, monkeypatch):
    monkeypatch.setattr(_apply, "NATIVE_ELEMENTS", 0)
    monkeypatch.setattr(_apply, "ADJUSTED_NATIVE_ELEMENTS", 0)
    logits = torch.randn(64, 1000).mul_(1000).to(dtype).requires_grad_()
    target = torch.randint(1000, (64,))
    options = {"counts": torch.linspace(1000, 1, 1000), "tau": tau} if "adjusted" in name else {}
    rows = getattr(functional, name)(logits, target, reduction="none", **options)
    (gradient,) = torch.autograd.grad(rows.sum(), logits)
    wide = logits.detach().double().requires_grad_()
    expected = getattr(functional, name)(wide, torch.eye(1000)[target].double(), reduction="none", **options)
    (slope,) = torch.autograd.grad(expected.sum(), wide)
    assert expected.max() > 1000  # exp(-1000) is 0 in every dtype
    torch.testing.assert_close(rows.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-6)
