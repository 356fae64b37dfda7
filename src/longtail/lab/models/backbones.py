"""The models of timm: pretrained backbones for photographs."""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from longtail.lab.data import InputSpec
from longtail.lab.models.cifar_resnet import CIFAR_MODELS, CifarResNet

DEFAULT_BACKBONE = "tf_efficientnet_lite0"
"""For photographs: its ImageNet weights are installed with the lab."""

COMMON = (DEFAULT_BACKBONE, "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
"""Names that are known without importing timm, which takes seconds."""

SMALL_INPUT = 64
"""Pixels: whether a network takes a smaller input is tried out."""

BROKEN_TORCHVISION = "operator torchvision::nms does not exist"
_SCHEMAS: list[torch.library.Library] = []


@functools.cache
def import_timm() -> ModuleType:
    """Import timm, also beside a torchvision that was built for another torch.

    A CUDA build of torchvision beside a CPU build of torch cannot load its compiled operators, and fails to import.
    timm needs none of them: with the schemas of those that torchvision looks up, its Python parts import.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if str(error) != BROKEN_TORCHVISION:
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        schemas = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            schemas.define(schema)  # type: ignore[no-untyped-call]
        _SCHEMAS.append(schemas)  # they exist as long as it does
        importlib.import_module("torchvision")
        warnings.warn(
            f"torchvision was built for another torch than {torch.__version__}: its compiled operators are missing, "
            "which timm does not need; install the torchvision of the same index as your torch, for a CPU "
            "https://download.pytorch.org/whl/cpu",
            RuntimeWarning,
            stacklevel=2,
        )
    import timm.optim  # which timm does not import itself

    return timm


def check_model(name: str) -> None:
    """Refuse a name that neither the CIFAR ResNets nor timm know, and suggest the nearest ones.

    Example:
        >>> check_model("resnte50")
        Traceback (most recent call last):
        ValueError: unknown model 'resnte50': did you mean 'resnet50', ...
    """
    if name in CIFAR_MODELS or name in COMMON:
        return
    timm = import_timm()
    architecture, _, tag = name.partition(".")
    if timm.is_model(architecture) and (not tag or pretrained_config(name) is not None):
        return
    known = timm.list_pretrained(f"{architecture}.*") if tag else []
    near = difflib.get_close_matches(name, known, n=3, cutoff=0)
    near = near or difflib.get_close_matches(name, [*CIFAR_MODELS, *timm.list_models()], n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else "timm.list_models() lists all of timm's"
    raise ValueError(f"unknown model {name!r}: {hint}")


def pretrained_config(name: str) -> Any:
    """The configuration of pretrained weights in timm: that of the tag, or of the default one."""
    timm = import_timm()
    architecture, _, tag = name.partition(".")
    configs = timm.models.get_arch_pretrained_cfgs(architecture)
    return configs.get(name) if tag else timm.models.get_pretrained_cfg(architecture)


def input_spec(name: str, image_size: int | None = None) -> InputSpec | None:
    """What a model of timm takes, from its configuration; None for the CIFAR ResNets, which take images as they are.

    Args:
        name: of the model.
        image_size: width and height instead of the model's.

    Example:
        >>> spec = input_spec("tf_efficientnet_lite0")
        >>> spec.input_size, spec.mean, spec.interpolation, spec.crop_fraction
        (224, (127.5, 127.5, 127.5), 'bicubic', 0.875)
    """
    if name in CIFAR_MODELS:
        return None
    check_model(name)
    timm = import_timm()
    pretrained = pretrained_config(name)
    found = timm.data.resolve_data_config(pretrained_cfg=pretrained.to_dict() if pretrained else {}, verbose=False)
    return InputSpec(
        input_size=image_size or found["input_size"][-1],
        mean=tuple(round(255 * value, 6) for value in found["mean"]),
        std=tuple(round(255 * value, 6) for value in found["std"]),
        interpolation="bicubic" if found["interpolation"] == "bicubic" else "bilinear",
        crop_fraction=found["crop_pct"],
    )


def build_backbone(name: str, num_classes: int, image_size: int | None = None) -> nn.Module:
    """A model of timm with new weights, and a last layer that starts near zero.

    Blocks of ResNets start as the identity, as in the recipe of Goyal et al.; that is timm's default.

    Example:
        >>> network = build_backbone("resnet18", num_classes=5)
        >>> network.fc.bias.tolist(), network.layer1[0].bn2.weight.sum().item()
        ([0.0, 0.0, 0.0, 0.0, 0.0], 0.0)

    Reference:
        Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017.
    """
    check_model(name)
    pretrained = pretrained_config(name)
    sized = {"img_size": image_size} if image_size and pretrained and pretrained.fixed_input_size else {}
    try:
        network: nn.Module = import_timm().create_model(name, num_classes=num_classes, **sized)
        if image_size is not None and image_size < SMALL_INPUT:
            with torch.no_grad():
                network.eval()(torch.zeros(1, 3, image_size, image_size))
            network.train()
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"cannot build {name} for an input of {image_size} pixels: {reason}") from None
    if not hasattr(network, "forward_head") or not isinstance(network.get_classifier(), nn.Linear):  # type: ignore[operator]
        raise ValueError(f"{name} cannot be used: it has no single linear last layer")
    head = classifier(network)
    nn.init.normal_(head.weight, std=0.01)
    if head.bias is not None:
        nn.init.zeros_(head.bias)
    return network


def classifier(network: nn.Module) -> nn.Linear:
    """The last layer: what :func:`pooled_features` are multiplied by.

    Example:
        >>> classifier(CifarResNet(8, num_classes=10))
        Linear(in_features=64, out_features=10, bias=True)
    """
    backbone: Any = network
    head: nn.Linear = backbone.get_classifier() if hasattr(network, "get_classifier") else backbone.fc
    return head


def classifier_name(network: nn.Module) -> str:
    """The name of the last layer in the network, such as ``"fc"`` or ``"head.fc"``."""
    head = classifier(network)
    names: dict[nn.Module, str] = {module: name for name, module in network.named_modules()}
    return names[head]


def replace_classifier(network: nn.Module, head: nn.Linear) -> None:
    """Put another last layer into a network.

    Example:
        >>> network = CifarResNet(8, num_classes=10)
        >>> replace_classifier(network, nn.Linear(64, 3))
        >>> classifier(network).out_features
        3
    """
    parent, _, name = classifier_name(network).rpartition(".")
    setattr(network.get_submodule(parent), name, head)


def feature_size(network: nn.Module) -> int:
    """Length of the features that the last layer sees.

    Example:
        >>> feature_size(CifarResNet(8, num_classes=10))
        64
    """
    return classifier(network).weight.shape[1]


def pooled_features(network: nn.Module, images: Tensor) -> Tensor:
    """What the last layer sees of the images.

    Shapes: images (N, channels, height, width); features (N, D) with D = :func:`feature_size`.

    Example:
        >>> pooled_features(CifarResNet(8, num_classes=10), torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """
    backbone: Any = network
    features: Tensor
    if isinstance(network, CifarResNet):
        features = network.features(images)
    else:
        features = backbone.forward_head(backbone.forward_features(images), pre_logits=True)
    return features
