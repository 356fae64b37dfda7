"""What commands have in common: where they print, results to standard output, all else to standard error; flags."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.text import Text
from tyro.conf import arg

from longtail.lab.cli.escape import escaped

DataDir = Annotated[Path | None, arg(metavar="DIR", help="Folder of the named data sets; else $LONGTAIL_DATA.")]


class _Console(Console):
    """Prints each string on a line, which only the terminal wraps, and without markup; escapes control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, sep: str = "\n", soft_wrap: bool | None = None, **options: Any) -> None:
        """Texts go on lines of their own."""
        is_text = all(isinstance(each, str) for each in objects)
        super().print(*objects, sep=sep, soft_wrap=is_text if soft_wrap is None else soft_wrap, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escaped(text), **options)


def console(width: int = 160) -> Console:
    """Standard output, as wide as a table may be where it is not a terminal."""
    return _Console(width=None if sys.stdout.isatty() else width)


def progress() -> Console:
    """Standard error."""
    return _Console(stderr=True)
