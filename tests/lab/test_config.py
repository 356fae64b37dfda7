"""A configuration is the same object from the same JSON, has one id, and refuses what it does not know."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.lab.config import (
    LOSS_KWARGS,
    ConfigError,
    DataConfig,
    LossConfig,
    OptimizerConfig,
    RunConfig,
    RunOptions,
    field_places,
    with_fields,
)
from longtail.lab.data import ImageFolderOptions, SubsetOptions
from longtail.lab.recipes import RECIPES, cifar, default_recipe, imagenet
from longtail.losses import LOSSES

losses = st.one_of(
    st.builds(LossConfig, loss=st.sampled_from(["softmax", "sigmoid"]), beta=st.floats(0, 1)),
    st.builds(LossConfig, loss=st.just("focal"), gamma=st.floats(0, 5), beta=st.none() | st.floats(0, 1)),
    st.builds(LossConfig, betas=st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple)),
    st.builds(LossConfig, weighting=st.sampled_from(["inverse", "inverse_sqrt", "uniform"])),
    st.builds(LossConfig, loss=st.just("ldam"), scale=st.none() | st.floats(1, 64), max_margin=st.floats(0, 1)),
)
configs = st.builds(
    RunConfig,
    data=st.builds(
        DataConfig,
        data=st.sampled_from(["cifar10", "päth/to images", "a/b.txt"]),
        subset=st.builds(SubsetOptions, imbalance=st.none() | st.floats(1, 1e4), subset_seed=st.integers(0, 9)),
        own=st.builds(ImageFolderOptions, class_depth=st.none() | st.integers(1, 3)),
    ),
    loss=losses,
    optimizer=st.builds(
        OptimizerConfig,
        epochs=st.integers(1, 300),
        lr=st.floats(1e-6, 10),
        milestones=st.lists(st.floats(0, 300), max_size=4).map(lambda values: tuple(sorted(values))),
    ),
    seed=st.integers(0, 2**32 - 1),
)


@given(configs)
def test_json_gives_the_same_object_and_the_same_id(config):
    again = RunConfig.from_json(config.to_json())
    assert again == config
    assert again.run_id == config.run_id
    assert again.to_json() == config.to_json()
    assert "/" not in config.run_id
    assert " " not in config.run_id


@given(configs, configs)
def test_different_configurations_have_different_ids(one, other):
    assert (one == other) == (one.run_id == other.run_id)


def test_a_whole_number_is_the_same_as_the_float():
    whole, broken = (RunConfig(data=DataConfig(subset=SubsetOptions(imbalance=value))) for value in (50, 50.0))
    assert whole.run_id == broken.run_id
    assert LossConfig(beta=1).label == LossConfig(beta=1.0).label
    assert RunConfig(loss=LossConfig(betas=(0, 1))).run_id == RunConfig(loss=LossConfig(betas=(0.0, 1.0))).run_id


def test_what_is_not_given_is_the_default_and_has_its_id():
    assert (
        RunConfig(loss=LossConfig(name="focal")).run_id
        == RunConfig(loss=LossConfig(name="focal", beta=0.999, gamma=0.5)).run_id
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"modell": "resnet8"}', "run.json: unknown key 'modell': did you mean 'model'"),
        ('{"loss": {"bta": 0.9}}', "run.json: unknown key 'loss.bta': did you mean 'loss.beta'"),
        ('{"loss": {"beta": "high"}}', "run.json: loss.beta cannot be 'high'"),
        ('{"loss": {"beta": 2}}', r"run.json: beta must be in \[0, 1\], got 2.0"),
        (
            '{"loss": {"gamma": 2}}',
            "run.json: gamma 2 would do nothing: only the losses focal and softmax",
        ),
        ('{"loss": {"weighting": "uniform", "beta": 0.9}}', "run.json: beta 0.9 would do nothing"),
        ('{"loss": 3}', "run.json: loss must be an object, got 3"),
        ('{"seed": true}', "run.json: seed cannot be True"),
        ('{"seed": -1}', "run.json: seed must be in"),
        ('{"model": "resnet33"}', "run.json: unknown model 'resnet33': did you mean 'resnet34'"),
        ('{"optimizer": {"epochs": 0}}', "run.json: epochs must be at least 1"),
        ('{"optimizer": {"milestones": [2, 1]}}', "run.json: milestones must be in order"),
        ('{"optimizer": {"nesterov": true, "momentum": 0}}', "run.json: nesterov needs a momentum"),
        ('{"data": {"on_error": "maybe"}}', "run.json: data.on_error cannot be 'maybe'"),
        ('{"data": {"sampling": "balanced"}}', "run.json: unknown sampling 'balanced'"),
        (
            '{"data": {"sampling_beta": 0.9}}',
            "run.json: sampling_beta 0.9 would do nothing: only the sampling effective",
        ),
        (
            '{"data": {"sampling": "effective", "sampling_beta": 2}}',
            r"run.json: sampling_beta must be in \[0, 1\], got 2",
        ),
        ('{"head": {"head_of": "a"}}', "run.json: head_of and head_method are only of use together"),
        ('{"head": {"head_of": "a", "head_method": "crt"}}', "run.json: unknown head_method 'crt'"),
        (
            '{"head": {"head_of": "a/b", "head_method": "retrain"}}',
            "run.json: head_of must be the name of a run, not a path",
        ),
        (
            '{"head": {"head_of": "a", "head_method": "retrain", "head_tau": 1}}',
            "run.json: head_tau 1 would do nothing",
        ),
        (
            '{"head": {"head_of": "a", "head_method": "tau_norm", "head_tau": -1}}',
            "run.json: head_tau must be a finite",
        ),
        (
            '{"head": {"head_of": "a", "head_method": "logit_adjustment"}, "loss": {"loss": "logit_adjusted"}}',
            "run.json: logit_adjustment would correct twice",
        ),
        (
            '{"head": {"head_of": "a", "head_method": "retrain"}, "sync_batch_norm": true}',
            "run.json: sync_batch_norm would do nothing",
        ),
        ('{"version": 2}', "run.json has version 2; this is for version 1"),
        ("[]", "run.json: it must be an object"),
        ("{", "run.json is no JSON"),
        ("[" * 100_000, "run.json is no JSON"),
        ('{"data":' * 100_000, "run.json is no JSON"),
        ('{"optimizer": {"drop": 1' + "0" * 400 + "}}", "run.json: int too large to convert to float"),
        ('{"seed": 1' + "0" * 400 + "}", "run.json: seed must be in"),
        ('{"seed": 1' + "0" * 5000 + "}", "run.json is no JSON"),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        RunConfig.from_json(text, "run.json")
    assert "\n" not in str(error.value)


def test_the_canonical_json_is_what_it_was():
    """Runs are found by their id: a change of form must come with a new version."""
    assert RunConfig().run_id == "digits-resnet32-softmax_0.999-s0-c3aa974421"
    assert cifar(epochs=1).run_id == "digits-resnet32-softmax_0.999-s0-60aeb9e367"
    assert imagenet(loss=LossConfig(name="focal")).run_id == "digits-resnet50-focal_0.5_0.999-s0-2bfb6a5ce3"
    assert set(json.loads(RunConfig().to_json())) == {
        *("version", "data", "model", "loss", "optimizer", "seed", "test_every", "precision", "compile"),
        *("sync_batch_norm", "head"),
    }


def test_runs_from_before_sampling_and_heads_have_the_same_ids():
    assert cifar(epochs=1).run_id == "digits-resnet32-softmax_0.999-s0-60aeb9e367"
    assert DataConfig(sampling="effective") == DataConfig(sampling="effective", sampling_beta=0.999)
    sampled = with_fields(RunConfig(), {"sampling": "effective", "sampling_beta": 0.9})
    assert sampled.run_id.startswith("digits-resnet32-softmax_0.999-effective_0.9-s0-")


def test_the_name_of_a_run_tells_how_images_are_mixed():
    mixed = with_fields(RunConfig(), {"mixup": 0.2, "cutmix": 1.0})
    assert mixed.run_id.startswith("digits-resnet32-softmax_0.999-mixup_0.2-cutmix_1-s0-")


def test_labels_name_the_loss_as_the_paper_does():
    assert LossConfig(name="focal", gamma=0.5, beta=0.999).label == "focal_0.5_0.999"
    assert LossConfig(name="sigmoid", weighting="uniform").label == "sigmoid"
    assert LossConfig(weighting="inverse_sqrt").label == "softmax_inverse_sqrt"


def test_labels_name_options_that_are_not_usual():
    assert LossConfig(name="softmax_focal", gamma=2).label == "softmax_focal_2_0.999"
    assert LossConfig(name="ldam", weighting="uniform").label == "ldam"
    assert LossConfig(name="ldam", scale=20, beta=0.9).label == "ldam_scale20_0.9"
    assert LossConfig(name="asymmetric", gamma_positive=1, clip=0).label == "asymmetric_gamma_positive1_clip0_0.999"


def test_runs_from_before_the_options_of_other_losses_keep_their_ids():
    assert cifar(epochs=1).run_id == "digits-resnet32-softmax_0.999-s0-60aeb9e367"
    assert cifar(loss=LossConfig(name="sigmoid", weighting="inverse")).run_id.endswith("-12bcc03604")
    large_run = imagenet(DataConfig(name="inaturalist2018"), LossConfig(name="focal", beta=0.99))
    assert large_run.run_id == "inaturalist2018-resnet50-focal_0.5_0.99-s0-011b86e90d"


@pytest.mark.parametrize("loss", LOSSES)
def test_options_of_a_loss_are_filled_told_apart_and_refused_elsewhere(loss):
    usual = LossConfig(name=loss)
    assert usual.own_options == LOSSES[loss].options
    for name in LOSS_KWARGS:
        if name not in LOSSES[loss].options:
            with pytest.raises(ConfigError, match=f"{name} 0.25 would do nothing: only the loss"):
                LossConfig(name=loss, **{name: 0.25})
            continue
        changed = LossConfig(name=loss, **{name: 0.25})
        assert changed.label != usual.label
        assert replace(cifar(), loss=changed).run_id != replace(cifar(), loss=usual).run_id
        with pytest.raises(ConfigError, match=f"{name} must be"):
            LossConfig(name=loss, **{name: -1.0})


def test_the_schedule_of_the_cifar_recipe():
    """Warm-up over 5 epochs per step, × 0.01 at 160 and 180, as in the authors' code."""
    optimizer = cifar().optimizer
    rates = [optimizer.lr_at(epoch) for epoch in (0, 1, 2.5, 5, 100, 159.99, 160, 179.9, 180, 199.9)]
    assert rates == pytest.approx([0, 0.02, 0.05, 0.1, 0.1, 0.1, 1e-3, 1e-3, 1e-5, 1e-5])
    assert (optimizer.epochs, optimizer.batch_size, optimizer.momentum) == (200, 128, 0.9)
    assert (optimizer.weight_decay, optimizer.decay_norms, optimizer.nesterov) == (2e-4, True, False)
    twice = replace(optimizer, batch_size=256)
    assert twice.lr_at(100) == pytest.approx(0.2)
    short = cifar(epochs=20).optimizer
    assert [short.lr_at(epoch / 10) for epoch in (0, 1, 2.5, 5, 100, 159.99, 160, 180)] == pytest.approx(
        [optimizer.lr_at(epoch) for epoch in (0, 1, 2.5, 5, 100, 159.99, 160, 180)]
    )


