"""Mixup and CutMix: the images of a batch mixed in pairs, and their labels with them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail._checks import check_non_negative, check_positive_integer
from longtail.lab.data.batches import MIXING


class Mixing:
    r"""Whole batches mixed on their device: Mixup blends each image with another one, CutMix puts a box of it in.

    .. math:: x = \lambda x_i + (1-\lambda) x_j \;(\text{Mixup}), \qquad x = x_i \text{ outside a box}, \; x_j
        \text{ inside} \;(\text{CutMix}), \qquad y = \lambda y_i + (1-\lambda) y_j

    λ is drawn from Beta(α, α), one for the batch. The box of CutMix has 1-λ of the area, at a random position;
    what of it lies outside the image is cut off, and the label has the λ of what is left. With both, each batch has one
    of them, as often the one as the other. All of it follows from (seed, epoch, batch).

    Example:
        >>> images, labels = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2])
        >>> mixed, soft = Mixing(mixup=1.0, classes=3)(images, labels, epoch=0, batch=0)
        >>> mixed.shape, soft
        (torch.Size([3, 1, 8, 8]), tensor([[0...

    Reference:
        Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018. Yun et al., CutMix: Regularization Strategy
        to Train Strong Classifiers with Localizable Features, ICCV 2019.
    """

    def __init__(self, mixup: float = 0.0, cutmix: float = 0.0, *, classes: int, seed: int = 0) -> None:
        check_non_negative("mixup", mixup)
        check_non_negative("cutmix", cutmix)
        check_positive_integer("classes", classes)
        self.mixup, self.cutmix, self.classes, self.seed = mixup, cutmix, classes, seed

    def __bool__(self) -> bool:
        return bool(self.mixup or self.cutmix)

    def __call__(self, images: Tensor, labels: Tensor, epoch: int, batch: int) -> tuple[Tensor, Tensor]:
        """Mixed images of a batch in floating point, and soft labels in float32 of shape (B, C)."""
        draw = np.random.default_rng([self.seed, epoch, MIXING, batch])
        cut = self.cutmix > 0 and (not self.mixup or draw.random() < 0.5)
        share = draw.beta(*(self.cutmix if cut else self.mixup,) * 2)
        corner = draw.random(2)
        # Last: of all that is drawn, only this depends on how much of the batch this process has.
        partner = torch.from_numpy(draw.permutation(len(labels))).to(labels.device, non_blocking=True)
        if cut:
            rows, columns = (_span(size, share, centre) for size, centre in zip(images.shape[2:], corner, strict=True))
            area = (rows.stop - rows.start) * (columns.stop - columns.start)
            share = 1 - area / (images.shape[2] * images.shape[3])
            mixed = images.clone()
            mixed[:, :, rows, columns] = images[partner, :, rows, columns]
        else:
            mixed = torch.lerp(images[partner], images, share)
        hard = F.one_hot(labels, self.classes).to(torch.float32)
        return mixed, torch.lerp(hard[partner], hard, share)


def _span(size: int, share: float, centre: float) -> slice:
    """Where a box of 1-λ of the area, about a centre from 0 to 1, begins and ends along a side of the image."""
    length = int(size * math.sqrt(1 - share))
    first = int(size * centre) - length // 2
    return slice(max(first, 0), min(first + length, size))
