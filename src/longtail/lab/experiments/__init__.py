"""Experiments: many runs, on one machine or a cluster, and their summaries."""

from longtail.lab.experiments.executors import ExecutorOptions
from longtail.lab.experiments.paper import (
    SWEEPS,
    beta_sweep,
    heatmap,
    losses,
    rescaled,
    small_protocol,
    table2,
    table3,
    training_curves,
)
from longtail.lab.experiments.published import Published, published, published_entries
from longtail.lab.experiments.results import keep_records, load_results
from longtail.lab.experiments.search import Candidate, SearchOptions
from longtail.lab.experiments.sweep import SweepResult, estimate, run_sweep
from longtail.lab.experiments.sweep_files import expand, read_sweep
from longtail.lab.experiments.tune import TuneResult, estimate_tuning, tune

__all__ = [
    "SWEEPS",
    "Candidate",
    "ExecutorOptions",
    "Published",
    "SearchOptions",
    "SweepResult",
    "TuneResult",
    "beta_sweep",
    "estimate",
    "estimate_tuning",
    "expand",
    "heatmap",
    "keep_records",
    "load_results",
    "losses",
    "published",
    "published_entries",
    "read_sweep",
    "rescaled",
    "run_sweep",
    "small_protocol",
    "table2",
    "table3",
    "training_curves",
    "tune",
]
