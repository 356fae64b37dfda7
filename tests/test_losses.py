"""The modules: state, options, and the class-balanced term around any loss."""

import collections
import copy
import inspect
import io
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import longtail
from longtail import (
    ClassBalanced,
    ClassBalancedLoss,
    LDAMLoss,
    beta_from_prototypes,
    class_weights,
    effective_number,
)
from tests.loss_table import COUNTS, LOSSES, batch, every_loss


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "weighted_mean"])
def test_modules_are_their_functions(loss, reduction):
    logits, target, weight = batch()
    options = {"label_smoothing": 0.1, "ignore_index": 3, "reduction": reduction}
    module = loss.build(weight, **options).double()
    torch.testing.assert_close(module(logits, target), loss(logits, target, weight.float().double(), **options))
    plain = loss.build()
    assert plain.class_weight is None
    torch.testing.assert_close(plain(logits, target), loss(logits, target))


@every_loss
@pytest.mark.parametrize("scheme", ["effective", "inverse", "inverse_sqrt", "uniform"])
def test_class_balanced_loss_is_the_loss_with_class_weights(loss, scheme):
    logits, target, _ = batch()
    criterion = ClassBalancedLoss(COUNTS, loss.name, scheme=scheme, normalize="samples", **loss.options)
    weights = torch.tensor(class_weights(COUNTS, scheme, normalize="samples"), dtype=torch.float32)
    torch.testing.assert_close(criterion(logits, target), loss(logits, target, weights))


@every_loss
def test_beta_zero_and_equal_counts_are_no_weighting(loss):
    logits, target, _ = batch()
    for counts, beta in ((COUNTS, 0), ([7] * 5, 0.999)):
        criterion = ClassBalancedLoss(counts, loss.name, beta, **loss.options)
        torch.testing.assert_close(criterion(logits, target), loss.build(counts=counts)(logits, target))


def test_the_focal_loss_is_that_of_the_paper_on_inaturalist_by_default():
    logits, target, _ = batch()
    torch.testing.assert_close(
        ClassBalancedLoss(COUNTS, "focal")(logits, target),
        ClassBalancedLoss(COUNTS, "focal", 0.999, 0.5)(logits, target),
    )


def test_every_loss_can_be_class_balanced():
    assert {loss.name for loss in LOSSES} == set(longtail.losses.LOSSES)


@every_loss
def test_modules_take_options_and_defaults_from_their_functions(loss):
    function = inspect.signature(loss.function).parameters
    module = inspect.signature(loss.module).parameters
    assert set(module) == set(function) - {"logits", "target"} | {"device", "dtype"}
    assert all(module[name].default == function[name].default for name in set(module) & set(function))
    built = loss.module(counts=COUNTS) if "counts" in function else loss.module()
    for name, parameter in module.items():
        if name not in ("class_weight", "counts", "device", "dtype"):
            assert getattr(built, name) == parameter.default
            assert f"    {name}" in loss.module.__doc__
    assert f"longtail.functional.{loss.function.__name__}" in loss.module.__doc__
    assert ".. math:: L(z" in loss.module.__doc__
    assert f'``"{loss.name}"``' in ClassBalancedLoss.__doc__


def test_balanced_softmax_is_logit_adjustment_with_tau_one():
    logits, target, _ = batch()
    expected = longtail.functional.logit_adjusted_cross_entropy(logits, target, counts=COUNTS, tau=1.0)
    torch.testing.assert_close(longtail.BalancedSoftmaxLoss(counts=COUNTS).double()(logits, target), expected)
    with pytest.raises(TypeError, match=r"BalancedSoftmaxLoss\(\) needs counts=…, the samples per class"):
        longtail.BalancedSoftmaxLoss(COUNTS)


