"""From flags to a configuration, and back."""

import ast
import json
import math
import re
import shlex
from dataclasses import fields, replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

import longtail.lab
from longtail.lab.cli import main
from longtail.lab.cli.arguments import LossArguments, SetupArguments, command_for, in_flags, resolve
from longtail.lab.config import (
    ConfigError,
    DataConfig,
    LossConfig,
    ModelConfig,
    RunConfig,
    RunOptions,
    leaves,
    with_fields,
)
from longtail.lab.data import ImageFolderOptions, SubsetOptions
from longtail.lab.files import write_atomically
from longtail.lab.recipes import RECIPES, cifar, configure, finetune, imagenet, linear_probe, retrained
from longtail.lab.training import identify
from longtail.losses import LOSSES
from tests.lab.cli.test_data import run


def parsed(*words):
    """The configuration and options that ``longtail train`` would train with."""
    with mock.patch("longtail.lab.cli.train.run_training") as training:
        main(["train", *map(str, words)])
    config, options, *_ = training.call_args.args
    return config, options


def resolved(*words):
    return parsed(*words)[0]


def test_what_is_not_given_is_as_the_recipe_says():
    assert resolved("--data", "digits") == cifar(DataConfig(name="digits"))
    assert resolved("--data", "photos") == linear_probe(DataConfig(name="photos"))
    assert resolved("--data", "photos", "--no-freeze") == finetune(DataConfig(name="photos"))
    assert resolved("--data", "photos", "--pretrained", "none") == imagenet(DataConfig(name="photos"))
    focal = LossConfig(name="focal")
    assert resolved("--data", "imagenet", "--loss", "focal") == imagenet(DataConfig(name="imagenet"), focal)
    assert resolved("--data", "photos", "--config", "cifar") == cifar(DataConfig(name="photos"))
    assert all(getattr(SetupArguments(), item.name) in (None, ()) for item in fields(SetupArguments))
    assert all(getattr(LossArguments(), item.name) in (None, False) for item in fields(LossArguments))


def test_flags_change_fields_of_the_recipe():
    words = "--data cifar10 --imbalance 50 --model resnet8 --epochs 20 --batch-size 64 --lr 0.2 --seed 3 --loss focal"
    words += " --beta 0.99 --gamma 2 --defer-reweighting 0.8 --sampling effective --validation-fraction 0.1 --keep best"
    words += " --optimizer adamw --schedule cosine"
    config = resolved(*words.split(), "--group-pattern", "cow[0-9]+", "--image-size", "32", "--micro-batch-size", "8")
    data = DataConfig(
        name="cifar10",
        subset=SubsetOptions(imbalance=50.0),
        sampling="effective",
        image_size=32,
        files=ImageFolderOptions(group_pattern="cow[0-9]+"),
        validation_fraction=0.1,
    )
    loss = LossConfig(name="focal", beta=0.99, gamma=2.0, defer_reweighting=0.8)
    expected = cifar(data, loss, 20)
    optimizer = replace(
        expected.optimizer,
        **{"name": "adamw", "batch_size": 64, "lr": 0.2, "micro_batch_size": 8},
        **{"schedule": "cosine", "milestones": (), "lr_decay": 0.0},
    )
    model = ModelConfig(name="resnet8")
    assert config == replace(expected, model=model, seed=3, keep="best", optimizer=optimizer)


def test_another_optimizer_has_its_usual_learning_rate():
    rates = {
        ("digits", "adamw"): 1e-3,
        ("digits", "sgd"): 0.1,
        ("photos", "sgd"): 0.1,
        ("photos --no-freeze", "sgd"): 0.01,
        ("photos --pretrained none", "adamw"): 1e-3,
        ("digits --lr 3", "adamw"): 3.0,
    }
    for (words, name), lr in rates.items():
        optimizer = resolved("--data", *words.split(), "--optimizer", name).optimizer
        assert (optimizer.name, optimizer.lr, optimizer.nesterov) == (name, lr, False)
    steps = resolved("--data", "photos", "--schedule", "step").optimizer
    assert (steps.epochs, steps.milestones, steps.lr_decay) == (30, (24.0, 27.0), 0.01)


