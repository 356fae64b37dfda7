"""How often intervals of prototypes hold the truth, and what they cost: ``python -m benchmarks.prototypes``."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.measure import circumstances, described
from longtail.prototypes import _from_alone, _from_volume, estimate_prototypes

Result = dict[str, Any]

PROTOTYPES = (10, 100, 1000, 10_000, 100_000, 1_000_000)
SAMPLES = (5, 50, 500, 5000)
Z = NormalDist().inv_cdf(0.975)


def main() -> None:
    """Measure, then write ``prototypes.json`` and ``prototypes.md``."""
    parser = argparse.ArgumentParser(description="Coverage, speed and memory of the estimates of prototypes.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder of prototypes.json and .md")
    parser.add_argument("--quick", action="store_true", help="short, to try it out")
    parser.add_argument("--cost", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cost is not None:
        print(json.dumps(cost(options.cost)))
        return
    samples = 2_000 if options.quick else 50_000
    command = [sys.executable, "-m", "benchmarks.prototypes", "--cost", str(samples)]  # memory of a process of its own
    results: Result = {
        "settings": circumstances(),
        "trials": 200 if options.quick else 4000,
        "cost": json.loads(subprocess.run(command, capture_output=True, check=True).stdout),
    }
    results["coverage"] = [covered(N, n, results["trials"]) for N in PROTOTYPES for n in SAMPLES]
    results["unequal"] = [unequal(n, results["trials"] // 4) for n in SAMPLES]
    text = report(results)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "prototypes.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    (options.output / "prototypes.md").write_text(text)
    print(text, end="")


def drawn(probabilities: Any, n: int, trials: int) -> tuple[Any, Any]:
    """Samples alone and prototypes seen in each trial: one of so many, or drawn with these probabilities."""
    draw = np.random.default_rng(0)
    if isinstance(probabilities, int):
        samples = draw.integers(probabilities, size=(trials, n))
    else:
        samples = np.searchsorted(probabilities.cumsum(), draw.random((trials, n)))
    samples.sort(axis=1)
    same = samples[:, 1:] == samples[:, :-1]
    before, after = np.pad(same, ((0, 0), (1, 0))), np.pad(same, ((0, 0), (0, 1)))
    return (~before & ~after).sum(axis=1).astype(float), n - same.sum(axis=1).astype(float)


def covered(prototypes: int, n: int, trials: int) -> Result:
    """Share of trials in which 95 % intervals hold N: from the samples alone, from the volume, and plain Wilson."""
    alone, volume = drawn(prototypes, n, trials)
    samples = np.full(trials, float(n))
    found: Result = {"prototypes": prototypes, "samples": n}
    for name, (_, low, high) in (
        ("alone", _from_alone(samples, alone, Z)),
        ("volume", _from_volume(samples, volume, Z)),
    ):
        found[name] = float(((low <= prototypes) & (prototypes <= high)).mean())
    share, truth = alone / n, (1 - 1 / prototypes) ** (n - 1)
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    radius = Z / (1 + Z**2 / n) * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    found["binomial"] = float((np.abs(middle - truth) <= radius + 1e-12).mean())
    return found | {"all_alone": float((alone == n).mean()), "none_alone": float((alone == 0).mean())}


def unequal(n: int, trials: int) -> Result:
    """Median estimates of 1000 prototypes of which the i-th is drawn with a probability in proportion to 1/i."""
    probabilities = 1 / np.arange(1, 1001)
    alone, volume = drawn(probabilities / probabilities.sum(), n, max(trials, 50))
    samples = np.full(len(alone), float(n))
    first, second = _from_alone(samples, alone, Z)[0], _from_volume(samples, volume, Z)[0]
    return {"samples": n, "alone": float(np.median(first)), "volume": float(np.median(second))}


def cost(samples: int) -> Result:
    """Seconds and the growth of the process for one class of 64 features, few near another one and all of them."""
    features = np.random.default_rng(0).normal(size=(samples, 64))
    labels = np.zeros(samples, dtype=np.int64)
    estimate_prototypes(features[:100], labels[:100], 1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: Result = {"samples": samples, "bytes_of_features": features.nbytes}
    for name, radius in (("few are near", 6.0), ("all are near", 100.0)):
        start, used = time.perf_counter(), time.process_time()
        estimate_prototypes(features, labels, radius)
        found[name] = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - used}
    return found | {"megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def report(results: Result) -> str:
    cost = results["cost"]
    lines = [
        "# Estimates of prototypes",
        "",
        described(results["settings"]),
        "",
        f"One class of {cost['samples']:,} samples with 64 features, {cost['megabytes']:.0f} MB beyond the features:",
        "",
        "| | seconds | of processors |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {cost[name]['seconds']:.1f} | {cost[name]['processor_seconds']:.1f} |"
        for name in ("few are near", "all are near")
    ]
    lines += [
        "",
        f"How often 95 % intervals hold N, in {results['trials']:,} draws of n samples from N prototypes; in the last",
        "columns, how often all samples are alone, so that there is only a lower bound, and how often none is:",
        "",
        "| N | n | from the samples alone | from the volume | plain Wilson | all alone | none alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["coverage"]:
        shares = " | ".join(f"{row[name]:.1%}" for name in ("alone", "volume", "binomial", "all_alone", "none_alone"))
        lines.append(f"| {row['prototypes']:,} | {row['samples']:,} | {shares} |")
    lines += [
        "",
        "Median estimates where prototypes are not equally likely, 1000 of them, the i-th in proportion to 1/i:",
        "",
        "| n | from the samples alone | from the volume |",
        "|---|---|---|",
    ]
    lines += [f"| {row['samples']:,} | {row['alone']:,.3g} | {row['volume']:,.3g} |" for row in results["unequal"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
