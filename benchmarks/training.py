"""Speed, start and memory of ``train``: ``python -m benchmarks.training``.

The images per second of a real run, beside a bare loop that repeats forward, backward and step on one batch, and beside
the loop that most scripts have: the network as it is usually written, in PyTorch's default layout, fed image by image
with Pillow.
"""

from __future__ import annotations

import argparse
import functools
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

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data import BATCH, PlainCifar, plain_epochs
from benchmarks.measure import circumstances, described, interleaved_times
from longtail.lab.config import DataConfig, LossConfig, RunConfig, RunOptions
from longtail.lab.data import SubsetOptions
from longtail.lab.models import build_model
from longtail.lab.models.cifar_resnet import Block
from longtail.lab.recipes import cifar
from longtail.lab.training import RunFolder, train

Result = dict[str, Any]
TEST = 100  # test images: few, since a run ends with a test

# Not getrusage: what it says of a process is at least what the process that started it had.
PEAK = """
import re
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
"""

# Prints when the first step was over, and the most memory the process had; there is a checkpoint after each step.
FIRST_STEP = f"""{PEAK}
import os, sys, time
from longtail.lab.training.checkpoint import State
count = State.add
def add(self, loss):
    count(self, loss)
    steps.append(loss)
    if len(steps) == int(sys.argv[1]):
        print(time.time(), peak(), flush=True)
        os._exit(0)
steps = []
State.add = add
from longtail.lab.cli import main
main(sys.argv[2:])
"""

BARE = f"""{PEAK}
import sys, torch
import longtail.lab.training
from torch.nn import functional as F
from longtail.lab.models import build_model
from longtail.lab.models.cifar_resnet import Block
network = build_model("resnet32", 10).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
images = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
labels = torch.arange(128) % 10
for _ in range(int(sys.argv[1])):
    F.cross_entropy(network(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
print(peak())
"""


def main() -> None:
    """Measure, then write ``training.json`` and ``training.md``."""
    parser = argparse.ArgumentParser(description="Speed, start and memory of training.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder of training.json and .md")
    parser.add_argument("--quick", action="store_true", help="short, to try it out")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="a compiled network, too"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_cifar10(Path(folder), 640 if options.quick else 50_000)
        results: Result = {
            "settings": circumstances("lightning-fabric"),
            "speed": speed(Path(folder), options.quick, options.compile and not options.quick),
            "start": start(Path(folder), options.quick),
        }
    text = report(results)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "training.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    (options.output / "training.md").write_text(text)
    print(text, end="")


def speed(folder: Path, quick: bool, compiled: bool) -> Result:
    """Seconds of one step of 128 images, ResNet-32."""
    steps = 2 if quick else 8  # short turns, many of them: a shared machine drifts
    runs = iter(range(10**6))
    times: dict[str, list[float]] = {}

    def real() -> None:
        config = cifar_config(seed=next(runs), images=64 * steps)
        line = RunFolder(train(config, RunOptions(runs=folder / "runs", data_dir=folder, accelerator="cpu"))).metrics()[
            0
        ]
        times.setdefault("train", []).append(BATCH / line["images_per_second"])

    plain = PlainCifar(torch.randint(0, 256, (BATCH * steps, 3, 32, 32), dtype=torch.uint8))
    calls: dict[str, Callable[[], None]] = {
        "a bare loop": bare_loop(steps, torch.channels_last),
        "a bare loop, default layout": bare_loop(steps, torch.contiguous_format),
        "the usual script: Pillow, default layout": pillow_loop(plain),
    }
    if compiled:
        calls["a bare loop, compiled"] = bare_loop(steps, torch.channels_last, compiled=True)
    for call in calls.values():
        call()
    measured = interleaved_times({"train": real} | calls, lambda: None, 0, 1 if quick else 20)
    for name in calls:
        times[name] = [seconds / steps for seconds in measured[name]]
    rows = {
        name: {"median_ms": statistics.median(values) * 1e3, "minimum_ms": min(values) * 1e3}
        for name, values in times.items()
    }
    for row in rows.values():
        row["images_per_second"] = BATCH / row["median_ms"] * 1e3
        for kind in ("median", "minimum"):
            row[f"speed_of_{kind}s"] = rows["a bare loop"][f"{kind}_ms"] / row[f"{kind}_ms"]
    return rows


