"""Whether training with the suggested β beats 0.999, on CIFAR: ``longtail sweep results/advise/cifar.py``.

Long-tailed CIFAR-10 and CIFAR-100 at imbalance 100, ResNet-8, 20 epochs, 2 seeds. Each β is for the median distance:
from the pixels, one for all classes; from the features of the plain network of seed 0, one for all and one per class.
"""

import json
from dataclasses import replace
from pathlib import Path

from longtail.lab.config import DataConfig, LossConfig, ModelConfig
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar

advice = json.loads(Path(__file__).with_name("advise.json").read_text(encoding="utf-8"))["advice"]


def losses(name: str) -> list[LossConfig]:
    """Plain, 0.999, and what was suggested."""
    asked = [row for row in advice if (row["name"], row["flags"], row["quantile"]) == (name, "--imbalance 100", 0.5)]
    of_network = [LossConfig(betas=tuple(row["betas"])) for row in asked if row["features"].startswith("features of")]
    return [
        LossConfig(),
        LossConfig(beta=0.999),
        *(LossConfig(beta=row["beta"]) for row in asked),
        *of_network,
    ]


sweep = [
    replace(
        cifar(DataConfig(name=name, subset=SubsetOptions(imbalance=100)), loss, epochs=20),
        model=ModelConfig(name="resnet8"),
        seed=seed,
        test_every=5,
    )
    for name in ("cifar10", "cifar100")
    for seed in range(2)
    for loss in losses(name)
]
