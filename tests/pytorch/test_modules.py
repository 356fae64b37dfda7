"""What PyTorch's test_modules.py asks of every module, asked of the losses."""

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import modules
from torch.testing._internal.common_utils import TestCase, freeze_rng_state, gradcheck, gradgradcheck

from tests.pytorch.infos import MODULES

pytestmark = pytest.mark.slow


def cases(info, device, dtype, requires_grad=False):
    """Modules with their inputs, and what they should return."""
    for case in info.module_inputs_func(info, device, dtype, requires_grad, training=True):
        built = case.constructor_input
        module = info.module_cls(*built.args, **built.kwargs, device=device)
        yield module, case.forward_input.args, case


class TestModules(TestCase):
    @modules(MODULES)
    def test_forward(self, device, dtype, module_info, training):
        for module, inputs, case in cases(module_info, device, dtype):
            found = module(*inputs)
            assert_close(found.double(), case.reference_fn(module, *inputs), rtol=1e-4, atol=1e-4)
            assert found.dtype in (torch.float32, torch.float64)
            assert repr(module).startswith(module_info.module_cls.__name__)

    @modules(MODULES, allowed_dtypes=[torch.float32, torch.float64])
    def test_factory_kwargs(self, device, dtype, module_info, training):
        for _, _, case in cases(module_info, device, dtype):
            for where in ("meta", device):
                module = module_info.module_cls(**case.constructor_input.kwargs, device=where, dtype=dtype)
                for buffer in module.buffers():
                    assert (buffer.device.type, buffer.dtype) == (torch.device(where).type, dtype)

    @modules(MODULES, allowed_dtypes=[torch.float32])
    def test_pickle_and_deepcopy(self, device, dtype, module_info, training):
        for module, inputs, _ in cases(module_info, device, dtype):
            with freeze_rng_state():
                expected = module(*inputs)
            for twin in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
                assert_close(twin(*inputs), expected, rtol=0, atol=0)

    @modules(MODULES)
    def test_inputs_are_not_written_to(self, device, dtype, module_info, training):
        for module, inputs, _ in cases(module_info, device, dtype, requires_grad=True):
            tensors = [*inputs, *module.buffers()]
            before = [tensor.detach().clone() for tensor in tensors]
            loss = module(*inputs)
            loss.sum().backward()
            for tensor, copied in zip(tensors, before, strict=True):
                assert_close(tensor.detach(), copied, rtol=0, atol=0)

    @modules(MODULES)
    def test_non_contiguous(self, device, dtype, module_info, training):
        for module, (logits, target), _ in cases(module_info, device, dtype, requires_grad=True):
            found = []
            vector = torch.rand_like(module(logits, target))
            for spread in (lambda x: x, non_contiguous):
                z = spread(logits.detach()).requires_grad_()
                value = module(z, spread(target))
                found.append((value, *torch.autograd.grad(value, z, vector)))
            assert_close(found[1], found[0])

    @modules(MODULES, allowed_dtypes=[torch.float64])
    def test_grad_and_gradgrad(self, device, dtype, module_info, training):
        for module, (logits, target), _ in cases(module_info, device, dtype, requires_grad=True):
            module.double()
            for check in (gradcheck, gradgradcheck):
                assert check(lambda z, y=target, m=module: m(z, y), logits, fast_mode=True, nondet_tol=0.0)

    @modules(MODULES, allowed_dtypes=[torch.float32])
    def test_empty_modules_from_meta_load_a_state(self, device, dtype, module_info, training):
        for module, inputs, case in cases(module_info, device, dtype):
            with torch.device("meta"):
                empty = module_info.module_cls(**case.constructor_input.kwargs)
            empty = empty.to_empty(device=device)
            empty.load_state_dict(module.state_dict())
            assert_close(empty(*inputs), module(*inputs), rtol=0, atol=0)


def non_contiguous(tensor):
    return torch.stack([tensor, tensor], -1)[..., 0]


instantiate_device_type_tests(TestModules, globals(), only_for="cpu")
