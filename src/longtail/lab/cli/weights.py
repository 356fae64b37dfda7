"""``longtail weights``: class weights from counts, labels or a data set."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from rich.table import Table
from tyro.conf import OmitArgPrefixes, arg

from longtail._checks import check_choice
from longtail.counts import IntArray, check_no_class_is_absent, imbalance_factor
from longtail.lab.cli.arguments import AsJson
from longtail.lab.cli.output import DataDir, console, print_classes, print_csv, print_json, whole_numbers
from longtail.lab.config import ConfigError
from longtail.lab.data import (
    CATALOG,
    ImageDataset,
    ImageFolderOptions,
    InMemoryImages,
    SubsetOptions,
    data_folder,
    open_dataset,
)
from longtail.lab.data.cifar import SIZES
from longtail.weights import NORMALIZATIONS, SCHEMES, class_weights, effective_number

__all__ = ["weights_command"]

ROWS = 100
"""Most lines of the table: CIFAR-100 has them all."""


class Classes(NamedTuple):
    """Names of classes, and their training images."""

    names: list[str]
    counts: IntArray


def weights_command(
    counts: Annotated[
        str | None,
        arg(metavar="N,N,…|FILE", help="Images of each class, or a CSV file with a class and its count a row."),
    ] = None,
    labels: Annotated[
        Path | None, arg(metavar="FILE", help="A file with one label a line; - reads standard input.")
    ] = None,
    data: Annotated[
        str | None, arg(metavar="DATA", help="A name of longtail data list, or a folder or list of your own images.")
    ] = None,
    subset: Annotated[SubsetOptions, OmitArgPrefixes] = SubsetOptions(),
    files: Annotated[ImageFolderOptions, OmitArgPrefixes] = ImageFolderOptions(),
    data_dir: DataDir = None,
    scheme: Annotated[str, arg(help="effective (class-balanced), inverse, inverse_sqrt or uniform.")] = "effective",
    beta: Annotated[
        float, arg(help="β of the effective number: 0 weights all classes alike, 1 by inverse frequency.")
    ] = 0.999,
    normalize: Annotated[str, arg(help="Whether weights are 1 on average over classes or over samples.")] = "classes",
    absent: Annotated[
        Literal["error", "ignore"], arg(help="What a class without images does: ignore gives it the weight 0.")
    ] = "error",
    compare: Annotated[bool, arg(help="Show the weights of all schemes side by side.")] = False,
    as_csv: Annotated[bool, arg(name="csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the effective number and the weight of each class.

    Without --counts, --labels or --data, labels are read from standard input, one a line.

    Example: longtail weights --counts 5000,2997,1796 --beta 0.999
    """
    check_choice("scheme", scheme, SCHEMES)
    check_choice("normalize", normalize, NORMALIZATIONS)
    if compare and scheme != "effective":
        raise ConfigError(f"scheme {scheme} would do nothing: --compare shows all of them")
    if as_csv and as_json:
        raise ConfigError("--csv and --json cannot both be printed")
    given = [name for name, value in (("counts", counts), ("labels", labels), ("data", data)) if value is not None]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} both say what the classes are: give one")
    if data is None and (subset != SubsetOptions() or not files.is_default):
        raise ConfigError("options of a data set would do nothing without --data")
    classes = _classes(counts, labels, data, subset, files, data_dir)
    schemes = {name: name for name in SCHEMES} if compare else {"weight": scheme}
    if absent == "error":
        check_no_class_is_absent(
            classes.counts.astype(np.float64), ", or pass --absent ignore where there truly is no sample"
        )
    rows = _rows(classes, schemes, beta, normalize, absent)
    if as_json:
        print_json({"scheme": None if compare else scheme, "beta": beta, "normalize": normalize, "classes": rows})
    elif as_csv:
        print_csv([list(rows[0]), *(list(row.values()) for row in rows)])
    else:
        _show(rows, classes)


