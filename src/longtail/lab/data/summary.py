"""A data set in numbers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from longtail.counts import IntArray, class_counts, imbalance_factor
from longtail.lab.data.dataset import ImageDataset, Images
from longtail.lab.data.subset import LongTailedSubset
from longtail.weights import effective_number

BETAS = (0.9, 0.99, 0.999, 0.9999)
"""Those of the paper."""

GROUPS = ("many", "medium", "few")
"""More than 100 training images, 20 to 100, fewer than 20."""


def class_groups(counts: Any) -> IntArray:
    """Index in ``GROUPS`` of each class.

    Example:
        >>> class_groups([500, 101, 100, 20, 19])
        array([0, 0, 1, 1, 2])
    """
    values = np.asarray(counts)
    groups: IntArray = (values <= 100).astype(np.int64) + (values < 20)
    return groups


def describe_groups(images: Images) -> dict[str, Any] | None:
    """How many groups there are, and the largest of them; None for images without groups.

    Example:
        >>> from pathlib import Path
        >>> from longtail.lab.data import ImageFiles
        >>> describe_groups(ImageFiles(Path("photos"), ["1.jpg", "2.jpg", "3.jpg"], [0, 0, 1], ["cow", "cow", "ox"]))
        {'groups': 2, 'largest': 'cow', 'largest_images': 2}
    """
    if images.groups is None:
        return None
    names, sizes = np.unique(images.groups, return_counts=True)
    largest = int(sizes.argmax())
    return {
        "groups": len(names),
        "largest": os.fsdecode(bytes(names[largest])),
        "largest_images": int(sizes[largest]),
    }


def summarize(dataset: ImageDataset, subset: LongTailedSubset | None = None) -> dict[str, Any]:
    """Counts, imbalance, groups and effective numbers, ready for JSON.

    Example:
        >>> from longtail.lab.data.digits import open_digits
        >>> summary = summarize(open_digits())
        >>> summary["train_images"], summary["groups"]["many"]
        (1297, {'classes': 10, 'images': 1297})
    """
    counts = dataset.counts
    test_counts = class_counts(dataset.test.labels.numpy(), len(dataset.classes))
    groups = class_groups(counts)
    effective = {str(beta): effective_number(counts, beta) for beta in BETAS}
    chosen = None
    if subset:
        chosen = {name: getattr(subset, name) for name in ("imbalance", "profile", "seed", "sha256")}
    return {
        "name": dataset.name,
        "classes": len(dataset.classes),
        "train_images": len(dataset.train),
        "test_images": len(dataset.test),
        "imbalance": imbalance_factor(counts),
        "subset": chosen,
        "groups": {
            name: {"classes": int((groups == index).sum()), "images": int(counts[groups == index].sum())}
            for index, name in enumerate(GROUPS)
        },
        "image_groups": {"train": describe_groups(dataset.train), "test": describe_groups(dataset.test)},
        "per_class": [
            {
                "name": name,
                "train": int(counts[label]),
                "test": int(test_counts[label]),
                "group": GROUPS[groups[label]],
                "effective": {beta: float(values[label]) for beta, values in effective.items()},
            }
            for label, name in enumerate(dataset.classes)
        ],
        "notes": list(dataset.notes),
    }
