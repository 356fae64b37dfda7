"""``longtail demo``: the main job, on the embedded data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from longtail.lab.cli.output import console
from longtail.lab.config import DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar

IMBALANCE, EPOCHS, BATCH_SIZE, SEEDS = 50.0, 40, 32, 3
LOSSES = (LossConfig(), LossConfig(beta=0.999), LossConfig(name="focal", beta=0.999, gamma=0.5))


def demo_command(runs: Annotated[Path, arg(metavar="DIR", help="Folder of the run folders.")] = Path("runs")) -> None:
    """Train on long-tailed digits, plain and class-balanced, three seeds each: about a minute, nothing to download.

    Example: longtail demo
    """
    from longtail.lab.cli.sweep import run_and_show

    out = console()
    out.print(
        f"Handwritten digits at imbalance {IMBALANCE:g}: 128 training images of the digit 0, 2 of the digit 9.",
        f"{len(LOSSES)} losses, {SEEDS} seeds each; 50 test images of each digit.",
        "",
    )
    configs = [_config(loss, seed) for loss in LOSSES for seed in range(SEEDS)]
    run_and_show(configs, RunOptions(runs=runs, accelerator="cpu"))
    out.print(
        "",
        f"The runs are in {runs}/. Next:",
        f"  longtail report {runs} -o report.html           all results as one page",
        "  longtail data show digits --imbalance 50        the training images",
        "  longtail train --data digits --imbalance 50 --loss focal --class-balanced --model resnet8 --epochs 40",
        "  longtail evaluate RUN                           recall and precision of each class, worst first",
        "  longtail train --data path/to/your/images",
    )


def _config(loss: LossConfig, seed: int) -> RunConfig:
    config = cifar(DataConfig(subset=SubsetOptions(imbalance=IMBALANCE)), loss, EPOCHS)
    return replace(
        config, model=ModelConfig(name="resnet8"), seed=seed, optimizer=replace(config.optimizer, batch_size=BATCH_SIZE)
    )