@pytest.mark.parametrize(
    ("data", "loss", "rate"),
    [
        ("imagenet", "softmax", 0.4),
        ("imagenet", "focal", 0.8),
        ("inaturalist2018", "focal", 1.6),
        ("inaturalist2017", "softmax", 0.4),
    ],
)
def test_the_schedule_of_the_large_recipe(data, loss, rate):
    """Goyal et al.: 0.1 for each 256 images, × 0.1 at 30, 60 and 80; with the focal loss 2 and 4 times as much."""
    config = imagenet(DataConfig(name=data), LossConfig(name=loss))
    optimizer = config.optimizer
    rates = [optimizer.lr_at(epoch) for epoch in (2.5, 5, 29, 30, 60, 80)]
    assert rates == pytest.approx([rate / 2, rate, rate, rate / 10, rate / 100, rate / 1000])
    assert (optimizer.epochs, optimizer.batch_size, optimizer.nesterov, optimizer.weight_decay) == (
        90,
        1024,
        True,
        1e-4,
    )
    assert (config.model, optimizer.decay_norms, config.data.image_size) == ("resnet50", False, 224)


def test_every_data_set_has_a_recipe():
    assert {default_recipe(data) for data in ("digits", "cifar10", "cifar20", "cifar100")} == {"cifar"}
    assert {default_recipe(data) for data in ("imagenet", "inaturalist2017", "some/folder")} == {"large"}
    assert set(RECIPES) == {"cifar", "large"}


