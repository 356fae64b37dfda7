"""Bad input gets one line that names the argument and its value."""

import pytest
import torch

from longtail import functional
from tests.loss_table import every_loss

LOGITS = torch.zeros(4, 3)
LABELS = torch.tensor([0, 1, 2, 0])


def bad(message, logits=LOGITS, target=LABELS, weight=None, error=ValueError, **options):
    return pytest.param(logits, target, weight, options, error, message, id=message[:40])


@every_loss
@pytest.mark.parametrize(
    ("logits", "target", "weight", "options", "error", "message"),
    [
        bad("logits must be floating point, got torch.int64", logits=LOGITS.long(), error=TypeError),
        bad("logits must have shape (N, C), (N, C, d1, …) or (C,), got a scalar", torch.tensor(1.0), torch.tensor(1)),
        bad("target has shape (3,), but logits of shape (4, 3) need class indices of shape (4,)", target=LABELS[:3]),
        bad("target has shape (4, 2), but logits of shape (4, 3) need", target=torch.zeros(4, 2)),
        bad(
            "target has shape (4, 3), but logits of shape (4, 3, 2) need class indices of shape (4, 2)",
            torch.zeros(4, 3, 2),
            torch.zeros(4, 3),
        ),
        bad("class indices, which must be integers, not torch.float32", target=LABELS.float(), error=TypeError),
        bad("class indices, which must be integers, not torch.bool", target=LABELS.bool(), error=TypeError),
        bad(
            "target must be in [0, 3) for 3 classes, got 3 at index 1; classes start at 0",
            target=torch.tensor([0, 3, 2, 0]),
        ),
        bad(
            "target must be in [0, 3) for 3 classes, got -1 at index 3; to skip it pass ignore_index=-1",
            target=torch.tensor([0, 1, 2, -1]),
        ),
        bad("target must be in [0, 3) for 3 classes, got 7 at index 2", target=torch.tensor([0, -100, 7, 0])),
        bad("target must be in [0, 3) for 3 classes, got -100", target=torch.tensor([-100, 1, 0, 0]), ignore_index=255),
        bad(
            "target must be in [0, 3) for 3 classes, got 9 at index (1, 0)",
            torch.zeros(2, 3, 2),
            torch.tensor([[0, 1], [9, 0]]),
        ),
        bad("has shape (4,), but logits of shape (4, 3) have 3 classes; if the last classes", weight=torch.ones(4)),
        bad("has shape (1, 3), but logits of shape (4, 3) have 3 classes", weight=torch.ones(1, 3)),
        bad("class_weight must be a tensor, got list: pass torch.as_tensor", weight=[1.0, 2.0, 3.0], error=TypeError),
        bad("class_weight is on meta, but logits are on cpu", weight=torch.ones(3, device="meta")),
        bad("target is on meta, but logits are on cpu", target=LABELS.to("meta")),
        bad("target must be a tensor, got list", target=[0, 1, 2, 0], error=TypeError),
        bad("logits must be a tensor, got ndarray", logits=LOGITS.numpy(), error=TypeError),
        bad("unknown reduction 'avg': choose from mean, sum, none, weighted_mean", reduction="avg"),
        bad("unknown reduction 'Sum': did you mean 'sum'? choose from", reduction="Sum"),
        bad("label_smoothing must be in [0, 1], got 1.5", label_smoothing=1.5),
        bad("label_smoothing must be in [0, 1], got nan", label_smoothing=float("nan")),
    ],
)
def test_bad_input_is_named(loss, logits, target, weight, options, error, message):
    with pytest.raises(error) as caught:
        loss(logits, target, weight, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gamma", [-0.5, float("nan"), float("inf")])
def test_bad_gamma_is_named(gamma):
    with pytest.raises(ValueError, match=f"gamma must be a finite number >= 0, got {gamma}"):
        functional.focal_loss(LOGITS, LABELS, gamma=gamma)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (functional.softmax_focal_loss, {"gamma": -1.0}, "gamma must be a finite number >= 0, got -1"),
        (functional.logit_adjusted_cross_entropy, {"counts": [3, 2, 1], "tau": -1}, "tau must be a finite number >= 0"),
        (functional.logit_adjusted_cross_entropy, {"counts": [3, 2, 0]}, "counts are 0 for class 2"),
        (functional.logit_adjusted_cross_entropy, {"counts": [0.7, 0.2, 0.1]}, "numbers of samples, not shares"),
        (functional.logit_adjusted_cross_entropy, {"counts": torch.tensor([3, 0, 0])}, "counts are 0 for classes 1, 2"),
        (functional.ldam_loss, {"counts": [3, 2]}, r"counts have shape \(2,\), but logits of shape \(4, 3\)"),
        (functional.ldam_loss, {"counts": torch.ones(3, 1)}, r"counts have shape \(3, 1\)"),
        (functional.ldam_loss, {"counts": torch.ones(3, device="meta")}, "counts are on meta, but logits are on cpu"),
        (functional.ldam_loss, {"counts": [3, 2, 1], "scale": 0}, "scale must be above 0, got 0"),
        (functional.ldam_loss, {"counts": [3, 2, 1], "max_margin": float("nan")}, "max_margin must be a finite number"),
        (functional.asymmetric_loss, {"gamma_negative": -1}, "gamma_negative must be a finite number >= 0, got -1"),
        (functional.asymmetric_loss, {"gamma_positive": -1}, "gamma_positive must be a finite number >= 0, got -1"),
        (functional.asymmetric_loss, {"clip": 1.5}, r"clip must be in \[0, 1\], got 1.5"),
    ],
)
def test_bad_options_of_one_loss_are_named(function, options, message):
    with pytest.raises(ValueError, match=message):
        function(LOGITS, LABELS, **options)


@every_loss
def test_a_label_out_of_range_stops_the_compiled_loss_too(loss):
    torch._dynamo.reset()
    compiled = torch.compile(lambda z, y: loss(z, y), fullgraph=True, backend="aot_eager")
    compiled(LOGITS, LABELS)
    with pytest.raises((RuntimeError, IndexError)):
        compiled(LOGITS, torch.tensor([0, 3, 2, 0]))