def _classes(
    counts: str | None,
    labels: Path | None,
    data: str | None,
    subset: SubsetOptions,
    files: ImageFolderOptions,
    folder: Path | None,
) -> Classes:
    if data is not None:
        return _of_data(data, subset, files, folder)
    if counts is None:
        return _of_labels(labels)
    if "," in counts or counts.strip().isdecimal():
        numbers = np.array(whole_numbers(counts.split(","), "--counts"), dtype=np.int64)
        return Classes([str(label) for label in range(len(numbers))], numbers)
    return _of_table(Path(counts))


def _of_data(data: str, subset: SubsetOptions, files: ImageFolderOptions, folder: Path | None) -> Classes:
    is_absent = data in SIZES and files.is_default and not CATALOG[data].is_in(data_folder(folder))
    dataset, _ = subset.choose(_as_released(data) if is_absent else open_dataset(data, folder, files=files))
    return Classes(list(dataset.classes), dataset.counts)


def _as_released(data: str) -> ImageDataset:
    """CIFAR with empty images: nothing needs to be downloaded to know how many there are of each class."""
    num_classes, images = SIZES[data]
    labels = np.repeat(np.arange(num_classes), images)
    empty = InMemoryImages(torch.zeros(len(labels), 0, 0, 0, dtype=torch.uint8), labels)
    return ImageDataset(name=data, classes=tuple(map(str, range(num_classes))), train=empty, test=empty)


def _of_labels(path: Path | None) -> Classes:
    if path is None and sys.stdin.isatty():
        raise ConfigError(
            "which classes? --counts 5000,2997,1796, --labels FILE, --data NAME, or labels on standard input"
        )
    text = sys.stdin.read().removeprefix("\ufeff") if path is None or str(path) == "-" else _text(path)
    found = Counter(line.strip() for line in text.splitlines() if line.strip())
    if not found:
        raise ConfigError(f"{path or 'standard input'} holds no labels")
    names = sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
    return Classes(names, np.array([found[name] for name in names], dtype=np.int64))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8: {error.reason}") from None


def _of_table(path: Path) -> Classes:
    table = csv.reader(io.StringIO(_text(path), newline=""))
    try:
        rows = [row for row in table if row]
    except csv.Error as error:
        raise ConfigError(f"{path}, line {table.line_num}: {error}") from None
    if rows and not any(letter.isdigit() for letter in rows[0][-1]):
        del rows[0]  # names of the columns
    if not rows:
        raise ConfigError(f"{path} holds no counts")
    found = np.array(whole_numbers([row[-1] for row in rows], str(path)), dtype=np.int64)
    return Classes([row[0] if len(row) > 1 else str(number) for number, row in enumerate(rows)], found)


def _rows(classes: Classes, schemes: dict[str, str], beta: float, normalize: str, absent: str) -> list[dict[str, Any]]:
    """A row for each class, with a column for each scheme."""
    effective = effective_number(classes.counts, beta)
    weights = {
        title: class_weights(classes.counts, scheme=scheme, beta=beta, normalize=normalize, absent=absent)
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
    table = Table(box=None, pad_edge=False)
    table.add_column("class", overflow="ellipsis", no_wrap=True, max_width=64)
    for name in list(rows[0])[1:]:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)

    def cells(row: dict[str, Any]) -> list[str]:
        numbers = [f"{value:,}" if isinstance(value, int) else f"{value:.4g}" for value in list(row.values())[1:]]
        return [row["class"], numbers[0], f"{row['effective_number']:,.1f}", *numbers[2:]]

    out = console()
    print_classes(out, table, rows, cells, most=ROWS)
    present = classes.counts[classes.counts > 0]
    without = f", {len(rows) - len(present):,} without images" if len(present) < len(rows) else ""
    total, imbalance = int(present.sum()), imbalance_factor(present)
    out.print()
    out.print(f"{len(rows):,} classes{without}, {total:,} images, imbalance {imbalance:.4g}")
