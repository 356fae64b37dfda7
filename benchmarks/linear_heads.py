"""Heads of many classes, fused with their loss and not: ``python -m benchmarks.linear_heads``.

Forward and backward of features (512, 128), weight (C, 128) and bias (C). All implementations of a case take turns.
Memory with a million classes is that of a process which does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import circumstances, described, interleaved_times, peak_memory
from benchmarks.training import PEAK
from longtail import functional

SAMPLES, WIDTH = 512, 128
LOSSES = {
    "softmax_cross_entropy": "softmax",
    "logit_adjusted_cross_entropy": "logit-adjusted",
    "softmax_focal_loss": "softmax focal",
    "sigmoid_cross_entropy": "sigmoid",
    "focal_loss": "focal",
}
PYTORCH, CHUNKED = "F.linear + F.cross_entropy", "F.linear_cross_entropy(options=…)"
SIZES = [1000, 4000, 16_000, 100_000]
MANY = 1_000_000
# From how many classes on fusing pays, for batches and features of networks: (samples, features).
LAYERS = [(128, 128), (512, 128), (128, 1280), (512, 1280)]
LAYER_SIZES = [1000, 8000, 30_000, 100_000]
LAYER_LOSSES = ("softmax_cross_entropy", "focal_loss")
LARGEST_LAYER = 512 * 1280 * 30_000

Result = dict[str, Any]

# Prints the most memory beyond interpreter, libraries, features, weight and its gradient, in MB.
STEP = f"""{PEAK}
import sys, torch
from benchmarks.linear_heads import Head
head = Head(int(sys.argv[2]))
head.weight.grad = torch.zeros_like(head.weight)
before = peak()
head.weight.grad = None
head.fused(sys.argv[1])
print(peak() - before)
"""


class Head:
    """Features, a last layer of many classes and a Zipf-distributed target."""

    def __init__(self, classes: int, samples: int = SAMPLES, width: int = WIDTH) -> None:
        random = torch.Generator().manual_seed(0)
        self.classes = classes
        self.features = torch.randn(samples, width, generator=random, requires_grad=True)
        self.weight = torch.randn(classes, width, generator=random).mul_(0.05).requires_grad_()
        self.bias = torch.zeros(classes, requires_grad=True)
        self.counts = (5000 / torch.arange(1, classes + 1)).clamp(min=1).round()
        self.target = torch.multinomial(self.counts, samples, True, generator=random)
        self.class_weight = (1 / self.counts) * classes / (1 / self.counts).sum()

    def options(self, loss: str) -> dict[str, Any]:
        return {"counts": self.counts} if loss == "logit_adjusted_cross_entropy" else {}

    def drop_gradients(self) -> None:
        self.features.grad = self.weight.grad = self.bias.grad = None

    def fused(self, loss: str) -> Tensor:
        call = getattr(functional, f"linear_{loss}")
        options = {"bias": self.bias} | self.options(loss)
        value: Tensor = call(self.features, self.weight, self.target, self.class_weight, **options)
        value.backward()
        return value.detach()

    def unfused(self, loss: str) -> Tensor:
        logits = F.linear(self.features, self.weight, self.bias)
        value: Tensor = getattr(functional, loss)(logits, self.target, self.class_weight, **self.options(loss))
        value.backward()
        return value.detach()

    def pytorch(self) -> Tensor:
        logits = F.linear(self.features, self.weight, self.bias)
        value = F.cross_entropy(logits, self.target, self.class_weight)
        value.backward()
        return value.detach()

    def chunked(self) -> Tensor:
        options = {"options": nn.LinearCrossEntropyOptions(), "linear_bias": self.bias, "weight": self.class_weight}
        value = F.linear_cross_entropy(self.features, self.weight, self.target, **options)
        value.backward()
        return value.detach()


def main() -> None:
    """Measure, then write ``linear_heads.json`` and ``linear_heads.md``."""
    parser = argparse.ArgumentParser(description="Speed and memory of heads of many classes.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder of the record and the table")
    parser.add_argument("--quick", action="store_true", help="few classes and rounds, to try it out")
    parser.add_argument("--layers", action="store_true", help="only where fusing pays; keep the rest of the record")
    options = parser.parse_args()
    sizes, many = (SIZES[:1], 20_000) if options.quick else (SIZES, MANY)
    settings = circumstances() | {"samples": SAMPLES, "features": WIDTH}
    settings["instructions"] = torch.backends.cpu.get_cpu_capability()
    record = options.output / "linear_heads.json"
    if options.layers:
        results: Result = json.loads(record.read_text())
    else:
        results = {"settings": settings, "cases": []}
        for classes in sizes:
            print(f"measuring {classes} classes", file=sys.stderr)
            results["cases"].append(measure(classes, seconds=1.0 if options.quick else 4.0, least=3))
        results["many"] = {"classes": many, "megabytes": {loss: megabytes(loss, many) for loss in LOSSES}}
    results["layers"] = [
        layer
        for samples, width in (LAYERS[:1] if options.quick else LAYERS)
        for layer in measure_layer(samples, width, sizes[:1] if options.quick else LAYER_SIZES)
    ]
    results["layers_measured"] = settings["date"]
    text = report(results)
    options.output.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    (options.output / "linear_heads.md").write_text(text)
    print(text, end="")


def measure(classes: int, seconds: float, least: int) -> Result:
    """Time and memory of all implementations, and the values, which must agree."""
    head = Head(classes)
    calls: dict[str, Callable[[], Tensor]] = {PYTORCH: head.pytorch, CHUNKED: head.chunked}
    for loss in LOSSES:
        calls |= {f"{loss}, unfused": partial(head.unfused, loss), f"{loss}, fused": partial(head.fused, loss)}
    rows: dict[str, Result] = {}
    for name, call in calls.items():
        head.drop_gradients()
        rows[name] = {"loss": call().item()}
        head.drop_gradients()
        rows[name]["peak_megabytes"] = peak_memory(call) / 2**20
    times = interleaved_times(calls, head.drop_gradients, seconds, least)
    for name, row in rows.items():
        row |= {"median_ms": statistics.median(times[name]) * 1e3, "minimum_ms": min(times[name]) * 1e3}
    return {"classes": classes, "rounds": len(times[PYTORCH]), "implementations": rows}


def measure_layer(samples: int, width: int, sizes: list[int]) -> list[Result]:
    """Time and memory of fused layers over those of layers that are not, for each number of classes."""
    found = []
    for classes in sizes:
        if samples * width * classes > LARGEST_LAYER:
            continue
        print(f"measuring {samples} x {width} features, {classes} classes", file=sys.stderr)
        head = Head(classes, samples, width)
        ways = {"fused": head.fused, "unfused": head.unfused}
        calls = {(loss, way): partial(call, loss) for loss in LAYER_LOSSES for way, call in ways.items()}
        peaks = {}
        for key, call in calls.items():
            head.drop_gradients()
            call()
            head.drop_gradients()
            peaks[key] = peak_memory(call)
        times = interleaved_times({"/".join(key): call for key, call in calls.items()}, head.drop_gradients, 1.0, 3)
        ratios = {
            loss: {
                "time": min(times[f"{loss}/fused"]) / min(times[f"{loss}/unfused"]),
                "memory": peaks[loss, "fused"] / peaks[loss, "unfused"],
            }
            for loss in LAYER_LOSSES
        }
        found.append({"samples": samples, "features": width, "classes": classes, "ratios": ratios})
    return found


def megabytes(loss: str, classes: int) -> float:
    """The most memory of a process that takes one step, beyond weight and gradient."""
    print(f"measuring the memory of {loss} with {classes} classes", file=sys.stderr)
    command = [sys.executable, "-c", STEP, loss, str(classes)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def report(results: Result) -> str:
    """The results for people."""
    cases = results["cases"]
    header = ["| | " + " | ".join(f"{case['classes']:,} classes" for case in cases) + " |"]
    header.append("|---|" + "---:|" * len(cases))
    parts = [
        "# Heads of many classes\n",
        f"Forward + backward of features ({SAMPLES}, {WIDTH}), float32, on {described(results['settings'])}, "
        f"{results['settings']['instructions']}. Fused is `longtail.functional.linear_*`, unfused `F.linear` and the "
        "loss.\n",
        "Fused against unfused, ratio of minima (of medians):\n",
        *header,
        *(line(title, cases, partial(ratio, f"{loss}, fused", f"{loss}, unfused")) for loss, title in LOSSES.items()),
        line(f"softmax, against `{CHUNKED}`", cases, partial(ratio, "softmax_cross_entropy, fused", CHUNKED)),
        "\nMinimum, ms:\n",
        *header,
        *(line(f"`{name}`" if "F." in name else name, cases, partial(milliseconds, name)) for name in names(cases)),
        "\nPeak memory of a step beyond features and weights, the gradients included, MB:\n",
        *header,
        *(line(f"`{name}`" if "F." in name else name, cases, partial(memory, name)) for name in names(cases)),
    ]
    parts += [
        "\nFused against unfused, ratio of minima (of peak memory), by samples × features, "
        f"{results['layers_measured']}:\n",
        "| | " + " | ".join(f"{classes:,} classes" for classes in LAYER_SIZES) + " |",
        "|---|" + "---:|" * len(LAYER_SIZES),
    ]
    for samples, width in dict.fromkeys((layer["samples"], layer["features"]) for layer in results["layers"]):
        layers = {
            each["classes"]: each
            for each in results["layers"]
            if (each["samples"], each["features"]) == (samples, width)
        }
        for loss in LAYER_LOSSES:
            cells = [layers[size]["ratios"][loss] if size in layers else None for size in LAYER_SIZES]
            shown = " | ".join("—" if cell is None else f"{cell['time']:.2f} ({cell['memory']:.2f})" for cell in cells)
            parts.append(f"| {LOSSES[loss]}, {samples} × {width} | {shown} |")
    many = results["many"]
    where = "in a process that does nothing else, beyond the weight and its gradient"
    parts.append(f"\nWith {many['classes']:,} classes, {where}, MB:\n")
    parts += ["| " + " | ".join(LOSSES.values()) + " |", "|" + "---:|" * len(LOSSES)]
    parts.append("| " + " | ".join(f"{many['megabytes'][loss]:.0f}" for loss in LOSSES) + " |")
    return "\n".join(parts) + "\n"


def names(cases: list[Result]) -> list[str]:
    return list(cases[0]["implementations"])


def line(title: str, cases: list[Result], cell: Callable[[Result], str]) -> str:
    return f"| {title} | " + " | ".join(cell(case["implementations"]) for case in cases) + " |"


def ratio(name: str, other: str, rows: Result) -> str:
    minima, medians = (rows[name][key] / rows[other][key] for key in ("minimum_ms", "median_ms"))
    return f"{minima:.2f} ({medians:.2f})"


def milliseconds(name: str, rows: Result) -> str:
    return f"{rows[name]['minimum_ms']:.3g}"


def memory(name: str, rows: Result) -> str:
    return f"{rows[name]['peak_megabytes']:.0f}"


if __name__ == "__main__":
    main()
