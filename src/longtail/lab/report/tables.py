"""One model of a table, with the tables of runs; the terminal, CSV and the page render it."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longtail.lab.config import shortest
from longtail.lab.data import GROUPS

if TYPE_CHECKING:
    import rich.table
    from pandas import DataFrame

__all__ = [
    "Cell",
    "Column",
    "Line",
    "Table",
    "column_title",
    "comparison",
    "is_missing",
    "known_columns",
    "number_cell",
    "percent_cell",
    "problem_table",
    "run_table",
    "setting_table",
    "shown",
]

Row = dict[str, Any]

MISSING = "–"
"""What is shown where there is nothing."""

SHORT = 20
"""Texts of so many characters are never wrapped."""

SHARED = {"data": "{}", "imbalance": "imbalance {}", "model": "{}", "epochs": "{} epochs"}
"""How columns are told that are the same in all rows."""


@dataclass(frozen=True)
class Column:
    """Of a table.

    Args:
        name: its header.
        numeric: whether it is set to the right and sorted as numbers.
        shared: how the terminal tells a value that all rows have, above the table and in place of the column.
    """

    name: str
    numeric: bool = True
    shared: str = ""


@dataclass(frozen=True)
class Cell:
    """Of a table.

    Args:
        text: what is shown.
        value: what it is sorted by; None is last.
        note: what is shown beside it, smaller.
    """

    text: str
    value: float | str | None = None
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A row of a table.

    Args:
        cells: one for each column.
        data: data set that it is filtered by.
        loss: loss that it is filtered by.
    """

    cells: list[Cell]
    data: str = ""
    loss: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells: one model for the terminal, CSV and the page.

    Args:
        columns: headers.
        lines: rows, in the order that they have at first.
        left_out: rows that there are beyond them.
    """

    columns: list[Column]
    lines: list[Line]
    left_out: int = 0

    def to_rich(self) -> rich.table.Table:
        """For the terminal: only long texts are wrapped."""
        from rich.table import Table as RichTable

        title, cells = [], []
        table = RichTable(box=None, pad_edge=False, title_justify="left")
        for place, column in enumerate(self.columns):
            texts = [
                " ".join(filter(None, (cell.text, cell.note))) for cell in (line.cells[place] for line in self.lines)
            ]
            if column.shared and len(set(texts)) == 1:
                title += [column.shared.format(texts[0])] if texts[0] != MISSING else []
                continue
            cells.append(texts)
            is_short = column.numeric or max(map(len, texts), default=0) <= SHORT
            table.add_column(
                column.name, justify="right" if column.numeric else "left", no_wrap=is_short, overflow="fold"
            )
        for row in zip(*cells, strict=True):
            table.add_row(*row)
        table.title = ", ".join(title) if title else None
        return table

    def to_csv(self) -> str:
        """For spreadsheets."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([[cell.text for cell in line.cells] for line in self.lines])
        return text.getvalue()


def setting_table(frame: DataFrame) -> Table:
    """One row for each setting: mean and spread over seeds, groups, difference from the plain loss, published error.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from longtail.lab.config import RunConfig
        >>> from longtail.lab.experiments import load_results
        >>> from longtail.lab.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     setting_table(load_results(runs)).lines
        []
    """
    from longtail.lab.experiments.aggregate import deltas, summarize_results
    from longtail.lab.experiments.results import SETTING, row_key, telling_columns, to_records

    settings, changes = to_records(summarize_results(frame)), to_records(deltas(frame))
    change_of = {row_key(row, SETTING): row for row in changes}
    names = telling_columns(settings, known_columns(settings))
    groups = [name for name in GROUPS if any(row[f"{name}_mean"] is not None for row in settings)]
    compared = any(row["pairs"] for row in changes)
    known = any(row["published"] is not None for row in settings)
    columns = [
        Column("loss", numeric=False),
        *(Column(column_title(name), _is_numeric(settings, name), SHARED.get(name, "")) for name in names),
    ]
    columns += [Column(name) for name in ("n", "error %", *(f"{name} %" for name in groups))]
    columns += [Column("Δ error")] * compared + [Column("published (full protocol)")] * known
    lines = []
    for row in settings:
        change = change_of.get(row_key(row, SETTING))
        cells = [Cell(row["method"], row["method"]), *(value_cell(row[name]) for name in names), value_cell(row["n"])]
        cells += [number_cell(row["error_mean"], "" if row["error_std"] is None else f"± {row['error_std']:.2f}")]
        cells += [percent_cell(row[f"{name}_mean"]) for name in groups]
        cells += [difference_cell(change)] * compared + [number_cell(row["published"])] * known
        lines.append(Line(cells, row["data"], row["loss"]))
    return Table(columns, lines)