@pytest.mark.parametrize(
    "build", [ClassBalancedLoss, lambda *args, **options: ClassBalanced(F.cross_entropy, *args, **options)]
)
def test_how_the_weights_were_made_is_kept(build):
    criterion = build(COUNTS, beta=0.99, normalize="samples")
    assert (criterion.scheme, criterion.beta, criterion.normalize, criterion.absent) == (
        "effective",
        0.99,
        "samples",
        "error",
    )
    assert criterion.counts.tolist() == COUNTS
    again = class_weights(criterion.counts, criterion.scheme, criterion.beta, criterion.normalize, criterion.absent)
    torch.testing.assert_close(again.float(), criterion.class_weight)
    assert build(COUNTS, scheme="inverse").beta is None
    assert build(COUNTS, beta=torch.tensor([0.5, 0.9, 0.9, 0.9, 0.75], dtype=torch.float64)).beta == (
        0.5,
        0.9,
        0.9,
        0.9,
        0.75,
    )
    assert build([30, 0, 2], absent="ignore").counts.tolist() == [30, 0, 2]
    half = criterion.half()
    assert (half.class_weight.dtype, half.counts.tolist()) == (torch.float16, COUNTS)


def test_balanced_softmax_is_known_by_its_name():
    criterion = ClassBalancedLoss(COUNTS, "balanced_softmax")
    logits, target, _ = batch(dtype=torch.float32)
    torch.testing.assert_close(criterion(logits, target), longtail.BalancedSoftmaxLoss(counts=COUNTS)(logits, target))
    assert criterion.loss == "logit_adjusted"


def test_default_weights_of_a_loss_are_those_of_its_table():
    for name, kind in longtail.losses.LOSSES.items():
        assert ClassBalancedLoss(COUNTS, name).scheme == kind.scheme
        assert ClassBalancedLoss(COUNTS, name, 0.9).scheme == "effective"
    assert ClassBalancedLoss(COUNTS, "logit_adjusted").class_weight.tolist() == [1] * 5


def test_a_checkpoint_with_weights_only_can_be_loaded():
    """Those of longtail 0.1 have no counts."""
    criterion = ClassBalancedLoss(COUNTS)
    nn.Sequential(criterion).load_state_dict({"0.class_weight": torch.ones(5)})
    assert criterion.class_weight.tolist() == [1] * 5
    assert criterion.counts.tolist() == COUNTS


@every_loss
def test_modules_are_built_on_a_device_and_in_a_dtype(loss):
    for build in (
        lambda **place: loss.build([1.0] * 5, **place),
        lambda **place: ClassBalancedLoss(COUNTS, loss.name, **place),
        lambda **place: ClassBalancedLoss(torch.tensor(COUNTS), loss.name, **place),
        lambda **place: ClassBalanced(F.cross_entropy, COUNTS, **place),
    ):
        with torch.device("meta"):
            on_meta = build()
        assert all(buffer.is_meta for buffer in on_meta.buffers())
        on_meta.to_empty(device="cpu").load_state_dict(build().state_dict())
        for name, buffer in build().named_buffers():
            assert torch.equal(on_meta.get_buffer(name), buffer)
        assert all(buffer.is_meta for buffer in build(device="meta").buffers())
        assert build(dtype=torch.float64).class_weight.dtype == torch.float64
        assert build().class_weight.device.type == "cpu"
    with torch.device("meta"):
        assert longtail.NormedLinear(3, 2).weight.is_meta
    assert longtail.NormedLinear(3, 2, device="meta", dtype=torch.float64).weight.dtype == torch.float64


def test_counts_may_be_a_counter():
    counter = collections.Counter([2, 0, 0, 1, 0, 2])
    assert torch.equal(ClassBalancedLoss(counter).class_weight, ClassBalancedLoss([3, 1, 2]).class_weight)
    assert ClassBalancedLoss(counter, "ldam").counts.tolist() == [3, 1, 2]
    for masked in (np.ma.array([3, 1, 2], mask=[0, 1, 0]), np.ma.array([3.0, 1, 2], mask=[0, 1, 0])):
        with pytest.raises(ValueError, match=r"counts has masked elements: pass counts.compressed\(\)"):
            ClassBalancedLoss(masked)
        with pytest.raises(ValueError, match="class_weight has masked elements"):
            longtail.FocalLoss(masked)
    assert ClassBalancedLoss(np.ma.array([3, 1, 2])).counts.tolist() == [3, 1, 2]


