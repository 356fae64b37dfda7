"""``longtail advise``, and training with a β for each class."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longtail.lab.cli.advise import _command, _config
from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, with_fields
from longtail.lab.data import SubsetOptions
from longtail.lab.experiments import expand, load_results
from longtail.lab.experiments.aggregate import deltas
from longtail.lab.recipes import cifar, configure, retrained
from longtail.lab.training import RunFolder
from longtail.lab.training.build import build_loss
from longtail.weights import class_weights, effective_number
from tests.lab.cli.test_data import run
from tests.lab.training.runs import small_config

DIGITS = ["advise", "--data", "digits", "--imbalance", "20"]
BETAS = (0.9, 0.99, 0.5, 0, 1, 0.9, 0.9, 0.9, 0.999, 0.99)


def test_json_has_all_that_is_said_of_a_class(capsys):
    printed, error, code = run(capsys, *DIGITS, "--quantile", "0.2", "--json")
    assert code == 0, error
    content = json.loads(printed)
    rows = content["classes"]
    counts = [row["images"] for row in rows]
    assert [row["class"] for row in rows] == list("0123456789")
    assert content["beta"] == pytest.approx(1 - 1 / content["prototypes"], abs=1e-3)
    for row in rows:
        assert row["effective_number"] == pytest.approx(float(effective_number(row["images"], row["beta_shrunken"])))
        assert row["prototypes"] is None or row["prototypes_low"] <= row["prototypes"]
    weights = [row["weight_of_one_beta"] for row in rows]
    assert weights == pytest.approx(class_weights(counts, beta=content["beta"]).tolist())
    assert content["command"].startswith("longtail train --data digits ")
    assert f"--beta {content['beta']:g}" in content["command"]


def test_the_table_ends_with_commands_that_train(capsys, tmp_path):
    words = ["--quantile", "0.2", "--data-dir", tmp_path, "-o", tmp_path / "classes.svg"]
    printed, error, code = run(capsys, *DIGITS, *words)
    assert code == 0, error
    assert (tmp_path / "classes.svg").read_text().startswith("<svg")
    assert "95% interval" in printed
    commands = [line for line in printed.splitlines() if line.startswith("longtail train ")]
    assert len(commands) == 2
    for command in commands:
        assert f"--set data_dir={tmp_path}" in command
        words = [*shlex.split(command)[1:], "--epochs", "1", "--model", "resnet8", "--runs", str(tmp_path / "runs")]
        _, error, code = run(capsys, *words, "--set", "accelerator=cpu")
        assert code == 0, error
    betas = {len(RunFolder(path).config().loss.betas) for path in (tmp_path / "runs").iterdir()}
    assert betas == {0, 10}


def test_a_run_whose_weights_were_deferred_lends_its_schedule_where_there_are_weights():
    config = configure({"beta": 0.999, "defer_reweighting": 0.5}, small_config())
    assert "--defer-reweighting 0.5" in _command(config, 0.9)
    assert "--defer-reweighting 0.5" in _command(config, betas=BETAS)
    for plain in (_command(config, 0.0), _command(config, betas=(0.0,) * 10)):
        assert "--defer-reweighting" not in plain
    with pytest.raises(ConfigError, match="defer_reweighting requires class weights"):
        configure({"betas": [0.0] * 10, "defer_reweighting": 0.5})


def test_the_command_trains_a_whole_network_on_all_images():
    data = DataConfig(subset=SubsetOptions(imbalance=20.0))
    run = with_fields(small_config(), {"folds": 3, "fold": 1})
    assert _config(data, run) == small_config()
    afresh = _config(data, retrained(run, "runs/parent"))
    assert afresh == replace(cifar(data), model=ModelConfig(name="resnet8"))
    own = replace(run, data=replace(run.data, name="photos", fingerprint="0" * 64, path=Path("photos")))
    assert _config(data, own) == small_config()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["advise"], "--data is missing"),
        ([*DIGITS, "--quantile", "2"], "quantile must be in [0, 1], got 2"),
        ([*DIGITS, "-o", "classes.gif"], "unknown format 'gif'"),
        ([*DIGITS, "--run", "nowhere"], "nowhere does not exist"),
        (["train", "--data", "digits", "--set", "betas=[0.9, 2]"], "betas must be in [0, 1], got 2"),
        (["train", "--data", "digits", "--set", "betas=[0.9]", "--beta", "0.9"], "beta and betas exclude each other"),
        (
            ["train", "--data", "digits", "--set", "betas=[0.9]", "--set", "weighting=inverse"],
            'betas requires weighting "effective"',
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, words, message):
    _, error, code = run(capsys, *words)
    assert code == 2
    assert message in error


def test_betas_of_another_number_of_classes_are_refused(capsys, tmp_path):
    words = ["train", "--data", "digits", "--set", "betas=[0.9, 0.99]", "--model", "resnet8", "--runs", tmp_path]
    _, error, code = run(capsys, *words)
    assert (code, error) == (2, "error: betas has 2 values, but digits has 10 classes\n")
    assert not list(tmp_path.iterdir())


def test_a_loss_with_betas_has_their_weights():
    counts = np.arange(10, 110, 10)
    loss = build_loss(small_config(loss=LossConfig(betas=BETAS)), counts)
    assert loss.class_weight.numpy() == pytest.approx(class_weights(counts, beta=BETAS), rel=1e-6)
    assert small_config(loss=LossConfig(betas=BETAS)).loss.slug == "softmax_betas"


def test_a_sweep_takes_one_list_of_betas_or_several(tmp_path):
    one = expand({"betas": list(BETAS), "seed": [0, 1]})
    assert [config.loss.betas for config in one] == [BETAS, BETAS]
    several = expand({"betas": [list(BETAS), [0.5] * 10]})
    assert len({config.run_id for config in several}) == 2
    mixed = expand({"betas": list(BETAS), "weighting": ["effective", "uniform"]})
    assert [config.loss.slug for config in mixed] == ["softmax_betas", "softmax"]


def test_results_of_betas_are_compared_with_the_plain_loss(tmp_path):
    from tests.lab.experiments.test_results import run_of, write_run

    for loss, error in ((LossConfig(betas=BETAS), 20.0), (LossConfig(), 25.0)):
        write_run(tmp_path, run_of(loss), error=error)
    table = deltas(load_results(tmp_path))
    assert table[["method", "error_delta"]].values.tolist() == [["class-balanced softmax, β per class", -5.0]]


def test_where_no_image_is_alone_it_is_said(capsys):
    assert "No image is alone in its class" in run(capsys, "advise", "--data", "digits", "--quantile", "0.9")[0]
    assert "No image is alone in its class" not in run(capsys, "advise", "--data", "digits", "--quantile", "0.01")[0]
