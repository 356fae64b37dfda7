"""The last layer fused with the loss, for so many classes that their logits are not worth holding."""

from __future__ import annotations

from torch import Tensor, nn

from longtail.fused import FusedLinearLoss
from longtail.lab.config import RunConfig
from longtail.lab.models import classifier, pooled_features

__all__ = ["FusedNetwork", "with_fused_head"]


class FusedNetwork(nn.Module):
    """A network that returns its loss, formed from its features without the logits of all classes.

    Args:
        network: of :func:`longtail.lab.models.build_model`, or the head alone, on features.
        criterion: its loss.

    Example:
        >>> import torch
        >>> from longtail import ClassBalancedLoss
        >>> from longtail.lab.models import CifarResNet
        >>> network, criterion = CifarResNet(8, num_classes=3), ClassBalancedLoss([50, 5, 1])
        >>> images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 2])
        >>> fused = FusedNetwork(network, criterion)
        >>> torch.allclose(fused(images, labels), criterion(network(images), labels))
        True
    """

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
