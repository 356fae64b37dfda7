"""``longtail demo``: the main job, on the embedded data set."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import arg

from longtail.lab.cli.output import console, progress
from longtail.lab.config import DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions
from longtail.lab.data import GROUPS, SubsetOptions
from longtail.lab.recipes import cifar

__all__ = ["demo_command"]

IMBALANCE, EPOCHS, BATCH_SIZE, SEEDS = 50.0, 40, 32, 3
LOSSES = {
    loss.title: loss for loss in (LossConfig(), LossConfig(beta=0.999), LossConfig(name="focal", beta=0.999, gamma=0.5))
}


def demo_command(runs: Annotated[Path, arg(metavar="DIR", help="Folder of the run folders.")] = Path("runs")) -> None:
    """Train on long-tailed digits, plain and class-balanced, three seeds each: about a minute, nothing to download.

    Example: longtail demo
    """
    from longtail.lab.training import RunFolder, train

    say = progress()
    results: dict[str, list[dict[str, Any]]] = {}
    for name, loss in LOSSES.items():
        for seed in range(SEEDS):
            say.print(f"{name}, seed {seed}")
            folder = RunFolder(train(_config(loss, seed), RunOptions(runs=runs, accelerator="cpu")))
            result = folder.result()
            assert result is not None
            results.setdefault(name, []).append(result["final"])
    out = console()
    for line in (
        f"Handwritten digits at imbalance {IMBALANCE:g}: 128 images of the digit 0, 2 of the digit 9.",
        f"ResNet-8, {EPOCHS} epochs; in percent, mean ± standard deviation of {SEEDS} seeds; 50 test images a digit.",
        "",
        _table(results),
        "",
        f"The runs are in {runs}/. Next:",
        "  longtail data show digits --imbalance 50        what was trained on",
        "  longtail train --data digits --imbalance 50 --loss focal --class-balanced --model resnet8 --epochs 40",
        "  longtail evaluate RUN                           the classes of a run, worst first",
        "  longtail train --data path/to/your/images --model resnet18 --epochs 30 --batch-size 64",
    ):
        out.print(line, soft_wrap=True)


def _config(loss: LossConfig, seed: int) -> RunConfig:
    config = cifar(DataConfig(subset=SubsetOptions(imbalance=IMBALANCE)), loss, EPOCHS)
    return replace(
        config, model=ModelConfig(name="resnet8"), seed=seed, optimizer=replace(config.optimizer, batch_size=BATCH_SIZE)
    )


def _table(results: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("loss")
    titles = ("error", *(f"recall, {name}" for name in GROUPS))
    for title in titles:
        table.add_column(title, justify="right")
    for name, finals in results.items():
        columns = [[final["error"] for final in finals]]
        columns += [[100 * final[group] for final in finals] for group in GROUPS]
        table.add_row(name, *(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" for values in columns))
    return table
