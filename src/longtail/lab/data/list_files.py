"""Lists of image paths and labels: text files of ImageNet-LT's kind, and CSV files."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longtail.lab.data.errors import DataError
from longtail.lab.data.image_scan import IMAGE_ENDINGS, missing_files

LIST_ENDINGS = (".txt", ".csv", ".tsv")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img", "img_path")
LABEL_COLUMNS = ("label", "class", "category", "target", "class_name", "species", "y")
MOST_CLASSES = 1_000_000
GROUP_COLUMNS = ("group", "group_id")
SPLIT_COLUMN = "split"
WITH_GROUP = re.compile(rf"(.+(?:{'|'.join(map(re.escape, IMAGE_ENDINGS))}))\s+(-?\d+)\s+(\S+)", re.IGNORECASE)
"""A line of a text file with a group: after a path and a whole number, so that no path with spaces is one."""


@dataclass
class Labelled:
    """Image paths below a folder, and the name of each one's class."""

    root: Path
    source: Path
    """The folder or list that they come from."""
    paths: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    """What the column ``split`` of a CSV file says, if it has one."""
    groups: list[str] = field(default_factory=list)
    """What each image shows, such as an animal or a patient, if the source says so: a group stays in one split."""
    classes: list[str] | None = None
    """All class names in the order of their index, where the source has one."""
    left_out: list[str] = field(default_factory=list)
    """Files beside the images that are none."""

    def where(self, split: str) -> Labelled:
        """The images of one split."""
        chosen = [index for index, name in enumerate(self.splits) if name == split]
        paths, names, groups = (
            [values[index] for index in chosen] if values else [] for values in (self.paths, self.names, self.groups)
        )
        return Labelled(self.root, self.source, paths, names, groups=groups, classes=self.classes)


def read_list(source: Path, root: Path | None = None, columns: Mapping[str, str | None] = {}) -> Labelled:
    """Read a list of images.

    A text file has lines ``path label``. Labels that are all whole numbers are class indices, and a file
    ``classes.txt`` beside the list may name the classes, one in a line; other labels are class names. A third column,
    after whole numbers or where the columns are separated by tabs, is the group. A CSV file has a header with a column
    for the path and one for the label, which is a class name, and optionally ``group``, and ``split`` with ``train``
    and ``test``; ``columns`` has other names for the columns ``"path"``, ``"label"`` and ``"group"``. Paths start from
    ``root``, by default the folder of the list.
    """
    labelled = Labelled(root or source.parent, source)
    text = _read_text(source)
    if source.suffix.lower() == ".txt":
        _read_lines(text, labelled)
    else:
        _read_table(text, labelled, columns)
    if not labelled.paths:
        raise DataError(f"{source} lists no images")
    return labelled


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def check_files_exist(labelled: Labelled) -> None:
    """Refuse a list that names a file which is not there."""
    if missing := missing_files(labelled.root, labelled.paths):
        raise DataError(f"{labelled.source} names {missing[0]}, which is not in {labelled.root}")


def _read_lines(text: str, labelled: Labelled) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        parts = _fields(line)
        if len(parts) == 1:
            raise DataError(f"{labelled.source}, line {number}: {line.strip()!r} is not a path and a label")
        if not parts:
            continue
        if labelled.paths and (len(parts) == 3) != bool(labelled.groups):
            missing = "a group, but the lines before it have none" if len(parts) == 3 else "no group"
            raise DataError(f"{labelled.source}, line {number}: {missing}")
        labelled.paths.append(_inside(parts[0].strip(), labelled, number))
        labelled.names.append(parts[1])
        labelled.groups += parts[2:]
    if all(re.fullmatch(r"-?\d+", name) for name in labelled.names):
        _name_indices(labelled)


def _fields(line: str) -> list[str]:
    """The path, the label and perhaps the group of a line; a path may have spaces."""
    tabbed = [part.strip() for part in line.split("\t")]
    if len(tabbed) == 3 and all(tabbed):
        return tabbed
    found = WITH_GROUP.fullmatch(line.strip())
    return list(found.groups()) if found else line.rsplit(maxsplit=1)


