"""Networks by name: CIFAR ResNets, and the models of timm."""

from __future__ import annotations

from torch import nn

from longtail.heads import NormedLinear, init_classifier_bias_
from longtail.lab.models.backbones import (
    DEFAULT_BACKBONE,
    build_backbone,
    check_model,
    classifier,
    feature_size,
    input_spec,
    pooled_features,
    replace_classifier,
)
from longtail.lab.models.cifar_resnet import CIFAR_DEPTHS, CIFAR_MODELS, CifarResNet
from longtail.lab.models.weights import IMAGENET, load_weights, pretrained_file, sha256_of

__all__ = [
    "CIFAR_DEPTHS",
    "CIFAR_MODELS",
    "DEFAULT_BACKBONE",
    "IMAGENET",
    "CifarResNet",
    "build_model",
    "check_model",
    "classifier",
    "feature_size",
    "input_spec",
    "load_weights",
    "pooled_features",
    "pretrained_file",
    "replace_classifier",
    "sha256_of",
]


def build_model(
    name: str,
    num_classes: int,
    channels: int = 3,
    *,
    image_size: int | None = None,
    prior_bias: bool = False,
    cosine_scale: float | None = None,
) -> nn.Module:
    r"""A network by its name, with new weights; :func:`classifier` is its last layer.

    Args:
        name: one of ``CIFAR_MODELS``, or a model of timm, with or without the tag of its pretrained weights.
        num_classes: C.
        channels: of the images that a CIFAR ResNet takes; models of timm take three.
        image_size: width and height of the input, for models of timm that are built for one.
        prior_bias: whether the last bias starts at :math:`-\log((1-\pi)/\pi)`, :math:`\pi = 1/C`, so that sigmoid
            losses start at the class prior; else it starts at 0.
        cosine_scale: what a last layer without bias, :class:`longtail.NormedLinear`, multiplies cosines by; without
            it the last layer is linear.

    Example:
        >>> network = build_model("resnet8", num_classes=10, channels=1, prior_bias=True)
        >>> round(classifier(network).bias[0].item(), 4)  # -log(9)
        -2.1972
        >>> feature_size(build_model("tf_efficientnet_lite0", num_classes=10))
        1280
    """
    network: nn.Module
    if name in CIFAR_MODELS:
        network = CifarResNet(int(name.removeprefix("resnet")), num_classes, channels)
    else:
        network = build_backbone(name, num_classes, image_size)
    if cosine_scale is not None:
        replace_classifier(network, NormedLinear(feature_size(network), num_classes, cosine_scale))
    if prior_bias:
        init_classifier_bias_(classifier(network))
    return network
