"""One function for each chart: data in, chart out."""

from __future__ import annotations

from longtail.lab.report.figures.classes import calibration, group_recalls, recall_per_class
from longtail.lab.report.figures.errors import error_over_beta, heatmap, training_curves
from longtail.lab.report.figures.registry import FIGURES, Figure, Inputs
from longtail.lab.report.figures.runs import load_epochs
from longtail.lab.report.figures.theory import (
    class_balanced_term,
    effective_numbers,
    long_tailed_counts,
    random_covering,
    scheme_weights,
)

__all__ = [
    "FIGURES",
    "Figure",
    "Inputs",
    "calibration",
    "class_balanced_term",
    "effective_numbers",
    "error_over_beta",
    "group_recalls",
    "heatmap",
    "load_epochs",
    "long_tailed_counts",
    "random_covering",
    "recall_per_class",
    "scheme_weights",
    "training_curves",
]
