"""What commands have in common: where they print, results to standard output, all else to standard error; flags."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import arg

from longtail.lab.config import ConfigError

__all__ = ["DataDir", "console", "is_first_process", "print_json", "progress", "whole_numbers"]

DataDir = Annotated[Path | None, arg(metavar="DIR", help="Folder of the data sets; $LONGTAIL_DATA by default.")]


def console(width: int = 160) -> Console:
    """Standard output, as wide as a table may be where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else width, highlight=False, markup=False)


def progress() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, markup=False)


def is_first_process() -> bool:
    """Whether this is the first of a training's processes: torchrun numbers them all, --devices those of a machine."""
    return not int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


def whole_numbers(texts: Sequence[str], source: str) -> list[int]:
    """Counts that a person wrote; ``source`` says where."""
    for text in texts:
        if not text.strip().isdecimal() or len(text.strip()) > 15:
            raise ConfigError(f"{source}: a count must be a whole number, got {text.strip()[:30]!r}")
    return [int(text) for text in texts]


def print_json(content: Any) -> None:
    """For programs."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
