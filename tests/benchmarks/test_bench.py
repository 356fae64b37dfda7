"""The benchmark runs, and says why a number is missing instead of stopping."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.measure import interleaved_times, peak_memory
from benchmarks.training import PEAK

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_quick_run_writes_a_table_and_a_record(tmp_path):
    command = [sys.executable, "-m", "benchmarks.losses", "--quick", "--no-compile", "--output", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed == (tmp_path / "losses.md").read_text()
    runs = json.loads((tmp_path / "losses.json").read_text())["runs"]
    assert [(run["capability"], run["busy"]) for run in runs] == [
        ("default", 0),
        ("default", 2),
        ("avx2", 0),
        ("avx2", 2),
    ]
    assert [len(run["cases"]) for run in runs] == [4] * 4
    for case in (case for run in runs for case in run["cases"]):
        rows = case["implementations"]
        ours = [row for name, row in rows.items() if name.startswith("longtail")]
        assert len(ours) == 8
        assert all(row["median_ms"] > 0 and row["finite_gradient"] for row in ours)
        assert all(row["reason"] for row in rows.values() if row["median_ms"] is None)


@pytest.mark.slow
def test_a_quick_run_of_the_heads_benchmark_has_every_row_and_equal_losses(tmp_path):
    command = [sys.executable, "-m", "benchmarks.linear_heads", "--quick", "--output", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed == (tmp_path / "linear_heads.md").read_text()
    results = json.loads((tmp_path / "linear_heads.json").read_text())
    (case,) = results["cases"]
    rows = case["implementations"]
    assert len(rows) == 12
    assert all(row["minimum_ms"] > 0 and row["peak_megabytes"] > 0 for row in rows.values())
    for name in [name for name in rows if name.endswith(", fused")]:
        assert rows[name]["loss"] == pytest.approx(rows[name.replace("fused", "unfused")]["loss"], rel=1e-5)
    assert all(0 < megabytes < 64 for megabytes in results["many"]["megabytes"].values())
    assert results["settings"]["instructions"]


@pytest.mark.slow
def test_a_quick_run_of_the_data_benchmark_has_every_row(tmp_path):
    command = [sys.executable, "-m", "benchmarks.data", "--quick", "--output", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed == (tmp_path / "data.md").read_text()
    results = json.loads((tmp_path / "data.json").read_text())
    rows = [results["cifar"], results["opening"], *results["jpeg"].values()]
    assert [len(part) for part in rows] == [4, 3, 2, 2]
    assert all(row["median_ms"] > 0 for part in rows for row in part.values())


@pytest.mark.slow
def test_a_quick_run_of_the_prototypes_benchmark_has_every_row(tmp_path):
    command = [sys.executable, "-m", "benchmarks.prototypes", "--quick", "--output", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed == (tmp_path / "prototypes.md").read_text()
    results = json.loads((tmp_path / "prototypes.json").read_text())
    assert (len(results["coverage"]), len(results["unequal"])) == (24, 4)
    assert all(row["alone"] > 0.9 and row["volume"] > 0.9 for row in results["coverage"])
    assert results["cost"]["all are near"]["seconds"] > 0


@pytest.mark.slow
def test_a_quick_run_of_the_training_benchmark_has_every_row(tmp_path):
    command = [sys.executable, "-m", "benchmarks.training", "--quick", "--output", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed == (tmp_path / "training.md").read_text()
    results = json.loads((tmp_path / "training.json").read_text())
    assert len(results["speed"]) == 4
    assert all(row["median_ms"] > 0 for row in results["speed"].values())
    assert all(value > 0 for part in results["start"].values() for value in part.values())


def test_peak_memory_counts_what_is_held_at_once():
    def two_after_one_another():
        for _ in range(2):
            torch.empty(1000)

    def two_at_once():
        return torch.empty(1000), torch.empty(1000)

    assert (peak_memory(two_after_one_another), peak_memory(two_at_once)) == (4000, 8000)


def test_calls_take_turns():
    log = []
    calls = {name: lambda name=name: log.append(name) or sum(range(20_000)) for name in "ab"}
    times = interleaved_times(calls, lambda: log.append("-"), seconds=0, least=3)
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 3, "b": 3}
    assert log[::2] == ["-"] * (len(log) // 2)
    assert set(log) == {"-", "a", "b"}


def test_turns_may_have_the_same_number_of_calls_of_each():
    log = []
    calls = {"quick": lambda: log.append("quick"), "slow": lambda: log.append("slow") or time.sleep(0.003)}
    times = interleaved_times(calls, lambda: None, seconds=0, least=2, repeats=3)
    assert {name: len(seconds) for name, seconds in times.items()} == {"quick": 6, "slow": 6}
    assert all(log[turn] == log[turn + 1] == log[turn + 2] for turn in range(0, 12, 3))
    assert min(times["slow"]) >= 0.003


def test_the_most_memory_of_a_process_is_not_that_of_the_one_that_started_it():
    held = torch.ones(2**26)  # 256 MB
    child = subprocess.run([sys.executable, "-c", f"{PEAK}print(peak())"], capture_output=True, text=True, check=True)
    assert 1 < float(child.stdout) < held.nbytes / 2**20 / 2