def _name_indices(labelled: Labelled) -> None:
    """Class indices → class names, by ``classes.txt`` or as they are."""
    long = next((name for name in labelled.names if len(name) > 9 or int(name) >= MOST_CLASSES), None)
    if long:
        raise DataError(f"{labelled.source} has the label {long:.40}: {MOST_CLASSES:,} classes are the most")
    indices = [int(name) for name in labelled.names]
    names_file = labelled.source.with_name("classes.txt")
    if names_file.is_file():
        labelled.classes = [name.strip() for name in _read_text(names_file).split("\n") if name.strip()]
    else:
        labelled.classes = [str(index) for index in range(max(indices, default=-1) + 1)]
    for path, index in zip(labelled.paths, indices, strict=True):
        if not 0 <= index < len(labelled.classes):
            known = f"{names_file.name} names {len(labelled.classes)} classes" if index >= 0 else "labels start at 0"
            raise DataError(f"{labelled.source}: {path} has label {index}, but {known}")
    labelled.names = [labelled.classes[index] for index in indices]


def _read_table(text: str, labelled: Labelled, columns: Mapping[str, str | None]) -> None:
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        _read_rows(rows, labelled, columns)
    except csv.Error as error:
        raise DataError(f"{labelled.source}, line {rows.line_num}: {error}") from None


def _read_rows(rows: Any, labelled: Labelled, given: Mapping[str, str | None]) -> None:
    columns = [name.strip().lower() for name in next(rows, [])]
    if not columns:
        raise DataError(f"{labelled.source} has no header in its first line")

    def find(what: str, usual: Sequence[str]) -> int | None:
        name = given.get(what)
        if name is not None and name.strip().lower() not in columns:
            raise DataError(f"{labelled.source} has no column {name!r}: it has {', '.join(columns)}")
        names = usual if name is None else [name.strip().lower()]
        found = next((each for each in names if each in columns), None)
        if found is not None and columns.count(found) > 1:
            raise DataError(f"{labelled.source} has two columns {found!r}: name each one differently")
        return None if found is None else columns.index(found)

    path_column, label_column = find("path", PATH_COLUMNS), find("label", LABEL_COLUMNS)
    if path_column is None or label_column is None:
        raise DataError(
            f"{labelled.source} has the columns {', '.join(columns)}: one of {', '.join(PATH_COLUMNS)} "
            f"and one of {', '.join(LABEL_COLUMNS)} are needed, or name them by data.files.path_column and "
            "data.files.label_column"
        )
    group_column, split_column = find("group", GROUP_COLUMNS), find("split", [SPLIT_COLUMN])
    for row in rows:
        if not row:
            continue
        if len(row) != len(columns):
            raise DataError(f"{labelled.source}, line {rows.line_num}: {len(row)} fields, but {len(columns)} columns")
        if not row[label_column].strip():
            raise DataError(f"{labelled.source}, line {rows.line_num}: no label")
        labelled.paths.append(_inside(row[path_column].strip(), labelled, rows.line_num))
        labelled.names.append(row[label_column].strip())
        if split_column is not None:
            labelled.splits.append(row[split_column].strip().lower())
        if group_column is not None:
            if not row[group_column].strip():
                raise DataError(f"{labelled.source}, line {rows.line_num}: no group")
            labelled.groups.append(row[group_column].strip())


def _inside(path: str, labelled: Labelled, line: int) -> str:
    """The path from the root, if that is where it leads, in one form: an image is one image."""
    path = os.path.normpath(path) if path else path
    if os.path.isabs(path) or ".." in path:
        inside = [_from(root, path) for root in (labelled.root, labelled.root.resolve())]
        if not any(inside):
            raise DataError(f"{labelled.source}, line {line}: the path leads out of {labelled.root}")
        path = inside[0] or inside[1]
    if not path:
        raise DataError(f"{labelled.source}, line {line}: no path")
    return path


def _from(root: Path, path: str) -> str:
    """The path as it is seen from the root, or nothing if it is elsewhere."""
    relative = os.path.relpath(os.path.normpath(root / path), root)
    return "" if relative.split(os.sep)[0] == ".." else relative
