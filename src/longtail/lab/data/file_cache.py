"""What was found out about image files, kept until they change: which cannot be read, and digests of the others."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from longtail.lab.data.dataset import ImageDataset, ImageFiles, Images, InMemoryImages
from longtail.lab.data.decode import check_image
from longtail.lab.data.errors import DataError
from longtail.lab.files import cache_folder, write_atomically

VERSION = 4
"""Of the form of what is kept."""
RACY_NANOSECONDS = 2_000_000_000
"""A file that was written so shortly before it was hashed may be written again without a change of its time."""


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

    A file that has not changed since is not decoded again.

    Returns:
        From the index of a broken image to a line that names the file and the reason.

    Example:
        >>> unreadable_images(ImageFiles(Path("nowhere"), ["owl.jpg"], [0]))
        {0: 'nowhere/owl.jpg is not a readable image: No such file or directory'}
    """
    found = _cached_per_file("checked", files, _reason, console)
    return {index: reason for index, reason in enumerate(found) if reason}


def content_digests(images: Images) -> list[bytes]:
    """SHA-256 of the content of each image: of its file, or of its pixels.

    A file that has not changed since it was last hashed is not read again.
    """
    if isinstance(images, InMemoryImages):
        return [hashlib.sha256(pixels).digest() for pixels in images.images.contiguous().numpy()]
    return list(map(bytes.fromhex, _cached_per_file("digests", images, _digest)))


def _cached_per_file(
    kind: str, files: ImageFiles, ask: Callable[[Path], tuple[str, bool]], console: Console | None = None
) -> list[str]:
    """What ``ask`` says about each file, and whether that holds until the file changes: then it is kept."""
    key = hashlib.sha256(os.fsencode(os.path.abspath(files.root))).hexdigest()[:16]
    file = cache_folder() / kind / f"{key}.json"
    known: dict[str, list[str]] = {}
    with suppress(OSError, ValueError, KeyError, TypeError):  # it may be lost, or be of another version
        content = json.loads(file.read_bytes())
        known = dict(content["content"]) if content["version"] == VERSION else {}
    paths = [os.path.join(files.root, os.fsdecode(bytes(path))) for path in files.paths]
    stamps = [_stamp(path) for path in paths]
    new = [index for index, path in enumerate(paths) if known.get(path, [""])[0] != stamps[index] or not stamps[index]]
    if new:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            found = threads.map(lambda index: ask(Path(paths[index])), new)
            if console and console.is_terminal:
                found = iter(track(found, "checking images", len(new), console=console, transient=True))
            try:
                for index, (answer, lasting) in zip(new, found, strict=True):
                    known[paths[index]] = [stamps[index] if lasting else "", answer]
            finally:
                with suppress(OSError):  # else it only takes longer the next time
                    write_atomically(file, json.dumps({"version": VERSION, "content": known}))
    return [known[path][1] for path in paths]


def _stamp(path: str) -> str:
    """Changes when the file does."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _reason(path: Path) -> tuple[str, bool]:
    """What is wrong with an image, if anything."""
    try:
        check_image(path)
    except DataError as error:
        # Rights, a disk that is away: the file itself may be good.
        passing = isinstance(error.__context__, OSError) and error.__context__.errno is not None
        return str(error), not passing
    return "", True


def _digest(path: Path) -> tuple[str, bool]:
    """SHA-256 of a file."""
    try:
        now, status = time.time_ns(), path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for somebody to write into it
            raise DataError(f"{path} is not a readable image: not a regular file")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} is not a readable image: {error.strerror}") from None
    return digest, now - status.st_mtime_ns > RACY_NANOSECONDS
