"""What the engine of the losses promises beside their values: derivatives, precision, limits, sharded logits."""

import os
import socket
from dataclasses import replace

import mpmath
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.autograd import gradcheck

from longtail import ClassBalancedLoss, functional
from longtail.functional import _blocked, _counts, sigmoid
from tests.loss_table import COUNTS, LOSSES, batch, every_loss, every_name

LABELS = torch.tensor([0, 1, 2, 0])
LOGITS = torch.zeros(4, 3)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_second_backward_gives_the_same_bits(loss, dtype):
    logits, target, weight = batch(dtype=dtype)
    rows = loss(logits, target, weight, reduction="none")
    vector = torch.linspace(0.1, 1.7, len(rows))
    first, second = (torch.autograd.grad(rows, logits, vector, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@every_loss
def test_gradcheck_in_fast_mode_is_reentrant(loss):
    logits, target, weight = batch(64, 7)
    assert gradcheck(lambda z: loss(z, target, weight, reduction="none"), logits, fast_mode=True, nondet_tol=0.0)


@every_loss
@pytest.mark.parametrize("kind", ["indices", "soft"])
def test_a_common_offset_costs_no_digits(loss, kind):
    if loss.multi_hot:
        pytest.skip("an offset changes losses over sigmoids")
    if "gamma_scaling" in loss.options:  # else an offset changes it, too
        loss = replace(loss, options=loss.options | {"gamma_scaling": 0.0})
    logits = torch.tensor([[0.0, 0.5, -1.0, 0.25, 2.0]], requires_grad=True)
    target = torch.tensor([0]) if kind == "indices" else torch.tensor([[0.3, 0.0, 0.5, 0.0, 0.2]])
    expected = loss(logits.double(), target)
    (slope,) = torch.autograd.grad(expected, logits)
    moved = (logits.detach() + 1e4).requires_grad_()
    value = loss(moved, target)
    value.backward()
    torch.testing.assert_close(value.double(), expected, rtol=2e-6, atol=0)
    torch.testing.assert_close(moved.grad, slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("gamma", [2.0, 5.0])
def test_soft_targets_have_gradients_as_precise_as_class_indices(gamma):
    """Of exp(γ(v - softplus(v))) the gradient is a difference of two numbers of the size of γ·v."""
    z = torch.tensor([[5.0, 11.3, 47.3, 301.7]], requires_grad=True)
    functional.focal_loss(z, torch.zeros(1, 4), gamma=gamma).backward()
    with mpmath.workdps(50):
        slopes = [
            mpmath.diff(lambda v: (1 + mpmath.exp(-v)) ** -gamma * (v + mpmath.log1p(mpmath.exp(-v))), v)
            for v in z[0].tolist()
        ]
    expected = torch.tensor([float(slope) for slope in slopes], dtype=torch.float64)
    torch.testing.assert_close(z.grad[0].double(), expected, rtol=5e-7, atol=0)


@every_loss
@pytest.mark.parametrize("kind", ["soft", "multi-hot", "smoothed"])
def test_blocks_of_dense_targets_change_nothing(loss, kind, monkeypatch):
    logits, target, weight = batch(9, 7, 5)
    if kind != "smoothed":
        target = torch.rand(9, 7, 5, generator=torch.Generator().manual_seed(0))
        target = target > 0.5 if kind == "multi-hot" else target
    options = {"label_smoothing": 0.1 if kind == "smoothed" else 0.0}
    whole = loss(logits, target, weight, reduction="none", **options)
    (gradient,) = torch.autograd.grad(loss(logits, target, weight, **options), logits)
    monkeypatch.setattr(_blocked, "BLOCK_PER_THREAD", 16)
    monkeypatch.setattr(_blocked, "SMALLEST_BLOCK", 16)
    torch.testing.assert_close(loss(logits, target, weight, reduction="none", **options), whole)
    torch.testing.assert_close(torch.autograd.grad(loss(logits, target, weight, **options), logits)[0], gradient)


@pytest.mark.parametrize(
    "loss",
    [loss for loss in LOSSES if loss.name in ("logit_adjusted", "ldam", "vector_scaling")],
    ids=lambda loss: loss.name,
)
@pytest.mark.parametrize("kind", ["indices", "soft"])
def test_counts_can_be_differentiated(loss, kind):
    logits, target, weight = batch()
    target = target if kind == "indices" else torch.rand(6, 5, dtype=torch.float64)
    counts = torch.tensor(COUNTS, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda z, n: loss(z, target, weight, counts=n), (logits, counts))


def test_changed_counts_change_the_adjustment():
    logits, target, _ = batch()
    counts = torch.tensor(COUNTS)
    functional.logit_adjusted_cross_entropy(logits, target, counts=counts)
    counts[0] = 7
    expected = functional.logit_adjusted_cross_entropy(logits, target, counts=counts.tolist())
    torch.testing.assert_close(functional.logit_adjusted_cross_entropy(logits, target, counts=counts), expected)
    assert functional.logit_adjusted_cross_entropy(logits, target, counts=counts, tau=0.5) != expected


def test_the_adjustment_is_dropped_with_its_counts():
    logits, target, _ = batch()
    counts = torch.tensor(COUNTS)
    index = id(counts)
    functional.logit_adjusted_cross_entropy(logits, target, counts=counts)
    assert index in _counts._ADJUSTMENTS
    del counts
    assert index not in _counts._ADJUSTMENTS


@pytest.mark.parametrize("offset", [0.0, 15.0, -15.0, 17.0, 1e4, -1e4])
def test_adjusted_logits_of_any_offset_keep_their_digits(offset):
    logits = torch.tensor([[0.5, -0.25, 0.0], [0.125, 0.75, -0.5]]) + offset
    target, counts = torch.tensor([2, 0]), torch.tensor([900, 90, 10])
    value, gradient = [], []
    for z in (logits, logits.double()):
        z = z.requires_grad_()
        loss = functional.logit_adjusted_cross_entropy(z, target, counts=counts)
        value.append(loss.double())
        gradient.append(torch.autograd.grad(loss, z)[0].double())
    torch.testing.assert_close(value[0], value[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient[0], gradient[1], rtol=5e-6, atol=0)


class Marked(torch.Tensor):
    """A subclass that refuses in-place operations on what is made of it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        assert not (name.endswith("_") and not name.endswith("__")), name
        assert "out" not in (kwargs or {}), name
        return super().__torch_function__(func, types, args, kwargs or {})


@every_loss
def test_subclasses_as_target_and_weight_are_not_written_to(loss):
    logits, target, weight = batch()
    expected = loss(logits, target, weight)
    marked = loss(logits, target.as_subclass(Marked), weight.as_subclass(Marked))
    torch.testing.assert_close(marked.as_subclass(torch.Tensor), expected)
    counts = torch.tensor(COUNTS, dtype=torch.float64).as_subclass(Marked)
    torch.testing.assert_close(loss(logits, target, weight, counts=counts).as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize(
    "function", [functional.sigmoid_cross_entropy, functional.focal_loss, functional.asymmetric_loss]
)
def test_a_binary_head_without_a_class_dimension_is_refused(function):
    logits, target = torch.randn(4), torch.tensor([0.0, 1.0, 1.0, 0.0])
    for dtype in (torch.float32, torch.int64, torch.bool):
        with pytest.raises(
            ValueError, match=r"shape \(4,\) are ambiguous: for 4 samples of one binary class unsqueeze"
        ):
            function(logits, target.to(dtype))
    rows = function(logits.unsqueeze(1), target.unsqueeze(1), reduction="none")
    assert rows.shape == (4,)
    torch.testing.assert_close(torch.func.vmap(function)(logits.unsqueeze(1), target.unsqueeze(1)), rows)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (functional.focal_loss, {"gamma": 10**30}, r"gamma must be at most 1e6, got 1e\+30"),
        (functional.softmax_focal_loss, {"gamma": 10**400}, "gamma must be a finite number"),
        (
            functional.logit_adjusted_cross_entropy,
            {"counts": [3, 2, 1], "tau": 1e308},
            r"tau must be at most 1e6, got 1e\+308",
        ),
        (functional.logit_adjusted_cross_entropy, {"counts": [3, 2, 1], "tau": 10**30}, "tau must be at most 1e6"),
        (functional.ldam_loss, {"counts": [3, 2, 1], "scale": 10**30}, "scale must be at most 1e6"),
        (functional.softmax_cross_entropy, {"ignore_index": 10**30}, "ignore_index must fit in 64 bits"),
        (functional.focal_loss, {"ignore_index": 1.5}, "ignore_index must be an integer, got 1.5"),
    ],
)
def test_numbers_out_of_range_are_named(function, options, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        function(LOGITS, LABELS, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["gamma", "tau"])
def test_the_largest_option_gives_finite_numbers(option):
    logits = torch.tensor([[3.0, -2.0, 40.0], [0.0, 0.0, 0.0]], requires_grad=True)
    if option == "gamma":
        value = functional.focal_loss(logits, LABELS[:2], gamma=1e6)
    else:
        value = functional.logit_adjusted_cross_entropy(logits, LABELS[:2], counts=[9, 3, 1], tau=1e6)
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()


def test_running_out_of_memory_in_backward_is_not_taken_for_something_else(monkeypatch):
    logits, target, weight = batch(dtype=torch.float16)
    value = functional.focal_loss(logits, target, weight)
    calls = []

    def sweep(*args, **kwargs):
        calls.append(args)
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(_blocked, "_sweep", sweep)
    with pytest.raises(torch.OutOfMemoryError):
        value.backward()
    assert len(calls) == 1


@pytest.mark.slow
@every_name
def test_a_compiled_loss_refuses_labels_out_of_range(name):
    torch._dynamo.reset()
    criterion = torch.compile(ClassBalancedLoss([500, 100, 7], name), fullgraph=True)
    torch.testing.assert_close(
        criterion(LOGITS, torch.tensor([0, 1, -100, 2])), criterion(LOGITS[:3], torch.tensor([0, 1, 2]))
    )
    for label in (-1, -3, 3):
        with pytest.raises((RuntimeError, IndexError)):
            criterion(LOGITS, torch.tensor([0, 1, label, 2]))


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_a_compiled_sigmoid_loss_keeps_its_digits_at_every_logit(gamma):
    compiled = torch.compile(functional.focal_loss, fullgraph=True)
    absent = torch.linspace(-80, 80, 2001)
    logits = torch.stack([torch.full_like(absent, 200.0), absent], 1).requires_grad_()  # the term of 200 is 0
    target = torch.zeros(len(absent), dtype=torch.int64)
    wide = logits.detach().double().requires_grad_()
    for z, loss in ((logits, compiled), (wide, functional.focal_loss)):
        rows = loss(z, target, gamma=gamma, reduction="none")
        (z.grad,) = torch.autograd.grad(rows.sum(), z)
        z.rows = rows.detach()
    normal = wide.rows > 1e-36  # below are float32's numbers of fewer digits
    assert normal.sum() > 500
    torch.testing.assert_close(logits.rows[normal].double(), wide.rows[normal], rtol=2e-5, atol=0)
    torch.testing.assert_close(logits.grad[normal, 1].double(), wide.grad[normal, 1], rtol=2e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logarithm_for_compilers_is_as_exact_as_the_dtype(dtype):
    e = torch.cat([torch.logspace(-37, 0, 4001, dtype=dtype), torch.linspace(0, 1, 4001, dtype=dtype)])
    found, expected = sigmoid._log1p(e).double(), torch.log1p(e.double())
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.slow
@every_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_compiled_loss_is_the_loss_at_every_batch_size(name, dtype):
    torch._dynamo.reset()
    criterion = ClassBalancedLoss([500, 100, 70, 9, 7], name)
    compiled = torch.compile(criterion, fullgraph=True, dynamic=True)
    compiled(batch(4, dtype=dtype)[0], batch(4)[1]).backward()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (6, 9, 33):
            logits, target, _ = batch(size, dtype=dtype)
            target[1] = -100
            with torch.no_grad():
                logits[0] *= 1e3
            value = compiled(logits, target)
            (gradient,) = torch.autograd.grad(value, logits)
            expected = criterion(logits, target)
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])


def _compare_sharded(rank: int, port: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    logits, labels, weight = batch()
    labels[2] = -100
    soft = torch.rand(6, 5, generator=torch.Generator().manual_seed(1))
    for loss in LOSSES:
        for reduction in ("mean", "sum", "none", "weighted_mean"):
            for target, placement in ((labels, Shard(0)), (labels, Shard(1)), (soft, Shard(0)), (labels, Replicate())):
                expected = loss(logits, target, weight, reduction=reduction)
                (gradient,) = torch.autograd.grad(expected.sum(), logits)
                sharded = distribute_tensor(logits.detach().clone(), mesh, [placement]).requires_grad_()
                value = loss(sharded, target, weight, reduction=reduction)
                value.sum().backward()
                torch.testing.assert_close(value.full_tensor(), expected)
                torch.testing.assert_close(sharded.grad.full_tensor(), gradient)
    dist.destroy_process_group()


@pytest.mark.slow
def test_logits_sharded_over_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_compare_sharded, (port,), nprocs=2)
