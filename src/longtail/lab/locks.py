"""Locks between processes, which end with the process that holds them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

__all__ = ["Lock"]


class Lock:
    """A lock on a file, for one process at a time; that of a process that was killed is free at once.

    Args:
        path: the file, made if it is missing.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, Lock(Path(folder) / "a.lock") as lock:
        ...     lock.is_held(), Lock(lock.path).acquire(wait=False)
        (True, False)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: os.stat_result | None = None
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
            if self.is_held():
                return True
            self.release()  # the file was deleted meanwhile, and a lock on it keeps nobody out

    def is_held(self) -> bool:
        """Whether it is still a lock: on the file that others find, not on one that was deleted."""
        try:
            return self._file is not None and os.path.samestat(os.stat(self.path), self._file)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self, delete: bool = False) -> None:
        """Let others have it, and delete the file if it is not to stay."""
        if delete and self.is_held():
            with contextlib.suppress(PermissionError):  # of Windows, where the file goes with the lock
                self.path.unlink()
        self._file = None
        self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
