"""The cache of features: what it recomputes, what it survives, and that a frozen network gives just these features."""

import multiprocessing
import os
import select
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.lab.data import DataError, ImageDataset, ImageFiles, InMemoryImages, open_dataset
from longtail.lab.data.file_cache import RACY_NANOSECONDS, content_digests
from longtail.lab.data.views import ImageViews
from longtail.lab.files import cache_folder
from longtail.lab.models import build_model, input_spec, pooled_features
from longtail.lab.models.features import (
    SHARD_SIZE,
    Extractor,
    FeatureStore,
    backbone_sha256,
    cached_features,
    clear_features,
    compute_features,
    store_features,
)
from longtail.lab.training.processes import stop_signals

IDENTITY = {"model": "resnet8"}


def keys(first, last):
    return [number.to_bytes(32, "big") for number in range(first, last)]


def rows(first, last):
    return torch.arange(first, last, dtype=torch.float32)[:, None].expand(-1, 4).contiguous()


def photographs(folder, classes=3, images=4, size=40):
    draw = np.random.default_rng(0)
    paths = []
    for label in range(classes):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            path = folder / str(label) / f"{number}.png"
            Image.fromarray(draw.integers(0, 256, (size, size + 8, 3), dtype=np.uint8)).save(path)
            paths.append(f"{label}/{number}.png")
    files = ImageFiles(folder, paths, [int(path[0]) for path in paths])
    return ImageDataset(name="photographs", classes=tuple(map(str, range(classes))), train=files, test=files)


def test_what_was_added_is_found_by_other_processes_and_in_any_order():
    FeatureStore(IDENTITY).add(keys(0, 5), rows(0, 5))
    FeatureStore(IDENTITY).add(keys(5, 8), rows(5, 8))
    store = FeatureStore(IDENTITY)
    assert store.missing(keys(3, 10)) == [5, 6]
    assert store.take(keys(0, 8)[::-1])[:, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    FeatureStore(IDENTITY).add(keys(8, 10), rows(8, 10))  # by another one, meanwhile
    assert store.missing(keys(3, 10)) == []
    assert store.take(keys(9, 10)).tolist() == [[9.0] * 4]
    assert FeatureStore({"model": "resnet14"}).missing(keys(0, 1)) == [0]


def test_of_equal_images_one_is_computed():
    assert FeatureStore(IDENTITY).missing([*keys(0, 2), *keys(0, 3)]) == [0, 1, 4]


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "text", "delete"])
def test_a_damaged_shard_is_missing_and_is_computed_again(damage):
    store = FeatureStore(IDENTITY)
    store.add(keys(0, 5), rows(0, 5))
    (shard,) = store.folder.glob("*.safetensors")
    whole = shard.read_bytes()
    store.add(keys(5, 8), rows(5, 8))
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    contents = {"flip": bytes(flipped), "truncate": whole[:-7], "empty": b"", "text": b"nothing"}
    seen = FeatureStore(IDENTITY)
    seen._list_shards()  # before the damage
    if damage == "delete":
        shard.unlink()
    else:
        shard.write_bytes(contents[damage])
    for each in (FeatureStore(IDENTITY), seen):
        assert each.missing(keys(0, 8)) == [0, 1, 2, 3, 4]
        assert each.take(keys(5, 8)).tolist() == rows(5, 8).tolist()
    FeatureStore(IDENTITY).add(keys(0, 5), rows(0, 5))
    assert shard.read_bytes() == whole
    assert seen.missing(keys(0, 8)) == []


def test_features_that_are_no_numbers_are_refused():
    with pytest.raises(DataError, match="not finite"):
        FeatureStore(IDENTITY).add(keys(0, 1), torch.full((1, 4), float("nan")))


def test_a_changed_image_has_another_key_and_the_others_are_not_read_again(tmp_path, monkeypatch):
    dataset = photographs(tmp_path / "photos")
    old = 2 * RACY_NANOSECONDS
    for index in range(len(dataset.train)):
        path = dataset.train.path(index)
        os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - old))
    before = content_digests(dataset.train)
    changed = dataset.train.path(5)
    Image.new("RGB", (40, 40)).save(changed)
    os.utime(changed, ns=(0, 1))
    read, real = [], type(changed).open

    def opened(path, *arguments, **options):
        read.append(path)
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(changed), "open", opened)
        after = content_digests(dataset.train)
    assert [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other] == [5]
    assert [path for path in read if path.suffix == ".png"] == [changed]


