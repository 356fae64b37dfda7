"""The named data sets: how each is opened, and where it comes from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from longtail._checks import check_choice
from longtail.lab.data.cifar import ARCHIVES, LAYOUTS, cifar_sources, open_cifar
from longtail.lab.data.dataset import ImageDataset
from longtail.lab.data.digits import open_digits
from longtail.lab.data.errors import DataError
from longtail.lab.data.fetch import Archive, fetch
from longtail.lab.data.file_cache import without_unreadable_images
from longtail.lab.data.image_folder import ImageFolderOptions, open_image_folder
from longtail.lab.data.imagenet import open_imagenet
from longtail.lab.data.inaturalist import open_inaturalist
from longtail.lab.files import cache_folder

OnError = Literal["stop", "skip"]

INATURALIST = "https://ml-inat-competition-datasets.s3.amazonaws.com"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set that has a name."""

    about: str
    open: Callable[[Path], ImageDataset]
    """From the data folder."""
    sources: tuple[str, ...]
    """Files and folders below the data folder; if one of them exists, so does the data set."""
    archives: tuple[Archive, ...] = ()
    """What is downloaded."""
    subfolder: str = ""
    """Where in the data folder the archives are unpacked."""
    origin: str = "embedded: there is nothing to fetch"
    """Where it comes from if it cannot be downloaded."""

    def is_in(self, folder: Path) -> bool:
        """Whether it seems to be there; opening it tells whether all of it is."""
        return any((folder / source).exists() for source in self.sources)


def _inaturalist(path: str, md5: str, *holds: str) -> Archive:
    return Archive(url=f"{INATURALIST}/{path}", md5=md5, holds=holds)


CATALOG = {
    "digits": Entry(
        about="handwritten digits, 8 × 8, 10 classes; embedded", open=lambda folder: open_digits(), sources=("/",)
    ),
    **{
        name: Entry(
            about=about,
            open=partial(open_cifar, name),
            sources=cifar_sources(name),
            archives=(ARCHIVES[next(iter(LAYOUTS[name]))],),
        )
        for name, about in (
            ("cifar10", "photographs, 32 × 32, 10 classes"),
            ("cifar20", "CIFAR-100 with its 20 coarse classes"),
            ("cifar100", "photographs, 32 × 32, 100 classes"),
        )
    },
    # Addresses and checksums: https://github.com/visipedia/inat_comp
    "inaturalist2017": Entry(
        about="species, 5,089 classes, imbalance 435; 186 GB",
        open=partial(open_inaturalist, 2017),
        sources=("inaturalist2017/train2017.json", "train2017.json"),
        subfolder="inaturalist2017",
        archives=(
            _inaturalist(
                "2017/train_val2017.zip", "444c835f6459867ad69fcb36478786e7", "train2017.json", "val2017.json"
            ),
            _inaturalist("2017/train_val_images.tar.gz", "7c784ea5e424efaec655bd392f87301f", "train_val_images"),
        ),
    ),
    "inaturalist2018": Entry(
        about="species, 8,142 classes, imbalance 500; 120 GB",
        open=partial(open_inaturalist, 2018),
        sources=("inaturalist2018/train2018.json", "train2018.json"),
        subfolder="inaturalist2018",
        archives=(
            _inaturalist("2018/train2018.json.tar.gz", "bfa29d89d629cbf04d826a720c0a68b0", "train2018.json"),
            _inaturalist("2018/val2018.json.tar.gz", "f2ed8bfe3e9901cdefceb4e53cd3775d", "val2018.json"),
            _inaturalist("2018/train_val2018.tar.gz", "b1c6952ce38f31868cc50ea72d066cc3", "train_val2018"),
        ),
    ),
    "imagenet": Entry(
        about="ILSVRC 2012, 1,000 classes",
        open=open_imagenet,
        sources=("imagenet", "ILSVRC2012", "ILSVRC"),
        origin="only available with an account at https://image-net.org: put its folders train and val into the folder "
        "imagenet of the data folder",
    ),
}


def data_folder(given: Path | str | None = None) -> Path:
    """The folder of the data sets: as given, or ``$LONGTAIL_DATA``, or one in the user's cache folder.

    Example:
        >>> data_folder(Path("data")).as_posix()
        'data'
    """
    return Path(given or os.environ.get("LONGTAIL_DATA") or cache_folder() / "data")


def open_dataset(
    data: str | Path,
    data_dir: Path | str | None = None,
    *,
    files: ImageFolderOptions = ImageFolderOptions(),
    on_error: OnError = "stop",
    console: Console | None = None,
) -> ImageDataset:
    """Open a data set by its name, or your own images by their path.

    Args:
        data: a name of ``CATALOG``, or a folder or list of images.
        data_dir: where named data sets are; see :func:`data_folder`.
        files: how your own images are read.
        on_error: ``"skip"`` decodes every image file first, and leaves out those that cannot be; with ``"stop"`` a
            broken one stops whoever loads it.
        console: where to show progress.

    Example:
        >>> digits = open_dataset("digits")
        >>> len(digits.train), len(digits.test), digits.classes[:3]
        (1297, 500, ('0', '1', '2'))
    """
    check_choice("on_error", on_error, ("stop", "skip"))
    if str(data) in CATALOG:
        if not files.is_default:
            raise DataError(f"{data} has its own classes and test images: other ones are only for your own images")
        dataset = CATALOG[str(data)].open(data_folder(data_dir))
    elif str(data) and Path(data).exists():
        dataset = open_image_folder(Path(data), files, check_lists=on_error == "stop")
    elif os.sep in str(data) or Path(data).suffix:
        raise DataError(f"{data} does not exist")
    else:
        check_choice("data set", str(data), tuple(CATALOG), ", or give an existing folder or list of your own images")
    return without_unreadable_images(dataset, console) if on_error == "skip" else dataset


def fetch_dataset(
    name: str, data_dir: Path | str | None = None, *, mirror: str | None = None, console: Console | None = None
) -> Path:
    """Download a data set, verify it, and unpack it.

    Args:
        name: one of ``CATALOG``.
        data_dir: where to; see :func:`data_folder`.
        mirror: address of a folder that holds the same archives, to take instead of the official one.
        console: where to show progress.

    Returns:
        The folder it is in.

    Example:
        >>> fetch_dataset("digits")
        Traceback (most recent call last):
        longtail.lab.data.errors.DataError: digits is embedded: there is nothing to fetch
    """
    check_choice("data set", name, tuple(CATALOG))
    entry = CATALOG[name]
    if not entry.archives:
        raise DataError(f"{name} is {entry.origin}")
    folder = data_folder(data_dir) / entry.subfolder
    for archive in entry.archives:
        fetch(archive, folder, url=f"{mirror.rstrip('/')}/{archive.name}" if mirror else None, console=console)
    return folder
