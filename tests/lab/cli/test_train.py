"""``longtail train``, ``evaluate``, ``predict`` and ``demo``, as a user types them."""

import csv
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from longtail.lab.config import RunConfig
from longtail.lab.data import open_dataset
from longtail.lab.training import RunFolder
from tests.lab.cli.test_data import run

SMALL = ["--data", "digits", "--imbalance", "20", "--model", "resnet8", "--batch-size", "64", "--accelerator", "cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder that the command made."""
    from longtail.lab.cli import main

    runs = tmp_path_factory.mktemp("runs")
    main(
        ["train", *SMALL, "--loss", "focal", "--beta", "0.999", "--gamma", "0.5", "--epochs", "12", "--runs", str(runs)]
    )
    (path,) = runs.iterdir()
    return path


def test_train_makes_a_run_and_says_where(finished, capsys):
    config = RunFolder(finished).config()
    assert finished.name == config.run_id
    assert finished.name.startswith("digits-20-resnet8-focal_0.5_0.999-")
    assert (config.optimizer.epochs, config.optimizer.milestones) == (12, (9.6, 10.8))
    printed, _, code = run(capsys, "train", "--config", finished / "config.json", "--runs", finished.parent)
    assert code == 0
    assert printed.splitlines()[0].startswith("error ")
    assert f"the run is in {finished}" in printed


def test_a_config_file_repeats_a_run_exactly(finished, capsys, tmp_path):
    printed, _, code = run(
        capsys, "train", "--config", finished / "config.json", "--runs", tmp_path, "--accelerator", "cpu", "--json"
    )
    assert code == 0
    assert json.loads(printed)["run_id"] == finished.name
    again = tmp_path / finished.name
    assert (again / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_flags_change_what_a_config_file_says(finished, capsys, tmp_path):
    run(
        capsys,
        *("train", "--config", finished / "config.json", "--runs", tmp_path, "--accelerator", "cpu"),
        *("--seed", "3", "--weighting", "uniform", "--epochs", "1"),
    )
    (path,) = tmp_path.iterdir()
    config = RunFolder(path).config()
    assert (config.seed, config.loss.label, config.optimizer.epochs) == (3, "focal_0.5", 1)


def test_evaluate_gives_the_numbers_of_the_training(finished, capsys):
    final = RunFolder(finished).result()["final"]
    printed, _, code = run(capsys, "evaluate", finished, "--json")
    found = json.loads(printed)
    assert code == 0
    assert found["error"] == pytest.approx(final["error"])
    assert found["nll"] == pytest.approx(final["nll"], rel=1e-5)
    assert list(found["recall"].values()) == pytest.approx(final["recall"])
    printed, _, _ = run(capsys, "evaluate", finished)
    recalls = [float(line.split()[-1].rstrip("%")) for line in printed.splitlines()[3:]]
    assert recalls == sorted(recalls)
    assert len(recalls) == 10
    printed, _, _ = run(capsys, "evaluate", finished, "--split", "train", "--json")
    assert json.loads(printed)["error"] < found["error"]


def test_predict_names_classes_of_image_files(finished, capsys, tmp_path):
    digits = open_dataset("digits")
    for place in range(20):
        pixels = digits.test.images[25 * place][0].numpy()
        Image.fromarray(pixels).save(tmp_path / f"{place:02d}-{int(digits.test.labels[25 * place])}.png")
    printed, _, code = run(capsys, "predict", finished, tmp_path, "--top", "2")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert code == 0
    assert len(rows) == 40
    first = [row for row in rows if row["rank"] == "1"]
    right = np.mean([row["path"].rpartition("-")[2] == f"{row['class']}.png" for row in first])
    assert right >= 1 - RunFolder(finished).result()["final"]["error"] / 100 - 0.25
    printed, _, _ = run(capsys, "predict", finished, min(tmp_path.iterdir()), "--json", "--top", "3")
    (image,) = json.loads(printed)
    assert len(image["classes"]) == 3
    assert image["probabilities"] == sorted(image["probabilities"], reverse=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "cifar11"], "unknown data set 'cifar11': did you mean 'cifar10'"),
        (["train", "--model", "resnet33"], "unknown model 'resnet33': did you mean 'resnet34'"),
        (["train", "--loss", "fokal"], "unknown loss 'fokal': did you mean 'focal'"),
        (["train", "--recipe", "cifer"], "unknown recipe 'cifer': did you mean 'cifar'"),
        (["train", "--imbalance", "0.5"], "imbalance must be a finite number >= 1, got 0.5"),
        (["train", "--beta", "1.5"], "beta must be in [0, 1], got 1.5"),
        (["train", "--loss", "focal", "--gamma", "-1"], "gamma must be a finite number >= 0, got -1"),
        (["train", "--gamma", "2"], "gamma 2 would do nothing: only the focal loss has one"),
        (["train", "--weighting", "inverse", "--beta", "0.9"], "beta 0.9 would do nothing"),
        (["train", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "--config", "nowhere.json"], "nowhere.json does not exist"),
        (["evaluate", "nowhere"], "nowhere is no run folder"),
        (["predict", "nowhere", "nothing.png"], "nowhere is no run folder"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    printed, error, code = run(capsys, *arguments)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert message in error
    assert os.listdir(tmp_path) == []


def test_help_shows_the_values_of_the_recipe(capsys):
    printed, _, _ = run(capsys, "train", "--data", "imagenet", "--loss", "focal", "--epochs", "45", "--help")
    text = " ".join(printed.split())
    for part in (
        "(default: resnet50)",
        "(default: 1024)",
        "(default: 0.2)",
        "(default: 15.0 30.0 40.0)",
        "--config FILE",
    ):
        assert part in text
    assert "--version" not in text


def test_own_images_are_trained_on(capsys, tmp_path):
    generator = np.random.default_rng(0)
    for name, shade in (("dark", 40), ("bright", 200)):
        for place in range(6):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(shade - 30, shade + 30, (40, 50, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{place}.png")
    printed, error, code = run(
        capsys,
        *("train", "--data", tmp_path / "photos", "--model", "resnet18", "--epochs", "1", "--batch-size", "4"),
        *("--image-size", "32", "--workers", "0", "--runs", tmp_path / "runs", "--accelerator", "cpu"),
    )
    assert code == 0, error
    (path,) = (tmp_path / "runs").iterdir()
    printed, _, code = run(capsys, "predict", path, tmp_path / "photos")
    assert code == 0
    assert printed.count("\n") == 1 + 12 * 2


@pytest.mark.parametrize("processes", [2])
def test_two_processes_give_the_losses_of_one(tmp_path, processes):
    """Real processes, gloo between them; batches of 51 images make uneven parts."""
    command = ["-m", "longtail.lab", "train", *SMALL, "--batch-size", "51", "--epochs", "3", "--sync-batch-norm"]
    command += ["--learning-rate", "0.01"]  # at a high one, training blows up the rounding errors
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    lines, printed = {}, {}
    for name, launcher in (
        ("one", []),
        ("two", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]),
    ):
        finished = subprocess.run(
            [sys.executable, *launcher, *command, "--runs", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert finished.returncode == 0, finished.stderr
        (path,) = (tmp_path / name).iterdir()
        lines[name], printed[name] = RunFolder(path).metrics(), finished.stdout
    assert printed["two"].count("the run is in") == 1
    for one, two in zip(lines["one"], lines["two"], strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
    assert lines["two"][0]["nll"] == pytest.approx(lines["one"][0]["nll"], rel=1e-4)
    assert lines["two"][0]["recall"] == pytest.approx(lines["one"][0]["recall"], abs=0.021)
    total = round(lines["two"][0]["error"] * 5)
    assert lines["two"][0]["error"] * 5 == pytest.approx(total)  # of 500 test images, each once


def test_the_configuration_of_the_command_is_that_of_python(capsys, tmp_path):
    run(capsys, "train", *SMALL, "--epochs", "1", "--runs", tmp_path)
    (path,) = tmp_path.iterdir()
    assert RunConfig.from_json((path / "config.json").read_text()).run_id == path.name
