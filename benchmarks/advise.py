"""What ``longtail advise`` suggests for digits and CIFAR: ``python -m benchmarks.advise``."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import circumstances, described
from longtail.lab.experiments import load_results

Result = dict[str, Any]

SETTINGS = (
    ("digits", "--imbalance 50"),
    ("digits", ""),
    ("cifar10", "--imbalance 100"),
    ("cifar10", ""),
    ("cifar10", "--max-count 500"),
    ("cifar100", "--imbalance 100"),
    ("cifar100", ""),
)
QUANTILES = (0.25, 0.5, 0.75)


def main() -> None:
    """Ask, then write ``advise.json`` and ``advise.md``."""
    parser = argparse.ArgumentParser(description="What longtail advise suggests for digits and CIFAR.")
    parser.add_argument("--output", type=Path, default=Path("results/advise"), help="folder of advise.json and .md")
    parser.add_argument("--runs", type=Path, help="finished runs, for their networks")
    parser.add_argument("--only", help="a data set: the rows of the others stay as they are")
    options = parser.parse_args()
    record = options.output / "advise.json"
    kept = json.loads(record.read_text())["advice"] if options.only and record.exists() else []
    advice = [row for row in kept if row["name"] != options.only]
    for name, flags in SETTINGS:
        if options.only in (None, name):
            runs = [None, *([] if options.runs is None else networks(options.runs, name, flags))]
            advice += [ask(name, flags, quantile, run) for run in runs for quantile in QUANTILES]
    results: Result = {"settings": circumstances(), "advice": advice}
    text = report(results)
    options.output.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(json.dumps(rounded(row), ensure_ascii=False) for row in advice)
    record.write_text(f'{{"settings": {json.dumps(results["settings"])},\n "advice": [\n  {lines}\n]}}\n')
    (options.output / "advise.md").write_text(text)
    print(text, end="")


def networks(runs: Path, name: str, flags: str) -> list[Path]:
    """The plain softmax run of seed 0 on the same training images, if there is one."""
    if flags.startswith("--max-count"):
        return []
    frame = load_results(runs)
    imbalance = float(flags.split()[1]) if flags else float("nan")
    same = (frame["imbalance"] == imbalance) if flags else frame["imbalance"].isna()
    plain = (frame["method"] == "softmax") & (frame["seed"] == 0)
    there = frame[(frame["data"] == name) & same & plain & (frame["status"] == "complete")]
    return [runs / run_id for run_id in there["run_id"][:1]]


def ask(name: str, flags: str, quantile: float, run: Path | None) -> Result:
    command = ["advise", "--data", name, *flags.split(), "--quantile", f"{quantile:g}", "--json"]
    command += [] if run is None else ["--run", str(run)]
    asked = subprocess.run([sys.executable, "-P", "-m", "longtail.lab", *command], capture_output=True, check=True)
    return {"name": name, "flags": flags, "network": run and run.name, **json.loads(asked.stdout)}


def rounded(value: Any) -> Any:
    """With six digits, or three of what is missing to 1, and one line a row: the record stays small."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if value < 0.9 or value > 1 else value
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value


def report(results: Result) -> str:
    lines = [
        "# What `longtail advise` suggests",
        "",
        described(results["settings"]),
        "",
        "N of a typical class and its β; the median over classes of the share of images without a neighbour (alone),",
        "and of N by the second estimator, the growth of the volume. Features are the pixels, or those of the network",
        "trained with plain softmax on the same images (seed 0).",
        "",
        "| data | features | quantile | alone | N | β | N by growth |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["advice"]:
        alone = statistics.median([each["alone"] / each["images"] for each in row["classes"]])
        growth = statistics.median(
            [float("inf") if each["growth"] is None else each["growth"] for each in row["classes"]]
        )
        features = "pixels" if row["network"] is None else "plain network"
        lines.append(
            f"| {row['name']} {row['flags'].removeprefix('--')} | {features} | {row['quantile']:g} | {alone:.1%} | "
            f"{shown(row['prototypes'])} | {row['beta']:.6g} | {shown(growth)} |"
        )
    return "\n".join(lines) + "\n"


def shown(value: float | None) -> str:
    return "∞" if value in (None, float("inf")) else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
