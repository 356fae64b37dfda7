"""From a configuration to what is trained: data, network, loss and optimizer."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.counts import IntArray
from longtail.fused import FusedLinearLoss
from longtail.heads import NormedLinear, init_classifier_bias_
from longtail.lab.config import ConfigError, DataConfig, ModelConfig, RunConfig, RunOptions, config_errors
from longtail.lab.data import (
    DataError,
    ImageDataset,
    ImageFiles,
    InMemoryImages,
    InputSpec,
    Loader,
    LongTailedSubset,
    Shard,
    evaluation_loader,
    fingerprint,
    open_dataset,
    training_loader,
)
from longtail.lab.data.batches import Order, shuffled
from longtail.lab.data.dataset import Images
from longtail.lab.data.decode import shorter_side
from longtail.lab.data.folds import hold_out_validation
from longtail.lab.data.loaders import FeatureLoader
from longtail.lab.data.mixing import Mixing
from longtail.lab.models import (
    CIFAR_MODELS,
    IMAGENET,
    build_model,
    check_model,
    classifier,
    input_spec,
    load_weights,
    pooled_features,
    pretrained_file,
    replace_classifier,
    sha256_of,
)
from longtail.lab.models.backbones import import_timm
from longtail.lab.models.weights import read_weights
from longtail.lab.training.run_folder import RunFolder, names_of_images
from longtail.losses import ClassBalancedLoss
from longtail.samplers import class_aware_order
from longtail.schedules import DeferredReweighting
from longtail.weights import class_weights

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from longtail.lab.training.frozen import FrozenBackbone

EVALUATION_BATCH = 500
SAMPLED = 20
"""Images whose size stands for that of all."""


class OpenedData(NamedTuple):
    """A data set with the chosen training images, which those are, and the configuration that says so exactly."""

    dataset: ImageDataset
    subset: LongTailedSubset
    config: RunConfig
    """With the fingerprints of your own images and of initial weights filled in: it has a run id."""


def open_data(
    config: RunConfig, data_dir: Path | None = None, console: Console | None = None, runs: Path | None = None
) -> OpenedData:
    """Open the data set of a run and choose its training images.

    Args:
        config: of the run.
        data_dir: where named data sets are.
        console: where to show progress.
        runs: folder of the run folders, which may know your own images by another name.

    Example:
        >>> from longtail.lab.config import DataConfig
        >>> from longtail.lab.data import SubsetOptions
        >>> dataset, subset, _ = open_data(RunConfig(data=DataConfig(subset=SubsetOptions(imbalance=10))))
        >>> len(dataset.train), subset.imbalance
        (519, 10.0)
    """
    data = config.data
    with config_errors():
        check_model(config.model.name)
    dataset = _open_images(data, data_dir, console)
    betas, classes = len(config.loss.betas), len(dataset.classes)
    if classes < 2:
        raise DataError(f"{data.name} has a single class, {dataset.classes[0]!r}: a classifier needs two or more")
    if betas not in (0, classes):
        raise ConfigError(f"betas has {betas} values, but {data.name} has {classes} classes")
    dataset = _prepared(dataset, config)
    found = data if data.is_catalogued else _named_as_in(runs, data.identified(fingerprint(dataset)))
    config = replace(config, data=found, model=find_weights(config.model))
    chosen, subset = data.subset.choose(dataset)
    chosen = hold_out_validation(data.fold.choose(chosen), data.validation_fraction)
    if data.sampling != "shuffled" and not config.loss.is_plain:
        note = f"classes are balanced twice, by {data.sampling} sampling and by class weights"
        chosen = replace(chosen, notes=(*chosen.notes, note))
    return OpenedData(chosen, subset, config)


def _open_images(data: DataConfig, data_dir: Path | None, console: Console | None) -> ImageDataset:
    if gone := data.missing_path:
        raise ConfigError(f"the images of this run are gone: {gone} does not exist; data.name takes their new path")
    return open_dataset(data.source, data_dir, files=data.files, on_error=data.on_error, console=console)


def _prepared(dataset: ImageDataset, config: RunConfig) -> ImageDataset:
    """With images as the network takes them."""
    size = config.data.image_size
    if (spec := input_spec(config.model.name, size)) is not None:
        dataset = dataset.prepared_for(spec)
    elif size is not None and isinstance(dataset.train, InMemoryImages):
        height, width = dataset.train.images.shape[2:]
        raise DataError(
            f"image_size requires image files or a model of timm: {dataset.name} has {height} × {width} pixels"
        )
    else:
        dataset = replace(dataset, input_size=size)
    side, wanted = _typical_side(dataset.train), dataset.input_size or InputSpec.input_size
    if side is None or side >= wanted or (spec is None and isinstance(dataset.train, InMemoryImages)):
        return dataset
    if isinstance(dataset.train, ImageFiles) and size is None and 2 * side < wanted:
        raise ConfigError(
            f"{dataset.name}: images of {side} pixels are smaller than half the network's input of {wanted}: "
            f"data.image_size {side} trains at their size, data.image_size {wanted} enlarges them"
        )
    note = f"images are small, {side} pixels at the median: they are enlarged to the network's {wanted}"
    return replace(dataset, notes=(*dataset.notes, note))


def _typical_side(images: Images) -> int | None:
    """The median of the shorter sides of some of the images, in pixels; None if none of them can be read."""
    if isinstance(images, InMemoryImages):
        return min(images.images.shape[2:])
    sides = []
    for index in range(0, len(images), -(-len(images) // SAMPLED)):
        with contextlib.suppress(DataError):  # found when it is read
            sides.append(shorter_side(images.path(index)))
    return int(statistics.median(sides)) if sides else None


def identify(
    configs: Iterable[RunConfig],
    data_dir: Path | None = None,
    console: Console | None = None,
    runs: Path | None = None,
) -> list[RunConfig]:
    """The same configurations with fingerprints, so that they have run ids; folders and weights are read once.

    Example:
        >>> identify([RunConfig()]) == [RunConfig()]  # a named data set needs none
        True
    """
    opened: dict[tuple[object, ...], DataConfig] = {}
    models: dict[tuple[ModelConfig, Path | None], ModelConfig] = {}
    found = []
    for config in configs:
        data, model = config.data, (config.model, config.model.weights_path)
        if not data.is_catalogued:
            key = (data.source, data.on_error, data.files, *data.files.locations.values())
            if key not in opened:
                dataset = _open_images(data, data_dir, console)
                opened[key] = _named_as_in(runs, data.identified(fingerprint(dataset)))
            known = opened[key]
            data = replace(data, name=known.name, fingerprint=known.fingerprint, path=known.path, files=known.files)
        if model not in models:
            models[model] = find_weights(config.model)
        found.append(replace(config, data=data, model=models[model]))
    return found


def _named_as_in(runs: Path | None, data: DataConfig) -> DataConfig:
    """Your own images by the name that run folders have for them: a renamed folder of images is the same run."""
    names = set() if runs is None or data.fingerprint is None else names_of_images(runs, data.fingerprint)
    return data if not names or data.name in names else replace(data, name=min(names))


def find_weights(model: ModelConfig, beside: Path | None = None) -> ModelConfig:
    """With the SHA-256 of the initial weights, and named by the run or file they come from.

    Args:
        model: where they were last found is where they are looked for first.
        beside: a folder to look into where they are no longer there, such as that of a run that was moved with its
            parent.
    """
    if model.weights is None:
        return model
    source = model.weights_path
    if beside is not None and source is not None and not source.exists() and (beside / model.weights).exists():
        source = beside / model.weights
    if model.weights == IMAGENET and (source is None or not source.exists()):
        with config_errors():
            source = pretrained_file(model.name)
    source = (source or Path(model.weights)).absolute()
    file = source / "model.safetensors" if source.is_dir() else source
    try:
        if (source / "config.json").exists() and (source / "data.json").exists():
            folder = RunFolder(source)
            folder.finished_result()
            digest = folder.check_model()
        elif source.is_dir() and not file.exists():
            raise ConfigError(f"{source} holds no weights: it is not a run folder, and has no {file.name}")
        else:
            digest = sha256_of(file)
    except OSError as error:
        raise ConfigError(f"cannot read the initial weights {source}: {error.strerror}") from None
    if model.weights_sha256 not in (None, digest):
        raise ConfigError(f"{file} has changed: its SHA-256 is not that of the run's initial weights")
    name = IMAGENET if model.weights == IMAGENET else source.name
    return replace(model, weights=name, weights_sha256=digest, weights_path=source)


def build_order(config: RunConfig, dataset: ImageDataset) -> Order:
    """Which training images each epoch holds."""
    data = config.data
    if data.sampling == "shuffled":
        return shuffled(len(dataset.train), config.seed)
    labels = dataset.train.labels.numpy()
    beta, epochs = data.sampling_beta, config.optimizer.epochs
    return lambda epoch: class_aware_order(
        labels, data.sampling, seed=config.seed, epoch=epoch, beta=beta, epochs=epochs, absent="ignore"
    )


def build_network(config: RunConfig, dataset: ImageDataset) -> nn.Module:
    """The network with its initial weights; random ones are drawn from PyTorch's global generator."""
    channels = 3 if isinstance(dataset.train, ImageFiles) else dataset.train.images.shape[1]
    network = random_network(config, len(dataset.classes), channels, dataset.input_size)
    if config.model.weights is not None:
        load_initial_weights(network, config.model, dataset.input_size)
    return network


