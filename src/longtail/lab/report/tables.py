"""One model of a table, with the tables of runs; the terminal, Markdown and the page render it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from longtail.lab.config import shortest
from longtail.lab.data import GROUPS

if TYPE_CHECKING:
    import rich.table
    from pandas import DataFrame

Row = dict[str, Any]

MISSING = "–"
"""What is shown where there is nothing."""

ALL_GROUPS = ("rarest_quarter", *GROUPS)
"""Groups of classes by their training images, in the order of tables."""

SHARES = ("balanced_accuracy", "macro_f1", *ALL_GROUPS)

SHORT = 20
"""Texts of so many characters are never wrapped."""

GROUP_TITLES = tuple(f"{name.replace('_', ' ')} %" for name in ALL_GROUPS)
"""Columns that a narrow terminal does without first."""

SHARED = {"data": "{}", "imbalance": "imbalance {}", "model": "{}", "epochs": "{} epochs"}
"""How columns are told that are the same in all rows."""


def longest(texts: Iterable[str], words: bool = False) -> int:
    """Letters of the longest text, or of its longest word."""
    return max((len(part) for text in texts for part in (text.split() if words else [text])), default=0)


@dataclass(frozen=True)
class Column:
    """Of a table.

    Args:
        name: its header.
        numeric: whether it is set to the right and sorted as numbers.
        shared: how a value that all rows share is told, above the table and instead of the column.
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
class Table:
    """Rows of cells: one model for the terminal, Markdown and the page."""

    columns: list[Column]
    rows: list[list[Cell]]
    left_out: int = 0
    """Rows that there are beyond these."""

    def collapsed(self) -> tuple[str, Table]:
        """Values that all rows share, as a caption, and the table without their columns."""
        caption, kept = [], []
        for index, column in enumerate(self.columns):
            texts = {row[index].text for row in self.rows}
            if column.shared and len(texts) == 1:
                caption += [column.shared.format(text) for text in texts if text != MISSING]
            else:
                kept.append(index)
        rows = [[row[index] for index in kept] for row in self.rows]
        return ", ".join(caption), replace(self, columns=[self.columns[index] for index in kept], rows=rows)

    def to_rich(self, width: int | None = None) -> rich.table.Table:
        """For a terminal of so many columns: texts are wrapped, and columns of numbers left out rather than cut."""
        from rich.table import Table as RichTable
        from rich.text import Text

        caption, shown = self.collapsed()
        rows = [_texts(row) for row in shown.rows]
        texts = [[row[index] for row in rows] for index in range(len(shown.columns))]
        is_short = [column.numeric or longest(each) <= SHORT for column, each in zip(shown.columns, texts, strict=True)]
        least = [
            longest(each) if short else min(longest(each, True), SHORT)
            for each, short in zip(texts, is_short, strict=True)
        ]
        names = [column.name for column in shown.columns]
        kept, left_out = list(range(len(names))), []
        if width is not None and sum(map(max, least, map(len, names))) + 2 * len(names) - 2 > width:
            least = [max(each, longest([name], True)) for each, name in zip(least, names, strict=True)]
            numbers = [index for index in kept[1:] if shown.columns[index].numeric]
            groups = [index for index in numbers if names[index] in GROUP_TITLES]
            for index in [*groups, *reversed([each for each in numbers if each not in groups])]:
                if sum(least[each] for each in kept) + 2 * len(kept) - 2 > width:
                    kept.remove(index)
                    left_out.append(index)
            names = [textwrap.fill(name, max(room, 1)) for name, room in zip(names, least, strict=True)]
        table = RichTable(box=None, pad_edge=False, title_justify="left", title=caption or None, caption_justify="left")
        for index in kept:
            table.add_column(
                Text(names[index]),
                justify="right" if shown.columns[index].numeric else "left",
                no_wrap=is_short[index],
                overflow="fold",
                min_width=least[index],
            )
        for row in rows:
            table.add_row(*(row[index] for index in kept))
        if left_out:
            others = ", ".join(shown.columns[each].name for each in sorted(left_out))
            table.caption = f"a wider terminal also shows {others}"
        return table

    def to_markdown(self) -> str:
        """For documents."""
        header, rows = [column.name for column in self.columns], [_texts(row) for row in self.rows]
        lines = [f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in [header, *rows]]
        lines.insert(1, f"|{'|'.join('---:' if column.numeric else '---' for column in self.columns)}|")
        return "\n".join(lines) + "\n"


def _texts(row: list[Cell]) -> list[str]:
    return [" ".join(filter(None, (cell.text, cell.note))) for cell in row]


def text_table(headers: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[str] = ()) -> Table:
    """A table of texts.

    Example:
        >>> print(text_table(("loss", "error"), [("softmax", "8.5")]).to_markdown(), end="")
        | loss | error |
        |---|---|
        | softmax | 8.5 |
    """
    columns = [Column(name, numeric=name in numeric) for name in headers]
    return Table(columns, [[Cell(text, text) for text in row] for row in rows])


