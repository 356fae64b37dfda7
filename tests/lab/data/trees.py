"""Small data sets of real JPEGs, in exactly the layouts of the official archives.

The grey of an image tells its class, so that a test sees a label that belongs to another image.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

GREY_STEP = 40


def write_jpeg(path: Path, label: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (GREY_STEP * label,) * 3).save(content, "JPEG")
    path.write_bytes(content.getvalue())


def labels_by_grey(images: Any) -> list[int]:
    """The class of each image, from its pixels."""
    return [round(float(pixels.float().mean()) / GREY_STEP) for pixels, _ in images]


# iNaturalist. Ranks of the ids differ between numbers (7, 41, 300) and texts, and from the order in the file.
CATEGORIES = [
    {"id": 41, "name": "Corvus corax", "supercategory": "Aves"},
    {"id": 300, "name": "Ficus variegata", "supercategory": "Mollusca"},
    {"id": 7, "name": "Ficus variegata", "supercategory": "Plantae"},
]
LABEL_OF_CATEGORY = {7: 0, 41: 1, 300: 2}
# (image id, category id): neither ids nor file names nor categories are in the order of the file.
TRAIN_IMAGES = [(90, 300), (12, 7), (55, 41), (3, 41), (71, 7), (4, 41)]
VAL_IMAGES = [(1008, 41), (1002, 300), (1005, 7)]


def write_inaturalist(root: Path, year: int) -> None:
    for split, images in (("train", TRAIN_IMAGES), ("val", VAL_IMAGES)):
        document = inaturalist_document(year, images)
        write_document(root / f"{split}{year}.json", document)
        for (_, category), record in zip(images, document["images"], strict=True):
            write_jpeg(root / record["file_name"], LABEL_OF_CATEGORY[category])


def inaturalist_document(year: int, images: list[tuple[int, int]]) -> dict[str, Any]:
    """The categories of 2018 have obfuscated names: their ids."""
    categories = [{**category, "name": str(category["id"])} if year == 2018 else category for category in CATEGORIES]
    folders = {category["id"]: f"{category['supercategory']}/{category['name']}" for category in categories}
    top = "train_val2018" if year == 2018 else "train_val_images"
    annotations = [
        {"id": 1000 + image, "image_id": image, "category_id": category} for image, category in sorted(images)
    ]
    return {
        "info": {"year": year},
        "images": [
            {"id": image, "file_name": f"{top}/{folders[category]}/{image * 37 % 101:03d}.jpg", "width": 8, "height": 8}
            for image, category in images
        ],
        "annotations": annotations[1:] + annotations[:1],
        "categories": categories,
        "licenses": [],
    }


def write_document(file: Path, document: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document), encoding="utf-8")


# ImageNet. The ILSVRC2012_ID is in another order than the WordNet id, as in the official file.
WNIDS = ["n01440764", "n02012849", "n03126707", "n03710721"]
WORDS = {
    "n01440764": "tench, Tinca tinca",
    "n02012849": "crane",
    "n03126707": "crane",
    "n03710721": "maillot, tank suit",
}
ILSVRC2012_IDS = {"n01440764": 3, "n02012849": 1, "n03126707": 4, "n03710721": 2}
INNER_ID, INNER_WNID = 5, "n00001740"
VAL_WNIDS = ["n03126707", "n01440764", "n03710721", "n02012849", "n01440764"]
"""The class of validation image 1, 2, …"""


def write_train(images: Path) -> None:
    for label, wnid in enumerate(WNIDS):
        for number in (10026, 9, 205)[: 1 + label % 3]:
            write_jpeg(images / "train" / wnid / f"{wnid}_{number}.JPEG", label)


def write_val_folders(images: Path) -> None:
    for number, wnid in enumerate(VAL_WNIDS, start=1):
        write_jpeg(images / "val" / wnid / f"ILSVRC2012_val_{number:08d}.JPEG", WNIDS.index(wnid))


def write_flat_val(images: Path) -> None:
    for number, wnid in enumerate(VAL_WNIDS, start=1):
        write_jpeg(images / "val" / f"ILSVRC2012_val_{number:08d}.JPEG", WNIDS.index(wnid))


def write_devkit(root: Path) -> None:
    data = root / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    rows = [(number, wnid, WORDS[wnid], 0) for wnid, number in ILSVRC2012_IDS.items()]
    rows.append((INNER_ID, INNER_WNID, "entity", len(rows)))
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height"]
    synsets = np.zeros((len(rows), 1), dtype=[(field, object) for field in [*fields, "num_train_images"]])
    for row, (number, wnid, words, children) in enumerate(sorted(rows)):
        synsets[row, 0] = (number, wnid, words, "a gloss", children, np.arange(1, children + 1), children and 1, 1300)
    savemat(data / "meta.mat", {"synsets": synsets})
    truth = "".join(f"{ILSVRC2012_IDS[wnid]}\n" for wnid in VAL_WNIDS)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(truth)


def write_kaggle_tables(folder: Path) -> None:
    """The images of the solution are in no order, and may have several boxes."""
    rows = [f"ILSVRC2012_val_{n:08d},{wnid} 85 1 499 272 {wnid} 1 2 3 4 " for n, wnid in enumerate(VAL_WNIDS, start=1)]
    (folder / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows[2:], *rows[:2]]) + "\n")
    mapping = "".join(f"{wnid} {words}\n" for wnid, words in WORDS.items())
    (folder / "LOC_synset_mapping.txt").write_text(mapping)
