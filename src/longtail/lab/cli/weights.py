"""``longtail weights``: class weights from counts, labels or a data set."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, arg

from longtail.lab.cli.class_weights import Classes, WeightsOptions, read_classes, show_weights
from longtail.lab.cli.output import DataDir
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


def weights_command(
    weights: Annotated[FlagCreatePairsOff[WeightsOptions], OmitArgPrefixes] = WeightsOptions(),
    data: Annotated[
        str | None, arg(metavar="DATA", help="A name of longtail data list, or a folder or list of your own images.")
    ] = None,
    subset: Annotated[SubsetOptions, OmitArgPrefixes] = SubsetOptions(),
    files: Annotated[ImageFolderOptions, OmitArgPrefixes] = ImageFolderOptions(),
    data_dir: DataDir = None,
) -> None:
    """Show the effective number and the weight of each class.

    Without --counts, --labels or --data, labels are read from standard input, one per line.

    Example: longtail weights --counts 5000,2997,1796 --beta 0.999
    """
    weights.check()
    if data is None and (subset != SubsetOptions() or not files.is_default):
        raise ConfigError("options of a data set require --data")
    if data is None:
        show_weights(read_classes(weights), weights)
        return
    for name in ("counts", "labels"):
        if getattr(weights, name) is not None:
            raise ConfigError(f"--{name} and --data exclude each other: give one")
    is_absent = data in SIZES and files.is_default and not CATALOG[data].is_in(data_folder(data_dir))
    dataset, _ = subset.choose(_as_released(data) if is_absent else open_dataset(data, data_dir, files=files))
    show_weights(Classes(list(dataset.classes), dataset.counts), weights)


def _as_released(data: str) -> ImageDataset:
    """CIFAR with empty images: nothing needs to be downloaded to know how many there are of each class."""
    num_classes, images = SIZES[data]
    labels = np.repeat(np.arange(num_classes), images)
    empty = InMemoryImages(torch.zeros(len(labels), 0, 0, 0, dtype=torch.uint8), labels)
    return ImageDataset(name=data, classes=tuple(map(str, range(num_classes))), train=empty, test=empty)
