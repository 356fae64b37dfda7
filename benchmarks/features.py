"""Frozen features beside a bare loop, heads, and from a folder to the report: ``python -m benchmarks.features``."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from benchmarks.measure import circumstances, described
from longtail.lab.config import DataConfig, RunOptions, with_fields
from longtail.lab.data.loaders import available_cores
from longtail.lab.data.views import ImageViews
from longtail.lab.models.features import BATCH_SIZE, Extractor, clear_features, compute_features
from longtail.lab.recipes import linear_probe
from longtail.lab.training import RunFolder, open_data, train
from longtail.lab.training.build import build_network
from longtail.lab.training.frozen import FrozenBackbone

Result = dict[str, Any]

PRECISIONS = ("32-true", "bf16-mixed")


PARTS = ("features", "whole", "tune", "head")


def main() -> None:
    """Measure, then write ``features.json`` and ``features.md``."""
    parser = argparse.ArgumentParser(description="Frozen features, heads, and from a folder to the report.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder of features.json and .md")
    parser.add_argument("--photos", type=Path, help="a folder of photographs; by default, 8,677 images are generated")
    parser.add_argument("--quick", action="store_true", help="short, to try it out")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="parts to measure; all by default")
    parser.add_argument("--folder", type=Path, help="where to keep cache and runs; by default, they are deleted")
    parser.add_argument(
        "--window",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="interrupt a command after so long; the same benchmark in the same --folder resumes it, and adds up",
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = (options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        photos = options.photos or folder / "photos"
        if not photos.exists():
            generated(photos, *((4, 20) if options.quick else (101, 8677)))
        file = options.output / "features.json"
        results: Result = json.loads(file.read_text()) if file.exists() and options.only != PARTS else {}
        results |= {
            "settings": circumstances("timm", "pillow"),
            "photos": photos.name if options.photos else "generated",
        }
        for part in options.only:
            if part == "features":
                results[part] = features(photos, 64 if options.quick else 1024, 1 if options.quick else 2)
            elif part == "head":
                results[part] = head(photos, folder, 1 if options.quick else 3)
            else:
                results[part] = Commands(folder, options.window).measure(part, photos, options.quick)
            options.output.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
            (options.output / "features.md").write_text(report(results))
    print(report(results), end="")


def generated(folder: Path, classes: int, images: int) -> Path:
    """JPEGs of the size of photographs, of which each class has a colour and a texture, long-tailed."""
    draw = np.random.default_rng(0)
    sizes = np.maximum(6, images * np.exp(-np.arange(classes) / (classes / 4)) * 4 / classes).astype(int)
    rows, columns = np.mgrid[0:200, 0:300]
    for label, size in enumerate(sizes):
        (folder / f"{label:03}").mkdir(parents=True)
        for number in range(size):
            waves = np.sin((rows * np.cos(label) + columns * np.sin(label)) / (3 + label % 7) + draw.uniform(0, 6))
            colour = draw.normal([40 * (label % 5), 25 * (label % 9), 15 * (label % 13)], 20)
            pixels = 90 + colour + 60 * waves[..., None] + draw.normal(0, 25, (200, 300, 1))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{label:03}" / f"{number}.jpg")
    return folder


def features(photos: Path, images: int, repeats: int) -> Result:
    """Images per second of features beside a bare loop, the best of interleaved repetitions."""
    found: Result = {"images": images}
    for precision in PRECISIONS:
        config = with_fields(linear_probe(DataConfig(name=str(photos))), {"precision": precision})
        dataset, _, config = open_data(config)
        views = ImageViews(dataset, dataset.train.subset(np.arange(len(dataset.train))[:images]))
        extract, requests = Extractor(build_network(config, dataset), views, precision), views.requests()
        cores, speeds = available_cores(), {"bare": 0.0, "cached": 0.0}
        for _ in range(repeats):
            began = time.perf_counter()
            _bare(extract, views, requests, cores)
            speeds["bare"] = max(speeds["bare"], len(requests) / (time.perf_counter() - began))
            clear_features()
            backbone = FrozenBackbone(config, dataset, extract.network)
            began = time.perf_counter()
            backbone.compute([(views.images, 0)])
            speeds["cached"] = max(speeds["cached"], len(requests) / (time.perf_counter() - began))
            _forget()
        began = time.perf_counter()
        for _ in compute_features(extract, views, requests[: images // 16], workers=0):
            pass
        speeds["one_process"] = (images // 16) / (time.perf_counter() - began)
        found[precision] = speeds | {"ratio": speeds["cached"] / speeds["bare"]}
    return found


def _forget() -> None:
    from longtail.lab.training import frozen

    frozen._stores.clear()


def _bare(extract: Extractor, views: ImageViews, requests: Sequence[Any], processes: int) -> None:
    """The shortest loop that does the work: each process reads its share and computes, on one thread."""
    context = multiprocessing.get_context("fork")
    started = [
        context.Process(target=_loop, args=(extract, views, requests[number::processes])) for number in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0


def _loop(extract: Extractor, views: ImageViews, requests: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    for first in range(0, len(requests), BATCH_SIZE):
        extract(torch.stack([views[request] for request in requests[first : first + BATCH_SIZE]]))


def head(photos: Path, folder: Path, repeats: int) -> Result:
    """Seconds of a linear probe of 30 epochs beside a bare loop on the same features, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dataset, _, config = open_data(linear_probe(DataConfig(name=str(photos))))
    backbone = FrozenBackbone(config, dataset)
    backbone.compute()
    rows, labels = backbone.features(dataset.train)[:, 0], dataset.train.labels
    seconds = {"bare": float("inf"), "train": float("inf")}
    for seed in range(repeats):
        began = time.perf_counter()
        _bare_head(rows, labels, len(dataset.classes))
        seconds["bare"] = min(seconds["bare"], time.perf_counter() - began)
        run = with_fields(config, {"seed": seed + 1})
        began = time.perf_counter()
        path = train(run, RunOptions(runs=folder / "heads", accelerator="cpu"))
        whole_run = time.perf_counter() - began
        result = RunFolder(path).finished_result()
        if result["seconds"] < seconds["train"]:
            seconds |= {"train": result["seconds"], "with_start_and_end": whole_run}
    torch.set_num_threads(threads)
    return {"images": len(rows), "size": rows.shape[1], "classes": len(dataset.classes), **seconds}


