"""Class weights of counts or labels: the part of ``longtail weights`` that needs nothing of the extra ``lab``."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import sys
import types
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from longtail._checks import check_choice
from longtail._docstrings import arguments_of
from longtail.counts import IntArray, check_no_class_is_absent, imbalance_factor
from longtail.lab.cli.plain import (
    class_rows,
    print_csv,
    print_json,
    print_line,
    print_table,
    whole_numbers,
)
from longtail.weights import DEFAULT_BETA, NORMALIZATIONS, SCHEMES, class_weights, effective_number

ROWS = 100
"""Most lines of the table: CIFAR-100 has them all."""


class Classes(NamedTuple):
    """Names of classes, and their training images."""

    names: list[str]
    counts: IntArray


@dataclass(frozen=True, kw_only=True)
class WeightsOptions:
    """Counts or labels of the classes, and how classes are weighted.

    Args:
        counts: Images of each class, separated by commas, or a CSV file with a class and its count per row.
        labels: A file with one label per line; - reads standard input.
        scheme: effective (class-balanced), inverse, inverse_sqrt or uniform.
        beta: β of the effective number: 0 weights all classes alike, 1 by inverse frequency.
        normalize: Whether weights are 1 on average over classes or over samples.
        absent: How to handle a class without images: stop, or ignore it and give it weight 0.
        compare: Show the weights of all schemes side by side.
        csv: Print CSV.
        json: Print JSON.
    """

    counts: str | None = None
    labels: Path | None = None
    scheme: str = "effective"
    beta: float = DEFAULT_BETA
    normalize: str = "classes"
    absent: Literal["error", "ignore"] = "error"
    compare: bool = False
    csv: bool = False
    json: bool = False

    def check(self) -> None:
        """Reject combinations of options that exclude each other."""
        check_choice("scheme", self.scheme, SCHEMES)
        check_choice("normalize", self.normalize, NORMALIZATIONS)
        if self.compare and self.scheme != "effective":
            raise ValueError(f"--scheme {self.scheme} and --compare exclude each other: --compare shows all schemes")
        if self.csv and self.json:
            raise ValueError("--csv and --json exclude each other")
        if self.counts is not None and self.labels is not None:
            raise ValueError("--counts and --labels exclude each other: give one")


def weights_without_lab(arguments: Sequence[str]) -> None:
    """Run ``longtail weights`` where the extra ``lab``, with its parser and data sets, is not installed."""
    about = "Without --counts or --labels, labels are read from standard input. --data NAME requires longtail[lab]."
    parser = argparse.ArgumentParser(
        "longtail weights",
        description=f"Show the effective number and the weight of each class. {about}",
        epilog="Example: longtail weights --counts 5000,2997,1796 --beta 0.999",
    )
    kinds, about_flag = get_type_hints(WeightsOptions), arguments_of(WeightsOptions.__doc__)
    for field in dataclasses.fields(WeightsOptions):
        kind = kinds[field.name]
        if get_origin(kind) in (Union, types.UnionType):
            kind = get_args(kind)[0]
        takes: dict[str, Any] = {"type": kind}
        if kind is bool:
            takes = {"action": "store_true"}
        elif get_origin(kind) is Literal:
            takes = {"choices": get_args(kind)}
        shown = "" if field.default in (None, False) else f" (default: {field.default})"
        parser.add_argument(f"--{field.name}", default=field.default, help=about_flag[field.name] + shown, **takes)
    options, others = parser.parse_known_args(arguments)
    if others:
        raise ValueError(f"{others[0]} is unknown, or requires the extra lab: pip install 'longtail[lab]'")
    chosen = WeightsOptions(**vars(options))
    chosen.check()
    show_weights(read_classes(chosen), chosen)


def read_classes(options: WeightsOptions) -> Classes:
    """The classes of ``--counts``, of ``--labels``, or of labels on standard input."""
    if options.counts is None:
        return _of_labels(options.labels)
    if "," in options.counts or options.counts.strip().isdecimal():
        numbers = np.array(whole_numbers(options.counts.split(","), "--counts"), dtype=np.int64)
        return Classes([str(label) for label in range(len(numbers))], numbers)
    return _of_table(Path(options.counts))


def _of_labels(path: Path | None) -> Classes:
    if path is None and sys.stdin.isatty():
        raise ValueError(
            "which classes? --counts 5000,2997,1796, --labels FILE, --data NAME, or labels on standard input"
        )
    text = sys.stdin.read().removeprefix("\ufeff") if path is None or str(path) == "-" else _text(path)
    found = Counter(line.strip() for line in text.splitlines() if line.strip())
    if not found:
        raise ValueError(f"{path or 'standard input'} holds no labels")
    names = sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
    return Classes(names, np.array([found[name] for name in names], dtype=np.int64))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason}") from None


def _of_table(path: Path) -> Classes:
    table = csv.reader(io.StringIO(_text(path), newline=""))
    try:
        rows = [row for row in table if row]
    except csv.Error as error:
        raise ValueError(f"{path}, line {table.line_num}: {error}") from None
    if rows and not any(letter.isdigit() for letter in rows[0][-1]):
        del rows[0]  # names of the columns
    if not rows:
        raise ValueError(f"{path} holds no counts")
    found = np.array(whole_numbers([row[-1] for row in rows], str(path)), dtype=np.int64)
    return Classes([row[0] if len(row) > 1 else str(number) for number, row in enumerate(rows)], found)


def show_weights(classes: Classes, options: WeightsOptions) -> None:
    """Print a row for each class, as a table, CSV or JSON."""
    schemes = {name: name for name in SCHEMES} if options.compare else {"weight": options.scheme}
    if options.absent == "error":
        remedy = ", or pass --absent ignore where there truly is no sample"
        check_no_class_is_absent(classes.counts.astype(np.float64), remedy)
    rows = _rows(classes, schemes, options)
    if options.json:
        scheme = None if options.compare else options.scheme
        print_json({"scheme": scheme, "beta": options.beta, "normalize": options.normalize, "classes": rows})
    elif options.csv:
        print_csv([list(rows[0]), *(list(row.values()) for row in rows)])
    else:
        _show(rows, classes)


def _rows(classes: Classes, schemes: dict[str, str], options: WeightsOptions) -> list[dict[str, Any]]:
    """A row for each class, with a column for each scheme."""
    effective = effective_number(classes.counts, options.beta)
    weights = {
        title: class_weights(classes.counts, scheme, options.beta, options.normalize, options.absent)
        for title, scheme in schemes.items()
    }
    return [
        {
            "class": name,
            "images": int(classes.counts[label]),
            "effective_number": float(effective[label]),
            **{title: float(values[label]) for title, values in weights.items()},
        }
        for label, name in enumerate(classes.names)
    ]


def _show(rows: list[dict[str, Any]], classes: Classes) -> None:
    def cells(row: dict[str, Any]) -> list[str]:
        name, images, effective, *weights = row.values()
        return [name, f"{images:,}", f"{effective:,.1f}", *(f"{weight:.4g}" for weight in weights)]

    lines, left_out = class_rows(rows, cells, "images", ROWS)
    print_table([name.replace("_", " ") for name in rows[0]], lines)
    if left_out:
        print_line(left_out)
    present = classes.counts[classes.counts > 0]
    without = f", {len(rows) - len(present):,} without images" if len(present) < len(rows) else ""
    total, imbalance = int(present.sum()), imbalance_factor(present)
    print_line()
    print_line(f"{len(rows):,} classes{without}, {total:,} images, imbalance {imbalance:.4g}")