def test_counts_are_constants():
    counts = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    assert not ClassBalancedLoss(counts, "ldam").counts.requires_grad
    assert not longtail.LDAMLoss(counts=counts).counts.requires_grad


@pytest.mark.parametrize("large", [10**30, 10**400], ids=["1e30", "1e400"])
def test_integers_that_no_tensor_holds_are_named(large):
    for call, argument in (
        (lambda: longtail.FocalLoss(gamma=large), "gamma"),
        (lambda: ClassBalancedLoss(COUNTS, "logit_adjusted", tau=large), "tau"),
        (lambda: longtail.FocalLoss(ignore_index=large), "ignore_index"),
        (lambda: ClassBalanced(F.cross_entropy, COUNTS, ignore_index=-large), "ignore_index"),
        (lambda: longtail.class_counts([0, 1], large), "num_classes"),
        (lambda: longtail.long_tailed_counts(5000, large, 10), "num_classes"),
        (lambda: longtail.long_tailed_counts(large, 10, 10), "max_count"),
        (lambda: longtail.NormedLinear(2, 2, scale=large), "scale"),
        (lambda: longtail.NormedLinear(large, 2), "in_features"),
        (lambda: longtail.NormedLinear(2, large), "out_features"),
        (lambda: ClassBalancedLoss([large, 2, 1]), "counts"),
        (lambda: longtail.LDAMLoss(counts=COUNTS, max_margin=large), "max_margin"),
        (lambda: ClassBalancedLoss(COUNTS, label_smoothing=large), "label_smoothing"),
        (lambda: ClassBalancedLoss(COUNTS, beta=large), "beta"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{argument} must ") as error:
            call()
        assert len(str(error.value)) < 120
    with pytest.raises(ValueError, match="tau must be at most"):
        longtail.LogitAdjustedCrossEntropy(counts=COUNTS, tau=1e308)


@pytest.mark.parametrize("name", ["logit_adjusted", "ldam"])
def test_counts_are_a_buffer_where_the_loss_itself_needs_them(name):
    criterion = ClassBalancedLoss(torch.tensor(COUNTS), name)
    assert list(criterion.state_dict()) == ["class_weight", "counts"]
    assert criterion.counts.tolist() == COUNTS
    assert criterion.to("meta").counts.device.type == "meta"
    for build in (lambda: ClassBalancedLoss([5, 0, 1], name, absent="ignore"), lambda: LDAMLoss(counts=[5, 0, 1])):
        with pytest.raises(ValueError, match="counts are 0 for class 1"):
            build()


@every_loss
def test_one_beta_per_class_weighs_each_class_by_its_own(loss):
    logits, target, _ = batch()
    betas = beta_from_prototypes([2000, 900, 100, 30, 30])
    weights = torch.tensor([1 / effective_number(*pair) for pair in zip(COUNTS, betas, strict=True)]).float()
    criterion = ClassBalancedLoss(COUNTS, loss.name, betas, **loss.options)
    torch.testing.assert_close(criterion.class_weight, weights / weights.mean())
    torch.testing.assert_close(criterion(logits, target), loss(logits, target, weights / weights.mean()))


def test_from_labels_and_from_dataset():
    labels = np.repeat(np.arange(3), [30, 10, 2])
    expected = ClassBalancedLoss([30, 10, 2], "focal", beta=0.9, gamma=1.0).class_weight
    options = {"loss": "focal", "beta": 0.9, "gamma": 1.0}
    dataset = torch.utils.data.TensorDataset(torch.zeros(42, 1), torch.tensor(labels))
    assert torch.equal(ClassBalancedLoss.from_labels(labels, **options).class_weight, expected)
    assert torch.equal(ClassBalancedLoss.from_dataset(dataset, **options).class_weight, expected)
    with_absent = ClassBalancedLoss.from_labels(labels, num_classes=4, absent="ignore", **options)
    assert torch.equal(with_absent.class_weight, torch.cat([expected, torch.zeros(1)]))


@pytest.mark.parametrize(
    "module",
    [
        ClassBalancedLoss(COUNTS, "focal", gamma=1.0, label_smoothing=0.1),
        ClassBalanced(nn.CrossEntropyLoss(reduction="none"), COUNTS, reduction="sum"),
        longtail.FocalLoss(torch.ones(5), gamma=3.0),
        longtail.SoftmaxCrossEntropy(),
        ClassBalancedLoss(COUNTS, "logit_adjusted", tau=0.5),
        LDAMLoss(counts=COUNTS),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_survive_copies(module):
    logits, target, _ = batch(dtype=torch.float32)
    expected = module(logits, target)
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    for twin in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(stream, weights_only=False),
    ):
        assert torch.equal(twin(logits, target), expected)
    assert "reduction" in repr(module)


def test_state_dict_carries_the_weights():
    saved = ClassBalancedLoss(COUNTS).state_dict()
    assert list(saved) == ["class_weight", "counts"]
    other = ClassBalancedLoss([1, 1, 1, 1, 1])
    other.load_state_dict(saved)
    assert torch.equal(other.class_weight, ClassBalancedLoss(COUNTS).class_weight)
    wrapped = ClassBalanced(nn.CrossEntropyLoss(reduction="none"), COUNTS)
    assert list(wrapped.state_dict()) == ["class_weight", "counts"]


@pytest.mark.parametrize(
    "module", [ClassBalancedLoss(COUNTS), ClassBalanced(nn.MultiMarginLoss(reduction="none"), COUNTS)]
)
def test_weights_follow_to(module):
    module = copy.deepcopy(module)
    assert module.double().class_weight.dtype == torch.float64
    assert module.to("meta").class_weight.device.type == "meta"
    parent = nn.Sequential(nn.Linear(2, 2), ClassBalancedLoss(COUNTS))
    assert parent.to(torch.bfloat16)[1].class_weight.dtype == torch.bfloat16


def test_a_weight_given_is_a_copy():
    weight = torch.ones(5)
    module = longtail.FocalLoss(weight)
    weight.zero_()
    assert module.class_weight.tolist() == [1.0] * 5


def test_options_are_attributes_that_can_be_changed():
    logits, target, _ = batch(dtype=torch.float32)
    criterion = ClassBalancedLoss(COUNTS, "focal", gamma=2.0)
    assert (criterion.gamma, criterion.reduction, criterion.loss) == (2.0, "mean", "focal")
    criterion.reduction, criterion.gamma, criterion.label_smoothing = "none", 1.0, 0.1
    expected = ClassBalancedLoss(COUNTS, "focal", gamma=1.0, reduction="none", label_smoothing=0.1)
    assert torch.equal(criterion(logits, target), expected(logits, target))
    criterion.reduction = "avg"
    with pytest.raises(ValueError, match="unknown reduction 'avg'"):
        criterion(logits, target)


def test_weights_are_kept_in_the_default_dtype_and_are_no_parameters():
    with_gradient = torch.ones(5, requires_grad=True)
    assert not longtail.FocalLoss(with_gradient).class_weight.requires_grad
    torch.set_default_dtype(torch.float64)
    try:
        assert ClassBalancedLoss(COUNTS).class_weight.tolist() == class_weights(COUNTS).tolist()
    finally:
        torch.set_default_dtype(torch.float32)


def test_forward_leaves_the_state_alone():
    module = ClassBalancedLoss(COUNTS, "sigmoid")
    before = module.class_weight.clone(), module.class_weight.data_ptr()
    logits, target, _ = batch(3, 5, 2, 2, dtype=torch.float32)
    module(logits, target).backward()
    assert torch.equal(module.class_weight, before[0])
    assert module.class_weight.data_ptr() == before[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ClassBalancedLoss(COUNTS, "focl"), "unknown loss 'focl': did you mean 'focal'"),
        (lambda: ClassBalancedLoss(COUNTS, "hinge"), "unknown loss 'hinge': choose from softmax, sigmoid, focal"),
        (
            lambda: ClassBalancedLoss(COUNTS, gamma=2.0),
            "gamma belongs to the focal and softmax_focal losses, and loss='softmax' has none, got gamma=2",
        ),
        (lambda: ClassBalancedLoss(COUNTS, "focal", clip=0.1), "clip belongs to the asymmetric loss, and loss='focal'"),
        (lambda: ClassBalancedLoss(COUNTS, "ldam", scale=0), "scale must be above 0, got 0"),
        (lambda: ClassBalancedLoss(COUNTS, "focal", gamma=-1), "gamma must be a finite number >= 0, got -1"),
        (lambda: longtail.FocalLoss(gamma=-1), "gamma must be a finite number >= 0, got -1"),
        (lambda: ClassBalancedLoss(COUNTS, beta=2), r"beta must be in \[0, 1\], got 2"),
        (lambda: ClassBalancedLoss([3, 0]), "counts are 0 for class 1"),
        (lambda: ClassBalancedLoss(COUNTS, reduction="men"), "unknown reduction 'men': did you mean 'mean'"),
        (lambda: ClassBalancedLoss(COUNTS, label_smoothing=-0.1), r"label_smoothing must be in \[0, 1\], got -0.1"),
        (lambda: longtail.FocalLoss(torch.ones(2, 2)), r"class_weight must have shape \(C,\), got \(2, 2\)"),
        (lambda: longtail.FocalLoss(2.0), r"class_weight must have shape \(C,\), got \(\); γ is gamma=…"),
        (lambda: ClassBalanced(nn.CrossEntropyLoss(), COUNTS), "build it with reduction=\"none\", not 'mean'"),
        (
            lambda: ClassBalancedLoss(COUNTS)(torch.zeros(2, 3), torch.zeros(2).long()),
            r"has shape \(5,\), but logits of shape \(2, 3\)",
        ),
    ],
)
def test_bad_options_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "weighted_mean"])
@pytest.mark.parametrize("kind", ["indices", "dense", "ignored", "soft", "multi-hot", "one loss per class"])
def test_the_term_around_a_loss_is_the_class_balanced_loss(kind, reduction):
    logits, target, _ = batch(6, 5, *((2, 3) if kind == "dense" else ()), dtype=torch.float32)
    if kind == "ignored":
        target[2] = -100
    elif kind == "soft":
        target = torch.softmax(torch.randn(6, 5), 1)
    elif kind in ("multi-hot", "one loss per class"):
        target = (torch.rand(6, 5) > 0.5).float()
    name, base = "softmax", nn.CrossEntropyLoss(reduction="none")
    if kind == "multi-hot":
        name, base = "sigmoid", lambda z, t: F.binary_cross_entropy_with_logits(z, t, reduction="none").sum(1)
    elif kind == "one loss per class":
        name, base = "sigmoid", nn.BCEWithLogitsLoss(reduction="none")
    wrapped = ClassBalanced(base, COUNTS, beta=0.99, reduction=reduction)
    direct = ClassBalancedLoss(COUNTS, name, beta=0.99, reduction=reduction)
    torch.testing.assert_close(wrapped(logits, target), direct(logits, target))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_term_around_a_loss_in_every_dtype(dtype):
    logits, target, _ = batch(dtype=dtype)
    value = ClassBalanced(nn.CrossEntropyLoss(reduction="none"), COUNTS)(logits, target)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(value, ClassBalancedLoss(COUNTS)(logits, target), rtol=1e-2, atol=1e-2)
    multi_hot = ClassBalanced(lambda z, t: (z * t).sum(1), COUNTS)(logits, F.one_hot(target, 5))
    assert multi_hot.dtype == value.dtype


