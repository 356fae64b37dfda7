"""Class weights that begin late: a pure function of the epoch, around every loss, and never in a checkpoint."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longtail import ClassBalanced, ClassBalancedLoss, SoftmaxCrossEntropy, class_weights
from longtail.schedules import AnnealedReweighting, DeferredReweighting
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
    annealed = AnnealedReweighting(plain, COUNTS, 0.99, start=1, end=3)
    annealed.set_epoch(9)
    last = loss.build(class_weights(COUNTS, beta=0.99))
    assert torch.equal(annealed(logits, target), last(logits, target))


@pytest.mark.parametrize(
    "weighted",
    [ClassBalancedLoss(COUNTS, "focal", 0.99), ClassBalanced(nn.MultiMarginLoss(reduction="none"), COUNTS, 0.99)],
)
def test_the_gradients_are_those_of_the_loss_and_the_loss_is_not_changed(weighted):
    logits, target, _ = batch(dtype=torch.float32)
    before = weighted.class_weight.clone()
    for criterion in (
        DeferredReweighting(weighted, epoch=1),
        AnnealedReweighting(weighted, COUNTS, 0.99, start=0, end=1),
    ):
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
    assert all(list(state) == ["criterion.class_weight"] for state in states)
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
    for criterion in (
        weighted,
        DeferredReweighting(weighted, 1),
        AnnealedReweighting(weighted, COUNTS, start=0, end=1),
    ):
        with Recorder() as recorder:
            criterion(logits, target)
        seen.append(recorder.names)
    assert seen[0] == seen[1] == seen[2] != []


def test_it_is_compiled_once_for_all_epochs():
    graphs = []
    torch._dynamo.reset()
    for criterion in (
        DeferredReweighting(ClassBalancedLoss(COUNTS, "focal"), epoch=2),
        AnnealedReweighting(SoftmaxCrossEntropy(), COUNTS, start=1, end=3),
    ):
        compiled = torch.compile(criterion, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
        logits, target, _ = batch(dtype=torch.float32)
        for epoch in range(5):
            criterion.set_epoch(epoch)
            assert torch.allclose(compiled(logits, target), criterion(logits, target))
    assert len(graphs) == 2


@given(
    beta=st.floats(0, 0.99999) | st.lists(st.floats(0, 0.99999), min_size=5, max_size=5),
    start=st.floats(0, 100),
    span=st.floats(0.01, 100),
    share=st.floats(0, 1),
    normalize=st.sampled_from(["classes", "samples"]),
)
def test_prototypes_grow_by_a_factor_from_1_to_their_number(beta, start, span, share, normalize):
    """Against the equations in plain NumPy: N_t = N^s, and α ∝ (1-β_t)/(1-β_t^n)."""
    criterion = AnnealedReweighting(
        SoftmaxCrossEntropy(), COUNTS, beta, start=start, end=start + span, normalize=normalize
    ).double()
    criterion.set_epoch(start + share * span)
    n = np.array(COUNTS, dtype=np.float64)
    prototypes = (1 / (1 - np.asarray(beta))) ** share
    b = 1 - 1 / prototypes
    raw = np.where(b == 0, 1.0, (1 - b) / -np.expm1(n * np.log(np.where(b == 0, 0.5, b))))
    expected = raw * (5 / raw.sum() if normalize == "classes" else n.sum() / (n * raw).sum())
    assert criterion.class_weight.numpy() == pytest.approx(expected, rel=1e-5)
    criterion.set_epoch(start)
    assert criterion.class_weight.tolist() == pytest.approx([1.0] * 5)
    criterion.set_epoch(start + 2 * span)
    assert criterion.class_weight.tolist() == pytest.approx(class_weights(COUNTS, beta=beta, normalize=normalize))


def test_absent_classes_stay_without_weight():
    counts = [50, 0, 5]
    criterion = AnnealedReweighting(SoftmaxCrossEntropy(), counts, start=0, end=1, absent="ignore")
    criterion.set_epoch(0.5)
    assert criterion.class_weight[1] == 0
    with pytest.raises(ValueError, match="class 1"):
        AnnealedReweighting(SoftmaxCrossEntropy(), counts, start=0, end=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DeferredReweighting(SoftmaxCrossEntropy(), 1), "SoftmaxCrossEntropy has no class weights: there is"),
        (lambda: DeferredReweighting(nn.CrossEntropyLoss(), 1), "criterion must be a loss of this package or have"),
        (lambda: DeferredReweighting(ClassBalancedLoss(COUNTS), -1), "epoch must be a finite number >= 0, got -1"),
        (lambda: DeferredReweighting(ClassBalancedLoss(COUNTS), 1).set_epoch(-1), "epoch must be a finite number"),
        (lambda: AnnealedReweighting(SoftmaxCrossEntropy(), COUNTS, start=3, end=3), "end must be after start, got"),
        (lambda: AnnealedReweighting(SoftmaxCrossEntropy(), COUNTS, 1.0, start=0, end=3), "beta must be below 1 to be"),
        (
            lambda: AnnealedReweighting(ClassBalancedLoss(COUNTS, beta=0.9), COUNTS, 0.99, start=0, end=3),
            r"ClassBalancedLoss has other class weights than those of beta=0\.99",
        ),
    ],
)
def test_what_makes_no_sense_is_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_repr_says_when():
    assert "DeferredReweighting(\n  epoch=160" in repr(DeferredReweighting(ClassBalancedLoss(COUNTS), epoch=160))
    annealed = AnnealedReweighting(SoftmaxCrossEntropy(), COUNTS, 0.99, start=1, end=2.5)
    assert "beta=0.99, start=1, end=2.5" in repr(annealed)


def test_counts_are_those_of_the_beginning():
    counts = np.array([40, 30, 20, 10])
    criterion = AnnealedReweighting(SoftmaxCrossEntropy(), counts, 0.9, start=0, end=2)
    expected = class_weights(counts, beta=0.9)
    counts[:] = 1
    criterion.set_epoch(2)
    np.testing.assert_allclose(criterion.class_weight, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_the_end_may_be_rounded(dtype):
    counts = [40, 30, 20, 10]
    criterion = ClassBalancedLoss(counts, beta=0.9).to(dtype)
    assert AnnealedReweighting(criterion, counts, 0.9, start=0, end=2).class_weight.dtype == dtype
