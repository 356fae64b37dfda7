"""From a configuration to what is trained: data, network, loss and optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from longtail.counts import IntArray
from longtail.lab.config import RunConfig
from longtail.lab.data import ImageDataset, ImageFiles, LongTailedSubset, open_dataset
from longtail.lab.models import CifarResNet, ResNet, build_model
from longtail.losses import ClassBalancedLoss

__all__ = ["build_loss", "build_network", "build_optimizer", "open_data"]


def open_data(
    config: RunConfig, data_dir: Path | None = None, console: Console | None = None
) -> tuple[ImageDataset, LongTailedSubset]:
    """The data set with the chosen training images, and which those are."""
    data = config.data
    dataset = open_dataset(data.data, data_dir, own=data.own, on_error=data.on_error, console=console)
    return data.subset.choose(dataset)


def build_network(config: RunConfig, dataset: ImageDataset) -> CifarResNet | ResNet:
    """The network with new weights, drawn from PyTorch's global generator."""
    channels = 3 if isinstance(dataset.train, ImageFiles) else dataset.train.images.shape[1]
    sigmoid = config.loss.loss != "softmax"
    return build_model(config.model, len(dataset.classes), channels, prior_bias=sigmoid)


def build_loss(config: RunConfig, counts: IntArray) -> ClassBalancedLoss:
    """The loss, summed over samples."""
    loss = config.loss
    return ClassBalancedLoss(
        counts,
        loss.loss,
        0.999 if loss.beta is None else loss.beta,
        loss.gamma,
        scheme=loss.weighting,
        normalize=loss.normalize,
        reduction="sum",
    )


def build_optimizer(config: RunConfig, network: CifarResNet | ResNet) -> torch.optim.Optimizer:
    """Stochastic gradient descent, with weight decay where it belongs."""
    optimizer = config.optimizer
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    is_sigmoid = config.loss.loss != "softmax"
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_last_bias = module is network.fc and name == "bias"
            is_exempt = is_last_bias and is_sigmoid
            if not optimizer.decay_norms:
                is_exempt = is_last_bias or isinstance(module, nn.BatchNorm2d)
            (free if is_exempt else decayed).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": optimizer.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=optimizer.learning_rate_at(0.0),
        momentum=optimizer.momentum,
        nesterov=optimizer.nesterov,
    )