def test_options_of_the_term_around_a_loss():
    logits, target, _ = batch(dtype=torch.float32)
    base, counts = nn.CrossEntropyLoss(reduction="none"), [30, 0, 20, 10, 5]
    options = {"scheme": "inverse_sqrt", "normalize": "samples", "absent": "ignore", "ignore_index": 3}
    torch.testing.assert_close(
        ClassBalanced(base, counts, **options)(logits, target), ClassBalancedLoss(counts, **options)(logits, target)
    )


def test_the_term_around_a_loss_of_ones_own():
    def distance(embeddings, target):
        return (embeddings - target.unsqueeze(1)).square().mean(1)

    criterion = ClassBalanced(distance, [90, 10], scheme="inverse")
    embeddings = torch.randn(4, 7, requires_grad=True)
    target = torch.tensor([0, 1, 1, 0])
    weights = torch.tensor([0.2, 1.8])[target]
    value = criterion(embeddings, target)
    torch.testing.assert_close(value, (weights * distance(embeddings, target)).mean())
    value.backward()
    assert embeddings.grad.any()


def test_the_term_around_a_loss_with_one_logit():
    def binary(logits, target):
        return F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")

    logits, target = torch.randn(8), torch.arange(8) % 2
    value = ClassBalanced(binary, [900, 100], scheme="inverse")(logits, target)
    torch.testing.assert_close(value, (torch.tensor([0.2, 1.8])[target] * binary(logits, target)).mean())
    with pytest.raises(TypeError, match=r"target of shape \(8,\) holds class indices, which must be integers"):
        ClassBalanced(binary, [900, 100])(logits, target.float())