@config_errors()
def random_network(config: RunConfig, classes: int, channels: int, image_size: int | None) -> nn.Module:
    """The network with random weights."""
    loss: dict[str, Any] = {"prior_bias": config.loss.is_sigmoid, "cosine_scale": config.loss.cosine_scale}
    return build_model(config.model.name, classes, channels, image_size=image_size, **loss)


@config_errors()
def load_initial_weights(network: nn.Module, model: ModelConfig, image_size: int | None = None) -> None:
    """Load the backbone, and the head where it fits and the backbone is not frozen."""
    source = model.weights_path
    assert source is not None
    file = source / "model.safetensors" if source.is_dir() else source
    parent = RunFolder(source).config().model if (source / "config.json").exists() else ModelConfig(name=model.name)
    keep_head = not (model.freeze or parent.normalize_features)
    if parent.saves_head_only:
        load_initial_weights(network, find_weights(parent, source.parent), image_size)
        if keep_head:
            load_head(classifier(network), file)
        return
    load_weights(network, model.name, file, keep_head=keep_head, image_size=image_size)


def load_head(layer: nn.Module, file: Path) -> None:
    """Load the last layer of a run with a frozen backbone, if it has the same classes."""
    found = {name.removeprefix("fc."): value for name, value in read_weights(file).items()}
    if {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in layer.state_dict().items()
    }:
        layer.load_state_dict(found)


