"""What a training sees: batches of images, or of their features in memory, and what a step on them costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.data import ImageDataset, ImageFiles, InputSpec, Loader, Shard, evaluation_loader, training_loader
from longtail.lab.data.loaders import FeatureLoader
from longtail.lab.data.mixing import Mixing
from longtail.lab.training.build import build_loss, build_order
from longtail.lab.training.cost import Cost, measure_cost
from longtail.lab.training.frozen import FrozenBackbone, Head

if TYPE_CHECKING:
    from lightning_fabric import Fabric

EVALUATION_BATCH = 500
MOST_FEATURES = 1024
"""With which a head is measured."""


def measure_inputs(
    config: RunConfig,
    fabric: Fabric,
    dataset: ImageDataset,
    network: nn.Module,
    seconds: float = 0.0,
    photographs: int = 8,
) -> Cost:
    """Memory and time of a network, or of a head alone on features of a frozen backbone."""
    if isinstance(network, Head):
        inputs = torch.zeros(min(MOST_FEATURES, config.optimizer.batch_size), network.fc.in_features)
    else:
        images, size = dataset.train, dataset.input_size
        if size is not None or isinstance(images, ImageFiles):
            size = size or InputSpec.input_size
            inputs = torch.zeros(photographs, 3, size, size)
        else:
            inputs = torch.zeros(min(64, config.optimizer.batch_size), *images.images.shape[1:])
    return measure_cost(config, fabric, network, build_loss(config, dataset.counts), inputs, seconds)


def make_loaders(
    config: RunConfig,
    options: RunOptions,
    fabric: Fabric,
    dataset: ImageDataset,
    backbone: FrozenBackbone | None = None,
) -> Mapping[str, Loader]:
    """Batches of training, test and, if there are any, validation images, or of their features in memory."""
    data, batch_size, order = config.data, config.optimizer.batch_size, build_order(config, dataset)
    shared: dict[str, Any] = {"shard": Shard(fabric.global_rank, fabric.world_size), "device": fabric.device}
    evaluated = {"test": dataset.test} | ({} if dataset.validation is None else {"validation": dataset.validation})
    if backbone is not None:
        mixing = Mixing(data.mixup, classes=len(dataset.classes), seed=config.seed)
        features, labels = backbone.features(dataset.train, data.views), dataset.train.labels
        train = FeatureLoader(features, labels, batch_size, order=order, seed=config.seed, mixing=mixing, **shared)
        loaders: dict[str, Loader] = {"train": train}
        for name, images in evaluated.items():
            loaders[name] = FeatureLoader(backbone.features(images), images.labels, EVALUATION_BATCH, **shared)
        return loaders
    shared["workers"] = options.workers
    alphas: dict[str, Any] = {"mixup": data.mixup, "cutmix": data.cutmix}
    return {
        "train": training_loader(
            dataset, batch_size, seed=config.seed, order=order, augment=data.augment, **alphas, **shared
        )
    } | {
        name: evaluation_loader(dataset, EVALUATION_BATCH, images=images, **shared)
        for name, images in evaluated.items()
    }
