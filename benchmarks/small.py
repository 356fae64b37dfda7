"""The small protocol on real long-tailed data: ``python -m benchmarks.small``.

Trains what is missing (hours on two cores; it can be stopped and started again), keeps the records of complete runs,
and writes tables and figures from these records alone. With ``--tables`` nothing is trained.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from benchmarks.measure import circumstances
from longtail.lab.cli.figures import figures_command
from longtail.lab.config import RunOptions
from longtail.lab.experiments import (
    SWEEPS,
    keep_records,
    load_results,
    published_entries,
    rescaled,
    run_sweep,
    small_heads,
)
from longtail.lab.experiments.aggregate import summarize_results
from longtail.lab.experiments.results import row_key, to_records

Row = dict[str, Any]
SAME_PLACE = ("data", "imbalance", "model", "epochs")
FIGURES = ("error_over_beta", "recall_per_class", "group_recalls", "calibration")


def main() -> None:
    """Train, keep, and write ``small.json``, ``small.md`` and the figures."""
    parser = argparse.ArgumentParser(description="The small protocol on real long-tailed data.")
    parser.add_argument(
        "--output", type=Path, default=Path("results"), help="folder of small.json, small.md and small/"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/small"), help="folder of the runs")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets; $LONGTAIL_DATA by default")
    parser.add_argument("--tables", action="store_true", help="only write tables and figures, from the records")
    arguments = parser.parse_args()
    records = arguments.output / "small" / "runs"
    if not arguments.tables:
        train_all(RunOptions(runs=arguments.runs, data_dir=arguments.data_dir))
        keep_records(arguments.runs, records)
    frame = load_results(records)
    content = {"versions": circumstances(), "hours": frame["seconds"].sum() / 3600, "settings": settings_of(frame)}
    text = report(content, frame)
    (arguments.output / "small.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    (arguments.output / "small.md").write_text(text)
    draw(frame, records, arguments.output / "small" / "figures")
    print(text, end="")


def train_all(options: RunOptions) -> None:
    """All runs of the protocol, then what follows from some of them."""
    sweep = SWEEPS["small"]
    runs = [run for name in sweep.datasets for run in rescaled(sweep.runs(name), seeds=sweep.seeds)]
    console = Console(stderr=True)
    for part in (runs, small_heads(runs)):
        result = run_sweep(part, options, console=console)
        if result.failed:
            raise SystemExit(f"{len(result.failed)} runs failed: {next(iter(result.failed.values()))}")


def settings_of(frame: pd.DataFrame) -> list[Row]:
    """One row for each setting: mean and spread over seeds, and the difference from the plain softmax of its place."""
    rows = to_records(summarize_results(frame))
    runs = [row for row in to_records(frame) if row["status"] == "complete"]
    errors = {(row_key(row, SAME_PLACE), method(row), row["seed"]): row["error"] for row in runs}
    found = []
    for row in rows:
        place, name = row_key(row, SAME_PLACE), method(row)
        seeds = sorted(seed for at, of, seed in errors if (at, of) == (place, name))
        pairs = [seed for seed in seeds if (place, "softmax", seed) in errors]
        delta = [errors[place, name, seed] - errors[place, "softmax", seed] for seed in pairs]
        found.append(
            {name: row[name] for name in SAME_PLACE}
            | {"method": name, "seeds": seeds}
            | {key: row[key] for key in row if key.endswith(("_mean", "_std")) and row[key] is not None}
            | {"delta": sum(delta) / len(delta) if delta else None, "published": published_error(row)}
        )
    return found


def method(row: Row) -> str:
    """What a run does, for people."""
    names = {"logit_adjusted": "balanced softmax", "ldam": "LDAM", "focal": f"focal γ {row['gamma'] or 0:g}"}
    name = names.get(row["loss"], row["loss"])
    if row["weighting"] == "effective":
        name = f"class-balanced {name}, β {row['beta']:g}" if row["beta"] is not None else f"{name}, β of each class"
    elif row["weighting"] != "uniform":
        name += {"inverse": ", 1/n", "inverse_sqrt": ", 1/√n"}[row["weighting"]]
    name += ", normalised over samples" if row["normalize"] == "samples" else ""
    name += f", from epoch {row['defer_reweighting']:g}" if row["defer_reweighting"] is not None else ""
    head = {"retrain": "classifier re-trained (cRT)", "logit_adjustment": "logits adjusted", "tau_norm": "τ-normalised"}
    if row["head_method"] is not None:
        tau = "" if row["head_tau"] is None else f", τ {row['head_tau']:g}"
        return f"softmax, then {head[row['head_method']]}{tau}"
    return name + (", class-balanced sampling" if row["sampling"] == "class_balanced" else "")


def published_error(row: Row) -> float | None:
    """What the paper has for the same loss there, with ResNet-32 and 200 epochs."""
    own = ("head_method", "defer_reweighting")
    if row["sampling"] != "shuffled" or row["normalize"] != "classes" or any(row[name] is not None for name in own):
        return None
    same = ("data", "imbalance", "loss", "gamma", "weighting", "beta")
    entries = [entry for entry in published_entries() if all(entry[name] == row[name] for name in same)]
    return float(entries[0]["error"]) if entries else None


def report(content: Row, frame: pd.DataFrame) -> str:
    complete = frame[frame["status"] == "complete"]
    lines = [
        "# The small protocol",
        "",
        f"{len(complete)} runs, {content['hours']:.1f} hours of training, two at a time on one core each.",
        "Error and recall in %, mean ± standard deviation over seeds. Many, medium, few: mean recall of classes with",
        "more than 100, 20 to 100, and fewer than 20 training images. Δ: error minus that of plain softmax with the",
        "same seeds. *Published* is the paper's number for this loss, of another protocol: ResNet-32 and 200 epochs.",
    ]
    for place in dict.fromkeys(row_key(row, SAME_PLACE) for row in content["settings"]):
        rows = [row for row in content["settings"] if row_key(row, SAME_PLACE) == place]
        lines += ["", heading(rows[0]), "", *table(rows)]
    return "\n".join(lines) + "\n"


def heading(row: Row) -> str:
    data = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}[row["data"]]
    network = row["model"].replace("resnet", "ResNet-")
    return f"## {data}, imbalance {row['imbalance']:g}, {network}, {row['epochs']} epochs"


def table(rows: Sequence[Row]) -> list[str]:
    best = min(row["error_mean"] for row in rows)
    lines = [
        "| method | seeds | error | Δ | many | medium | few | published |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        error = f"{row['error_mean']:.1f}" + (f" ± {row['error_std']:.1f}" if "error_std" in row else "")
        error = f"**{error}**" if row["error_mean"] == best else error
        delta = "" if row["delta"] is None or row["method"] == "softmax" else f"{row['delta']:+.1f}"
        groups = [
            f"{100 * row[f'{name}_mean']:.1f}" if f"{name}_mean" in row else "–" for name in ("many", "medium", "few")
        ]
        known = "" if row["published"] is None else f"{row['published']:.2f}"
        lines.append(f"| {' | '.join([row['method'], str(len(row['seeds'])), error, delta, *groups, known])} |")
    return lines


def draw(frame: pd.DataFrame, records: Path, folder: Path) -> None:
    for dataset in sorted(set(frame["data"])):
        for name in FIGURES:
            only = ("sampling=shuffled", "head_method=none", "loss=softmax")
            figures_command(name, folder / dataset, records, dataset, only=only, formats=("svg", "png"))


if __name__ == "__main__":
    main()
