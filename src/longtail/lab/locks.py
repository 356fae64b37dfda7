"""Locks between processes, which end with the process that holds them."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import cast

from filelock import FileLock, Timeout

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A lock on a file, for one process at a time; that of a process that was killed is free at once.

    Args:
        path: the file, made if it is missing.
        with_folder: lock its folder, too, where the system can: then a lock file that somebody deletes lets nobody in.
    """

    def __init__(self, path: Path, with_folder: bool = False) -> None:
        self.path, self.with_folder = path, with_folder and fcntl is not None
        self._file: os.stat_result | None = None
        self._folder: int | None = None
        _LOCKS.add(self)
        self._lock = FileLock(path, thread_local=False, poll_interval=0.02, on_acquired=self._remember)

    def _remember(self, descriptor: int) -> None:
        self._file = os.fstat(descriptor)

    def acquire(self, wait: bool = True) -> bool:
        """Take it, or say that another process has it."""
        while True:
            try:
                self._lock.acquire(blocking=wait)
            except Timeout:
                return False
            if self._file is None:  # filelock before 3.30 ignores on_acquired
                self._remember(cast(int, self._lock._context.lock_file_fd))
            if self.with_folder and not self._lock_folder(wait):
                self.release()
                return False
            if self.is_held():
                return True
            self.release()  # the file was deleted meanwhile, and a lock on it keeps nobody out

    def _lock_folder(self, wait: bool) -> bool:
        """Lock the folder by its descriptor, which filelock cannot do."""
        self._folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError:  # a file system without such locks: the file alone is locked
            self._unlock_folder()
        return True

    def _unlock_folder(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
        self._folder = None

    def is_held(self) -> bool:
        """Whether it is still a lock: on the file or folder that others find, not on one that was deleted."""
        try:
            if self._folder is not None:
                return os.path.samestat(os.stat(self.path.parent), os.fstat(self._folder))
            return self._file is not None and os.path.samestat(os.stat(self.path), self._file)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self, delete: bool = False) -> None:
        """Let others have it, and delete the file if it is not to stay."""
        if delete and self.is_held():
            with contextlib.suppress(PermissionError):  # of Windows, where the file goes with the lock
                self.path.unlink()
        self._file = None
        self._unlock_folder()
        self._lock.release()


def _close_folders() -> None:
    """In a forked child, which would otherwise hold the lock of its parent beyond the parent's end."""
    for lock in _LOCKS:
        lock._unlock_folder()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_folders)
