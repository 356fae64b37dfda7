"""Files that are whole or not there, and where they go."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["Cache", "write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that whoever looks, and whenever the process dies, finds the old one or the new one, whole."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Cache:
    """What was found out about a folder, in the user's cache folder: it may be lost, and is found out again.

    Args:
        kind: what is kept.
        folder: what it is about.
        version: of the content's form; another version's is not read.
    """

    def __init__(self, kind: str, folder: Path, version: int = 1) -> None:
        key = hashlib.sha256(os.fsencode(os.path.abspath(folder))).hexdigest()[:16]
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.path = home / "longtail" / kind / f"{key}.json"
        self.version = version

    def load(self) -> dict[str, Any]:
        """What was saved, or nothing."""
        try:
            content = json.loads(self.path.read_bytes())
            return dict(content["content"]) if content["version"] == self.version else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def save(self, content: dict[str, Any]) -> None:
        """Keep it if there is a place for it; else it only takes longer the next time."""
        with contextlib.suppress(OSError):
            write_atomically(self.path, json.dumps({"version": self.version, "content": content}))
