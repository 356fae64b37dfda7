"""``longtail evaluate`` on images of any place, and what commands do if the images of a run were moved."""

import json
import shutil

import pytest
from PIL import Image

from longtail.lab.config import RunOptions
from longtail.lab.data import open_dataset
from longtail.lab.recipes import configure
from longtail.lab.training import RunFolder, load_run, train
from tests.lab.cli.test_data import run
from tests.lab.training.runs import small_config

SHADES = {"bright": 200, "dark": 40, "grey": 120}


def draw(folder, count=5, names=tuple(SHADES)):
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place in range(count):
            Image.new("RGB", (16, 16), (SHADES.get(name, 0) + place,) * 3).save(folder / name / f"{place}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the photographs ``c20``, and a run on them."""
    folder = tmp_path_factory.mktemp("trained")
    draw(folder / "c20")
    values = {"recipe": "cifar", "model": "resnet8", "epochs": 2, "batch_size": 4, "image_size": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        path = train(configure({"data": "c20"} | values), RunOptions(accelerator="cpu", workers=0))
    return folder, path.name


@pytest.fixture
def moved(trained, tmp_path, monkeypatch):
    """The run, and where its images are now: they are not where they were."""
    folder, name = trained
    shutil.copytree(folder / "runs", tmp_path / "runs")
    shutil.copytree(folder / "c20", tmp_path / "new" / "photos")
    data = tmp_path / "runs" / name / "data.json"
    data.write_text(data.read_text().replace(str(folder), str(tmp_path / "old")))
    monkeypatch.chdir(tmp_path)
    return f"runs/{name}", tmp_path / "new" / "photos", tmp_path / "old" / "c20"


COMMANDS = [
    ["evaluate", "RUN"],
    ["adjust", "RUN", "--method", "tau_norm"],
    ["retrain", "RUN", "--epochs", "1", "--accelerator", "cpu", "--workers", "0"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_images_that_are_gone_are_named_and_can_be_given_anew(capsys, moved, words):
    path, new, old = moved
    words = [path if word == "RUN" else word for word in words]
    out, error, code = run(capsys, *words)
    assert (out, code) == ("", 2)
    assert error == f"error: the images of this run are gone: {old} does not exist; --data takes their new path\n"
    out, error, code = run(capsys, *words, "--data", new)
    assert code == 0, error


def test_an_unfinished_run_goes_on_with_images_that_were_moved(capsys, moved):
    path, new, old = moved
    RunFolder(new.parents[1] / path).result_file.unlink()
    words = ["train", "--config", path, "--set", "accelerator=cpu", "--set", "workers=0"]
    _, error, code = run(capsys, *words)
    assert (code, error.count("\n")) == (2, 1)
    assert f"{old} does not exist; --data takes their new path" in error
    new.rename(new.with_name("c20"))
    _, error, code = run(capsys, *words, "--data", "new/c20")
    assert code == 0, error
    assert RunFolder(new.parents[1] / path).result() is not None


def evaluated(capsys, *words):
    out, error, code = run(capsys, "evaluate", *words, "--json")
    assert code == 0, error
    return json.loads(out)


def test_moved_images_are_evaluated_as_ever(capsys, trained, moved):
    """The same test images, and not all that are there."""
    folder, name = trained
    for split, images in (("test", 1), ("train", 4)):
        before = evaluated(capsys, folder / "runs" / name, "--split", split)
        after = evaluated(capsys, moved[0], "--data", moved[1], "--split", split)
        assert after | {"run": None} == before | {"run": None}
        assert after["images"] == dict.fromkeys(SHADES, images)
        assert after["split"] == split


def test_other_labelled_images_are_all_evaluated(capsys, moved, tmp_path):
    draw(tmp_path / "others", 7)
    found = evaluated(capsys, moved[0], "--data", tmp_path / "others")
    assert (found["images"], found["split"]) == (dict.fromkeys(SHADES, 7), None)
    out, _, _ = run(capsys, "evaluate", moved[0], "--data", "others")
    assert out.splitlines()[0] == "images: 21"
    draw(tmp_path / "some", 3, ["dark", "grey"])
    found = evaluated(capsys, moved[0], "--data", tmp_path / "some")
    assert found["images"] == {"bright": 0, "dark": 3, "grey": 3}
    assert found["recall"]["bright"] is None
    (tmp_path / "list.txt").write_text("some/dark/0.png dark\nothers/grey/6.png grey\n")
    assert evaluated(capsys, moved[0], "--data", "list.txt")["images"] == {"bright": 0, "dark": 1, "grey": 1}


def test_of_other_images_in_parts_the_part_is_evaluated(capsys, moved, tmp_path):
    draw(tmp_path / "parts" / "train", 4)
    draw(tmp_path / "parts" / "val", 2)
    for split, images in (("test", 2), ("train", 4)):
        found = evaluated(capsys, moved[0], "--data", "parts", "--split", split)
        assert (found["images"], found["split"]) == (dict.fromkeys(SHADES, images), split)


def test_a_run_of_images_in_memory_is_evaluated_on_files(capsys, tmp_path):
    """The test images of the digits, as files, give the numbers of the test."""
    path = train(small_config(epochs=4), RunOptions(runs=tmp_path / "runs", accelerator="cpu"))
    digits = open_dataset("digits")
    for place, (pixels, label) in enumerate(digits.test):
        (tmp_path / "files" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(tmp_path / "files" / str(label) / f"{place}.png")
    expected, found = evaluated(capsys, path), evaluated(capsys, path, "--data", tmp_path / "files")
    assert found["images"] == expected["images"]
    assert found["recall"] == expected["recall"]
    assert found["nll"] == pytest.approx(expected["nll"], rel=1e-4)
    assert evaluated(capsys, path, "--data", "digits") == expected


def test_images_that_cannot_be_evaluated_are_refused_in_one_line(capsys, moved, tmp_path):
    draw(tmp_path / "more", 2, ["dark", "owl"])
    draw(tmp_path / "broken", 2)
    (tmp_path / "broken" / "dark" / "1.png").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for data, problem in (
        ("more", "owl/0.png is of class 'owl', which is not among the 3 training classes"),
        ("broken", "1.png is not a readable image"),
        ("nowhere", "nowhere does not exist"),
        ("empty", "empty holds no images"),
        ("digits", f"{moved[0]} was trained on c20, not on digits"),
    ):
        out, error, code = run(capsys, "evaluate", moved[0], "--data", data)
        assert (out, code, error.count("\n")) == ("", 2, 1), data
        assert problem in error


def test_only_its_own_images_are_kept_with_an_adjustment(capsys, moved, tmp_path):
    draw(tmp_path / "others", 7)
    out, error, code = run(capsys, "adjust", moved[0], "--method", "tau_norm", "--data", "others")
    assert (out, code, error.count("\n")) == ("", 2, 1)
    assert f"others does not hold the images that {moved[0]} was trained on" in error


def test_a_retrained_run_is_evaluated_without_the_run_it_is_from(capsys, moved, tmp_path):
    path, new, _ = moved
    words = ("--data", new, "--epochs", "1", "--accelerator", "cpu", "--workers", "0")
    assert run(capsys, "retrain", path, *words)[2] == 0
    shutil.rmtree(path)
    (child,) = (tmp_path / "runs").iterdir()
    assert load_run(child).config.model.freeze
    assert sum(evaluated(capsys, child)["images"].values()) == 3