@settings(deadline=None, max_examples=30)
@given(configs)
def test_a_configuration_from_before_the_newest_options_has_the_same_id(config):
    content, default = json.loads(config.to_json()), json.loads(RunConfig().to_json())
    older = {name: value for name, value in content.items() if value != default[name] or name == "version"}
    assert RunConfig.from_json(json.dumps(older)).run_id == config.run_id
    for part in ("fold", "on_error"):
        content["data"].pop(part)
    assert RunConfig.from_json(json.dumps(content)).run_id == config.run_id


def other_value(name, value):
    """One that a field of this name and value can have instead."""
    known = {
        "data": "cifar10",
        "profile": "step",
        "on_error": "skip",
        "loss": "sigmoid",
        "weighting": "uniform",
        "beta": 0.5,
        "gamma": 2.0,
        "normalize": "samples",
        "model": "resnet8",
        "precision": "bf16-mixed",
        "milestones": [1.0],
        "betas": [0.5],
        "test_data": "elsewhere",
        "image_root": "elsewhere",
        "imbalance": 50.0,
        "test_fraction": 0.5,
        "sampling": "square_root",
        "sampling_beta": 0.5,
        "head_of": "parent",
        "head_method": "retrain",
        "head_tau": 0.5,
    }
    if name in known:
        return known[name]
    if isinstance(value, bool):
        return not value
    return 7 if value is None or isinstance(value, int) else value + 1


