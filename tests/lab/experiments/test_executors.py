"""Sweeps and searches on image files, whose worker processes have loader processes of their own, and how they end."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from longtail.lab.config import RunConfig
from tests.lab.experiments.sweeps import command, end, epochs_done, family, freeze, start, thaw, wait_for, write_images

NETWORK = {"image_size": 32, "model": "resnet8", "batch_size": 4}
EXECUTORS = ("local", pytest.param("ray", marks=pytest.mark.slow))


def tuned(folder, executor, epochs):
    """``longtail tune`` with two losses and two folds, with the default number of loader processes, which is one."""
    flags = [word for name, value in NETWORK.items() for word in (f"--{name.replace('_', '-')}", value)]
    search = ["--losses", "softmax", "--betas", "0.9", "--folds", "2", "--executor", executor]
    data = folder / "photos"
    if not data.exists():
        write_images(data)
    return command("tune", "--data", data, "--epochs", epochs, *flags, *search, folder=folder)


def begun(runs):
    """The configuration of a run that has done an epoch."""
    for file in runs.glob("*/config.json"):
        config = RunConfig.from_json(file.read_text())
        if epochs_done(runs, config):
            return config
    return None


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_search_trains_on_image_files(tmp_path, executor):
    process = tuned(tmp_path, executor, epochs=1)
    code, _, errors = end(process)
    assert code == 0, errors
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 5
    wait_for(lambda: not family(process))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_sweep_trains_on_image_files(tmp_path, executor):
    content = {"data": str(write_images(tmp_path / "photos")), "epochs": 1, "seed": [0, 1, 2], **NETWORK}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    process = command("sweep", "sweep.json", "--executor", executor, folder=tmp_path)
    code, _, errors = end(process)
    assert code == 0, errors
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 3
    wait_for(lambda: not family(process))


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_ctrl_c_ends_a_search_on_image_files_with_one_line_and_all_its_processes(tmp_path, executor, answers):
    """Whether or not the run under way answers."""
    process = tuned(tmp_path, executor, epochs=10_000)
    wait_for(lambda: begun(tmp_path / "runs"))
    worker = freeze(tmp_path / "runs", begun(tmp_path / "runs"))
    if answers:
        thaw(worker)
    os.killpg(process.pid, signal.SIGINT)
    code, out, errors = end(process)
    assert (code, out) == (130, "")
    assert errors.splitlines()[-1] == "interrupted; run the same command to resume"
    assert "Traceback" not in errors
    wait_for(lambda: not family(process), seconds=10)


def imports_torch(process):
    with contextlib.suppress(OSError):
        return "libtorch" in Path(f"/proc/{process}/maps").read_text()
    return False


def test_ctrl_c_while_workers_start_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    process = tuned(tmp_path, "local", epochs=10_000)
    wait_for(lambda: any(imports_torch(each) for each in family(process)))
    os.killpg(process.pid, signal.SIGINT)
    code, out, errors = end(process)
    assert (code, out) == (130, "")
    assert errors.splitlines()[-1] == "interrupted; run the same command to resume"
    assert "Traceback" not in errors
    wait_for(lambda: not family(process), seconds=10)
    assert not list((tmp_path / "temporary").glob("longtail-*"))


def test_a_search_that_is_killed_leaves_no_process_behind(tmp_path):
    process = tuned(tmp_path, "local", epochs=10_000)
    wait_for(lambda: begun(tmp_path / "runs"))
    assert len(family(process)) >= 3  # workers, their loader processes, and what cleans up after them
    process.kill()
    end(process)
    wait_for(lambda: not family(process))


def test_a_script_without_a_guard_is_told_so(tmp_path):
    (tmp_path / "script.py").write_text("""
from pathlib import Path

from longtail.lab.config import RunOptions
from longtail.lab.experiments import run_sweep
from longtail.lab.recipes import cifar

run_sweep([cifar(epochs=1), cifar(epochs=2)], RunOptions(runs=Path("runs")))
""")
    process = start(sys.executable, "script.py", folder=tmp_path)
    code, _, errors = end(process)
    assert code == 1
    assert errors.count("Traceback") == 1
    assert "a script must call run_sweep and tune under `if __name__ == '__main__':`" in errors.splitlines()[-1]
    wait_for(lambda: not family(process))


def test_a_ray_that_does_not_start_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    process = tuned(tmp_path, "ray", epochs=1)
    code, out, errors = end(process)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: Ray does not start: ")
