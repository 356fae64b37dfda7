"""CIFAR in its official forms, whole and damaged."""

import dataclasses
import hashlib
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from longtail.lab.data import DataError, cifar, long_tailed_subset, open_dataset
from tests.lab.data.cifar_files import (
    COARSE,
    FINE,
    FORMS,
    NAMES_10,
    fine_labels,
    images_of,
    pack,
    python2_dump,
    python3_dump,
    write_release,
)
from tests.lab.data.test_subset import IMBALANCES, TOTALS

EACH_FORM = [(name, form) for name, forms in FORMS.items() for form in forms]


@pytest.mark.parametrize(("name", "form"), EACH_FORM)
@pytest.mark.parametrize("dump", [python2_dump, python3_dump])
def test_every_official_form_gives_the_same_images_and_labels(tmp_path, name, form, dump):
    write_release(tmp_path, form, dump=dump)
    dataset = open_dataset(name, tmp_path)
    if name == "cifar10":
        train, test = np.concatenate([images_of(batch, 20) for batch in range(5)]), images_of(5, 20)
        labels, classes = [place % 10 for place in range(20)] * 5, NAMES_10
    else:
        train, test = images_of(0, 100), images_of(1, 100)
        labels = fine_labels(100) if name == "cifar100" else [label // 5 for label in fine_labels(100)]
        classes = FINE if name == "cifar100" else COARSE
    assert (dataset.train.images.numpy() == train).all()
    assert (dataset.test.images.numpy() == test).all()
    assert dataset.train.labels.tolist() == labels
    assert list(dataset.classes) == classes
    assert dataset.notes[0].endswith("100 images, the official release 50,000")


@pytest.mark.parametrize(("name", "form"), EACH_FORM)
def test_an_archive_is_verified_and_unpacked_once(tmp_path, monkeypatch, name, form):
    archive = tmp_path / cifar.ARCHIVES[form].name
    write_release(tmp_path / "made", form)
    pack(tmp_path / "made", form, archive)
    with pytest.raises(DataError, match=f"{archive.name}"):
        open_dataset(name, tmp_path)  # it is not the official one
    assert not (tmp_path / form).exists()
    checksum = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(cifar.ARCHIVES, form, dataclasses.replace(cifar.ARCHIVES[form], md5=checksum))
    opened = open_dataset(name, tmp_path)
    archive.unlink()
    assert (open_dataset(name, tmp_path).train.images == opened.train.images).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["made", form])


def test_the_official_checksums_are_those_of_the_site():
    assert {archive.name: archive.md5 for archive in cifar.ARCHIVES.values()} == {
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    }


def test_a_missing_data_set_says_what_was_looked_for_and_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"cifar10 is not in .*cifar-10-batches-bin.*longtail data fetch cifar10"):
        open_dataset("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("data_batch_3.bin", lambda content: content[:-1], "is truncated"),
        ("data_batch_3.bin", lambda content: b"", "is truncated"),
        ("test_batch.bin", lambda content: b"\x0a" + content[1:], "label 10 at image 0, but only 10 class names"),
        ("data_batch_2.bin", None, "cannot read"),
        ("batches.meta.txt", None, "cannot read"),
        ("batches.meta.txt", lambda content: b"cat\ndog\n", "only 2 class names"),
    ],
)
def test_a_damaged_binary_file_is_named(tmp_path, file, damage, message):
    path = write_release(tmp_path, "cifar-10-batches-bin") / file
    if damage:
        path.write_bytes(damage(path.read_bytes()))
    else:
        path.unlink()
    with pytest.raises(DataError, match=message) as error:
        open_dataset("cifar10", tmp_path)
    assert "\n" not in str(error.value)
    assert ("data_batch_1" if file == "batches.meta.txt" and damage else file) in str(error.value)


