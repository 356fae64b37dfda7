"""What a sweep costs beyond its trainings: ``python -m benchmarks.experiments``."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import circumstances, described
from benchmarks.training import write_cifar10
from longtail.lab.config import DataConfig, LossConfig, RunConfig, RunOptions
from longtail.lab.experiments import ExecutorOptions, heatmap, load_results, run_sweep
from longtail.lab.experiments.aggregate import deltas, summarize_results
from longtail.lab.experiments.executors import LocalExecutor
from longtail.lab.recipes import cifar
from longtail.lab.training import RunFolder, train

Result = dict[str, Any]


def main() -> None:
    """Measure, then write ``experiments.json`` and ``experiments.md``."""
    parser = argparse.ArgumentParser(description="What a sweep costs beyond its trainings.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder of experiments.json and .md")
    parser.add_argument("--quick", action="store_true", help="short, to try it out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results: Result = {
            "settings": circumstances("pandas"),
            "overhead": overhead(folder, 1 if options.quick else 5),
            "many": many(folder, 1 if options.quick else 5),
            "threads": threads(folder, 1 if options.quick else 4),
        }
    text = report(results)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "experiments.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    (options.output / "experiments.md").write_text(text)
    print(text, end="")


def small(seed: int) -> RunConfig:
    return replace(cifar(epochs=1), model="resnet8", seed=seed)


def overhead(folder: Path, repeats: int) -> Result:
    """Seconds of a run beyond its epochs: what more runs add to a sweep, so that its start does not count."""
    few, more = 4, 24
    beyond = []
    for number in range(repeats):
        seconds = {}
        for count in (few, more):
            runs = folder / f"overhead-{number}-{count}"
            configs = [small(seed) for seed in range(count)]
            began = time.perf_counter()
            run_sweep(configs, RunOptions(runs=runs, accelerator="cpu"))
            seconds[count] = time.perf_counter() - began
            trained = [RunFolder(runs / config.run_id).result() or {} for config in configs]
        with LocalExecutor(ExecutorOptions(), RunOptions()) as executor:
            slots = executor.slots
        each = (seconds[more] - seconds[few]) / (more - few) * slots
        beyond.append(each - statistics.median(result["seconds"] for result in trained))
    return {"seconds_beyond_epochs": beyond, "median": statistics.median(beyond)}


def many(folder: Path, repeats: int) -> Result:
    """Seconds for 375 runs that are complete: listed, skipped, and aggregated."""
    configs = [config for dataset in ("cifar10", "cifar20", "cifar100") for config in heatmap(dataset)]
    runs = folder / "many"
    result = RunFolder(train(small(0), RunOptions(runs=folder / "one", accelerator="cpu"))).result() or {}
    result["final"]["recall"] = [0.5] * 100
    for config in configs:
        run = RunFolder(runs / config.run_id)
        run.path.mkdir(parents=True)
        run.config_file.write_text(config.to_json())
        run.result_file.write_text(json.dumps(result | {"run_id": config.run_id}))

    def aggregate() -> None:
        frame = load_results(runs)
        assert (frame["status"] == "complete").sum() == len(configs)
        summarize_results(frame)
        deltas(frame)

    calls: dict[str, Callable[[], object]] = {
        "listed": lambda: [
            config.run_id for dataset in ("cifar10", "cifar20", "cifar100") for config in heatmap(dataset)
        ],
        "skipped": lambda: run_sweep(configs, RunOptions(runs=runs)),
        "aggregated": aggregate,
        "longtail results, the whole command": lambda: subprocess.run(
            [sys.executable, "-m", "longtail.lab", "results", str(runs)], check=True, capture_output=True
        ),
        "import torch": lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def threads(folder: Path, repeats: int) -> Result:
    """Images per second of all runs together, by the threads of a run."""
    write_cifar10(folder, 2_000)
    speeds: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        for model in ("resnet8", "resnet32"):
            for cpus in (1, 2):
                config = replace(cifar(DataConfig(data="cifar10"), LossConfig()), model=model)
                options = RunOptions(data_dir=folder, accelerator="cpu")
                with LocalExecutor(ExecutorOptions(cpus_per_run=cpus), options) as executor:
                    for _ in range(executor.slots):
                        executor.submit("measure", config)
                    finished: list[Any] = []
                    while len(finished) < executor.slots:
                        finished += executor.wait(60.0)
                speed = sum(outcome.value["train"] for _, _, outcome in finished)
                speeds.setdefault(model, {}).setdefault(str(cpus), []).append(speed)
    return {
        model: {cpus: statistics.median(values) for cpus, values in by_cpus.items()}
        for model, by_cpus in speeds.items()
    }


def report(results: Result) -> str:
    lines = [
        "# What a sweep costs beyond its trainings",
        "",
        described(results["settings"]),
        "",
        f"A run costs {results['overhead']['median']:.2f} s beyond its epochs: data, network, checkpoints, result.",
        "",
        "| 375 complete runs | seconds |",
        "|---|---|",
        *(f"| {name} | {seconds:.2f} |" for name, seconds in results["many"].items()),
        "",
        "Training images per second of all runs together, on as many cores:",
        "",
        "| network | a thread a run | two threads a run | ratio |",
        "|---|---|---|---|",
    ]
    for model, speeds in results["threads"].items():
        ratio = speeds["1"] / speeds["2"]
        lines.append(f"| {model} | {speeds['1']:.0f} | {speeds['2']:.0f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
