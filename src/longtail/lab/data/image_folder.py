"""Your own images: one folder per class, or lists of paths and labels."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from longtail._checks import check_positive_integer
from longtail.counts import IntArray, class_counts
from longtail.lab.data.dataset import ImageDataset, ImageFiles
from longtail.lab.data.errors import DataError
from longtail.lab.data.folds import held_out_part
from longtail.lab.data.image_scan import IMAGE_ENDINGS, list_images
from longtail.lab.data.list_files import LIST_ENDINGS, Labelled, check_files_exist, read_list

TEST_NAMES = ("test", "val", "valid", "validation")
SPLITS = ("train", *TEST_NAMES)


@dataclass(frozen=True, kw_only=True)
class ImageFolderOptions:
    """How to read a folder or list of images.

    Example:
        >>> ImageFolderOptions(test_fraction=0.1).class_depth is None
        True
    """

    test_data: Path | None = field(default=None, compare=False)
    """Folder or list of the test images, if they are separate from the training images."""
    image_root: Path | None = field(default=None, compare=False)
    """Folder that paths in lists are relative to; by default the folder of the list."""
    class_depth: int | None = None
    """Number of folder names that make a class; by default each folder that holds images is a class."""
    test_fraction: float = 0.2
    """Fraction of each class held out for testing, if there are no test images."""
    split_seed: int = 0
    """Seed of that split."""
    path_column: str | None = None
    """Column of a CSV file with the paths; path, file, image and the like by default."""
    label_column: str | None = None
    """Column of a CSV file with the class names; label, class, species and the like by default."""
    group_column: str | None = None
    """Column of a CSV file with the groups; group or group_id by default."""
    group_pattern: str | None = None
    """Regular expression that finds the group of an image in its path, such as patient[0-9]+; groups are not split."""

    @property
    def locations(self) -> dict[str, Path | None]:
        """Where files are: what they hold counts for a run, and not where they were found."""
        return {"test_data": self.test_data, "image_root": self.image_root}

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns that are named."""
        return {"path": self.path_column, "label": self.label_column, "group": self.group_column}

    @property
    def is_default(self) -> bool:
        """Whether nothing was asked for."""
        return self == ImageFolderOptions() and not any(self.locations.values())


def open_image_folder(
    data: Path, options: ImageFolderOptions = ImageFolderOptions(), check_lists: bool = True
) -> ImageDataset:
    """Images in folders named like their classes, or in lists.

    A folder holds ``train/`` and ``test/`` (or ``val/``), each with a folder for each class; or the class folders at
    once, and then a part of each class is set aside to test on; or lists such as ``train.txt`` and ``test.txt``. A list
    of :func:`~longtail.lab.data.list_files.read_list`'s kind can be given instead of the folder; where its name ends in
    ``train``, the one beside it that ends in ``test`` or ``val`` is the test list. ``check_lists`` is whether the files
    that lists name must all exist.
    """
    if options.class_depth is not None:
        check_positive_integer("class_depth", options.class_depth)
    if options.group_column and options.group_pattern:
        raise DataError("data.files.group_column and data.files.group_pattern exclude each other")
    notes: list[str] = []
    train, test = _find_splits(data, options, notes)
    if (named := [name for name, column in options.columns.items() if column]) and not _is_table(train.source):
        raise DataError(f"data.files.{named[0]}_column requires a CSV file: {train.source} has no columns")
    for labelled in (train, test):
        if check_lists and labelled and labelled.source.is_file():
            check_files_exist(labelled)
    classes = train.classes or sorted(set(train.names), key=_by_number_or_name)
    train_files = _files(train, classes)
    left_out = [*train.left_out, *(test.left_out if test else [])]
    if left_out:
        notes.append(f"left out, not a known image format: {len(left_out):,} files, such as {left_out[0]}")
    if test is not None:
        test_files = _files(test, classes)
        both = _everywhere(train) & _everywhere(test)
        if both:
            number = f"{len(both):,} images are" if len(both) > 1 else "1 image is"
            notes.append(f"{number} in both the training and the test set, such as {min(both)}")
        _check_groups(train, test)
        if train.groups and not test.groups:
            notes.append(f"{test.source} has no groups: a group may be in both the training and the test set")
    else:
        if len(set(train.paths)) < len(train.paths):
            raise DataError(
                f"{train.source} names an image twice: list the test images separately, so that none is in both"
            )
        labels = train_files.labels.numpy()
        _check_two_images(train.source, classes, labels)
        apart = held_out_part(
            labels, options.test_fraction, options.split_seed, train_files.groups, name="test_fraction"
        )
        if not apart.any():
            count = len(set(train.groups))
            raise DataError(f"{train.source} has no group to test on: each of the {count:,} has all images of a class")
        if untested := [classes[label] for label in sorted(set(range(len(classes))) - set(labels[apart].tolist()))]:
            notes.append(f"{len(untested)} of {len(classes)} classes have no test images, such as {untested[0]!r}")
        test_files = train_files.subset(np.flatnonzero(apart))
        train_files = train_files.subset(np.flatnonzero(~apart))
    return ImageDataset(
        name=data.resolve().stem, classes=tuple(classes), train=train_files, test=test_files, notes=tuple(notes)
    )