def test_the_term_around_a_loss_with_several_inputs():
    def distance(pair, target):
        return (pair[0] - pair[1]).square().sum(1)

    pair, target = (torch.randn(3, 2), torch.randn(3, 2)), torch.tensor([0, 1, 1])
    value = ClassBalanced(distance, [900, 100], scheme="inverse")(pair, target)
    torch.testing.assert_close(value, (torch.tensor([0.2, 1.8])[target] * distance(pair, target)).mean())
    with pytest.raises(ValueError, match=r"target must be in \[0, 2\) .* got 2 at index 1"):
        ClassBalanced(distance, [900, 100])(pair, torch.tensor([0, 2, 1]))


def test_what_a_loss_says_of_ignored_samples_does_not_matter():
    criterion = ClassBalanced(lambda z, y: torch.where(y == -100, float("nan"), z[:, 0]), [2, 2])
    assert criterion(torch.ones(3, 2), torch.tensor([0, -100, 1])) == 1


def test_a_wrapped_loss_compiles():
    torch._dynamo.reset()
    criterion = ClassBalanced(nn.CrossEntropyLoss(reduction="none"), COUNTS)
    logits, target, _ = batch(dtype=torch.float32)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, target), criterion(logits, target))


@pytest.mark.parametrize(
    ("base", "target", "message"),
    [
        (F.cross_entropy, torch.tensor([0, 1, 2]), r"one loss per sample, of shape \(3,\) .* got \(\)"),
        (
            nn.CrossEntropyLoss(reduction="none"),
            torch.tensor([0, 9, 2]),
            r"target must be in \[0, 5\) .* got 9 at index 1",
        ),
        (
            nn.BCEWithLogitsLoss(reduction="none"),
            torch.ones(3, 4),
            r"target of shape \(3, 4\) does not fit counts of 5",
        ),
    ],
)
def test_wrapped_losses_that_do_not_fit_are_named(base, target, message):
    with pytest.raises(ValueError, match=message):
        ClassBalanced(base, COUNTS)(torch.zeros(3, 5), target)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ClassBalancedLoss(COUNTS, normalise="samples"),
        lambda: ClassBalancedLoss.from_labels([0, 1], "focal"),
        lambda: longtail.FocalLoss(alpha=0.25),
        lambda: longtail.SoftmaxCrossEntropy(gamma=1.0),
        lambda: longtail.FocalLoss(gamma="2"),
        lambda: longtail.FocalLoss(gamma=torch.tensor(2.0)),
        lambda: ClassBalancedLoss(COUNTS, beta="0.9"),
        lambda: ClassBalancedLoss(COUNTS, label_smoothing="0.1"),
        lambda: longtail.SoftmaxCrossEntropy(ignore_index=1.5),
        lambda: ClassBalanced(nn.CrossEntropyLoss(reduction="none"), COUNTS, ignore_index=1.5),
    ],
)
def test_options_that_do_not_exist_or_are_no_numbers_are_refused_at_once(call):
    with pytest.raises(TypeError, match=r"unexpected keyword|positional argument|must be (a number|an integer)"):
        call()


