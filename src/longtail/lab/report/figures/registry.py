"""All figures by name, each made from what is given: runs, a data set, counts, β."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from longtail.counts import long_tailed_counts as profile
from longtail.lab.config import ConfigError
from longtail.lab.data.cifar import SIZES
from longtail.lab.data.summary import BETAS
from longtail.lab.report.figures.classes import calibration, group_recalls, recall_per_class
from longtail.lab.report.figures.errors import error_over_beta, heatmap, training_curves
from longtail.lab.report.figures.runs import classes_of, load_epochs
from longtail.lab.report.figures.theory import (
    class_balanced_term,
    effective_numbers,
    long_tailed_counts,
    random_covering,
    scheme_weights,
)
from longtail.lab.report.theme import Chart

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
    betas: tuple[float, ...] = BETAS
    """Of the figures of effective numbers."""
    runs: Path | None = None
    """Folder of run folders."""
    frame: pd.DataFrame | None = None
    """What :func:`longtail.lab.experiments.load_results` gave of it, or some rows."""
    baseline: str | None = None
    """Method that others are compared with; by default the first one without class weights."""
    candidate: str | None = None
    """Method that is compared with it; by default the one of highest balanced accuracy."""
    methods: tuple[str, ...] = ()
    """All methods in the order of their colours, where figures of several experiments are shown together."""

    @property
    def pair(self) -> tuple[str | None, str | None]:
        """Baseline and candidate."""
        return self.baseline, self.candidate

    def complete(self) -> pd.DataFrame:
        """The complete runs, or an error that says that there are none."""
        if self.frame is None or self.runs is None:
            raise ConfigError("it needs runs")
        frame = self.frame[self.frame["status"] == "complete"]
        if frame.empty:
            raise ConfigError("none of the runs is complete")
        return frame

    def at_one_imbalance(self) -> pd.DataFrame:
        """Of several imbalances, the complete runs of 50, as in the paper, or else of the largest."""
        frame = self.complete()
        found = set(frame["imbalance"].dropna())
        if frame["imbalance"].isna().any() or len(found) < 2:
            return frame
        return frame[frame["imbalance"] == (IMBALANCE if IMBALANCE in found else max(found))]

    def epochs(self) -> pd.DataFrame:
        """The test errors after each epoch."""
        return load_epochs(str(self.runs), self.at_one_imbalance())

    def classes(self) -> tuple[list[str], Any]:
        """Names and training images of the classes of the runs."""
        return classes_of(str(self.runs), self.at_one_imbalance())

    def class_counts(self) -> Any:
        """Those given, or of the runs, or of the data set at imbalance 50."""
        if self.counts is not None:
            return self.counts
        if self.frame is not None:
            return self.classes()[1]
        dataset = self.dataset or "cifar10"
        if dataset not in SIZES:
            raise ConfigError(f"the counts of {dataset} are not known: give counts, runs, or one of {', '.join(SIZES)}")
        classes, most = SIZES[dataset]
        return profile(most, classes, IMBALANCE)


@dataclass(frozen=True)
class Figure:
    """A figure, and what it is made from.

    Example:
        >>> FIGURES["class_balanced_term"].needs_runs
        False
    """

    make: Callable[[Inputs], Chart]
    """The chart."""
    about: str
    reads: tuple[str, ...]
    """Which of the inputs it uses."""

    @property
    def needs_runs(self) -> bool:
        """Whether it cannot be made without runs."""
        return self.reads[:1] == RUNS[:1]


RUNS = ("runs", "dataset")
PAIR = (*RUNS, "baseline", "candidate")
COUNTS = ("counts", "runs", "dataset", "beta")

FIGURES: Mapping[str, Figure] = {
    "random_covering": Figure(
        lambda inputs: random_covering(), "figure 2, Proposition 1: simulated covering against the closed form", ()
    ),
    "class_balanced_term": Figure(
        lambda inputs: class_balanced_term(inputs.betas),
        "figure 3: the term against the images of a class, for each β",
        ("beta",),
    ),
    "long_tailed_counts": Figure(
        lambda inputs: long_tailed_counts(inputs.dataset or "cifar100"),
        "figure 4: images of each class of a data set at imbalances 10 to 200",
        ("dataset",),
    ),
    "effective_numbers": Figure(
        lambda inputs: effective_numbers(inputs.class_counts(), inputs.betas),
        "figure 6: effective number of each class, from counts, a data set or runs",
        COUNTS,
    ),
    "scheme_weights": Figure(
        lambda inputs: scheme_weights(inputs.class_counts(), *(inputs.betas[:1] if inputs.betas != BETAS else ())),
        "class weights of each scheme, from counts, a data set or runs, for one β",
        COUNTS,
    ),
    "error_over_beta": Figure(
        lambda inputs: error_over_beta(inputs.at_one_imbalance()),
        "figure 5: test error over β, with and without class weights, for each loss",
        RUNS,
    ),
    "training_curves": Figure(
        lambda inputs: training_curves(inputs.epochs(), *inputs.pair, order=inputs.methods),
        "figure 7: test error over epochs, up to 6 methods, or baseline and candidate",
        PAIR,
    ),
    "heatmap": Figure(
        lambda inputs: heatmap(inputs.complete()), "appendix A: test error of each method at each imbalance", RUNS
    ),
    "recall_per_class": Figure(
        lambda inputs: recall_per_class(
            inputs.at_one_imbalance(), *inputs.classes(), *inputs.pair, order=inputs.methods
        ),
        "recall of each class, baseline and candidate",
        PAIR,
    ),
    "group_recalls": Figure(
        lambda inputs: group_recalls(inputs.at_one_imbalance(), *inputs.pair, order=inputs.methods),
        "mean recall of classes with many, medium and few images, and of the rarest quarter, up to 7 methods",
        PAIR,
    ),
    "calibration": Figure(
        lambda inputs: calibration(inputs.at_one_imbalance(), *inputs.pair, order=inputs.methods),
        "accuracy over confidence, baseline and candidate",
        PAIR,
    ),
}
"""In the order of the paper, then what it does not have."""
