"""What public implementations of this loss get wrong, one test each; the naive form is run beside it where it runs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from longtail import ClassBalancedLoss, class_counts, class_weights, effective_number, functional, sample_weights
from longtail.schedules import DeferredReweighting
from tests.loss_table import every_loss, every_name
from tests.reference.losses import weighted_loss

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
LABELS = torch.tensor([0, 2])


def test_01_the_sigmoid_loss_runs():
    weights = class_weights([50, 5, 5], beta=0.9)
    expected, _ = weighted_loss("sigmoid", LOGITS.double().numpy(), LABELS.numpy(), weights)
    assert ClassBalancedLoss([50, 5, 5], "sigmoid", beta=0.9)(LOGITS, LABELS).item() == pytest.approx(
        expected, rel=1e-6
    )


def test_02_softmax_is_cross_entropy_and_not_binary_cross_entropy_of_probabilities():
    naive = F.binary_cross_entropy(LOGITS.softmax(1), F.one_hot(LABELS, 3).float())
    true = F.cross_entropy(LOGITS, LABELS)
    assert abs(naive - true) > 0.1
    torch.testing.assert_close(functional.softmax_cross_entropy(LOGITS, LABELS), true)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(functional.softmax_cross_entropy(LOGITS, LABELS), true)


def test_03_a_hard_positive_has_a_loss_and_a_gradient():
    def peers(z, gamma):  # exp(-γ y z - γ log(1 + exp(-z))) · BCE, with y = 1
        return torch.exp(-gamma * z - gamma * torch.log(1 + torch.exp(-z))) * F.softplus(-z)

    z = torch.tensor([-100.0], requires_grad=True)
    peers(z, 0.5).sum().backward()
    assert not z.grad.isfinite().all()
    for dtype, size in ((torch.float32, 100.0), (torch.bfloat16, 100.0), (torch.float16, 12.0)):
        logits = torch.tensor([[-size]], dtype=dtype, requires_grad=True)
        value = functional.focal_loss(logits, torch.tensor([0]), gamma=0.5)
        value.backward()
        assert value.item() == pytest.approx(size, rel=1e-4)
        assert logits.grad.item() == pytest.approx(-1, rel=1e-3)


def test_04_gamma_below_one_has_a_gradient_at_certainty():
    z = torch.tensor([30.0], requires_grad=True)
    p = z.sigmoid()
    (-((1 - p) ** 0.5) * p.log()).sum().backward()
    assert z.grad.isnan().all()
    logits = torch.tensor([[30.0]], requires_grad=True)
    functional.focal_loss(logits, torch.tensor([0]), gamma=0.5).backward()
    assert logits.grad.isfinite().all()


def test_04_so_has_the_focal_loss_over_the_softmax():
    z = torch.tensor([[30.0, 0.0]], requires_grad=True)
    p = z.softmax(1)[:, 0]
    (-((1 - p) ** 0.5) * p.log()).sum().backward()
    assert z.grad.isnan().any()
    for target in (torch.tensor([0]), torch.tensor([[1.0, 0.0]])):
        logits = torch.tensor([[30.0, 0.0]], requires_grad=True)
        value = functional.softmax_focal_loss(logits, target, gamma=0.5)
        value.backward()
        assert value.item() == pytest.approx(np.exp(-45), rel=1e-5)
        assert logits.grad.tolist() == [[pytest.approx(-1.5 * np.exp(-45), rel=1e-5), pytest.approx(1.5 * np.exp(-45))]]


def test_05_nor_that_of_the_softmax_focal_loss():
    weight = torch.tensor([0.2, 0.8, 2.0])
    rows = functional.softmax_focal_loss(LOGITS, LABELS, weight, gamma=2.0, reduction="none")
    p = LOGITS.softmax(1).gather(1, LABELS[:, None])[:, 0]
    torch.testing.assert_close(rows, weight[LABELS] * (1 - p) ** 2 * -p.log())


def test_05_the_weight_multiplies_the_focal_loss_and_does_not_change_its_modulator():
    weight = torch.tensor([0.2, 0.8, 2.0])
    rows = functional.focal_loss(LOGITS, LABELS, weight, gamma=2.0, reduction="none")
    torch.testing.assert_close(
        rows, weight[LABELS] * functional.focal_loss(LOGITS, LABELS, gamma=2.0, reduction="none")
    )
    bce = F.binary_cross_entropy_with_logits(LOGITS, F.one_hot(LABELS, 3).float(), reduction="none")
    weighted = weight[LABELS][:, None] * bce
    inside = ((1 - torch.exp(-weighted)) ** 2 * weighted).sum(1)
    assert not torch.allclose(rows, inside, rtol=0.1)


def test_06_resampling_changes_what_a_loader_yields():
    labels = torch.tensor([0] * 950 + [1] * 50)
    weights = sample_weights(labels, class_weights(class_counts(labels), "inverse"))
    sampler = WeightedRandomSampler(weights, 2000, generator=torch.Generator().manual_seed(0))
    drawn = torch.cat([y for _, y in DataLoader(TensorDataset(labels, labels), batch_size=100, sampler=sampler)])
    assert drawn.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_06_deferred_weights_go_on_for_ever_and_are_class_balanced_ones():
    """The table of two rows of LDAM-DRW, ``cifar_train.py``, ends at twice the epoch."""
    counts = np.array([5000, 500, 50])

    def theirs(epoch):
        index = epoch // 160
        betas = [0, 0.9999]
        weights = (1.0 - betas[index]) / (1.0 - np.power(betas[index], counts))
        return weights / np.sum(weights) * len(counts)

    criterion = DeferredReweighting(ClassBalancedLoss(counts, beta=0.9999), epoch=160)
    for epoch in (0, 159, 160, 319):
        criterion.set_epoch(epoch)
        assert criterion.class_weight.tolist() == pytest.approx(theirs(epoch))
    for epoch in (320, 1000):
        with pytest.raises(IndexError):
            theirs(epoch)
        criterion.set_epoch(epoch)
        assert criterion.class_weight.tolist() == pytest.approx(theirs(319))


@every_loss
def test_07_the_mean_divides_by_samples_so_that_batches_of_one_keep_their_weights(loss):
    weight = torch.tensor([0.2, 0.8, 2.0])
    batch = loss(LOGITS, LABELS, weight)
    singles = [loss(LOGITS[i : i + 1], LABELS[i : i + 1], weight) for i in range(2)]
    torch.testing.assert_close(torch.stack(singles).mean(), batch)
    cancelled = F.cross_entropy(LOGITS[:1], LABELS[:1], weight)
    torch.testing.assert_close(cancelled, F.cross_entropy(LOGITS[:1], LABELS[:1]))


@every_loss
def test_08_smoothing_is_weighted_by_the_samples_own_class(loss):
    weight = torch.tensor([0.1, 0.1, 50.0])
    rows = loss(LOGITS, LABELS, weight, label_smoothing=0.1, reduction="none")
    plain = loss(LOGITS, LABELS, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(rows, weight[LABELS] * plain)


def test_08_pytorch_weighs_the_smoothing_of_a_frequent_class_by_the_rare_one():
    weight, sure = torch.tensor([0.1, 0.1, 50.0]), torch.tensor([[9.0, 0.0, 0.0]])
    theirs = F.cross_entropy(sure, torch.tensor([0]), weight, label_smoothing=0.1, reduction="sum")
    ours = functional.softmax_cross_entropy(sure, torch.tensor([0]), weight, label_smoothing=0.1)
    assert theirs > 100 * ours


@pytest.mark.parametrize("function", [functional.sigmoid_cross_entropy, functional.focal_loss])
def test_09_sigmoid_losses_are_summed_over_classes(function):
    narrow = function(torch.zeros(4, 3), torch.zeros(4).long())
    wide = function(torch.zeros(4, 300), torch.zeros(4).long())
    torch.testing.assert_close(wide, 100 * narrow)


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@every_name
def test_10_a_step_neither_converts_weights_nor_builds_one_hot_targets(name, monkeypatch):
    criterion = ClassBalancedLoss([50, 5, 5], name)
    monkeypatch.setattr(np, "asarray", None)  # no NumPy in the step
    logits = LOGITS.clone().requires_grad_()
    with Recorder() as recorder:
        criterion(logits, LABELS).backward()
    assert {"index_select", "scatter", "scatter_", "nll_loss_forward"} & set(recorder.names)
    assert not {"one_hot", "_to_copy", "lift_fresh", "zeros", "zeros_like", "repeat"} & set(recorder.names)


def test_11_bad_and_extreme_arguments():
    with pytest.raises(ValueError, match="unknown loss 'cross_entropy'"):
        ClassBalancedLoss([1, 2], "cross_entropy")
    with pytest.raises(ValueError, match="counts are 0 for class 0"):
        ClassBalancedLoss([0, 2])
    assert ClassBalancedLoss([1, 3], beta=1).class_weight.tolist() == [1.5, 0.5]
    multi_label = ClassBalancedLoss([5, 3, 1], "focal")(LOGITS, torch.tensor([[1, 1, 0], [0, 0, 0]]))
    assert multi_label.isfinite()


@pytest.mark.parametrize(("beta", "relative"), [(0.9999, 1e-4), (0.999999, 1e-2), (1 - 1e-8, 0.99)])
def test_12_effective_numbers_are_float64_to_the_last_digits(beta, relative):
    n = 10
    in_float32 = (1 - np.float32(beta) ** np.float32(n)) / (1 - beta)
    exact = sum(beta**j for j in range(n))
    assert abs(in_float32 - exact) > relative * exact
    assert effective_number(n, beta) == pytest.approx(exact, rel=1e-14)


@every_name
def test_19_an_evaluation_without_gradients_stays_one(name):
    logits = LOGITS.clone().requires_grad_()
    with torch.no_grad():
        assert not ClassBalancedLoss([50, 5, 5], name)(logits, LABELS).requires_grad
        assert not torch.is_grad_enabled()
