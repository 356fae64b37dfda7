import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from longtail import (
    beta_from_prototypes,
    class_weight_dict,
    class_weights,
    effective_number,
    sample_weights,
)
from tests.steps import count_steps

SCHEMES = ("effective", "inverse", "inverse_sqrt", "uniform")
BETAS = [0.0, 1e-300, 1e-8, 0.1, 0.4999, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1 - 1e-8, 1 - 1e-10, 1 - 1e-12, 1.0]
COUNTS = [1, 2, 3, 10, 1000, 10**6, 10**9]

counts_lists = hnp.arrays(np.int64, st.integers(1, 12), elements=st.integers(1, 10**6))
betas = st.one_of(st.floats(0, 1), st.sampled_from(BETAS))


def exact(n, beta):
    """(1 - βⁿ) / (1 - β) to 60 digits, β the float64 number that it is."""
    with mpmath.workdps(60):
        b = mpmath.mpf(beta)
        return mpmath.mpf(n) if b == 1 else (1 - b ** mpmath.mpf(n)) / (1 - b)


def assert_exact(n, beta):
    value, truth = float(effective_number(n, beta)), exact(n, beta)
    assert abs(mpmath.mpf(value) - truth) <= 1e-12 * truth, (n, beta, value, truth)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("n", COUNTS)
def test_effective_number_to_twelve_digits(n, beta):
    assert_exact(n, beta)


@given(st.integers(1, 10**9), betas)
def test_effective_number_to_twelve_digits_anywhere(n, beta):
    assert_exact(n, beta)


def test_limits_of_the_effective_number():
    assert effective_number([1, 5, 1000], 0).tolist() == [1, 1, 1]
    assert effective_number([1, 5, 1000], 1).tolist() == [1, 5, 1000]
    assert effective_number([0, 0, 0], [0, 0.5, 1]).tolist() == [0, 0, 0]


def test_effective_number_takes_one_beta_per_class():
    both = effective_number([100, 100], [0.9, 0.999])
    assert both.tolist() == [effective_number(100, 0.9), effective_number(100, 0.999)]


def test_numpy_in_numpy_out_tensor_in_tensor_out():
    counts = torch.tensor([10, 100], dtype=torch.int32)
    for function in (lambda n: effective_number(n, 0.9), class_weights, lambda n: beta_from_prototypes(n)):
        from_numpy, from_tensor = function(counts.numpy()), function(counts)
        assert isinstance(from_numpy, np.ndarray)
        assert isinstance(from_tensor, torch.Tensor)
        assert from_tensor.dtype == torch.float64
        assert from_tensor.tolist() == from_numpy.tolist()


def test_beta_from_prototypes():
    assert beta_from_prototypes(1) == 0
    assert beta_from_prototypes(1000) == 0.999
    assert beta_from_prototypes(float("inf")) == 1
    assert beta_from_prototypes([1, 10]).tolist() == [0, 0.9]
    with pytest.raises(ValueError, match=r"prototypes must be at least 1, got 0.5"):
        beta_from_prototypes(0.5)


def test_a_million_classes_take_as_many_steps_as_ten():
    few, many = (np.random.default_rng(0).integers(1, 10**6, classes) for classes in (10, 10**6))
    class_weights(few, beta=0.9999)  # NumPy 1.26 takes a few steps more at its first calls
    assert count_steps(class_weights, many, "effective", 0.9999) == count_steps(class_weights, few, "effective", 0.9999)
    assert class_weights(many, beta=0.9999).sum() == pytest.approx(10**6)


@given(counts_lists, st.sampled_from(SCHEMES), betas)
def test_normalisation(counts, scheme, beta):
    over_classes = class_weights(counts, scheme, beta)
    over_samples = class_weights(counts, scheme, beta, normalize="samples")
    assert over_classes.sum() == pytest.approx(len(counts))
    assert (counts * over_samples).sum() == pytest.approx(counts.sum())
    np.testing.assert_allclose(over_samples / over_samples.sum(), over_classes / over_classes.sum())


@given(counts_lists, st.sampled_from(SCHEMES))
def test_beta_zero_and_equal_counts_are_no_weighting(counts, scheme):
    np.testing.assert_allclose(class_weights(counts, beta=0), 1)
    np.testing.assert_allclose(class_weights(np.full_like(counts, counts[0]), scheme, 0.99), 1)


