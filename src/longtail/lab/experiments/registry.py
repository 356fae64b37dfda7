"""All sweeps by name: the tables and figures of the paper, and the protocol for a laptop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from longtail.lab.config import RunConfig
from longtail.lab.experiments.paper import CIFAR, LARGE, beta_sweep, heatmap, table2, table3, training_curves
from longtail.lab.experiments.small import SMALL_DATASETS, small_protocol

__all__ = ["SWEEPS", "Sweep"]


@dataclass(frozen=True)
class Sweep:
    """A table or figure of the paper, or the protocol for a laptop."""

    runs: Callable[[str], list[RunConfig]]
    """The runs on a data set."""
    datasets: tuple[str, ...]
    """What the paper has it for."""
    about: str
    seeds: int = 1
    """Default number of seeds."""


SWEEPS: Mapping[str, Sweep] = {
    "table2": Sweep(table2, ("cifar10", "cifar100"), "plain losses and the best class-balanced one, 6 imbalances"),
    "beta_sweep": Sweep(beta_sweep, CIFAR, "figure 5: all losses with and without the term, each β, imbalance 50"),
    "heatmap": Sweep(heatmap, CIFAR, "appendix A: 5 losses, plain and with 4 β, 5 imbalances"),
    "table3": Sweep(table3, LARGE, "ResNet-50, -101, -152, softmax and class-balanced focal, 224 and 320 pixels"),
    "training_curves": Sweep(training_curves, (*LARGE, *CIFAR), "figure 7: softmax against class-balanced focal"),
    "small": Sweep(
        small_protocol, SMALL_DATASETS, "ResNet-8, 20 epochs, imbalance 100 and 50: for a laptop, 2 seeds", seeds=2
    ),
}
