"""ImageNet (ILSVRC2012), as its official archives or Kaggle's unpack."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from longtail.lab.data.dataset import ImageDataset, ImageFiles
from longtail.lab.data.errors import DataError
from longtail.lab.data.image_scan import list_images

WORDNET_ID = re.compile(r"n\d{8}")
KAGGLE_NAMES = Path("LOC_synset_mapping.txt")
KAGGLE_SOLUTION = Path("LOC_val_solution.csv")
DEVKIT_META = Path("ILSVRC2012_devkit_t12", "data", "meta.mat")
DEVKIT_TRUTH = Path("ILSVRC2012_devkit_t12", "data", "ILSVRC2012_validation_ground_truth.txt")


def open_imagenet(folder: Path) -> ImageDataset:
    """ImageNet of the challenge of 2012: 1000 classes, trained on ``train`` and tested on ``val``.

    Training images are in ``train/<WordNet id>/``. Validation images are in such class folders, too, or all in ``val/``
    beside the development kit or Kaggle's ``LOC_val_solution.csv``, which hold their classes. The class index is the
    rank of the WordNet id. The class name is the first word of the synset, from the development kit or Kaggle's
    ``LOC_synset_mapping.txt``; a name that two classes share gets their ids, as in ``crane (n02012849)``, and without
    either file the id is the name. Images are in the order of their paths. ``folder`` holds ``train`` and ``val``, or
    Kaggle's ``Data/CLS-LOC`` with them; or a folder ``imagenet``, ``ILSVRC2012`` or ``ILSVRC`` that does.
    """
    root, images = _find_images(folder)
    # Kaggle puts its tables beside the folder ILSVRC.
    beside = (root, root.absolute().parent)
    classes, _ = _list_classes(images / "train")
    if not classes:
        raise DataError(f"{images / 'train'} has no class folders, such as n01440764")
    wnids = list(classes)
    return ImageDataset(
        name="imagenet",
        classes=_class_names(wnids, _read_synset_names(beside)),
        train=_in_class_folders(images, "train", classes),
        test=_read_validation(images, beside, wnids),
    )


def _find_images(folder: Path) -> tuple[Path, Path]:
    """The folder of the data set, and in it the folder that holds ``train`` and ``val``."""
    for base in (folder / "imagenet", folder / "ILSVRC2012", folder):
        for root in (base / "ILSVRC", base):
            for images in (root, root / "Data" / "CLS-LOC"):
                if (images / "train").is_dir():
                    return root, images
    where = f"{folder} or its folders imagenet, ILSVRC2012 and ILSVRC"
    account = "it is only available with an account at https://image-net.org"
    raise DataError(f"no ImageNet in {where}: looked for train/ and Data/CLS-LOC/train/; {account}")


def _find_file(beside: Sequence[Path], name: Path) -> Path | None:
    return next((folder / name for folder in beside if (folder / name).is_file()), None)


def _list_classes(split: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Images of each class folder of ``split``, sorted, and those beside the folders."""
    listing = list_images(split)
    beside = listing.pop("").images
    for name, content in listing.items():
        # An accidental folder would take a class index, and shift those of the classes behind it.
        if not WORDNET_ID.fullmatch(name):
            raise DataError(f"{split / name} is not named by a WordNet id, such as n01440764")
        if not content.images:
            raise DataError(f"class folder {split / name} has no images")
    return {name: content.images for name, content in listing.items()}, beside


def _in_class_folders(images: Path, split: str, classes: Mapping[str, list[str]]) -> ImageFiles:
    paths = [f"{split}/{wnid}/{name}" for wnid, names in classes.items() for name in names]
    return ImageFiles(images, paths, np.repeat(np.arange(len(classes)), [len(names) for names in classes.values()]))


def _read_validation(images: Path, beside: Sequence[Path], wnids: Sequence[str]) -> ImageFiles:
    val = images / "val"
    if not val.is_dir():
        raise DataError(f"no folder {val} beside {images / 'train'}")
    classes, names = _list_classes(val)
    if classes and names:
        raise DataError(f"{val} has both class folders, such as {min(classes)}, and images, such as {names[0]!r}")
    if names:
        return _read_flat_validation(images, names, beside, wnids)
    if not classes:
        raise DataError(f"{val} has neither class folders nor images")
    if unpaired := classes.keys() ^ set(wnids):
        there, absent = ("val", "train") if min(unpaired) in classes else ("train", "val")
        raise DataError(f"class {min(unpaired)} is in {images / there}, but not in {images / absent}")
    return _in_class_folders(images, "val", classes)


