"""What the page tells of runs, as plain values: the templates only lay them out."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandas import DataFrame

from longtail.lab.config import ConfigError
from longtail.lab.experiments.results import telling_columns, to_records
from longtail.lab.report.figures.runs import COMMON, classes_of, experiments
from longtail.lab.report.tables import Table, candidate_table, column_title, known_columns, shown
from longtail.lab.training.cost import duration

Row = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """The runs of an experiment, which differ by their method and their seed alone.

    Args:
        name: what they have in common.
        frame: the runs.
        classes: names of the classes; none where no run folder tells them.
        counts: training images of each.
    """

    name: str
    frame: DataFrame
    classes: list[str]
    counts: list[int]


def overview(frame: DataFrame) -> list[tuple[str, str]]:
    """What was run, as terms and what they are."""
    rows = to_records(frame)
    statuses = [row["status"] for row in rows if row["adjustment"] is None]
    counts = [f"{statuses.count(status)} {status}" for status in dict.fromkeys(sorted(statuses))]
    counts += [f"{adjusted} adjusted"] if (adjusted := len(rows) - len(statuses)) else []
    names = {"data": "data sets", "imbalance": "imbalance", "model": "networks", "method": "methods", "seed": "seeds"}
    facts = [("runs", ", ".join(counts)), *((title, _distinct(rows, name)) for name, title in names.items())]
    seconds = sum(row["seconds"] or 0 for row in rows)
    facts += [("epochs", _distinct(rows, "epochs")), ("training time", duration(seconds) if seconds else "")]
    versions = [name for name in frame.columns if name.startswith("version_")]
    facts += [("versions", "; ".join(f"{name.removeprefix('version_')} {_distinct(rows, name)}" for name in versions))]
    return [(title, text) for title, text in facts if text]


def _distinct(rows: list[Row], name: str) -> str:
    found = [shown(value) for value in sorted({row[name] for row in rows if row[name] is not None})]
    return ("; " if any("," in text for text in found) else ", ").join(found)


def find_groups(frame: DataFrame, runs: Path, *may_differ: str) -> list[Group]:
    """The experiments, each with a name that tells it apart."""
    parts = experiments(frame, *may_differ)
    rows = [to_records(part.iloc[:1])[0] | {"method": ""} for part in parts]
    names = telling_columns(rows, known_columns(rows), COMMON)
    together = sorted(zip(rows, parts, strict=True), key=lambda pair: _order(pair[0], names))
    forms = {"data": "{}", "model": "{}", "epochs": "{} epochs"}
    groups = []
    for row, part in together:
        told = [name for name in names if row[name] is not None and name not in may_differ]
        texts = [forms.get(name, f"{column_title(name)} {{}}").format(shown(row[name], name)) for name in told]
        try:
            classes, counts = classes_of(runs, part)
        except ConfigError:
            classes, counts = [], []
        groups.append(Group(", ".join(texts), part, classes, counts))
    return groups


def _order(row: Row, names: list[str]) -> list[tuple[bool, str | float]]:
    values = [row[name] if isinstance(row[name], (int, float)) else shown(row[name]) for name in names]
    return [(isinstance(value, str), value) for value in values]


def searches(runs: Path) -> list[tuple[str, Table]]:
    """The searches of ``longtail tune`` among runs: name, and all candidates, the best first."""
    found = []
    for file in sorted((runs / "tune").glob("*/result.json")):
        # What is not written by a search, or damaged, is none.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(file.read_text(encoding="utf-8"))
            found.append((file.parent.name, candidate_table(content["candidates"])))
    return found
