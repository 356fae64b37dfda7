"""All figures by name, each made from what is given: runs, a data set, counts, β."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from longtail.counts import IntArray
from longtail.counts import long_tailed_counts as profile
from longtail.lab.config import ConfigError
from longtail.lab.data.cifar import SIZES
from longtail.lab.data.summary import BETAS
from longtail.lab.experiments.results import run_folder_of
from longtail.lab.report.figures.classes import calibration, group_recalls, recall_per_class
from longtail.lab.report.figures.errors import error_over_beta, heatmap, training_curves
from longtail.lab.report.figures.runs import load_epochs
from longtail.lab.report.figures.theory import (
    class_balanced_term,
    effective_numbers,
    long_tailed_counts,
    random_covering,
    scheme_weights,
)
from longtail.lab.report.theme import Chart

__all__ = ["FIGURES", "Figure", "Inputs"]

IMBALANCE = 50.0
"""Where the paper's figures have one."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What figures can be made from.

    Example:
        >>> FIGURES["scheme_weights"].make(Inputs(counts=[50, 10])).to_dict()["title"]["text"]
        'Class weights'
    """

    dataset: str | None = None
    """cifar10, cifar20 or cifar100."""
    counts: Any = None
    """Training images of each class."""
    betas: tuple[float, ...] = ()
    """Those of the paper if there are none."""
    runs: Path | None = None
    """Folder of run folders."""
    frame: pd.DataFrame | None = None
    """What :func:`longtail.lab.experiments.load_results` gave of it, or some rows."""

    def results(self) -> pd.DataFrame:
        """The runs, or an error that says that there are none."""
        if self.frame is None or self.runs is None:
            raise ConfigError("it needs runs")
        return self.frame

    def at_one_imbalance(self) -> pd.DataFrame:
        """Of several imbalances, the runs of 50, as in the paper, or else of the largest."""
        frame = self.results()
        if (frame["status"] == "complete").any():
            frame = frame[frame["status"] == "complete"]
        found = set(frame["imbalance"].dropna())
        if frame["imbalance"].isna().any() or len(found) < 2:
            return frame
        return frame[frame["imbalance"] == (IMBALANCE if IMBALANCE in found else max(found))]

    def data(self) -> dict[str, Any]:
        """Classes and counts of the runs."""
        frame = self.at_one_imbalance()
        complete = frame[frame["status"] == "complete"]
        if complete.empty or self.runs is None:
            raise ConfigError("none of the runs is complete")
        return run_folder_of(self.runs, complete["run_id"].iloc[0]).data()

    def class_counts(self) -> Any:
        """Those given, or of the runs, or of the data set at imbalance 50."""
        if self.counts is not None:
            return self.counts
        if self.frame is None:
            return _long_tailed(self.dataset or "cifar10")
        return self.data()["train_counts"]


def _long_tailed(dataset: str) -> IntArray:
    if dataset not in SIZES:
        raise ConfigError(f"the counts of {dataset} are not known: give counts, runs, or one of {', '.join(SIZES)}")
    num_classes, most = SIZES[dataset]
    return profile(most, num_classes, IMBALANCE)


@dataclass(frozen=True)
class Figure:
    """A figure, and what it is made from.

    Example:
        >>> FIGURES["class_balanced_term"].needs_runs
        False
    """

    make: Callable[[Inputs], Chart]
    """The chart."""
    needs_runs: bool
    about: str
    reads: tuple[str, ...] = ("runs", "dataset")
    """What of the inputs it has a use for."""


def _recall_per_class(inputs: Inputs) -> Chart:
    frame, data = inputs.at_one_imbalance(), inputs.data()
    return recall_per_class(frame, data["classes"], data["train_counts"])


def _training_curves(inputs: Inputs) -> Chart:
    frame = inputs.at_one_imbalance()
    assert inputs.runs is not None
    return training_curves(load_epochs(inputs.runs, frame))


FIGURES: Mapping[str, Figure] = {
    "random_covering": Figure(
        lambda inputs: random_covering(),
        False,
        "figure 2, Proposition 1: simulated covering on the closed form",
        reads=(),
    ),
    "class_balanced_term": Figure(
        lambda inputs: class_balanced_term(inputs.betas or BETAS),
        False,
        "figure 3: the term against the images of a class, for each β",
        reads=("beta",),
    ),
    "long_tailed_counts": Figure(
        lambda inputs: long_tailed_counts(inputs.dataset or "cifar100"),
        False,
        "figure 4: images of each class of a data set at imbalances 10 to 200",
        reads=("dataset",),
    ),
    "effective_numbers": Figure(
        lambda inputs: effective_numbers(inputs.class_counts(), inputs.betas or BETAS),
        False,
        "figure 6: effective number of each class, from counts, a data set or runs",
        reads=("counts", "runs", "dataset", "beta"),
    ),
    "scheme_weights": Figure(
        lambda inputs: scheme_weights(inputs.class_counts(), *inputs.betas[:1]),
        False,
        "class weights of each scheme, from counts, a data set or runs, for one β",
        reads=("counts", "runs", "dataset", "beta"),
    ),
    "error_over_beta": Figure(
        lambda inputs: error_over_beta(inputs.at_one_imbalance()),
        True,
        "figure 5: test error over β beside that without class weights, each loss",
    ),
    "training_curves": Figure(
        _training_curves,
        True,
        "figure 7: test error over epochs, up to 6 losses, or the best one and its plain partner",
    ),
    "heatmap": Figure(
        lambda inputs: heatmap(inputs.results()),
        True,
        "appendix A: test error of each loss at each imbalance",
    ),
    "recall_per_class": Figure(
        _recall_per_class,
        True,
        "recall of each class, the best class-balanced loss and its plain partner",
    ),
    "group_recalls": Figure(
        lambda inputs: group_recalls(inputs.at_one_imbalance()),
        True,
        "mean recall of classes with many, medium and few images",
    ),
    "calibration": Figure(
        lambda inputs: calibration(inputs.at_one_imbalance()),
        True,
        "accuracy over confidence, the best class-balanced loss and its plain partner",
    ),
}
"""In the order of the paper, then what it does not have."""