def test_the_weights_of_a_run_are_those_of_its_network(tmp_path):
    write_atomically(tmp_path / "config.json", with_fields(cifar(), {"model": "resnet8"}).to_json())
    write_atomically(tmp_path / "data.json", "{}")
    config = resolved("--data", "digits", "--pretrained", tmp_path)
    assert config == with_fields(cifar(), {"model": "resnet8", "weights": str(tmp_path)})


def test_class_balanced_is_short_for_a_beta():
    assert resolved("--data", "digits", "--class-balanced").loss == LossConfig(beta=0.999)
    assert resolved("--data", "digits", "--class-balanced", "--beta", "0.999").loss == LossConfig(beta=0.999)
    focal = LossConfig(name="focal", beta=0.999, gamma=1.0)
    assert resolved("--data", "digits", "--loss", "focal", "--gamma", "1", "--class-balanced").loss == focal
    with pytest.raises(ConfigError, match="--class-balanced and --beta exclude each other"):
        resolve(SetupArguments(data="digits"), LossArguments(class_balanced=True, beta=0.9))


def test_set_reaches_every_field():
    config = resolved(
        *("--data", "digits", "--epochs", "20", "--set", "optimizer.momentum=0.8", "--set", "milestones=[5, 10.5]"),
        *("--set", "sync_batch_norm=true", "--set", "data.subset.profile=step", "--set", "imbalance=20"),
        *("--set", "loss.weighting=inverse", "--set", "data.files.image_root=photos"),
    )
    expected = {"momentum": 0.8, "milestones": (5.0, 10.5), "sync_batch_norm": True, "profile": "step"}
    expected |= {"imbalance": 20, "weighting": "inverse", "image_root": "photos"}
    assert config == with_fields(cifar(DataConfig(), epochs=20), expected)
    assert config.data.files.image_root == Path("photos")
    assert resolved("--data", "digits", "--lr", "0.1", "--set", "optimizer.lr=0.2").optimizer.lr == 0.2
    assert resolved("--set", "data=digits").data.name == "digits"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.momentm=0.8", "unknown field 'optimizer.momentm': did you mean 'optimizer.momentum'?"),
        ("momentm=0.8", "unknown field 'momentm': did you mean 'momentum'?"),
        ("optimizer.momentum", "--set takes FIELD=VALUE, such as optimizer.momentum=0.8, got 'optimizer.momentum'"),
        ("optimizer.momentum=much", "--set optimizer.momentum=… cannot be 'much'"),
        ("optimizer.lr=much", "--lr cannot be 'much'"),
        ("optimizer={}", "--optimizer cannot be {}"),
        ("epochs=2.5", "epochs must be a whole number, got 2.5"),
        ("data.fingerprint=0", "'data.fingerprint' cannot be set: it is filled in"),
        ("weights_path=runs", "'weights_path' cannot be set: it is filled in"),
        ("version=1", "'version' cannot be set: it is filled in"),
    ],
)
def test_a_bad_assignment_is_one_line(capsys, text, message):
    printed, error, code = run(capsys, "train", "--data", "digits", "--set", text)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert error.startswith(f"error: {message}")
    assert len(error) < 160


BASE = cifar(DataConfig(subset=SubsetOptions(imbalance=20.0)), LossConfig(name="focal", beta=0.99, gamma=2.0), 20)


@pytest.fixture
def base(tmp_path):
    """A folder with a configuration in it."""
    write_atomically(tmp_path / "config.json", BASE.to_json())
    return tmp_path


