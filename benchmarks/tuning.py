"""What pruning costs and saves: ``python -m benchmarks.tuning``.

On long-tailed digits, for several ways to cut the folds: the full grid of the paper, then the same search with pruning,
which finds the folds it needs trained already. It can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import circumstances, described
from longtail.lab.config import DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions
from longtail.lab.data import FoldOptions, SubsetOptions
from longtail.lab.experiments import SearchOptions, TuneResult, losses, tune
from longtail.lab.recipes import cifar

Result = dict[str, Any]
THRESHOLDS = (0.1, 0.2, 0.3, 0.5)


def main() -> None:
    """Search, then write ``tuning.json`` and ``tuning.md``."""
    parser = argparse.ArgumentParser(description="What pruning costs and saves.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder of tuning.json and .md")
    parser.add_argument("--runs", type=Path, default=Path("runs/tuning"), help="folder of the runs")
    parser.add_argument("--searches", type=int, default=8, help="how many ways to cut the folds")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--imbalance", type=float, default=50.0)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    searches = [one_search(arguments, seed) for seed in range(arguments.searches)]
    results: Result = {
        "settings": circumstances("optuna"),
        "protocol": {name: getattr(arguments, name) for name in ("searches", "folds", "imbalance", "epochs")},
        "searches": searches,
        "summary": {name: summary(name, searches) for name in searches[0]["pruned"]},
    }
    text = report(results)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "tuning.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    (arguments.output / "tuning.md").write_text(text)
    print(text, end="")


def one_search(arguments: argparse.Namespace, seed: int) -> Result:
    def configure(loss: LossConfig) -> RunConfig:
        fold = FoldOptions(folds=arguments.folds, fold_seed=seed)
        data = DataConfig(subset=SubsetOptions(imbalance=arguments.imbalance), fold=fold)
        config = cifar(data, loss, arguments.epochs)
        return replace(config, model=ModelConfig(name="resnet8"), optimizer=replace(config.optimizer, batch_size=32))

    options = RunOptions(runs=arguments.runs, accelerator="cpu")
    full = tune(configure, SearchOptions(prune=False), options)
    scores = {candidate.loss.title: candidate.mean for candidate in full.candidates}
    print(f"folds {seed}: {full.winner.loss.title}", flush=True)
    pruned = {}
    for threshold in THRESHOLDS:
        found = tune(configure, SearchOptions(prune_threshold=threshold), options)
        pruned[str(threshold)] = outcome(found, full, scores)
    return {"full": outcome(full, full, scores), "pruned": pruned, "scores": scores}


def outcome(found: TuneResult, full: TuneResult, scores: dict[str, float]) -> Result:
    title = found.winner.loss.title
    return {
        "winner": title,
        "same": title == full.winner.loss.title,
        "cost": found.runs / full.runs,
        "score_lost": scores[full.winner.loss.title] - scores[title],
        "test_balanced_accuracy": found.test["balanced_accuracy"],
    }


def summary(name: str, searches: list[Result]) -> Result:
    chosen = [search["pruned"][name] for search in searches]
    return {
        "same": sum(each["same"] for each in chosen),
        "cost": statistics.mean(each["cost"] for each in chosen),
        "score_lost": statistics.mean(each["score_lost"] for each in chosen),
        "test_balanced_accuracy": statistics.mean(each["test_balanced_accuracy"] for each in chosen),
    }


def best(search: Result, weighted: bool) -> float:
    """The best score of the losses with or without weights."""
    plain = {loss.title for loss in losses(betas=(None,))}
    return max(score for title, score in search["scores"].items() if (title not in plain) == weighted)


def report(results: Result) -> str:
    protocol, count = results["protocol"], len(results["searches"])
    full = statistics.mean(search["full"]["test_balanced_accuracy"] for search in results["searches"])
    lines = [
        "# Tuning with pruning",
        "",
        described(results["settings"]),
        "",
        f"Digits at imbalance {protocol['imbalance']:g}, ResNet-8, {protocol['epochs']} epochs, batches of 32;",
        f"25 losses, {protocol['folds']} folds, {count} ways to cut them.",
        "",
        "| threshold | picks the grid's winner | folds trained | score lost | balanced accuracy on the test images |",
        "|---|---|---|---|---|",
        f"| no pruning | {count} of {count} | 100% | 0 | {full:.1%} |",
    ]
    for name, row in results["summary"].items():
        lines.append(
            f"| {name} | {row['same']} of {count} | {row['cost']:.0%} | {100 * row['score_lost']:.2f} points | "
            f"{row['test_balanced_accuracy']:.1%} |"
        )
    lines += ["", "Score: balanced accuracy over the folds, of the full grid."]
    ahead = sorted(100 * (best(search, weighted=True) - best(search, weighted=False)) for search in results["searches"])
    lines += [
        "",
        f"The best class-balanced loss was {ahead[0]:.1f} to {ahead[-1]:.1f} points ahead of the best plain one "
        f"(mean {statistics.mean(ahead):.1f}).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
