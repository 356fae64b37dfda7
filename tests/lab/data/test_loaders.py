"""Batches: each sample once, the same for the same seed and epoch, alike for any number of processes."""

import contextlib
import gc
import itertools
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks.measure import peak_memory
from longtail.lab.data import (
    DataError,
    ImageDataset,
    ImageFiles,
    InMemoryImages,
    Shard,
    evaluation_loader,
    open_dataset,
    shuffled,
    training_loader,
)
from longtail.lab.data.batches import BatchPlan
from longtail.lab.data.decode import centre_box, read_crop


def numbered(count, pad=2, flip=True, size=6):
    """Images whose pixels say which image, row and column they are."""
    sample, row, column = np.mgrid[0:count, 0:size, 0:size]
    pixels = torch.from_numpy(np.stack([sample + 1, 10 + row, 10 + column], axis=1).astype(np.uint8))
    images = InMemoryImages(pixels, np.arange(count) % min(count, 3))
    return ImageDataset(
        name="numbered",
        classes=tuple("abc"[:count]),
        train=images,
        test=images,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        pad=pad,
        flip=flip,
    )


def which(batch):
    """The number of each image of a batch, whatever was cropped of it."""
    return (batch.images[:, 0].flatten(1).amax(1).long() - 1).tolist()


