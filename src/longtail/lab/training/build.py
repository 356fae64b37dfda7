"""From a configuration to what is trained: data, network, loss and optimizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from longtail.counts import IntArray
from longtail.heads import param_groups
from longtail.lab.config import ConfigError, ModelConfig, RunConfig
from longtail.lab.data import (
    DataError,
    ImageDataset,
    ImageFiles,
    InMemoryImages,
    LongTailedSubset,
    fingerprint,
    open_dataset,
)
from longtail.lab.data.batches import Order, shuffled
from longtail.lab.models import CifarResNet, ResNet, build_model
from longtail.lab.training.run_folder import RunFolder
from longtail.losses import ClassBalancedLoss
from longtail.samplers import class_aware_order
from longtail.schedules import DeferredReweighting

__all__ = [
    "OpenedData",
    "build_loss",
    "build_network",
    "build_optimizer",
    "build_order",
    "identify",
    "input_size",
    "open_data",
]


INPUT_SIZE = 224


class OpenedData(NamedTuple):
    """A data set with the chosen training images, which those are, and the configuration that says so exactly."""

    dataset: ImageDataset
    subset: LongTailedSubset
    config: RunConfig
    """With the fingerprints of your own images and of initial weights filled in: it has a run id."""


def open_data(config: RunConfig, data_dir: Path | None = None, console: Console | None = None) -> OpenedData:
    """Open the data set of a run and choose its training images.

    Example:
        >>> from longtail.lab.config import DataConfig
        >>> from longtail.lab.data import SubsetOptions
        >>> dataset, subset, _ = open_data(RunConfig(data=DataConfig(subset=SubsetOptions(imbalance=10))))
        >>> len(dataset.train), subset.imbalance
        (519, 10.0)
    """
    data = config.data
    if gone := data.gone:
        raise ConfigError(f"the images of this run are gone: {gone} does not exist; data.name takes their new path")
    dataset = open_dataset(data.source, data_dir, files=data.files, on_error=data.on_error, console=console)
    if data.image_size is not None and isinstance(dataset.train, InMemoryImages):
        height, width = dataset.train.images.shape[2:]
        raise DataError(f"image_size requires image files: {data.name} has {height} × {width} pixels")
    betas, classes = len(config.loss.betas), len(dataset.classes)
    if betas not in (0, classes):
        raise ConfigError(f"betas has {betas} values, but {data.name} has {classes} classes")
    if not data.is_catalogued:
        config = replace(config, data=data.found_at(fingerprint(dataset)))
    config = replace(config, model=_find_weights(config.model))
    chosen, subset = data.subset.choose(dataset)
    chosen = data.fold.choose(chosen)
    if data.sampling != "shuffled" and not config.loss.is_plain:
        note = f"classes are balanced twice, by {data.sampling} sampling and by class weights"
        chosen = replace(chosen, notes=(*chosen.notes, note))
    return OpenedData(chosen, subset, config)


def identify(
    configs: Iterable[RunConfig], data_dir: Path | None = None, console: Console | None = None
) -> list[RunConfig]:
    """The same configurations with fingerprints, so that they have run ids; each folder of images is opened once.

    Example:
        >>> identify([RunConfig()]) == [RunConfig()]  # a named data set needs none
        True
    """
    digests: dict[tuple[object, ...], str] = {}
    found = []
    for config in configs:
        data = config.data
        if not data.is_catalogued:
            key = (data.source, data.on_error, data.files, *data.files.locations.values())
            if key not in digests:
                dataset = open_dataset(data.source, data_dir, files=data.files, on_error=data.on_error, console=console)
                digests[key] = fingerprint(dataset)
            data = data.found_at(digests[key])
        found.append(replace(config, data=data, model=_find_weights(config.model)))
    return found


def _find_weights(model: ModelConfig) -> ModelConfig:
    """With the SHA-256 of the initial weights, and named by the run or file they come from."""
    if model.weights is None:
        return model
    source = (model.weights_path or Path(model.weights)).absolute()
    try:
        if source.is_dir():
            folder = RunFolder(source)
            folder.config()  # refuses what is no run folder
            folder.check_finished()
            file, digest = folder.model_file, folder.check_model()
        else:
            file, digest = source, hashlib.sha256(source.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read the initial weights {source}: {error.strerror}") from None
    if model.weights_sha256 not in (None, digest):
        raise ConfigError(f"{file} has changed: its SHA-256 is not that of the run's initial weights")
    return replace(model, weights=source.name, weights_sha256=digest, weights_path=source)


def input_size(config: RunConfig) -> int:
    """Width and height of the network's input for image files."""
    return config.data.image_size or INPUT_SIZE