def build_loss(config: RunConfig, counts: IntArray) -> nn.Module:
    """The loss, summed over samples; ``counts`` are those of the images it is trained on.

    A class without training images has the weight 0. For margins and priors it counts as the rarest class: no finite
    margin or logarithm is that of a class without images, and no target asks for it.
    """
    loss, counts = config.loss, np.asarray(counts)
    present = np.where(counts == 0, counts[counts > 0].min(), counts)
    kwargs: dict[str, Any] = loss.loss_kwargs
    if loss.cosine_scale is not None:
        # The network multiplies its cosines itself, so that its logits are those of its probabilities. Then
        # s(z - Δ) = sz - sΔ has margins of that size, and nothing is left to scale.
        kwargs = {"max_margin": loss.cosine_scale * kwargs["max_margin"], "scale": 1.0}
    beta: Any = loss.betas or (0.0 if loss.beta is None else loss.beta)
    weights: dict[str, Any] = {"scheme": loss.weighting, "beta": beta, "normalize": loss.normalize}
    criterion = ClassBalancedLoss(present, loss.name, **weights, **kwargs, reduction="sum")
    if not counts.all():
        assert criterion.class_weight is not None
        criterion.class_weight.copy_(torch.as_tensor(class_weights(counts, absent="ignore", **weights)))
    start = config.reweight_start
    return criterion if start is None else DeferredReweighting(criterion, start)


