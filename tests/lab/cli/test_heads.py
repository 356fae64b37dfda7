"""``longtail retrain`` and ``adjust``, and adjustments in use, as a user types them."""

import csv
import io
import json
import math
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from longtail.lab.cli.arguments import command_for
from longtail.lab.config import LossConfig, RunOptions, with_fields
from longtail.lab.data import open_dataset
from longtail.lab.training import RunFolder, train
from tests.lab.cli.test_data import run
from tests.lab.training.runs import small_config
from tests.lab.training.test_run_folder import flip_bits, with_weight


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = small_config(epochs=4, loss=LossConfig(beta=0.999))
    return train(config, RunOptions(runs=tmp_path_factory.mktemp("trained")))


@pytest.fixture(scope="module")
def trained_plain(tmp_path_factory):
    config = with_fields(small_config(epochs=4, loss=LossConfig()), {"validation_fraction": 0.2})
    return train(config, RunOptions(runs=tmp_path_factory.mktemp("plain")))


@pytest.fixture
def plain(trained_plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_plain, tmp_path / "runs" / trained_plain.name)
    return f"runs/{trained_plain.name}"


@pytest.fixture
def parent(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "runs" / trained.name)
    return f"runs/{trained.name}"


def children(parent):
    return sorted(set(os.listdir("runs")) - {os.path.basename(parent)})


def test_retrain_makes_a_run_beside_it_and_so_do_its_config_and_its_command(parent, capsys, monkeypatch):
    words = ("--epochs", "2", "--lr", "0.05", "--set", "accelerator=cpu")
    printed, error, code = run(capsys, "retrain", parent, *words)
    assert code == 0, error
    (name,) = children(parent)
    assert name.startswith("digits-20-resnet8-softmax-class_balanced-frozen-s0-")
    assert f"the run is in runs/{name}" in printed
    folder = RunFolder(RunOptions.runs / name)
    config = folder.config()
    assert (config.optimizer.epochs, config.optimizer.lr, config.title) == (2, 0.05, "softmax, cRT")
    assert config.optimizer.milestones == pytest.approx((1.6, 1.8))
    weights = folder.model_file.read_bytes()
    shutil.copytree(folder.path, "copy")
    command = shlex.split(command_for(config, RunOptions(accelerator="cpu")))[1:]
    short = ["train", "--config", parent, "--pretrained", parent, "--freeze", "--sampling", "class_balanced", *words]
    again = ["train", "--config", "copy", "--set", "accelerator=cpu"]
    for repeated in (["retrain", *words, parent], command, [*short, "--set", "weighting=uniform"], again):
        shutil.rmtree(folder.path)
        printed, error, code = run(capsys, *repeated, "--json")
        assert code == 0, error
        assert json.loads(printed)["run_id"] == name
        assert folder.model_file.read_bytes() == weights


def test_retrain_goes_beside_the_run_wherever_that_is(parent, capsys, monkeypatch):
    monkeypatch.chdir("runs")
    _, error, code = run(capsys, "retrain", os.path.basename(parent), "--epochs", "1", "--accelerator", "cpu")
    assert code == 0, error
    monkeypatch.chdir("..")
    assert len(children(parent)) == 1
    _, error, code = run(capsys, "retrain", parent, "--epochs", "1", "--runs", "other", "--accelerator", "cpu")
    assert code == 0, error
    assert os.listdir("other") == children(parent)


def test_retrain_takes_another_loss_and_another_sampling(parent, capsys):
    changes = ("loss=focal", "weighting=effective", "sampling=effective")
    words = [word for change in changes for word in ("--set", change)]
    printed, error, code = run(capsys, "retrain", parent, "--epochs", "1", *words, "--show-config")
    assert (code, children(parent)) == (0, []), error
    shown = json.loads(printed)
    assert (shown["loss"]["name"], shown["loss"]["beta"], shown["data"]["sampling_beta"]) == ("focal", 0.999, 0.999)
    assert (shown["model"]["weights"], shown["model"]["freeze"]) == (parent, True)
    _, error, code = run(capsys, "retrain", parent, "--epochs", "1", *words)
    assert code == 0, error
    (name,) = children(parent)
    assert name.startswith("digits-20-resnet8-focal_0.5_0.999-effective_0.999-frozen-s0-")