def probe_images(config: RunConfig, dataset: ImageDataset, photographs: int = 2) -> Tensor:
    """A few images of the size that the network will see."""
    images = dataset.train
    if isinstance(images, ImageFiles):
        return torch.zeros(photographs, 3, input_size(config), input_size(config))
    return torch.zeros(min(64, config.optimizer.batch_size), *images.images.shape[1:])


def build_order(config: RunConfig, dataset: ImageDataset) -> Order:
    """Which training images each epoch holds.

    Example:
        >>> from longtail.lab.config import DataConfig
        >>> dataset = open_data(RunConfig()).dataset
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
    """The network with its initial weights; random ones are drawn from PyTorch's global generator."""
    channels = 3 if isinstance(dataset.train, ImageFiles) else dataset.train.images.shape[1]
    loss, model = config.loss, config.model
    network = build_model(
        model.name, len(dataset.classes), channels, prior_bias=loss.is_sigmoid, cosine_scale=loss.cosine_scale
    )
    if model.weights is not None:
        load_initial_weights(network, model)
    if model.freeze:
        network.requires_grad_(False)
        network.fc.requires_grad_(True)
    return network


def load_initial_weights(network: CifarResNet | ResNet, model: ModelConfig) -> None:
    """Load the backbone, and the head where it fits and the backbone is not frozen."""
    source = model.weights_path
    assert source is not None
    file = source / "model.safetensors" if source.is_dir() else source
    expected = network.state_dict()
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file} holds no weights: {' '.join(str(error).split())[:120]}") from None

    def is_head(name: str) -> bool:
        return name.partition(".")[0] == "fc"

    head_fits = not model.freeze and all(
        name in found and found[name].shape == value.shape for name, value in expected.items() if is_head(name)
    )
    for name, value in expected.items():
        if is_head(name) and not head_fits:
            continue
        if name not in found:
            raise ConfigError(f"{file} does not fit {model.name}: it has no {name}")
        if found[name].shape != value.shape:
            shapes = f"shape {tuple(found[name].shape)}, not {tuple(value.shape)}"
            raise ConfigError(f"{file} does not fit {model.name}: {name} has {shapes}")
    if unknown := [name for name in found if name not in expected and not is_head(name)]:
        raise ConfigError(f"{file} does not fit {model.name}, which has no {unknown[0]}")
    loaded = {name: value for name, value in found.items() if head_fits or not is_head(name)}
    network.load_state_dict(expected | loaded)


def build_loss(config: RunConfig, counts: IntArray) -> nn.Module:
    """The loss, summed over samples; ``counts`` are those of the images it is trained on."""
    loss = config.loss
    kwargs: dict[str, Any] = loss.loss_kwargs
    if loss.cosine_scale is not None:
        # The network multiplies its cosines itself, so that its logits are those of its probabilities. Then
        # s(z - Δ) = sz - sΔ has margins of that size, and nothing is left to scale.
        kwargs = {"max_margin": loss.cosine_scale * kwargs["max_margin"], "scale": 1.0}
    criterion = ClassBalancedLoss(
        counts,
        loss.name,
        loss.betas or (0.0 if loss.beta is None else loss.beta),
        **kwargs,
        scheme=loss.weighting,
        normalize=loss.normalize,
        reduction="sum",
    )
    start = config.reweight_start
    return criterion if start is None else DeferredReweighting(criterion, start)


def build_optimizer(config: RunConfig, network: CifarResNet | ResNet) -> torch.optim.Optimizer:
    """The optimizer, with weight decay where it belongs."""
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
    for group in groups:  # all of them, unless the backbone is frozen
        group["params"] = [weight for weight in group["params"] if weight.requires_grad]
    # With the others, the scaler of 16-bit gradients waits for the device in each step.
    shared: dict[str, Any] = {"lr": optimizer.lr_at(0.0), "fused": True if config.precision == "16-mixed" else None}
    if optimizer.name == "adamw":
        return torch.optim.AdamW(groups, betas=(optimizer.momentum, 0.999), **shared)
    return torch.optim.SGD(groups, momentum=optimizer.momentum, nesterov=optimizer.nesterov, **shared)
