"""Runs as ONNX files: the same outputs as PyTorch, on real images, and nothing half-written."""

import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

from longtail.lab.config import ConfigError, LossConfig, RunOptions
from longtail.lab.data import evaluation_loader, open_dataset
from longtail.lab.recipes import configure
from longtail.lab.training import adjust_run, export, export_run, load_exported, load_run, open_data, predict, train
from tests.lab.training.runs import small_config


def write_photographs(folder, count=8):
    """Parts of two photographs, upright and lying, as JPEG files in a folder for each."""
    draw = np.random.default_rng(0)
    for name, photograph in zip(("china", "flower"), load_sample_images().images, strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            height, width = draw.integers(60, 200, 2)
            top, left = draw.integers(0, 200, 2)
            part = Image.fromarray(photograph[top : top + height, left : left + width])
            part.save(folder / name / f"{number}.jpg")
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return train(small_config(epochs=4, loss=LossConfig()), RunOptions(runs=tmp_path_factory.mktemp("digits")))


@pytest.fixture(scope="module")
def exported(digits):
    path = digits.parent / "digits.onnx"
    return path, export_run(digits, path)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A run on files, with a sigmoid loss, and its images."""
    folder = tmp_path_factory.mktemp("photographs")
    write_photographs(folder / "photos")
    values = {"recipe": "cifar", "model": "resnet8", "epochs": 2, "batch_size": 4, "image_size": 32, "loss": "focal"}
    config = configure({"data": str(folder / "photos")} | values)
    return train(config, RunOptions(runs=folder / "runs", accelerator="cpu", workers=0)), folder / "photos"


def test_the_outputs_are_those_of_pytorch_on_all_test_images(digits, exported):
    path, found = exported
    assert found["difference"] <= 1e-4
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    run = load_run(digits)
    for size in (1, 7, 500):  # whatever the size of the batch
        batch = next(evaluation_loader(open_data(run.config).dataset, size).epoch(0))
        logits, probabilities = session.run(["logits", "probabilities"], {"images": batch.images.numpy()})
        with torch.no_grad():
            expected = run.model(batch.images)
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)
        np.testing.assert_allclose(probabilities, expected.softmax(1).numpy(), atol=1e-4)


def test_the_metadata_are_enough_to_use_the_file_without_longtail(digits, exported, tmp_path):
    path, _ = exported
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    metadata = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    images = open_dataset("digits").test.images[:5]
    assert metadata["input_shape"] == list(images.shape[1:]) == [1, 8, 8]
    assert metadata["class_names"] == list("0123456789")
    assert (metadata["run_id"], metadata["adjustment"]) == (digits.name, None)
    mean, std = (np.array(metadata[name], dtype=np.float32)[:, None, None] for name in ("mean", "std"))
    prepared = (images.numpy().astype(np.float32) - mean) / std
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"images": prepared})
    for place, image in enumerate(images):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{place}.png")
    files = [tmp_path / f"{place}.png" for place in range(5)]
    for row, told in zip(found, predict(load_run(digits), files, top=10), strict=True):
        by_name = dict(zip(told["classes"], told["probabilities"], strict=True))
        assert [by_name[name] for name in metadata["class_names"]] == pytest.approx(row.tolist(), abs=1e-4)
    assert str(os.getcwd()).encode() not in path.read_bytes()


def test_an_exported_file_predicts_photographs_as_the_run_does(photographs, tmp_path):
    """Crops, scaling, normalisation and the probabilities of a sigmoid loss are the same."""
    run, folder = photographs
    export_run(run, tmp_path / "photos.onnx")
    paths = sorted(folder.glob("*/*.jpg"))
    expected = list(predict(load_run(run), paths))
    found = list(predict(load_exported(tmp_path / "photos.onnx"), paths))
    assert [row["path"] for row in found] == [str(path) for path in paths]
    assert [row["classes"] for row in found] == [row["classes"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-4)
    assert len({tuple(row["probabilities"]) for row in found}) == len(paths)  # they are not all alike


def test_an_adjustment_becomes_part_of_the_file(digits, exported, tmp_path):
    slug = adjust_run(digits, "tau_norm", 0.5).stem
    found = export_run(digits, tmp_path / "adjusted.onnx", slug)
    assert (found["adjustment"]["slug"], found["adjustment"]["tau"]) == (slug, 0.5)
    images = next(evaluation_loader(open_dataset("digits"), 50).epoch(0)).images
    probabilities = load_exported(tmp_path / "adjusted.onnx").probabilities(images)
    torch.testing.assert_close(probabilities, load_run(digits, slug).probabilities(images), atol=1e-4, rtol=0)
    assert (probabilities - load_exported(exported[0]).probabilities(images)).abs().max() > 0.01


class Wrong(nn.Module):
    """A network whose outputs differ from those of the file by a little."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        logits, probabilities = self.network(images)
        return logits + 3e-4 * logits.abs().max(), probabilities


def test_a_file_that_differs_is_not_written_and_an_old_one_stays(digits, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"an older model")
    measure = export._largest_difference
    monkeypatch.setattr(export, "_largest_difference", lambda network, *others: measure(Wrong(network), *others))
    with pytest.raises(ConfigError, match=r"ONNX Runtime and PyTorch differ by 0.0003 on .*: nothing was written"):
        export_run(digits, path)
    assert os.listdir(tmp_path) == ["model.onnx"]
    assert path.read_bytes() == b"an older model"
    monkeypatch.setattr(export, "_largest_difference", measure)
    export_run(digits, path)
    assert os.listdir(tmp_path) == ["model.onnx"]
    assert load_exported(path).classes == tuple("0123456789")


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_one_line_that_says_what_to_install(digits, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"{name} is missing: pip install 'longtail\[export\]'"):
        export_run(digits, tmp_path / "model.onnx")
    assert not os.listdir(tmp_path)


def damaged(model, name, value):
    """The file with other metadata."""
    (entry,) = (each for each in model.metadata_props if each.key == name)
    entry.value = value if isinstance(value, str) else json.dumps(value)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("class_names", ["a"], r"is damaged: class_names are 1, but it has \[10\] outputs"),
        ("class_names", "[", "is damaged: "),
        ("preprocessing", {"shape": None}, "is damaged: it lacks 'size'"),
        ("preprocessing", {"shape": None, "size": 32, "mean": [0] * 3, "std": [1] * 3}, "does not fit its input"),
        ("preprocessing", {"shape": [1, 8, 8], "size": 32, "mean": [0], "std": [0]}, "cannot be of 1 channels"),
    ],
)
def test_a_file_with_metadata_that_do_not_fit_is_refused(exported, tmp_path, name, value, problem):
    (tmp_path / "model.onnx").write_bytes(damaged(onnx.load(exported[0]), name, value))
    with pytest.raises(ConfigError, match=problem) as error:
        load_exported(tmp_path / "model.onnx")
    assert "\n" not in str(error.value)


def test_a_file_of_another_program_is_refused(exported, tmp_path):
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    with pytest.raises(ConfigError, match=r"noise\.onnx is not a readable ONNX file") as error:
        load_exported(tmp_path / "noise.onnx")
    assert "\n" not in str(error.value)
    model = onnx.load(exported[0])
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(ConfigError, match=r"other\.onnx was not written by longtail export"):
        load_exported(tmp_path / "other.onnx")