def build_optimizer(config: RunConfig, network: nn.Module) -> torch.optim.Optimizer:
    """The optimizer, with weight decay where it belongs, and learning rates that decay towards the input.

    The learning rate of a parameter group is ``lr_scale`` times that of the schedule.
    """
    optimizer, head = config.optimizer, classifier(network)
    scales = _layer_scales(config, network)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for weight in network.parameters():
        if not weight.requires_grad:  # of a frozen backbone
            continue
        is_free_bias = weight is head.bias and config.loss.is_sigmoid
        free = is_free_bias or (weight.ndim <= 1 and not optimizer.decay_norms)
        key = (0.0 if free else optimizer.weight_decay, scales.get(id(weight), 1.0))
        groups.setdefault(key, []).append(weight)
    rate = optimizer.lr_at(0.0)
    listed = [
        {"params": weights, "weight_decay": decay, "lr": rate * scale, "lr_scale": scale}
        for (decay, scale), weights in groups.items()
    ]
    # With the others, the scaler of 16-bit gradients waits for the device in each step.
    shared: dict[str, Any] = {"lr": rate, "fused": True if config.precision == "16-mixed" else None}
    if optimizer.name == "adamw":
        if config.model.freeze:
            shared["fused"] = True  # a quarter of the time of a step of a head alone
        return torch.optim.AdamW(listed, betas=(optimizer.momentum, 0.999), **shared)
    return torch.optim.SGD(listed, momentum=optimizer.momentum, nesterov=optimizer.nesterov, **shared)


def follow_schedule(config: RunConfig, optimizer: torch.optim.Optimizer, criterion: nn.Module, epoch: float) -> float:
    """Set learning rates and deferred class weights to those of a moment of the training; return the learning rate."""
    if isinstance(criterion, DeferredReweighting):
        criterion.set_epoch(epoch)
    rate = config.optimizer.lr_at(epoch)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]
    return rate


def _layer_scales(config: RunConfig, network: nn.Module) -> dict[int, float]:
    """Factor of the learning rate of each parameter: 1 for the last layer, less for each layer before it."""
    decay = config.optimizer.layer_decay
    if decay == 1 or config.model.freeze:
        return {}
    if config.model.name in CIFAR_MODELS:
        raise ConfigError(f"optimizer.layer_decay requires a model of timm, not {config.model.name}")
    groups = import_timm().optim.param_groups_layer_decay(network, layer_decay=decay)
    return {id(weight): group["lr_scale"] for group in groups for weight in group["params"]}


class FusedNetwork(nn.Module):
    """A network, or a head alone, that returns its loss, formed without the logits of all classes."""

    def __init__(self, network: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.loss = FusedLinearLoss.from_linear(classifier(network), criterion)

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of images (N, channels, height, width), or of features (N, D)."""
        loss: Tensor = self.loss(inputs if inputs.ndim == 2 else pooled_features(self.network, inputs), labels)
        return loss


def with_fused_head(config: RunConfig, network: nn.Module, criterion: nn.Module) -> nn.Module:
    """The network as it is trained: fused with its loss if the configuration, or the number of classes, asks for it."""
    is_fused = config.fuses_head(classifier(network).out_features)
    return FusedNetwork(network, criterion) if is_fused else network


class Head(nn.Module):
    """The last layer of a network alone, on features."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.fc = layer

    def forward(self, features: Tensor) -> Tensor:
        """Logits of shape (N, C) of features of shape (N, D)."""
        logits: Tensor = self.fc(features)
        return logits


class _L2Linear(nn.Linear):
    """A linear layer that scales its input to length 1."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(F.normalize(features))


def build_head(config: RunConfig, size: int, classes: int) -> Head:
    """A new head for features of a size, drawn from PyTorch's global generator."""
    layer: Any
    if config.loss.cosine_scale is not None:
        layer = NormedLinear(size, classes, config.loss.cosine_scale)
    else:
        layer = nn.Linear(size, classes)
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)
        if config.loss.is_sigmoid:
            init_classifier_bias_(layer)
    return Head(layer)


def attach_head(network: nn.Module, layer: nn.Linear, config: RunConfig) -> None:
    """Put a head that was trained on features into the network that they came from."""
    if config.model.normalize_features and not isinstance(layer, NormedLinear):
        scaled = _L2Linear(layer.in_features, layer.out_features)
        scaled.load_state_dict(layer.state_dict())
        layer = scaled
    replace_classifier(network, layer)


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
