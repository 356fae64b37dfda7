import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset

from longtail import class_counts, imbalance_factor, long_tailed_counts

LABELS = [0, 2, 2, 1, 2, 0]
COUNTS = [2, 1, 3]


class WithTargets(Dataset):
    def __init__(self, targets, name="targets"):
        setattr(self, name, targets)
        self.size = len(targets)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        raise AssertionError("counting must not load samples")


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        tuple(LABELS),
        np.array(LABELS),
        np.array(LABELS, np.uint8),
        np.array(LABELS, np.float32),
        pd.Series(LABELS, index=list("abcdef")),
        pd.Series(LABELS, index=["labels", *"bcdef"]),
        pd.Series(LABELS, dtype="Int64"),
        np.eye(3)[LABELS],
        np.eye(3, dtype=bool)[LABELS],
        pd.DataFrame(np.eye(3, dtype=int)[LABELS], columns=["cat", "labels", "targets"]),
        pd.DataFrame(np.eye(3, dtype=int)[LABELS]).convert_dtypes(),
        pd.DataFrame(np.eye(3, dtype=int)[LABELS]).astype({1: bool}),
        WithTargets(LABELS),
        WithTargets(np.array(LABELS), "labels"),
        Subset(WithTargets([9, *LABELS, 9]), range(1, 7)),
        ConcatDataset([WithTargets(LABELS[:4]), Subset(WithTargets(LABELS), [4, 5])]),
    ],
    ids=lambda labels: type(labels).__name__,
)
def test_whatever_holds_labels_is_counted(labels):
    counts = class_counts(labels)
    assert isinstance(counts, np.ndarray)
    assert counts.dtype == np.int64
    assert counts.tolist() == COUNTS


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor(LABELS),
        torch.tensor(LABELS, dtype=torch.uint8),
        torch.eye(3)[LABELS],
        torch.eye(3, dtype=torch.bfloat16)[LABELS],
        WithTargets(torch.tensor(LABELS)),
        Subset(WithTargets(torch.tensor([9, *LABELS])), [1, 2, 3, 4, 5, 6]),
        Subset(WithTargets(torch.tensor([9, *LABELS])), torch.arange(1, 7)),
        Subset(WithTargets(torch.tensor([9, *LABELS])), list(torch.arange(1, 7))),
        TensorDataset(torch.zeros(6, 1), torch.tensor(LABELS)),
    ],
    ids=lambda labels: type(labels).__name__,
)
def test_tensor_in_tensor_out(labels):
    counts = class_counts(labels)
    assert isinstance(counts, torch.Tensor)
    assert counts.dtype == torch.int64
    assert counts.tolist() == COUNTS


@given(st.lists(st.integers(0, 20)))
def test_counts_add_up(labels):
    counts = class_counts(labels, num_classes=21)
    assert counts.shape == (21,)
    assert counts.tolist() == [labels.count(i) for i in range(21)]


def test_multi_hot_samples_count_for_each_class():
    assert class_counts([[1, 1, 0], [1, 0, 0]]).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 3], 3, r"labels must be in \[0, 3\) for 3 classes, got 3 at index 1"),
        ([0, -1], None, r"labels must be in \[0, 1\) for 1 classes, got -1 at index 1"),
        ([0.5, 1.0], None, "labels must be whole numbers, got 0.5"),
        ([0.0, float("nan")], None, "labels must be whole numbers, got nan"),
        ([0.0, 1e20], None, r"labels must be whole numbers, got 1e\+20"),
        (np.array([2**63], np.uint64), None, "labels must be whole numbers, got 9223372036854775808"),
        ([], None, "labels are empty: pass num_classes"),
        ([[0, 2], [1, 0]], None, r"multi-hot labels of shape \(2, 2\) must be 0 or 1, got 2"),
        ([[0, 1], [1, 0]], 3, "labels have 2 columns but num_classes is 3"),
        (np.zeros((2, 3, 4), int), None, r"labels must have shape \(N,\) or, multi-hot, \(N, C\), got \(2, 3, 4\)"),
        ([[0], [1]], None, r"labels of shape \(2, 1\) are one column: pass labels\[:, 0\]"),
        ([0, 1], 0, "num_classes must be at least 1, got 0"),
    ],
)
def test_bad_labels_are_named(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        class_counts(labels, classes)


def test_one_sample_of_multi_hot_labels_is_one_sample():
    """Torch takes a list of one index tensor for the index itself."""
    assert class_counts(Subset(WithTargets(torch.tensor([[0, 0, 0], [0, 1, 1]])), torch.tensor([1]))).tolist() == [
        0,
        1,
        1,
    ]


def test_data_sets_side_by_side_are_not_one_after_the_other():
    """Their samples are pairs, and as many as each has."""
    with pytest.raises(TypeError, match=r"StackDataset has neither .targets nor .labels"):
        class_counts(StackDataset(WithTargets(LABELS), WithTargets(LABELS)))


def test_missing_values_are_named():
    with pytest.raises(ValueError, match="labels must be whole numbers, got nan"):
        class_counts(pd.Series([0, None, 1], dtype="Int64"))


def test_labels_that_are_no_numbers_are_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"labels must be integers, got dtype object.*numpy.unique"):
        class_counts(pd.Series(["1", "2"], dtype=object))
    with pytest.raises(TypeError, match=r"labels must be integers, got dtype <U\d.*numpy.unique"):
        class_counts(["cat", "dog"])
    with pytest.raises(TypeError, match=r"labels must be a sequence, got generator: pass list\(labels\)"):
        class_counts(label for label in LABELS)
    with pytest.raises(ValueError, match=r"got ragged lists"):
        class_counts([[0], [1, 2]])
    with pytest.raises(TypeError, match=r"not of a DataLoader: pass loader.dataset"):
        class_counts(DataLoader(TensorDataset(torch.zeros(2))))