def test_a_file_that_was_just_written_is_not_trusted_by_its_time(tmp_path):
    dataset = photographs(tmp_path / "photos", classes=2, images=1)
    path = dataset.train.path(0)
    before, status = content_digests(dataset.train), path.stat()
    content = bytearray(path.read_bytes())
    content[-20] ^= 1  # of the same size, at the same time
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert content_digests(dataset.train)[0] != before[0]


def test_a_file_that_is_gone_is_named(tmp_path):
    dataset = photographs(tmp_path / "photos")
    dataset.train.path(3).unlink()
    with pytest.raises(DataError, match=r"0/3\.png is not a readable image: No such file"):
        content_digests(dataset.train)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    dataset = photographs(tmp_path / "photos")
    path = dataset.train.path(3)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"0/3\.png is not a readable image: not a regular file"):
        content_digests(dataset.train)


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_augmented_views_follow_from_number_and_content(tmp_path, kind):
    dataset = photographs(tmp_path / "photos") if kind == "files" else replace(open_dataset("digits"), pad=3, flip=True)
    dataset = dataset if kind == "memory" else replace(dataset, input_size=32)
    views = ImageViews(dataset, dataset.train)
    requests = views.requests(views=3)[:8]
    assert [request[:2] for request in requests] == [(index, view) for index in (0, 1) for view in range(4)]
    pixels = [views[request] for request in requests]
    assert all(torch.equal(views[request], again) for request, again in zip(requests, pixels, strict=True))
    assert len({each.numpy().tobytes() for each in pixels}) == 8
    assert len({request.key for request in requests}) == 8
    other = ImageViews(dataset, dataset.train.subset([1, 0]))  # elsewhere in the list
    assert torch.equal(other[other.requests(views=3)[0]], pixels[4])
    assert torch.equal(other[other.requests(views=3)[3]], pixels[7])
    unflipped = ImageViews(replace(dataset, flip=False), dataset.train)
    assert requests[0].key == unflipped.requests(views=3)[0].key
    assert requests[1].key != unflipped.requests(views=3)[1].key


