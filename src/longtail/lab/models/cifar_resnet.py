"""The residual networks of He et al. for CIFAR, as in the paper's experiments."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

CIFAR_DEPTHS = (8, 14, 20, 32, 44, 56, 110)
CIFAR_MODELS = tuple(f"resnet{depth}" for depth in CIFAR_DEPTHS)
WIDTHS = (16, 32, 64)


class CifarResNet(nn.Module):
    """A residual network of depth 6n+2: a convolution, three stages of n blocks, the mean over the image, a classifier.

    The stages have 16, 32 and 64 channels; the second and third halve the image. Shortcuts have no parameters: where a
    block is wider than its input, it is padded with zero channels (option A).

    Args:
        depth: 6n+2, such as 8 or 32.
        num_classes: C.
        channels: of the images.

    Example:
        >>> import torch
        >>> network = CifarResNet(depth=32, num_classes=10)
        >>> network(torch.zeros(2, 3, 32, 32)).shape, sum(weight.numel() for weight in network.parameters())
        (torch.Size([2, 10]), 464154)

    Reference:
        He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016, section 4.2.
    """

    def __init__(self, depth: int, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 6n+2, such as {', '.join(map(str, CIFAR_DEPTHS))}, got {depth}")
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        width = WIDTHS[0]
        stages = []
        for wider in WIDTHS:
            stage = [Block(width if block == 0 else wider, wider) for block in range(blocks)]
            stages.append(nn.Sequential(*stage))
            width = wider
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (N, C) of images of shape (N, channels, height, width)."""
        logits: Tensor = self.fc(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the classifier sees of the images, shape (N, 64)."""
        maps: Tensor = self.stages(F.relu(self.bn1(self.conv1(images)), inplace=True))
        return maps.mean(dim=(2, 3))


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.stride = 1 if width == wider else 2
        self.new_channels = wider - width
        self.conv1 = nn.Conv2d(width, wider, 3, self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the same size, or of half the size and with more channels."""
        shortcut = maps
        if self.new_channels:
            before = self.new_channels // 2
            shortcut = F.pad(
                maps[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_channels - before)
            )
        # In place: what a batch norm gives is needed by nothing else, and memory is what these networks wait for.
        inner = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        return F.relu(self.bn2(self.conv2(inner)).add_(shortcut), inplace=True)
