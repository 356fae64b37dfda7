"""What the page tells of runs, as plain values: the templates only lay them out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.lab.config import ConfigError, shortest
from longtail.lab.data import GROUPS
from longtail.lab.experiments.aggregate import deltas, summarize_results
from longtail.lab.experiments.results import (
    FIRST,
    SETTING,
    row_key,
    run_folder_of,
    telling_columns,
    to_records,
)
from longtail.lab.experiments.sweep import duration
from longtail.lab.report.figures.runs import FREE, OF_LOSS, best_pair, one_experiment

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Cell",
    "Classes",
    "Column",
    "Group",
    "Line",
    "Table",
    "class_table",
    "find_groups",
    "overview",
    "problem_table",
    "run_table",
    "setting_table",
]

MOST_CLASSES = 200
"""Rows of a table of classes, so that a page about thousands of classes stays small."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """Of a table.

    Args:
        name: its header.
        numeric: whether it is set to the right and sorted as numbers.
    """

    name: str
    numeric: bool = True


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
    """A table that a reader can sort.

    Args:
        columns: headers.
        lines: rows, in the order that they have at first.
        left_out: rows that there are beyond them.
    """

    columns: list[Column]
    lines: list[Line]
    left_out: int = 0


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, as they were trained on."""

    names: list[str]
    counts: list[int]


@dataclass(frozen=True)
class Group:
    """Complete runs that differ by their loss and their seed alone.

    Args:
        name: what they have in common.
        frame: the runs.
        classes: what they were trained on, where a run folder tells it.
    """

    name: str
    frame: DataFrame
    classes: Classes | None


def overview(frame: DataFrame) -> list[tuple[str, str]]:
    """What was run, as terms and what they are.

    Example:
        >>> import tempfile
        >>> from longtail.lab.config import RunConfig
        >>> from longtail.lab.experiments import load_results
        >>> from longtail.lab.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig(model="resnet8").to_json())
        ...     dict(overview(load_results(runs)))["networks"]
        'resnet8'
    """
    rows = to_records(frame)
    statuses = [row["status"] for row in rows]
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(sorted(statuses)))
    names = {"data": "data sets", "imbalance": "imbalance", "model": "networks", "label": "losses", "seed": "seeds"}
    told = [("runs", counted), *((title, _distinct(rows, name)) for name, title in names.items())]
    seconds = sum(row["seconds"] or 0 for row in rows)
    told += [("epochs", _distinct(rows, "epochs")), ("training time", duration(seconds) if seconds else "")]
    versions = [name for name in frame.columns if name.startswith("version_")]
    told += [("versions", "; ".join(f"{name.removeprefix('version_')} {_distinct(rows, name)}" for name in versions))]
    return [(title, text) for title, text in told if text]


def _distinct(rows: list[Row], name: str) -> str:
    return ", ".join(_shown(value) for value in sorted({row[name] for row in rows if row[name] is not None}))


def setting_table(frame: DataFrame) -> Table:
    """One row for each setting: mean and spread over seeds, groups, difference from the plain loss, published error.

    Example:
        >>> import tempfile
        >>> from longtail.lab.config import RunConfig
        >>> from longtail.lab.experiments import load_results
        >>> from longtail.lab.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     setting_table(load_results(runs)).lines
        []
    """
    settings, changes = to_records(summarize_results(frame)), to_records(deltas(frame))
    change_of = {row_key(row, SETTING): row for row in changes}
    shown = telling_columns(settings, _known(settings))
    groups = [name for name in GROUPS if any(row[f"{name}_mean"] is not None for row in settings)]
    compared = any(row["pairs"] for row in changes)
    known = any(row["published"] is not None for row in settings)
    columns = [Column("loss", numeric=False), *(Column(_title(name), _is_numeric(settings, name)) for name in shown)]
    columns += [Column(name) for name in ("n", "error %", *(f"{name} %" for name in groups))]
    columns += [Column("Δ error")] * compared + [Column("published (full protocol)")] * known
    lines = []
    for row in settings:
        change = change_of.get(row_key(row, SETTING))
        cells = [Cell(row["label"], row["label"]), *(_value(row[name]) for name in shown), _value(row["n"])]
        cells += [_number(row["error_mean"], "" if row["error_std"] is None else f"± {row['error_std']:.2f}")]
        cells += [_percent(row[f"{name}_mean"]) for name in groups]
        cells += [_difference(change)] * compared + [_number(row["published"])] * known
        lines.append(Line(cells, row["data"], row["loss"]))
    return Table(columns, lines)


