"""What commands have in common: where they print, results to standard output, all else to standard error; flags."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import arg

from longtail.lab.cli import is_first_process
from longtail.lab.config import ConfigError

__all__ = ["AsJson", "DataDir", "console", "is_first_process", "print_json", "progress", "whole_numbers"]

AsJson = Annotated[bool, arg(name="json", help="Print JSON.")]
DataDir = Annotated[Path | None, arg(metavar="DIR", help="Folder of the data sets; $LONGTAIL_DATA by default.")]


def console() -> Console:
    """Standard output, as wide as a table needs where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)


def progress() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, markup=False)


def whole_numbers(texts: Sequence[str], source: str) -> list[int]:
    """Counts that a person wrote; ``source`` says where."""
    for text in texts:
        if not text.strip().isdecimal() or len(text.strip()) > 15:
            raise ConfigError(f"{source}: a count must be a whole number, got {text.strip()[:30]!r}")
    return [int(text) for text in texts]


def print_json(content: Any) -> None:
    """For programs."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
