"""What the page tells of runs, as plain values: the templates only lay them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.lab.config import ConfigError
from longtail.lab.experiments.results import (
    FIRST,
    SETTING,
    run_folder_of,
    telling_columns,
    to_records,
)
from longtail.lab.report.figures.runs import FREE, OF_LOSS, best_pair, one_experiment
from longtail.lab.report.tables import (
    Cell,
    Column,
    Line,
    Table,
    column_title,
    is_missing,
    known_columns,
    number_cell,
    percent_cell,
    shown,
)
from longtail.lab.training.cost import duration

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Classes",
    "Group",
    "class_table",
    "find_groups",
    "overview",
]

MOST_CLASSES = 200
"""Rows of a table of classes, so that a page about thousands of classes stays small."""

Row = dict[str, Any]


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
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     dict(overview(load_results(runs)))["networks"]
        'resnet32'
    """
    rows = to_records(frame)
    statuses = [row["status"] for row in rows if row["adjustment"] is None]
    counts = [f"{statuses.count(status)} {status}" for status in dict.fromkeys(sorted(statuses))]
    counts += [f"{adjusted} adjusted"] if (adjusted := len(rows) - len(statuses)) else []
    names = {"data": "data sets", "imbalance": "imbalance", "model": "networks", "method": "methods", "seed": "seeds"}
    told = [("runs", ", ".join(counts)), *((title, _distinct(rows, name)) for name, title in names.items())]
    seconds = sum(row["seconds"] or 0 for row in rows)
    told += [("epochs", _distinct(rows, "epochs")), ("training time", duration(seconds) if seconds else "")]
    versions = [name for name in frame.columns if name.startswith("version_")]
    told += [("versions", "; ".join(f"{name.removeprefix('version_')} {_distinct(rows, name)}" for name in versions))]
    return [(title, text) for title, text in told if text]


def _distinct(rows: list[Row], name: str) -> str:
    found = [shown(value) for value in sorted({row[name] for row in rows if row[name] is not None})]
    return ("; " if any("," in text for text in found) else ", ").join(found)


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
    unnamed = [row | {"method": ""} for row in rows]
    names = telling_columns(unnamed, known_columns(rows), [*common, "lr"])
    order = sorted(range(len(rows)), key=lambda place: [_sortable(rows[place][name]) for name in FIRST])
    return [Group(_name(rows[place], names), parts[place], _classes(parts[place], runs)) for place in order]


def _by_rate(part: DataFrame) -> list[DataFrame]:
    """A loss may have a learning rate of its own; with several, each is an experiment."""
    if not part.duplicated([*OF_LOSS, "seed"]).any():
        return [part]
    return [piece for _, piece in part.groupby("lr", sort=True)]


def _name(row: Row, names: Sequence[str]) -> str:
    forms = {"data": "{}", "model": "{}", "epochs": "{} epochs"}
    return ", ".join(
        forms.get(name, f"{column_title(name)} {{}}").format(shown(row[name]))
        for name in names
        if row[name] is not None
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
        cells = [Cell(name, name), Cell(f"{count:,}", count), *map(percent_cell, recalls)]
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
    recalls = {str(method): _mean_recall(part, classes) for method, part in chosen.groupby("method", sort=False)}
    return {method: recall for method, recall in recalls.items() if any(value is not None for value in recall)}


def _gain(plain: float | None, weighted: float | None) -> Cell:
    return number_cell(None if plain is None or weighted is None else 100 * (weighted - plain), form="+.1f")


def _mean_recall(frame: DataFrame, classes: int) -> list[float | None]:
    """Over the runs that have one recall for each class; missing where one of them misses it."""
    found = [recall for recall in frame["recall"] if isinstance(recall, list) and len(recall) == classes]
    columns = list(zip(*found, strict=True)) or [(None,)] * classes
    return [None if any(map(is_missing, column)) else sum(column) / len(column) for column in columns]


def _sortable(value: Any) -> tuple[bool, Any]:
    return value is None, "" if value is None else value