def setting_table(frame: DataFrame, differences: Mapping[str, Cell] | None = None) -> Table:
    """One row for each setting: mean and spread over seeds, groups, difference from the plain loss, published error.

    Settings of one data set, imbalance, network and training time are ranked by balanced accuracy, the best first.
    Differences by method, from a chosen baseline, replace those from the same loss without class weights.
    """
    from longtail.lab.experiments.aggregate import deltas, summarize_results
    from longtail.lab.experiments.results import SETTING, row_key, telling_columns, to_records

    settings, changes = to_records(summarize_results(frame)), to_records(deltas(frame))
    change_of = {row_key(row, SETTING): row for row in changes}
    names = telling_columns(settings, known_columns(settings))
    settings.sort(key=_rank)
    groups = [name for name in ALL_GROUPS if any(row[f"{name}_mean"] is not None for row in settings)]
    compared = bool(differences) if differences is not None else any(row["pairs"] for row in changes)
    known = any(row["published"] is not None for row in settings)
    columns = [
        Column("loss", numeric=False),
        *(Column(column_title(name), _is_numeric(settings, name), SHARED.get(name, "")) for name in names),
    ]
    names_of_metrics = ("balanced accuracy %", "error %", *(f"{column_title(name)} %" for name in groups))
    columns += [Column(name) for name in ("n", *names_of_metrics)]
    columns += [Column("Δ balanced accuracy")] * compared + [Column("published (full protocol)")] * known
    lines = []
    for row in settings:
        change = change_of.get(row_key(row, SETTING))
        cells = [
            Cell(row["method"], row["method"]),
            *(value_cell(row[name], name) for name in names),
            value_cell(row["n"]),
        ]
        cells += [percent_cell(row["balanced_accuracy_mean"], row["balanced_accuracy_std"])]
        cells += [number_cell(row["error_mean"], "" if row["error_std"] is None else f"± {row['error_std']:.2f}")]
        cells += [percent_cell(row[f"{name}_mean"]) for name in groups]
        changed = difference_cell(change) if differences is None else differences.get(row["method"], Cell(""))
        cells += [changed] * compared + [number_cell(row["published"])] * known
        lines.append(cells)
    return Table(columns, lines)


def _rank(row: Row) -> list[tuple[bool, Any]]:
    """Settings that can be compared side by side, and of these the best balanced accuracy first."""
    from longtail.lab.experiments.results import FIRST

    accuracy = row["balanced_accuracy_mean"]
    values = [*(row[name] for name in FIRST), None if accuracy is None else -accuracy]
    return [(value is not None, 0 if value is None else value) for value in values]


def run_table(frame: DataFrame) -> Table:
    """One row for each run, whether it is complete or not; columns that say nothing are left out."""
    from longtail.lab.experiments.results import to_records

    rows = to_records(frame)
    shares = [name for name in SHARES if any(row[name] is not None for row in rows)]
    status = ["status"] * any(row["status"] != "complete" for row in rows)
    names = ("error %", "best %", *(f"{column_title(name)} %" for name in shares), "seconds")
    columns = [Column(name, numeric=False) for name in ("run", *status, "loss")]
    columns += [Column(name) for name in ("seed", *names)]
    lines = []
    for row in rows:
        cells = [value_cell(row[name]) for name in ("run_id", *status, "method", "seed")]
        cells += [number_cell(row["error"]), number_cell(row["best_error"])]
        cells += [percent_cell(row[name]) for name in shares]
        cells.append(number_cell(row["seconds"], form=",.1f"))
        lines.append(cells)
    return Table(columns, lines)


def problem_table(frame: DataFrame) -> Table:
    """The runs that are failed, unfinished or damaged, and why."""
    from longtail.lab.experiments.results import to_records

    names = ("status", "run_id", "problem")
    rows = [row for row in to_records(frame) if row["status"] != "complete"]
    rows.sort(key=lambda row: ("failed", "damaged", "unfinished").index(row["status"]))
    columns = [Column(name, numeric=False) for name in ("status", "run", "problem")]
    return Table(columns, [[value_cell(row[name]) for name in names] for row in rows])


def candidate_table(candidates: list[Row]) -> Table:
    """The candidates of a search, as its ``result.json`` has them: the best first."""
    groups = [name for name in GROUPS if any(row.get(name) is not None for row in candidates)]
    names = ("folds", "balanced accuracy %", *(f"{name} %" for name in groups))
    columns = [Column("loss", numeric=False), *(Column(name) for name in names), Column("state", numeric=False)]
    lines = []
    for rank, row in enumerate(candidates):
        known = {"complete": "" if rank else "best", "failed": f"failed: {row.get('error')}"}
        cells = [value_cell(row["title"]), value_cell(len(row["scores"]))]
        cells += [
            percent_cell(row["balanced_accuracy"], row["spread"]),
            *(percent_cell(row.get(name)) for name in groups),
        ]
        lines.append([*cells, value_cell(known.get(row["state"], row["state"]))])
    return Table(columns, lines)