def run_table(frame: DataFrame) -> Table:
    """One row for each run, whether it is complete or not.

    Example:
        >>> import tempfile
        >>> from longtail.lab.config import RunConfig
        >>> from longtail.lab.experiments import load_results
        >>> from longtail.lab.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     [cell.text for cell in run_table(load_results(runs)).lines[0].cells]
        ['a', 'unfinished', 'softmax_0.999', '0', '–', '–', '–', '–']
    """
    rows = to_records(frame)
    groups = [name for name in GROUPS if any(row[name] is not None for row in rows)]
    names = ("error %", "best %", *(f"{name} %" for name in groups), "balanced accuracy %", "seconds")
    columns = [Column(name, numeric=False) for name in ("run", "status", "loss")]
    columns += [Column(name) for name in ("seed", *names)]
    lines = []
    for row in rows:
        cells = [Cell(row["run_id"], row["run_id"]), *(_value(row[name]) for name in ("status", "label", "seed"))]
        cells += [_number(row["error"]), _number(row["best_error"])]
        cells += [_percent(row[name]) for name in (*groups, "balanced_accuracy")]
        cells.append(_number(row["seconds"], form=",.1f"))
        lines.append(Line(cells, row["data"] or "", row["loss"] or ""))
    return Table(columns, lines)


def problem_table(frame: DataFrame) -> Table:
    """The runs that are failed, unfinished or damaged, and why.

    Example:
        >>> import tempfile
        >>> from longtail.lab.config import RunConfig
        >>> from longtail.lab.experiments import load_results
        >>> from longtail.lab.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     [cell.text for cell in problem_table(load_results(runs)).lines[0].cells]
        ['unfinished', 'a', '0 of 200 epochs']
    """
    names = ("status", "run_id", "problem")
    rows = [row for row in to_records(frame) if row["status"] != "complete"]
    rows.sort(key=lambda row: ("failed", "damaged", "unfinished").index(row["status"]))
    columns = [Column(name, numeric=False) for name in ("status", "run", "problem")]
    return Table(columns, [Line([_value(row[name]) for name in names], row["data"] or "") for row in rows])


def find_groups(frame: DataFrame, runs: Path) -> list[Group]:
    """The complete runs by what they were trained on and how, whatever the loss and the seed.

    Args:
        frame: what :func:`load_results` gave.
        runs: the folder that it was given.

    Example:
        >>> import tempfile
        >>> from longtail.lab.config import RunConfig
        >>> from longtail.lab.experiments import load_results
        >>> from longtail.lab.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     find_groups(load_results(runs), Path(runs))
        []
    """
    complete = frame[frame["status"] == "complete"].drop_duplicates([*SETTING, "seed"])
    common = [name for name in SETTING if name not in FREE]
    parts = [piece for _, part in complete.groupby(common, dropna=False, sort=False) for piece in _by_rate(part)]
    rows = [to_records(part.iloc[:1])[0] for part in parts]
    # Groups are told apart by what they have in common, and not by the loss that happens to be first.
    unnamed = [row | {"label": ""} for row in rows]
    shown = telling_columns(unnamed, _known(rows), [*common, "learning_rate"])
    order = sorted(range(len(rows)), key=lambda place: [_sortable(rows[place][name]) for name in FIRST])
    return [Group(_name(rows[place], shown), parts[place], _classes(parts[place], runs)) for place in order]


def _by_rate(part: DataFrame) -> list[DataFrame]:
    """A loss may have a learning rate of its own; with several, each is an experiment."""
    if not part.duplicated([*OF_LOSS, "seed"]).any():
        return [part]
    return [piece for _, piece in part.groupby("learning_rate", sort=True)]


def _name(row: Row, shown: Sequence[str]) -> str:
    forms = {"data": "{}", "model": "{}", "epochs": "{} epochs"}
    return ", ".join(
        forms.get(name, f"{_title(name)} {{}}").format(_shown(row[name])) for name in shown if row[name] is not None
    )


