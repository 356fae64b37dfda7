"""Which loss for photographs: ``python -m benchmarks.photographs 101_ObjectCategories``.

Caltech-101 (101 classes, 31 to 800 photographs each) as it is, and with its tail made steeper (imbalance 200), by a
linear probe of EfficientNet-Lite0 with ImageNet weights: three seeds of the split and of the head. Then what ``tune``
picks without the test images, features of length 1, and fine-tuning. Trains what is missing, keeps the records, and
writes tables and the figure from the records alone; with ``--tables`` nothing is trained.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.small import train_runs
from longtail.lab.cli import one_line_errors
from longtail.lab.config import DataConfig, LossConfig, RunConfig, RunOptions
from longtail.lab.data import SubsetOptions
from longtail.lab.data.image_folder import ImageFolderOptions
from longtail.lab.experiments import SearchOptions, keep_records, load_results, tune
from longtail.lab.experiments.paper import losses
from longtail.lab.experiments.results import run_folder_of, to_records
from longtail.lab.recipes import finetune, linear_probe
from longtail.lab.report.tables import text_table
from longtail.lab.report.theme import data, line_styles, styled
from longtail.lab.training import RunFolder, adjust_run
from longtail.lab.training.adjustments import METHODS
from longtail.lab.training.build import identify

Content = dict[str, Any]
SEEDS = (0, 1, 2)
VERSIONS = {"as it is": SubsetOptions(), "imbalance 200": SubsetOptions(imbalance=200, class_order="size")}
SMALLER = SubsetOptions(imbalance=20, max_count=60, class_order="size")
"""For fine-tuning, which sees each image many times."""
BALANCED_SOFTMAX = LossConfig(name="logit_adjusted")
NORMALIZED_LRS = (1e-3, 1e-2, 1e-1)
"""Features of length 1 are short: the usual learning rate, the first one, is too low for them."""
UNLIKE = {"digits": "digits", "cifar10": "CIFAR-10"}
"""Data sets unlike the photographs of ImageNet."""
SCORES = {
    "balanced_accuracy": "balanced accuracy",
    "rarest_quarter": "rarest quarter",
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "calibration_error": "calibration",
}
"""Columns of the tables; the first decides the order."""
PARTS = ("losses", "tune", "finetune", "normalize", "precision", "unlike")
PRECISIONS = {"32-true": "float32", "bf16-mixed": "bfloat16"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Which loss for photographs.")
    parser.add_argument("photos", type=Path, nargs="?", help="folder of Caltech-101, one folder per class")
    parser.add_argument("--output", type=Path, default=Path("results/photographs"), help="folder of records and tables")
    parser.add_argument("--runs", type=Path, default=Path("runs/photographs"), help="folder of the runs")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="parts to train; all by default")
    parser.add_argument("--tables", action="store_true", help="only write tables and the figure, from the records")
    arguments = parser.parse_args()
    with one_line_errors():
        if not arguments.tables:
            if arguments.photos is None:
                parser.error("which photographs? python -m benchmarks.photographs 101_ObjectCategories")
            for part in arguments.only:
                train_part(part, arguments.photos, arguments.runs / part, arguments.output)
        print(write_tables(arguments.output), end="")


def photographs(photos: Path, subset: SubsetOptions, seed: int) -> DataConfig:
    """Seeds choose the test images, and those of a subset, too."""
    chosen = replace(subset, subset_seed=seed) if subset.imbalance else subset
    return DataConfig(name=str(photos), subset=chosen, files=ImageFolderOptions(split_seed=seed))


def of_losses(photos: Path) -> list[RunConfig]:
    """Each loss plain and class-balanced with each β, 1/√n weights, balanced softmax, class-balanced sampling."""
    chosen = [*losses(gammas=(0.5,)), LossConfig(weighting="inverse_sqrt"), BALANCED_SOFTMAX]
    runs = []
    for subset in VERSIONS.values():
        for seed in SEEDS:
            images = photographs(photos, subset, seed)
            configs = [linear_probe(images, loss) for loss in chosen]
            configs.append(linear_probe(replace(images, sampling="class_balanced")))
            runs += [tested_once(config, seed) for config in configs]
    return runs


def of_normalize(photos: Path) -> list[RunConfig]:
    """Features as they are, and of length 1 with several learning rates, on the steeper version."""
    runs = []
    for seed in SEEDS:
        for loss in (LossConfig(), BALANCED_SOFTMAX):
            probe = tested_once(linear_probe(photographs(photos, VERSIONS["imbalance 200"], seed), loss), seed)
            scaled = replace(probe, model=replace(probe.model, normalize_features=True))
            rates = [replace(probe.optimizer, lr=lr) for lr in NORMALIZED_LRS]
            runs += [probe, *(replace(scaled, optimizer=optimizer) for optimizer in rates)]
    return runs


def of_precision(photos: Path) -> list[RunConfig]:
    """Features in float32 and in bfloat16: the same images and the same random numbers for both."""
    runs = []
    for subset in VERSIONS.values():
        for seed in SEEDS:
            for loss in (LossConfig(), LossConfig(beta=0.999), BALANCED_SOFTMAX):
                probe = tested_once(linear_probe(photographs(photos, subset, seed), loss), seed)
                runs += [replace(probe, precision=precision) for precision in PRECISIONS]
    return runs


def of_finetune(photos: Path) -> list[RunConfig]:
    """Frozen at 224 and at 96 pixels, and fine-tuned at 96."""
    images = photographs(photos, SMALLER, 0)
    small = replace(images, image_size=96)
    probes = [linear_probe(images, BALANCED_SOFTMAX), linear_probe(small, BALANCED_SOFTMAX)]
    return [tested_once(run, 0) for run in (*probes, finetune(small, BALANCED_SOFTMAX, epochs=5))]


def of_unlike(photos: Path) -> list[RunConfig]:
    """Photographs; and digits and CIFAR-10, unlike those of ImageNet; digits fine-tuned on small inputs, too."""
    digits, cifar = (
        DataConfig(name="digits"),
        DataConfig(name="cifar10", subset=SubsetOptions(imbalance=1, max_count=500)),
    )
    small = [replace(images, image_size=64) for images in (digits, cifar)]
    probes = [linear_probe(images) for images in (photographs(photos, SubsetOptions(), 0), digits, cifar, *small)]
    return [tested_once(run, 0) for run in (*probes, finetune(small[0], epochs=5))]


def tested_once(config: RunConfig, seed: int) -> RunConfig:
    """At the end: nothing is chosen by the test images."""
    return replace(config, seed=seed, test_every=0)


def train_part(part: str, photos: Path, runs: Path, output: Path) -> None:
    """Train what is missing of one part, and keep its records."""
    options = RunOptions(runs=runs)
    if part == "tune":
        output.mkdir(parents=True, exist_ok=True)
        found: Content = {}
        for name, subset in reversed(VERSIONS.items()):
            found[name] = search(photos, subset, options)
            (output / "tune.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        return
    protocols = {
        "losses": of_losses,
        "normalize": of_normalize,
        "precision": of_precision,
        "finetune": of_finetune,
        "unlike": of_unlike,
    }
    configs = identify(protocols[part](photos))
    train_runs(configs, options)
    if part == "losses":
        for config in configs:
            if config.loss == LossConfig() and config.data.sampling == "shuffled":
                for method in METHODS:
                    adjust_run(runs / config.run_id, method)
    keep_records(runs, output / part)


def search(photos: Path, subset: SubsetOptions, options: RunOptions) -> Content:
    """What ``longtail tune`` picks by default, with seed 0, and the scores of each loss."""
    images = photographs(photos, subset, 0)
    result = tune(lambda loss: linear_probe(images, loss), SearchOptions(), options, console=Console(stderr=True))
    assert result is not None
    return {
        "picked": result.winner.loss.title,
        "balanced_accuracy": result.test["balanced_accuracy"],
        "rarest_quarter": result.test["rarest_quarter"],
        "error": result.test["error"],
        "folds_trained": result.runs,
        "folds_without_pruning": result.grid_runs,
        "candidates": [
            {"loss": each.loss.title, "state": each.state, "scores": [round(score, 5) for score in each.scores]}
            for each in result.candidates
        ],
    }


def write_tables(folder: Path) -> str:
    """Write ``photographs.json``, ``photographs.md`` and the figure from the records; return the page."""
    frame = results_of(folder / "losses")
    content: Content = {
        "versions": to_records(frame.filter(regex="^version_").drop_duplicates()),
        "runs": int(frame["adjustment"].isna().sum()),
        "losses": summary(frame, "method"),
    }
    if (folder / "tune.json").exists():
        picked = json.loads((folder / "tune.json").read_text())
        content["tune"] = {name: costs(found, frame[frame["version"] == name]) for name, found in picked.items()}
    if (folder / "normalize").exists():
        compared = results_of(folder / "normalize")
        lengths = compared["normalize_features"].map({True: "length 1", False: "as they are"}).astype(str)
        names = compared["method"] + ", " + lengths + ", learning rate " + compared["lr"].map("{:g}".format)
        content["normalize"] = summary(compared.assign(setting=names), "setting")
    if (folder / "precision").exists():
        compared = results_of(folder / "precision")
        names = compared["method"] + ", " + compared["precision"].map(PRECISIONS).astype(str)
        content["precision"] = summary(compared.assign(setting=names), "setting")
        content["precision_differences"] = differences(compared)
    if (folder / "finetune").exists():
        tuned = results_of(folder / "finetune")
        kind = tuned["freeze"].map({True: "frozen", False: "fine-tuned, 5 epochs"}).astype(str)
        names = kind + ", " + tuned["image_size"].fillna(224).astype(str) + " pixels"
        content["finetune"] = summary(tuned.assign(setting=names), "setting")
    if (folder / "unlike").exists():
        content["unlike"] = fits(folder / "unlike")
    text = page(content)
    (folder / "photographs.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (folder / "photographs.md").write_text(text)
    figure(frame, folder)
    return text


def results_of(runs: Path) -> pd.DataFrame:
    """Complete runs and adjustments, with the version of the data and the training images of each."""
    frame = load_results(runs)
    frame = frame[frame["status"] == "complete"]
    counts = [run_folder_of(runs, run_id).data()["train_counts"] for run_id in frame["run_id"]]
    steep = frame["imbalance"].map(lambda value: "as it is" if pd.isna(value) else f"imbalance {value:g}")
    return frame.assign(
        version=steep.astype(str),
        counts=counts,
        accuracy=1 - frame["error"] / 100,
    )


def summary(frame: pd.DataFrame, column: str) -> list[Content]:
    """Mean and standard deviation over seeds of each setting of each version, the best first."""
    rows = []
    for (version, name), part in frame.groupby(["version", column], sort=True):
        scores = {score: part[score].astype(float) for score in SCORES}
        row: Content = {"version": version, "setting": name, "seeds": sorted(map(int, part["seed"]))}
        row |= {"images": int(np.mean([sum(each) for each in part["counts"]]))}
        row |= {"largest": int(max(part["counts"].iloc[0])), "smallest": int(min(part["counts"].iloc[0]))}
        row |= {f"{score}_mean": values.mean() for score, values in scores.items()}
        row |= {f"{score}_std": values.std(ddof=1) for score, values in scores.items() if len(values) > 1}
        rows.append(row | {"seconds": float(part["seconds"].median())})
    return sorted(rows, key=lambda row: (row["version"], -row["balanced_accuracy_mean"]))


def differences(frame: pd.DataFrame) -> list[Content]:
    """How much better bfloat16 is than float32, run by run: its mean and standard deviation, for each version."""
    rows = []
    for version, part in frame.groupby("version"):
        for score in ("balanced_accuracy", "rarest_quarter"):
            table = part.pivot_table(index=["method", "seed"], columns="precision", values=score)
            gains = table["bf16-mixed"] - table["32-true"]
            of_seeds = float(table["32-true"].groupby("method").std(ddof=1).mean())
            row: Content = {"version": version, "score": score, "pairs": len(gains)}
            rows.append(row | {"mean": gains.mean(), "std": gains.std(ddof=1), "std_over_seeds": of_seeds})
    return rows


def fits(runs: Path) -> list[Content]:
    """How well each run fits its training images, where that was measured, and its test images."""
    rows = []
    for path in sorted(runs.iterdir()):
        folder = RunFolder(path)
        config, result = folder.config(), folder.finished_result()
        rows.append(
            {
                "images": UNLIKE.get(config.data.name, "photographs"),
                "backbone": "frozen" if config.model.freeze else f"fine-tuned, {config.optimizer.epochs} epochs",
                "pixels": config.data.image_size or 224,
                "trained_on": sum(folder.data()["train_counts"]),
                "train_error": result["final"].get("train_error"),
                "error": result["final"]["error"],
            }
        )
    names = ["photographs", *UNLIKE.values()]
    return sorted(rows, key=lambda row: (names.index(row["images"]), row["backbone"] != "frozen", -row["pixels"]))


def costs(found: Content, tested: pd.DataFrame) -> Content:
    """What was picked beside what is best on the test images of the same split."""
    same = tested[(tested["seed"] == 0) & tested["adjustment"].isna() & (tested["sampling"] == "shuffled")]
    best = same.loc[same["balanced_accuracy"].idxmax()]
    plain = same[same["method"] == "softmax"].iloc[0]
    return found | {
        "best_on_test": best["method"],
        "best_balanced_accuracy": float(best["balanced_accuracy"]),
        "lost": float(best["balanced_accuracy"]) - found["balanced_accuracy"],
        "gained_over_softmax": found["balanced_accuracy"] - float(plain["balanced_accuracy"]),
    }


def page(content: Content) -> str:
    """The tables for people."""
    lines = [
        "# Photographs",
        "",
        f"{content['runs']} linear probes of EfficientNet-Lite0 (ImageNet weights, 224 pixels, 30 epochs): three seeds",
        "choose the test images (20% of each class), those of the subset, and the head. In %, mean ± standard",
        "deviation over seeds. Rarest quarter: mean recall of the quarter of the classes with the fewest training",
        "images. τ-norm and logit adjustment change the head of the softmax run without training. Each run is tested",
        "once, after its last epoch. Bold: the highest mean, however small the difference.",
    ]
    for version in VERSIONS:
        rows = [row for row in content["losses"] if row["version"] == version]
        if rows:
            first = rows[0]
            counts = f"{first['images']:,} training images, {first['largest']} to {first['smallest']} a class"
            lines += ["", f"## Caltech-101, {version}: {counts}", "", table(rows)]
    for version, found in content.get("tune", {}).items():
        lines += [
            "",
            f"`longtail tune`, {version}, seed 0: {len(found['candidates'])} losses, {found['folds_trained']} of "
            f"{found['folds_without_pruning']} folds trained; it picks {found['picked']},",
            f"which has a balanced accuracy of {found['balanced_accuracy']:.1%} on the test images; the best of the "
            f"losses above there is {found['best_on_test']} with",
            f"{found['best_balanced_accuracy']:.1%}. Choosing without the test images costs {100 * found['lost']:.1f} "
            f"points, and gains {100 * found['gained_over_softmax']:.1f} over plain softmax.",
        ]
    if "normalize" in content:
        lines += ["", "## Features of length 1 (`--normalize-features`)", "", "Caltech-101, imbalance 200:", ""]
        lines.append(table(content["normalize"]))
    if "precision" in content:
        lines += ["", "## Features in float32 and in bfloat16 (`--set precision=bf16-mixed`)"]
        for version in VERSIONS:
            chosen = [row for row in content["precision"] if row["version"] == version]
            lines += ["", f"Caltech-101, {version}:", "", table(chosen), ""]
            for row in content["precision_differences"]:
                if row["version"] == version:
                    lines.append(
                        f"bfloat16 less float32, {SCORES[row['score']]}: {100 * row['mean']:+.2f} ± "
                        f"{100 * row['std']:.2f} points over {row['pairs']} pairs of runs; over seeds alone, float32 "
                        f"has a standard deviation of {100 * row['std_over_seeds']:.2f}."
                    )
    if "finetune" in content:
        rows = content["finetune"]
        first = rows[0]
        lines += [
            "",
            "## Frozen and fine-tuned",
            "",
            f"Balanced softmax on {first['images']:,} training images, {first['largest']} to {first['smallest']} a "
            "class, one seed. Seconds are of training alone.",
            "",
            table(rows, seconds=True),
        ]
    if "unlike" in content:
        lines += ["", "## Images unlike those of ImageNet", ""]
        lines += [
            "Plain softmax, one seed, errors in %; 500 training images of each class of CIFAR-10. Of digits and of",
            "CIFAR-10, the head misclassifies more than 1% of its training images, of photographs 0.1%.",
            "",
        ]
        lines += ["| images | backbone | pixels | training images | training error | test error |"]
        lines += ["|---|---|---:|---:|---:|---:|"]
        for row in content["unlike"]:
            fit = "-" if row["train_error"] is None else f"{row['train_error']:.1f}"
            lines.append(
                f"| {row['images']} | {row['backbone']} | {row['pixels']} | {row['trained_on']:,} | {fit} | "
                f"{row['error']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Content], seconds: bool = False) -> str:
    """Settings with their scores, the highest of each bold."""
    best = {score: max(row[f"{score}_mean"] for row in rows) for score in list(SCORES)[:-1]}
    names = (*SCORES.values(), *(("seconds",) if seconds else ()))
    lines = []
    for row in rows:
        cells = []
        for score in SCORES:
            mean = row[f"{score}_mean"]
            spread = f" ± {100 * row[f'{score}_std']:.1f}" if f"{score}_std" in row else ""
            cell = f"{100 * mean:.1f}{spread}"
            cells.append(f"**{cell}**" if best.get(score) == mean else cell)
        lines.append((row["setting"], *cells, *((f"{row['seconds']:.0f}",) if seconds else ())))
    return text_table(("", *names), lines, numeric=names).to_markdown().rstrip()


def figure(frame: pd.DataFrame, folder: Path) -> None:
    """Recall of the steeper version over classes from frequent to rare, plain softmax and balanced softmax."""
    names = {"softmax": "softmax", "balanced softmax": "balanced softmax"}
    rows = []
    for method, name in names.items():
        part = frame[(frame["version"] == "imbalance 200") & (frame["method"] == method)]
        ordered = [
            np.array(row["recall"])[np.argsort(-np.array(row["counts"]), kind="stable")] for row in to_records(part)
        ]
        recall = 100 * np.mean(ordered, axis=0)
        window = np.convolve(np.pad(recall, 5, mode="reflect"), np.ones(11) / 11, mode="valid")
        rows += [
            {"rank": rank + 1, "recall": float(recall[rank]), "mean": float(window[rank]), "name": name}
            for rank in range(len(recall))
        ]
    styles = line_styles(list(names.values()), columns=2)
    x = alt.X("rank:Q", title="class, from 640 training images to 3", scale=alt.Scale(domain=[1, 101], nice=False))
    base = alt.Chart(data(rows)).encode(x=x, color=styles["color"])
    percent = alt.Scale(domain=[0, 100])
    y = alt.Y("recall:Q", title="recall on the test images (%)", scale=percent)
    points = base.mark_circle(size=14, opacity=0.45).encode(y=y)
    lines = base.mark_line().encode(
        y=alt.Y("mean:Q", scale=percent), **{k: v for k, v in styles.items() if k != "color"}
    )
    chart = styled(
        (points + lines).properties(width=460, height=220),
        "Recall of each class of Caltech-101 at imbalance 200",
        "Linear probe of EfficientNet-Lite0. Points: classes, mean of three seeds. Lines: mean of 11 neighbours.",
    )
    chart.save(str(folder / "recall_per_class.svg"))
    chart.save(str(folder / "recall_per_class.png"), scale_factor=2)


if __name__ == "__main__":
    main()
