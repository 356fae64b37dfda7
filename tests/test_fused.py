"""The last layer and its loss as one module."""

import pytest
import torch
from torch import nn

from longtail import (
    ClassBalancedLoss,
    FocalLoss,
    FusedLinearLoss,
    LDAMLoss,
    LogitAdjustedCrossEntropy,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SoftmaxFocalLoss,
)
from longtail.schedules import DeferredReweighting

COUNTS = [500, 200, 80, 30, 9, 2]
CRITERIA = {
    "plain": lambda: SoftmaxCrossEntropy(),
    "weighted sigmoid": lambda: SigmoidCrossEntropy([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], reduction="weighted_mean"),
    "focal": lambda: FocalLoss(gamma=2.0, ignore_index=3),
    "softmax focal": lambda: SoftmaxFocalLoss(gamma=1.5, reduction="sum"),
    "logit-adjusted": lambda: LogitAdjustedCrossEntropy(counts=COUNTS, tau=0.7),
    **{
        f"class-balanced {name}": lambda name=name: ClassBalancedLoss(COUNTS, name, beta=0.99)
        for name in ("softmax", "sigmoid", "focal", "softmax_focal", "logit_adjusted")
    },
}


def batch(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(10, 4, generator=generator).to(dtype).requires_grad_()
    return features, torch.randint(6, (10,), generator=generator)


@pytest.mark.parametrize("name", CRITERIA)
def test_it_is_the_layer_and_the_criterion(name):
    criterion = CRITERIA[name]()
    head = FusedLinearLoss(4, criterion, 6)
    features, target = batch()
    parameters = [features, *head.linear.parameters()]
    fused, unfused = head(features, target), criterion(head.linear(features), target)
    torch.testing.assert_close(fused, unfused)
    found, expected = (torch.autograd.grad(loss, parameters) for loss in (fused, unfused))
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other)


def test_options_of_the_criterion_are_read_in_every_call():
    head = FusedLinearLoss(4, FocalLoss(), 6)
    features, target = batch()
    mean = head(features, target)
    head.criterion.reduction = "sum"
    torch.testing.assert_close(head(features, target), 10 * mean)


def test_deferred_weights_begin_at_their_epoch():
    criterion = DeferredReweighting(ClassBalancedLoss(COUNTS, "focal", beta=0.999), epoch=3)
    head = FusedLinearLoss(4, criterion)
    features, target = batch()
    for epoch in (0, 3):
        criterion.set_epoch(epoch)
        torch.testing.assert_close(head(features, target), criterion(head.linear(features), target))
    criterion.set_epoch(0)
    torch.testing.assert_close(head(features, target), FocalLoss()(head.linear(features), target))


def test_an_existing_layer_is_shared():
    linear = nn.Linear(4, 6, bias=False)
    head = FusedLinearLoss.from_linear(linear, ClassBalancedLoss(COUNTS))
    features, target = batch()
    head(features, target).backward()
    assert linear.weight.grad is not None
    assert list(head.state_dict()) == ["criterion.class_weight", "criterion.counts", "linear.weight"]


def test_dtype_device_and_repr():
    head = FusedLinearLoss(4, ClassBalancedLoss(COUNTS, "focal"), device="meta", dtype=torch.bfloat16, bias=False)
    assert head.linear.weight.is_meta
    assert head.linear.weight.dtype == torch.bfloat16
    assert "num_classes=6" in repr(head)
    moved = FusedLinearLoss(4, ClassBalancedLoss(COUNTS)).double()
    features, target = batch(torch.float64)
    assert moved(features, target).dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, LDAMLoss(counts=COUNTS)), "ldam_loss cannot be fused"),
        ((4, nn.CrossEntropyLoss()), "CrossEntropyLoss cannot be fused"),
        ((4, SoftmaxCrossEntropy(label_smoothing=0.1), 6), "a fused layer has no label_smoothing, got 0.1"),
        ((4, SoftmaxCrossEntropy()), "num_classes must be given"),
        ((4, ClassBalancedLoss(COUNTS), 7), "num_classes is 7, but class_weight of the criterion has 6 classes"),
        ((0, ClassBalancedLoss(COUNTS)), "in_features must be at least 1"),
        ((4, SoftmaxCrossEntropy(), 0), "num_classes must be at least 1"),
    ],
)
def test_what_cannot_be_fused_is_refused_in_one_line(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        FusedLinearLoss(*arguments)
    assert "\n" not in str(error.value)
