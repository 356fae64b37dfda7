"""Sweeps on this machine: each run once, whatever happens to the processes."""

import importlib
import io
import json
import multiprocessing
import os
import re
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from longtail.lab.config import ConfigError, DataConfig, RunOptions
from longtail.lab.data import SubsetOptions
from longtail.lab.experiments import ExecutorOptions, executors, run_sweep, runs
from longtail.lab.experiments.executors import LocalExecutor
from longtail.lab.experiments.task import Outcome
from longtail.lab.files import write_atomically
from longtail.lab.training import RunFolder
from tests.lab.experiments.sweeps import (
    BALANCED,
    PLAIN,
    command,
    end,
    family,
    freeze,
    is_asked_to_stop,
    small,
    start_method,
    starts,
    thaw,
    trained_here,
    wait_for,
    weights,
)

sweep = importlib.import_module(run_sweep.__module__)
CONFIGS = [small(loss, seed) for loss in (PLAIN, BALANCED) for seed in range(2)]
LONG = [small(BALANCED, seed, epochs=24) for seed in range(2)]


def write_sweep(folder, epochs, seeds=2):
    """The sweep of ``LONG``, as a file."""
    content = {"data": "digits", "imbalance": 20, "model": "resnet8", "epochs": epochs, "batch_size": 64}
    content |= {"beta": 0.999}
    (folder / "sweep.json").write_text(json.dumps(content | {"seed": list(range(seeds))}))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return trained_here(tmp_path_factory.mktemp("reference"), CONFIGS)


@pytest.fixture(scope="module")
def long_reference(tmp_path_factory):
    return trained_here(tmp_path_factory.mktemp("reference"), LONG)


