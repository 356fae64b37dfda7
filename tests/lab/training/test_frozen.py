"""Heads on the features of a frozen backbone: real weights, the same bits, nothing lost, errors of one line."""

import io
import multiprocessing
import os
import shutil
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file

from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, RunOptions, with_fields
from longtail.lab.data import evaluation_loader, open_dataset
from longtail.lab.data.file_cache import content_digests
from longtail.lab.models import build_model, classifier, features
from longtail.lab.models.features import cached_features, clear_features
from longtail.lab.recipes import linear_probe, retrained
from longtail.lab.training import (
    Interrupted,
    RunFolder,
    adjust_run,
    build,
    display,
    evaluate_run,
    frozen,
    load_run,
    loop,
    open_data,
    predict,
    train,
)
from tests.lab.training.runs import small_config
from tests.lab.training.test_runs import outcome

SIZE = 64
"""Of the input: these tests see a few dozen images."""


def texture(kind, draw):
    """Stripes, checks or discs of random colours, places and sizes: what ImageNet's filters tell apart."""
    rows, columns = np.mgrid[0:80, 0:96]
    period, phase = draw.uniform(8, 16), draw.uniform(0, 16)
    masks = {
        "checks": ((rows + phase) // period + (columns + phase) // period) % 2,
        "discs": ((rows + phase) % (2 * period) - period) ** 2 + ((columns + phase) % (2 * period) - period) ** 2
        < (0.6 * period) ** 2,
        "stripes": (rows + columns + phase) // period % 2,
        "waves": (rows + 6 * np.sin(columns / period)) // period % 2,
    }
    dark, light = draw.integers(0, 110, 3), draw.integers(140, 256, 3)
    pixels = np.where(masks[kind][..., None] > 0, light, dark) + draw.normal(0, 12, (80, 96, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for kind in ("checks", "discs", "stripes", "waves"):
        (folder / kind).mkdir(parents=True)
        for number in range(20):
            texture(kind, draw).save(folder / kind / f"{number}.png")
    return folder


@pytest.fixture(autouse=True)
def forget_stores():
    """Each test has its own cache folder, which a store in memory would hide."""
    frozen._stores.clear()


def probe(photos, **changes):
    config = linear_probe(DataConfig(name=str(photos), image_size=SIZE), epochs=changes.pop("epochs", 20))
    return with_fields(config, {"batch_size": 16} | changes)


def counted(monkeypatch):
    """How many views are computed."""
    counts, real = [], frozen.store_features

    def count(store, extract, views, requests, *others):
        counts.append(len(requests))
        real(store, extract, views, requests, *others)

    monkeypatch.setattr(frozen, "store_features", count)
    return counts


def test_pretrained_features_beat_random_ones_by_a_wide_margin(photos, tmp_path):
    accuracy = {}
    random = tmp_path / "random.safetensors"
    torch.manual_seed(0)
    save_file(build_model("tf_efficientnet_lite0", 4).state_dict(), random)
    for weights in ("imagenet", str(random)):
        path = train(probe(photos, weights=weights), RunOptions(runs=tmp_path / "runs"))
        accuracy[weights] = RunFolder(path).result()["final"]["balanced_accuracy"]
    assert accuracy["imagenet"] > 0.85
    assert accuracy["imagenet"] > accuracy[str(random)] + 0.2


def test_a_run_holds_its_head_and_is_used_as_a_whole(photos, tmp_path):
    path = train(probe(photos), RunOptions(runs=tmp_path))
    weights = load_file(path / "model.safetensors")
    assert {name: tuple(value.shape) for name, value in weights.items()} == {"fc.weight": (4, 1280), "fc.bias": (4,)}
    run, result = load_run(path), RunFolder(path).result()
    dataset = open_data(run.config).dataset
    with torch.no_grad():
        logits = torch.cat([run.model(batch.images) for batch in evaluation_loader(dataset, 8).epoch(0)])
    error = 100 * (logits.argmax(dim=1) != dataset.test.labels).float().mean().item()
    assert error == pytest.approx(result["final"]["error"])
    assert evaluate_run(run)["error"] == pytest.approx(result["final"]["error"])
    assert adjust_run(path, "tau_norm", 1.0).exists()
    (found,) = predict(run, [photos / "waves" / "3.png"], top=4)
    assert sum(found["probabilities"]) == pytest.approx(1.0)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("loss", ["sigmoid", "ldam", "logit_adjusted"])
def test_the_head_on_features_is_the_head_of_the_network(photos, tmp_path, loss, normalize):
    path = train(probe(photos, loss=loss, normalize_features=normalize, epochs=2), RunOptions(runs=tmp_path))
    run = load_run(path)
    dataset = open_data(run.config).dataset
    backbone = frozen.FrozenBackbone(run.config, dataset)
    backbone.compute()
    head = build.build_head(run.config, 1280, 4)
    RunFolder(path).load_weights(head)
    with torch.no_grad():
        whole = torch.cat([run.model(batch.images) for batch in evaluation_loader(dataset, 8).epoch(0)])
        alone = head(backbone.features(dataset.test)[:, 0])
    torch.testing.assert_close(alone, whole, rtol=1e-3, atol=1e-3)


def test_only_what_changed_is_computed_again(photos, tmp_path, monkeypatch):
    counts = counted(monkeypatch)
    copy = shutil.copytree(photos, tmp_path / "photos")
    config, options = probe(copy, epochs=1), RunOptions(runs=tmp_path / "runs")
    train(config, options)
    assert sum(counts) == 80
    counts.clear()
    train(with_fields(config, {"loss": "sigmoid", "seed": 3}), options)
    assert counts == []
    (copy / "discs" / "0.png").unlink()
    texture("discs", np.random.default_rng(7)).save(copy / "discs" / "1.png")
    shutil.copy(copy / "waves" / "2.png", copy / "waves" / "again.png")
    texture("checks", np.random.default_rng(8)).save(copy / "checks" / "new.png")
    train(config, options)
    assert sum(counts) == 2  # another process sees the same
    counts.clear()
    frozen._stores.clear()
    train(with_fields(config, {"seed": 1, "views": 2}), options)
    images = open_data(config).dataset.train
    assert sum(counts) == 2 * len(set(content_digests(images)))
    counts.clear()
    train(with_fields(config, {"image_size": 32}), options)
    assert sum(counts) == 80


def test_views_are_drawn_anew_in_each_epoch_and_runs_resume_to_the_same_bits(photos, tmp_path, monkeypatch):
    config = open_data(probe(photos, views=2, epochs=3, mixup=0.2, sampling="class_balanced")).config
    whole = train(config, RunOptions(runs=tmp_path / "whole"))
    monkeypatch.setattr(loop, "HEAD_SECONDS", 0.0)
    write, saved = loop.save_checkpoint, []

    def killing(folder, state):
        write(folder, state)
        saved.append((state["epoch"], state["step"]))
        if len(saved) % 3 == 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", killing)
        folder = tmp_path / "killed" / config.run_id
        while not (folder / "result.json").exists():
            try:
                train(config, RunOptions(runs=tmp_path / "killed", checkpoint_minutes=1e-9))
            except KeyboardInterrupt:
                continue
    assert any(step for _, step in saved)
    assert outcome(folder) == outcome(whole)
    backbone = frozen.FrozenBackbone(config, open_data(config).dataset)
    assert backbone.features(backbone.dataset.train, views=2).shape == (64, 3, 1280)
    assert {tuple(each.tolist()) for each in backbone.features(backbone.dataset.train, views=2)[0, :, :9]} != 1


def test_epochs_of_a_head_are_not_all_saved_and_metrics_fit_the_checkpoint(photos, tmp_path, monkeypatch):
    config, saves, real = open_data(probe(photos, epochs=6)).config, [], loop.save_checkpoint

    def counting(folder, state):
        saves.append(state["epoch"])
        real(folder, state)

    monkeypatch.setattr(loop, "save_checkpoint", counting)
    path = train(config, RunOptions(runs=tmp_path))
    assert len(saves) < 6
    assert len(RunFolder(path).metrics()) == 6


def test_an_interrupt_keeps_the_features_that_were_computed(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "SHARD_SIZE", 32)
    counts, real, shown = counted(monkeypatch), frozen.FeatureProgress.show, []

    def interrupting(progress, done):
        real(progress, done)
        shown.append(done)
        if len(shown) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(frozen.FeatureProgress, "show", interrupting)
        with pytest.raises(Interrupted, match="with the features of 64 of 80 images computed; run the same command"):
            train(probe(photos), RunOptions(runs=tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    assert cached_features()[0]["images"] == 64
    frozen._stores.clear()
    train(probe(photos, epochs=1), RunOptions(runs=tmp_path / "runs"))
    assert counts == [64, 16]


def test_an_interrupt_does_not_wait_for_a_slow_batch(photos, tmp_path, monkeypatch):
    real = features.pooled_features

    def slow(network, images):
        found = real(network, images)
        time.sleep(0 if len(images) < 32 else 60)
        return found

    monkeypatch.setattr(features, "pooled_features", slow)
    threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(Interrupted, match="with the features of 0 of 80 images computed"):
        train(probe(photos), RunOptions(runs=tmp_path / "runs", workers=2))
    assert time.monotonic() - began < 8
    for worker in multiprocessing.active_children():
        worker.join(5)
    assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_arrives_in_a_finaliser_is_not_lost(photos, tmp_path, monkeypatch):
    class Finalised:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(display.FeatureProgress, "show", lambda self, done: Finalised() and None)
    with pytest.raises(Interrupted, match="interrupted with the features of "):
        train(probe(photos, epochs=1), RunOptions(runs=tmp_path))
    assert not list(tmp_path.iterdir())


def test_progress_is_told_in_lines(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(display, "SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(display, "LINE_SECONDS", 0.0)
    output = io.StringIO()
    train(probe(photos, epochs=1), RunOptions(runs=tmp_path), Console(file=output, width=200))
    assert "computing the features of 80 images with tf_efficientnet_lite0, once: about" in output.getvalue()
    assert "computed the features of 80 images in" in output.getvalue()
    assert "of 80 images, " in output.getvalue()


def test_a_retrained_run_holds_its_backbone(photos, tmp_path):
    parent = train(small_config(epochs=1), RunOptions(runs=tmp_path / "runs"))
    child = train(retrained(RunFolder(parent).config(), str(parent), 1), RunOptions(runs=tmp_path / "runs"))
    assert classifier(load_run(child).model).weight.shape == (10, 64)
    moved = (tmp_path / "runs").rename(tmp_path / "moved")  # both of them
    assert (
        evaluate_run(load_run(moved / child.name))["error"] == RunFolder(moved / child.name).result()["final"]["error"]
    )
    (moved / parent.name).rename(tmp_path / "elsewhere")
    backbones = [load_run(path).model.conv1.weight for path in (tmp_path / "elsewhere", moved / child.name)]
    assert torch.equal(*backbones)
    heads = [classifier(load_run(path).model).weight for path in (tmp_path / "elsewhere", moved / child.name)]
    assert not torch.equal(*heads)
    grandchild = retrained(RunFolder(moved / child.name).config(), str(moved / child.name), 1)
    path = train(replace(grandchild, seed=1), RunOptions(runs=moved))
    assert torch.equal(load_run(path).model.conv1.weight, backbones[0])


def test_a_frozen_run_can_be_the_start_of_others(photos, tmp_path):
    options = RunOptions(runs=tmp_path)
    first = train(probe(photos, epochs=2), options)
    second = probe(photos, epochs=1, weights=str(first), sampling="class_balanced")
    backbones = [load_run(path).model.conv_stem.weight for path in (first, train(second, options))]
    assert torch.equal(*backbones)
    assert len(cached_features()) == 1  # the same backbone
    tuned = replace(second, model=ModelConfig(name="tf_efficientnet_lite0", weights=str(first)))
    dataset, _, config = open_data(tuned)
    network = loop.build_network(config, dataset)
    assert torch.equal(classifier(network).weight, load_file(first / "model.safetensors")["fc.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cutmix": 1.0}, "cutmix requires a backbone that is trained"),
        ({"compile": True}, "compile requires a backbone that is trained"),
        ({"views": 2, "augment": False}, "views requires augment"),
        ({"views": -1}, "views must be"),
        ({"freeze": False, "views": 1}, "views requires a frozen backbone"),
        ({"freeze": False, "normalize_features": True}, "normalize_features requires freeze"),
    ],
)
def test_what_a_frozen_backbone_cannot_do_is_refused(photos, changes, message):
    with pytest.raises(ConfigError, match=message):
        probe(photos, **changes)


def test_small_images_have_features_of_a_large_network(tmp_path):
    data = DataConfig(name="digits", image_size=32)
    config = with_fields(linear_probe(data, LossConfig(name="focal"), 5), {"max_count": 20, "lr": 0.01})
    result = RunFolder(train(config, RunOptions(runs=tmp_path))).result()
    assert result["final"]["error"] < 60
    clear_features()
    assert cached_features() == []
    assert open_dataset("digits").classes


@pytest.mark.parametrize(("limit", "threads"), [(frozen.SMALL_PRODUCTS, 1), (0, 2)])
def test_a_small_head_is_trained_on_one_thread(tmp_path, photos, monkeypatch, limit, threads):
    before, seen, epoch = torch.get_num_threads(), [], loop.train_epoch
    monkeypatch.setattr(frozen, "SMALL_PRODUCTS", limit)
    monkeypatch.setattr(loop, "train_epoch", lambda *given: seen.append(torch.get_num_threads()) or epoch(*given))
    torch.set_num_threads(2)
    try:
        train(probe(photos, epochs=1), RunOptions(runs=tmp_path))
        assert (seen, torch.get_num_threads()) == ([threads], 2)
    finally:
        torch.set_num_threads(before)