def test_a_config_is_a_file_or_a_run_folder(base):
    assert resolved("--config", base / "config.json") == resolved("--config", base) == BASE
    config = resolved("--config", base, "--seed", "3", "--epochs", "40", "--beta", "0.9")
    assert config == replace(
        BASE, seed=3, optimizer=BASE.optimizer.with_epochs(40), loss=LossConfig(name="focal", beta=0.9, gamma=2.0)
    )
    assert resolved("--config", base, "--loss", "sigmoid").loss == LossConfig(name="sigmoid", beta=0.99)
    with pytest.raises(ConfigError, match="recipe cifar and a base configuration exclude each other"):
        resolve(SetupArguments(config=str(base), set=("recipe=cifar",)))
    with pytest.raises(ConfigError, match=r"nowhere.json does not exist"):
        resolve(SetupArguments(config="nowhere.json"))
    with pytest.raises(ConfigError, match=r"unknown recipe 'cifer': did you mean 'cifar'\?.* or the path of a config"):
        resolve(SetupArguments(config="cifer"))


BETAS = (0.9, 0.99, 0.5, 0.0, 1.0, 0.9, 0.9, 0.9, 0.999, 0.99)


@pytest.mark.parametrize(
    ("values", "words", "slug"),
    [
        ({"beta": 0.9}, ["--set", f"betas={json.dumps(BETAS)}"], "softmax_betas"),
        ({"betas": BETAS}, ["--beta", "0.99"], "softmax_0.99"),
        ({"betas": BETAS}, ["--class-balanced"], "softmax_0.999"),
        ({"betas": BETAS}, ["--seed", "1"], "softmax_betas"),
        ({"beta": 0.9, "defer_reweighting": 0.5}, ["--set", "weighting=uniform"], "softmax"),
        ({"beta": 0.9, "defer_reweighting": 0.5}, ["--beta", "0"], "softmax_0"),
        ({"beta": 0.9, "defer_reweighting": 0.5}, ["--loss", "sigmoid"], "sigmoid_0.9_drw0.5"),
        ({"weighting": "inverse"}, ["--beta", "0.9"], "softmax_0.9"),
    ],
)
def test_a_flag_takes_the_place_of_what_a_config_says_of_class_weights(tmp_path, values, words, slug):
    write_atomically(tmp_path / "config.json", configure(values).to_json())
    assert resolved("--config", tmp_path, *words).loss.slug == slug


def test_another_sampling_than_that_of_a_config_has_a_beta_of_its_own(tmp_path):
    write_atomically(tmp_path / "config.json", with_fields(cifar(), {"sampling": "effective"}).to_json())
    assert resolved("--config", tmp_path, "--sampling", "square_root").data == DataConfig(sampling="square_root")


def test_a_cosine_schedule_needs_no_word_about_milestones():
    for data in ("digits", "photos"):
        optimizer = resolved("--data", data, "--epochs", "20", "--set", "schedule=cosine").optimizer
        assert (optimizer.schedule, optimizer.milestones, optimizer.lr_decay) == ("cosine", (), 0.0)
    with pytest.raises(ConfigError, match='milestones requires schedule "step"'):
        configure({"schedule": "cosine", "milestones": [5]})


def draw_photos(folder, shades=(40, 200)):
    for name, shade in zip(("dark", "bright"), shades, strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (16, 16), (shade + number,) * 3).save(folder / name / f"{number}.png")
    return folder


def test_other_images_and_weights_than_those_of_a_config_are_found_anew(tmp_path):
    """What a configuration says of its own images and initial weights is of these alone."""
    photos = draw_photos(tmp_path / "photos")
    write_atomically(tmp_path / "first", b"weights")
    (config,) = identify([retrained(cifar(DataConfig(name=str(photos))), str(tmp_path / "first"))])
    assert None not in (config.data.path, config.model.weights_path, config.model.weights_sha256)
    other = configure({"data": "digits", "weights": "second"}, config)
    assert other == retrained(cifar(), "second")
    assert (other.data.path, other.model.weights_path) == (None, None)
    for source in (config, RunConfig.from_json(config.to_json())):
        fresh = configure({"data": "digits", "weights": None, "freeze": False, "sampling": "shuffled"}, source)
        assert fresh == cifar(epochs=10)
    assert configure({"seed": 1}, config) == replace(config, seed=1)


