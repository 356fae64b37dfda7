"""A configuration is the same object from the same JSON, has one id, and refuses what it does not know."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.lab.config import (
    LOSS_KWARGS,
    ConfigError,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    RunOptions,
    leaves,
    with_fields,
)
from longtail.lab.data import ImageFolderOptions, SubsetOptions
from longtail.lab.recipes import RECIPES, cifar, configure, default_recipe, imagenet
from longtail.losses import LOSSES

losses = st.one_of(
    st.builds(LossConfig, name=st.sampled_from(["softmax", "sigmoid"]), beta=st.floats(0, 1)),
    st.builds(LossConfig, name=st.just("focal"), gamma=st.floats(0, 5), beta=st.none() | st.floats(0, 1)),
    st.builds(LossConfig, betas=st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple)),
    st.builds(LossConfig, weighting=st.sampled_from(["inverse", "inverse_sqrt", "uniform"])),
    st.builds(LossConfig, name=st.just("ldam"), scale=st.none() | st.floats(1, 64), max_margin=st.floats(0, 1)),
)
configs = st.builds(
    RunConfig,
    data=st.builds(
        DataConfig,
        name=st.sampled_from(["cifar10", "päth/to images", "a/b.txt"]),
        fingerprint=st.sampled_from(["0" * 64, "1" * 64]),
        subset=st.builds(SubsetOptions, imbalance=st.none() | st.floats(1, 1e4), subset_seed=st.integers(0, 9)),
        files=st.builds(ImageFolderOptions, class_depth=st.none() | st.integers(1, 3)),
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
    assert LossConfig(beta=1).slug == LossConfig(beta=1.0).slug
    assert RunConfig(loss=LossConfig(betas=(0, 1))).run_id == RunConfig(loss=LossConfig(betas=(0.0, 1.0))).run_id


def test_a_loss_under_its_other_name_is_the_same_run():
    assert LossConfig(name="balanced_softmax") == LossConfig(name="logit_adjusted")


def test_what_is_not_given_is_the_default_and_has_its_id():
    assert (
        RunConfig(loss=LossConfig(name="focal")).run_id
        == RunConfig(loss=LossConfig(name="focal", weighting="uniform", gamma=0.5)).run_id
    )
    assert LossConfig(weighting="effective") == LossConfig(beta=0.999)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"modell": "resnet8"}', "run.json: unknown key 'modell': did you mean 'model'"),
        ('{"loss": {"bta": 0.9}}', "run.json: unknown key 'loss.bta': did you mean 'loss.beta'"),
        ('{"loss": {"beta": "high"}}', "run.json: loss.beta cannot be 'high'"),
        ('{"loss": {"beta": 2}}', r"run.json: beta must be in \[0, 1\], got 2.0"),
        (
            '{"loss": {"gamma": 2}}',
            'run.json: gamma requires loss "focal" or "softmax_focal"',
        ),
        ('{"loss": {"weighting": "uniform", "beta": 0.9}}', 'run.json: beta requires weighting "effective"'),
        ('{"loss": 3}', "run.json: loss must be an object, got 3"),
        ('{"seed": true}', "run.json: seed cannot be True"),
        ('{"seed": -1}', "run.json: seed must be in"),
        ('{"loss": {"beta": 0.9, "betas": [0.9]}}', "run.json: beta and betas exclude each other"),
        ('{"model": {"name": ""}}', "run.json: the model must have a name"),
        ('{"optimizer": {"epochs": 0}}', "run.json: epochs must be at least 1"),
        ('{"optimizer": {"milestones": [2, 1]}}', "run.json: milestones must be in order"),
        ('{"optimizer": {"nesterov": true, "momentum": 0}}', "run.json: nesterov requires optimizer sgd"),
        ('{"data": {"on_error": "maybe"}}', "run.json: data.on_error cannot be 'maybe'"),
        ('{"data": {"sampling": "balanced"}}', "run.json: unknown sampling 'balanced'"),
        (
            '{"data": {"sampling_beta": 0.9}}',
            'run.json: sampling_beta requires sampling "effective"',
        ),
        (
            '{"data": {"sampling": "effective", "sampling_beta": 2}}',
            r"run.json: sampling_beta must be in \[0, 1\], got 2",
        ),
        ('{"model": {"freeze": true}}', "run.json: freeze requires initial weights"),
        (
            '{"model": {"weights": "a", "freeze": true}, "sync_batch_norm": true}',
            "run.json: sync_batch_norm requires a backbone that is trained",
        ),
        ('{"optimizer": {"name": "adam"}}', "run.json: optimizer.name cannot be 'adam'"),
        ('{"optimizer": {"schedule": "cosine", "milestones": [3]}}', 'run.json: milestones requires schedule "step"'),
        ('{"version": 1}', r"run.json has configuration version 1 \(longtail 0.1\); this longtail reads 2"),
        ('{"version": 3}', "run.json has configuration version 3; this longtail reads 2"),
        ("[]", "run.json: it must be an object"),
        ("{", "run.json is not valid JSON"),
        ("[" * 100_000, "run.json is not valid JSON"),
        ('{"data":' * 100_000, "run.json is not valid JSON"),
        ('{"optimizer": {"lr_decay": 1' + "0" * 400 + "}}", "run.json: int too large to convert to float"),
        ('{"seed": 1' + "0" * 400 + "}", "run.json: seed must be in"),
        ('{"seed": 1' + "0" * 5000 + "}", "run.json is not valid JSON"),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        RunConfig.from_json(text, "run.json")
    assert "\n" not in str(error.value)


def test_the_canonical_json_is_what_it_was():
    """Runs are found by their id: a change of form must come with a new version."""
    assert RunConfig().run_id == "digits-resnet32-softmax-s0-0899eaeee7"
    assert cifar(loss=LossConfig(beta=0.999), epochs=1).run_id == "digits-resnet32-softmax_0.999-s0-456acc2b00"
    assert imagenet(loss=LossConfig(name="focal")).run_id == "digits-resnet50-focal_0.5-s0-017f939ea8"
    assert set(json.loads(RunConfig().to_json())) == {
        *("version", "data", "model", "loss", "optimizer", "seed", "test_every", "precision", "compile"),
        *("sync_batch_norm", "keep", "fused_head"),
    }


def test_the_committed_records_keep_their_ids():
    files = list((Path(__file__).parents[2] / "results").rglob("config.json"))
    assert len(files) > 300
    for file in files:
        assert RunConfig.from_json(file.read_text(encoding="utf-8"), file).run_id == file.parent.name


def test_the_name_of_a_run_tells_how_images_are_sampled():
    assert DataConfig(sampling="effective") == DataConfig(sampling="effective", sampling_beta=0.999)
    sampled = with_fields(RunConfig(), {"sampling": "effective", "sampling_beta": 0.9})
    assert sampled.run_id.startswith("digits-resnet32-softmax-effective_0.9-s0-")


def test_the_name_of_a_run_tells_how_images_are_mixed():
    mixed = with_fields(RunConfig(), {"mixup": 0.2, "cutmix": 1.0})
    assert mixed.run_id.startswith("digits-resnet32-softmax-mixup_0.2-cutmix_1-s0-")


def test_slugs_name_the_loss_as_the_paper_does():
    assert LossConfig(name="focal", gamma=0.5, beta=0.999).slug == "focal_0.5_0.999"
    assert LossConfig(name="sigmoid", weighting="uniform").slug == "sigmoid"
    assert LossConfig(weighting="inverse_sqrt").slug == "softmax_inverse_sqrt"


def test_slugs_name_options_that_are_not_usual():
    assert LossConfig(name="softmax_focal", gamma=2).slug == "softmax_focal_2"
    assert LossConfig(name="ldam", weighting="uniform").slug == "ldam"
    assert LossConfig(name="ldam", scale=20, beta=0.9).slug == "ldam_scale20_0.9"
    assert LossConfig(name="asymmetric", gamma_positive=1, clip=0).slug == "asymmetric_gamma_positive1_clip0"


@pytest.mark.parametrize("loss", LOSSES)
def test_options_of_a_loss_are_filled_told_apart_and_refused_elsewhere(loss):
    usual = LossConfig(name=loss)
    assert usual.loss_kwargs == LOSSES[loss].options
    for name in LOSS_KWARGS:
        if name not in LOSSES[loss].options:
            with pytest.raises(ConfigError, match=f"{name} requires loss "):
                LossConfig(name=loss, **{name: 0.25})
            continue
        changed = LossConfig(name=loss, **{name: 0.25})
        assert changed.slug != usual.slug
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
def test_the_schedule_of_the_imagenet_recipe(data, loss, rate):
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
    assert (config.model, optimizer.decay_norms) == (ModelConfig(name="resnet50"), False)


def test_every_data_set_has_a_recipe():
    assert {default_recipe(data) for data in ("digits", "cifar10", "cifar20", "cifar100")} == {"cifar"}
    assert {default_recipe(data) for data in ("imagenet", "inaturalist2017")} == {"imagenet"}
    assert set(RECIPES) == {"cifar", "imagenet", "linear_probe", "finetune"}


@pytest.mark.parametrize(
    ("data", "values", "recipe"),
    [
        ("photos", {}, "linear_probe"),
        ("photos", {"freeze": False}, "finetune"),
        ("photos", {"model": "resnet50"}, "linear_probe"),
        ("photos", {"model": "resnet8"}, "imagenet"),
        ("photos", {"weights": None}, "imagenet"),
        ("photos", {"weights": "some/file.pth", "freeze": False}, "finetune"),
        ("digits", {"model": "resnet50"}, "linear_probe"),
        ("digits", {"model": "resnet50", "weights": None}, "cifar"),
        ("digits", {"weights": "runs/parent"}, "cifar"),
        ("imagenet", {"weights": "imagenet"}, "linear_probe"),
        ("imagenet", {"model": "resnet101"}, "imagenet"),
    ],
)
def test_the_recipe_depends_on_the_network_and_its_weights(data, values, recipe):
    assert default_recipe(data, values) == recipe
    assert configure({"data": data, **values}).optimizer == RECIPES[recipe]().optimizer


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
        "fingerprint": "0" * 64,
        "profile": "step",
        "class_order": "size",
        "on_error": "skip",
        "loss": "sigmoid",
        "weighting": "inverse",
        "beta": 0.5,
        "gamma": 2.0,
        "normalize": "samples",
        "defer_reweighting": 0.5,
        "model": "resnet8",
        "weights": "parent",
        "weights_sha256": "0" * 64,
        "optimizer": "adamw",
        "schedule": "cosine",
        "precision": "bf16-mixed",
        "milestones": [1.0],
        "betas": [0.5],
        "imbalance": 50.0,
        "test_fraction": 0.5,
        "validation_fraction": 0.5,
        "keep": "best",
        "fused_head": True,
        **dict.fromkeys(("path_column", "label_column", "group_column", "group_pattern"), "animal"),
        "sampling": "square_root",
        "sampling_beta": 0.5,
    }
    if name in known:
        return known[name]
    if isinstance(value, bool):
        return not value
    return 7 if value is None or isinstance(value, int) else value + 1


def test_every_value_but_the_version_and_locations_is_in_the_id():
    base = with_fields(RunConfig(), {"loss": "focal", "weighting": None, "beta": 0.9})
    ids = {base.run_id}
    locations = {"path", "test_data", "image_root", "weights_path"}
    for name, path in leaves(RunConfig).items():
        if name == "version" or name in set(LOSS_KWARGS) - {"gamma"}:  # the focal loss has no other
            continue
        if name in locations:
            assert with_fields(base, {name: "elsewhere"}) == base
            continue
        value = functools.reduce(getattr, path, base)
        together = {
            "loss": {"gamma": None},
            "weighting": {"beta": None},
            "betas": {"beta": None},
            "sampling_beta": {"sampling": "effective"},
            "freeze": {"weights": "another"},
            "warm_start": {"weights": "another"},
            "normalize_features": {"weights": "another", "freeze": True},
            "views": {"weights": "another", "freeze": True},
            "layer_decay": {"layer_decay": 0.5},
            "keep": {"validation_fraction": 0.25},
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


@pytest.mark.parametrize(("data", "name"), [("/", "data"), (".hidden", "hidden"), ("a/.b.c", "b"), ("a b/", "a_b")])
def test_images_are_named_by_their_folder_and_no_run_is_hidden(data, name):
    config = RunConfig(data=DataConfig(name=data))
    with pytest.raises(ConfigError, match="have no fingerprint yet"):
        _ = config.run_id
    found = replace(config, data=config.data.identified("0" * 64))
    assert found.run_id.startswith(f"{name}-resnet32-")


def test_where_images_are_is_kept_beside_the_identity(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed = ["photos", "photos/", "./photos", str(tmp_path / "photos")]
    found = [DataConfig(name=name).identified("0" * 64) for name in typed]
    assert len({RunConfig(data=data).run_id for data in found}) == 1
    assert {data.path for data in found} == {tmp_path / "photos"}
    assert "photos" not in json.loads(RunConfig(data=found[0]).to_json())["data"].get("path", "")


def test_the_name_of_a_folder_of_images_is_not_hashed():
    """A fingerprint says which images they are; the name is for people alone."""
    ids = [
        RunConfig(data=DataConfig(name=name).identified("0" * 64)).run_id for name in ("photos", "pictures", "digits")
    ]
    assert [run_id.split("-")[0] for run_id in ids] == ["photos", "pictures", "digits"]
    assert len({run_id[-10:] for run_id in ids}) == 1
    assert RunConfig(data=DataConfig(name="photos").identified("1" * 64)).run_id[-10:] != ids[0][-10:]
    assert not DataConfig(name="a/digits").identified("0" * 64).is_catalogued


def test_images_that_are_found_again_keep_their_name():
    found = DataConfig(name="photos").identified("0" * 64)
    moved = replace(found, path=Path("pictures"))
    assert moved.identified("0" * 64).name == "photos"
    assert moved.identified("1" * 64).name == "pictures"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep": "best"}, "keep best requires validation images"),
        ({"keep": "first"}, "keep cannot be 'first'"),
        ({"keep": "best", "validation_fraction": 0.1, "test_every": 0}, "keep best requires test_every above 0"),
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and below 1, got 1.0"),
        ({"validation_fraction": -0.1}, "validation_fraction must be at least 0 and below 1, got -0.1"),
    ],
)
def test_test_images_never_choose_the_epoch(values, message):
    with pytest.raises(ConfigError, match=message):
        with_fields(RunConfig(), values)


def test_committed_records_keep_their_ids():
    """Fields that are added later do not rename runs."""
    files = sorted(Path("results").rglob("config.json"))
    assert len(files) > 100
    for file in files:
        assert RunConfig.from_json(file.read_text(encoding="utf-8"), file).run_id == file.parent.name


def test_the_cosine_schedule_and_adamw():
    optimizer = OptimizerConfig(name="adamw", schedule="cosine", epochs=10, warmup_epochs=2.0, lr=1.0)
    rates = [optimizer.lr_at(epoch) for epoch in (0, 1, 2, 6, 10)]
    assert rates == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert (optimizer.milestones, optimizer.lr_decay) == ((), 0.0)
    assert optimizer.with_epochs(20).warmup_epochs == 4.0


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        ({}, "softmax"),
        ({"name": "focal", "beta": 0.999}, "class-balanced focal, β 0.999, γ 0.5"),
        ({"name": "logit_adjusted"}, "balanced softmax"),
        ({"name": "logit_adjusted", "tau": 0.5}, "logit-adjusted softmax, τ 0.5"),
        ({"weighting": "inverse"}, "softmax, 1/n weights"),
        ({"betas": (0.9, 0.99)}, "class-balanced softmax, β per class"),
        ({"beta": 0.9, "normalize": "samples"}, "class-balanced softmax, β 0.9, normalised over samples"),
        ({"name": "ldam", "beta": 0.9999, "defer_reweighting": 0.8}, "class-balanced LDAM, β 0.9999, deferred to 0.8"),
        ({"name": "asymmetric", "clip": 0.0}, "asymmetric, clip 0"),
    ],
)
def test_titles_name_the_loss_for_people(loss, title):
    assert LossConfig(**loss).title == title


def test_a_changed_loss_keeps_the_weights_and_drops_the_options_of_another():
    base = configure({"loss": "focal", "gamma": 2.0, "beta": 0.99, "defer_reweighting": 0.8})
    assert configure({"loss": "softmax"}, base).loss == LossConfig(beta=0.99, defer_reweighting=0.8)
    assert configure({"beta": 0.9}, base).loss == replace(base.loss, beta=0.9)
    assert configure({"weighting": "uniform"}, base).loss == LossConfig(name="focal", gamma=2.0)
    assert configure({"loss.gamma": 1.0, "optimizer.lr": 0.5}, base).loss.gamma == 1.0
    with pytest.raises(ConfigError, match=r"unknown field 'optimizer\.momentun': did you mean 'optimizer.momentum'"):
        configure({"optimizer.momentun": 0.8})


def test_class_balanced_sampling_is_crt_only_on_the_backbone_of_a_run():
    balanced = DataConfig(name="photos", sampling="class_balanced")
    probe = RunConfig(data=balanced, model=ModelConfig(name="resnet50", weights="imagenet", freeze=True))
    assert probe.title == "softmax, class-balanced sampling"
    assert RunConfig(data=balanced, model=ModelConfig(weights="runs/parent", freeze=True)).title == "softmax, cRT"