def run_table(frame: DataFrame) -> Table:
    """One row for each run, whether it is complete or not.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from longtail.lab.config import RunConfig
        >>> from longtail.lab.experiments import load_results
        >>> from longtail.lab.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     [cell.text for cell in run_table(load_results(runs)).lines[0].cells]
        ['a', 'unfinished', 'softmax', '0', '–', '–', '–', '–']
    """
    from longtail.lab.experiments.results import to_records

    rows = to_records(frame)
    groups = [name for name in GROUPS if any(row[name] is not None for row in rows)]
    names = ("error %", "best %", *(f"{name} %" for name in groups), "balanced accuracy %", "seconds")
    columns = [Column(name, numeric=False) for name in ("run", "status", "loss")]
    columns += [Column(name) for name in ("seed", *names)]
    lines = []
    for row in rows:
        cells = [Cell(row["run_id"], row["run_id"]), *(value_cell(row[name]) for name in ("status", "method", "seed"))]
        cells += [number_cell(row["error"]), number_cell(row["best_error"])]
        cells += [percent_cell(row[name]) for name in (*groups, "balanced_accuracy")]
        cells.append(number_cell(row["seconds"], form=",.1f"))
        lines.append(Line(cells, row["data"] or "", row["loss"] or ""))
    return Table(columns, lines)


def problem_table(frame: DataFrame) -> Table:
    """The runs that are failed, unfinished or damaged, and why.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from longtail.lab.config import RunConfig
        >>> from longtail.lab.experiments import load_results
        >>> from longtail.lab.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     [cell.text for cell in problem_table(load_results(runs)).lines[0].cells]
        ['unfinished', 'a', '0 of 200 epochs']
    """
    from longtail.lab.experiments.results import to_records

    names = ("status", "run_id", "problem")
    rows = [row for row in to_records(frame) if row["status"] != "complete"]
    rows.sort(key=lambda row: ("failed", "damaged", "unfinished").index(row["status"]))
    columns = [Column(name, numeric=False) for name in ("status", "run", "problem")]
    return Table(columns, [Line([value_cell(row[name]) for name in names], row["data"] or "") for row in rows])


def known_columns(rows: list[Row]) -> list[str]:
    """Columns that are always shown, where they say anything."""
    from longtail.lab.experiments.results import FIRST

    return [name for name in FIRST if any(row[name] is not None for row in rows)]


def column_title(name: str) -> str:
    """A column's name, for people."""
    return {"model": "network"}.get(name, name.replace("_", " "))


def _is_numeric(rows: list[Row], name: str) -> bool:
    return all(isinstance(row[name], (int, float, type(None))) for row in rows)


def shown(value: Any) -> str:
    """A value of a configuration, for people."""
    return MISSING if value is None else shortest(value)


def is_missing(value: float | None) -> bool:
    """Whether there is no number."""
    return value is None or math.isnan(value)


def value_cell(value: Any) -> Cell:
    return Cell(shown(value), value if isinstance(value, (int, float, str, type(None))) else shown(value))


def number_cell(value: float | None, note: str = "", form: str = ".2f") -> Cell:
    """A number; a dash where there is none."""
    return Cell(MISSING) if value is None else Cell(f"{value:{form}}", value, note)


def percent_cell(value: float | None) -> Cell:
    """A fraction in percent."""
    return number_cell(None if value is None or is_missing(value) else 100 * value, form=".1f")


def difference_cell(change: Row | None) -> Cell:
    """A mean difference and its interval; nothing for the plain loss itself."""
    if change is None:
        return Cell("")
    low, high = change["error_low"], change["error_high"]
    return number_cell(change["error_delta"], "" if low is None else f"[{low:+.2f}, {high:+.2f}]", "+.2f")


def comparison(title: str, finals: dict[str, Row]) -> Table:
    """Metrics of several results beside each other.

    Args:
        title: of the first column.
        finals: metrics by name.

    Example:
        >>> final = {"error": 8.5, "balanced_accuracy": 0.9, "many": 0.95, "medium": None, "few": 0.8}
        >>> print(comparison("loss", {"softmax": final}).to_csv(), end="")
        loss,error %,balanced accuracy %,many %,few %
        softmax,8.50,90.0,95.0,80.0
    """
    groups = [name for name in GROUPS if any(final[name] is not None for final in finals.values())]
    names = ("error %", "balanced accuracy %", *(f"{name} %" for name in groups))
    columns = [Column(title, numeric=False), *(Column(name) for name in names)]
    lines = []
    for name, final in finals.items():
        recalls = [percent_cell(final[key]) for key in ("balanced_accuracy", *groups)]
        lines.append(Line([Cell(name, name), number_cell(final["error"]), *recalls]))
    return Table(columns, lines)
