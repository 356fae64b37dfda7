"""Class-aware sampling: as often as it says, in rounds, alike in all processes, and from where it stopped."""

import multiprocessing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

from longtail.samplers import SAMPLINGS, ClassAwareSampler, class_aware_order, sampling_probabilities

schemes = st.sampled_from(list(SAMPLINGS))
label_lists = st.integers(1, 7).flatmap(
    lambda classes: st.lists(st.integers(1, 30), min_size=classes, max_size=classes).map(
        lambda counts: np.random.default_rng(0).permutation(np.repeat(np.arange(classes), counts))
    )
)


def reference(counts, scheme, beta, progress):
    """Section 3.1 of Kang et al., and the effective number as a sum, class by class."""
    if scheme == "progressive":
        total = sum(counts)
        return [(1 - progress) * n / total + progress / len(counts) for n in counts]
    values = {
        "class_balanced": lambda n: 1.0,
        "square_root": lambda n: n**0.5,
        "effective": lambda n: n / sum(beta**power for power in range(n)),
    }
    raw = [values[scheme](n) for n in counts]
    return [value / sum(raw) for value in raw]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), schemes, st.floats(0, 1), st.floats(0, 1))
def test_probabilities_are_those_of_the_equations(counts, scheme, beta, progress):
    found = sampling_probabilities(counts, scheme, beta=beta, progress=progress)
    np.testing.assert_allclose(found, reference(counts, scheme, beta, progress), rtol=1e-9)
    assert found.sum() == pytest.approx(1)


def test_effective_goes_from_all_samples_alike_to_all_classes_alike():
    counts = [900, 90, 10]
    np.testing.assert_allclose(sampling_probabilities(counts, "effective", beta=0), [0.9, 0.09, 0.01])
    np.testing.assert_allclose(sampling_probabilities(counts, "effective", beta=1), 1 / 3)
    np.testing.assert_allclose(sampling_probabilities(counts, "progressive", progress=0), [0.9, 0.09, 0.01])
    np.testing.assert_allclose(sampling_probabilities(counts, "progressive", progress=1), 1 / 3)


