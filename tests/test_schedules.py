"""Deferred class weights: a pure function of the epoch, around every loss, and never in a checkpoint."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail import ClassBalanced, ClassBalancedLoss, SoftmaxCrossEntropy, class_weights
from longtail.schedules import DeferredReweighting
from tests.loss_table import batch, every_loss
from tests.test_traps import Recorder

COUNTS = [5000, 700, 90, 12, 3]


@every_loss
def test_every_loss_is_plain_before_the_epoch_and_weighted_from_it_on(loss):
    logits, target, weight = batch(dtype=torch.float32)
    weighted, plain = loss.build(weight), loss.build()
    criterion = DeferredReweighting(weighted, epoch=2.5)
    for epoch, expected in ((0, plain), (2, plain), (2.5, weighted), (7, weighted), (1, plain)):
        criterion.set_epoch(epoch)
        assert torch.equal(criterion(logits, target), expected(logits, target))
        soft = torch.softmax(logits.detach(), 1)
        assert torch.equal(criterion(logits, soft), expected(logits, soft))


@pytest.mark.parametrize(
    "weighted",
    [ClassBalancedLoss(COUNTS, "focal", 0.99), ClassBalanced(nn.MultiMarginLoss(reduction="none"), COUNTS, 0.99)],
)
def test_the_gradients_are_those_of_the_loss_and_the_loss_is_not_changed(weighted):
    logits, target, _ = batch(dtype=torch.float32)
    before = weighted.class_weight.clone()
    criterion = DeferredReweighting(weighted, epoch=1)
    plain = torch.autograd.grad(criterion(logits, target), logits)[0]
    criterion.set_epoch(1)
    balanced = torch.autograd.grad(criterion(logits, target), logits)[0]
    assert torch.equal(balanced, torch.autograd.grad(weighted(logits, target), logits)[0])
    assert not torch.equal(plain, balanced)
    assert torch.equal(weighted.class_weight, before)


def test_a_checkpoint_holds_the_weights_of_the_loss_whatever_the_epoch():
    criterion = DeferredReweighting(ClassBalancedLoss(COUNTS, beta=0.99), epoch=160)
    states = []
    for epoch in (0, 159.99, 160, 200):
        criterion.set_epoch(epoch)
        states.append(copy.deepcopy(criterion.state_dict()))
    assert all(list(state) == ["criterion.class_weight", "criterion.counts"] for state in states)
    expected = torch.as_tensor(class_weights(COUNTS, beta=0.99), dtype=torch.float32)
    assert all(torch.equal(state["criterion.class_weight"], expected) for state in states)
    other = DeferredReweighting(ClassBalancedLoss(COUNTS, beta=0.5), epoch=160)
    other.load_state_dict(states[0])
    other.set_epoch(170)
    assert torch.equal(other.class_weight, expected)


def test_it_follows_to_and_can_be_copied():
    criterion = DeferredReweighting(ClassBalancedLoss(COUNTS), epoch=1).double()
    assert criterion.class_weight.dtype == torch.float64
    twin = copy.deepcopy(criterion)
    twin.set_epoch(1)
    assert criterion.class_weight.tolist() == [1] * 5 != twin.class_weight.tolist()


def test_a_step_does_nothing_but_the_loss():
    weighted = ClassBalancedLoss(COUNTS, "focal")
    logits, target, _ = batch(dtype=torch.float32)
    seen = []
    for criterion in (weighted, DeferredReweighting(weighted, 1)):
        with Recorder() as recorder:
            criterion(logits, target)
        seen.append(recorder.names)
    assert seen[0] == seen[1] != []


def test_it_is_compiled_once_for_all_epochs():
    graphs = []
    torch._dynamo.reset()
    criterion = DeferredReweighting(ClassBalancedLoss(COUNTS, "focal"), epoch=2)
    compiled = torch.compile(criterion, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    logits, target, _ = batch(dtype=torch.float32)
    for epoch in range(5):
        criterion.set_epoch(epoch)
        assert torch.allclose(compiled(logits, target), criterion(logits, target))
    assert len(graphs) == 1


def test_threads_that_share_it_all_see_the_weights_of_the_epoch():
    """Two calls overlap, and the first to enter is the first to leave."""
    both_are_in, first_has_left = threading.Barrier(2), threading.Event()

    def base(logits, target):
        both_are_in.wait(timeout=60)
        if threading.current_thread() is not first:
            first_has_left.wait(timeout=60)
        return F.cross_entropy(logits, target, reduction="none")

    weighted = ClassBalanced(base, COUNTS, 0.99)
    criterion = DeferredReweighting(weighted, epoch=1)
    before = weighted.class_weight.clone()
    logits, target, _ = batch(dtype=torch.float32)
    values = {}

    def call(name):
        values[name] = criterion(logits, target)
        if name == "first":
            first_has_left.set()

    first, second = (threading.Thread(target=call, args=(name,)) for name in ("first", "second"))
    for thread in (first, second):
        thread.start()
    for thread in (first, second):
        thread.join(timeout=120)
    expected = F.cross_entropy(logits, target)
    torch.testing.assert_close(values, {"first": expected, "second": expected})
    assert torch.equal(weighted.class_weight, before)
    assert criterion.class_weight.tolist() == [1] * 5


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of checks of shapes
@pytest.mark.parametrize("epoch", [0, 1])
def test_it_can_be_traced_and_exported(epoch):
    criterion = DeferredReweighting(ClassBalancedLoss(COUNTS, "focal", 0.99), epoch=1)
    criterion.set_epoch(epoch)
    logits, target, _ = batch(dtype=torch.float32)
    logits = logits.detach()
    traced = torch.jit.trace(criterion, (logits, target))
    exported = torch.export.export(criterion, (logits, target)).module()
    other = batch(seed=1, dtype=torch.float32)[:2]
    torch.testing.assert_close(traced(*other), criterion(*other))
    torch.testing.assert_close(exported(*other), criterion(*other))
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*other), criterion(*other))


def test_a_loss_of_ones_own_takes_the_weights_as_an_argument():
    class Distance(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("class_weight", torch.tensor([1.0, 3.0]))

        def forward(self, inputs, target, class_weight=None):
            weight = self.class_weight if class_weight is None else class_weight
            return (weight[target] * inputs).sum()

    criterion = DeferredReweighting(Distance(), epoch=1)
    assert criterion(torch.ones(2), torch.tensor([0, 1])) == 2
    criterion.set_epoch(1)
    assert criterion(torch.ones(2), torch.tensor([0, 1])) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DeferredReweighting(SoftmaxCrossEntropy(), 1), "SoftmaxCrossEntropy has no class weights: there is"),
        (lambda: DeferredReweighting(nn.CrossEntropyLoss(), 1), "criterion must be a loss of this package, or have"),
        (lambda: DeferredReweighting(ClassBalancedLoss(COUNTS), -1), "epoch must be a finite number >= 0, got -1"),
        (lambda: DeferredReweighting(ClassBalancedLoss(COUNTS), 1).set_epoch(-1), "epoch must be a finite number"),
    ],
)
def test_what_makes_no_sense_is_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_repr_says_when():
    assert "DeferredReweighting(\n  epoch=160" in repr(DeferredReweighting(ClassBalancedLoss(COUNTS), epoch=160))