@given(counts_lists)
def test_beta_one_is_inverse_frequency(counts):
    np.testing.assert_allclose(class_weights(counts, beta=1), class_weights(counts, "inverse"), rtol=1e-12)
    np.testing.assert_allclose(class_weights(counts, beta=1 - 1e-15), class_weights(counts, "inverse"), rtol=1e-6)


@given(counts_lists, st.sampled_from(SCHEMES), betas, st.randoms())
def test_permuting_classes_permutes_weights(counts, scheme, beta, random):
    order = list(range(len(counts)))
    random.shuffle(order)
    np.testing.assert_allclose(class_weights(counts[order], scheme, beta), class_weights(counts, scheme, beta)[order])


@given(counts_lists, st.sampled_from(SCHEMES), betas)
def test_rarer_classes_never_weigh_less(counts, scheme, beta):
    weights = class_weights(np.sort(counts), scheme, beta)
    assert (np.diff(weights) <= 1e-12 * weights[:-1]).all()


def test_schemes():
    np.testing.assert_allclose(class_weights([100, 4], "inverse"), np.array([0.04, 1]) * 2 / 1.04)
    np.testing.assert_allclose(class_weights([100, 4], "inverse_sqrt"), np.array([0.2, 1]) * 2 / 1.2)
    np.testing.assert_allclose(class_weights([100, 4], "uniform"), [1, 1])


def test_balanced_in_scikit_learn_is_inverse_over_samples():
    labels = np.repeat([0, 1, 2], [70, 20, 10])
    ours = class_weights([70, 20, 10], "inverse", normalize="samples")
    np.testing.assert_allclose(ours, compute_class_weight("balanced", classes=np.unique(labels), y=labels))


def test_an_absent_class_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r'counts are 0 for class 1: count the whole training set, or pass absent="ig'):
        class_weights([3, 0, 5])
    with pytest.raises(ValueError, match=r"counts are 0 for class 0: labels must start at 0, or pass"):
        class_weights([0, 3, 5])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("normalize", ["classes", "samples"])