def _bare_head(rows: torch.Tensor, labels: torch.Tensor, classes: int, epochs: int = 30) -> None:
    layer = nn.Linear(rows.shape[1], classes)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for chosen in torch.randperm(len(rows)).split(128):
            F.cross_entropy(layer(rows[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()


class Commands:
    """Wall time of commands, which may be interrupted and resumed: the time of all attempts counts.

    Args:
        folder: of their runs.
        window: seconds after which a command is interrupted.
    """

    def __init__(self, folder: Path, window: float) -> None:
        self.folder, self.ends = folder, time.monotonic() + window

    def measure(self, part: str, photos: Path, quick: bool) -> Result:
        """From a folder to the report with nothing cached, or a search of all candidates from the cache."""
        small = ["--losses", "softmax", "logit_adjusted", "--betas", "0.9", "--folds", "2"] if quick else []
        path = str(photos.absolute())
        if part == "whole":
            if not (self.folder / "whole-tune.json").exists():
                clear_features()
            found = {"tune": self.run("whole-tune", "tune", "--data", path, "--runs", "runs", *small)}
            found["report"] = self.run("whole-report", "report", "runs", "-o", "report.html")
            attempts = sum(each["attempts"] for each in found.values())
            seconds = sum(each["seconds"] for each in found.values())
            images = len(list(photos.glob("*/*")))
            return {"images": images, "seconds": seconds, "attempts": attempts, **found}
        self.run("features", "train", "--data", path, "--runs", "first")  # fills the cache
        found = {}
        for name, words in {"default": [], "without_pruning": ["--no-prune"]}.items():
            runs = f"tune-{name}"
            timed = self.run(runs, "tune", "--data", path, "--runs", runs, *words, *small)
            (file,) = (self.folder / runs / "tune").glob("*/result.json")
            result = json.loads(file.read_text())
            found[name] = timed | {
                "runs": result["runs"],
                "losses": len(result["candidates"]),
                "folds": result["folds"],
            }
        return found

    def run(self, name: str, *words: str) -> Result:
        """Seconds of a command, and of how many attempts."""
        file = self.folder / f"{name}.json"
        timed = json.loads(file.read_text()) if file.exists() else {"seconds": 0.0, "attempts": 0, "complete": False}
        if timed["complete"]:
            return timed
        began, command = time.perf_counter(), [sys.executable, "-m", "longtail.lab", *words]
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        left = self.ends - time.monotonic()
        try:
            errors = process.communicate(timeout=None if left == math.inf else max(0, left))[1]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            errors = process.communicate()[1]
        timed["seconds"] += time.perf_counter() - began
        timed |= {"attempts": timed["attempts"] + 1, "complete": process.returncode == 0}
        if process.returncode not in (0, 130):
            raise SystemExit(errors.decode())
        file.write_text(json.dumps(timed))
        if not timed["complete"]:
            raise SystemExit(f"{name}: interrupted after {timed['seconds']:.0f} s; run the same command to resume")
        return timed


def report(results: Result) -> str:
    """What was measured, for people."""
    lines = ["# Frozen features", "", described(results["settings"])]
    if speeds := results.get("features"):
        lines += [
            "",
            f"Features of EfficientNet-Lite0, images per second over {speeds['images']:,} photographs of 224 pixels,",
            "channels last. The bare loop reads and computes in one process for each core and keeps nothing; the lab",
            "does the same in processes that keep freed memory for the next batch, and writes the features.",
            "",
            "| precision | bare loop | cached | ratio | one process, all threads |",
            "|---|---:|---:|---:|---:|",
        ]
        for name in PRECISIONS:
            bare, cached, ratio, one = (speeds[name][each] for each in ("bare", "cached", "ratio", "one_process"))
            lines.append(f"| {name} | {bare:.0f} | {cached:.0f} | {ratio:.2f} | {one:.0f} |")
    if layer := results.get("head"):
        lines += [
            "",
            f"A linear probe, 30 epochs on {layer['images']:,} × {layer['size']:,} features and {layer['classes']} "
            "classes, on one thread:",
            f"{layer['train']:.1f} s with a test after each epoch ({layer['with_start_and_end']:.1f} s with start and "
            f"end); a bare loop takes {layer['bare']:.1f} s.",
        ]
    if search := results.get("tune"):
        default, whole_grid = search["default"], search["without_pruning"]
        lines += [
            "",
            f"`longtail tune` of {default['losses']} losses × {default['folds']} folds from the cache: "
            f"{_timed(default)} for the {default['runs']} runs that",
            f"pruning, the default, leaves; all {whole_grid['runs']} (`--no-prune`) take {_timed(whole_grid)}.",
        ]
    if whole := results.get("whole"):
        lines += [
            "",
            f"From a folder of {whole['images']:,} photographs to the report, nothing cached (`longtail tune`,",
            f"`longtail report`): {_timed(whole)}.",
        ]
    return "\n".join(lines) + "\n"


def _timed(timed: Result) -> str:
    attempts = timed["attempts"] - ("report" in timed)
    times = "once" if attempts == 2 else f"{attempts - 1} times"
    resumed = f", interrupted and resumed {times}, which counts" if attempts > 1 else ""
    return f"{timed['seconds']:.0f} s{resumed}"


if __name__ == "__main__":
    main()
