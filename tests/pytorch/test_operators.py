"""What PyTorch's test_ops.py asks of every operator, asked of the loss functions."""

from functools import partial
from itertools import islice

import pytest
import torch
from torch.testing import assert_close
from torch.testing._internal import composite_compliance, optests
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase, gradcheck, gradgradcheck

from tests.pytorch.infos import LOSS_OPERATORS, OPERATORS

pytestmark = pytest.mark.slow
DOUBLE = [torch.float64]
FEW = 5
"""Inputs to trace: those of two dimensions with each kind of target."""


def samples(op, device, dtype, requires_grad=False):
    """Calls of an operator: its input, and all else."""
    for sample in op.sample_inputs(device, dtype, requires_grad=requires_grad):
        yield sample, partial(called, op, sample.kwargs)


def called(op, kwargs, *args):
    return op(*args, **kwargs)


class TestOperators(TestCase):
    @ops(OPERATORS)
    def test_reference(self, device, dtype, op):
        tolerance = 0.1 if dtype == torch.bfloat16 else 0.01 if dtype == torch.float16 else 1e-4
        for sample, call in samples(op, device, dtype):
            expected = op.ref(sample.input, *sample.args, **sample.kwargs)
            assert_close(call(sample.input, *sample.args).double(), expected, rtol=tolerance, atol=tolerance)

    @ops(OPERATORS, dtypes=OpDTypes.none)
    def test_errors(self, device, op):
        for error in [] if op.error_inputs_func is None else op.error_inputs(device):
            sample = error.sample_input
            with pytest.raises(error.error_type, match=error.error_regex):
                op(sample.input, *sample.args, **sample.kwargs)

    @ops(OPERATORS, allowed_dtypes=[torch.float32])
    def test_non_contiguous(self, device, dtype, op):
        for sample, call in samples(op, device, dtype):
            other = sample.noncontiguous()
            found = op(other.input, *other.args, **other.kwargs)
            assert_close(found, call(sample.input, *sample.args))

    @ops(OPERATORS, allowed_dtypes=DOUBLE)
    def test_gradients(self, device, dtype, op):
        for sample, call in samples(op, device, dtype, requires_grad=True):
            inputs = (sample.input, *sample.args)
            if op in LOSS_OPERATORS:  # gradcheck goes backward twice, which heads refuse: test_linear.py has theirs
                assert gradcheck(call, inputs, fast_mode=True, nondet_tol=0.0, check_batched_grad=op.check_batched_grad)
            assert gradgradcheck(call, inputs, fast_mode=True)

    @ops(OPERATORS, allowed_dtypes=DOUBLE)
    def test_forward_mode(self, device, dtype, op):
        for sample, call in samples(op, device, dtype, requires_grad=True):
            inputs = (sample.input, *sample.args)
            check = partial(gradcheck, check_forward_ad=True, check_backward_ad=False, check_batched_grad=False)
            assert check(call, inputs)

    @ops(LOSS_OPERATORS, allowed_dtypes=[torch.float32])
    def test_subclasses_are_not_written_to(self, device, dtype, op):
        for sample, _ in islice(samples(op, device, dtype), FEW):
            inputs = (sample.input, *sample.args)
            composite_compliance.check_all_permutations(op, inputs, sample.kwargs, assert_close)

    @ops(OPERATORS, allowed_dtypes=[torch.float32])
    def test_fake_tensors_and_traces(self, device, dtype, op):
        for sample, _ in islice(samples(op, device, dtype), FEW):
            inputs = (sample.input, *sample.args)
            optests.fake_check(op, inputs, sample.kwargs)
            optests.make_fx_check(op, inputs, sample.kwargs, "fake")

    @ops(OPERATORS, allowed_dtypes=[torch.float32])
    def test_aot_autograd(self, device, dtype, op):
        for sample, _ in islice(samples(op, device, dtype, requires_grad=True), FEW):
            optests.aot_autograd_check(op, (sample.input, *sample.args), sample.kwargs, dynamic=False)


instantiate_device_type_tests(TestOperators, globals(), only_for="cpu")
