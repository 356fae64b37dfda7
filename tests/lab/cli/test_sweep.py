"""``longtail sweep`` and ``tune``: what they list, and what they refuse."""

import json
import re

import pytest

from tests.lab.cli.test_data import run

SMALL = ["--model", "resnet8", "--epochs", "1"]


def test_the_sweeps_of_the_paper_are_listed(capsys):
    printed, _, code = run(capsys, "sweep", "--list")
    assert code == 0
    for name in ("table2", "beta_sweep", "heatmap", "table3", "training_curves"):
        assert name in printed
    printed, _, _ = run(capsys, "sweep", "--list", "--json")
    assert json.loads(printed)["heatmap"]["datasets"] == ["cifar10", "cifar20", "cifar100"]


def test_a_dry_run_measures_and_trains_nothing(capsys, tmp_path):
    (tmp_path / "own.json").write_text('{"model": "resnet8", "epochs": [5, 10], "imbalance": 50}')
    words = ["sweep", tmp_path / "own.json", "--dry-run", "--runs", tmp_path / "runs"]
    printed, _, code = run(capsys, *words, "--json")
    assert code == 0
    content = json.loads(printed)
    short, long = (each["seconds"] for each in content["runs"])
    assert 0 < short < long
    assert long == pytest.approx(2 * short)
    assert content["seconds"] == pytest.approx((short + long) / content["at_a_time"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a sweep: table2, beta_sweep, heatmap, table3, training_curves, small, or a .json or .py file"),
        (["heatmop"], "unknown sweep 'heatmop'"),
        (["heatmap"], "heatmap needs a --dataset: cifar10, cifar20, cifar100"),
        (["heatmap", "--dataset", "digits"], "unknown dataset 'digits'"),
        (["table2", "--dataset", "cifar20"], "unknown dataset 'cifar20'"),
        (["heatmap", "--dataset", "cifar10", "--seeds", "0"], "seeds"),
        (["nowhere.json"], "nowhere.json does not exist"),
        (["own.json", "--seeds", "3"], "--seeds applies only to sweeps of the paper, not to own.json"),
    ],
)
def test_bad_sweeps_are_one_clear_line(capsys, words, message):
    printed, error, code = run(capsys, "sweep", *words)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert message in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--data is missing: digits"),
        (["--data", "digits", "--set", "fold=1", "--folds", "3"], "fold must not be given: all folds are tried"),
        (["--data", "digits", "--folds", "1"], "folds must be from 2"),
        (["--data", "nowhere"], "nowhere"),
        (["--data", "digits", "--trials", "3"], "trials has no effect with search grid"),
        (["--data", "digits", "--losses", "hinge"], "unknown loss 'hinge': choose from softmax, sigmoid, focal"),
    ],
)
def test_bad_searches_are_one_clear_line(capsys, tmp_path, words, message):
    printed, error, code = run(capsys, "tune", *words, "--runs", tmp_path / "runs")
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert message in error
    assert not (tmp_path / "runs").exists()


def test_the_demo_compares_three_losses_and_resumes(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.lab.cli.demo.EPOCHS", 1)
    monkeypatch.setattr("longtail.lab.cli.demo.SEEDS", 1)
    printed, error, code = run(capsys, "demo", "--runs", tmp_path)
    assert code == 0
    assert "digits, imbalance 50, resnet8, 1 epochs" in printed
    for method in ("softmax", "class-balanced softmax, β 0.999", "class-balanced focal, β 0.999, γ 0.5"):
        assert re.search(rf"^{method}  +1  ", printed, re.MULTILINE)
    assert "3/3 digits-50-resnet8" in error
    _, error, code = run(capsys, "demo", "--runs", tmp_path)
    assert (error, code) == ("", 0)