def test_repr_says_where_the_weights_come_from():
    assert "scheme='effective', beta=0.99, normalize='classes', num_classes=5, gamma=2.0" in repr(
        ClassBalancedLoss(COUNTS, "focal", 0.99, 2.0)
    )
    assert "scheme='inverse', normalize='samples'" in repr(
        ClassBalancedLoss(COUNTS, scheme="inverse", normalize="samples")
    )
    assert "beta=0.9, " in repr(ClassBalancedLoss(COUNTS, beta=np.float32(0.9)))
    assert "beta=0.9, " in repr(ClassBalancedLoss(COUNTS, beta=torch.tensor(0.9)))
    assert "beta=one per class" in repr(ClassBalanced(F.cross_entropy, COUNTS, [0.9] * 5))
    assert "base_loss=<function cross_entropy" in repr(ClassBalanced(F.cross_entropy, COUNTS))


def test_weights_that_make_no_sense_are_named():
    for wrong in ("balanced", {0: 1.0}, None):
        with pytest.raises(TypeError, match="class_weight must be one number per class"):
            longtail.FocalLoss([1.0, wrong] if wrong is None else wrong)
    for wrong in (float("nan"), -1.0):
        with pytest.raises(ValueError, match=f"class_weight must be finite and >= 0, got {wrong}"):
            longtail.FocalLoss([1.0, wrong])
    with pytest.raises(TypeError, match="target must be a tensor, got list"):
        ClassBalanced(F.cross_entropy, COUNTS)(torch.zeros(1, 5), [0])
    with pytest.raises(TypeError, match="ignore_index must be an integer, got None"):
        longtail.FocalLoss(ignore_index=None)(torch.zeros(1, 5), torch.tensor([0]))