def test_without_pretrained_weights_a_backbone_is_trained(tmp_path):
    write_atomically(tmp_path / "config.json", retrained(cifar(), "runs/parent", None).to_json())
    config = resolved("--config", tmp_path, "--pretrained", "none", "--sampling", "shuffled")
    assert config == cifar()
    assert resolved("--config", tmp_path, "--pretrained", "other").model == ModelConfig(weights="other", freeze=True)
    with pytest.raises(ConfigError, match="freeze requires initial weights"):
        resolve(SetupArguments(data="digits", pretrained="none", freeze=True))


def test_the_configuration_can_be_shown(capsys, tmp_path):
    printed, _, code = run(capsys, "train", "--data", "cifar10", "--class-balanced", "--show-config")
    assert (code, RunConfig.from_json(printed)) == (0, cifar(DataConfig(name="cifar10"), LossConfig(beta=0.999)))
    (tmp_path / "shown.json").write_text(printed)
    assert resolved("--config", tmp_path / "shown.json") == RunConfig.from_json(printed)


# From a configuration to its command, and back.

FRACTION = st.floats(0, 1)
POSITIVE = st.floats(0, 1e6)
WHOLE = st.integers(1, 10**6)
OTHER_VALUES = {
    "imbalance": st.none() | st.floats(1, 1e6),
    "profile": st.sampled_from(["exponential", "step"]),
    "class_order": st.sampled_from(["label", "size"]),
    "max_count": st.none() | WHOLE,
    "subset_seed": st.integers(0, 2**40),
    "folds": st.integers(2, 10),
    "fold": st.integers(0, 9),
    "fold_seed": st.integers(0, 9),
    "test_data": st.sampled_from(["tests", "my tests", "1", "-x"]),
    "image_root": st.sampled_from(["photos", "my photos", "1", "null", "-x"]),
    "class_depth": st.none() | st.integers(1, 3),
    "test_fraction": FRACTION,
    "split_seed": st.integers(0, 9),
    **dict.fromkeys(("path_column", "label_column", "group_column"), st.sampled_from(["file", "my file", "1", "null"])),
    "group_pattern": st.sampled_from(["cow[0-9]+", r"(\d+)_", "-x", "1", "null"]),
    "validation_fraction": st.floats(0.01, 0.99),
    "keep": st.sampled_from(["last", "best"]),
    "on_error": st.sampled_from(["stop", "skip"]),
    "image_size": st.none() | WHOLE,
    "mixup": POSITIVE,
    "cutmix": POSITIVE,
    "augment": st.booleans(),
    "sampling": st.sampled_from(["shuffled", "class_balanced", "square_root", "progressive", "effective"]),
    "sampling_beta": FRACTION,
    "model": st.sampled_from(["resnet8", "resnet110", "resnet152", "tf_efficientnet_lite0"]),
    "weights": st.none() | st.sampled_from(["imagenet", "runs/parent", "my weights.safetensors", "1"]),
    "freeze": st.booleans(),
    "warm_start": st.booleans(),
    "normalize_features": st.booleans(),
    "views": st.integers(0, 9),
    "layer_decay": st.floats(0.01, 1),
    "optimizer": st.sampled_from(["sgd", "adamw"]),
    "batch_size": WHOLE,
    "micro_batch_size": st.none() | WHOLE,
    "lr": POSITIVE,
    "lr_batch_size": WHOLE,
    "momentum": FRACTION,
    "nesterov": st.booleans(),
    "weight_decay": POSITIVE,
    "decay_norms": st.booleans(),
    "warmup_epochs": POSITIVE,
    "schedule": st.sampled_from(["step", "cosine"]),
    "milestones": st.lists(POSITIVE, max_size=3).map(sorted),
    "lr_decay": POSITIVE,
    "seed": st.integers(0, 2**32 - 1),
    "test_every": st.integers(0, 100),
    "precision": st.sampled_from(["32-true", "bf16-mixed", "16-mixed"]),
    "compile": st.booleans(),
    "sync_batch_norm": st.booleans(),
    "fused_head": st.sampled_from([None, False]),
}
FILLED_IN = {"version", "fingerprint", "path", "weights_sha256", "weights_path"}


