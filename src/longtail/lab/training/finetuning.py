"""From a linear probe to fine-tuning: the head that it starts from, whether it is needed, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rich.console import Console
from torch import nn

from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.data import ImageDataset
from longtail.lab.data.loaders import FeatureLoader
from longtail.lab.models import IMAGENET, classifier
from longtail.lab.recipes import finetuning_of, probe_of
from longtail.lab.training.build import (
    build_head,
    build_loss,
    build_network,
    build_optimizer,
    build_order,
    follow_schedule,
    open_data,
)
from longtail.lab.training.cost import measure_inputs
from longtail.lab.training.frozen import FrozenBackbone
from longtail.lab.training.processes import computed_by_first, make_fabric

if TYPE_CHECKING:
    from lightning_fabric import Fabric

UNDERFITTED = 1.0
"""Training error, in %, above which a head does not fit its training images: 0.1% on photographs (Caltech-101), but
10.9% on digits (results/photographs)."""
FITTING_STEPS, FITTING_EPOCHS = 300, 30
"""Fewer steps or epochs leave a head unfitted on any images: its training error says nothing about them."""


def probe_head(backbone: FrozenBackbone) -> nn.Linear:
    """The head of a linear probe, trained on features that are in the cache: a function of these and of the seed."""
    config, dataset = backbone.config, backbone.dataset
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        head = build_head(config, backbone.size, len(dataset.classes))
    optimizer, criterion = build_optimizer(config, head), build_loss(config, dataset.counts)
    loader = FeatureLoader(
        backbone.features(dataset.train),
        dataset.train.labels,
        config.optimizer.batch_size,
        order=build_order(config, dataset),
        seed=config.seed,
    )
    for epoch in range(config.optimizer.epochs):
        for step, (features, labels, total) in enumerate(loader.epoch(epoch)):
            follow_schedule(config, optimizer, criterion, epoch + step / len(loader))
            (criterion(head(features), labels) / total).backward()
            optimizer.step()
            optimizer.zero_grad()
    return head.fc


def warm_start(
    network: nn.Module,
    config: RunConfig,
    dataset: ImageDataset,
    fabric: Fabric,
    workers: int | None = None,
    console: Console | None = None,
) -> None:
    """Give a network that is to be fine-tuned the head of a linear probe, in place."""
    backbone, wanted = FrozenBackbone(probe_of(config), dataset), [(dataset.train, 0)]
    computed_by_first(fabric, lambda: backbone.compute(wanted, device=fabric.device, workers=workers, console=console))
    classifier(network).load_state_dict(probe_head(backbone).state_dict())


@torch.no_grad()
def training_error(head: nn.Module, loader: FeatureLoader, epochs: int) -> float | None:
    """Error of a head on the features that it was trained on, each image in its first view, in %; None if too short."""
    if epochs < FITTING_EPOCHS or epochs * len(loader) < FITTING_STEPS:
        return None
    predicted = head(loader.rows[:: loader.views]).argmax(dim=1)
    return float(100 * (predicted != loader.labels).double().mean())


def is_underfitted(config: RunConfig, final: Mapping[str, Any]) -> bool:
    """Whether the head of a pretrained, frozen backbone cannot even fit its training images.

    Example:
        >>> from longtail.lab.recipes import linear_probe
        >>> is_underfitted(linear_probe(), {"train_error": 31.0}), is_underfitted(linear_probe(), {"train_error": 0.4})
        (True, False)
    """
    pretrained, error = config.model.freeze and config.model.weights == IMAGENET, final.get("train_error")
    return pretrained and error is not None and error > UNDERFITTED


class Finetuning(NamedTuple):
    """A fine-tuning and what it costs here."""

    config: RunConfig
    seconds: float
    images_per_second: float


def estimate_finetuning(config: RunConfig, options: RunOptions = RunOptions()) -> Finetuning:
    """What fine-tuning costs instead of a linear probe, measured on a few images."""
    tuned = finetuning_of(config)
    dataset, _, found = open_data(tuned, options.data_dir)
    fabric = make_fabric(tuned, options.accelerator, 1)
    with torch.random.fork_rng(devices=[]):
        network = build_network(found, dataset)
    cost = measure_inputs(found, fabric, dataset, network)
    seconds = cost.seconds(found, len(dataset.train), len(dataset.test))
    return Finetuning(tuned, seconds, cost.images_per_second)
