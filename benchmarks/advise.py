"""Whether β estimated from features predicts the β that trains best: ``python -m benchmarks.advise FOLDER``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.measure import circumstances, described
from longtail.counts import FloatArray
from longtail.lab.config import DataConfig, LossConfig, RunConfig
from longtail.lab.data import ImageFolderOptions, SubsetOptions
from longtail.lab.recipes import linear_probe
from longtail.lab.training import open_data
from longtail.lab.training.finetuning import probe_head
from longtail.lab.training.frozen import FrozenBackbone
from longtail.prototypes import estimate_prototypes

Result = dict[str, Any]

SEEDS = (0, 1, 2)
BETAS = (0.0, 0.9, 0.99, 0.999, 0.9999)
"""Plain softmax, and the paper's."""
QUANTILES = (0.25, 0.5, 0.75)
"""Of the distances between two augmented views: the radius of a prototype; the estimate is that of the second."""
VIEWED = 250
"""Images of which two views are compared."""
BY_SIZE = SubsetOptions(class_order="size")
PHOTOGRAPHS = {
    "photographs as they are": SubsetOptions(),
    "photographs, imbalance 50": replace(BY_SIZE, imbalance=50),
    "photographs, imbalance 200": replace(BY_SIZE, imbalance=200),
    "photographs, 40 or 4 a class": replace(BY_SIZE, imbalance=10, max_count=40, profile="step"),
    "photographs, imbalance 20, at most 60": replace(BY_SIZE, imbalance=20, max_count=60),
    "photographs, imbalance 100, at most 200": replace(BY_SIZE, imbalance=100, max_count=200),
}
DIGITS = {"digits, imbalance 10": SubsetOptions(imbalance=10), "digits, imbalance 50": SubsetOptions(imbalance=50)}


def main() -> None:
    """Train heads, then write ``beta.json`` and ``beta.md``."""
    parser = argparse.ArgumentParser(description="Whether the estimated β predicts the one that trains best.")
    parser.add_argument("photos", type=Path, help="folder of Caltech-101, one folder per class")
    parser.add_argument("--output", type=Path, default=Path("results/advise"), help="folder of the record")
    parser.add_argument("--processes", type=int, default=2, help="heads that are trained at a time")
    parser.add_argument("--only-features", action="store_true", help="compute the features that are missing, and stop")
    options = parser.parse_args()
    settings = [
        (name, str(data), subset, seed)
        for data, versions in ((options.photos.absolute(), PHOTOGRAPHS), ("digits", DIGITS))
        for name, subset in versions.items()
        for seed in SEEDS
    ]
    for _, data, subset, seed in settings:
        opened(data, subset, seed)
        view_distances(data)
    if options.only_features:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context, torch.set_num_threads, (1,)) as pool:
        rows = [row for found in pool.map(measure, *zip(*settings, strict=True)) for row in found]
    results: Result = {"settings": circumstances("timm"), "rows": rows, "summary": summary(rows)}
    options.output.mkdir(parents=True, exist_ok=True)
    parts = {name: json.dumps(part, ensure_ascii=False).replace("}, {", "},\n  {") for name, part in results.items()}
    content = ",\n ".join(f'"{name}": {part}' for name, part in parts.items())
    (options.output / "beta.json").write_text(f"{{{content}}}\n")
    text = report(results)
    (options.output / "beta.md").write_text(text)
    print(text, end="")


def opened(data: str, subset: SubsetOptions, seed: int) -> FrozenBackbone:
    """The frozen backbone on a version of the data, its features in the cache; seeds choose the images, too."""
    chosen = replace(subset, subset_seed=seed) if subset.imbalance else subset
    files = ImageFolderOptions() if data == "digits" else ImageFolderOptions(split_seed=seed)
    config = linear_probe(DataConfig(name=data, subset=chosen, files=files))
    dataset, _, config = open_data(replace(config, seed=seed))
    backbone = FrozenBackbone(config, dataset)
    backbone.compute()
    return backbone


def view_distances(data: str) -> FloatArray:
    """Distances between two augmented views of an image, for some of the training images of seed 0."""
    backbone = opened(data, SubsetOptions(), 0)
    order = np.random.default_rng(0).permutation(len(backbone.dataset.train))
    images = backbone.dataset.train.subset(np.sort(order[:VIEWED]))
    backbone.compute([(images, 2)])
    views = F.normalize(backbone.features(images, 2), dim=2)
    distances: FloatArray = (views[:, 1] - views[:, 2]).norm(dim=1).double().numpy()
    return distances


