"""Values and gradients: against the reference, the authors' own code, and PyTorch where it computes the same."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import longtail
from longtail import functional
from longtail.functional import _blocked
from tests.loss_table import COUNTS, LOSSES, batch, every_loss
from tests.reference.losses import weighted_loss

REDUCTIONS = ("mean", "sum", "none", "weighted_mean")
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "official_losses.npz")
CASES = sorted({name.split("_")[0] for name in GOLDEN.files})


@st.composite
def batches(draw, soft=False):
    n, c = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    logits = draw(hnp.arrays(np.float64, (n, c), elements=st.floats(-15, 15)))
    weight = draw(hnp.arrays(np.float64, c, elements=st.floats(0.01, 10)))
    if soft:
        target = draw(hnp.arrays(np.float64, (n, c), elements=st.floats(0, 1).map(lambda x: round(x, 3))))
    else:
        target = draw(hnp.arrays(np.int64, n, elements=st.sampled_from([*range(c), -100])))
    return logits, target, weight


def value_and_gradient(loss, logits, target, weight, **options):
    z = torch.tensor(logits, requires_grad=True)
    value = loss(z, torch.tensor(target), None if weight is None else torch.tensor(weight), **options)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    return value.detach().numpy(), gradient.numpy()


@every_loss
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "soft"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_matches_the_reference(loss, soft, data):
    logits, target, weight = data.draw(batches(soft))
    options = {
        "reduction": data.draw(st.sampled_from(REDUCTIONS)),
        "label_smoothing": data.draw(st.sampled_from([0.0, 0.1, 1.0])),
    }
    value, gradient = value_and_gradient(loss, logits, target, weight, **options)
    expected, expected_gradient = loss.reference(
        logits, target, weight, smoothing=options["label_smoothing"], reduction=options["reduction"]
    )
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_matches_the_authors_code(case):
    logits, labels, counts, loss, gradient, weights = (
        GOLDEN[f"{case}_{part}"] for part in ("logits", "labels", "counts", "loss", "grad", "weights")
    )
    name, gamma, beta = GOLDEN[f"{case}_loss_gamma_beta"]
    options = {"gamma": float(gamma)} if name == "focal" else {}
    criterion = longtail.ClassBalancedLoss(counts, loss=str(name), beta=float(beta), **options)
    np.testing.assert_allclose(longtail.class_weights(counts, beta=float(beta)), weights, rtol=1e-9)
    z = torch.tensor(logits, requires_grad=True)
    value = criterion(z, torch.tensor(labels))
    value.backward()
    np.testing.assert_allclose(value.item(), loss, rtol=2e-5)
    np.testing.assert_allclose(z.grad.numpy(), gradient, rtol=2e-4, atol=2e-6 * np.abs(gradient).max())


def test_the_authors_cases_cover_all_losses():
    names = {str(GOLDEN[f"{case}_loss_gamma_beta"][0]) for case in CASES}
    assert (len(CASES), names) == (63, {"softmax", "sigmoid", "focal"})


@every_loss
@pytest.mark.parametrize("dims", [(), (7,), (3, 4), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "classes last"])
def test_dense_logits_are_samples_side_by_side(loss, dims, layout):
    logits, target, weight = batch(3, 5, *dims)
    if layout == "classes last":
        logits = logits.detach().movedim(1, -1).contiguous().movedim(-1, 1).requires_grad_()
    flat = logits.detach().movedim(1, -1).reshape(-1, 5).clone().requires_grad_()
    dense_rows = loss(logits, target, weight, reduction="none")
    assert dense_rows.shape == target.shape
    torch.testing.assert_close(dense_rows.flatten(), loss(flat, target.flatten(), weight, reduction="none"))
    loss(logits, target, weight).backward()
    loss(flat, target.flatten(), weight).backward()
    torch.testing.assert_close(logits.grad.movedim(1, -1).reshape(-1, 5), flat.grad)


@every_loss
def test_one_hot_targets_are_class_indices(loss):
    logits, target, weight = batch()
    one_hot = F.one_hot(target, 5)
    for dense in (one_hot, one_hot.bool(), one_hot.float(), one_hot.double()):
        torch.testing.assert_close(loss(logits, dense, weight), loss(logits, target, weight))


@every_loss
def test_dense_soft_targets(loss):
    logits, target, weight = batch(2, 5, 3, 4)
    one_hot = F.one_hot(target, 5).movedim(-1, 1)
    rows = loss(logits, one_hot, weight, reduction="none")
    torch.testing.assert_close(rows, loss(logits, target, weight, reduction="none"))


@every_loss
def test_unweighted_mixup_is_the_mixture_of_losses(loss):
    logits, first, _ = batch()
    second = first.roll(1)
    mixed = 0.3 * F.one_hot(first, 5) + 0.7 * F.one_hot(second, 5)
    torch.testing.assert_close(loss(logits, mixed), 0.3 * loss(logits, first) + 0.7 * loss(logits, second))


@every_loss
def test_a_mixed_sample_weighs_the_mean_of_its_classes(loss):
    logits, first, weight = batch()
    second = first.roll(1)
    mixed = 0.3 * F.one_hot(first, 5) + 0.7 * F.one_hot(second, 5)
    rows = loss(logits, mixed, weight, reduction="none")
    alpha = 0.3 * weight[first] + 0.7 * weight[second]
    torch.testing.assert_close(rows, alpha * loss(logits, mixed, reduction="none"))


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.multi_hot], ids=lambda loss: str(loss.options))
def test_multi_hot_rows_weigh_the_mean_of_their_positives_and_empty_rows_one(loss):
    logits = batch(4, 3)[0]
    target = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]])
    weight = torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64)
    rows = loss(logits, target, weight, reduction="none")
    torch.testing.assert_close(rows, torch.tensor([2.0, 8.0, 1.0, 4.0]) * loss(logits, target, reduction="none"))


def test_softmax_without_weights_is_pytorchs():
    logits, target, weight = batch(8, 5, 3)
    target[0, 0] = -100
    ours, theirs = functional.softmax_cross_entropy, F.cross_entropy
    torch.testing.assert_close(ours(logits, target), theirs(logits, target))
    torch.testing.assert_close(ours(logits, target, weight, reduction="weighted_mean"), theirs(logits, target, weight))
    torch.testing.assert_close(ours(logits, target, label_smoothing=0.1), theirs(logits, target, label_smoothing=0.1))


def test_multi_hot_sigmoid_is_pytorchs():
    logits = batch(8, 5)[0]
    target = (torch.rand(8, 5, generator=torch.Generator().manual_seed(1)) > 0.5).double()
    expected = F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1).mean()
    torch.testing.assert_close(functional.sigmoid_cross_entropy(logits, target), expected)


def test_focal_loss_with_gamma_zero_is_sigmoid_cross_entropy():
    logits, target, weight = batch(7, 4, 3)
    torch.testing.assert_close(
        functional.focal_loss(logits, target, weight, gamma=0.0),
        functional.sigmoid_cross_entropy(logits, target, weight),
    )


SOFTMAX, SIGMOID, FOCAL = functional.softmax_cross_entropy, functional.sigmoid_cross_entropy, functional.focal_loss
EQUAL = {"gamma_negative": 2.0, "gamma_positive": 2.0, "clip": 0.0}
LIKE = {
    "softmax focal, γ 0": (functional.softmax_focal_loss, {"gamma": 0.0}, SOFTMAX, {}),
    "logit-adjusted, τ 0": (functional.logit_adjusted_cross_entropy, {"counts": COUNTS, "tau": 0.0}, SOFTMAX, {}),
    "logit-adjusted, equal": (functional.logit_adjusted_cross_entropy, {"counts": [7] * 5}, SOFTMAX, {}),
    "ldam, no margin": (functional.ldam_loss, {"counts": COUNTS, "max_margin": 0.0, "scale": 1.0}, SOFTMAX, {}),
    "asymmetric, all 0": (functional.asymmetric_loss, dict.fromkeys(EQUAL, 0.0), SIGMOID, {}),
    "asymmetric, equal γ": (functional.asymmetric_loss, EQUAL, FOCAL, {"gamma": 2.0}),
}


@pytest.mark.parametrize("kind", ["indices", "dense", "soft"])
@pytest.mark.parametrize("case", LIKE)
def test_losses_that_are_others_in_disguise(case, kind):
    ours, options, theirs, their_options = LIKE[case]
    logits, target, weight = batch(7, 5, *((3,) if kind == "dense" else ()))
    if kind == "soft":
        target = torch.rand(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found, expected = ours(logits, target, weight, **options), theirs(logits, target, weight, **their_options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in (found, expected)))


def test_the_logit_adjusted_loss_is_the_softmax_loss_of_shifted_logits():
    logits, target, weight = batch(6, 5, 3)
    shift = torch.log(torch.tensor(COUNTS) / sum(COUNTS)).double()
    adjusted = functional.logit_adjusted_cross_entropy(logits, target, weight, counts=COUNTS, tau=0.5)
    expected = SOFTMAX(logits + 0.5 * shift[:, None], target, weight)
    torch.testing.assert_close(adjusted, expected, rtol=1e-6, atol=1e-6)


def test_ldam_is_that_of_its_authors():
    """With the margins and the scale of their code, on cosines, at its defaults."""
    cosines, target = torch.rand(64, 5) * 2 - 1, torch.arange(64) % 5
    margins = 1 / np.sqrt(np.sqrt(COUNTS))
    margins = torch.tensor(margins * (0.5 / np.max(margins)), dtype=torch.float32)
    lowered = cosines - margins[None] * F.one_hot(target, 5)
    expected = F.cross_entropy(30 * lowered, target)
    torch.testing.assert_close(functional.ldam_loss(cosines, target, counts=COUNTS), expected)


def test_the_asymmetric_loss_is_that_of_its_authors():
    """Probabilities of negatives are shifted, then both are focused: as in their code, with γ+ = 1."""
    logits = batch(8, 5, dtype=torch.float32)[0]
    target = (torch.rand(8, 5, generator=torch.Generator().manual_seed(1)) > 0.7).float()
    p = logits.sigmoid()
    q = (1 - p + 0.05).clamp(max=1)
    terms = target * p.log() + (1 - target) * q.log()
    focus = (1 - p * target - q * (1 - target)) ** (1 * target + 4 * (1 - target))
    found = functional.asymmetric_loss(logits, target, gamma_positive=1.0)
    torch.testing.assert_close(found, -(terms * focus).sum(1).mean())


@every_loss
def test_unbatched_logits(loss):
    logits, target, weight = batch(1, 5)
    row = loss(logits, target, weight)
    assert loss(logits[0], target[0], weight, reduction="none").shape == ()
    torch.testing.assert_close(loss(logits[0], target[0], weight), row)
    if not loss.multi_hot:  # else it could be a batch for a binary head
        torch.testing.assert_close(loss(logits[0], F.one_hot(target[0], 5), weight), row)


@every_loss
@pytest.mark.parametrize("ignore", [-100, 255, 2])
def test_ignored_samples_do_not_count(loss, ignore):
    logits, target, weight = batch(8, 5)
    target[[1, 4]] = ignore
    kept = target != ignore
    for reduction in ("mean", "sum", "weighted_mean"):
        torch.testing.assert_close(
            loss(logits, target, weight, ignore_index=ignore, reduction=reduction),
            loss(logits[kept], target[kept], weight, reduction=reduction),
        )
    rows = loss(logits, target, weight, ignore_index=ignore, reduction="none")
    assert not rows[~kept].any()
    torch.testing.assert_close(rows[kept], loss(logits[kept], target[kept], weight, reduction="none"))
    loss(logits, target, weight, ignore_index=ignore).backward()
    assert not logits.grad[~kept].any()
    assert logits.grad[kept].any(1).all()


@every_loss
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "case", ["all ignored", "empty", "empty dense", "empty soft", "empty, ignoring a class", "weights of zero"]
)
def test_nothing_to_count_is_a_zero_with_a_graph(loss, reduction, case):
    logits, target, weight = batch(0 if "empty" in case else 3, 5, *((2, 2) if case == "empty dense" else ()))
    if case == "all ignored":
        target = torch.full_like(target, -100)
    elif case == "empty soft":
        target = torch.zeros(0, 5)
    elif case == "empty, ignoring a class":
        loss = functools.partial(loss, ignore_index=2)
    elif case == "weights of zero":
        weight = torch.zeros_like(weight)
    value = loss(logits, target, weight, reduction=reduction)
    assert value.shape == (logits.shape[:1] + logits.shape[2:] if reduction == "none" else ())
    value.sum().backward()
    assert not value.any()
    assert logits.grad.shape == logits.shape
    assert not logits.grad.any()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(40, 7), (3, 7, 50), (1, 90), (9, 2), (2, 40, 3)], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_change_nothing(loss, dtype, shape, threads, monkeypatch):
    logits, target, weight = batch(*shape, dtype=dtype)
    whole = loss(logits, target, weight, reduction="none")
    loss(logits, target, weight).backward()
    gradient, logits.grad = logits.grad, None
    monkeypatch.setattr(_blocked, "BLOCK_PER_THREAD", 16 * 2 // threads)
    monkeypatch.setattr(_blocked, "SMALLEST_BLOCK", 16)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    torch.testing.assert_close(loss(logits, target, weight, reduction="none"), whole)
    torch.testing.assert_close(loss(logits.detach(), target, weight, reduction="none"), whole)
    loss(logits, target, weight).backward()
    torch.testing.assert_close(logits.grad, gradient)


@every_loss
def test_large_blocks_match_the_definition(loss):
    """Over several real blocks, with logits far beyond saturation; one-hot targets are computed by the definition."""
    logits, target, weight = batch(300, 1000, dtype=torch.float32)
    with torch.no_grad():
        logits[:3] *= 1e3
    loss(logits, target, weight, reduction="sum").backward()
    wide, one_hot = logits.detach().double().requires_grad_(), F.one_hot(target, 1000)
    loss(wide, one_hot, weight, reduction="sum").backward()
    torch.testing.assert_close(logits.grad.double(), wide.grad, rtol=2e-5, atol=1e-7)
    rows = loss(logits, target, weight, reduction="none").double()
    torch.testing.assert_close(rows, loss(wide, one_hot, weight, reduction="none"), rtol=2e-6, atol=1e-6)


@every_loss
def test_permuting_classes_changes_nothing(loss):
    logits, target, weight = batch()
    order = torch.tensor([3, 0, 4, 1, 2])
    permuted = loss(logits[:, order], order.argsort()[target], weight[order], counts=torch.tensor(COUNTS)[order])
    torch.testing.assert_close(permuted, loss(logits, target, weight))


@every_loss
def test_integer_targets_of_every_kind(loss):
    logits, target, weight = batch()
    for dtype in (torch.int32, torch.int16, torch.uint8):
        torch.testing.assert_close(loss(logits, target.to(dtype), weight), loss(logits, target, weight))
    labels = target.to(torch.uint8)
    labels[0] = 255
    torch.testing.assert_close(loss(logits, labels, weight, ignore_index=255), loss(logits[1:], target[1:], weight))
    labels[0] = 156  # -100 in eight bits
    with pytest.raises(ValueError, match="got 156 at index 0"):
        loss(logits, labels, weight)


@every_loss
def test_on_a_device_that_cannot_be_read_nothing_is_read(loss):
    """The meta device has no values, so a look at a label, which would stop an accelerator, fails there."""
    logits, target, weight = batch(dtype=torch.float32)
    on_meta = [tensor.detach().to("meta") for tensor in (logits, target, weight)]
    on_meta[0].requires_grad_()
    for reduction in REDUCTIONS:
        value = loss(*on_meta, reduction=reduction)
        assert value.shape == loss(logits, target, weight, reduction=reduction).shape
        (gradient,) = torch.autograd.grad(value.sum(), on_meta[0])
        assert gradient.shape == logits.shape


@pytest.mark.parametrize("gamma", [{}, {"gamma": 0.5}])
def test_gamma_is_a_half_by_default(gamma):
    logits, target, weight = batch()
    expected, _ = weighted_loss("focal", logits.detach().numpy(), target.numpy(), weight.numpy(), gamma=0.5)
    assert functional.focal_loss(logits, target, weight, **gamma).item() == pytest.approx(expected)
    assert longtail.FocalLoss(weight.tolist(), **gamma)(logits, target).item() == pytest.approx(expected, rel=1e-6)


@every_loss
def test_large_blocks_are_precise_where_training_starts(loss):
    """All probabilities near the prior 1/C: log(1 + e) in place of log1p(e) would be wrong in the fourth digit."""
    logits = torch.full((40, 1000), -9.0) + torch.linspace(0, 1e-3, 1000)
    target = torch.arange(40)
    logits[target, target] = 30.0  # certain of its own class, so that the others are all there is
    rows = loss(logits, target, reduction="none").double()
    expected = loss(logits.double(), F.one_hot(target, 1000), reduction="none")
    torch.testing.assert_close(rows, expected, rtol=2e-6, atol=0 if loss.multi_hot else 1e-6)
