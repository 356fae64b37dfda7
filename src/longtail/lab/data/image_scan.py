"""Which image files a folder holds: listed once, then from a cache that notices changes."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from longtail.lab.data.decode import FORMATS
from longtail.lab.data.errors import DataError
from longtail.lab.files import Cache

__all__ = ["list_images"]

IMAGE_ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)

# The clock of a file system may be this coarse: a folder changed so shortly before it was listed may change again
# without a new time of change.
COARSE_CLOCK_NS = 2_000_000_000


@dataclass(frozen=True)
class Folder:
    """What one folder held when it was listed."""

    changed: str
    """Times of its last change: of its content, which anybody can set, and the system's own, which nobody can."""
    settled: bool
    """Whether it had been left alone for long enough that the next change shows in ``changed``."""
    folders: list[str]
    images: list[str]
    others: list[str]
    """Files that are no images."""


def list_images(root: Path) -> dict[str, Folder]:
    """All folders below ``root`` with the names of their images, both sorted; hidden files and folders do not count.

    Folders are keyed by their path from ``root`` with ``/`` between the parts; ``root`` itself is ``""``. Links are
    followed. A folder that has not changed since the last time is not read again: its times of change, which the system
    sets whenever something in it appears, disappears or is renamed, are compared with the cache.
    """
    top = os.path.abspath(root)
    cache = Cache("listings", root, version=2)
    known = {inner_path: Folder(**folder) for inner_path, folder in cache.load().items()}
    listing: dict[str, Folder] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(top),))]
    while waiting:
        inner_path, above = waiting.pop()
        listing[inner_path] = folder = _list_folder(
            os.path.join(top, inner_path) if inner_path else top, known.get(inner_path)
        )
        for name in folder.folders:
            inner = f"{inner_path}/{name}" if inner_path else name
            # Only a link can lead back up, so only links need to be resolved.
            path = os.path.join(top, inner)
            real = os.path.realpath(path) if os.path.islink(path) else os.path.join(above[-1], name)
            if real in above:
                raise DataError(f"{path} is a link that leads back to {real}: a loop")
            waiting.append((inner, (*above, real)))
    if listing != known:
        cache.save({inner_path: asdict(folder) for inner_path, folder in listing.items()})
    return dict(sorted(listing.items()))


def _list_folder(path: str, known: Folder | None) -> Folder:
    try:
        status = os.stat(path)
        changed = f"{status.st_mtime_ns} {status.st_ctime_ns}"
        if known and known.settled and known.changed == changed:
            return known
        folders, images, others = [], [], []
        dangling = False
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lower().endswith(IMAGE_ENDINGS):
                    images.append(entry.name)
                else:
                    others.append(entry.name)
                dangling = dangling or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError as error:
        raise DataError(f"cannot read {error.filename or path}: {error.strerror}") from None
    # What a link leads to may appear later, on a disk that is mounted then, and changes nothing here.
    settled = time.time_ns() - status.st_ctime_ns > COARSE_CLOCK_NS and not dangling
    return Folder(changed, settled, sorted(folders), sorted(images), sorted(others))