def labelled_images(
    data: Path, classes: Sequence[str], split: str, options: ImageFolderOptions = ImageFolderOptions()
) -> tuple[ImageFiles, str | None]:
    """All images of a folder or list, to evaluate on, and their split: ``split`` if it has training and test images.

    Classes that are not among ``classes`` are refused; groups do not matter.
    """
    files = replace(options, test_data=None, image_root=None, group_column=None, group_pattern=None)
    train, test = _find_splits(data, files, [])
    chosen = train if test is None or split == "train" else test
    if chosen.source.is_file():
        check_files_exist(chosen)
    return _files(chosen, list(classes)), None if test is None else split


def _find_splits(data: Path, options: ImageFolderOptions, notes: list[str]) -> tuple[Labelled, Labelled | None]:
    splits = _split_folders(data)
    if "train" in splits:
        data, *tests = (splits[name] for name in SPLITS if name in splits)
        beside = tests[0] if tests else None
        notes += [f"{other} is not used" for other in (*tests[1:], *_other_folders(data.parent))]
    else:
        data = _train_list_in(data) or data
        beside = _test_list_beside(data) if data.is_file() else None
    train = _read(data, options)
    if options.test_data:
        return train, _read(options.test_data, options)
    if train.splits:
        return _by_split_column(train)
    return train, _read(beside, options) if beside else None


def _split_folders(data: Path) -> dict[str, Path]:
    """Folders named train, test and the like, whatever the case of their letters."""
    if not data.is_dir():
        return {}
    return {path.name.lower(): path for path in sorted(data.iterdir()) if path.name.lower() in SPLITS and path.is_dir()}


def _other_folders(data: Path) -> list[Path]:
    """Folders beside train that are no split, and look like classes: they hold images."""
    return [path for path in sorted(data.iterdir()) if path.name.lower() not in SPLITS and _holds_images(path)]


def _holds_images(path: Path) -> bool:
    with suppress(OSError):  # it is not a folder, or cannot be read, and is not asked for
        return not path.name.startswith(".") and any(name.lower().endswith(IMAGE_ENDINGS) for name in os.listdir(path))
    return False


def _everywhere(labelled: Labelled) -> set[str]:
    """Where the images are, so that those of two sources can be compared."""
    root = str(labelled.root.resolve())
    return {f"{root}/{path}" for path in labelled.paths}


def _train_list_in(folder: Path) -> Path | None:
    if not folder.is_dir():
        return None
    lists = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in LIST_ENDINGS and path.stem.endswith("train")
    )
    if len(lists) > 1:
        raise DataError(f"{folder} has several lists of training images, {lists[0].name} and {lists[1].name}: give one")
    return lists[0] if lists else None


def _test_list_beside(train: Path) -> Path | None:
    if not train.stem.endswith("train"):
        return None
    stem = train.stem.removesuffix("train")
    names = (train.with_name(f"{stem}{name}{train.suffix}") for name in TEST_NAMES)
    return next((path for path in names if path.is_file()), None)


def _is_table(source: Path) -> bool:
    return source.is_file() and source.suffix.lower() != ".txt"


def _check_groups(train: Labelled, test: Labelled) -> None:
    """Refuse a group that is in both splits: the test would be of images like those trained on."""
    if both := set(train.groups) & set(test.groups):
        group, number = min(both), f"{len(both):,} groups are" if len(both) > 1 else "1 group is"
        paths = [each.root / each.paths[each.groups.index(group)] for each in (train, test)]
        raise DataError(
            f"{number} in both the training and the test images, such as {group!r}: {paths[0]} and {paths[1]}"
        )


def _check_two_images(source: Path, classes: Sequence[str], labels: IntArray) -> None:
    """Refuse a class with a single image, which cannot be both trained on and tested on."""
    single = [classes[label] for label in np.flatnonzero(class_counts(labels, len(classes)) == 1).tolist()]
    if single:
        named = ", ".join(map(repr, single[:3])) + (", …" if len(single) > 3 else "")
        raise DataError(
            f"{source}: {len(single):,} of {len(classes):,} classes, {named}, cannot be split into training and test "
            "images, with one image each: add images, remove these classes, or split the images yourself (folders "
            "train and test, or a list of each)"
        )


