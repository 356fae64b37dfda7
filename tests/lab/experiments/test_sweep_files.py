"""Sweep files."""

import json

import pytest

from longtail.lab.config import ConfigError, ModelConfig
from longtail.lab.experiments import expand, read_sweep
from longtail.lab.recipes import cifar, linear_probe


def test_lists_are_swept_over_and_all_else_is_the_same():
    runs = expand({"data": "cifar10", "imbalance": [10, 100], "seed": [0, 1, 2], "model": "resnet20"})
    assert [(run.data.subset.imbalance, run.seed) for run in runs] == [(i, s) for i in (10, 100) for s in (0, 1, 2)]
    assert {run.model.name for run in runs} == {"resnet20"}


def test_what_would_do_nothing_is_left_out_and_counted_once():
    runs = expand(
        {"loss": ["softmax", "focal"], "gamma": [0.5, 1], "weighting": ["uniform", "effective"], "beta": [0.9, 0.99]}
    )
    slugs = [run.loss.slug for run in runs]
    plain = {"softmax", "focal_0.5", "focal_1"}
    assert set(slugs) == plain | {f"{name}_{beta}" for name in plain for beta in (0.9, 0.99)}
    assert len(slugs) == 9
    sampled = expand({"sampling": ["shuffled", "effective"], "sampling_beta": [0.9, 0.99]})
    assert [run.data.sampling_slug for run in sampled] == [None, "effective_0.9", "effective_0.99"]
    runs = expand({"loss": ["softmax", "ldam", "softmax_focal"], "scale": [20, 30], "gamma": 1})
    assert [run.loss.slug for run in runs] == ["softmax", "ldam_scale20", "ldam", "softmax_focal_1"]
    with pytest.raises(ConfigError, match="gamma applies to none of these runs"):
        expand({"loss": "softmax", "gamma": [0.5, 1]})


def test_the_recipe_is_that_of_the_data_and_epochs_stretch_it():
    assert expand({"data": "cifar10", "epochs": [20, 40]})[1].optimizer == cifar(epochs=40).optimizer
    assert expand({"data": "photos"})[0].optimizer == linear_probe().optimizer
    assert expand({"data": "photos", "recipe": "cifar"})[0].optimizer == cifar().optimizer
    runs = expand({"milestones": [[1, 2], [3, 4]], "lr_decay": 0.5})
    assert [run.optimizer.milestones for run in runs] == [(1.0, 2.0), (3.0, 4.0)]
    assert expand({"milestones": [1, 2]})[0].optimizer.milestones == (1.0, 2.0)


def test_a_python_file_has_a_dictionary_or_a_list_of_configurations(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("sweep = {'seed': range(4)}\n")
    assert [run.seed for run in read_sweep(path)] == [0, 1, 2, 3]
    path.write_text("from pathlib import Path\nsweep = {'milestones': (1, 2), 'test_data': Path('test')}\n")
    (run,) = read_sweep(path)
    assert (run.optimizer.milestones, str(run.data.files.test_data)) == ((1.0, 2.0), "test")
    path.write_text("from longtail.lab.experiments import beta_sweep\nsweep = beta_sweep('cifar10')[:2]\n")
    assert [run.loss.slug for run in read_sweep(path)] == ["softmax", "softmax_0.9"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "a.json is not valid JSON"),
        ("a.json", "[1]", r"a.json must hold an object, got \[1\]"),
        ("a.json", json.dumps({"imbalence": 5}), "a.json: unknown name 'imbalence'.*imbalance"),
        ("a.json", json.dumps({"beta": [0.9, 7]}), "a.json: .*beta"),
        ("a.json", json.dumps({"beta": "much"}), "a.json: loss.beta cannot be 'much'"),
        ("a.json", json.dumps({"seed": []}), "a.json: seed has no values"),
        ("a.json", json.dumps({"milestones": 5}), "a.json: optimizer.milestones cannot be 5"),
        ("a.json", json.dumps({"recipe": "cake"}), "a.json: .*cake"),
        ("a.json", json.dumps({"loss": {"focal": 1}}), "a.json: loss.name cannot be {'focal': 1}"),
        ("a.json", json.dumps({"data": 5, "loss": "focal"}), "a.json: data.name cannot be 5"),
        ("a.py", "sweep = 3", "a.py must hold a dictionary or a list of RunConfigs called sweep, got 3"),
        ("a.py", "1 / 0", "a.py: ZeroDivisionError"),
        ("a.py", "", "a.py must hold"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        read_sweep(tmp_path / name)
    assert "\n" not in str(error.value)


def test_losses_are_plain_if_nothing_is_said_of_class_weights():
    runs = expand({"loss": ["softmax", "logit_adjusted"]})
    assert [run.loss.slug for run in runs] == ["softmax", "logit_adjusted"]
    assert expand({"loss": "logit_adjusted", "weighting": "effective"})[0].loss.slug == "logit_adjusted_0.999"
    weighted = expand({"weighting": ["uniform", "effective"], "defer_reweighting": [0.5, 0.8]})
    assert [run.loss.slug for run in weighted] == ["softmax", "softmax_0.999_drw0.5", "softmax_0.999_drw0.8"]


def test_initial_weights_and_a_frozen_backbone_are_fields_as_others():
    (run,) = expand({"weights": "runs/parent", "freeze": True, "sampling": "class_balanced", "epochs": 10})
    assert (run.model, run.title) == (ModelConfig(weights="runs/parent", freeze=True), "softmax, cRT")