@st.composite
def loss_configs(draw):
    name = draw(st.sampled_from(list(LOSSES)))
    kwargs = draw(st.fixed_dictionaries({}, optional=dict.fromkeys(LOSSES[name].options, st.floats(0.001, 1))))
    weights = draw(
        st.sampled_from([{}, {"weighting": "uniform"}, {"weighting": "inverse"}, {"weighting": "inverse_sqrt"}])
        | st.fixed_dictionaries({"beta": FRACTION})
        | st.fixed_dictionaries({"betas": st.lists(FRACTION, min_size=1, max_size=3).map(tuple)})
    )
    normalize = draw(st.sampled_from(["classes", "samples"]))
    loss = LossConfig(name=name, normalize=normalize, **kwargs, **weights)
    if not loss.is_plain and draw(st.booleans()):
        loss = replace(loss, defer_reweighting=draw(st.floats(0.01, 0.99)))
    return loss


@st.composite
def run_configs(draw):
    data = DataConfig(name=draw(st.sampled_from(["digits", "cifar100", "imagenet", "inaturalist2018", "my photos/é"])))
    recipe = RECIPES[draw(st.sampled_from(list(RECIPES)))]
    config = recipe(data, draw(loss_configs()), draw(st.none() | st.integers(1, 1000)))
    for name in draw(st.lists(st.sampled_from(sorted(OTHER_VALUES)), max_size=8, unique=True)):
        try:
            config = with_fields(config, {name: draw(OTHER_VALUES[name])})
        except ConfigError:  # it does not go with the others
            assume(name not in ("sampling", "schedule"))
    return config


def test_the_round_trip_covers_every_field():
    of_loss = {name for name, path in leaves(RunConfig).items() if path[0] == "loss"}
    assert {*OTHER_VALUES, *FILLED_IN, *of_loss, "data", "epochs"} == set(leaves(RunConfig))


@settings(deadline=None, max_examples=150)
@given(config=run_configs())
def test_the_command_of_a_configuration_gives_it_again(config):
    again = resolved(*shlex.split(command_for(config))[2:])
    assert again == config
    assert again.data.files.locations == config.data.files.locations
    assert again.to_json() == config.to_json()


def test_the_command_of_a_run_on_images_of_ones_own_names_their_path(tmp_path, monkeypatch):
    photos = draw_photos(tmp_path / "my photos")
    (config,) = identify([cifar(DataConfig(name=str(photos)), epochs=2)])
    monkeypatch.chdir("/")
    again = resolved(*shlex.split(command_for(config))[2:])
    assert identify([again]) == [config]
    assert "fingerprint" not in command_for(config)


def test_the_command_of_a_retrained_run_names_the_path_of_its_weights(tmp_path, monkeypatch):
    write_atomically(tmp_path / "parent.safetensors", b"weights")
    (config,) = identify([retrained(cifar(), str(tmp_path / "parent.safetensors"))])
    monkeypatch.chdir("/")
    command = command_for(config)
    assert f"--pretrained {tmp_path}/parent.safetensors --freeze" in command
    assert identify([resolved(*shlex.split(command)[2:])]) == [config]


def test_the_command_has_the_options_that_are_not_as_usual(tmp_path):
    options = RunOptions(runs=tmp_path / "my runs", data_dir=tmp_path, accelerator="cpu", workers=0)
    options = replace(options, devices=2, checkpoint_minutes=0.5)
    words = shlex.split(command_for(BASE, options))[2:]
    assert parsed(*words) == (BASE, options)
    assert command_for(cifar()) == "longtail train --data digits --loss softmax --epochs 200"