def _read_flat_validation(
    images: Path, names: Sequence[str], beside: Sequence[Path], wnids: Sequence[str]
) -> ImageFiles:
    """Joins images to their classes by image id, which is the file name without its ending."""
    file, wnid_of_image = _read_annotations(beside, images / "val")
    label_of_wnid = {wnid: label for label, wnid in enumerate(wnids)}
    for image, wnid in wnid_of_image.items():
        if wnid not in label_of_wnid:
            raise DataError(f"{file}: class {wnid!r} of {image} is not in {images / 'train'}")
    image_ids = [os.path.splitext(name)[0] for name in names]
    for image, name in zip(image_ids, names, strict=True):
        if image not in wnid_of_image:
            raise DataError(f"{images / 'val' / name} has no annotation in {file}")
    missing = wnid_of_image.keys() - set(image_ids)
    if missing:
        raise DataError(f"{file}: {len(missing)} images, such as {min(missing)}, are missing in {images / 'val'}")
    labels = [label_of_wnid[wnid_of_image[image]] for image in image_ids]
    return ImageFiles(images, [f"val/{name}" for name in names], labels)


def _read_annotations(beside: Sequence[Path], val: Path) -> tuple[Path, Mapping[str, str]]:
    """The file that tells the classes of the validation images, and the WordNet id of each image id."""
    if solution := _find_file(beside, KAGGLE_SOLUTION):
        return solution, _read_kaggle_solution(solution)
    meta, truth = _find_file(beside, DEVKIT_META), _find_file(beside, DEVKIT_TRUTH)
    if meta and truth:
        return truth, _read_devkit_truth(meta, truth)
    where = " or ".join(map(str, beside))
    needed = f"{KAGGLE_SOLUTION} or {DEVKIT_META} with {DEVKIT_TRUTH.name}"
    raise DataError(f"{val} has no class folders, so {needed} is needed in {where}")


def _read_kaggle_solution(file: Path) -> dict[str, str]:
    wnid_of_image: dict[str, str] = {}
    try:
        rows = list(csv.DictReader(_read_lines(file)))
    except csv.Error as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    for row in rows:
        image, prediction = row.get("ImageId"), row.get("PredictionString")
        # The rest of a prediction are boxes.
        if not image or not prediction or not (words := prediction.split()):
            raise DataError(f"{file}: expected an ImageId and a PredictionString, got {row!r:.100}")
        if wnid_of_image.setdefault(image, words[0]) != words[0]:
            raise DataError(f"{file}: {image} has two classes, {wnid_of_image[image]} and {words[0]}")
    return wnid_of_image


def _read_devkit_truth(meta: Path, truth: Path) -> dict[str, str]:
    leaves = {str(number): wnid for number, wnid, _ in _read_devkit_leaves(meta)}
    wnid_of_image: dict[str, str] = {}
    for number, line in enumerate(_read_lines(truth), start=1):
        if line.strip() not in leaves:
            raise DataError(f"{truth}: line {number} is {line!r:.100}, which is not the id of a leaf class in {meta}")
        wnid_of_image[f"ILSVRC2012_val_{number:08d}"] = leaves[line.strip()]
    return wnid_of_image


def _read_devkit_leaves(meta: Path) -> list[tuple[int, str, str]]:
    """ILSVRC2012_ID, WordNet id and words of every class that has no children."""
    # Here because it takes a while, and most layouts do without.
    from scipy.io import loadmat

    try:
        synsets = np.atleast_1d(loadmat(meta, squeeze_me=True)["synsets"])
        leaves = synsets[synsets["num_children"] == 0]
        return [(int(leaf["ILSVRC2012_ID"]), str(leaf["WNID"]), str(leaf["words"])) for leaf in leaves]
    except Exception as error:  # SciPy raises anything from EOFError to zlib.error on a damaged file.
        raise DataError(f"{meta} is not the meta.mat of the development kit: {error!r}") from error


def _read_synset_names(beside: Sequence[Path]) -> dict[str, str]:
    """First word of the synset of each WordNet id, as far as a file tells."""
    if mapping := _find_file(beside, KAGGLE_NAMES):
        words = dict(line.partition(" ")[::2] for line in _read_lines(mapping))
    elif meta := _find_file(beside, DEVKIT_META):
        words = {wnid: text for _, wnid, text in _read_devkit_leaves(meta)}
    else:
        words = {}
    return {wnid: text.split(",")[0].strip() for wnid, text in words.items()}


def _class_names(wnids: Sequence[str], synset_names: Mapping[str, str]) -> tuple[str, ...]:
    names = [synset_names.get(wnid) or wnid for wnid in wnids]
    occurrences = Counter(names)
    return tuple(
        name if occurrences[name] == 1 else f"{name} ({wnid})" for wnid, name in zip(wnids, names, strict=True)
    )


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
