import math

import numpy as np
import pytest
import torch
from torch import nn

from longtail import NormedLinear, adjust_logits, class_counts, functional, init_classifier_bias_, param_groups


@pytest.mark.parametrize("classes", [2, 10, 8142])
def test_every_class_starts_at_its_prior(classes):
    head = init_classifier_bias_(nn.Linear(4, classes))
    torch.testing.assert_close(head.bias.sigmoid(), torch.full((classes,), 1 / classes))
    assert head.bias[0].item() == pytest.approx(-math.log(classes - 1), abs=1e-6)


def test_priors_given():
    head = init_classifier_bias_(nn.Conv2d(4, 3, 1), prior=torch.tensor([0.5, 0.1, 0.01]))
    torch.testing.assert_close(head.bias.sigmoid(), torch.tensor([0.5, 0.1, 0.01]))
    init_classifier_bias_(head, prior=0.01)
    torch.testing.assert_close(head.bias.sigmoid(), torch.full((3,), 0.01))


@pytest.mark.parametrize("loss", [functional.sigmoid_cross_entropy, functional.focal_loss])
def test_the_first_loss_is_small_with_the_prior_and_huge_without(loss):
    torch.manual_seed(0)
    head, classes = nn.Linear(16, 1000), 1000
    nn.init.normal_(head.weight, std=0.01)
    nn.init.zeros_(head.bias)
    features, target = torch.randn(64, 16), torch.randint(classes, (64,))
    without = loss(head(features), target).item()
    with_prior = loss(init_classifier_bias_(head)(features), target).item()
    assert without > 400
    assert with_prior < 10


@pytest.mark.parametrize(
    ("head", "prior", "message"),
    [
        (nn.Linear(4, 3, bias=False), None, r"head must have a bias of shape \(C,\), Linear has none"),
        (NormedLinear(4, 3), None, r"head must have a bias of shape \(C,\), NormedLinear has none"),
        (nn.ReLU(), None, r"head must have a bias of shape \(C,\), ReLU has none"),
        (nn.Linear(4, 1), None, "prior is needed for a head with one output"),
        (nn.Linear(4, 3), 0.0, r"prior must be in \(0, 1\), got 0"),
        (nn.Linear(4, 3), 1.0, r"prior must be in \(0, 1\), got 1"),
        (nn.Linear(4, 3), float("nan"), r"prior must be in \(0, 1\), got nan"),
        (nn.Linear(4, 3), torch.tensor([0.1, 0.1]), r"prior has shape \(2,\) but the head's bias has shape \(3,\)"),
    ],
)
def test_bad_priors_are_named(head, prior, message):
    before = [parameter.clone() for parameter in head.parameters()]
    with pytest.raises(ValueError, match=message):
        init_classifier_bias_(head, prior)
    assert all(torch.equal(a, b) for a, b in zip(before, head.parameters(), strict=True))


@pytest.mark.parametrize("prior", ["0.1", 10**30])
def test_priors_that_are_no_numbers_are_named(prior):
    with pytest.raises(TypeError, match="prior must be a number or one per class, got"):
        init_classifier_bias_(nn.Linear(4, 3), prior)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.fc = nn.Linear(4, 5)


