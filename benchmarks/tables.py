"""Tables of the records in a folder: ``python -m benchmarks.tables results/resnet32``.

Reads FOLDER/runs, which ``longtail results RUNS --records FOLDER/runs`` writes, and writes a table for each data set,
imbalance, network and number of epochs in FOLDER/NAME.json and NAME.md, NAME being that of the folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from longtail.lab.config import RunConfig
from longtail.lab.experiments import load_results, published
from longtail.lab.experiments.aggregate import summarize_results
from longtail.lab.experiments.results import row_key, run_folder_of, to_records
from longtail.lab.report.tables import Table, text_table

Row = dict[str, Any]
TITLES = {"small": "The small protocol", "resnet32": "ResNet-32", "table2": "Table 2 at its own scale"}
EXPERIMENT = ("data", "imbalance", "model", "epochs", "precision")
PUBLISHED = ("resnet32", 200)
"""Network and epochs of the paper's Table 2."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of the records in a folder.")
    parser.add_argument("folder", type=Path, help="folder of runs/, and of the tables")
    arguments = parser.parse_args()
    print(write_tables(arguments.folder), end="")


def write_tables(folder: Path) -> str:
    """Write ``NAME.json`` and ``NAME.md``, and return the latter."""
    frame = load_results(folder / "runs")
    frame = frame[frame["status"] == "complete"]
    folders = [run_folder_of(folder / "runs", run_id) for run_id in frame["run_id"]]
    recalls = zip(folders, frame["recall"], strict=True)
    frame = frame.assign(
        published=[paper_error(run.config()) for run in folders],
        over_1000=[over_1000(run.data()["train_counts"], recall) for run, recall in recalls],
    )
    runs = frame[frame["adjustment"].isna()]
    frame["published"] = frame["published"].where(frame["adjustment"].isna())
    # A re-trained classifier stands beside its run: its own epochs are those of the last layer alone.
    epochs = runs.set_index("run_id")["epochs"]
    frame["epochs"] = frame["weights"].map(epochs).fillna(frame["epochs"]).astype("int64")
    versions = frame.filter(regex="^version_").rename(columns=lambda name: name.removeprefix("version_"))
    content = {
        "versions": to_records(versions.drop_duplicates()),
        "runs": len(runs),
        "adjustments": len(frame) - len(runs),
        "minutes": runs["seconds"].median() / 60,
        "methods": methods(frame),
    }
    text = report(content, folder.name)
    (folder / f"{folder.name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    (folder / f"{folder.name}.md").write_text(text)
    return text


def paper_error(config: RunConfig) -> float | None:
    """The paper's number for the loss, whatever the network: its own are of ResNet-32."""
    entry = published(replace(config, model=replace(config.model, name="resnet32")))
    return None if entry is None else entry.error


def over_1000(counts: Sequence[int], recall: Sequence[float]) -> float:
    """Mean recall of the classes with more than 1000 training images: what the mean of *many* hides."""
    found = [each for images, each in zip(counts, recall, strict=True) if images > 1000]
    return sum(found) / len(found) if found else float("nan")


def methods(frame: pd.DataFrame) -> list[Row]:
    """One row for each method of each experiment: mean and spread over seeds, and its difference from plain softmax."""
    rows = to_records(summarize_results(frame))
    errors = {(row_key(row, EXPERIMENT), row["method"], row["seed"]): row["error"] for row in to_records(frame)}
    found: dict[tuple[Any, str], Row] = {}
    for row in rows:
        key, name = row_key(row, EXPERIMENT), row["method"]
        if (key, name) in found:
            raise ValueError(f"two settings have the name {name!r}")
        seeds = sorted(seed for of, method, seed in errors if (of, method) == (key, name))
        pairs = [seed for seed in seeds if (key, "softmax", seed) in errors]
        delta = [errors[key, name, seed] - errors[key, "softmax", seed] for seed in pairs]
        found[key, name] = (
            {column: row[column] for column in EXPERIMENT}
            | {"method": name, "seeds": seeds, "errors": [errors[key, name, seed] for seed in seeds]}
            | {key: row[key] for key in row if key.endswith(("_mean", "_std")) and row[key] is not None}
            | {"delta": sum(delta) / len(delta) if delta else None, "published": row["published"]}
        )
    return list(found.values())


def report(content: Row, name: str) -> str:
    """The tables for people."""
    versions = " or ".join(
        ", ".join(f"{package} {version}" for package, version in of_some.items()) for of_some in content["versions"]
    )
    adjusted = f" and {content['adjustments']} adjustments" if content["adjustments"] else ""
    lines = [
        f"# {TITLES.get(name, name)}",
        "",
        f"{content['runs']} runs{adjusted}, {content['minutes']:.0f} minutes each (median), with {versions}.",
        "",
        "Error and recall in %, mean ± standard deviation over seeds. Many, medium, few: mean recall of classes with",
        "more than 100, 20 to 100, and fewer than 20 training images; > 1000: of the classes with more than 1000,",
        "which are among the many. Δ: error minus that of plain softmax with the same seeds. Bold: the lowest mean,",
        "however small the difference. Calibration: expected calibration error, the mean gap between confidence and",
        "accuracy. *Published*: the paper's error with this loss under its own protocol, ResNet-32 and 200 epochs.",
        "",
        "*Normalised over samples*: weights average 1 over the training images, not over the classes. *Deferred to",
        "0.8*: class weights start after 80% of the training (deferred re-weighting). *Balanced softmax*: the",
        "logit-adjusted loss with τ = 1, no class weights. *cRT*: classifier re-training, a new last layer on the",
        "frozen network with class-balanced sampling. *τ-norm* and *logit adjustment* change the last layer without",
        "training.",
    ]
    for key in dict.fromkeys(row_key(row, EXPERIMENT) for row in content["methods"]):
        rows = [row for row in content["methods"] if row_key(row, EXPERIMENT) == key]
        lines += [
            "",
            heading(rows[0]),
            "",
            table(sorted(rows, key=lambda row: row["error_mean"])).to_markdown().rstrip(),
        ]
    return "\n".join(lines) + "\n"


def heading(row: Row) -> str:
    data = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}[row["data"]]
    network = row["model"].replace("resnet", "ResNet-")
    precision = "" if row["precision"] == "32-true" else f", {row['precision']}"
    return f"## {data}, imbalance {row['imbalance']:g}, {network}, {row['epochs']} epochs{precision}"


