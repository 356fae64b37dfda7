"""Metrics beside scikit-learn's, and beside their definitions."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn_metrics
from torch.nn import functional as F

from longtail.lab.training.metrics import (
    DETAILS,
    ClassifierMetrics,
    balanced_accuracy_error,
    log_probabilities,
    rarest_quarter,
    wilson_interval,
    without_details,
)

COUNTS = np.array([500, 200, 100, 50, 20, 19, 3, 1])


def batch(count=400, classes=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return torch.randn(count, classes, generator=generator) + 2 * F.one_hot(labels, classes), labels


def measure(logits, labels, counts=COUNTS, loss="softmax", pieces=1):
    metrics = ClassifierMetrics(counts, loss)
    for some, their in zip(logits.tensor_split(pieces), labels.tensor_split(pieces), strict=True):
        metrics.update(some, their, int(metrics.total.sum()))
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
    assert found["precision"] == pytest.approx(sklearn_metrics.precision_score(labels, predicted, average=None))
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(labels, predicted, average=None))
    assert found["macro_f1"] == pytest.approx(sklearn_metrics.f1_score(labels, predicted, average="macro"))
    assert dense(found["confusion"], 8) == sklearn_metrics.confusion_matrix(labels, predicted).tolist()
    assert found["nll"] == pytest.approx(sklearn_metrics.log_loss(labels, probabilities), rel=1e-5)
    assert found["calibration_error"] == pytest.approx(calibration_error(probabilities, labels.numpy()), abs=1e-5)


@pytest.mark.parametrize("pieces", [1, 7])
def test_mistakes_are_the_most_confident_errors_the_rarest_class_first(pieces):
    logits, labels = batch()
    confidence, predicted = logits.softmax(1).max(dim=1)
    expected = []
    for label in np.argsort(COUNTS, kind="stable"):
        wrong = np.flatnonzero((labels.numpy() == label) & (predicted != labels).numpy())
        worst = sorted(wrong, key=lambda index: -confidence[index])[:3]
        expected += [[index, label, predicted[index].item()] for index in worst]
    found = measure(logits, labels, pieces=pieces)["mistakes"]
    assert [row[:3] for row in found] == expected
    assert [row[3] for row in found] == pytest.approx([confidence[row[0]].item() for row in found], abs=1e-4)


def test_the_standard_error_of_the_balanced_accuracy_shrinks_with_images_and_is_never_zero():
    recall = np.array([0.9, 0.5])
    few, many = (balanced_accuracy_error(recall, np.array([images] * 2)) for images in (10.0, 1e6))
    assert few > many
    assert many == pytest.approx(np.sqrt((recall * (1 - recall)).sum() / 1e6) / 2, rel=1e-3)
    assert balanced_accuracy_error(np.ones(2), np.full(2, 3.0)) > 0.1


def dense(confusion, classes):
    """A confusion matrix from its cells that are not empty."""
    matrix = np.zeros((classes, classes), dtype=int)
    for label, predicted, images in confusion:
        assert images > 0
        matrix[label, predicted] += images
    return matrix.tolist()


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


def test_the_rarest_quarter_is_there_in_every_data_set():
    logits, labels = batch()
    recall = np.array(measure(logits, labels)["recall"])
    for counts, chosen in (
        (COUNTS, [6, 7]),
        (COUNTS[::-1], [0, 1]),
        ([9, 9, 9, 5, 5, 5, 9, 9], [3, 4, 5]),  # of equally rare classes none is left out
        ([400] * 8, range(8)),
    ):
        found = measure(logits, labels, counts=np.array(counts))
        assert found["rarest_quarter"] == pytest.approx(recall[list(chosen)].mean())
    assert rarest_quarter(np.array([7, 3])).tolist() == [False, True]
    assert rarest_quarter(np.array([4, 3, 2, 1, 5])).tolist() == [False, False, True, True, False]


@given(
    st.integers(2, 6).flatmap(
        lambda classes: st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1).map(
            lambda pairs: (classes, pairs)
        )
    )
)
def test_any_predictions_have_the_metrics_of_scikit_learn(drawn):
    classes, pairs = drawn
    labels, predicted = torch.tensor(pairs).unbind(1)
    found = measure(5.0 * F.one_hot(predicted, classes), labels, counts=np.arange(1, classes + 1))
    every, tested = list(range(classes)), sorted(set(labels.tolist()))
    expected = sklearn_metrics.precision_recall_fscore_support(labels, predicted, labels=every, zero_division=0)
    precision, recall, f1, _ = (values.tolist() for values in expected)
    matrix = sklearn_metrics.confusion_matrix(labels, predicted, labels=every)
    assert dense(found["confusion"], classes) == matrix.tolist()
    macro = sklearn_metrics.f1_score(labels, predicted, labels=tested, average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(macro)
    for label in every:
        assert found["recall"][label] == (pytest.approx(recall[label]) if label in tested else None)
        assert found["f1"][label] == (pytest.approx(f1[label]) if label in tested else None)
        assert found["precision"][label] == (pytest.approx(precision[label]) if label in predicted else None)
        for name, images in (("recall", labels == label), ("precision", predicted == label)):
            right, among = int(((predicted == label) & (labels == label)).sum()), int(images.sum())
            limits = found[f"{name}_interval"][label]
            if not among:
                assert limits is None
                continue
            reference = stats.binomtest(right, among).proportion_ci(0.95, method="wilson")
            assert limits == pytest.approx([reference.low, reference.high], abs=1e-4)


def test_the_interval_is_that_of_the_formula():
    for right, images in ((0, 1), (1, 1), (8, 10), (333, 1000)):
        share, z = right / images, 1.959963984540054
        centre = (share + z**2 / (2 * images)) / (1 + z**2 / images)
        radius = z / (1 + z**2 / images) * math.sqrt(share * (1 - share) / images + z**2 / (4 * images**2))
        (limits,) = wilson_interval(np.array([float(right)]), np.array([float(images)]))
        assert limits == pytest.approx([centre - radius, centre + radius], abs=1e-12)


def test_thousands_of_classes_have_a_short_result():
    """As many classes and test images as iNaturalist 2018: the matrix has 66 million cells."""
    classes, images = 8142, 24426
    generator = torch.Generator().manual_seed(0)
    labels, predicted = torch.randint(0, classes, (2, images), generator=generator)
    metrics = ClassifierMetrics(np.arange(classes) + 1, "softmax")
    for some, their in zip(predicted.split(512), labels.split(512), strict=True):
        metrics.update(F.one_hot(some, classes).float(), their)
    found = metrics.compute()
    assert sum(row[2] for row in found["confusion"]) == images
    assert len(json.dumps(found)) < 2e6
    assert len(json.dumps(without_details(found))) < 3e5
    assert set(found) - set(without_details(found)) == set(DETAILS)


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