def test_a_sweep_gives_what_single_runs_give_and_again_does_only_what_is_missing(tmp_path, reference):
    options = RunOptions(runs=tmp_path)
    result = run_sweep([*CONFIGS, CONFIGS[0]], options)
    assert set(result.done) == set(CONFIGS)
    assert result.failed == {}
    assert weights(tmp_path, CONFIGS) == reference
    (tmp_path / CONFIGS[1].run_id / "result.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert set(run_sweep(CONFIGS, options).done) == set(CONFIGS)
    changed = {path for path in tmp_path.rglob("*") if path.stat().st_mtime_ns != before.get(path)}
    assert {path.relative_to(tmp_path).parts[0] for path in changed} == {CONFIGS[1].run_id}
    assert weights(tmp_path, CONFIGS) == reference


def test_a_run_that_fails_is_recorded_and_the_others_go_on(tmp_path, reference):
    bad = small(lr=1e9)
    no_images = replace(CONFIGS[0], data=DataConfig(subset=SubsetOptions(imbalance=1e6)))
    damaged = small(seed=7)
    write_atomically(tmp_path / damaged.run_id / "config.json", damaged.to_json())
    write_atomically(tmp_path / damaged.run_id / "result.json", "")
    result = run_sweep([bad, damaged, *CONFIGS[:1], no_images], RunOptions(runs=tmp_path))
    assert result.done == CONFIGS[:1]
    assert "result.json is damaged" in result.failed[damaged]
    assert "imbalance 1000000.0 leaves class 4 without samples" in result.failed[no_images]
    assert "the loss became infinite or NaN" in result.failed[bad]
    record = RunFolder(tmp_path / bad.run_id).failure()
    assert record["error"] == result.failed[bad]
    assert "TrainingError" in record["traceback"]
    assert weights(tmp_path, CONFIGS[:1]) == {CONFIGS[0].run_id: reference[CONFIGS[0].run_id]}


def test_data_that_is_not_there_is_one_error_before_anything_starts(tmp_path):
    config = small()
    missing = [config, replace(config, data=DataConfig(name="cifar10"))]
    with pytest.raises(ValueError, match="cifar10"):
        run_sweep(missing, RunOptions(runs=tmp_path, data_dir=tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_killed_is_replaced_and_its_run_goes_on(tmp_path, long_reference):
    with LocalExecutor(ExecutorOptions(), RunOptions(runs=tmp_path)) as executor:
        for config in LONG:
            executor.submit("train", config)
        finished = []
        os.kill(freeze(tmp_path, LONG[0]), signal.SIGKILL)
        while len(finished) < len(LONG):
            finished += executor.wait(60.0)
    assert {config for _, config, outcome in finished if outcome.kind == "done"} == set(LONG)
    assert [starts(tmp_path, config) for config in LONG] == [2, 1]
    assert weights(tmp_path, LONG) == long_reference


def test_a_run_whose_processes_all_die_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "ATTEMPTS", 1)
    with LocalExecutor(ExecutorOptions(), RunOptions(runs=tmp_path)) as executor:
        executor.submit("train", LONG[0])
        ((worker, _),) = executor.running.values()
        os.kill(worker.process.pid, signal.SIGKILL)
        [(_, config, outcome)] = executor.wait(60.0)
    assert config == LONG[0]
    assert outcome.kind == "failed"
    assert "killed by SIGKILL" in outcome.message
    assert RunFolder(tmp_path / config.run_id).failure()["error"] == outcome.message


def test_a_worker_that_dies_between_two_runs_is_replaced_and_loader_processes_are_started_as_elsewhere(tmp_path):
    with LocalExecutor(ExecutorOptions(), RunOptions(runs=tmp_path)) as executor:
        for config in CONFIGS[:2]:
            executor.submit("train", config)
            [(_, _, outcome)] = executor.wait(60.0)
            assert outcome.kind == "done"
            worker = executor.idle[-1]
            assert worker.pool.submit(start_method).result() == multiprocessing.get_start_method()
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.join()
        assert not executor.deaths


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_a_sweep_that_is_ended_leaves_everything_so_that_it_goes_on(tmp_path, long_reference, number):
    write_sweep(tmp_path, epochs=24)
    runs = tmp_path / "runs"
    first = command("sweep", "sweep.json", folder=tmp_path)
    worker = freeze(runs, LONG[0])
    os.kill(first.pid, number)
    wait_for(lambda: first.poll() is not None or is_asked_to_stop(worker))
    thaw(worker)
    code, _, errors = end(first)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert re.fullmatch("interrupted with [01] of 2 runs done; run the same .*", errors.splitlines()[-1])
    # Workers save and leave, even if nobody is left to ask them to.
    wait_for(lambda: not family(first))
    assert not (runs / LONG[0].run_id / "result.json").exists()
    code, out, errors = end(command("sweep", "sweep.json", folder=tmp_path))
    assert code == 0, errors
    assert "class-balanced softmax, β 0.999" in out
    assert starts(runs, LONG[0]) == 2
    assert weights(runs, LONG) == long_reference


def test_two_sweeps_over_one_folder_share_the_work(tmp_path):
    write_sweep(tmp_path, epochs=10, seeds=4)
    both = [command("sweep", "sweep.json", "--json", folder=tmp_path) for _ in range(2)]
    for process in both:
        code, out, errors = end(process)
        assert code == 0, errors
        assert [run["status"] for run in json.loads(out)["runs"]] == ["complete"] * 4
    configs = [small(BALANCED, seed, epochs=10) for seed in range(4)]
    assert [starts(tmp_path / "runs", config) for config in configs] == [1] * 4


class Busy:
    """An executor whose runs another process has, at first."""

    slots = 1

    def __init__(self, runs):
        self.runs, self.asked, self.queue = runs, 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, task, config):
        self.queue.append((task, config))

    def wait(self, seconds):
        finished, self.queue = self.queue, []
        self.asked += len(finished)
        kind = "busy" if self.asked <= 4 else "done"
        return [(*each, Outcome(kind, value={"error": 5.0, "seconds": 1.0})) for each in finished]


def test_plain_output_says_once_that_a_run_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(sweep, "make_executor", lambda where, options: Busy(options.runs))
    said = io.StringIO()
    run_sweep(CONFIGS[:2], RunOptions(runs=tmp_path), console=Console(file=said, width=200))
    first, *done = said.getvalue().splitlines()
    assert first == f"waiting for {CONFIGS[0].run_id}, which is in use by another process"
    assert [line.split()[0] for line in done] == ["1/2", "2/2"]


def test_a_folder_of_runs_that_cannot_be_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as error:
        run_sweep(CONFIGS, RunOptions(runs=tmp_path / "file" / "x"))
    assert error.value.filename == str(tmp_path / "file")


def test_the_end_says_which_runs_failed(tmp_path):
    for name in ("queue", "socket", "threading"):  # workers import nothing from here
        (tmp_path / f"{name}.py").write_text("raise ImportError('not that one')")
    content = {"model": "resnet8", "epochs": 1, "batch_size": 256, "lr": [0.1, 1e9]}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    code, out, errors = end(command("sweep", "sweep.json", folder=tmp_path))
    assert code == 1
    assert errors.splitlines()[-1].startswith("error: 1 of 2 runs failed, such as digits-resnet8-softmax-s0-")
    assert "softmax" in out


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cpus_per_run": 0}, "cpus_per_run"),
        ({"gpus_per_run": 2.0}, "gpus_per_run must be from 0 to 1, got 2"),
        ({"address": "auto"}, 'address requires executor "ray"'),
    ],
)
def test_bad_options_are_refused_by_name(values, message):
    with pytest.raises(ConfigError, match=message):
        ExecutorOptions(**values)
    with pytest.raises(ConfigError, match="there are 0 GPUs"):
        LocalExecutor(ExecutorOptions(gpus_per_run=1.0), RunOptions(accelerator="cpu"))


@pytest.mark.parametrize(("gpus_per_run", "places"), [(1.0, "01"), (0.5, "0011"), (0.4, "0011"), (0.3, "000111")])
def test_no_run_is_given_a_gpu_that_is_not_there(monkeypatch, gpus_per_run, places):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(executors.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(executors, "available_cores", lambda: 16)
    with LocalExecutor(ExecutorOptions(gpus_per_run=gpus_per_run), RunOptions()) as executor:
        assert executor.slots == len(places)
        assert "".join(sorted(worker.variables["CUDA_VISIBLE_DEVICES"] for worker in executor.workers)) == places
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    with LocalExecutor(ExecutorOptions(gpus_per_run=1.0), RunOptions()) as executor:
        assert {worker.variables["CUDA_VISIBLE_DEVICES"] for worker in executor.workers} == {"4", "7"}
