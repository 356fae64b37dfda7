"""Recipes: functions that return a whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from longtail._checks import check_choice
from longtail.lab.config import (
    LOSS_KWARGS,
    WEIGHT_FIELDS,
    ConfigError,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    config_errors,
    leaves,
    with_fields,
)
from longtail.lab.data import CATALOG
from longtail.lab.models import CIFAR_MODELS, DEFAULT_BACKBONE, IMAGENET, check_model

__all__ = [
    "RECIPES",
    "Recipe",
    "cifar",
    "configure",
    "default_recipe",
    "finetune",
    "finetuning_of",
    "imagenet",
    "linear_probe",
    "probe_of",
    "retrained",
]

SMALL_IMAGES = ("digits", "cifar10", "cifar20", "cifar100")


class Recipe(Protocol):
    """How to train on some data with some loss."""

    def __call__(self, data: DataConfig, loss: LossConfig, epochs: int | None = None) -> RunConfig:
        """The whole configuration; with other ``epochs`` than the recipe's, the schedule is stretched."""


def cifar(data: DataConfig = DataConfig(), loss: LossConfig = LossConfig(), epochs: int | None = None) -> RunConfig:
    """ResNet-32 on small images, as in section 5.2 of the paper: 200 epochs, learning rate × 0.01 at 160 and 180.

    Example:
        >>> cifar(DataConfig(name="cifar10"), epochs=50).optimizer.milestones
        (40.0, 45.0)
    """
    return RunConfig(data=data, loss=loss, optimizer=OptimizerConfig().with_epochs(epochs))


def imagenet(data: DataConfig = DataConfig(), loss: LossConfig = LossConfig(), epochs: int | None = None) -> RunConfig:
    """ResNet-50 on photographs, as in section 5.2 of the paper: the recipe of Goyal et al., 90 epochs, batches of 1024.

    The learning rate is doubled for the focal loss, whose gradients are smaller, and quadrupled on iNaturalist.

    Example:
        >>> config = imagenet(DataConfig(name="inaturalist2018"), LossConfig(name="focal"))
        >>> config.optimizer.lr_at(10)
        1.6

    Reference:
        Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017.
    """
    factor = 1 if loss.name != "focal" else 4 if data.name.startswith("inaturalist") else 2
    optimizer = OptimizerConfig(
        epochs=90,
        batch_size=1024,
        lr=0.1 * factor,
        lr_batch_size=256,
        nesterov=True,
        weight_decay=1e-4,
        decay_norms=False,
        milestones=(30.0, 60.0, 80.0),
        lr_decay=0.1,
    )
    model = ModelConfig(name="resnet50")
    return RunConfig(data=data, model=model, loss=loss, optimizer=optimizer.with_epochs(epochs))


def linear_probe(
    data: DataConfig = DataConfig(), loss: LossConfig = LossConfig(), epochs: int | None = None
) -> RunConfig:
    """A linear head on a frozen backbone with ImageNet weights: AdamW, cosine schedule, 30 epochs.

    Example:
        >>> config = linear_probe(DataConfig(name="photos"))
        >>> config.model.name, config.model.weights, config.optimizer.schedule
        ('tf_efficientnet_lite0', 'imagenet', 'cosine')
    """
    optimizer = OptimizerConfig(
        name="adamw", epochs=30, lr=1e-3, weight_decay=1e-4, decay_norms=False, warmup_epochs=0.0, schedule="cosine"
    )
    model = ModelConfig(name=DEFAULT_BACKBONE, weights=IMAGENET, freeze=True)
    return RunConfig(data=data, model=model, loss=loss, optimizer=optimizer.with_epochs(epochs))


def finetune(data: DataConfig = DataConfig(), loss: LossConfig = LossConfig(), epochs: int | None = None) -> RunConfig:
    """All of a network with ImageNet weights: AdamW, warm-up, cosine schedule, 10 epochs, lower rates for first layers.

    The head starts from a linear probe: gradients of a random one would spoil the features in the first steps.

    Example:
        >>> config = finetune(DataConfig(name="photos"))
        >>> config.model.freeze, config.optimizer.layer_decay, config.optimizer.warmup_epochs
        (False, 0.75, 1.0)
    """
    optimizer = OptimizerConfig(
        name="adamw",
        epochs=10,
        batch_size=32,
        lr=1e-3,
        lr_batch_size=32,
        weight_decay=0.05,
        decay_norms=False,
        warmup_epochs=1.0,
        schedule="cosine",
        layer_decay=0.75,
    )
    model = ModelConfig(name=DEFAULT_BACKBONE, weights=IMAGENET, warm_start=True)
    return RunConfig(data=data, model=model, loss=loss, optimizer=optimizer.with_epochs(epochs))


