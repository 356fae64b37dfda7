"""Networks by name."""

from __future__ import annotations

from longtail._checks import check_choice
from longtail.heads import NormedLinear, init_classifier_bias_
from longtail.lab.models.cifar_resnet import CIFAR_DEPTHS, CifarResNet
from longtail.lab.models.resnet import RESNET_BLOCKS, ResNet

__all__ = ["CIFAR_DEPTHS", "MODELS", "CifarResNet", "ResNet", "build_model"]

MODELS = tuple(f"resnet{depth}" for depth in sorted({*CIFAR_DEPTHS, *RESNET_BLOCKS}))
"""CIFAR's of depth 6n+2, for small images; ResNet-18, -34, -50, -101 and -152, for photographs."""


def build_model(
    name: str,
    num_classes: int,
    channels: int = 3,
    *,
    prior_bias: bool = False,
    cosine_scale: float | None = None,
) -> CifarResNet | ResNet:
    r"""A network by its name, with new weights; its last layer is ``fc``.

    Args:
        name: one of ``MODELS``.
        num_classes: C.
        channels: of the images.
        prior_bias: whether the last bias starts at :math:`-\log((1-\pi)/\pi)`, :math:`\pi = 1/C`, so that sigmoid
            losses start at the class prior; else it starts at 0.
        cosine_scale: what a last layer without bias, :class:`longtail.NormedLinear`, multiplies cosines by; without
            it the last layer is linear.

    Example:
        >>> network = build_model("resnet8", num_classes=10, channels=1, prior_bias=True)
        >>> round(network.fc.bias[0].item(), 4)  # -log(9)
        -2.1972
    """
    check_choice("model", name, MODELS)
    depth = int(name.removeprefix("resnet"))
    build = CifarResNet if depth in CIFAR_DEPTHS else ResNet
    network = build(depth, num_classes, channels)
    if cosine_scale is not None:
        network.fc = NormedLinear(network.fc.in_features, num_classes, cosine_scale)
    if prior_bias:
        init_classifier_bias_(network.fc)
    return network