@settings(deadline=None)
@given(label_lists, schemes, st.floats(0, 1), st.integers(0, 9), st.none() | st.integers(1, 200), st.integers(0, 2**32))
def test_every_class_and_every_sample_comes_as_often_as_it_should(labels, scheme, beta, epoch, num_samples, seed):
    order = class_aware_order(labels, scheme, seed=seed, epoch=epoch, beta=beta, epochs=8, num_samples=num_samples)
    count = len(labels) if num_samples is None else num_samples
    assert order.shape == (count,)
    expected = count * np.array(reference(np.bincount(labels).tolist(), scheme, beta, min(epoch / 8, 1)))
    found = np.bincount(labels[order], minlength=len(expected))
    assert (np.abs(found - expected) < 1 + 1e-5).all()
    for place in {0, count // 2, count}:  # in rounds from the start: no sample is two ahead of another of its class
        uses = np.bincount(order[:place], minlength=len(labels))
        for label in range(len(expected)):
            assert np.ptp(uses[labels == label]) <= 1
    again = class_aware_order(labels, scheme, seed=seed, epoch=epoch, beta=beta, epochs=8, num_samples=num_samples)
    assert np.array_equal(order, again)


@settings(deadline=None)
@given(label_lists, st.integers(0, 99))
def test_without_a_beta_an_epoch_is_every_sample_once(labels, seed):
    order = class_aware_order(labels, "effective", beta=0, seed=seed)
    assert sorted(order.tolist()) == list(range(len(labels)))


def test_rounding_favours_no_class_and_no_sample():
    """Classes of a third of a place each: over many epochs all come alike often, and so do their samples."""
    labels = np.repeat(np.arange(12), 3)
    order = np.concatenate([class_aware_order(labels, seed=1, epoch=epoch, num_samples=4) for epoch in range(2500)])
    uses = np.bincount(order, minlength=36)
    assert np.abs(uses / uses.mean() - 1).max() < 0.25  # four standard deviations


def test_places_in_an_epoch_are_random():
    labels = np.repeat([0, 1], [10, 90])
    first = [labels[class_aware_order(labels, seed=seed)[:10]].mean() for seed in range(300)]
    assert np.mean(first) == pytest.approx(0.5, abs=0.05)
    orders = {tuple(class_aware_order(labels, seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_progressive_moves_from_samples_to_classes():
    labels = np.repeat([0, 1], [90, 10])
    shares = [labels[class_aware_order(labels, "progressive", epoch=epoch, epochs=4)].mean() for epoch in range(6)]
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])


@settings(deadline=None)
@given(label_lists, schemes, st.integers(1, 5), st.integers(0, 3))
def test_processes_share_one_order_evenly(labels, scheme, processes, epoch):
    parts = []
    for rank in range(processes):
        sampler = ClassAwareSampler(labels, scheme, epochs=3, num_samples=40, rank=rank, num_replicas=processes)
        sampler.set_epoch(epoch)
        parts.append(list(sampler))
        assert len(parts[-1]) == len(sampler) == 40 // processes
    whole = class_aware_order(labels, scheme, epoch=epoch, epochs=3, num_samples=40)
    together = [part[place] for place in range(40 // processes) for part in parts]
    assert together == whole[: len(together)].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(workers):
    labels = torch.tensor([0] * 50 + [1] * 5 + [2])
    data = TensorDataset(torch.arange(56), labels)
    sampler = ClassAwareSampler(data, "square_root", seed=3)

    def batches(epoch, start=0):
        sampler.set_epoch(epoch, start)
        loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)
        found = [indices.tolist() for indices, _ in loader]
        assert len(found) == len(loader)
        return found

    whole = batches(2)
    assert batches(2, start=3 * 8) == whole[3:]
    assert batches(3) != whole
    assert batches(2) == whole


def rank_main(rank, store, results):
    sampler = ClassAwareSampler([0] * 30 + [1] * 3, seed=5)  # before the processes know of one another
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        found = [None, None]
        distributed.all_gather_object(found, list(sampler))
        if rank == 0:
            results.put(found)
    distributed.destroy_process_group()


def test_two_real_processes_take_turns_in_one_order(tmp_path):
    context = multiprocessing.get_context("forkserver")
    results = context.Queue()
    processes = [context.Process(target=rank_main, args=(rank, str(tmp_path / "store"), results)) for rank in (0, 1)]
    for process in processes:
        process.start()
    found = [results.get(timeout=300) for _ in range(2)]
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    for epoch, (first, second) in enumerate(found):
        whole = class_aware_order([0] * 30 + [1] * 3, seed=5, epoch=epoch).tolist()
        assert (first, second) == (whole[0:32:2], whole[1:32:2])


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0, 0, 2], {}, "counts are 0 for class 1"),
        ([0, 0, 4], {"scheme": "progressive", "epochs": 3}, "counts are 0 for classes 1, 2, 3"),
        ([0, 1], {"scheme": "balanced"}, "unknown scheme 'balanced'"),
        ([0, 1], {"scheme": "progressive"}, "progressive needs epochs"),
        ([0, 1], {"scheme": "effective", "beta": 1.5}, r"beta must be in \[0, 1\], got 1.5"),
        ([0, 1], {"epochs": 0}, "epochs must be at least 1"),
        ([0, 1], {"num_samples": 0}, "num_samples must be at least 1"),
        ([0, 1], {"rank": 1}, "only of use together"),
        ([0, 1], {"rank": 2, "num_replicas": 2}, r"rank must be in \[0, 2\) for 2 replicas, got 2"),
        ([[0, 1], [1, 1]], {}, r"labels must have shape \(N,\), one class for each sample"),
        ([0, -1], {}, "got -1 at index 1"),
        ([], {}, "labels are empty"),
    ],
)
def test_what_cannot_be_is_refused_when_the_sampler_is_made(labels, options, message):
    with pytest.raises(ValueError, match=message) as error:
        ClassAwareSampler(labels, **options)
    assert "\n" not in str(error.value)


def test_places_that_are_not_there_are_refused():
    sampler = ClassAwareSampler([0, 1, 1])
    with pytest.raises(ValueError, match=r"start must be in \[0, 3\], got 4"):
        sampler.set_epoch(0, start=4)
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        sampler.set_epoch(-1)
    with pytest.raises(ValueError, match="3 samples are too few for 4 processes"):
        list(ClassAwareSampler([0, 1, 1], rank=0, num_replicas=4))


def test_absent_classes_can_be_ignored():
    assert sampling_probabilities([3, 0, 1], absent="ignore").tolist() == [0.5, 0, 0.5]
    assert np.bincount(np.array([0, 2, 2, 2])[class_aware_order([0, 2, 2, 2], absent="ignore")]).tolist() == [2, 0, 2]
