"""Files that are whole or not there, and where they go."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def with_name(folder: Path) -> Path:
    """The folder by a path that ends in its name, also where it is the current one."""
    return folder.resolve() if folder.name in ("", "..") else folder


def write_atomically(path: Path, content: str | bytes, make_folder: bool = True) -> None:
    """Write a file so that whoever looks, and whenever the process dies, finds the old one or the new one, whole."""
    data = content.encode() if isinstance(content, str) else content
    if make_folder:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which replaces the old one when all is written, and never if writing fails."""
    path = Path(os.path.realpath(path))  # a link stays, and what it leads to is replaced
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "Not a file that can be replaced", str(path))
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):  # the folder is gone
            os.unlink(name)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        os.unlink(name)
        raise


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written into, before hours go into what is to be in it."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "Not a folder", str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "Nothing can be written into it", str(there))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_folder() -> Path:
    """``longtail`` in the user's cache folder, or, for who has none, in the folder of temporary files."""
    try:
        home = Path.home() / ".cache"
    except RuntimeError:
        home = Path(tempfile.gettempdir())
    return Path(os.environ.get("XDG_CACHE_HOME") or home) / "longtail"
