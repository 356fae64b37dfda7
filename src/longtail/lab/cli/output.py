"""What commands have in common: where they print, results to standard output, all else to standard error; flags."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.text import Text
from tyro.conf import arg

from longtail.lab.cli.escape import escaped
from longtail.lab.cli.plain import cut, largest_and_rarest, left_out_line
from longtail.lab.report.tables import text_table

__all__ = ["DataDir", "console", "print_classes", "progress"]

WIDEST = 32
"""Columns of a class name beside bars and numbers; the rest is cut off."""

DataDir = Annotated[Path | None, arg(metavar="DIR", help="Folder of the named data sets; else $LONGTAIL_DATA.")]


class _Console(Console):
    """Prints each string, and each cell of a table, on a line, as it is: no markup, and control characters escaped."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escaped(text), **options)


def console(width: int = 160) -> Console:
    """Standard output, as wide as a table may be where it is not a terminal."""
    return _Console(width=None if sys.stdout.isatty() else width)


def progress() -> Console:
    """Standard error."""
    return _Console(stderr=True)


def print_classes(
    out: Console,
    headers: Sequence[str],
    classes: Sequence[dict[str, Any]],
    cells: Callable[[dict[str, Any]], Sequence[str]],
    images: str = "images",
    most: int = 24,
) -> None:
    """Print a line for each class; of more than ``most``, those of the largest and the rarest.

    Args:
        out: where to.
        headers: of the columns; that of a bar is empty.
        classes: one row each.
        cells: from a row to its line, the name of the class first.
        images: what of a row tells how large the class is.
        most: lines.
    """
    largest, rarest = largest_and_rarest(classes, images, most)
    gap = [("…", *[""] * (len(headers) - 1))] if rarest else []
    rows = [*map(cells, largest), *gap, *map(cells, rarest)]
    rows = [(cut(name, WIDEST), *others) for name, *others in rows]
    out.print(text_table(headers, rows, numeric=[name for name in headers[1:] if name]).to_rich())
    if rarest:
        out.print(left_out_line(classes, most))