@pytest.mark.parametrize("by_name", [True, False])
def test_only_the_last_bias_goes_without_decay(by_name):
    model = Net()
    decayed, free = param_groups(model, 2e-4, head="fc" if by_name else model.fc)
    assert (decayed["weight_decay"], free["weight_decay"]) == (2e-4, 0.0)
    assert free["params"] == [model.fc.bias]
    assert len(decayed["params"]) + 1 == len(list(model.parameters()))
    optimizer = torch.optim.SGD(param_groups(model, 1.0, head="fc"), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer.step()
    still = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert still == {"fc.bias", "body.1.bias"}  # that of the batch-norm is zero, so decay leaves it there


def test_frozen_parameters_are_left_out():
    model = Net()
    model.body.requires_grad_(False)
    decayed, free = param_groups(model, 0.1, head="fc")
    assert (decayed["params"], free["params"]) == ([model.fc.weight], [model.fc.bias])
    model.fc.bias.requires_grad_(False)
    assert torch.optim.SGD(param_groups(model, 0.1, head="fc"), lr=1).param_groups[1]["params"] == []


def test_bad_heads_are_named():
    with pytest.raises(ValueError, match="head 'classifier' is not a module of Net"):
        param_groups(Net(), 0.1, head="classifier")
    with pytest.raises(ValueError, match="the bias of head is not among the parameters of model"):
        param_groups(Net(), 0.1, head=nn.Linear(4, 5))
    with pytest.raises(TypeError, match="head must be a module or its name, got None"):
        param_groups(Net(), 0.1, head=None)
    with pytest.raises(ValueError, match="weight_decay must be a finite number >= 0, got -1"):
        param_groups(Net(), -1, head="fc")


def test_a_head_without_bias_has_nothing_to_leave_out():
    for head in (NormedLinear(4, 5), nn.Linear(4, 5, bias=False)):
        model = Net()
        model.fc = head
        decayed, free = param_groups(model, 0.1, head="fc")
        assert (len(decayed["params"]), free["params"]) == (len(list(model.parameters())), [])
    with pytest.raises(ValueError, match=r"head must have a bias of shape \(C,\), ReLU has none"):
        param_groups(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), 0.1, head="1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_normed_head_gives_cosines(dtype):
    head, features = NormedLinear(64, 5).to(dtype), torch.randn(8, 64).to(dtype)
    cosines = torch.cosine_similarity(features.double()[:, None], head.weight.double(), dim=2)
    precision = {"rtol": 0, "atol": 1e-5 if dtype.itemsize > 2 else 2e-2}
    torch.testing.assert_close(head(features).double(), cosines, **precision)
    torch.testing.assert_close(head(1000 * features).double(), cosines, **precision)
    scaled = NormedLinear(64, 5, scale=30).to(dtype)
    scaled.load_state_dict(head.state_dict())
    torch.testing.assert_close(scaled(features), 30 * head(features))
    assert list(head.state_dict()) == ["weight"]
    assert not head(torch.zeros(1, 64, dtype=dtype)).any()


def test_a_normed_head_starts_with_directions_and_learns():
    torch.manual_seed(0)
    head, features = NormedLinear(16, 3), torch.randn(60, 16)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(3))
    target, optimizer = torch.arange(60) % 3, torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        loss = functional.ldam_loss(head(features), target, counts=[50, 9, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_adjusted_logits_undo_the_prior():
    """Bayes' rule: from the posterior under one prior to that under equal priors."""
    rng = np.random.default_rng(0)
    likelihood = rng.random((6, 3))
    counts = class_counts(np.repeat(np.arange(3), [80, 15, 5]))
    posterior = likelihood * counts / (likelihood * counts).sum(1, keepdims=True)
    expected = likelihood / likelihood.sum(1, keepdims=True)
    for adjusted in (adjust_logits(np.log(posterior), counts), adjust_logits(torch.tensor(np.log(posterior)), counts)):
        assert isinstance(adjusted, np.ndarray | torch.Tensor)
        np.testing.assert_allclose(torch.as_tensor(adjusted).softmax(1).numpy(), expected)


def test_adjusting_after_training_mirrors_adjusting_in_it():
    logits, target = torch.randn(6, 3, 2, dtype=torch.float64), torch.arange(12).view(6, 2) % 3
    adjusted = adjust_logits(logits, [80, 15, 5], tau=0.7)
    loss = functional.logit_adjusted_cross_entropy(adjusted, target, counts=[80, 15, 5], tau=0.7)
    torch.testing.assert_close(loss, functional.softmax_cross_entropy(logits, target))
    torch.testing.assert_close(adjust_logits(logits[0, :, 0], [80, 15, 5], tau=0.7), adjusted[0, :, 0])
    torch.testing.assert_close(adjust_logits(logits, [80, 15, 5], tau=0), logits)
    assert adjust_logits(logits.half(), [80, 15, 5]).dtype == torch.float16


@pytest.mark.parametrize(
    ("logits", "counts", "tau", "error", "message"),
    [
        (torch.zeros(2, 3), [3, 0, 1], 1.0, ValueError, "counts are 0 for class 1"),
        (torch.zeros(2, 3), [3, 1], 1.0, ValueError, r"counts have shape \(2,\), but logits of shape \(2, 3\)"),
        (torch.zeros(2, 3), [3, 1, 1], -1.0, ValueError, "tau must be a finite number >= 0, got -1"),
        (torch.zeros(2, 3).long(), [3, 1, 1], 1.0, TypeError, "logits must be floating point, got torch.int64"),
        (torch.tensor(1.0), [3], 1.0, ValueError, "got a scalar"),
    ],
)
def test_logits_that_cannot_be_adjusted_are_named(logits, counts, tau, error, message):
    with pytest.raises(error, match=message):
        adjust_logits(logits, counts, tau)


def test_arrays_of_any_order_are_taken():
    prior = np.array([0.1, 0.2, 0.3])[::-1]
    head = init_classifier_bias_(nn.Linear(4, 3), prior)
    np.testing.assert_allclose(head.bias.detach().sigmoid(), prior, rtol=1e-6)
    logits = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(adjust_logits(logits[::-1], [90, 10]), adjust_logits(logits, [90, 10])[::-1])


def test_a_model_that_is_no_module_is_named():
    with pytest.raises(TypeError, match="model must be a module, got None"):
        param_groups(None, 1e-4, "fc")