BATCH = {b"data": images_of(0, 20).reshape(20, -1), b"labels": [0] * 20}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list"),
        ({b"labels": [0] * 20}, "no images of shape"),
        (BATCH | {b"data": BATCH[b"data"][:, 1:]}, "no images of shape"),
        (BATCH | {b"data": BATCH[b"data"].astype(np.float64)}, "refused to unpickle an array of b'f8'"),
        (BATCH | {b"labels": ["cat"] * 20}, "no list of labels"),
        (BATCH | {b"labels": [0] * 19}, "20 images and 19 labels"),
        (BATCH | {b"labels": [-1] * 20}, "label -1"),
    ],
)
def test_a_pickle_of_something_else_is_named(tmp_path, content, message):
    path = write_release(tmp_path, "cifar-10-batches-py") / "data_batch_4"
    python2_dump(content, path)
    with pytest.raises(DataError, match=f"data_batch_4.*{message}"):
        open_dataset("cifar10", tmp_path)


class Hostile:
    def __init__(self, call, *arguments):
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "call", [(os.system, "touch pwned"), (eval, "open('pwned', 'w')"), (os.mkdir, "pwned"), (np.load, "pwned")]
)
def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path, monkeypatch, protocol, call):
    monkeypatch.chdir(tmp_path)
    path = write_release(tmp_path, "cifar-10-batches-py") / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Hostile(*call)}, protocol))
    with pytest.raises(DataError, match=r"data_batch_1: refused to unpickle .*, which no CIFAR file needs"):
        open_dataset("cifar10", tmp_path)
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cnumpy\nndarray\n(I1000000000000\ntR.",  # an array of a terabyte
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01(I1000000000000\ntcnumpy\ndtype\n(U\x02u1tR\x89U\x01atb.",
        b"cnumpy.core.multiarray\n_reconstruct\n)R}U\x05arrayK\x01sb.",  # attributes by a dictionary
        b"cnumpy\ndtype\n(U\x01OtR.",
        b"c_codecs\nencode\n(U\x04rot1U\x05rot13tR.",
        b"Pname\n.",
        b"cos\nsystem\n.",
        b"c__builtin__\neval\n.",
        b"\x80\x02}q\x00(U",  # cut off
        b"not a pickle",
        b"",
    ],
)
def test_hand_made_opcodes_build_nothing(tmp_path, opcodes):
    path = write_release(tmp_path, "cifar-10-batches-py") / "data_batch_1"
    path.write_bytes(opcodes)
    with pytest.raises(DataError, match="data_batch_1") as error:
        open_dataset("cifar10", tmp_path)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def real_data():
    folder = os.environ.get("LONGTAIL_DATA")
    if not folder:
        pytest.skip("LONGTAIL_DATA does not name a folder with CIFAR")
    return Path(folder)


@pytest.mark.parametrize("name", FORMS)
def test_the_real_data_set_has_the_papers_totals(real_data, name):
    dataset = open_dataset(name, real_data)
    assert (len(dataset.train), len(dataset.test), dataset.notes) == (50_000, 10_000, ())
    assert len(set(dataset.counts.tolist())) == 1
    totals = [len(long_tailed_subset(dataset.train.labels, imbalance).indices) for imbalance in IMBALANCES]
    assert tuple(totals) == TOTALS[name]


def test_the_real_images_have_the_known_mean(real_data):
    images = open_dataset("cifar10", real_data).train.images
    mean = images.double().mean(dim=(0, 2, 3)).numpy()
    assert mean == pytest.approx([125.307, 122.950, 113.865], abs=1e-3)


def test_the_real_data_set_reads_the_same_from_pickles(real_data, tmp_path):
    binary = open_dataset("cifar10", real_data)
    write_release(tmp_path, "cifar-10-batches-py")
    for batch in range(5):
        part = slice(10_000 * batch, 10_000 * (batch + 1))
        python2_dump(
            {
                b"data": binary.train.images[part].numpy().reshape(10_000, -1),
                b"labels": binary.train.labels[part].tolist(),
            },
            tmp_path / "cifar-10-batches-py" / f"data_batch_{batch + 1}",
        )
    pickled = open_dataset("cifar10", tmp_path)
    assert (pickled.train.images == binary.train.images).all()
    assert (pickled.train.labels == binary.train.labels).all()
    shutil.rmtree(tmp_path / "cifar-10-batches-py")