def test_a_base_that_cannot_be_called_is_named():
    with pytest.raises(TypeError, match="base_loss must be callable, got 'softmax'"):
        ClassBalanced("softmax", COUNTS)


@pytest.mark.parametrize("name", ["logit_adjusted", "ldam"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_large_class_outlives_half_precision(name, dtype):
    counts = [1_281_167, 70_000, 300]
    logits, target = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 1.0]]), torch.tensor([2, 0])
    exact = ClassBalancedLoss(counts, name, scheme="uniform")
    narrow = ClassBalancedLoss(counts, name, scheme="uniform").to(dtype)
    assert narrow.counts.tolist() == counts
    assert narrow.to("meta").to_empty(device="cpu").counts.shape == (3,)
    narrow = ClassBalancedLoss(counts, name, scheme="uniform").to(dtype)
    torch.testing.assert_close(narrow(logits, target), exact(logits, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_large_class_outlives_a_narrow_default(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        criterion = longtail.LogitAdjustedCrossEntropy(counts=[100_003, 1001, 11])
    finally:
        torch.set_default_dtype(before)
    assert criterion.counts.tolist() == [100_003, 1001, 11]


def test_weights_of_any_array_are_taken():
    weights = np.array([3.0, 2.0, 1.0])[::-1]
    assert longtail.FocalLoss(weights).class_weight.tolist() == [1, 2, 3]
    assert longtail.FocalLoss(weights.astype(">f8")).class_weight.tolist() == [1, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert longtail.FocalLoss(pd.Series([1.0, 2.0])).class_weight.tolist() == [1, 2]


def test_an_ignored_label_may_be_numpys():
    logits, target = torch.randn(3, 5), torch.tensor([0, 4, 255])
    expected = longtail.SoftmaxCrossEntropy(ignore_index=255)(logits, target)
    numpys = longtail.SoftmaxCrossEntropy(ignore_index=np.int64(255))
    torch.testing.assert_close(numpys(logits, target), expected)
    function = longtail.functional.softmax_cross_entropy
    torch.testing.assert_close(function(logits, target, ignore_index=np.int64(255)), expected)
