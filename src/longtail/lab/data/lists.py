"""Lists of image paths and labels: text files of ImageNet-LT's kind, and CSV files."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field
from pathlib import Path

from longtail.lab.data.errors import DataError

__all__ = ["LIST_ENDINGS", "Labelled", "read_list"]

LIST_ENDINGS = (".txt", ".csv", ".tsv")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "category", "target", "class_name")
SPLIT_COLUMN = "split"


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
    classes: list[str] | None = None
    """All class names in the order of their index, where the source has one."""

    def where(self, split: str) -> Labelled:
        """The images of one split."""
        chosen = [place for place, name in enumerate(self.splits) if name == split]
        paths, names = ([values[place] for place in chosen] for values in (self.paths, self.names))
        return Labelled(self.root, self.source, paths, names, classes=self.classes)


def read_list(source: Path, root: Path | None = None) -> Labelled:
    """Read a list of images.

    A text file has lines ``path label``. Labels that are all whole numbers are class indices, and a file
    ``classes.txt`` beside the list may name the classes, one in a line; other labels are class names. A CSV file has a
    header with a column for the path, one for the label, which is a class name, and if it likes one named ``split``
    with ``train`` and ``test``.

    Args:
        source: the list.
        root: folder that the paths start from; by default the one that the list is in.
    """
    labelled = Labelled(root or source.parent, source)
    try:
        text = source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{source} is not UTF-8 text") from None
    except OSError as error:
        raise DataError(f"cannot read {source}: {error.strerror}") from None
    if source.suffix.lower() == ".txt":
        _read_lines(text, labelled)
    else:
        _read_table(text, labelled)
    if not labelled.paths:
        raise DataError(f"{source} lists no images")
    return labelled


def check_files_exist(labelled: Labelled) -> None:
    """Refuse a list that names a file which is not there."""
    top = os.fspath(labelled.root)
    for path in labelled.paths:
        if not os.path.isfile(os.path.join(top, path)):
            raise DataError(f"{labelled.source} names {path}, which is not in {labelled.root}")


def _read_lines(text: str, labelled: Labelled) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.rsplit(maxsplit=1)
        if len(parts) == 1:
            raise DataError(f"{labelled.source}, line {number}: {line.strip()!r} is not a path and a label")
        if parts:
            labelled.paths.append(_inside(parts[0].strip(), labelled, number))
            labelled.names.append(parts[1])
    if all(_is_whole_number(name) for name in labelled.names):
        _name_indices(labelled)


def _name_indices(labelled: Labelled) -> None:
    """Class indices → class names, by ``classes.txt`` or as they are."""
    indices = [int(name) for name in labelled.names]
    names_file = labelled.source.with_name("classes.txt")
    if names_file.is_file():
        names = names_file.read_text(encoding="utf-8-sig").splitlines()
        labelled.classes = [name.strip() for name in names if name.strip()]
    else:
        labelled.classes = [str(index) for index in range(max(indices, default=-1) + 1)]
    for path, index in zip(labelled.paths, indices, strict=True):
        if not 0 <= index < len(labelled.classes):
            known = f"{names_file.name} names {len(labelled.classes)} classes" if index >= 0 else "labels start at 0"
            raise DataError(f"{labelled.source}: {path} has label {index}, but {known}")
    labelled.names = [labelled.classes[index] for index in indices]


def _read_table(text: str, labelled: Labelled) -> None:
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    rows = csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
    columns = [name.strip().lower() for name in next(rows, [])]
    path_column = next((columns.index(name) for name in PATH_COLUMNS if name in columns), None)
    label_column = next((columns.index(name) for name in LABEL_COLUMNS if name in columns), None)
    if path_column is None or label_column is None:
        raise DataError(
            f"{labelled.source} has the columns {', '.join(columns)}: one of {', '.join(PATH_COLUMNS)} "
            f"and one of {', '.join(LABEL_COLUMNS)} are needed"
        )
    split_column = columns.index(SPLIT_COLUMN) if SPLIT_COLUMN in columns else None
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


def _inside(path: str, labelled: Labelled, line: int) -> str:
    """The path from the root, if that is where it leads."""
    if os.path.isabs(path) or ".." in path:
        path = os.path.relpath(os.path.normpath(labelled.root / path), labelled.root)
        if path.startswith(".."):
            raise DataError(f"{labelled.source}, line {line}: the path leads out of {labelled.root}")
    if not path:
        raise DataError(f"{labelled.source}, line {line}: no path")
    return path


def _is_whole_number(text: str) -> bool:
    return text.isdecimal() or (text.startswith("-") and text[1:].isdecimal())