RECIPES: Mapping[str, Recipe] = {
    "cifar": cifar,
    "imagenet": imagenet,
    "linear_probe": linear_probe,
    "finetune": finetune,
}


def default_recipe(data: str, values: Mapping[str, Any] | None = None) -> str:
    """The recipe for a data set: the paper's for its data sets, a pretrained backbone for your own images.

    Args:
        data: name or path.
        values: fields that are asked for by their short names: a CIFAR ResNet, or ``"weights"`` None, are trained from
            scratch; other models start from pretrained weights, and ``"freeze"`` False fine-tunes them.

    Example:
        >>> default_recipe("cifar100"), default_recipe("path/to/photos")
        ('cifar', 'linear_probe')
        >>> default_recipe("path/to/photos", {"freeze": False}), default_recipe("digits", {"model": "resnet50"})
        ('finetune', 'linear_probe')
    """
    values = {} if values is None else values
    model, weights, freeze = values.get("model"), values.get("weights", IMAGENET), values.get("freeze")
    small = data in SMALL_IMAGES
    papers = model is None if small else data in CATALOG and "weights" not in values
    if papers or model in CIFAR_MODELS or weights is None:
        return "cifar" if small else "imagenet"
    return "finetune" if freeze is False else "linear_probe"


def configure(values: Mapping[str, Any], base: RunConfig | None = None) -> RunConfig:
    """A recipe, or another configuration, with some fields changed.

    Args:
        values: by short names (``"imbalance"``, ``"loss"``, ``"lr"``) or dotted paths (``"optimizer.lr"``), and
            ``"recipe"``. Other ``"epochs"`` stretch the schedule. Another ``"loss"`` keeps the class weights of
            the base and drops the options of its loss; another ``"optimizer"`` has its usual ``"lr"``.
        base: where to start from; by default the recipe for the data.

    Example:
        >>> config = configure({"data": "cifar10", "loss": "focal", "beta": 0.999, "epochs": 20, "lr": 0.05})
        >>> config.loss.title, config.optimizer.milestones
        ('class-balanced focal, β 0.999, γ 0.5', (16.0, 18.0))
    """
    short = {".".join(path): name for name, path in leaves(RunConfig).items()}
    values = {short.get(name, name): value for name, value in values.items()}
    recipe = values.pop("recipe", None)
    data = values.get("data", "digits" if base is None else base.data.name)
    of_loss = {name: values.pop(name) for name in ("loss", *WEIGHT_FIELDS, *LOSS_KWARGS) if name in values}
    loss = _loss(of_loss, None if base is None else base.loss)
    epochs = values.pop("epochs", None)
    if base is None:
        recipe = recipe or default_recipe(str(data), values)
        with config_errors():
            check_choice("recipe", recipe, tuple(RECIPES))
        base = RECIPES[recipe](with_fields(RunConfig(), {"data": data}).data, loss)
    elif recipe is not None:
        raise ConfigError(f"recipe {recipe} and a base configuration exclude each other")
    base = replace(base, loss=loss, optimizer=base.optimizer.with_epochs(_whole(epochs)))
    config = with_fields(base, _forgotten(values, base) | values)
    with config_errors():
        check_model(config.model.name)
    return config