def cifar_config(seed: int, images: int) -> RunConfig:
    """One epoch of 2 × ``images`` training images of CIFAR-10, 10 classes."""
    subset = SubsetOptions(max_count=max(1, images * 2 // 10))
    config = cifar(DataConfig(name="cifar10", subset=subset), LossConfig(), 1)
    return replace(config, seed=seed)


def bare_loop(steps: int, layout: torch.memory_format, compiled: bool = False) -> Callable[[], None]:
    network: Any = build_model("resnet32", 10).to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=layout)
    labels = torch.arange(BATCH) % 10
    model = torch.compile(network) if compiled else network

    def call() -> None:
        for _ in range(steps):
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def usual_block(block: Block, maps: Tensor) -> Tensor:
    """As scripts write it: a new tensor for every result."""
    shortcut = maps
    if block.new_channels:
        half = block.new_channels // 2
        shortcut = F.pad(maps[:, :, ::2, ::2], (0, 0, 0, 0, half, block.new_channels - half))
    inner = F.relu(block.bn1(block.conv1(maps)))
    return F.relu(block.bn2(block.conv2(inner)) + shortcut)


def pillow_loop(dataset: PlainCifar) -> Callable[[], None]:
    network = build_model("resnet32", 10)
    for module in network.modules():
        if isinstance(module, Block):
            module.forward = functools.partial(usual_block, module)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    epoch = plain_epochs(dataset, 0)

    def call() -> None:
        for images, labels in epoch(0):
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def start(folder: Path, quick: bool) -> Result:
    """Seconds from the start of the process to the first step, new and resumed, and memory after some steps."""
    steps = "2" if quick else "8"
    command = ["train", "--data", "cifar10", "--set", f"data_dir={folder}", "--set", "accelerator=cpu"]
    command += ["--epochs", "2", "--set", "checkpoint_minutes=1e-9"]
    rounds: dict[str, list[float]] = {"new": [], "resumed": []}
    memory: dict[str, list[float]] = {"train": [], "a bare loop": []}
    for number in range(1 if quick else 5):
        arguments = [*command, "--runs", str(folder / f"start-{number}")]
        rounds["new"].append(first_step("1", arguments)[0])
        memory["train"].append(first_step(steps, arguments)[1])  # resumes, and leaves a checkpoint
        rounds["resumed"].append(first_step("1", arguments)[0])
        bare = subprocess.run([sys.executable, "-c", BARE, steps], capture_output=True, text=True, check=True)
        memory["a bare loop"].append(float(bare.stdout))
    return {
        "seconds": {name: statistics.median(values) for name, values in rounds.items()},
        "megabytes": {name: statistics.median(values) for name, values in memory.items()}
        | {"data set": (50_000 + TEST) * 3072 / 2**20},
    }


def first_step(steps: str, arguments: list[str]) -> tuple[float, float]:
    began = time.time()
    finished = subprocess.run(
        [sys.executable, "-c", FIRST_STEP, steps, *arguments], capture_output=True, text=True, check=True
    )
    ended, megabytes = map(float, finished.stdout.split())
    return ended - began, megabytes


def write_cifar10(folder: Path, count: int) -> None:
    target = folder / "cifar-10-batches-bin"
    target.mkdir()
    generator = np.random.default_rng(0)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for name in names:
        size = TEST if name == names[-1] else count // 5
        records = generator.integers(0, 256, (size, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(size) % 10
        (target / name).write_bytes(records.tobytes())
    (target / "batches.meta.txt").write_text("\n".join(f"class {name}" for name in range(10)))


def report(results: Result) -> str:
    """The results for people."""
    seconds, megabytes = results["start"]["seconds"], results["start"]["megabytes"]
    lines = [
        "# Training: speed, start and memory\n",
        f"ResNet-32, batches of {BATCH}, CIFAR-10, on {described(results['settings'])}. Medians; speed is beside the "
        "bare loop, which repeats forward, backward and step on one batch in channels-last layout; that of minima in "
        "brackets.\n",
        "| | ms per step | images/s | speed |\n|---|---:|---:|---:|",
    ]
    for name, row in results["speed"].items():
        ratio = f"{row['speed_of_medians']:.2f}× ({row['speed_of_minimums']:.2f}×)"
        lines.append(f"| {name} | {row['median_ms']:.0f} | {row['images_per_second']:.0f} | {ratio} |")
    lines += [
        f"\nFrom the start of the process to the end of the first step: {seconds['new']:.1f} s; of a run that resumes "
        f"from a checkpoint: {seconds['resumed']:.1f} s.",
        f"\nMost memory: {megabytes['train']:.0f} MB; the bare loop {megabytes['a bare loop']:.0f} MB, the data set "
        f"{megabytes['data set']:.0f} MB.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
