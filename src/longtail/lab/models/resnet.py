"""The residual networks of He et al. for photographs, with the parameter names of torchvision."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["RESNET_BLOCKS", "ResNet"]

RESNET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
WIDTHS = (64, 128, 256, 512)


class ResNet(nn.Module):
    """ResNet-18, -34, -50, -101 or -152.

    Names and shapes of the parameters are those of torchvision, so its published weights load; the stride of a
    bottleneck is in its 3 × 3 convolution, as there.

    Args:
        depth: 18, 34, 50, 101 or 152.
        num_classes: C.
        channels: of the images.

    Example:
        >>> network = ResNet(depth=50, num_classes=1000)
        >>> sum(weight.numel() for weight in network.parameters())
        25557032

    Reference:
        He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016.
    """

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(self, depth: int, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        if depth not in RESNET_BLOCKS:
            raise ValueError(f"depth must be one of {', '.join(map(str, RESNET_BLOCKS))}, got {depth}")
        block = Bottleneck if depth >= 50 else BasicBlock
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        width = 64
        for number, (inner, blocks) in enumerate(zip(WIDTHS, RESNET_BLOCKS[depth], strict=True), start=1):
            layer = []
            for place in range(blocks):
                stride = 2 if place == 0 and number > 1 else 1
                layer.append(block(width, inner, stride))
                width = inner * block.expansion
            setattr(self, f"layer{number}", nn.Sequential(*layer))
        self.fc = nn.Linear(width, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, (BasicBlock, Bottleneck)):
                # Each block starts as the identity, as in the recipe of Goyal et al.
                nn.init.zeros_(module.last_norm.weight)
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.zeros_(self.fc.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (N, C) of images of shape (N, channels, height, width)."""
        logits: Tensor = self.fc(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the classifier sees of the images, shape (N, 512), or (N, 2048) from ResNet-50 on."""
        maps: Tensor = F.max_pool2d(F.relu(self.bn1(self.conv1(images)), inplace=True), 3, 2, padding=1)
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return maps.mean(dim=(2, 3))


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.downsample = _shortcut(width, inner, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The one before the sum."""
        return self.bn2

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the same size, or of half the size and with more channels."""
        inner = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        shortcut = maps if self.downsample is None else self.downsample(maps)
        return F.relu(self.bn2(self.conv2(inner)).add_(shortcut), inplace=True)


class Bottleneck(nn.Module):
    """Three convolutions, the middle one narrow, beside a shortcut."""

    expansion = 4

    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, inner * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(inner * self.expansion)
        self.downsample = _shortcut(width, inner * self.expansion, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The one before the sum."""
        return self.bn3

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the same size, or of half the size and with more channels."""
        inner = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        inner = F.relu(self.bn2(self.conv2(inner)), inplace=True)
        shortcut = maps if self.downsample is None else self.downsample(maps)
        return F.relu(self.bn3(self.conv3(inner)).add_(shortcut), inplace=True)


def _shortcut(width: int, wider: int, stride: int) -> nn.Module | None:
    if stride == 1 and width == wider:
        return None
    return nn.Sequential(nn.Conv2d(width, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))
