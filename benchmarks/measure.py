"""Time and memory of calls, and on what machine: nothing here knows what is called, so that tests can use it, too."""

from __future__ import annotations

import datetime
import json
import os
import platform
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["circumstances", "described", "interleaved_times", "peak_memory"]

TURN = 0.002

# The profiler else writes two lines to standard error for each call it looks at.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def peak_memory(call: Callable[[], object]) -> int:
    """Bytes that ``call`` held at its peak, beyond what was allocated before.

    Every allocation of PyTorch's CPU allocator is counted, so the result is exact and the same on every machine with
    as many threads; the resident set of the process is neither. Run ``call`` once before, so that what is made only
    once (by a compiler, say) is not counted, and drop the gradients it left.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]" and event["args"]["Device Type"] == 0]
    held = peak = 0
    for event in sorted(changes, key=lambda event: (event["ts"], event["args"]["Ev Idx"])):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def interleaved_times(
    calls: Mapping[str, Callable[[], object]],
    prepare: Callable[[], object],
    seconds: float,
    least: int,
    repeats: int | None = None,
) -> dict[str, list[float]]:
    """Seconds that calls took, in rounds of about ``seconds`` in total, at least ``least`` of them.

    A round gives each call a turn, so that what slows the machine for a while slows them all; the order is drawn anew
    for each round, so that no call always finds the caches as the same neighbour left them. In its turn a call is
    repeated until ``TURN`` is over, as timeit and torch.utils.benchmark do: once alone, between strangers, a call of
    some microseconds measures how long it takes to read its code into the cache. The median of the turn is kept.

    Beside busy processes a call may wait for a core a thousand times longer than it runs. How often it does is then
    what matters, so ``repeats`` gives every turn the same number of calls and keeps the time of each of them.

    ``prepare`` is run before every call, outside of its time.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    shuffle = random.Random(0).shuffle
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        shuffle(order)
        for name in order:
            turn = _turn(calls[name], prepare, repeats)
            times[name] += [statistics.median(turn)] if repeats is None else turn
        rounds += 1
    return times


def _turn(call: Callable[[], object], prepare: Callable[[], object], repeats: int | None) -> list[float]:
    """Times of the calls of one turn."""
    times: list[float] = []
    while sum(times) < TURN if repeats is None else len(times) < repeats:
        prepare()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def circumstances(*packages: str) -> dict[str, Any]:
    """What all numbers depend on."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version()}
        | {name: version_of(name) for name in ("torch", "numpy", "longtail", *packages)},
        "machine": {
            "cpu": cpu_model(),
            "instruction_sets": instruction_sets(),
            "used_by_pytorch": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
            "load_average_before": round(os.getloadavg()[0], 2),
        },
    }


def described(settings: Mapping[str, Any]) -> str:
    """The circumstances in one line."""
    machine = settings["machine"]
    sets = f"{', '.join(machine['instruction_sets'])}; " if machine.get("instruction_sets") else ""
    versions = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    return (
        f"{machine['cpu']} ({sets}{machine['cores']} cores, {machine['threads']} threads, {machine['system']}), "
        f"{settings['date']}, with {versions}"
    )


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    return _cpu_info("model name") or platform.processor()


def instruction_sets() -> list[str]:
    """The vector instructions of the CPU, as Linux names them."""
    return [name for name in _cpu_info("flags").split() if name.startswith(("avx", "amx", "fma"))]


def _cpu_info(field: str) -> str:
    try:
        found = re.search(rf"^{field}\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else ""
