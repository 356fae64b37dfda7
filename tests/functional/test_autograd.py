"""Gradients of gradients, function transforms, the compiler, mixed precision."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import longtail
from longtail import functional
from tests.loss_table import LOSSES, batch, every_loss

REDUCTIONS = ("mean", "none", "weighted_mean")


@every_loss
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", ["indices", "dense", "soft", "smoothed"])
def test_gradcheck_and_gradgradcheck(loss, reduction, kind):
    logits, target, weight = batch(4, 3, *((2,) if kind == "dense" else ()))
    if kind == "soft":
        target = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    smoothing = 0.1 if kind == "smoothed" else 0.0

    def call(z):
        return loss(z, target, weight, reduction=reduction, label_smoothing=smoothing)

    assert gradcheck(call, logits)
    assert gradgradcheck(call, logits)


@every_loss
def test_gradient_flows_to_weights_and_soft_targets(loss):
    logits, target, weight = batch(4, 3)
    soft = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    weight.requires_grad_()
    assert gradcheck(lambda z, w: loss(z, target, w), (logits, weight))
    assert gradcheck(lambda z, t, w: loss(z, t, w), (logits, soft, weight))


@every_loss
def test_gradients_by_a_target_without_positives_are_finite(loss):
    logits, _, weight = batch(2, 3)
    target = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    loss(logits, target, weight.requires_grad_()).backward()
    assert all(tensor.grad.isfinite().all() for tensor in (logits, target, weight))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_backward_twice_and_scaled(loss, dtype):
    logits, target, weight = batch(dtype=dtype)
    value = loss(logits, target, weight)
    first, second = (torch.autograd.grad(value, logits, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    (tripled,) = torch.autograd.grad(3 * loss(logits, target, weight), logits)
    torch.testing.assert_close(tripled, 3 * first, rtol=2e-2 if dtype == torch.bfloat16 else 2e-3, atol=1e-3)


@every_loss
@pytest.mark.parametrize("create_graph", [False, True])
def test_hooks_on_the_logits_fire_once(loss, create_graph):
    logits, target, weight = batch()
    seen = []
    logits.register_hook(lambda gradient: seen.append(gradient) or 2 * gradient)
    (gradient,) = torch.autograd.grad(loss(logits, target, weight), logits, create_graph=create_graph)
    assert len(seen) == 1
    torch.testing.assert_close(gradient, 2 * seen[0])


@every_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_many_gradients_at_once(loss, dtype, reduction):
    logits, target, weight = batch(dtype=dtype)
    value = loss(logits, target, weight, reduction=reduction)
    vectors = torch.randn(3, *value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(0))
    (batched,) = torch.autograd.grad(value, logits, vectors, retain_graph=True, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(value, logits, vector, retain_graph=True)[0] for vector in vectors]
    torch.testing.assert_close(
        batched,
        torch.stack(one_by_one),
        rtol=1e-6 if dtype == torch.float64 else 2e-3,
        atol=1e-6 if dtype == torch.float64 else 1e-3,
    )


@every_loss
def test_double_backward_of_a_bfloat16_batch(loss):
    logits, target, weight = batch(dtype=torch.bfloat16)
    (gradient,) = torch.autograd.grad(loss(logits, target, weight), logits, create_graph=True)
    gradient.square().sum().backward()
    assert logits.grad.isfinite().all()


@every_loss
def test_no_gradient_is_formed_where_none_is_asked(loss):
    logits, target, weight = batch()
    with torch.no_grad():
        assert loss(logits, target, weight).grad_fn is None
    torch.testing.assert_close(loss(logits.detach(), target, weight), loss(logits, target, weight).detach())


@every_loss
def test_logits_are_left_alone(loss):
    logits, target, weight = batch(dtype=torch.float32)
    before, labels = logits.detach().clone(), target.clone()
    loss(logits, target, weight).backward()
    loss(logits.detach(), target, weight)
    assert torch.equal(logits, before)
    assert torch.equal(target, labels)


@every_loss
def test_function_transforms(loss):
    logits, target, weight = batch()
    logits = logits.detach()
    rows = loss(logits, target, weight, reduction="none")
    torch.testing.assert_close(torch.func.vmap(lambda z, y: loss(z, y, weight))(logits, target), rows)
    plain = logits.clone().requires_grad_()
    loss(plain, target, weight).backward()
    torch.testing.assert_close(torch.func.grad(lambda z: loss(z, target, weight))(logits), plain.grad)
    per_sample = torch.func.vmap(torch.func.grad(lambda z, y: loss(z, y, weight)))(logits, target)
    torch.testing.assert_close(per_sample / len(target), plain.grad)
    _, tangent = torch.func.jvp(lambda z: loss(z, target, weight), (logits,), (torch.ones_like(logits),))
    torch.testing.assert_close(tangent, plain.grad.sum())
    hessian = torch.func.hessian(lambda z: loss(z, target, weight))(logits)
    reference = torch.autograd.functional.hessian(lambda z: loss(z, target, weight), logits)
    torch.testing.assert_close(hessian, reference)


@every_loss
def test_compiles_whole_and_once(loss):
    torch._dynamo.reset()
    module = loss.build([0.5, 1.5, 1.0, 0.2, 2.0])
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(4):
            logits, target, _ = batch(dtype=torch.float32, seed=seed)
            target[seed] = -100
            value = compiled(logits, target)
            (gradient,) = torch.autograd.grad(value, logits)
            expected = module(logits, target)
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])


@pytest.mark.parametrize("kind", ["indices", "dense", "soft", "smoothed"])
def test_compiles_to_machine_code(kind):
    torch._dynamo.reset()
    module = longtail.ClassBalancedLoss(
        [900, 300, 100, 30, 10], loss="focal", label_smoothing=0.1 if kind == "smoothed" else 0.0
    )
    compiled = torch.compile(module, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(2):
            logits, target, _ = batch(6, 5, *((3,) if kind == "dense" else ()), dtype=torch.float32, seed=seed)
            if kind == "soft":
                target = torch.rand(6, 5)
            value = compiled(logits, target)
            value.backward()
            gradient, logits.grad = logits.grad, None
            module(logits, target).backward()
            torch.testing.assert_close(value, module(logits, target))
            torch.testing.assert_close(gradient, logits.grad)


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_are_computed_in_thirty_two(loss, dtype):
    logits, target, weight = batch(16, 9, dtype=dtype)
    value = loss(logits, target, weight)
    assert value.dtype == torch.float32
    value.backward()
    assert logits.grad.dtype == dtype
    wide = logits.detach().float().requires_grad_()
    expected = loss(wide, target, weight)
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(logits.grad, wide.grad.to(dtype))


@every_loss
def test_autocast(loss):
    linear = torch.nn.Linear(4, 5)
    features, target, weight = torch.randn(6, 4), torch.arange(6) % 5, torch.ones(5)
    with torch.autocast("cpu", torch.bfloat16):
        logits = linear(features)
        value = loss(logits, target, weight)
    assert (logits.dtype, value.dtype) == (torch.bfloat16, torch.float32)
    value.backward()
    torch.testing.assert_close(value, loss(logits.float(), target, weight))
    assert linear.weight.grad.isfinite().all()


@every_loss
def test_a_loss_scale_reaches_float16_gradients_before_they_underflow(loss):
    logits = torch.full((4096, 4), -8.0, dtype=torch.float16, requires_grad=True)
    target = torch.zeros(4096, dtype=torch.int64)
    (65536.0 * loss(logits, target)).backward()
    wide = logits.detach().double().requires_grad_()
    (65536.0 * loss(wide, target)).backward()
    kept = wide.grad.abs() > 1e-3
    assert kept.any()
    torch.testing.assert_close(logits.grad.double()[kept], wide.grad[kept], rtol=2e-3, atol=0)


@every_loss
def test_forward_mode_without_function_transforms(loss):
    logits, target, weight = batch()

    def call(z):
        return loss(z, target, weight, reduction="none")

    backward = torch.autograd.functional.jacobian(call, logits.detach())
    forward = torch.autograd.functional.jacobian(call, logits.detach(), vectorize=True, strategy="forward-mode")
    torch.testing.assert_close(forward, backward)


@pytest.mark.filterwarnings("ignore")  # of the checks of shapes, which hold for the trace
def test_a_trace_takes_other_labels():
    logits, target, _ = batch(dtype=torch.float32)
    target[4] = -100
    for name in ("softmax", "focal"):
        criterion = longtail.ClassBalancedLoss([5, 4, 3, 2, 1], name)
        traced = torch.jit.trace(criterion, (logits.detach(), target))
        for labels in (target, target.roll(1), target.clamp(min=0)):
            torch.testing.assert_close(traced(logits, labels), criterion(logits, labels))


def test_weights_of_another_dtype_are_converted():
    logits, target, weight = batch(dtype=torch.float32)
    value = functional.focal_loss(logits, target, weight)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, functional.focal_loss(logits, target, weight.float()))


def test_the_table_has_every_loss():
    assert {loss.function.__name__ for loss in LOSSES} == {
        name for name in functional.__all__ if not name.startswith("linear_")
    }