def table(rows: Sequence[Row]) -> Table:
    """Methods with their errors and recalls, the lowest error bold."""
    best = min(row["error_mean"] for row in rows)
    shares = {name: name for name in ("many", "medium", "few")}
    shares = {"over_1000": "> 1000"} | shares | {"calibration_error": "calibration"}
    # Of the paper's own protocol, and of no other, the difference from the published error means something.
    compared = (rows[0]["model"], rows[0]["epochs"]) == PUBLISHED
    names = ("seeds", "error", "Δ", *shares.values(), "published", *(["difference"] if compared else []))
    lines = []
    for row in rows:
        error = f"**{spread(row, 'error')}**" if row["error_mean"] == best else spread(row, "error")
        # Added to 0, what is rounded to -0 is 0.
        delta = "" if row["delta"] is None or row["method"] == "softmax" else f"{round(row['delta'], 1) + 0:+.1f}"
        known = "" if row["published"] is None else f"{row['published']:.2f}"
        cells = [row["method"], str(len(row["seeds"])), error, delta, *(spread(row, n, 100) for n in shares), known]
        if compared:
            cells.append(f"{row['error_mean'] - row['published']:+.2f}" if known else "")
        lines.append(tuple(cells))
    return text_table(("method", *names), lines, numeric=names)


def spread(row: Row, name: str, scale: float = 1) -> str:
    """Mean and, of two seeds or more, its standard deviation."""
    if f"{name}_mean" not in row:
        return "–"
    mean = f"{scale * row[f'{name}_mean']:.1f}"
    return f"{mean} ± {scale * row[f'{name}_std']:.1f}" if f"{name}_std" in row else mean


if __name__ == "__main__":
    main()
