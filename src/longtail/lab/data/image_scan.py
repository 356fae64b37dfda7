"""Which image files a folder holds."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from longtail.lab.data.decode import FORMATS
from longtail.lab.data.errors import DataError

IMAGE_ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)


class Folder(NamedTuple):
    """What one folder holds, sorted."""

    folders: list[str]
    images: list[str]
    others: list[str]
    """Files that are no images."""


def list_images(root: Path) -> dict[str, Folder]:
    """All folders below ``root`` with the names of their images, both sorted; hidden files and folders do not count.

    Folders are keyed by their path from ``root`` with ``/`` between the parts; ``root`` itself is ``""``. Links are
    followed.
    """
    top = os.path.abspath(root)
    listing: dict[str, Folder] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(top),))]
    while waiting:
        inner_path, above = waiting.pop()
        listing[inner_path] = folder = _list_folder(os.path.join(top, inner_path) if inner_path else top)
        for name in folder.folders:
            inner = f"{inner_path}/{name}" if inner_path else name
            # Only a link can lead back up, so only links need to be resolved.
            path = os.path.join(top, inner)
            real = os.path.realpath(path) if os.path.islink(path) else os.path.join(above[-1], name)
            if real in above:
                raise DataError(f"{path} is a link that leads back to {real}: a loop")
            waiting.append((inner, (*above, real)))
    return dict(sorted(listing.items()))


def missing_files(root: Path, paths: Iterable[str]) -> list[str]:
    """Those of these paths below ``root`` that are no files."""
    # A listing of each folder reads no inodes: on a cold disk it takes half the time of asking for each file.
    listing = functools.cache(lambda parent: _files_in(root / parent))
    unlisted = (path for path in paths if os.path.basename(path) not in listing(os.path.dirname(path)))
    # Some file systems take a name in another case or with accents of another form.
    return [path for path in unlisted if not os.path.isfile(os.path.join(root, path))]


def _files_in(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except (OSError, ValueError):  # ValueError: a name that no file system takes.
        return frozenset()


def _list_folder(path: str) -> Folder:
    found = Folder([], [], [])
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                is_image = entry.name.lower().endswith(IMAGE_ENDINGS)
                (found.folders if entry.is_dir() else found.images if is_image else found.others).append(entry.name)
    except OSError as error:
        raise DataError(f"cannot read {error.filename or path}: {error.strerror}") from None
    return Folder(*map(sorted, found))