def test_a_dataset_without_labels_is_refused_without_loading_it():
    with pytest.raises(TypeError, match=r"WithTargets has neither .targets nor .labels"):
        class_counts(WithTargets(LABELS, name="answers"))


def test_imbalance_factor():
    assert imbalance_factor([50, 5000, 500]) == 100.0
    assert imbalance_factor(torch.tensor([7, 7])) == 1.0
    with pytest.raises(ValueError, match=r"counts are 0 for class 1: count the whole training set$"):
        imbalance_factor([3, 0])
    with pytest.raises(ValueError, match=r"counts are 0 for classes 1, 2: count"):
        imbalance_factor([3, 0, 0])


# Totals of the paper's long-tailed CIFAR sets.
TOTALS = {
    (5000, 10): {1: 50_000, 10: 20_431, 20: 17_023, 50: 13_996, 100: 12_406, 200: 11_203},
    (2500, 20): {1: 50_000, 10: 19_954, 20: 16_396, 50: 13_204, 100: 11_514, 200: 10_225},
    (500, 100): {1: 50_000, 10: 19_573, 20: 15_907, 50: 12_608, 100: 10_847, 200: 9_502},
}


@pytest.mark.parametrize(
    ("size", "imbalance", "total"),
    [(size, imbalance, total) for size, totals in TOTALS.items() for imbalance, total in totals.items()],
)
def test_totals_of_long_tailed_cifar(size, imbalance, total):
    counts = long_tailed_counts(*size, imbalance)
    assert counts.sum() == total
    assert (np.diff(counts) <= 0).all()


def test_long_tailed_counts_of_cifar10():
    assert long_tailed_counts(5000, 10, 200).tolist() == [5000, 2775, 1540, 854, 474, 263, 146, 81, 45, 25]


@given(st.integers(1, 10_000), st.integers(1, 50), st.floats(1, 1000))
def test_profiles_start_at_the_top_and_end_at_the_imbalance(top, classes, imbalance):
    for profile in ("exponential", "step"):
        if top / imbalance < 1.001 and classes > 1:
            continue
        counts = long_tailed_counts(top, classes, imbalance, profile)
        assert counts[0] == (top if classes != 1 else counts[0])
        assert counts.shape == (classes,)
        if classes > 1:
            assert abs(counts[-1] - int(top / imbalance)) <= 1


@pytest.mark.parametrize("profile", ["exponential", "step"])
def test_the_last_class_is_exact(profile):
    for imbalance in range(1, 200):
        assert long_tailed_counts(7 * imbalance, 2, imbalance, profile)[-1] == 7


def test_arguments_that_are_no_integers_are_named():
    with pytest.raises(TypeError, match=r"num_classes must be an integer, got 3.0"):
        class_counts(LABELS, 3.0)
    with pytest.raises(TypeError, match=r"max_count must be an integer, got '5'"):
        long_tailed_counts("5", 3, 10)
    with pytest.raises(TypeError, match=r"imbalance must be a number, got None"):
        long_tailed_counts(5, 3, None)
    with pytest.raises(TypeError, match=r"counts must be one number per class, each below"):
        imbalance_factor(["5", "3"])


def test_step_profile():
    assert long_tailed_counts(100, 5, 10, profile="step").tolist() == [100, 100, 10, 10, 10]
    assert long_tailed_counts(100, 1, 10, profile="step").tolist() == [100]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10, 10), "max_count must be at least 1, got 0"),
        ((10, 0, 10), "num_classes must be at least 1, got 0"),
        ((10, 10, 0.5), "imbalance must be a finite number >= 1, got 0.5"),
        ((10, 10, float("nan")), "imbalance must be a finite number >= 1, got nan"),
        ((10, 10, 100), "imbalance 100 leaves class 5 without samples at max_count 10"),
        ((10, 10, 10, "exp"), "unknown profile 'exp': did you mean 'exponential'"),
        ((10, 10, 10, "steps"), "unknown profile 'steps': did you mean 'step'"),
    ],
)
def test_bad_profiles_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        long_tailed_counts(*arguments)


@pytest.mark.parametrize(("largest", "classes", "imbalance"), [(32, 6, 32), (512, 10, 512), (1024, 11, 1024)])
def test_whole_numbers_of_the_profile_are_not_rounded_down(largest, classes, imbalance):
    steps = [largest >> place for place in range(classes)]
    assert long_tailed_counts(largest, classes, imbalance).tolist() == steps


def test_no_class_has_more_than_the_largest_may_have():
    assert long_tailed_counts(10**15, 2, 1).tolist() == [10**15] * 2


def test_counts_by_class_index_are_put_in_order():
    assert imbalance_factor({2: 8, 0: 2, 1: 4}) == 4
    with pytest.raises(ValueError, match="counts are 0 for class 1"):
        imbalance_factor({0: 5, 2: 1})
    for key in ("owl", -1, 0.5):
        with pytest.raises(ValueError, match=f"counts must have class indices as keys, got {key!r}"):
            imbalance_factor({key: 5})
    with pytest.raises(ValueError, match=r"labels has masked elements: pass labels.compressed\(\)"):
        class_counts(np.ma.array([0, 1, 1], mask=[0, 0, 1]))
