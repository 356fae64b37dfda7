"""``longtail retrain`` and ``rebalance``, as a user types them."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from longtail.lab.cli.train import starting_point
from longtail.lab.config import RunOptions, with_fields
from longtail.lab.training import RunFolder, train
from tests.lab.cli.test_data import run
from tests.lab.training.runs import small_config
from tests.lab.training.test_run_folder import flip_bits, with_weight


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(small_config(epochs=4), RunOptions(runs=tmp_path_factory.mktemp("trained")))


@pytest.fixture
def parent(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "runs" / trained.name)
    return f"runs/{trained.name}"


def children(parent):
    return sorted(set(os.listdir("runs")) - {os.path.basename(parent)})


def test_retrain_makes_a_run_beside_it_and_a_config_repeats_it(parent, capsys):
    printed, _, code = run(capsys, "retrain", parent, "--epochs", "2", "--lr", "0.05", "--accelerator", "cpu")
    assert code == 0
    lines = [line.split() for line in printed.splitlines()]
    assert [line[0] for line in lines[1:3]] == ["as", "retrain"]
    (name,) = children(parent)
    assert name in printed
    folder = RunFolder(RunOptions.runs / name)
    config = folder.config()
    assert (config.optimizer.epochs, config.optimizer.lr) == (2, 0.05)
    assert config.optimizer.milestones == pytest.approx((1.6, 1.8))
    weights = folder.model_file.read_bytes()
    shutil.rmtree(folder.path)
    printed, _, code = run(capsys, "retrain", "--epochs", "2", "--lr", "0.05", parent, "--json")
    assert (code, json.loads(printed)["run_id"]) == (0, name)
    shutil.copy(folder.config_file, "again.json")
    shutil.rmtree(folder.path)
    printed, _, code = run(capsys, "train", "--config", "again.json", "--json")
    assert (code, json.loads(printed)["run_id"]) == (0, name)
    assert folder.model_file.read_bytes() == weights


def test_retrain_takes_another_loss_and_another_sampling(parent, capsys):
    flags = ("--epochs", "1", "--loss", "focal", "--weighting", "effective", "--sampling", "effective")
    _, error, code = run(capsys, "retrain", parent, *flags)
    assert code == 0, error
    (name,) = children(parent)
    assert name.startswith("digits-20-resnet8-focal_0.5_0.999-effective_0.999-s0-retrain-")


def test_rebalance_makes_a_run_for_each_tau_and_one_table(parent, capsys):
    printed, _, code = run(capsys, "rebalance", parent, "--method", "tau_norm", "--tau", "0.5", "0.7", "1")
    assert code == 0
    assert [line.split("  ")[0] for line in printed.splitlines()[1:5]] == [
        "as it was",
        *(f"tau_norm, τ {tau}" for tau in ("0.5", "0.7", "1")),
    ]
    assert [name.rpartition("-")[0].rpartition("-")[2] for name in children(parent)] == [
        *("tau_norm_0.5", "tau_norm_0.7", "tau_norm_1")
    ]
    printed, _, code = run(capsys, "rebalance", parent, "--method", "logit_adjustment", "--json")
    (result,) = json.loads(printed)
    assert (code, result["final"]["epoch"]) == (0, 4)
    assert "-logit_adjustment_1-" in result["run_id"]
    printed, _, code = run(capsys, "results", "runs")
    assert code == 0
    assert "head method" in printed
    printed, _, code = run(capsys, "results", "runs", "--json")
    assert {row["head_method"] for row in json.loads(printed)["settings"]} == {None, "tau_norm", "logit_adjustment"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["retrain", "nowhere"], "nowhere does not exist"),
        (["retrain", "RUN", "--imbalance", "10"], "imbalance is 10.0 but 20.0 in"),
        (["retrain", "RUN", "--sync-batch-norm"], "sync_batch_norm would do nothing"),
        (["retrain", "RUN", "--runs", "elsewhere"], "does not exist"),
        (["retrain", "RUN", "--head-of", "other"], "head_of other would do nothing: longtail retrain says it all"),
        (["retrain", "RUN", "--head-method", "tau_norm"], "head_method tau_norm would do nothing: longtail retrain"),
        (["rebalance", "nowhere", "--method", "tau_norm"], "nowhere does not exist"),
        (["rebalance", "RUN", "--method", "tau_norm", "--tau"], "which τ? --tau 1"),
        (["rebalance", "RUN", "--method", "tau_norm", "--tau", "-1"], ": tau must be a finite number >= 0, got -1"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(parent, capsys, arguments, message):
    printed, error, code = run(capsys, *(parent if word == "RUN" else word for word in arguments))
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert message in error
    assert children(parent) == []


def test_a_run_that_is_not_finished_is_refused(parent, capsys):
    os.unlink(f"{parent}/result.json")
    for arguments in (["retrain", parent], ["rebalance", parent, "--method", "tau_norm"]):
        printed, error, code = run(capsys, *arguments)
        assert (printed, code, error.count("\n")) == ("", 2, 1)
        assert "is not finished" in error


def test_another_sampling_than_that_of_a_file_has_a_beta_of_its_own(tmp_path):
    (tmp_path / "config.json").write_text(with_fields(small_config(), {"sampling": "effective"}).to_json())
    start = starting_point(["--config", str(tmp_path), "--sampling", "square_root"])
    assert start == with_fields(small_config(), {"sampling": "square_root"})


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "PARENT"],
        ["predict", "PARENT", "digit.png"],
        ["predict", "PARENT", "digit.png", "--on-error", "skip"],
        ["retrain", "PARENT", "--epochs", "1"],
        ["rebalance", "PARENT", "--method", "tau_norm"],
        ["advise", "--data", "digits", "--run", "PARENT"],
    ],
)
def test_damaged_weights_are_one_line_wherever_they_would_be_used(parent, capsys, command):
    Image.new("L", (8, 8)).save("digit.png")
    flip_bits(Path(parent) / "model.safetensors")
    printed, error, code = run(capsys, *(parent if word == "PARENT" else word for word in command))
    assert (printed, code) == ("", 2)
    assert error == f"error: {parent}/model.safetensors is damaged: its SHA-256 is not that of {parent}/result.json\n"
    assert children(parent) == []


@pytest.mark.parametrize("command", [["evaluate", "PARENT"], ["predict", "PARENT", "digit.png"]])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_outputs_that_are_no_numbers_are_one_line_and_nothing_is_written(parent, capsys, command, form):
    Image.new("L", (8, 8)).save("digit.png")
    with_weight(Path(parent), math.nan)
    printed, error, code = run(capsys, *(parent if word == "PARENT" else word for word in (*command, *form)))
    assert (printed, code) == ("", 2)
    assert error.startswith(f"error: the outputs of {parent} are not finite numbers")
    assert error.count("\n") == 1
