"""From a configuration to what is trained: data, network, loss and optimizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from longtail.counts import IntArray
from longtail.heads import param_groups
from longtail.lab.config import ConfigError, DataConfig, RunConfig
from longtail.lab.data import DataError, ImageDataset, ImageFiles, InMemoryImages, LongTailedSubset, open_dataset
from longtail.lab.data.batches import Order, shuffled
from longtail.lab.models import CifarResNet, ResNet, build_model
from longtail.losses import ClassBalancedLoss
from longtail.samplers import class_aware_order
from longtail.schedules import AnnealedReweighting, DeferredReweighting

__all__ = ["build_loss", "build_network", "build_optimizer", "build_order", "open_data"]


def open_data(
    config: RunConfig, data_dir: Path | None = None, console: Console | None = None
) -> tuple[ImageDataset, LongTailedSubset]:
    """The data set with the chosen training images, and which those are.

    Example:
        >>> from longtail.lab.data import SubsetOptions
        >>> dataset, subset = open_data(RunConfig(data=DataConfig(subset=SubsetOptions(imbalance=10))))
        >>> len(dataset.train), subset.imbalance
        (519, 10.0)
    """
    data = config.data
    dataset = open_dataset(data.data, data_dir, own=data.own, on_error=data.on_error, console=console)
    if data.image_size != DataConfig.image_size and isinstance(dataset.train, InMemoryImages):
        height, width = dataset.train.images.shape[2:]
        raise DataError(f"image_size {data.image_size} would do nothing: {data.data} has {height} × {width} pixels")
    betas, classes = len(config.loss.betas), len(dataset.classes)
    if betas not in (0, classes):
        raise ConfigError(f"betas has {betas} values, but {data.data} has {classes} classes")
    chosen, subset = data.subset.choose(dataset)
    chosen = data.fold.choose(chosen)
    if data.sampling != "shuffled" and not config.loss.is_plain:
        twice = f"classes are balanced twice, by the sampling {data.sampling} and by the weights: --weighting uniform"
        chosen = replace(chosen, notes=(*chosen.notes, f"{twice} has the sampling alone"))
    return chosen, subset


def build_order(config: RunConfig, dataset: ImageDataset) -> Order:
    """Which training images each epoch holds.

    Example:
        >>> dataset, _ = open_data(RunConfig())
        >>> balanced = build_order(RunConfig(data=DataConfig(sampling="class_balanced")), dataset)
        >>> dataset.train.labels[balanced(0)].bincount()
        tensor([130, 130, 129, 130, 130, 129, 130, 130, 129, 130])
    """
    data = config.data
    if data.sampling == "shuffled":
        return shuffled(len(dataset.train), config.seed)
    labels = dataset.train.labels.numpy()
    beta, epochs = data.sampling_beta, config.optimizer.epochs
    return lambda epoch: class_aware_order(
        labels, data.sampling, seed=config.seed, epoch=epoch, beta=beta, epochs=epochs
    )


def build_network(config: RunConfig, dataset: ImageDataset) -> CifarResNet | ResNet:
    """The network with new weights, drawn from PyTorch's global generator."""
    channels = 3 if isinstance(dataset.train, ImageFiles) else dataset.train.images.shape[1]
    loss = config.loss
    return build_model(
        config.model, len(dataset.classes), channels, prior_bias=loss.is_sigmoid, cosine_scale=loss.cosine_scale
    )


def build_loss(config: RunConfig, counts: IntArray) -> nn.Module:
    """The loss, summed over samples; ``counts`` are those of the images it is trained on."""
    loss = config.loss
    own: dict[str, Any] = loss.own_options
    if loss.cosine_scale is not None:
        # The network multiplies its cosines itself, so that its logits are those of its probabilities. Then
        # s(z - Δ) = sz - sΔ has margins of that size, and nothing is left to scale.
        own = {"max_margin": loss.cosine_scale * own["max_margin"], "scale": 1.0}
    criterion = ClassBalancedLoss(
        counts,
        loss.loss,
        loss.betas or (0.999 if loss.beta is None else loss.beta),
        **own,
        scheme=loss.weighting,
        normalize=loss.normalize,
        reduction="sum",
    )
    start, span = config.optimizer.defer_reweighting, config.optimizer.anneal_beta
    if span is not None:
        begin, options = start or 0.0, {"normalize": loss.normalize}
        return AnnealedReweighting(criterion, counts, loss.beta, start=begin, end=begin + span, **options)
    return criterion if start is None else DeferredReweighting(criterion, start)


def build_optimizer(config: RunConfig, network: CifarResNet | ResNet) -> torch.optim.Optimizer:
    """Stochastic gradient descent, with weight decay where it belongs."""
    optimizer = config.optimizer
    groups: list[dict[str, Any]] = [{"params": list(network.parameters()), "weight_decay": optimizer.weight_decay}]
    if config.loss.is_sigmoid or not optimizer.decay_norms:
        groups = param_groups(network, optimizer.weight_decay, network.fc)
    if not optimizer.decay_norms:
        norms = [
            weight
            for module in network.modules()
            if isinstance(module, nn.BatchNorm2d)
            for weight in module.parameters()
        ]
        kept = {id(weight) for weight in norms}
        groups[0]["params"] = [weight for weight in groups[0]["params"] if id(weight) not in kept]
        groups[1]["params"] += norms
    for group in groups:  # all of them, unless only a last layer is trained
        group["params"] = [weight for weight in group["params"] if weight.requires_grad]
    return torch.optim.SGD(
        groups,
        lr=optimizer.learning_rate_at(0.0),
        momentum=optimizer.momentum,
        nesterov=optimizer.nesterov,
        # With the others, the scaler of 16-bit gradients waits for the device in each step.
        fused=True if config.precision == "16-mixed" else None,
    )
