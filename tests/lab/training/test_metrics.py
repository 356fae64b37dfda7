"""Metrics beside scikit-learn's, and beside their definitions."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch.nn import functional as F

from longtail.lab.training.metrics import ClassifierMetrics, log_probabilities

COUNTS = np.array([500, 200, 100, 50, 20, 19, 3, 1])


def batch(count=400, classes=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return torch.randn(count, classes, generator=generator) + 2 * F.one_hot(labels, classes), labels


def measure(logits, labels, counts=COUNTS, loss="softmax", pieces=1):
    metrics = ClassifierMetrics(counts, loss)
    for some, their in zip(logits.tensor_split(pieces), labels.tensor_split(pieces), strict=True):
        metrics.update(some, their)
    return metrics.compute()


@pytest.mark.parametrize("pieces", [1, 7, 400, 900])
def test_all_metrics_are_those_of_independent_code_whatever_the_batches(pieces):
    logits, labels = batch()
    found = measure(logits, labels, pieces=pieces)
    predicted, probabilities = logits.argmax(1), logits.double().softmax(1).numpy()
    assert found["error"] == pytest.approx(100 * (predicted != labels).float().mean().item())
    top5 = sklearn_metrics.top_k_accuracy_score(labels, logits.numpy(), k=5)
    assert found["error_top5"] == pytest.approx(100 * (1 - top5))
    assert found["balanced_accuracy"] == pytest.approx(sklearn_metrics.balanced_accuracy_score(labels, predicted))
    assert found["recall"] == pytest.approx(sklearn_metrics.recall_score(labels, predicted, average=None))
    assert found["nll"] == pytest.approx(sklearn_metrics.log_loss(labels, probabilities), rel=1e-5)
    assert found["calibration_error"] == pytest.approx(calibration_error(probabilities, labels.numpy()), abs=1e-5)


def calibration_error(probabilities, labels, bins=15):
    """Guo et al. 2017, equation 3, as it is written."""
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    error = 0.0
    for number in range(bins):
        chosen = (sure > number / bins) & (sure <= (number + 1) / bins)
        if chosen.any():
            error += chosen.sum() / len(labels) * abs(right[chosen].mean() - sure[chosen].mean())
    return error


def test_groups_are_means_over_their_classes():
    logits, labels = batch()
    found = measure(logits, labels)
    recall = np.array(found["recall"])
    assert found["many"] == pytest.approx(recall[:2].mean())
    assert found["medium"] == pytest.approx(recall[2:5].mean())
    assert found["few"] == pytest.approx(recall[5:].mean())


def test_an_empty_group_and_a_class_without_test_images_are_null():
    logits, labels = batch(classes=3)
    found = measure(logits[labels < 2], labels[labels < 2], counts=np.array([500, 300, 5]))
    assert found["medium"] is found["few"] is found["recall"][2] is None
    assert found["balanced_accuracy"] == pytest.approx(np.mean(found["recall"][:2]))
    assert found["error_top5"] is None


def test_probabilities_of_sigmoid_losses_are_scaled_sigmoids():
    logits, labels = batch()
    sigmoids = logits.double().sigmoid()
    expected = sigmoids / sigmoids.sum(1, keepdim=True)
    assert log_probabilities(logits, "focal").exp().double() == pytest.approx(expected, abs=1e-6)
    assert measure(logits, labels, loss="sigmoid")["error"] == measure(logits, labels)["error"]
    extreme = log_probabilities(torch.tensor([[-1e4, -2e4]]), "sigmoid")
    assert extreme.isfinite().all()
    assert extreme[0, 0] == 0


def test_half_precision_logits_are_measured_in_float():
    logits, labels = batch()
    assert measure(logits.bfloat16(), labels)["nll"] == pytest.approx(measure(logits, labels)["nll"], rel=0.02)