def _forgotten(values: Mapping[str, Any], base: RunConfig) -> dict[str, Any]:
    """What the base says of something that is changed, and nothing of what it is changed to."""
    forgotten: dict[str, Any] = {}
    if "data" in values:  # which images these are is found out when they are opened
        forgotten |= {"path": None, "fingerprint": None}
    if "weights" in values:
        forgotten |= {"weights_path": None, "weights_sha256": None}
    if values.get("freeze") or values.get("weights", "") is None:
        forgotten["warm_start"] = False
    if values.get("sampling", base.data.sampling) != base.data.sampling:
        forgotten["sampling_beta"] = None
    optimizer = base.optimizer
    if values.get("schedule") == "cosine":
        forgotten |= {"milestones": (), "lr_decay": 0.0}
    elif values.get("schedule") == "step" and optimizer.schedule == "cosine":
        steps = OptimizerConfig().with_epochs(optimizer.epochs)
        forgotten |= {"milestones": steps.milestones, "lr_decay": steps.lr_decay}
    if values.get("optimizer", optimizer.name) != optimizer.name:
        sgd_lr = 0.01 if base.model.warm_start else 0.1
        forgotten |= {"lr": sgd_lr if values["optimizer"] == "sgd" else 1e-3, "nesterov": False}
    return forgotten


def _whole(epochs: Any) -> int | None:
    if epochs is not None and type(epochs) is not int:
        raise ConfigError(f"epochs must be a whole number, got {epochs!r}")
    return epochs


def _loss(values: Mapping[str, Any], base: LossConfig | None) -> LossConfig:
    """The loss with some fields changed: others that no longer apply are dropped."""
    changes = dict(values)
    if base is not None:
        same = changes.get("loss", base.name) == base.name
        kept: dict[str, Any] = {"loss": base.name} | (dict(base.loss_kwargs) if same else {})
        reweighted = {"weighting", "beta", "betas"} & set(changes)
        names = [name for name in WEIGHT_FIELDS if name not in ("weighting", "beta", "betas") or not reweighted]
        kept |= {name: getattr(base, name) for name in names}
        changes = kept | changes
    changes = {"weighting": None} | changes
    if "defer_reweighting" not in values:  # without weights, there is nothing to defer
        loss = with_fields(RunConfig(), changes | {"defer_reweighting": None}).loss
        if loss.is_plain:
            return loss
    return with_fields(RunConfig(), changes).loss


def probe_of(config: RunConfig) -> RunConfig:
    """The linear probe of a fine-tuning: the same data, network and loss, and a frozen backbone.

    Example:
        >>> probe_of(finetune(DataConfig(name="photos"))) == linear_probe(DataConfig(name="photos"))
        True
    """
    data = replace(config.data, mixup=0.0, cutmix=0.0)
    model = replace(config.model, freeze=True, warm_start=False)
    return replace(linear_probe(data, config.loss), model=model, seed=config.seed, precision=config.precision)


def finetuning_of(config: RunConfig) -> RunConfig:
    """The fine-tuning of a linear probe: the same data, network and loss, and a backbone that is trained.

    Example:
        >>> finetuning_of(linear_probe(DataConfig(name="photos"))) == finetune(DataConfig(name="photos"))
        True
    """
    model = replace(config.model, freeze=False, warm_start=True, normalize_features=False)
    start = finetune(replace(config.data, views=0), config.loss)
    return replace(start, model=model, seed=config.seed, precision=config.precision)


def retrained(parent: RunConfig, weights: str, epochs: int | None = 10) -> RunConfig:
    """Classifier re-training (cRT): a new head on the frozen backbone of a finished run, with class-balanced sampling.

    The loss is the plain one of the run's kind.

    Args:
        parent: configuration of the run.
        weights: its run folder.
        epochs: of the new head; the schedule of the run is stretched to them.

    Example:
        >>> config = retrained(cifar(), "runs/digits-resnet32-softmax-s0-0123456789")
        >>> config.title, config.optimizer.milestones
        ('softmax, cRT', (8.0, 9.0))

    Reference:
        Kang et al., *Decoupling Representation and Classifier for Long-Tailed Recognition*, ICLR 2020, section 4.
    """
    # Balanced classes need no logit adjustment: without it, that loss is the softmax one.
    name = "softmax" if parent.loss.name == "logit_adjusted" else parent.loss.name
    kwargs: dict[str, Any] = dict(parent.loss.loss_kwargs) if name == parent.loss.name else {}
    return replace(
        parent,
        data=replace(parent.data, sampling="class_balanced", sampling_beta=None, cutmix=0.0),
        model=ModelConfig(name=parent.model.name, weights=weights, freeze=True),
        loss=LossConfig(name=name, **kwargs),
        optimizer=parent.optimizer.with_epochs(epochs),
        sync_batch_norm=False,
        compile=False,
    )
