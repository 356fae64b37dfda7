"""Whether ``tune`` finds the best β of the small protocol: ``python -m benchmarks.small_tune``.

Softmax, plain and with each β of the paper, on long-tailed CIFAR-10 at imbalance 50, where the records of the small
protocol hold the test error of each. The search has its own runs, whose records it keeps; it can be stopped and started
again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from longtail.lab.cli import one_line_errors
from longtail.lab.config import LossConfig, RunConfig, RunOptions
from longtail.lab.experiments import SearchOptions, keep_records, load_results, small_protocol, tune
from longtail.lab.experiments.aggregate import summarize_results
from longtail.lab.experiments.results import to_records
from longtail.lab.report.tables import text_table

Content = dict[str, Any]
FOLDS = 3
IMBALANCE = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether tune finds the best β of the small protocol.")
    parser.add_argument("--output", type=Path, default=Path("results/small"), help="folder of the records and tables")
    parser.add_argument("--runs", type=Path, default=Path("runs/small-tune"), help="folder of the search and its runs")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets; $LONGTAIL_DATA by default")
    arguments = parser.parse_args()
    with one_line_errors():
        found = search(RunOptions(runs=arguments.runs, data_dir=arguments.data_dir))
        keep_records(arguments.runs, arguments.output / "tune")
        content = compared(found, load_results(arguments.output / "runs"))
        text = report(content)
        (arguments.output / "tune.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        (arguments.output / "tune.md").write_text(text)
        print(text, end="")


def search(options: RunOptions) -> Content:
    """What the search wrote."""

    def configure(loss: LossConfig) -> RunConfig:
        run = next(run for run in small_protocol("cifar10") if run.data.subset.imbalance == IMBALANCE)
        return replace(run, loss=loss, data=replace(run.data, fold=replace(run.data.fold, folds=FOLDS)))

    result = tune(configure, SearchOptions(losses=("softmax",)), options, console=Console(stderr=True))
    content: Content = json.loads((result.folder / "result.json").read_text(encoding="utf-8"))
    return content


def compared(found: Content, protocol: pd.DataFrame) -> Content:
    """What the search found and what it took, beside the test errors of its candidates.

    Args:
        found: what the search wrote.
        protocol: the runs of the small protocol.
    """
    methods = [candidate["title"] for candidate in found["candidates"]]
    tried = (protocol["data"] == "cifar10") & (protocol["imbalance"] == IMBALANCE) & protocol["method"].isin(methods)
    tested = {row["method"]: row for row in to_records(summarize_results(protocol[tried]))}
    best = min(tested, key=lambda method: tested[method]["error_mean"])
    picked = found["winner"]["title"]
    return {
        "picked": picked,
        "best_on_test": best,
        "points_lost": tested[picked]["error_mean"] - tested[best]["error_mean"],
        # Of all folds but one each, and then of the winner on all images.
        "cost_in_trainings": found["runs"] * (found["folds"] - 1) / found["folds"] + 1,
        "candidates": [
            {name: candidate[name] for name in ("title", "state", "balanced_accuracy", "spread", "scores")}
            | {name: tested[candidate["title"]][name] for name in ("n", "error_mean", "error_std")}
            for candidate in found["candidates"]
        ],
        "search": {name: found[name] for name in ("folds", "runs", "runs_without_pruning", "test", "search")},
    }


def report(content: Content) -> str:
    """The table for people."""
    search = content["search"]
    lines = [
        "# Tuning at the small protocol",
        "",
        f"Long-tailed CIFAR-10 at imbalance {IMBALANCE:g}, ResNet-8, 20 epochs: softmax, plain and with each β of the",
        f"paper, by cross-validation in {search['folds']} folds of the training images (± over these). Beside it",
        "the test error of each at the small protocol (± over seeds), which the search did not see.",
        "",
    ]
    rows = []
    for row in content["candidates"]:
        score = _spread(row["balanced_accuracy"], row["spread"], 100)
        error = _spread(row["error_mean"], row["error_std"])
        rows.append((row["title"], str(len(row["scores"])), score, str(row["n"]), error))
    names = ("folds trained", "balanced accuracy in cross-validation, %", "seeds", "test error, %")
    lines.append(text_table(("loss", *names), rows, numeric=names).to_markdown().rstrip())
    lines += [
        "",
        f"It picks {content['picked']}; the best on the test images is {content['best_on_test']}: "
        f"{content['points_lost']:.1f} points lost.",
        "",
        f"It trained {search['runs']} of {search['runs_without_pruning']} folds, then the winner on all training",
        f"images (test error {search['test']['error']:.1f}%): as many steps as",
        f"{content['cost_in_trainings']:.1f} trainings.",
    ]
    return "\n".join(lines) + "\n"


def _spread(mean: float, spread: float | None, scale: float = 1) -> str:
    return f"{scale * mean:.1f}" + ("" if spread is None else f" ± {scale * spread:.1f}")


if __name__ == "__main__":
    main()
