"""Fine-tuning: the head it starts from, learning rates by layer, what it costs, and when it is suggested."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from longtail.lab.cli import main
from longtail.lab.cli.arguments import command_for
from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions, with_fields
from longtail.lab.data import SubsetOptions
from longtail.lab.models import build_model, classifier
from longtail.lab.recipes import finetune, finetuning_of, linear_probe, probe_of
from longtail.lab.training import finetuning, load_run, open_data, train
from longtail.lab.training.build import build_network, build_optimizer
from longtail.lab.training.frozen import FrozenBackbone

NAME = "test_efficientnet"
SIZE = 32


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A small model's weights in a file, in place of pretrained ones."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("weights") / "backbone.safetensors"
    save_file(build_model(NAME, 1000).state_dict(), path)
    return path


def configured(weights, loss=LossConfig(), **changes):
    data = DataConfig(subset=SubsetOptions(imbalance=50.0), image_size=SIZE)
    config = finetune(data, loss, 1)
    model = ModelConfig(name=NAME, weights=str(weights), warm_start=True)
    return with_fields(replace(config, model=model), {"lr": 0.0, **changes})


@pytest.mark.parametrize("loss", [LossConfig(), LossConfig(name="focal", beta=0.99, defer_reweighting=0.5)])
def test_the_head_starts_from_a_linear_probe(tmp_path, weights, loss):
    path = train(configured(weights, loss), RunOptions(runs=tmp_path))
    dataset, _, config = open_data(configured(weights, loss))
    backbone = FrozenBackbone(probe_of(config), dataset)
    found = load_run(path).model
    assert torch.equal(classifier(found).weight, finetuning.probe_head(backbone).weight)
    assert torch.equal(found.conv_stem.weight, build_network(config, dataset).conv_stem.weight)
    logits = classifier(found)(backbone.features(dataset.train)[:, 0])
    assert (logits.argmax(dim=1) == dataset.train.labels).float().mean() > 0.6


def test_a_resumed_training_is_not_started_again(tmp_path, weights, monkeypatch):
    config = configured(weights, lr=1e-3, epochs=2)
    whole = train(config, RunOptions(runs=tmp_path / "whole"))
    calls = []
    start = finetuning.warm_start
    monkeypatch.setattr("longtail.lab.training.loop.warm_start", lambda *given: calls.append(start(*given)))
    from longtail.lab.training import loop

    epoch = loop.train_epoch

    def interrupted(training, *rest):
        if training.state.epoch == 1 and len(calls) == 1:
            calls.append("interrupted")
            raise KeyboardInterrupt
        return epoch(training, *rest)

    monkeypatch.setattr(loop, "train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config, RunOptions(runs=tmp_path / "parts"))
    again = train(config, RunOptions(runs=tmp_path / "parts"))
    assert calls == [None, "interrupted"]
    assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_warm_starts_need_weights_that_are_trained():
    for model in ({"weights": None}, {"weights": "a", "freeze": True}):
        with pytest.raises(ConfigError, match="warm_start requires initial weights and a backbone that is trained"):
            ModelConfig(warm_start=True, **model)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_earlier_layers_have_lower_learning_rates(loss):
    config = with_fields(finetune(loss=LossConfig(name=loss)), {"model": NAME, "layer_decay": 0.5})
    network = build_model(NAME, 10)
    optimizer = build_optimizer(config, network)
    groups = {id(weight): group for group in optimizer.param_groups for weight in group["params"]}
    assert set(groups) == {id(weight) for weight in network.parameters()}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(groups)
    scales = [groups[id(weight)]["lr_scale"] for weight in (network.conv_stem.weight, classifier(network).weight)]
    assert scales[1] == 1.0
    assert scales[0] <= 0.5**3
    order = [groups[id(weight)]["lr_scale"] for weight in network.parameters() if weight.ndim > 1]
    assert order == sorted(order)
    decays = {weight.ndim > 1: groups[id(weight)]["weight_decay"] for weight in network.parameters()}
    assert decays == {True: 0.05, False: 0.0}


def test_the_training_uses_the_learning_rates_of_the_layers(tmp_path, weights):
    config = configured(weights, lr=1e-3, layer_decay=1e-6, weight_decay=0.0)
    found = load_file(train(config, RunOptions(runs=tmp_path)) / "model.safetensors")
    before = load_file(weights)
    name = "conv_stem.weight"
    assert torch.allclose(found[name], before[name], atol=1e-6)
    start = configured(weights, layer_decay=1e-6, weight_decay=0.0)
    head = load_file(train(start, RunOptions(runs=tmp_path)) / "model.safetensors")["classifier.weight"]
    assert (found["classifier.weight"] - head).abs().max() > 1e-4


def test_a_small_network_has_no_layer_decay():
    config = with_fields(RunConfig(), {"layer_decay": 0.5})
    with pytest.raises(ConfigError, match=r"optimizer.layer_decay requires a model of timm, not resnet32"):
        build_optimizer(config, build_model("resnet32", 10))


def draw_photos(folder, size=40, images=6):
    """Two classes that any network tells apart."""
    generator = np.random.default_rng(0)
    for name, shade in (("dark", 40), ("bright", 200)):
        (folder / name).mkdir(parents=True)
        for number in range(images):
            pixels = generator.integers(shade - 30, shade + 30, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def run(capsys, *words):
    code = 0
    try:
        main([str(word) for word in words])
    except SystemExit as leaving:
        code = leaving.code
    printed, error = capsys.readouterr()
    return printed, error, code


def test_the_estimate_of_a_fine_tuning_comes_first_with_that_of_the_frozen_backbone(tmp_path, capsys, weights):
    photos = draw_photos(tmp_path / "photos")
    words = ["train", "--data", photos, "--model", NAME, "--pretrained", weights, "--image-size", SIZE]
    _, error, code = run(capsys, *words, "--no-freeze", "--epochs", 1, "--runs", tmp_path / "runs")
    lines = error.splitlines()
    (told,) = [number for number, line in enumerate(lines) if "; the frozen backbone takes " in line]
    (computed,) = [number for number, line in enumerate(lines) if line.startswith("computed the features of")]
    assert code == 0
    assert told < computed
    assert " images/s); the frozen backbone takes 0 s" in lines[told]


def test_images_that_are_scaled_up_are_noted(tmp_path, capsys, weights):
    photos = draw_photos(tmp_path / "photos", size=20)
    words = ["train", "--data", photos, "--model", NAME, "--pretrained", weights, "--epochs", 1]
    _, error, _ = run(capsys, *words, "--image-size", 32, "--runs", tmp_path / "runs")
    assert "images are small, 20 pixels at the median: they are enlarged to the network's 32\n" in error
    _, error, _ = run(capsys, *words, "--image-size", 16, "--runs", tmp_path / "runs")
    assert "enlarged" not in error


@pytest.mark.parametrize("command", ["train", "tune"])
def test_images_smaller_than_half_the_input_are_not_enlarged_unasked(tmp_path, capsys, command):
    photos = draw_photos(tmp_path / "photos", size=20)
    words = [command, "--data", photos, "--epochs", 1, "--runs", tmp_path / "runs"]
    _, error, code = run(capsys, *words)
    assert code == 2
    assert error.splitlines()[-1] == (
        "error: photos: images of 20 pixels are smaller than half the network's input of 224: "
        "--image-size 20 trains at their size, --image-size 224 enlarges them"
    )
    _, error, code = run(capsys, *words, "--model", "resnet8")
    assert code == 2
    assert "--image-size 20 trains at their size" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("size", "expected"), [(112, 0), (111, 2)])
def test_images_of_half_the_input_or_more_are_enlarged_and_noted(tmp_path, capsys, size, expected):
    photos = draw_photos(tmp_path / "photos", size=size)
    _, error, code = run(capsys, "train", "--data", photos, "--epochs", 1, "--runs", tmp_path / "runs")
    assert code == expected
    note = f"images are small, {size} pixels at the median: they are enlarged to the network's 224"
    assert (note in error) == (expected == 0)


def test_images_in_memory_are_enlarged_without_a_question(tmp_path, capsys, weights):
    words = ["train", "--data", "digits", "--imbalance", 50, "--model", NAME, "--pretrained", weights, "--epochs", 1]
    _, _, code = run(capsys, *words, "--runs", tmp_path / "runs", "--dry-run")
    assert code == 0


def test_fine_tuning_is_suggested_where_the_head_does_not_fit(tmp_path, capsys, monkeypatch):
    photos = draw_photos(tmp_path / "photos")
    words = [
        "train",
        "--data",
        photos,
        "--image-size",
        SIZE,
        "--epochs",
        300,
        "--lr",
        0.05,
        "--runs",
        tmp_path / "runs",
    ]
    printed, _, code = run(capsys, *words)
    (result,) = (tmp_path / "runs").glob("*/result.json")
    final = json.loads(result.read_text(encoding="utf-8"))["final"]
    assert (code, final["train_error"]) == (0, 0.0)
    assert "fine-tuning" not in printed
    monkeypatch.setattr(finetuning, "UNDERFITTED", -1.0)
    printed, _, code = run(capsys, *words)
    verdict, command = printed.splitlines()[-2:]
    assert verdict.startswith("the head cannot fit 0.0% of its training images: they are unlike those that")
    assert "fine-tuning trains all layers, in about " in verdict
    config = finetuning_of(linear_probe(DataConfig(name=str(photos), image_size=SIZE)))
    assert command.strip() == command_for(config, RunOptions(runs=tmp_path / "runs"))
    assert "--no-freeze" in shlex.split(command)


def test_a_head_of_few_steps_says_nothing_about_its_images(tmp_path, capsys):
    photos = draw_photos(tmp_path / "photos")
    words = ["train", "--data", photos, "--image-size", SIZE, "--epochs", 1, "--lr", 1e-9, "--runs", tmp_path / "runs"]
    printed, error, code = run(capsys, *words)
    (result,) = (tmp_path / "runs").glob("*/result.json")
    assert (code, json.loads(result.read_text(encoding="utf-8"))["final"]["train_error"]) == (0, None)
    assert "cannot fit" not in printed
    assert "only 1 step an epoch" in error


def test_one_class_is_refused_before_anything_is_written(tmp_path, capsys):
    photos = draw_photos(tmp_path / "photos")
    (photos / "dark").rename(tmp_path / "elsewhere")
    for words in (["train"], ["tune"], ["train", "--no-freeze"]):
        printed, error, code = run(capsys, *words, "--data", photos, "--runs", tmp_path / "runs")
        assert (code, printed, error.count("\n")) == (2, "", 1)
        assert error.endswith("photos has a single class, 'bright': a classifier needs two or more\n")
    assert not (tmp_path / "runs").exists()
