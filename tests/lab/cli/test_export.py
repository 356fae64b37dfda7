"""``longtail export``, and ``longtail predict`` with its file."""

import csv
import io
import json
import os

import pytest
from PIL import Image

from longtail.lab.config import LossConfig, RunOptions
from longtail.lab.data import open_dataset
from longtail.lab.training import train
from tests.lab.cli.test_data import run
from tests.lab.training.runs import small_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = small_config(epochs=2, loss=LossConfig())
    return train(config, RunOptions(runs=tmp_path_factory.mktemp("finished") / "runs"))


@pytest.fixture
def here(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("digits")
    for place, image in enumerate(open_dataset("digits").test.images[:6]):
        Image.fromarray(image[0].numpy()).save(f"digits/{place}.png")


def rows(printed):
    return list(csv.DictReader(io.StringIO(printed)))


def test_a_run_is_exported_and_predict_takes_the_file(finished, here, capsys):
    printed, error, code = run(capsys, "export", finished, "-o", "digits.onnx")
    assert code == 0, error
    assert printed.splitlines()[0].startswith("digits.onnx: images (batch, 1, 8, 8), 10 classes, ")
    assert printed.splitlines()[-1] == "longtail predict digits.onnx IMAGES"
    found, expected = (rows(run(capsys, "predict", each, "digits")[0]) for each in ("digits.onnx", finished))
    assert len(found) == 30
    for row, other in zip(found, expected, strict=True):
        assert (row["path"], row["rank"], row["class"]) == (other["path"], other["rank"], other["class"])
        assert float(row["probability"]) == pytest.approx(float(other["probability"]), abs=2e-4)
    printed, _, code = run(capsys, "export", finished, "--output", "digits.onnx", "--json")
    assert code == 0
    assert json.loads(printed)["class_names"] == list("0123456789")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["export", "RUN", "-o", "model.pt"], "model.pt does not end in .onnx"),
        (["export", "nowhere"], "nowhere does not exist"),
        (["export", "RUN", "--adjustment", "tau_norm_1"], "has no adjustment 'tau_norm_1'; it has none"),
        (["export", "RUN", "-o", "digits/0.png/model.onnx"], "0.png: Not a folder"),
        (["predict", "nowhere.onnx", "digits"], "nowhere.onnx: No such file or directory"),
        (["predict", "noise.onnx", "digits"], "noise.onnx is not a readable ONNX file"),
        (
            ["predict", "noise.onnx", "digits", "--adjustment", "a"],
            "noise.onnx has the adjustment that it was exported",
        ),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(finished, here, capsys, words, problem):
    with open("noise.onnx", "wb") as file:
        file.write(b"noise")
    before = sorted(os.listdir())
    printed, error, code = run(capsys, *(finished if word == "RUN" else word for word in words))
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert problem in error
    assert sorted(os.listdir()) == before