# The command line is the only place that knows flags.


def test_messages_about_fields_are_shown_in_flags():
    assert in_flags("data.name is missing") == "--data is missing"
    assert in_flags("loss.defer_reweighting: model.weights") == "--defer-reweighting: --pretrained"
    assert in_flags("name data.files.path_column") == "name --path-column"
    assert in_flags("lower data.subset.max_count") == "lower --set data.subset.max_count=…"
    for text in (
        "/tmp/data.name",
        "data.json",
        "runs/model.weights/x",
        "my-data.name",
        "optimizer.lr.json",
        "'loss.beta'",
        "lr 0.1",
    ):
        assert in_flags(text) == text


def test_errors_below_the_command_line_are_shown_in_flags(capsys, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise ConfigError("too large: optimizer.micro_batch_size 64 fits")

    monkeypatch.setattr("longtail.lab.cli.train.run_training", fail)
    _, error, code = run(capsys, "train", "--data", "digits")
    assert (code, error) == (2, "error: too large: --micro-batch-size 64 fits\n")
    # A file has fields, and no flags.
    for name, content in (("config.json", {"loss": {"beta": "x"}}), ("sweep.json", {"beta": "x"})):
        (tmp_path / name).write_text(json.dumps(content))
        words = ["sweep", tmp_path / name] if name == "sweep.json" else ["train", "--config", tmp_path / name]
        _, error, code = run(capsys, *words)
        assert (code, error) == (2, f"error: {tmp_path / name}: loss.beta cannot be 'x'\n")


LAB = Path(longtail.lab.__file__).parent
SOURCES = sorted({*LAB.rglob("*.py")} - {*LAB.glob("cli/*.py"), LAB / "__main__.py"})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_below_the_command_line_knows_flags(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert [text for text in texts if re.search(r"--[a-z]", text)] == []
    modules = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [name for name in modules if re.match(r"tyro\b|longtail\.lab\.cli\b", name)] == []


@pytest.mark.parametrize("command", ["train", "tune"])
def test_each_field_of_the_configuration_is_a_flag_that_the_help_leaves_out(capsys, command):
    words = [command, "--data", "photo", "--path-column", "photo", "--label-column=kind", "--epochs", "3"]
    words += ["--set", "optimizer.momentum=0.7", "--group-column", "animal"]
    if command == "tune":
        _, error, code = run(capsys, *words)
        assert code == 2
        assert error.startswith("error: unknown data set 'photo'")
        return
    printed, error, code = run(capsys, *words, "--show-config")
    assert (code, error) == (0, "")
    found = json.loads(printed)
    names = [found["data"]["files"][f"{column}_column"] for column in ("path", "label", "group")]
    assert names == ["photo", "kind", "animal"]
    assert (found["data"]["name"], found["optimizer"]["epochs"], found["optimizer"]["momentum"]) == ("photo", 3, 0.7)


@pytest.mark.parametrize("words", [("--path-colum", "x"), ("--path-column",), ("--label-column", "x", "y")])
def test_what_is_no_field_with_a_value_is_refused_by_the_parser(capsys, words):
    _, error, code = run(capsys, "train", "--data", "digits", *words)
    assert code == 2
    assert "Unrecognized options" in error


def test_training_has_few_flags_and_a_short_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed, error, code = run(capsys, "train", "--help")
    assert (code, error) == (0, "")
    flags = set(re.findall(r"^\W*(?:-h, )?--([a-z][a-z-]*)", printed, re.MULTILINE)) - {"help"}
    assert {"data", "show-config", "set", "runs", "class-balanced"} <= flags
    assert len(flags) <= 30
    assert sum(max(1, math.ceil(len(line) / 80)) for line in printed.splitlines()) <= 80