def known_columns(rows: list[Row]) -> list[str]:
    """Columns that are always shown, where they say anything."""
    from longtail.lab.experiments.results import FIRST

    return [name for name in FIRST if any(row[name] is not None for row in rows)]


def column_title(name: str) -> str:
    """A column's name, for people."""
    return {"model": "network", "macro_f1": "macro-F1", "f1": "F1", "fingerprint": "images"}.get(
        name, name.replace("_", " ")
    )


def _is_numeric(rows: list[Row], name: str) -> bool:
    return all(isinstance(row[name], (int, float, type(None))) for row in rows)


def shown(value: Any, name: str = "") -> str:
    """A value of a column, for people: a fingerprint of images by its first characters."""
    text = MISSING if value is None else shortest(value)
    return text[:8] if name == "fingerprint" else text


def value_cell(value: Any, name: str = "") -> Cell:
    """A value of a column."""
    return Cell(shown(value, name), value if isinstance(value, (int, float, str, type(None))) else shown(value))


def number_cell(value: float | None, note: str = "", form: str = ".2f") -> Cell:
    """A number; a dash where there is none."""
    return Cell(MISSING) if value is None or math.isnan(value) else Cell(f"{value:{form}}", value, note)


def percent_cell(value: float | None, spread: float | None = None) -> Cell:
    """A fraction in percent, and its standard deviation over seeds."""
    note = "" if spread is None else f"± {100 * spread:.1f}"
    return number_cell(None if value is None else 100 * value, note, form=".1f")


def interval_cell(value: float | None, interval: Sequence[float] | None) -> Cell:
    """A fraction in percent, and its confidence interval."""
    cell = percent_cell(value)
    return cell if interval is None else replace(cell, note=f"[{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]")


def difference_cell(change: Row | None) -> Cell:
    """A mean difference of balanced accuracies and its interval; nothing for the plain loss itself."""
    if change is None:
        return Cell("")
    value, low, high = (change[f"balanced_accuracy_{name}"] for name in ("delta", "low", "high"))
    note = "" if low is None else f"[{100 * low:+.1f}, {100 * high:+.1f}]"
    return number_cell(None if value is None else 100 * value, note, "+.1f")


def class_metrics_table(
    classes: Sequence[str], counts: Sequence[int], metrics: Row, images: str = "test images", most: int | None = None
) -> Table:
    """Recall, precision and F1 of each class, the class of the lowest F1 first; 95% intervals beside them.

    Metrics are those of :func:`longtail.lab.training.evaluate_run`.

    Example:
        >>> intervals = {"recall_interval": [[0.3, 0.9]], "precision_interval": [None]}
        >>> metrics = {"images": [9], "recall": [0.0], "precision": [None], "f1": [0.0], **intervals}
        >>> print(class_metrics_table(["owl"], [12], metrics).to_markdown(), end="")
        | class | training images | test images | recall % | precision % | F1 % |
        |---|---:|---:|---:|---:|---:|
        | owl | 12 | 9 | 0.0 [30, 90] | – | 0.0 |
    """
    titles = ("training images", images, "recall %", "precision %", "F1 %")
    columns = [Column("class", numeric=False), *(Column(title) for title in titles)]
    names = ("images", "f1", "recall", "recall_interval", "precision", "precision_interval")
    rows = zip(classes, counts, *(metrics[name] for name in names), strict=True)
    worst = sorted(rows, key=lambda row: (row[3] is None, row[3], row[4], row[1]))
    lines = []
    for name, count, tested, f1, recall, of_recall, precision, of_precision in worst[:most]:
        cells = [Cell(name, name), number_cell(count, form=","), number_cell(tested, form=",")]
        cells += [interval_cell(recall, of_recall), interval_cell(precision, of_precision), percent_cell(f1)]
        lines.append(cells)
    return Table(columns, lines, len(worst) - len(lines))


def comparison(title: str, finals: dict[str, Row]) -> Table:
    """Metrics of several results beside each other.

    Example:
        >>> final = {"error": 8.5, "balanced_accuracy": 0.9, "many": 0.95, "medium": None, "few": 0.8}
        >>> final |= {"calibration_error": 0.05}
        >>> print(comparison("loss", {"softmax": final}).to_markdown(), end="")
        | loss | error % | balanced accuracy % | many % | few % | calibration error % |
        |---|---:|---:|---:|---:|---:|
        | softmax | 8.50 | 90.0 | 95.0 | 80.0 | 5.0 |
    """
    shares = ("balanced_accuracy", "macro_f1", *ALL_GROUPS, "calibration_error")
    there = [name for name in shares if any(final.get(name) is not None for final in finals.values())]
    columns = [Column(title, numeric=False), Column("error %"), *(Column(f"{column_title(name)} %") for name in there)]
    lines = []
    for name, final in finals.items():
        cells = [percent_cell(final.get(key)) for key in there]
        lines.append([Cell(name, name), number_cell(final["error"]), *cells])
    return Table(columns, lines)
