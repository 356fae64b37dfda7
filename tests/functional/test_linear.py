"""Losses fused with the last layer are what F.linear and the loss of logits give, without the logits."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.measure import peak_memory
from longtail import functional
from longtail.functional import _tiles
from tests.functional.linear_cases import CASES, LinearCase, every_case, layer

REDUCTIONS = ["mean", "sum", "none", "weighted_mean"]


@pytest.fixture(params=["one tile", "many tiles"])
def tiles(request, monkeypatch):
    """Small batches are one tile: cut them into many, the last ones smaller, in both directions."""
    if request.param == "many tiles":
        monkeypatch.setattr(_tiles, "TILE_PER_THREAD", 1)
        monkeypatch.setattr(_tiles, "LARGEST_TILE", 16)
        monkeypatch.setattr(_tiles, "TALLEST_TILE", 3)
        monkeypatch.setattr(_tiles, "KEPT_ELEMENTS", 10)


def compare(case, inputs, target, *args, **options):
    """Value and all gradients, under a random factor of each loss."""
    features, weight, bias = inputs
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    fused = case(features, weight, target, *args, bias=bias, **options)
    unfused = case.unfused(features, weight, target, *args, bias=bias, **options)
    torch.testing.assert_close(fused, unfused)
    factor = torch.rand(fused.shape, generator=torch.Generator().manual_seed(1)).to(fused.dtype) + 0.5
    found, expected = (torch.autograd.grad(loss, wanted, factor) for loss in (fused, unfused))
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other)


@every_case
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_value_and_gradients_are_those_of_a_linear_layer_and_the_loss(case, reduction, with_bias, tiles):
    (features, weight, bias), target, class_weight = layer()
    compare(case, (features, weight, bias if with_bias else None), target, class_weight, reduction=reduction)


@every_case
def test_ignored_samples_do_not_count_and_may_hold_anything(case, tiles):
    (features, weight, bias), target, class_weight = layer()
    target[[1, 4]] = 255
    for reduction in REDUCTIONS:
        compare(case, (features, weight, bias), target, class_weight, ignore_index=255, reduction=reduction)
    kept = case(features, weight, target, class_weight, bias=bias, ignore_index=255)
    broken = features.detach().clone()
    broken[[1, 4]] = torch.nan
    broken.requires_grad_()
    loss = case(broken, weight, target, class_weight, bias=bias, ignore_index=255)
    gradients = torch.autograd.grad(loss, [broken, weight, bias])
    assert loss == kept
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][[1, 4]].any()


@every_case
def test_a_batch_of_ignored_samples_has_loss_zero(case):
    (features, weight, bias), target, _ = layer()
    loss = case(features, weight, target.fill_(-100), bias=bias)
    loss.backward()
    assert loss == 0
    assert not any(tensor.grad.any() for tensor in (features, weight, bias))


@every_case
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_any_shape_cut_into_any_tiles_gives_the_same(case, data):
    n, d, c = (data.draw(st.integers(1, largest)) for largest in (9, 4, 12))
    height, size = data.draw(st.integers(1, 10)), data.draw(st.integers(1, 60))
    inputs, target, class_weight = layer(n, d, c, seed=data.draw(st.integers(0, 99)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tiles, "LARGEST_TILE", size)
        patch.setattr(_tiles, "TALLEST_TILE", height)
        patch.setattr(_tiles, "KEPT_ELEMENTS", data.draw(st.integers(0, 100)))
        compare(case, inputs, target, class_weight, reduction=data.draw(st.sampled_from(REDUCTIONS)))


@every_case
def test_gradients_and_second_derivatives_by_finite_differences(case, tiles):
    inputs, target, class_weight = layer(3, 2, 4)

    def loss(features, weight, bias):
        return case(features, weight, target, class_weight, bias=bias)

    gradients = torch.autograd.grad(loss(*inputs), inputs)
    for tensor, gradient in zip(inputs, gradients, strict=True):  # gradcheck would go backward twice
        for index in range(tensor.numel()):
            step = torch.zeros_like(tensor).view(-1).index_fill_(0, torch.tensor([index]), 1e-5).view_as(tensor)
            with torch.no_grad():
                high, low = (loss(*(t + s if t is tensor else t for t in inputs)) for s in (step, -step))
            torch.testing.assert_close(gradient.view(-1)[index], (high - low) / 2e-5, rtol=1e-5, atol=1e-8)
    assert torch.autograd.gradgradcheck(loss, inputs)


@every_case
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("retain_graph", [True, False])
def test_a_second_backward_is_refused_in_one_line(case, reduction, retain_graph):
    inputs, target, class_weight = layer()
    loss = case(inputs[0], inputs[1], target, class_weight, bias=inputs[2], reduction=reduction)
    factor = torch.ones_like(loss)
    loss.backward(factor, retain_graph=retain_graph)
    first = [tensor.grad.clone() for tensor in inputs]
    with pytest.raises(RuntimeError, match="call the loss anew") as error:
        loss.backward(factor)
    assert "\n" not in str(error.value)
    assert all(tensor.grad.equal(gradient) for tensor, gradient in zip(inputs, first, strict=True))


@every_case
def test_only_gradients_that_are_needed_are_formed(case):
    (features, weight, bias), target, class_weight = layer()
    inputs = [features, weight, bias]
    for frozen in range(3):
        parts = [tensor.detach().requires_grad_(index != frozen) for index, tensor in enumerate(inputs)]
        compare(case, parts, target, class_weight)
        assert parts[frozen].grad is None


def test_evaluation_forms_no_gradient():
    features, weight = torch.randn(8, 4, requires_grad=True), torch.randn(50_000, 4, requires_grad=True)
    target, class_weight = torch.randint(50_000, (8,)), torch.ones(50_000)
    loss = functional.linear_softmax_cross_entropy(features, weight, target, class_weight)

    def evaluate():
        with torch.no_grad():
            return functional.linear_softmax_cross_entropy(features, weight, target, class_weight)

    assert evaluate() == loss.detach()
    assert peak_memory(evaluate) > 0
    with_gradient = peak_memory(lambda: functional.linear_softmax_cross_entropy(features, weight, target, class_weight))
    assert with_gradient - peak_memory(evaluate) > weight.nbytes


@every_case
def test_sequences_of_features(case):
    (features, weight, bias), target, class_weight = layer(12)
    features, target = features.detach().view(3, 4, 5).requires_grad_(), target.view(3, 4)
    for reduction in REDUCTIONS:
        compare(case, (features, weight, bias), target, class_weight, reduction=reduction)
    one = case(features[0, 0], weight, target[0, 0], class_weight, bias=bias, reduction="none")
    torch.testing.assert_close(one, case(features, weight, target, class_weight, bias=bias, reduction="none")[0, 0])


@every_case
@pytest.mark.parametrize("value", [1e4, -1e4, 1e30, -1e30])
def test_extreme_logits_have_finite_losses_and_gradients(case, value, tiles):
    (features, weight, bias), target, _ = layer(dtype=torch.float32)
    with torch.no_grad():
        bias[target[0]] = value
    loss = case(features, weight, target, bias=bias)
    gradients = torch.autograd.grad(loss, [features, weight, bias])
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_common_offset_of_the_logits_changes_nothing(tiles):
    (features, weight, bias), target, _ = layer(dtype=torch.float32)
    near = functional.linear_softmax_focal_loss(features, weight, target, gamma=2.0)
    far = functional.linear_softmax_focal_loss(features, weight, target, bias=torch.full_like(bias, 1024.0), gamma=2.0)
    torch.testing.assert_close(far, near, rtol=1e-4, atol=0)


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weight_dtype", [None, torch.float32], ids=str)
def test_16_bit_features(case, dtype, weight_dtype, tiles):
    exact, target, class_weight = layer(dtype=torch.float64)
    rounded = [tensor.detach().to(dtype) for tensor in exact]
    expected_inputs = [tensor.double().requires_grad_() for tensor in rounded]
    features, weight, bias = [tensor.to(weight_dtype or dtype) for tensor in rounded]
    features = features.to(dtype)
    inputs = [tensor.requires_grad_() for tensor in (features, weight, bias)]
    loss = case(features, weight, target, class_weight, bias=bias)
    expected = case.unfused(*expected_inputs[:2], target, class_weight, bias=expected_inputs[2])
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=2e-2, atol=1e-2)
    found = torch.autograd.grad(loss, inputs)
    for gradient, other, tensor in zip(found, torch.autograd.grad(expected, expected_inputs), inputs, strict=True):
        assert gradient.dtype == tensor.dtype
        scale = other.abs().max().item()
        torch.testing.assert_close(gradient.double(), other, rtol=3e-2, atol=2e-2 * scale)


def test_float16_gradients_are_born_with_the_loss_scale():
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator).half().requires_grad_() for shape in ((64, 8), (3000, 8))]
    target = torch.randint(3000, (64,), generator=generator)
    loss = functional.linear_softmax_cross_entropy(*inputs, target)
    _, scaled = torch.autograd.grad(loss * 65536, inputs)
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    _, exact = torch.autograd.grad(functional.softmax_cross_entropy(F.linear(*wide), target), wide)
    torch.testing.assert_close(scaled.double() / 65536, exact, rtol=2e-2, atol=1e-9)


@every_case
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast(case, reduction):
    (features, weight, bias), target, class_weight = layer(64, 16, 40, dtype=torch.float32)
    inputs = [features, weight, bias]
    with torch.autocast("cpu", torch.bfloat16):
        fused = case(features, weight, target, class_weight, bias=bias, reduction=reduction)
        unfused = case.unfused(features, weight, target, class_weight, bias=bias, reduction=reduction)
    exact = case.unfused(features, weight, target, class_weight, bias=bias, reduction=reduction)
    assert fused.dtype == torch.float32
    assert not torch.equal(fused, exact)  # the products are in bfloat16
    torch.testing.assert_close(fused, unfused, rtol=3e-2, atol=5e-2)
    factor = torch.ones_like(fused)
    found, expected = (torch.autograd.grad(loss, inputs, factor) for loss in (fused, unfused))
    for gradient, other in zip(found, expected, strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, other, rtol=5e-2, atol=5e-2 * other.abs().max().item())


@every_case
def test_autocast_to_float16_computes_in_float32(case):
    inputs, target, class_weight = layer(64, 16, 40, dtype=torch.float32)
    losses = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.float16, enabled=enabled):
            losses.append(case(inputs[0], inputs[1], target, class_weight, bias=inputs[2]))
    found, expected = (torch.autograd.grad(loss, inputs) for loss in losses)
    assert losses[0] == losses[1]
    assert all(torch.equal(gradient, other) for gradient, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("case", [CASES[0], LinearCase("focal_loss", 0.5)], ids=lambda case: case.name)
def test_class_weights_can_be_learned(case):
    (features, weight, bias), target, class_weight = layer()
    class_weight.requires_grad_()
    losses = [form(features, weight, target, class_weight, bias=bias) for form in (case, case.unfused)]
    found, expected = (torch.autograd.grad(loss, [features, class_weight]) for loss in losses)
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other)


@every_case
def test_transforms_take_the_definition(case):
    (features, weight, bias), target, class_weight = layer()

    def loss(features):
        return case(features, weight, target, class_weight, bias=bias)

    expected = torch.autograd.grad(loss(features), features)[0]
    torch.testing.assert_close(torch.func.grad(loss)(features), expected)


# After a graph break the compiler looks at tensors with a history, and hides its own warning of that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.slow
def test_a_compiled_step_calls_it_as_it_is(monkeypatch):
    (features, weight, bias), target, _ = layer(dtype=torch.float32)
    sweeps = []
    sweep = _tiles.Separable.sweep
    monkeypatch.setattr(_tiles.Separable, "sweep", lambda *arguments: sweeps.append(1) or sweep(*arguments))

    def step(features):
        return functional.linear_focal_loss(features.relu(), weight, target, bias=bias)

    loss = torch.compile(step)(features)
    assert len(sweeps) == 1  # and not the definition, from all logits
    found, expected = (torch.autograd.grad(each, [features, weight, bias]) for each in (loss, step(features)))
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("name", [name for name in functional.__all__ if name.startswith("linear_")])
def test_the_logits_are_never_held(name):
    features, weight = torch.randn(512, 4, requires_grad=True), torch.randn(80_000, 4, requires_grad=True)
    target, class_weight = torch.randint(80_000, (512,)), torch.rand(80_000)
    options = {"counts": torch.ones(80_000)} if "adjusted" in name else {}

    def step():
        features.grad = weight.grad = None
        getattr(functional, name)(features, weight, target, class_weight, **options).backward()

    step()
    features.grad = weight.grad = None
    kept = 4 * _tiles.KEPT_ELEMENTS if "softmax" in name or "adjusted" in name else 0
    assert 4 * 512 * 80_000 > 160e6  # what the logits alone would take
    assert peak_memory(step) < weight.nbytes + kept + 24e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": [[1.0]]}, "features must be a tensor, got list"),
        ({"features": torch.zeros(7, 4)}, r"features of shape \(7, 4\) and weight of shape \(13, 5\) do not fit"),
        ({"weight": torch.zeros(13, 5).long()}, "weight must be floating point, got torch.int64"),
        (
            {"target": torch.zeros(6).long()},
            r"target has shape \(6,\), but features of shape \(7, 5\) need class indices",
        ),
        ({"target": torch.zeros(7)}, "class indices, which must be integers"),
        ({"target": torch.full((7,), 13)}, "13"),
        ({"class_weight": torch.ones(12)}, r"class_weight has shape \(12,\), but weight has 13 classes"),
        ({"class_weight": [1.0] * 13}, "class_weight must be a tensor, got list"),
        ({"bias": torch.zeros(1)}, r"bias has shape \(1,\), but weight has 13 classes"),
        ({"bias": torch.zeros(13, device="meta")}, "bias is on meta, but features are on cpu"),
        ({"reduction": "average"}, "unknown reduction 'average'"),
        ({"gamma": -1.0}, "gamma must be a finite number >= 0"),
        ({"ignore_index": 0.5}, "ignore_index must be an integer"),
        ({"ignore_index": 10**30}, "ignore_index must fit in 64 bits"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change, message):
    (features, weight, _), target, _ = layer()
    arguments = {"features": features, "weight": weight, "target": target} | change
    with pytest.raises((TypeError, ValueError, IndexError), match=message) as error:
        functional.linear_focal_loss(**arguments)
    assert "\n" not in str(error.value)


def test_counts_of_other_classes_are_refused():
    (features, weight, _), target, _ = layer()
    with pytest.raises(ValueError, match=r"counts have shape \(2,\), but weight has 13 classes"):
        functional.linear_logit_adjusted_cross_entropy(features, weight, target, counts=[5, 1])
