"""What commands have in common: where they print, results to standard output, all else to standard error; flags."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import arg

from longtail.lab.cli import is_first_process
from longtail.lab.cli.escape import ACTS_ON_TERMINAL, escaped
from longtail.lab.config import ConfigError

__all__ = [
    "DataDir",
    "console",
    "is_first_process",
    "print_classes",
    "print_csv",
    "print_json",
    "progress",
    "whole_numbers",
]

DataDir = Annotated[Path | None, arg(metavar="DIR", help="Folder of the data sets; $LONGTAIL_DATA by default.")]


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
    table: Table,
    classes: Sequence[dict[str, Any]],
    cells: Callable[[dict[str, Any]], Sequence[str]],
    images: str = "images",
    most: int = 24,
) -> None:
    """Print a line for each class; of more than ``most``, those of the largest and the rarest.

    Args:
        out: where to.
        table: with its columns.
        classes: one row each.
        cells: from a row to its line.
        images: what of a row tells how large the class is.
        most: lines.
    """
    half = most // 2
    left_out = len(classes) - 2 * half if len(classes) > most else 0
    if left_out:
        classes = sorted(classes, key=lambda row: row[images], reverse=True)
        rarest = classes[-half:]
    for row in classes[:half] if left_out else classes:
        table.add_row(*cells(row))
    if left_out:
        table.add_row("…")
        for row in rarest:
            table.add_row(*cells(row))
    out.print(table)
    if left_out:
        out.print(f"the {half} largest and the {half} rarest classes; {left_out:,} more are left out: --json has all")


def whole_numbers(texts: Sequence[str], source: str) -> list[int]:
    """Counts that a person wrote; ``source`` says where."""
    for text in texts:
        if not text.strip().isdecimal() or len(text.strip()) > 15:
            raise ConfigError(f"{source}: a count must be a whole number, got {text.strip()[:30]!r}")
    return [int(text) for text in texts]


def print_json(content: Any) -> None:
    """For programs: every name as it is, with JSON's own escapes."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(
        ACTS_ON_TERMINAL.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)
    )


def print_csv(rows: Iterable[Sequence[object]]) -> None:
    """For people and programs, row by row; control characters are escaped, as in all that people read."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    for row in rows:
        table.writerow([escaped(str(cell)) for cell in row])