def test_a_dry_run_of_retrain_trains_nothing(parent, capsys):
    printed, error, code = run(capsys, "retrain", parent, "--dry-run")
    assert code == 0, error
    assert "1 run, 1 to do" in printed
    assert children(parent) == []


def test_adjust_keeps_each_tau_with_the_run_and_prints_one_table(plain, capsys):
    printed, error, code = run(capsys, "adjust", plain, "--method", "tau_norm", "--tau", "0.5", "0.7", "1")
    assert code == 0, error
    slugs = [f"tau_norm_{tau}" for tau in ("0.5", "0.7", "1")]
    lines = printed.splitlines()
    assert lines[0].split()[:4] == ["last", "layer", "error", "%"]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["as trained", *slugs]
    assert sorted(os.listdir(f"{plain}/adjustments")) == [f"{slug}.json" for slug in slugs]
    assert children(plain) == []
    assert lines[-1].endswith("--adjustment tau_norm_1")
    printed, _, code = run(capsys, "adjust", plain, "--method", "logit_adjustment", "--json")
    found = json.loads(printed)
    assert (code, list(found)) == (0, ["logit_adjustment_1"])
    assert found["logit_adjustment_1"]["tau"] == 1
    printed, _, code = run(capsys, "results", "runs")
    assert code == 0
    methods = [f"softmax, {text}" for text in ("logit adjustment τ 1", *(f"τ-norm τ {tau}" for tau in (0.5, 0.7, 1)))]
    rows = [re.split("  +", line) for line in printed.splitlines()[2:7]]
    assert {row[0] for row in rows} == {"softmax", *methods}
    assert [float(row[2]) for row in rows] == sorted((float(row[2]) for row in rows), reverse=True)
    printed, _, code = run(capsys, "results", "runs", "--json")
    assert {row["adjustment"] for row in json.loads(printed)["settings"]} == {None, *slugs, "logit_adjustment_1"}


def test_adjust_takes_a_prior_and_calibrates(plain, capsys):
    printed, error, code = run(capsys, "adjust", plain, "--prior", "uniform", "--calibrate")
    assert code == 0, error
    lines = printed.splitlines()
    assert [line.split("  ")[0] for line in lines[1:3]] == ["as trained", "logit_adjustment_1_calibrated"]
    found = RunFolder(Path(plain)).adjustment("logit_adjustment_1_calibrated")
    assert lines[3].startswith(f"temperature {found['temperature']:.3f}: on the validation images, calibration error ")
    Path("prior.csv").write_text("".join(f"{name},{1 + int(name)}\n" for name in "0123456789"))
    printed, error, code = run(capsys, "adjust", plain, "--prior", "prior.csv", "--json")
    assert code == 0, error
    (content,) = json.loads(printed).values()
    assert content["prior"] == pytest.approx([(1 + place) / 55 for place in range(10)])
    printed, error, code = run(capsys, "evaluate", plain, "--adjustment", "prior_prior", "--json")
    assert json.loads(printed)["nll"] == content["final"]["nll"], error


def test_evaluate_and_predict_take_an_adjustment(plain, capsys):
    parent = plain
    run(capsys, "adjust", parent, "--method", "logit_adjustment", "--tau", "2")
    final = RunFolder(RunOptions.runs.parent / parent).adjustment("logit_adjustment_2")["final"]
    plain, adjusted = (
        json.loads(run(capsys, "evaluate", parent, *words, "--json")[0])
        for words in ([], ["--adjustment", "logit_adjustment_2"])
    )
    assert (plain["adjustment"], adjusted["adjustment"]) == (None, "logit_adjustment_2")
    assert (adjusted["error"], adjusted["nll"]) == (final["error"], final["nll"])
    assert adjusted["nll"] != plain["nll"]
    printed, _, _ = run(capsys, "evaluate", parent, "--adjustment", "logit_adjustment_2")
    assert f"error: {final['error']:.2f}%" in printed
    Image.fromarray(open_dataset("digits").test.images[0][0].numpy()).save("digit.png")
    first, second = (
        [
            row["probability"]
            for row in csv.DictReader(io.StringIO(run(capsys, "predict", parent, "digit.png", *words)[0]))
        ]
        for words in ([], ["--adjustment", "logit_adjustment_2"])
    )
    assert len(first) == len(second) == 5
    assert first != second