def test_small_images_are_scaled_to_the_network_and_grey_has_three_channels():
    dataset = open_dataset("digits").prepared_for(input_spec("tf_efficientnet_lite0", 48))
    views = ImageViews(dataset, dataset.train)
    pixels = views[views.requests()[0]]
    assert (tuple(pixels.shape), pixels.dtype) == ((3, 48, 48), torch.uint8)
    assert torch.equal(pixels[0], pixels[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_features_are_those_of_the_network(workers):
    dataset = open_dataset("digits")
    network = build_model("resnet8", 10, channels=1).eval()
    views = ImageViews(dataset, dataset.train.subset(range(70)))
    computed = torch.cat(list(compute_features(Extractor(network, views), views, views.requests(), workers)))
    images = (views.images.images.float() - torch.tensor(dataset.mean)) / torch.tensor(dataset.std)
    with torch.no_grad():
        torch.testing.assert_close(computed, pooled_features(network, images), rtol=1e-4, atol=1e-5)


def digits(images):
    """An extractor with some views that it can compute."""
    dataset = open_dataset("digits")
    views = ImageViews(dataset, dataset.train.subset(range(images)))
    return Extractor(build_model("resnet8", 10, channels=1), views), views, views.requests()


def test_workers_that_an_interrupt_reaches_go_on_until_their_parent_ends_them():
    with stop_signals(lambda: AssertionError("for the parent alone")):
        batches = compute_features(*digits(1000), 2)
        computed = [next(batches)]
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGINT)
        computed += batches
    assert sum(map(len, computed)) == 1000


def test_features_are_taken_without_a_connection_to_the_worker(monkeypatch):
    batches = compute_features(*digits(1000), 2)
    computed = [next(batches)]
    monkeypatch.setattr("torch.multiprocessing.reductions.rebuild_storage_fd", None)
    computed += batches
    assert sum(map(len, computed)) == 1000


def test_an_image_that_cannot_be_read_is_named_and_what_was_written_stays(tmp_path):
    dataset = replace(photographs(tmp_path / "photos", classes=3, images=100, size=8), input_size=8)
    broken = dataset.train.path(SHARD_SIZE + 7)
    broken.write_bytes(b"nothing")
    views = ImageViews(dataset, dataset.train)
    store, requests = FeatureStore(IDENTITY), views.requests()
    with pytest.raises(DataError, match=f"{broken.name} is not a readable image"):
        store_features(store, Extractor(build_model("resnet8", 3), views), views, requests, workers=2)
    missing = FeatureStore(IDENTITY).missing([request.key for request in requests])
    assert missing == list(range(SHARD_SIZE, len(requests)))


def test_the_head_is_not_part_of_the_backbone():
    network = build_model("tf_efficientnet_lite0", 5)
    before = backbone_sha256(network)
    torch.nn.init.ones_(network.classifier.weight)
    assert backbone_sha256(network) == before
    network.to(memory_format=torch.channels_last)
    assert backbone_sha256(network) == before
    network.bn2.running_mean[3] += 1e-3
    assert backbone_sha256(network) != before


def _fill(images, after):
    """Compute features, and end by SIGKILL after so many batches."""
    torch.set_num_threads(1)
    dataset = replace(open_dataset("digits"), train=images)
    views = ImageViews(dataset, images)
    network = build_model("resnet8", 10, channels=1)
    torch.nn.init.ones_(network.conv1.weight)
    calls = []

    def done(count):
        calls.append(count)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    store_features(FeatureStore(IDENTITY), Extractor(network, views), views, views.requests(), 2, done)


def test_a_killed_process_loses_the_shard_in_work_at_most():
    images = open_dataset("digits").train.subset(range(3 * SHARD_SIZE + 50))
    batches = SHARD_SIZE // 32 + 3
    alive, held = os.pipe()  # by the process and its workers
    process = multiprocessing.get_context("fork").Process(target=_fill, args=(images, batches))
    process.start()
    os.close(held)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert select.select([alive], [], [], 60)[0]
    assert os.read(alive, 1) == b""  # its workers have left, too
    os.close(alive)
    store = FeatureStore(IDENTITY)
    views = ImageViews(replace(open_dataset("digits"), train=images), images)
    missing = store.missing([request.key for request in views.requests()])
    distinct = len(set(content_digests(images)))
    assert 0 < len(missing) <= distinct - SHARD_SIZE


def test_the_cache_is_listed_and_cleared_but_for_what_is_in_use():
    assert (cached_features(), clear_features()) == ([], (0, []))
    for model, count in (("resnet8", 5), ("resnet14", 3)):
        FeatureStore({"model": model}).add(keys(0, count), rows(0, count))
    found = cached_features()
    assert [(each["identity"]["model"], each["images"]) for each in found] == [("resnet14", 3), ("resnet8", 5)]
    assert all(
        each["bytes"] == sum(path.stat().st_size for path in each["folder"].glob("*.safetensors")) for each in found
    )
    lock = FeatureStore({"model": "resnet8"}).lock()
    assert lock.acquire()
    freed, left = clear_features()
    lock.release()
    assert (freed, left) == (found[0]["bytes"], [found[1]["folder"]])
    assert [each["images"] for each in cached_features()] == [5]
    clear_features()
    assert not list((cache_folder() / "features").iterdir())


def test_threads_that_add_the_same_shard_do_not_disturb_one_another():
    threads = [threading.Thread(target=FeatureStore(IDENTITY).add, args=(keys(0, 9), rows(0, 9))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = FeatureStore(IDENTITY)
    assert store.missing(keys(0, 9)) == []
    assert len(list(store.folder.glob("*.safetensors"))) == 1


def test_images_in_memory_are_known_by_their_pixels():
    images = InMemoryImages(torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8), [0, 1, 0, 1])
    digests = content_digests(images)
    assert content_digests(images.subset([2, 0])) == [digests[2], digests[0]]