@given(
    count=st.integers(1, 300), batch_size=st.integers(1, 64), processes=st.integers(1, 5), epoch=st.integers(0, 10**6)
)
def test_every_sample_is_in_exactly_one_part_of_one_batch(count, batch_size, processes, epoch):
    samples = shuffled(count, seed=1)
    order = samples(epoch)
    plans = [BatchPlan(samples, batch_size, Shard(rank, processes)) for rank in range(processes)]
    seen = []
    for batch in range(len(plans[0])):
        parts = [plan.part(batch) for plan in plans]
        together = np.concatenate([order[part] for part, _ in parts])
        (total,) = {total for _, total in parts}
        assert len(together) == total <= batch_size
        alone, _ = BatchPlan(samples, batch_size).part(batch)
        assert together.tolist() == order[alone].tolist()
        sizes = [part.stop - part.start for part, _ in parts]
        assert max(sizes) - min(sizes) <= 1
        assert total >= plans[0].smallest
        seen += together.tolist()
    assert sorted(seen) == list(range(count))
    assert len(plans[0]) == -(-count // batch_size)


def test_the_sequence_is_a_pure_function_of_seed_and_epoch():
    dataset = numbered(50)
    loader = training_loader(dataset, 16, seed=3)
    first = list(loader.epoch(4))
    list(loader.epoch(5))
    torch.manual_seed(99)
    again = list(training_loader(dataset, 16, seed=3).epoch(4))
    assert all(torch.equal(one.images, other.images) for one, other in zip(first, again, strict=True))
    for seed, epoch in ((3, 5), (4, 4)):
        other = next(training_loader(dataset, 16, seed=seed).epoch(epoch))
        assert which(other) != which(first[0])


def test_a_resumed_epoch_goes_on_where_it_stopped():
    loader = training_loader(numbered(50), 8)
    whole = list(loader.epoch(2))
    rest = list(loader.epoch(2, start=3))
    assert len(rest) == len(whole) - 3
    assert all(torch.equal(one.images, other.images) for one, other in zip(whole[3:], rest, strict=True))


def test_processes_together_see_the_batches_of_one():
    dataset = numbered(50)
    alone = list(training_loader(dataset, 12, seed=1).epoch(0))
    parts = [list(training_loader(dataset, 12, seed=1, shard=Shard(rank, 3)).epoch(0)) for rank in range(3)]
    for place, batch in enumerate(alone):
        together = torch.cat([part[place].images for part in parts])
        assert torch.equal(together, batch.images)
        assert all(part[place].total == len(batch.labels) for part in parts)


def test_a_batch_too_small_for_all_processes_is_refused():
    with pytest.raises(ValueError, match="a batch of 2 images is too small for 3 processes"):
        training_loader(numbered(2), 2, shard=Shard(0, 3))


def test_evaluation_sees_each_image_once_and_as_it_is():
    dataset = numbered(10)
    parts = [evaluation_loader(dataset, 4, shard=Shard(rank, 3)) for rank in range(3)]
    seen = [which(batch) for batches in zip(*(part.epoch(0) for part in parts), strict=True) for batch in batches]
    assert sorted(itertools.chain(*seen)) == list(range(10))
    batch = next(evaluation_loader(dataset, 4).epoch(0))
    assert torch.equal(batch.images, dataset.test.images[:4].float())


def test_crops_are_windows_of_the_padded_image_mirrored_or_not():
    """Against a plain loop over images: every crop is one of the windows, and all windows occur, as often mirrored."""
    size, pad = 4, 2
    dataset = numbered(1, pad, size=size)
    padded = np.pad(dataset.train.images[0].numpy(), ((0, 0), (pad, pad), (pad, pad)))
    windows = {}
    for row, column, step in itertools.product(range(2 * pad + 1), range(2 * pad + 1), (1, -1)):
        window = padded[:, row : row + size, column : column + size][:, :, ::step]
        windows.setdefault(window.tobytes(), []).append((row, column, step))
    loader = training_loader(dataset, 1)
    seen = [next(loader.epoch(epoch)).images[0].numpy().astype(np.uint8).tobytes() for epoch in range(1500)]
    assert set(seen) == set(windows)
    mirrored = sum(windows[crop][0][2] == -1 for crop in seen)
    assert 650 < mirrored < 850


def test_without_flip_and_padding_nothing_changes():
    dataset = numbered(20, pad=0, flip=False)
    batch = next(training_loader(dataset, 20).epoch(0))
    order = which(batch)
    assert torch.equal(batch.images, dataset.train.images[order].float())
    assert torch.equal(batch.labels, dataset.train.labels[order])
    plain = next(training_loader(numbered(20), 20, augment=False).epoch(0))
    assert which(plain) == order
    assert torch.equal(plain.images, dataset.train.images[order].float())


def test_cifar_is_normalised_after_padding_as_in_the_authors_code(tmp_path):
    from tests.lab.data.cifar_files import write_release

    write_release(tmp_path, "cifar-10-batches-bin")
    dataset = open_dataset("cifar10", tmp_path)
    (test,) = evaluation_loader(dataset, 1000).epoch(0)
    assert torch.equal(test.images, dataset.test.images.float() / 128 - 1)
    batches = itertools.chain(*(training_loader(dataset, 100).epoch(epoch) for epoch in range(5)))
    images = torch.cat([batch.images for batch in batches])
    assert (dataset.pad, dataset.flip) == (4, True)
    # A quarter of a crop's corner pixels lies in the padding: black, which is -1 and not the mean of the data.
    assert (images[:, :, 0, 0] == -1).all(dim=1).float().mean() > 0.4


def test_another_order_can_repeat_and_leave_out():
    """The seam for class-aware sampling."""
    order = lambda epoch: np.array([0, 0, 0, 7, 7, epoch])  # noqa: E731
    batches = list(training_loader(numbered(10), 4, order=order).epoch(9))
    assert list(itertools.chain(*map(which, batches))) == [0, 0, 0, 7, 7, 9]
    first = batches[0].images
    assert not torch.equal(first[0], first[1]) or not torch.equal(first[1], first[2])


@pytest.fixture
def files(tmp_path):
    """Photographs of different sizes, each of one brightness, so that any crop tells which it is."""
    paths = []
    for place in range(11):
        size = (40 + 3 * place, 60 - 2 * place)
        paths.append(f"{place}.{'jpg' if place % 2 else 'png'}")
        Image.new("RGB", size, (20 * place,) * 3).save(tmp_path / paths[-1])
    images = ImageFiles(tmp_path, paths, np.arange(11) % 2)
    return ImageDataset(
        name="files", classes=("even", "odd"), train=images, test=images, mean=(0.0,) * 3, std=(1.0,) * 3
    )


def brightness(batch):
    return (batch.images.mean(dim=(1, 2, 3)) / 20).round().long().tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_image_files_come_in_the_same_batches_with_any_number_of_workers(files, workers):
    loader = training_loader(replace(files, input_size=16), 4, seed=2, workers=workers)
    reference = training_loader(replace(files, input_size=16), 4, seed=2, workers=0)
    before = torch.random.get_rng_state()
    for epoch in (0, 3):
        batches, expected = list(loader.epoch(epoch)), list(reference.epoch(epoch))
        assert sorted(itertools.chain(*map(brightness, batches))) == list(range(11))
        for one, other in zip(batches, expected, strict=True):
            assert torch.equal(one.images, other.images)
            assert one.labels.tolist() == [number % 2 for number in brightness(one)]
            assert one.images.shape[1:] == (3, 16, 16)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_abandoned_epoch_of_image_files_does_not_leak_into_the_next(files):
    loader = training_loader(replace(files, input_size=16), 2, workers=2)
    for _ in loader.epoch(0):
        break
    assert sorted(itertools.chain(*map(brightness, loader.epoch(1, start=0)))) == list(range(11))
    assert len(list(loader.epoch(1, start=4))) == len(loader) - 4


def test_processes_share_image_files_without_overlap(files):
    parts = [
        training_loader(replace(files, input_size=16), 4, seed=1, workers=0, shard=Shard(rank, 2)) for rank in range(2)
    ]
    seen = [list(itertools.chain(*map(brightness, part.epoch(0)))) for part in parts]
    assert sorted(seen[0] + seen[1]) == list(range(11))


@pytest.mark.parametrize(("size", "short_side"), [(224, 256), (320, 366), (448, 512)])
def test_evaluation_scales_the_short_side_and_crops_the_middle(tmp_path, size, short_side):
    y, x = np.mgrid[0:500, 0:600]
    pixels = np.stack([x * 255 // 600, y * 255 // 500, x * 0], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    images = ImageFiles(tmp_path, ["a.png"], [0])
    dataset = ImageDataset(name="x", classes=("a",), train=images, test=images, mean=(0.0,) * 3, std=(1.0,) * 3)
    (batch,) = evaluation_loader(replace(dataset, input_size=size), 8, workers=0).epoch(0)
    resized = Image.fromarray(pixels).resize((short_side * 6 // 5, short_side), Image.Resampling.BILINEAR)
    left, top = (resized.width - size) / 2, (resized.height - size) / 2
    expected = np.asarray(resized.crop((round(left), round(top), round(left) + size, round(top) + size)))
    assert np.abs(batch.images[0].permute(1, 2, 0).numpy() - expected).max() <= 3


def test_the_last_partial_batch_is_evaluated(files):
    for processes in (1, 2, 7):
        parts = [
            evaluation_loader(replace(files, input_size=16), 4, workers=0, shard=Shard(rank, processes))
            for rank in range(processes)
        ]
        seen = itertools.chain(*(brightness(batch) for part in parts for batch in part.epoch(0)))
        assert sorted(seen) == list(range(11))


def test_normalisation_uses_the_data_sets_mean_and_std(files):
    shifted = ImageDataset(name="x", classes=files.classes, train=files.train, test=files.test)
    (plain,) = evaluation_loader(replace(files, input_size=8), 11, workers=0).epoch(0)
    (normal,) = evaluation_loader(replace(shifted, input_size=8), 11, workers=0).epoch(0)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (plain.images / 255 - mean[:, None, None]) / std[:, None, None]
    assert torch.allclose(normal.images, expected, atol=1e-5)


def test_after_a_broken_image_the_workers_end_at_once(files):
    """PyTorch waits 5 seconds for each worker of a loader that the garbage collector finds in a cycle."""
    (files.train.root / "5.jpg").write_bytes(b"no image")
    loader = training_loader(replace(files, input_size=16), 4, workers=2)
    with contextlib.suppress(DataError):
        list(loader.epoch(0))
    workers = weakref.ref(loader._loader._iterator)
    gc.disable()
    del loader
    is_left = workers() is not None
    gc.enable()
    gc.collect()
    assert not is_left


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_stops_the_loader_with_one_line(files, workers):
    (files.train.root / "5.jpg").write_bytes(b"no image")
    message = ""
    try:  # not pytest.raises, which would keep the workers of the failed loader for the garbage collector
        list(training_loader(replace(files, input_size=16), 4, workers=workers).epoch(0))
    except DataError as error:
        message = str(error)
    assert message.startswith(f"{files.train.root}/5.jpg is not a readable image: ")
    assert "\n" not in message


def test_crops_differ_between_epochs_and_positions_but_not_between_runs(tmp_path):
    y, x = np.mgrid[0:90, 0:90]
    Image.fromarray(np.stack([x * 2, y * 2, x + y], axis=-1).astype(np.uint8)).save(tmp_path / "a.png")
    images = ImageFiles(tmp_path, ["a.png"], [0])
    dataset = ImageDataset(name="x", classes=("a",), train=images, test=images, input_size=8)
    order = lambda epoch: np.zeros(4, dtype=np.int64)  # noqa: E731
    first, again = (list(training_loader(dataset, 4, order=order, workers=0).epoch(0)) for _ in range(2))
    assert torch.equal(first[0].images, again[0].images)
    assert not torch.equal(first[0].images[0], first[0].images[1])
    other = next(training_loader(dataset, 4, order=order, workers=0).epoch(1))
    assert not torch.equal(first[0].images, other.images)


@settings(max_examples=20)
@given(size=st.integers(1, 40), width=st.integers(1, 80), height=st.integers(1, 80))
def test_any_size_can_be_cropped_from_any_image(tmp_path_factory, size, width, height):
    path = tmp_path_factory.mktemp("any") / "image.jpg"
    Image.new("RGB", (width, height), (90, 90, 90)).save(path)
    crop = read_crop(path, size, lambda w, h: centre_box(w, h, 7 / 8))
    assert crop.shape == (3, size, size)
    assert abs(crop.float().mean() - 90) <= 2


@pytest.mark.parametrize(("rank", "processes"), [(-1, 1), (1, 1), (2, 2), (0, 0)])
def test_a_process_that_does_not_exist_is_refused(rank, processes):
    with pytest.raises(ValueError, match="rank must be in"):
        Shard(rank, processes)


@pytest.mark.parametrize("start", [-1, 4])
def test_a_batch_that_does_not_exist_is_refused(start):
    with pytest.raises(ValueError, match=r"start must be in \[0, 3\] for 3 batches"):
        next(training_loader(numbered(9), 3).epoch(0, start=start))


def test_an_order_of_any_kind_but_always_as_long():
    loader = training_loader(numbered(9), 9, order=lambda epoch: list(range(9))[::-1])
    assert which(next(loader.epoch(0))) == list(range(9))[::-1]
    longer = training_loader(numbered(9), 9, order=lambda epoch: np.arange(9)[: 9 - epoch][::-1])
    assert len(next(longer.epoch(0)).labels) == 9
    with pytest.raises(ValueError, match="order gives 8 samples in epoch 1, but 9 in epoch 0"):
        next(longer.epoch(1))


def test_images_in_any_order_in_memory_are_cropped_alike():
    dataset = numbered(9)
    last = dataset.train.images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    other = ImageDataset(
        name="x",
        classes=dataset.classes,
        train=InMemoryImages(last, dataset.train.labels),
        test=dataset.test,
        mean=dataset.mean,
        std=dataset.std,
        pad=2,
    )
    one, two = (next(training_loader(each, 9).epoch(0)).images for each in (dataset, other))
    assert torch.equal(one, two)


def test_padding_and_mirroring_keep_no_copies_of_the_data_set():
    dataset = numbered(250, pad=4, size=64)
    taken = peak_memory(lambda: next(training_loader(dataset, batch_size=10).epoch(0)))
    assert taken < dataset.train.images.nbytes / 2
