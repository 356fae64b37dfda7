"""Which image files a folder holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from longtail.lab.data.decode import FORMATS
from longtail.lab.data.errors import DataError

__all__ = ["list_images"]

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