def measure(name: str, data: str, subset: SubsetOptions, seed: int) -> list[Result]:
    """The estimates, and the balanced accuracy of a head trained with each β and with the estimated one."""
    backbone = opened(data, subset, seed)
    dataset = backbone.dataset
    distances = view_distances(data)
    points, labels = F.normalize(backbone.features(dataset.train)[:, 0]).numpy(), dataset.train.labels.numpy()
    radii = [float(radius) for radius in np.quantile(distances, QUANTILES)]
    estimates = [estimate_prototypes(points, labels, radius, len(dataset.classes)).pooled_beta for radius in radii]
    about = {"version": name, "seed": seed, "images": len(labels), "estimates": estimates, "radii": radii}
    tests, of_tests = backbone.features(dataset.test)[:, 0], dataset.test.labels
    rows = []
    for kind, beta in [("grid", beta) for beta in BETAS] + [("estimate", estimates[1])]:
        backbone.config = with_beta(backbone.config, beta)
        with torch.no_grad():
            right = (probe_head_of(backbone)(tests).argmax(dim=1) == of_tests).double()
        recall = [right[of_tests == label].mean().item() for label in of_tests.unique()]
        rows.append({**about, "kind": kind, "beta": beta, "balanced_accuracy": statistics.mean(recall)})
    return rows


def with_beta(config: RunConfig, beta: float) -> RunConfig:
    return replace(config, loss=LossConfig(beta=beta) if beta else LossConfig())


def probe_head_of(backbone: FrozenBackbone) -> torch.nn.Linear:
    with torch.enable_grad():
        return probe_head(backbone)


def summary(rows: Sequence[Result]) -> list[Result]:
    """Means over seeds for each version."""
    found = []
    for name in dict.fromkeys(row["version"] for row in rows):
        of_version = [row for row in rows if row["version"] == name]
        score = {beta: mean(of_version, kind="grid", beta=beta) for beta in BETAS}
        best = max(score, key=lambda beta: score[beta])
        estimates = np.median([row["estimates"] for row in of_version], axis=0).tolist()
        estimated = mean(of_version, kind="estimate")
        found.append(
            {
                "version": name,
                "images": int(statistics.mean(row["images"] for row in of_version)),
                "estimates": estimates,
                "best_beta": best,
                "scores": {f"{beta:g}": value for beta, value in score.items()},
                "estimated": estimated,
            }
        )
    return found


def mean(rows: Sequence[Result], **wanted: Any) -> float:
    chosen = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return statistics.mean(row["balanced_accuracy"] for row in chosen)


def losses_of(rows: Sequence[Result]) -> Mapping[str, float]:
    """How much balanced accuracy each rule loses to the best β of each version, on average, in points."""
    best = [max(row["scores"].values()) for row in rows]
    rules = {f"always β = {beta:g}" if beta else "always plain softmax": f"{beta:g}" for beta in BETAS}
    lost = {
        rule: 100 * statistics.mean(b - row["scores"][key] for b, row in zip(best, rows, strict=True))
        for rule, key in rules.items()
    }
    lost["the estimated β"] = 100 * statistics.mean(b - row["estimated"] for b, row in zip(best, rows, strict=True))
    return lost


def report(results: Result) -> str:
    rows = results["summary"]
    lines = [
        "# Does the estimated β predict the best one?",
        "",
        described(results["settings"]),
        "",
        "Linear probes of EfficientNet-Lite0 with ImageNet weights, softmax, 30 epochs; mean of three seeds, which",
        "choose test images, subset and head. β̂ is estimated from the L2-normalised features of the training images",
        f"(`estimate_prototypes`); the radius is the median distance of two augmented views of {VIEWED} images, in",
        "brackets the estimates with the quartiles as radius. Balanced accuracy on the test images in %; bold: the",
        "best of the five.",
        "",
        "| data | training images | β̂ | plain | " + " | ".join(f"β {beta:g}" for beta in BETAS[1:]) + " | β̂ |",
        "|---|---:|---:|" + "---:|" * (len(BETAS) + 1),
    ]
    for row in rows:
        low, middle, high = (f"{beta:.5g}" for beta in sorted(row["estimates"])[:3])
        cells = [
            f"**{100 * value:.1f}**" if float(beta) == row["best_beta"] else f"{100 * value:.1f}"
            for beta, value in row["scores"].items()
        ]
        lines.append(
            f"| {row['version']} | {row['images']:,} | {middle} [{low}, {high}] | {' | '.join(cells)} | "
            f"{100 * row['estimated']:.1f} |"
        )
    lines += ["", "Points of balanced accuracy lost to the best β of each version, on average:", ""]
    lines += ["| rule | points |", "|---|---:|"]
    lines += [
        f"| {rule} | {points:.2f} |" for rule, points in sorted(losses_of(rows).items(), key=lambda item: item[1])
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
