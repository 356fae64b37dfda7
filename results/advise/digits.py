"""Whether training with the suggested β beats 0.999, on digits: ``longtail sweep results/advise/digits.py``.

At imbalance 50 the pixels suggest β = 0, which is the plain loss; the plain network of seed 0 suggests the other two.
"""

import json
from dataclasses import replace
from pathlib import Path

from longtail.lab.config import DataConfig, LossConfig, ModelConfig
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar

advice = json.loads(Path(__file__).with_name("advise.json").read_text(encoding="utf-8"))["advice"]
(asked,) = (
    row
    for row in advice
    if (row["name"], row["flags"], row["quantile"]) == ("digits", "--imbalance 50", 0.5) and row["network"]
)
losses = [
    LossConfig(),
    LossConfig(beta=0.999),
    LossConfig(beta=asked["beta"]),
    LossConfig(betas=tuple(asked["betas"])),
]
data = DataConfig(name="digits", subset=SubsetOptions(imbalance=50))
network = ModelConfig(name="resnet8")
sweep = [replace(cifar(data, loss, epochs=40), model=network, seed=seed) for seed in range(8) for loss in losses]
