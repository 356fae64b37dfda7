"""The small protocol on real long-tailed data: ``python -m benchmarks.small``.

Trains what is missing (hours on two cores; it can be stopped and started again), keeps the records of its runs, and
writes tables and figures from these records alone. With ``--tables`` nothing is trained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks.tables import write_tables
from longtail.lab.cli import one_line_errors
from longtail.lab.cli.figures import figures_command
from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.experiments import SWEEPS, keep_records, rescaled, run_sweep
from longtail.lab.recipes import retrained
from longtail.lab.training import adjust_run
from longtail.lab.training.adjustments import METHODS

LOSSES_ALONE = ("sampling=shuffled", "adjustment=none", "normalize=classes")
SOFTMAX_AT_ONCE = (*LOSSES_ALONE, "loss=softmax", "defer_reweighting=none")
PLAIN_AND_BALANCED = (*SOFTMAX_AT_ONCE, "imbalance=100", "weighting=uniform,effective")
FIGURES = {
    "error_over_beta": (*SOFTMAX_AT_ONCE, "imbalance=50"),
    "group_recalls": (*LOSSES_ALONE, "loss=softmax,logit_adjusted", "imbalance=100"),
    "recall_per_class": PLAIN_AND_BALANCED,
    "calibration": PLAIN_AND_BALANCED,
}
"""And the runs that each shows."""


def main() -> None:
    parser = argparse.ArgumentParser(description="The small protocol on real long-tailed data.")
    parser.add_argument("--output", type=Path, default=Path("results/small"), help="folder of records and tables")
    parser.add_argument("--runs", type=Path, default=Path("runs/small"), help="folder of the runs")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets; $LONGTAIL_DATA by default")
    parser.add_argument("--tables", action="store_true", help="only write tables and figures, from the records")
    arguments = parser.parse_args()
    with one_line_errors():
        make(arguments)


def make(arguments: argparse.Namespace) -> None:
    """Train, keep, and write ``small.json``, ``small.md`` and the figures."""
    if not arguments.tables:
        train_all(RunOptions(runs=arguments.runs, data_dir=arguments.data_dir))
        keep_records(arguments.runs, arguments.output / "runs")
    print(write_tables(arguments.output), end="")
    for dataset in SWEEPS["small"].datasets:
        for name, only in FIGURES.items():
            folder = arguments.output / "figures" / dataset
            figures_command(name, folder, arguments.output / "runs", dataset, only=only, formats=("svg",))


def train_all(options: RunOptions) -> None:
    """All runs of the protocol, then cRT and the adjustments of the plain softmax ones."""
    sweep = SWEEPS["small"]
    runs = [run for name in sweep.datasets for run in rescaled(sweep.runs(name), seeds=sweep.seeds)]
    train_runs(runs, options)
    parents = {options.runs / run.run_id: run for run in runs if run.title == "softmax"}
    train_runs([retrained(run, weights=str(path)) for path, run in parents.items()], options)
    for path in parents:
        for method in METHODS:
            adjust_run(path, method, data_dir=options.data_dir)


def train_runs(runs: list[RunConfig], options: RunOptions) -> None:
    """Train what is missing; a run that fails ends the benchmark."""
    result = run_sweep(runs, options, console=Console(stderr=True))
    if result.failed:
        raise SystemExit(f"{len(result.failed)} runs failed: {next(iter(result.failed.values()))}")


if __name__ == "__main__":
    main()