def _classes(part: DataFrame, runs: Path) -> Classes | None:
    """Of the first run that tells them; a run without them, such as a copied result, has no table of classes."""
    for run_id in part["run_id"]:
        try:
            data = run_folder_of(runs, run_id).data()
        except ConfigError:
            continue
        return Classes(data["classes"], data["train_counts"])
    return None


def class_table(group: Group) -> Table | None:
    """Recall of each class, plain and weighted, mean over seeds; the class of the least recall first.

    Args:
        group: the runs.

    Returns:
        A table of the worst classes, or None where the classes or their recalls are not known.

    Example:
        >>> import pandas as pd
        >>> class_table(Group("pets", pd.DataFrame(), classes=None)) is None
        True
    """
    if group.classes is None:
        return None
    compared = _compared(group.frame, len(group.classes.names))
    if not compared:
        return None
    columns = [Column("class", numeric=False), Column("training images"), *(Column(f"{name} %") for name in compared)]
    columns += [Column("difference")] * (len(compared) == 2)
    lines = []
    for name, count, *recalls in zip(group.classes.names, group.classes.counts, *compared.values(), strict=True):
        cells = [Cell(name, name), Cell(f"{count:,}", count), *map(_percent, recalls)]
        lines.append(Line(cells + [_gain(recalls[0], recalls[-1])] * (len(recalls) == 2)))
    last = len(compared) + 1
    lines.sort(key=lambda line: (_sortable(line.cells[last].value), line.cells[1].value))
    return Table(columns, lines[:MOST_CLASSES], max(0, len(lines) - MOST_CLASSES))


def _compared(frame: DataFrame, classes: int) -> dict[str, list[float | None]]:
    """Recalls by the name of the loss: of the best weighted one and its plain partner, or else of the best one."""
    runs = one_experiment(frame)
    try:
        chosen = best_pair(runs)
    except ConfigError:
        best = runs.groupby("name", sort=False)["error"].mean().idxmin()
        chosen = runs[runs["name"] == best]
    recalls = {str(label): _mean_recall(part, classes) for label, part in chosen.groupby("label", sort=False)}
    return {label: recall for label, recall in recalls.items() if any(value is not None for value in recall)}


def _gain(plain: float | None, weighted: float | None) -> Cell:
    return _number(None if plain is None or weighted is None else 100 * (weighted - plain), form="+.1f")


def _mean_recall(frame: DataFrame, classes: int) -> list[float | None]:
    """Over the runs that have one recall for each class; missing where one of them misses it."""
    found = [recall for recall in frame["recall"] if isinstance(recall, list) and len(recall) == classes]
    columns = list(zip(*found, strict=True)) or [(None,)] * classes
    return [None if any(map(_missing, column)) else sum(column) / len(column) for column in columns]


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _known(rows: list[Row]) -> list[str]:
    """Columns that are always shown, where they say anything."""
    return [name for name in FIRST if any(row[name] is not None for row in rows)]


def _title(name: str) -> str:
    return {"model": "network"}.get(name, name.replace("_", " "))


def _is_numeric(rows: list[Row], name: str) -> bool:
    return all(isinstance(row[name], (int, float, type(None))) for row in rows)


def _sortable(value: Any) -> tuple[bool, Any]:
    return value is None, "" if value is None else value


def _shown(value: Any) -> str:
    return "–" if value is None else shortest(value)


def _value(value: Any) -> Cell:
    return Cell(_shown(value), value if isinstance(value, (int, float, str, type(None))) else _shown(value))


def _number(value: float | None, note: str = "", form: str = ".2f") -> Cell:
    return Cell("–") if value is None else Cell(f"{value:{form}}", value, note)


def _percent(value: float | None) -> Cell:
    return _number(None if value is None or _missing(value) else 100 * value, form=".1f")


def _difference(change: Row | None) -> Cell:
    """A mean difference and its interval; nothing for the plain loss itself."""
    if change is None:
        return Cell("")
    low, high = change["error_low"], change["error_high"]
    return _number(change["error_delta"], "" if low is None else f"[{low:+.2f}, {high:+.2f}]", "+.2f")
