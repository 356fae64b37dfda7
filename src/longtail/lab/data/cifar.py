"""CIFAR-10, CIFAR-20 and CIFAR-100, in the official binary and Python layouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from longtail.counts import IntArray
from longtail.lab.data.cifar_pickle import load_batch
from longtail.lab.data.dataset import ImageDataset, InMemoryImages
from longtail.lab.data.errors import DataError
from longtail.lab.data.fetch import Archive, unpack

PIXELS = 3 * 32 * 32
SITE = "https://www.cs.toronto.edu/~kriz/"

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Layout:
    """Where one form of a CIFAR release keeps its images, labels and names."""

    train: tuple[str, ...]
    test: str
    names: str
    """The file of the class names."""
    labels: str | int
    """Where a record has its label: a key of the Python form, the position of a byte of the binary form."""
    label_bytes: int = 0
    """Bytes before the pixels of a record; 0 for the Python form."""
    names_key: str = ""


def _of_100(kind: str, byte: int) -> dict[str, Layout]:
    names = f"{kind}_label_names"
    return {
        "cifar-100-binary": Layout(("train.bin",), "test.bin", f"{names}.txt", byte, label_bytes=2),
        "cifar-100-python": Layout(("train",), "test", "meta", f"{kind}_labels", names_key=names),
    }


BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

LAYOUTS = {
    "cifar10": {
        "cifar-10-batches-bin": Layout(
            tuple(f"{batch}.bin" for batch in BATCHES), "test_batch.bin", "batches.meta.txt", 0, label_bytes=1
        ),
        "cifar-10-batches-py": Layout(BATCHES, "test_batch", "batches.meta", "labels", names_key="label_names"),
    },
    "cifar20": _of_100("coarse", 0),
    "cifar100": _of_100("fine", 1),
}
"""Of each data set, by folder."""

IMAGES = (50_000, 10_000)
"""Training and test images of each official release."""

SIZES = {"cifar10": (10, 5_000), "cifar20": (20, 2_500), "cifar100": (100, 500)}
"""Classes of the official releases, and training images of each class."""

CLASSES = {"cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]}
"""Names in the order of their labels, where they are few; the others are read from the files."""

ARCHIVES = {
    folder: Archive(url=f"{SITE}{name}.tar.gz", md5=md5, holds=(folder,), bytes=size)
    for folder, name, md5, size in (
        # The checksums are those of https://www.cs.toronto.edu/~kriz/cifar.html.
        ("cifar-10-batches-bin", "cifar-10-binary", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
        ("cifar-10-batches-py", "cifar-10-python", "c58f30108f718f92721af3b95e74349a", 170_498_071),
        ("cifar-100-binary", "cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
        ("cifar-100-python", "cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
    )
}


def open_cifar(name: str, folder: Path) -> ImageDataset:
    """Read CIFAR from the first of its official forms in ``folder``; an archive is verified and unpacked first."""
    form = _find_form(name, folder)
    layout = LAYOUTS[name][form]
    read = _read_binary if layout.label_bytes else _read_pickled
    classes = _read_names(folder / form / layout.names, layout)
    splits: list[InMemoryImages] = []
    notes: list[str] = []
    for files, expected in zip((layout.train, (layout.test,)), IMAGES, strict=True):
        paths = [folder / form / file for file in files]
        parts = [_checked(path, *read(path, layout), classes) for path in paths]
        images = InMemoryImages(
            torch.from_numpy(np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)),
            np.concatenate([labels for _, labels in parts]),
        )
        if len(images) != expected:
            source = paths[0] if len(paths) == 1 else folder / form
            notes.append(f"{source} holds {len(images):,} images, the official release {expected:,}")
        splits.append(images)
    return ImageDataset(
        name=name,
        classes=classes,
        train=splits[0],
        test=splits[1],
        # Pixels become x / 128 - 1, as in the authors' code.
        mean=(128.0,) * 3,
        std=(128.0,) * 3,
        pad=4,
        flip=True,
        notes=tuple(notes),
    )


def cifar_sources(name: str) -> tuple[str, ...]:
    """The folders and archives that the data set can be in."""
    return (*LAYOUTS[name], *(ARCHIVES[form].name for form in LAYOUTS[name]))


def _find_form(name: str, folder: Path) -> str:
    for form in LAYOUTS[name]:
        if (folder / form).is_dir():
            return form
    for form in LAYOUTS[name]:
        if (folder / ARCHIVES[form].name).is_file():
            unpack(ARCHIVES[form], folder)
            return form
    sources = ", ".join(cifar_sources(name))
    raise DataError(f"{name} is not in {folder}: no {sources}; longtail data fetch {name} gets it")


def _read_names(path: Path, layout: Layout) -> tuple[str, ...]:
    if layout.names_key:
        names = load_batch(path).get(layout.names_key.encode())
        if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
            raise DataError(f"{path} has no list of names {layout.names_key!r}")
        return tuple(name.decode("utf-8", "replace") for name in names)
    return tuple(line.strip() for line in _read(path).decode("utf-8", "replace").splitlines() if line.strip())


def _read_binary(path: Path, layout: Layout) -> tuple[Pixels, IntArray]:
    records = np.frombuffer(_read(path), dtype=np.uint8)
    size = layout.label_bytes + PIXELS
    if not len(records) or len(records) % size:
        raise DataError(f"{path} is truncated: {len(records):,} bytes are not a whole number of records of {size:,}")
    records = records.reshape(-1, size)
    return records[:, layout.label_bytes :], records[:, int(layout.labels)].astype(np.int64)


def _read_pickled(path: Path, layout: Layout) -> tuple[Pixels, IntArray]:
    batch = load_batch(path)
    data, labels = batch.get(b"data"), batch.get(str(layout.labels).encode())
    pixels = getattr(data, "array", None)
    if pixels is None or pixels.shape[1:] != (PIXELS,):
        raise DataError(f"{path} has no images of shape (N, {PIXELS}) under 'data'")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{path} has no list of labels under {layout.labels!r}")
    return pixels, np.array(labels, dtype=np.int64)


def _checked(path: Path, pixels: Pixels, labels: IntArray, classes: tuple[str, ...]) -> tuple[Pixels, IntArray]:
    if len(pixels) != len(labels) or not len(labels):
        raise DataError(f"{path} has {len(pixels)} images and {len(labels)} labels")
    wrong = (labels < 0) | (labels >= len(classes))
    if wrong.any():
        record = int(np.argmax(wrong))
        raise DataError(f"{path} has label {labels[record]} at image {record}, but only {len(classes)} class names")
    return pixels, labels


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
