"""Where commands print: results to standard output, all else to standard error."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

__all__ = ["console", "print_json", "progress"]


def console() -> Console:
    """Standard output, as wide as a table needs where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 160)


def progress() -> Console:
    """Standard error."""
    return Console(stderr=True)


def print_json(content: Any) -> None:
    """For programs."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
