"""Speed and memory of the losses beside PyTorch's own and the peers': ``python -m benchmarks.losses``.

All implementations of a case take turns, and ratios are to weighted ``F.cross_entropy``. They are measured four times:
with all instructions of the CPU and with AVX2 at most, each on the machine as it is and beside two busy processes. On
an idle machine a minimum says what a call costs; beside others a median says what it takes. Shared machines and the
allocator's luck (whether a freed 33 MB buffer is kept or must be mapped and faulted in anew) can shift a median for a
whole run, but hardly a minimum. Beside busy processes all implementations make the same number of calls, in many short
turns, and the median is that of all calls: some wait for a core, and the share of those that do is part of the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import TURN, circumstances, described, interleaved_times, peak_memory
from benchmarks.peers import BASELINE, BETA, GAMMA, IMPLEMENTATIONS, PEERS, Case, Loss

SHAPES = [(128, 10), (128, 100), (1024, 1000), (1024, 8142), (8, 19, 256, 256)]
QUICK_SHAPES = [(128, 10), (1024, 1000)]
DTYPES = [torch.float32, torch.bfloat16]
CAPABILITIES = ["default", "avx2"]
LOADED_REPEATS, LOADED_SECONDS = 3, 6.0

Row = dict[str, Any]
Result = dict[str, Any]


def main() -> None:
    """Measure, then write ``losses.json`` and ``losses.md``."""
    options = parse_arguments()
    if options.part:
        print(json.dumps(measure(options)))
        return
    results: Result = {"settings": circumstances(*PEERS) | {"beta": BETA, "gamma": GAMMA, "baseline": BASELINE}}
    options.output.mkdir(parents=True, exist_ok=True)
    record = options.output / "losses.json"
    results["runs"] = json.loads(record.read_text())["runs"] if options.resume and record.exists() else []
    done = [(run["capability"], run["busy"]) for run in results["runs"]]
    left = [(capability, busy) for capability in CAPABILITIES for busy in (0, 2) if (capability, busy) not in done]
    for capability, busy in left[: options.runs]:
        results["runs"].append({"capability": capability, "busy": busy} | run_part(capability, busy))
        results["runs"].sort(key=lambda run: (CAPABILITIES.index(run["capability"]), run["busy"]))
        record.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    text = report(results)
    (options.output / "losses.md").write_text(text)
    print(text, end="")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed and memory of class-balanced losses.")
    parser.add_argument(
        "--output", type=Path, default=Path("results/bench"), help="folder of losses.json and losses.md"
    )
    parser.add_argument("--quick", action="store_true", help="two shapes and few rounds, to try it out")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="compiled losses, too")
    parser.add_argument("--resume", action="store_true", help="keep the runs that the record in the folder has")
    parser.add_argument("--runs", type=int, help="measure at most so many of the four, and the others with --resume")
    parser.add_argument("--repeats", type=int, help="calls in each turn, with --part; default as many as fill the turn")
    parser.add_argument("--part", choices=["all", "longtail"], help="measure these in this process, print JSON")
    return parser.parse_args()


def run_part(capability: str, busy: int) -> Result:
    """One run in a process of its own, for PyTorch chooses its instructions when it starts."""
    print(f"{capability} instructions, {busy} busy processes", file=sys.stderr)
    command = [sys.executable, "-m", "benchmarks.losses", *sys.argv[1:]]
    command += ["--repeats", str(LOADED_REPEATS)] if busy else []
    command += ["--part", "all" if capability == "default" and not busy else "longtail"]
    if busy or capability != "default":  # to compile takes long beside others, and chooses instructions by itself
        command.append("--no-compile")
    with tempfile.TemporaryDirectory() as cache, busy_processes(busy):
        environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache)
        if capability != "default":
            environment["ATEN_CPU_CAPABILITY"] = capability
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result: Result = json.loads(done.stdout)
    return result


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Processes that take whatever time they get, such as the workers of a data loader."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(options: argparse.Namespace) -> Result:
    """All cases, with the instructions that PyTorch uses in this process."""
    names = [name for name in IMPLEMENTATIONS if options.compile or "compiled" not in name]
    if options.part == "longtail":
        names = [name for name in names if name == BASELINE or name.startswith("longtail")]
    seconds, least = (1.0, 4) if options.quick else (3.0, 12)
    if options.repeats and not options.quick:
        seconds, least = LOADED_SECONDS, 6
    cases = []
    for dtype in DTYPES:
        for shape in QUICK_SHAPES if options.quick else SHAPES:
            print(f"  {' × '.join(map(str, shape))} {name_of(dtype)}", file=sys.stderr)
            cases.append(measure_case(Case(shape, dtype), names, seconds, least, options.repeats))
    return {"used_by_pytorch": torch.backends.cpu.get_cpu_capability(), "cases": cases}


def measure_case(case: Case, names: list[str], seconds: float, least: int, repeats: int | None) -> Result:
    """Time and memory of all implementations for one shape and dtype."""
    rows: dict[str, Row] = {}
    calls: dict[str, Callable[[], None]] = {}
    for name in names:
        try:
            loss = IMPLEMENTATIONS[name](case)
            rows[name] = check(case, loss)
            calls[name] = partial(case.step, loss)
        except Exception as error:  # whatever a peer raises says why it has no number
            rows[name] = {"median_ms": None, "minimum_ms": None, "peak_memory": None, "reason": first_line(error)}
    times = interleaved_times(calls, partial(drop_gradient, case), seconds, least, repeats)
    for name, call in calls.items():
        drop_gradient(case)
        rows[name] |= {
            "median_ms": statistics.median(times[name]) * 1e3,
            "minimum_ms": min(times[name]) * 1e3,
            "peak_memory": peak_memory(call) / case.logits.nbytes,
        }
    for row in rows.values():
        for kind in ("median", "minimum"):
            row[f"ratio_of_{kind}s"] = row[f"{kind}_ms"] and row[f"{kind}_ms"] / rows[BASELINE][f"{kind}_ms"]
    return {
        "shape": list(case.shape),
        "dtype": name_of(case.dtype),
        "times": len(times[BASELINE]),
        "logits_bytes": case.logits.nbytes,
        "implementations": rows,
    }


def check(case: Case, loss: Loss) -> Row:
    """Warm up, and keep the value: a fast loss may be a wrong one."""
    for _ in range(3):
        drop_gradient(case)
        value = loss(case.logits, case.target)
        value.backward()
    gradient = case.logits.grad
    return {"loss": value.item(), "finite_gradient": gradient is not None and bool(gradient.isfinite().all())}


def drop_gradient(case: Case) -> None:
    case.logits.grad = None


def first_line(error: Exception) -> str:
    """What went wrong, without paths: they differ from machine to machine."""
    line = (str(error).strip().splitlines() or [""])[0]
    return re.sub(r"(/[\w.+-]+){2,}", "…", f"{type(error).__name__}: {line}")


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def report(results: Result) -> str:
    """The results for people: tables for each run and dtype, and why a cell is empty."""
    parts = [
        "# Losses: speed and memory\n",
        f"Forward + backward, β = {BETA}, γ = {GAMMA}, on {described(results['settings'])}. "
        f"Ratios are to `{BASELINE}` in the same run. Not all rows are the same function: see `benchmarks/peers.py`. "
        f"In its turn a call is repeated for {TURN * 1e3:g} ms, so small batches are timed with warm caches; once "
        "between other work, calls with much Python code, such as ours, lose more than one fused call does. Beside "
        f"busy processes a turn is {LOADED_REPEATS} calls of each, and the median is that of all calls. Those that are "
        "spread over both cores may wait there for one to become free, which takes a small batch far longer than "
        "the call.\n",
    ]
    for run in results["runs"]:
        kind, load = ("median", "two busy processes beside it") if run["busy"] else ("minimum", "no other load")
        for dtype in map(name_of, DTYPES):
            cases = [case for case in run["cases"] if case["dtype"] == dtype]
            parts += [
                f"## {dtype}, {run['used_by_pytorch']}, {load}\n\n{kind.capitalize()}, ms (ratio):\n",
                table(cases, partial(time_cell, kind)),
            ]
    for dtype in map(name_of, DTYPES):
        cases = [case for case in results["runs"][0]["cases"] if case["dtype"] == dtype]
        parts += [
            f"## Peak memory beyond the logits, in units of the logits, {dtype}\n",
            table(cases, lambda row: f"{row['peak_memory']:.2f}"),
        ]
    notes = remarks(results["runs"][0]["cases"])
    return "\n".join([*parts, "## Remarks\n", *(notes or ["None: every implementation ran every case."])]) + "\n"


def table(cases: list[Result], cell: Callable[[Row], str]) -> str:
    shapes = [" × ".join(map(str, case["shape"])) for case in cases]
    lines = ["| | " + " | ".join(shapes) + " |", "|---|" + "---:|" * len(shapes)]
    for name in cases[0]["implementations"]:
        rows = [case["implementations"][name] for case in cases]
        lines.append(f"| {name} | " + " | ".join("—" if "reason" in row else cell(row) for row in rows) + " |")
    return "\n".join(lines) + "\n"


def time_cell(kind: str, row: Row) -> str:
    return f"{row[f'{kind}_ms']:.3g} ({row[f'ratio_of_{kind}s']:.2f}×)"


def remarks(cases: list[Result]) -> list[str]:
    """Each reason for a missing number or a bad gradient, with the cases that it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        where = f"{' × '.join(map(str, case['shape']))} {case['dtype']}"
        for name, row in case["implementations"].items():
            if "reason" in row:
                found.setdefault((name, f"cannot: `{row['reason']}`"), []).append(where)
            elif not row["finite_gradient"]:
                found.setdefault((name, "gives a gradient that is not finite"), []).append(where)
    return [f"- {name} {what} ({', '.join(where)})" for (name, what), where in found.items()]


if __name__ == "__main__":
    main()