def test_every_value_but_the_version_is_in_the_id():
    base = with_fields(RunConfig(), {"loss": "focal"})
    ids = {base.run_id}
    for name, place in field_places().items():
        if name == "version" or name in set(LOSS_KWARGS) - {"gamma"}:  # the focal loss has no other
            continue
        value = base
        for part in place:
            value = getattr(value, part)
        together = {
            "loss": {"gamma": None},
            "weighting": {"beta": None},
            "sampling_beta": {"sampling": "effective"},
            "head_of": {"head_method": "tau_norm"},
            "head_method": {"head_of": "another"},
            "head_tau": {"head_of": "parent", "head_method": "tau_norm"},
        }
        changed = with_fields(base, {name: other_value(name, value)} | together.get(name, {}))
        assert changed != base, name
        assert changed.run_id not in ids, name
        assert RunConfig.from_json(changed.to_json()).run_id == changed.run_id
        ids.add(changed.run_id)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_minutes": float("nan")}, "checkpoint_minutes must be a finite number >= 0, got nan"),
        ({"checkpoint_minutes": -1}, "checkpoint_minutes must be a finite number >= 0, got -1"),
        ({"workers": -1}, "workers must be a finite number >= 0, got -1"),
        ({"accelerator": "gpu"}, "unknown accelerator 'gpu'"),
    ],
)
def test_options_of_a_run_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        RunOptions(**options)


def test_a_test_follows_the_last_epoch_whatever_was_asked_for():
    config = cifar(epochs=7)
    tested = {
        often: [epoch for epoch in range(1, 8) if replace(config, test_every=often).is_tested_after(epoch)]
        for often in (0, 1, 3, 7, 50)
    }
    assert tested == {0: [7], 1: [1, 2, 3, 4, 5, 6, 7], 3: [3, 6, 7], 7: [7], 50: [7]}


@pytest.mark.parametrize(("data", "name"), [("..", "data"), (".", "data"), (".hidden", "hidden"), ("a/.b.c", "b")])
def test_no_run_is_hidden(data, name):
    assert RunConfig(data=DataConfig(name=data)).run_id.startswith(f"{name}-resnet32-")
