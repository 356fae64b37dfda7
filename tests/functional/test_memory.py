"""Peak memory, counted exactly by the allocator: the gradient, and little else."""

from functools import partial

import pytest
import torch

from benchmarks.measure import peak_memory
from longtail import ClassBalancedLoss
from longtail.functional import _apply
from tests.loss_table import every_name


def step(criterion, logits, target):
    logits.grad = None
    criterion(logits, target).backward()


@every_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(512, 2000), (2, 19, 256, 256)], ids=str)
@pytest.mark.parametrize("threads", [2, 64])
def test_a_step_takes_at_most_one_and_a_half_times_the_logits(name, dtype, shape, threads, monkeypatch):
    logits = torch.randn(shape).to(dtype).requires_grad_()
    target = torch.randint(shape[1], shape[:1] + shape[2:])
    call = partial(step, ClassBalancedLoss([10] * shape[1], name), logits, target)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(_apply, "NATIVE_ELEMENTS", 0)  # a batch as small as this goes to PyTorch's own cross-entropy
    call()
    logits.grad = None
    assert peak_memory(call) <= 1.5 * logits.nbytes


@every_name
@pytest.mark.parametrize("kind", ["soft", "multi-hot", "smoothed"])
def test_a_step_with_dense_targets_takes_at_most_twice_the_logits(name, kind):
    logits = torch.randn(512, 2000, requires_grad=True)
    target = torch.rand(512, 2000)
    if kind != "soft":
        target = target.argmax(1) if kind == "smoothed" else target > 0.9
    criterion = ClassBalancedLoss([10] * 2000, name, label_smoothing=0.1 if kind == "smoothed" else 0.0)
    call = partial(step, criterion, logits, target)
    call()
    logits.grad = None
    assert peak_memory(call) <= 2 * logits.nbytes


def test_evaluation_takes_hardly_any():
    logits, target = torch.randn(512, 2000), torch.randint(2000, (512,))
    criterion = ClassBalancedLoss([10] * 2000, "focal")
    assert peak_memory(lambda: criterion(logits, target)) <= 0.5 * logits.nbytes