def _by_split_column(labelled: Labelled) -> tuple[Labelled, Labelled]:
    strange = set(labelled.splits) - set(SPLITS)
    if strange:
        raise DataError(f"{labelled.source} has the split {min(strange)!r}: choose from {', '.join(SPLITS)}")
    test = next((name for name in TEST_NAMES if name in labelled.splits), None)
    if test is None or "train" not in labelled.splits:
        raise DataError(f"{labelled.source} has a column split, but no images of {'train' if test else 'test'}")
    return labelled.where("train"), labelled.where(test)


def _read(source: Path, options: ImageFolderOptions) -> Labelled:
    if source.is_dir():
        labelled = _read_folder(source, options.class_depth)
    elif source.suffix.lower() not in LIST_ENDINGS:
        raise DataError(f"{source} is neither a folder nor a list ({', '.join(LIST_ENDINGS)})")
    else:
        labelled = read_list(source, options.image_root, options.columns)
    if options.group_pattern is not None:
        labelled.groups = [_group_of(path, options.group_pattern) for path in labelled.paths]
    return labelled


def _group_of(path: str, pattern: str) -> str:
    """What the pattern captures in a path, or all that it matches."""
    try:
        found = re.search(pattern, path)
    except re.error as error:
        raise DataError(f"data.files.group_pattern {pattern!r} is not a regular expression: {error}") from None
    captured = "/".join(part for part in found.groups() if part) or found[0] if found else ""
    if not captured:
        raise DataError(f"data.files.group_pattern {pattern!r} does not match {path}: every image needs a group")
    return captured


def _read_folder(folder: Path, class_depth: int | None) -> Labelled:
    labelled = Labelled(folder, folder)
    for inner, content in list_images(folder).items():
        if content.images and not inner:
            raise DataError(f"{folder / content.images[0]} is not in a folder named like its class")
        if not content.images and not content.folders:
            others = f", only {len(content.others)} other files" if content.others else ""
            raise DataError(f"{folder / inner} holds no images{others}")
        # Some systems write accents as characters of their own: the same class must not get two names.
        name = "/".join(inner.split("/")[:class_depth])
        # A name that is not text would be one that no JSON takes.
        name = unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))
        labelled.left_out += [f"{inner}/{other}" for other in content.others]
        labelled.paths += [f"{inner}/{image}" for image in content.images]
        labelled.names += [name] * len(content.images)
    return labelled


def _files(labelled: Labelled, classes: list[str]) -> ImageFiles:
    index = {name: label for label, name in enumerate(classes)}
    if len(index) != len(classes):
        raise DataError(f"{labelled.source}: two classes have the same name")
    for what, values in (("class", labelled.names), ("group", labelled.groups)):
        known: dict[str, str] = {}
        for path, value in zip(labelled.paths, values, strict=False):  # there may be no groups
            if known.setdefault(path, value) != value:
                raise DataError(f"{labelled.source} names {path} twice, with the {what} {known[path]!r} and {value!r}")
    try:
        labels = [index[name] for name in labelled.names]
    except KeyError as unknown:
        path = labelled.paths[labelled.names.index(unknown.args[0])]
        raise DataError(
            f"{labelled.source}: {path} is of class {unknown}, which is not among the {len(classes)} training classes"
        ) from None
    return ImageFiles(labelled.root, labelled.paths, labels, labelled.groups or None)


def _by_number_or_name(name: str) -> tuple[float, str]:
    return (int(name) if name.isdecimal() and len(name) < 300 else float("inf"), name)


def fingerprint(dataset: ImageDataset) -> str:
    """SHA-256 of the class names and of the relative paths, sizes, labels and groups of all images.

    The same images have the same fingerprint wherever they are; one more, one less or another size changes it.

    Example:
        >>> fingerprint(open_image_folder(Path("photos")))  # doctest: +SKIP
        '2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae'
    """
    content: list[object] = [dataset.classes]
    for images in (dataset.train, dataset.test):
        assert isinstance(images, ImageFiles)
        paths = list(map(os.fsdecode, images.paths.tolist()))
        sizes = [_size(os.path.join(images.root, path)) for path in paths]
        content.append(sorted(zip(paths, sizes, images.labels.tolist(), strict=True)))
        if images.groups is not None:
            content.append(sorted(zip(paths, map(os.fsdecode, images.groups.tolist()), strict=True)))
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # reading it later says what is wrong
        return -1
