"""Output that needs neither rich nor tyro: what commands print to standard output for programs, and plain tables."""

from __future__ import annotations

import csv
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from longtail.lab.cli.escape import ACTS_ON_TERMINAL, escaped

WIDEST = 64
"""Columns of a class name; the rest is cut off."""


def whole_numbers(texts: Sequence[str], source: str) -> list[int]:
    """Counts that a person wrote; ``source`` says where."""
    for text in texts:
        if not text.strip().isdecimal() or len(text.strip()) > 15:
            raise ValueError(f"{source}: a count must be a whole number, got {text.strip()[:30]!r}")
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


def print_line(text: str = "") -> None:
    """A line for people; control characters are escaped."""
    sys.stdout.write(escaped(text) + "\n")


def class_rows(
    classes: Sequence[dict[str, Any]], cells: Callable[[dict[str, Any]], list[str]], images: str, most: int
) -> tuple[list[list[str]], str]:
    """A row of cells for each class; of more than ``most``, the largest and the rarest, and a line on the others."""
    if len(classes) <= most:
        return [cells(each) for each in classes], ""
    by_size, half = sorted(classes, key=lambda each: each[images], reverse=True), most // 2
    rows = [cells(each) for each in (*by_size[:half], *by_size[-half:])]
    rows.insert(half, ["…", *[""] * (len(rows[0]) - 1)])
    others = f"{len(classes) - 2 * half:,} more are left out: --json lists all"
    return rows, f"the {half} largest and the {half} rarest classes; {others}"


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of text: names to the left, numbers to the right; control characters are escaped."""
    lines = [[cut(escaped(name)), *numbers] for name, *numbers in (heads, *rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for name, *numbers in lines:
        cells = [name + " " * (widths[0] - _width(name))]
        cells += [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        print_line("  ".join(cells).rstrip())


def _width(text: str) -> int:
    """Columns that a terminal gives a text: two for each wide character, none for an accent."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cut(text: str, widest: int = WIDEST) -> str:
    """The text, or as much of it as fits into so many columns.

    Example:
        >>> cut("barred owl", 8)
        'barred …'
    """
    if _width(text) <= widest:
        return text
    while _width(text) >= widest:
        text = text[: -max(1, (_width(text) - widest) // 2)]
    return text + "…"