def test_absent_classes_can_be_left_out(scheme, normalize):
    weights = class_weights([30, 0, 5], scheme, normalize=normalize, absent="ignore")
    np.testing.assert_allclose(weights[[0, 2]], class_weights([30, 5], scheme, normalize=normalize))
    assert weights[1] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: class_weights([1, 2], beta=1.5), r"beta must be in \[0, 1\], got 1.5"),
        (lambda: class_weights([1, 2], beta=-0.1), r"beta must be in \[0, 1\], got -0.1"),
        (lambda: class_weights([1, 2], beta=float("nan")), r"beta must be in \[0, 1\], got nan"),
        (lambda: class_weights([1, 2], beta=[0.9, 0.9, 0.9]), r"beta has shape \(3,\) but counts have shape \(2,\)"),
        (lambda: class_weights([1, 2], beta=[[0.9, 0.9]]), r"beta has shape \(1, 2\) but counts have shape \(2,\)"),
        (lambda: effective_number([1, 2], [0.9] * 3), r"beta has shape \(3,\) but counts have shape \(2,\)"),
        (lambda: effective_number([1, -2], 0.9), "counts must be finite and >= 0, got -2.0"),
        (lambda: class_weights([1, -2]), "counts must be finite and >= 0, got -2.0 for class 1"),
        (lambda: class_weights([float("nan"), 2]), "counts must be finite and >= 0, got nan for class 0"),
        (lambda: class_weights([0.8, 0.2]), "counts must be numbers of samples, not shares, got 0.8 for class 0"),
        (lambda: class_weights([1, 2], 0.99), "unknown scheme 0.99: choose from .*; β is beta=…"),
        (lambda: class_weights([[1, 2]]), r"counts must have shape \(C,\), got \(1, 2\)"),
        (lambda: class_weights([]), r"counts must have shape \(C,\), got \(0,\)"),
        (lambda: class_weights([0, 0], absent="ignore"), "counts are 0 for every class"),
        (lambda: class_weights([1, 2], "inverse_sqr"), "unknown scheme 'inverse_sqr': did you mean 'inverse_sqrt'"),
        (lambda: class_weights([1, 2], normalize="class"), "unknown normalize 'class': did you mean 'classes'"),
        (lambda: class_weights([1, 2], absent="skip"), "unknown absent 'skip': choose from error, ignore"),
        (lambda: class_weight_dict([1.0, 2.0], ["a"]), "classes has 1 names but class_weight has 2 weights"),
        (lambda: sample_weights([0, 2], [1.0, 2.0]), r"labels must be in \[0, 2\) for 2 classes, got 2 at index 1"),
        (lambda: sample_weights([[1, 0, 0]], [1.0, 2.0]), r"labels of shape \(1, 3\) do not fit class_weight"),
        (lambda: sample_weights([0], [[1.0, 2.0]]), r"class_weight must have shape \(C,\), got \(1, 2\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("counts", ["many", {"cat": 3}, None])
def test_counts_that_are_no_numbers_are_refused(counts):
    with pytest.raises((TypeError, ValueError), match="counts must"):
        class_weights(counts)


def test_counts_of_pandas_must_be_in_the_order_of_the_classes():
    """value_counts() has the largest class first, whatever its name."""
    labels = pd.Series([1] * 90 + [0] * 10)
    with pytest.raises(ValueError, match=r"counts have the index 1, 0, .* pass counts.sort_index\(\), or .*to_numpy"):
        class_weights(labels.value_counts())
    assert class_weights(labels.value_counts().sort_index(), "inverse").tolist() == pytest.approx([1.8, 0.2])
    column = pd.Series([0, 2, 2])
    for gap in (column, column.astype(float), column.astype(object), column.astype("category"), column.to_frame()):
        with pytest.raises(
            ValueError, match=r"counts have the index 0(\.0)?, 2(\.0)?, .* pass counts.reindex\(range\(C\)"
        ):
            class_weights(gap.value_counts().sort_index())
    assert class_weights(column.to_frame().replace(2, 1).value_counts().sort_index(), "inverse").tolist() == (
        pytest.approx([4 / 3, 2 / 3])
    )
    names = pd.Series(["lynx"] + ["cat"] * 9)
    with pytest.raises(ValueError, match="counts have the index 'lynx', 'cat', "):
        class_weights(names.value_counts(ascending=True))
    assert class_weights(names.value_counts().sort_index(), "inverse").tolist() == pytest.approx([0.2, 1.8])
    with pytest.raises(ValueError, match="counts have the index 'rare', 0, "):
        class_weights(pd.Series([9, 1], index=["rare", 0]))
    assert class_weights(pd.Series([9, 1]), "inverse").tolist() == pytest.approx([0.2, 1.8])


def test_a_dictionary_has_the_names_as_they_are():
    assert class_weight_dict([1.0, 2.0], [0, "rare"]) == {0: 1.0, "rare": 2.0}
    assert class_weight_dict([1.0, 2.0], np.array(["a", "b"])) == {"a": 1.0, "b": 2.0}
    assert class_weight_dict([1.0, 2.0], [("a", 1), ("b", 2)]) == {("a", 1): 1.0, ("b", 2): 2.0}
    with pytest.raises(ValueError, match="classes has the name 'a' twice"):
        class_weight_dict([1.0, 2.0], ["a", "a"])


def test_sample_weights_follow_the_labels():
    assert sample_weights([0.0, 1.0], [1, 2]).tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"labels must be whole numbers, got 0.5"):
        sample_weights([0.5, 1.0], [1, 2])
    labels = np.repeat([0, 1, 2], [70, 20, 10])
    ours = sample_weights(labels, class_weights([70, 20, 10], "inverse", normalize="samples"))
    np.testing.assert_allclose(ours, compute_sample_weight("balanced", labels))
    assert sample_weights(torch.tensor([1, 0]), torch.tensor([0.5, 1.5])).tolist() == [1.5, 0.5]
    assert sample_weights([[1, 1, 0], [0, 0, 0]], [1, 3, 8]).tolist() == [2, 1]


def test_weights_in_scikit_learn():
    """As a dictionary and per sample, they are the same weights to scikit-learn, and they move the boundary."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [900, 100])
    features = rng.normal(size=(1000, 2)) + labels[:, None]
    weights = class_weights([900, 100], beta=0.999)
    plain = LogisticRegression().fit(features, labels)
    by_class = LogisticRegression(class_weight=class_weight_dict(weights)).fit(features, labels)
    by_sample = LogisticRegression().fit(features, labels, sample_weight=sample_weights(labels, weights))
    np.testing.assert_allclose(by_class.coef_, by_sample.coef_, rtol=1e-3)
    rare = labels == 1
    assert by_class.predict(features[rare]).mean() > plain.predict(features[rare]).mean() + 0.2
