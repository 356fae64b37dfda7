"""Images that cannot be read, found before the training instead of in the middle of it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from longtail.lab.data.dataset import ImageDataset, ImageFiles, Images
from longtail.lab.data.decode import check_image
from longtail.lab.data.errors import DataError
from longtail.lab.files import Cache

__all__ = ["unreadable_images", "without_unreadable_images"]


def without_unreadable_images(dataset: ImageDataset, console: Console | None = None) -> ImageDataset:
    """The data set without the images that cannot be read; its notes say which those are."""
    notes = list(dataset.notes)
    splits: dict[str, Images] = {}
    for split, images in (("train", dataset.train), ("test", dataset.test)):
        broken = unreadable_images(images, console) if isinstance(images, ImageFiles) else {}
        splits[split] = images.subset(np.setdiff1d(np.arange(len(images)), list(broken)))
        if broken:
            notes.append(f"skipped {len(broken):,} of {len(images):,} {split} images")
            notes += broken.values()
    try:
        return replace(dataset, train=splits["train"], test=splits["test"], notes=tuple(notes))
    except DataError as error:
        reasons = "; ".join(note for note in notes[len(dataset.notes) :] if not note.startswith("skipped"))
        raise DataError(f"{error} that can be read: {reasons:.400}") from None


def unreadable_images(files: ImageFiles, console: Console | None = None) -> dict[int, str]:
    """Decode every image, and say what is wrong with those that cannot be.

    What was found is kept in the user's cache folder: a file that has not changed since is not decoded again.

    Returns:
        From the index of a broken image to a line that names the file and the reason.

    Example:
        >>> unreadable_images(ImageFiles(Path("nowhere"), ["owl.jpg"], [0]))
        {0: 'nowhere/owl.jpg is no readable image: No such file or directory'}
    """
    cache = Cache("checked", files.root, version=3)
    known: dict[str, list[str]] = cache.load()
    paths = [files.path(index) for index in range(len(files))]
    stamps = [_stamp(path) for path in paths]
    new = [
        index for index, path in enumerate(paths) if known.get(str(path), [""])[0] != stamps[index] or not stamps[index]
    ]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = threads.map(lambda index: _reason(paths[index]), new)
        if console and console.is_terminal:
            found = iter(track(found, "checking images", len(new), console=console, transient=True))
        try:
            for index, (reason, lasting) in zip(new, found, strict=True):
                known[str(paths[index])] = [stamps[index] if lasting else "", reason]
        finally:
            if new:
                cache.save(known)
    return {index: known[str(path)][1] for index, path in enumerate(paths) if known[str(path)][1]}


def _stamp(path: Path) -> str:
    """Changes when the file does."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _reason(path: Path) -> tuple[str, bool]:
    """What is wrong with an image, if anything, and whether it will be until the file changes."""
    try:
        check_image(path)
    except DataError as error:
        # Rights, a disk that is away: the file itself may be good.
        passing = isinstance(error.__context__, OSError) and error.__context__.errno is not None
        return str(error), not passing
    return "", True
