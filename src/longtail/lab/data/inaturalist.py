"""iNaturalist 2017 and 2018: photographs of species, with annotations in JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from longtail.lab.data.dataset import ImageDataset, ImageFiles
from longtail.lab.data.errors import DataError
from longtail.lab.data.image_scan import missing_files

YEARS = (2017, 2018)
MEAN = (0.466 * 255, 0.471 * 255, 0.380 * 255)
STD = (0.195 * 255, 0.194 * 255, 0.192 * 255)


@dataclass(frozen=True)
class _Split:
    """What one JSON file says."""

    file: Path
    class_names: dict[int, str]
    """Class name of each category id."""
    category_ids: dict[str, int]
    """Category id of each image file, in the order of the file names."""


def open_inaturalist(year: int, folder: Path) -> ImageDataset:
    """The photographs of iNaturalist 2017 or 2018, as the official archives unpack.

    The class index is the rank of the category id. The class name is ``supercategory/name``: this is the folder of the
    images, and in most releases of 2018 the name alone is just the id. The test set is the official validation set, as
    the official test set has no labels. Images are in the order of their file names. ``folder`` holds the JSON files
    and the folder of the images, or a folder ``inaturalist2017`` or ``inaturalist2018`` with them.
    """
    if year not in YEARS:
        raise ValueError(f"year must be 2017 or 2018, got {year}")
    name = f"inaturalist{year}"
    root = folder / name if (folder / name).is_dir() else folder
    train_file, test_file = _find_json(root, "train", year), _find_json(root, "val", year)
    train, test = _read_split(train_file), _read_split(test_file)
    _check_same_categories(train, test)
    for split in (train, test):
        _check_files_exist(root, split, name)
    category_ids = sorted(train.class_names)
    return ImageDataset(
        name=name,
        classes=tuple(train.class_names[category_id] for category_id in category_ids),
        train=_image_files(root, train, category_ids),
        test=_image_files(root, test, category_ids),
        mean=MEAN,
        std=STD,
    )


def _find_json(root: Path, split: str, year: int) -> Path:
    name = f"{split}{year}.json"
    # The archive of 2017's JSON files unpacks into a folder.
    for file in (root / name, root / f"train_val{year}" / name):
        if file.is_file():
            return file
    missing = f"no {name} in {root}" if root.is_dir() else f"no folder {root} to find {name} in"
    raise DataError(f"{missing}: `longtail data fetch inaturalist{year}` gets it")


def _read_split(file: Path) -> _Split:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} is not valid JSON, perhaps it is truncated: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f"{file} must hold a JSON object, not {type(document).__name__}")
    class_names: dict[int, str] = {}
    seen: set[str] = set()
    for category_id, name, supercategory in _records(file, document, "categories", id=int, name=str, supercategory=str):
        class_name = f"{supercategory}/{name}"
        if category_id in class_names or class_name in seen:
            raise DataError(f"{file}: category {category_id}, {class_name!r}, occurs twice in id or name")
        class_names[category_id] = class_name
        seen.add(class_name)
    file_names: dict[int, str] = {}
    for image_id, file_name in _records(file, document, "images", id=int, file_name=str):
        if image_id in file_names:
            raise DataError(f"{file}: two images have the id {image_id}")
        if _leaves_folder(file_name):
            raise DataError(f"{file}: file name {file_name!r} of image {image_id} leads out of the data folder")
        file_names[image_id] = file_name
    category_of_image: dict[int, int] = {}
    for image_id, category_id in _records(file, document, "annotations", image_id=int, category_id=int):
        if image_id not in file_names:
            raise DataError(f"{file}: an annotation names image {image_id}, which is not among the images")
        if category_id not in class_names:
            raise DataError(f"{file}: image {image_id} has category {category_id}, which is not among the categories")
        known = category_of_image.setdefault(image_id, category_id)
        if known != category_id:
            raise DataError(f"{file}: image {image_id} has two categories, {known} and {category_id}")
    category_ids: dict[str, int] = {}
    for image_id, file_name in sorted(file_names.items(), key=lambda item: item[1]):
        if image_id not in category_of_image:
            raise DataError(f"{file}: image {image_id}, {file_name!r}, has no annotation")
        if file_name in category_ids:
            raise DataError(f"{file}: two images have the file name {file_name!r}")
        category_ids[file_name] = category_of_image[image_id]
    return _Split(file, class_names, category_ids)


def _records(file: Path, document: dict[str, Any], section: str, **kinds: type) -> Iterator[tuple[Any, ...]]:
    """The values of these keys in every record of a section."""
    records = document.get(section)
    if not isinstance(records, list):
        raise DataError(f"{file} has no list {section!r}")
    for position, record in enumerate(records):
        for key, kind in kinds.items():
            # Not isinstance: true is no id.
            if not isinstance(record, dict) or type(record.get(key)) is not kind:
                name = "integer" if kind is int else "text"
                raise DataError(f"{file}: {section}[{position}] has no {name} {key!r}: {record!r:.100}")
        yield tuple(record[key] for key in kinds)


def _leaves_folder(file_name: str) -> bool:
    # The cheap test spares half a million paths.
    return os.path.isabs(file_name) or (".." in file_name and ".." in PurePosixPath(file_name).parts)


def _check_same_categories(train: _Split, test: _Split) -> None:
    """Refuse a test image whose category is unknown to training, or has another name there."""
    for category_id in sorted(set(test.category_ids.values())):
        test_name, train_name = test.class_names[category_id], train.class_names.get(category_id)
        if train_name is None:
            raise DataError(f"{test.file}: category {category_id}, {test_name!r}, is not among those of {train.file}")
        if test_name != train_name:
            raise DataError(f"{test.file}: category {category_id} is {test_name!r}, but {train_name!r} in {train.file}")


def _check_files_exist(root: Path, split: _Split, name: str) -> None:
    if missing := missing_files(root, split.category_ids):
        count = f"{len(missing)} of {len(split.category_ids)} images of {split.file.name}"
        raise DataError(f"{root}: {count} are missing, such as {missing[0]!r}: `longtail data fetch {name}` gets them")


def _image_files(root: Path, split: _Split, category_ids: list[int]) -> ImageFiles:
    labels = {category_id: label for label, category_id in enumerate(category_ids)}
    return ImageFiles(root, split.category_ids, [labels[category_id] for category_id in split.category_ids.values()])
