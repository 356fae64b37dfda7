"""Frozen backbones as a user types them: the cache, an interrupt, and tuning with no further flag."""

import json
import os
import signal

import pytest

from longtail.lab.models.features import FeatureStore, cached_features
from longtail.lab.training import RunFolder, frozen
from tests.lab.cli.test_data import run
from tests.lab.experiments.sweeps import command, end, family, wait_for, write_images
from tests.lab.models.test_features import keys, rows


@pytest.fixture
def photos(tmp_path, monkeypatch):
    frozen._stores.clear()
    monkeypatch.chdir(tmp_path)
    return write_images(tmp_path / "photos", images=10)


def test_the_cache_is_shown_and_cleared(capsys, own_cache):
    printed, _, code = run(capsys, "data", "cache")
    assert (code, printed) == (
        0,
        f"0 bytes in {own_cache}/longtail/features; longtail data cache --clear deletes them\n",
    )
    FeatureStore({"model": "resnet8", "weights_sha256": "0123456789ab", "precision": "32-true"}).add(
        keys(0, 1300), rows(0, 1300)
    )
    printed, _, _ = run(capsys, "data", "cache")
    assert "1,300" in printed
    assert "resnet8" in printed
    assert "0123456789" in printed
    found = json.loads(run(capsys, "data", "cache", "--json")[0])
    assert [(each["images"], each["identity"]["model"]) for each in found["entries"]] == [(1300, "resnet8")]
    assert run(capsys, "data", "cache", "--clear")[0].startswith("freed 6")
    assert cached_features() == []


def test_views_and_normalised_features_are_flags(photos, capsys):
    words = ("--data", photos, "--image-size", "32", "--views", "2", "--normalize-features", "--epochs", "1")
    printed, error, code = run(capsys, "train", *words, "--json")
    assert code == 0, error
    config = RunFolder(next((photos.parent / "runs").iterdir())).config()
    assert (config.data.views, config.model.normalize_features, config.model.freeze) == (2, True, True)
    assert cached_features()[0]["images"] == 3 * 16 + 4
    printed, error, code = run(capsys, "train", "--data", photos, "--no-freeze", "--views", "2")
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert "views requires a frozen backbone" in error


def test_a_dry_run_counts_the_features_that_are_not_in_the_cache(photos, capsys, monkeypatch):
    words = ("train", "--data", photos, "--image-size", "32", "--epochs", "1")
    cost = json.loads(run(capsys, *words, "--dry-run", "--json")[0])
    (training,) = (each["seconds"] for each in cost["runs"])
    assert cost["features_seconds"] > 0
    assert cost["seconds"] == pytest.approx(cost["features_seconds"] + training)
    assert cached_features() == []
    assert run(capsys, *words)[2] == 0
    cost = json.loads(run(capsys, *words, "--dry-run", "--json", "--seed", "1")[0])
    assert cost["features_seconds"] == 0


def test_an_interrupt_while_features_are_computed_leaves_nothing_but_what_was_written(tmp_path):
    photos = write_images(tmp_path / "photos", images=400)
    process = command("train", "--data", photos, "--image-size", "64", folder=tmp_path)
    wait_for(lambda: any(each["images"] for each in cached_features()))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to loader processes, too
    code, printed, error = end(process)
    assert (code, printed) == (130, ""), error
    assert error.splitlines()[-1].startswith("interrupted with the features of ")
    assert "Traceback" not in error
    wait_for(lambda: not family(process))
    assert not (tmp_path / "runs").exists()
    (entry,) = cached_features()
    assert 0 < entry["images"] < 800
    code, _, error = end(command("train", "--data", photos, "--image-size", "64", "--epochs", "1", folder=tmp_path))
    assert code == 0, error
    assert cached_features()[0]["images"] == 800


@pytest.mark.slow
def test_tune_with_no_further_flag_tries_the_papers_losses_and_balanced_softmax(photos, capsys):
    printed, error, code = run(capsys, "tune", "--data", photos, "--image-size", "32", "--json")
    assert code == 0, error
    found = json.loads(printed)
    assert len(found["candidates"]) == 26
    assert found["folds"] == 5
    assert [each["loss"]["name"] for each in found["candidates"]].count("logit_adjusted") == 1
    assert cached_features()[0]["images"] == 20