@pytest.mark.parametrize("command", [["evaluate", "RUN"], ["predict", "RUN", "digit.png"]])
def test_an_adjustment_that_is_not_there_is_one_line_that_names_those_that_are(parent, capsys, command):
    Image.new("L", (8, 8)).save("digit.png")
    words = [*(parent if word == "RUN" else word for word in command), "--adjustment", "tau_norm_2"]
    printed, error, code = run(capsys, *words)
    assert (printed, code, error) == ("", 2, f"error: {parent} has no adjustment 'tau_norm_2'; it has none\n")
    run(capsys, "adjust", parent, "--method", "tau_norm")
    printed, error, code = run(capsys, *words)
    assert (printed, code, error) == ("", 2, f"error: {parent} has no adjustment 'tau_norm_2'; it has tau_norm_1\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["retrain", "nowhere"], "nowhere does not exist"),
        (["retrain", "RUN", "--set", "sync_batch_norm=true"], "sync_batch_norm requires a backbone that is trained"),
        (["retrain", "RUN", "--set", "freze=false"], "unknown field 'freze': did you mean 'freeze'?"),
        (["retrain", "RUN", "--set", "model=resnet14"], "does not fit resnet14"),
        (["adjust", "nowhere", "--method", "tau_norm"], "nowhere does not exist"),
        (["adjust", "RUN"], "--method is missing: tau_norm or logit_adjustment; or --prior, or --calibrate"),
        (["adjust", "RUN", "--prior", "uniform", "--tau", "2"], "--tau requires --method"),
        (["adjust", "RUN", "--prior", "uniform"], "prior uniform would correct twice: class weights did so"),
        (["adjust", "RUN", "--prior", "nowhere.csv"], "would correct twice"),
        (["adjust", "RUN", "--calibrate"], "calibrate requires validation images: "),
        (["adjust", "RUN", "--method", "taunorm"], "unknown method 'taunorm': did you mean 'tau_norm'?"),
        (["adjust", "RUN", "--method", "tau_norm", "--tau"], "--tau is missing: 1, or several"),
        (["adjust", "RUN", "--method", "tau_norm", "--tau", "-1"], ": tau must be a finite number >= 0, got -1"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(parent, capsys, arguments, message):
    printed, error, code = run(capsys, *(parent if word == "RUN" else word for word in arguments))
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert message in error
    assert children(parent) == []
    assert not os.path.exists(f"{parent}/adjustments")


def test_a_run_that_is_not_finished_is_refused(parent, capsys):
    os.unlink(f"{parent}/result.json")
    for arguments in (["retrain", parent], ["adjust", parent, "--method", "tau_norm"], ["evaluate", parent]):
        printed, error, code = run(capsys, *arguments)
        assert (printed, code, error.count("\n")) == ("", 2, 1)
        assert f"{parent} is not finished: resume its training first: longtail train --config {parent}" in error
    _, error, code = run(capsys, "train", "--data", "digits", "--pretrained", parent, "--freeze")
    assert (code, error.count("\n")) == (2, 1)
    assert "is not finished: resume its training first" in error


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "PARENT"],
        ["predict", "PARENT", "digit.png"],
        ["retrain", "PARENT", "--epochs", "1"],
        ["adjust", "PARENT", "--method", "tau_norm"],
    ],
)
def test_damaged_weights_are_one_line_wherever_they_would_be_used(parent, capsys, command):
    Image.new("L", (8, 8)).save("digit.png")
    flip_bits(Path(parent) / "model.safetensors")
    printed, error, code = run(capsys, *(parent if word == "PARENT" else word for word in command))
    assert (printed, code) == ("", 2)
    problem = "model.safetensors is damaged: its SHA-256 is not that of"
    assert re.fullmatch(rf"error: \S*{parent}/{problem} \S*{parent}/result.json\n", error)
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
