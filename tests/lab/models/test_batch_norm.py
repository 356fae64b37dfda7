"""Batch norm over processes beside PyTorch's own, in a group of one."""

import pytest
import torch
from torch import distributed, nn

from longtail.lab.models import build_model
from longtail.lab.models.batch_norm import SyncBatchNorm2d, synchronise_batch_norms


@pytest.fixture(autouse=True)
def group(tmp_path):
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def pair(channels=3):
    torch.manual_seed(0)
    norms = SyncBatchNorm2d(channels), nn.BatchNorm2d(channels)
    weight, bias = torch.rand(channels) + 0.5, torch.randn(channels)
    for norm in norms:
        norm.weight.data.copy_(weight)
        norm.bias.data.copy_(bias)
    return norms


@pytest.mark.parametrize(("mean", "std"), [(0, 1), (1000, 1), (-300, 0.1), (0, 1e-4)])
def test_it_normalises_as_pytorch_does_also_far_from_zero(mean, std):
    ours, theirs = pair()
    maps = mean + std * torch.randn(16, 3, 5, 4)
    exact = nn.functional.batch_norm(
        maps.double(), None, None, theirs.weight.double(), theirs.bias.double(), training=True
    )
    found = ours(maps)
    # Of values this far from zero, float32 itself has lost about as much.
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-4 + 1e-6 * abs(mean) / std)
    torch.testing.assert_close(theirs(maps), found, rtol=1e-3, atol=1e-4 + 1e-6 * abs(mean) / std)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-3, atol=1e-6)
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 1


@pytest.mark.parametrize("mean", [0, 1000])
def test_its_gradients_are_those_of_pytorch(mean):
    ours, theirs = pair()
    maps, back = mean + torch.randn(8, 3, 6, 6), torch.randn(8, 3, 6, 6)
    gradients = []
    for norm in (ours, theirs):
        images = maps.clone().requires_grad_()
        norm(images).backward(back)
        gradients.append((images.grad, norm.weight.grad, norm.bias.grad))
    tolerance = {"rtol": 1e-3, "atol": 1e-4 + 1e-5 * mean}
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, **tolerance)


def test_bfloat16_comes_out_as_it_goes_in():
    ours, theirs = pair()
    maps = torch.randn(8, 3, 6, 6)
    half = maps.bfloat16().requires_grad_()
    found = ours(half)
    found.float().square().sum().backward()
    assert found.dtype == half.grad.dtype == torch.bfloat16
    assert ours.running_mean.dtype == torch.float32
    torch.testing.assert_close(found.float(), theirs(half.detach().float()), rtol=0.02, atol=0.02)


def test_with_autocast_a_network_trains():
    network = synchronise_batch_norms(build_model("resnet8", 10, 1))
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(torch.randn(4, 1, 8, 8))
    logits.float().logsumexp(1).sum().backward()
    assert all(weight.grad.isfinite().all() for weight in network.parameters())


def test_evaluation_needs_no_group_and_a_constant_channel_no_variance():
    ours, _ = pair()
    assert ours(torch.full((4, 3, 2, 2), 7.0)).isfinite().all()
    expected = nn.BatchNorm2d(3).eval()
    expected.load_state_dict(ours.state_dict())
    maps = torch.randn(4, 3, 2, 2)
    assert torch.equal(ours.eval()(maps), expected(maps))


@pytest.mark.parametrize("name", ["resnet18", "test_efficientnet"])
def test_models_of_timm_compute_the_same_with_it(name):
    torch.manual_seed(0)
    images = torch.randn(4, 3, 64, 64)
    ours, theirs = (build_model(name, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    synchronise_batch_norms(ours)
    assert any(isinstance(module, SyncBatchNorm2d) for module in ours.modules())
    assert not any(
        isinstance(module, nn.BatchNorm2d) for module in ours.modules() if "Sync" not in type(module).__name__
    )
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-3, atol=1e-4)
