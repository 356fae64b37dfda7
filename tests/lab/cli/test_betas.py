"""Training with a β for each class."""

import numpy as np
import pytest

from longtail.lab.cli.arguments import command_for
from longtail.lab.config import ConfigError, LossConfig
from longtail.lab.experiments import expand, load_results
from longtail.lab.experiments.aggregate import deltas
from longtail.lab.recipes import configure
from longtail.lab.training.build import build_loss
from longtail.weights import class_weights
from tests.lab.cli.test_data import run
from tests.lab.training.runs import small_config

BETAS = (0.9, 0.99, 0.5, 0, 1, 0.9, 0.9, 0.9, 0.999, 0.99)


@pytest.mark.parametrize(
    ("words", "message"),
    [
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


def test_weights_of_betas_can_be_deferred_and_nothing_without_weights():
    config = configure({"betas": list(BETAS), "defer_reweighting": 0.5}, small_config())
    assert "--defer-reweighting 0.5" in command_for(config)
    assert "--defer-reweighting" not in command_for(configure({"betas": [0.0] * 10}, config))
    with pytest.raises(ConfigError, match="defer_reweighting requires class weights"):
        configure({"betas": [0.0] * 10, "defer_reweighting": 0.5})
