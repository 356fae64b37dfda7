"""Classes split over real processes: loss and gradients of one, and what is sent does not grow with the classes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail import ClassBalancedLoss, functional
from tests.functional.sharded import CASES, CLASSES, REDUCTIONS, SAMPLES, batch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 processes", "4 processes"])
def ranks(request, tmp_path_factory):
    """What each process found."""
    folder, world = tmp_path_factory.mktemp("ranks"), request.param
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "tests.functional.sharded"]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    try:
        errors = [worker.communicate(timeout=300)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * world, "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.option}")
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_loss_and_gradients_are_those_of_one_process(ranks, case, reduction):
    (features, weight, bias), target, class_weight = batch()
    expected = case.unfused(features, weight, target, class_weight, bias=bias, reduction=reduction)
    factor = 1 + torch.arange(SAMPLES).double() if reduction == "none" else torch.tensor(2.0).double()
    gradients = torch.autograd.grad(expected, [features, weight, bias], factor)
    losses, found = zip(*(rank["losses"][case, reduction] for rank in ranks), strict=True)
    for loss in [torch.cat(losses)] if reduction == "none" else losses:
        torch.testing.assert_close(loss, expected)
    for parts, whole in zip(zip(*found, strict=True), gradients, strict=True):
        torch.testing.assert_close(torch.cat(parts), whole)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.option}")
def test_bytes_sent_do_not_grow_with_the_classes(ranks, case):
    for rank in ranks:
        few, many = rank["bytes"][case]
        assert few == many
        features = 8 * 5 * (SAMPLES + len(ranks))  # padded to the largest share
        assert features < many < 4 * features


def test_a_module_holds_a_share_of_the_classes(ranks):
    torch.manual_seed(0)
    linear = nn.Linear(5, CLASSES).double()
    (features, _, _), target, _ = batch()
    loss = ClassBalancedLoss([30] * 13 + [2] * 10, "focal")(linear(features.detach()), target)
    loss.backward()
    losses, classes, by_weight, by_bias, drawn = zip(*(rank["module"] for rank in ranks), strict=True)
    assert [index for share in classes for index in share] == list(range(CLASSES))
    torch.testing.assert_close(torch.stack(losses), loss.detach().expand(len(ranks)))
    torch.testing.assert_close(torch.cat(by_weight), linear.weight.grad)
    torch.testing.assert_close(torch.cat(by_bias), linear.bias.grad)
    drawn = torch.cat(drawn)
    assert len(drawn.unique(dim=0)) == CLASSES  # ranks that are seeded alike draw different weights
    assert drawn.abs().max() <= 5**-0.5


def test_a_data_parallel_network_before_it_gets_the_gradient_of_one_process(ranks):
    torch.manual_seed(1)
    backbone = nn.Linear(5, 5).double()
    (inputs, weight, bias), target, _ = batch()
    functional.softmax_cross_entropy(F.linear(backbone(inputs.detach()), weight, bias), target).backward()
    for rank in ranks:
        torch.testing.assert_close(rank["parallel"], backbone.weight.grad)


def test_gradients_of_gradients_are_refused_in_one_line(ranks):
    for rank in ranks:
        assert (
            rank["refused"] == "with a process group, gradients cannot be differentiated: create_graph=True is refused"
        )
