"""β from images: how many prototypes each class has, by the features of a frozen network.

python examples/advise.py photos/    a folder of your own images, or digits, cifar10, …

Two images of a class are one prototype if their features are as near as those of two augmented views of one image.
The features are cached, as those of ``longtail train``.
"""

import sys
from typing import Any

import numpy as np
from rich.console import Console
from torch.nn import functional as F

from longtail.lab.config import DataConfig
from longtail.lab.recipes import linear_probe
from longtail.lab.training import open_data
from longtail.lab.training.frozen import FrozenBackbone
from longtail.prototypes import estimate_prototypes

VIEWED = 250
"""Images of which two augmented views are compared."""


def estimate(data: str, quantile: float = 0.5, **options: Any):
    """Class names, and the prototypes of each class; the quantile of the distances between views is their radius."""
    dataset, _, config = open_data(linear_probe(DataConfig(name=data, **options)))
    backbone = FrozenBackbone(config, dataset)
    order = np.random.default_rng(0).permutation(len(dataset.train))
    viewed = dataset.train.subset(np.sort(order[:VIEWED]))
    backbone.compute([(dataset.train, 0), (viewed, 2)], console=Console(stderr=True))

    views = F.normalize(backbone.features(viewed, views=2), dim=2)
    distances = (views[:, 1] - views[:, 2]).norm(dim=1)
    features = F.normalize(backbone.features(dataset.train)[:, 0])
    radius = float(np.quantile(distances.numpy(), quantile))
    found = estimate_prototypes(features.numpy(), dataset.train.labels.numpy(), radius, len(dataset.classes))
    return dataset.classes, found


def main(data: str = "digits", **options: Any):
    """Print N of each class with its interval, and the β of a typical class; return the estimate."""
    classes, found = estimate(data, **options)
    for name, images, n, low, high in zip(classes, found.counts, found.prototypes, found.low, found.high, strict=True):
        print(f"{name:20} {images:7,} images   N {n:9,.1f}   95% interval {low:,.1f} to {high:,.1f}")
    print(f"one β for all classes: {found.pooled_beta:.6g}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:2])
