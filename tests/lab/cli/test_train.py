"""``longtail train``, ``evaluate``, ``predict`` and ``demo``, as a user types them."""

import csv
import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.lab.cli import app
from longtail.lab.cli.train import starting_point
from longtail.lab.config import RunConfig
from longtail.lab.data import ImageDataset, ImageFiles, evaluation_loader, open_dataset
from longtail.lab.training import Interrupted, RunFolder, load_run, loop, open_data, predict
from tests.lab.cli.test_data import run
from tests.lab.training.runs import no_room_for, small_config
from tests.lab.training.test_run_folder import interrupted

SMALL = ["--data", "digits", "--imbalance", "20", "--model", "resnet8", "--batch-size", "64", "--accelerator", "cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder that the command made."""
    from longtail.lab.cli import main

    runs = tmp_path_factory.mktemp("runs")
    main(
        ["train", *SMALL, "--loss", "focal", "--beta", "0.999", "--gamma", "0.5", "--epochs", "12", "--runs", str(runs)]
    )
    (path,) = runs.iterdir()
    return path


def test_train_makes_a_run_and_says_where(finished, capsys):
    config = RunFolder(finished).config()
    assert finished.name == config.run_id
    assert finished.name.startswith("digits-20-resnet8-focal_0.5_0.999-")
    assert (config.optimizer.epochs, config.optimizer.milestones) == (12, (9.6, 10.8))
    printed, _, code = run(capsys, "train", "--config", finished / "config.json", "--runs", finished.parent)
    assert code == 0
    assert printed.splitlines()[0].startswith("error ")
    assert f"the run is in {finished}" in printed


def test_a_config_file_repeats_a_run_exactly(finished, capsys, tmp_path):
    printed, _, code = run(
        capsys, "train", "--config", finished / "config.json", "--runs", tmp_path, "--accelerator", "cpu", "--json"
    )
    assert code == 0
    assert json.loads(printed)["run_id"] == finished.name
    again = tmp_path / finished.name
    assert (again / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_flags_change_what_a_config_file_says(finished, capsys, tmp_path):
    run(
        capsys,
        *("train", "--config", finished / "config.json", "--runs", tmp_path, "--accelerator", "cpu"),
        *("--seed", "3", "--weighting", "uniform", "--epochs", "1"),
    )
    (path,) = tmp_path.iterdir()
    config = RunFolder(path).config()
    assert (config.seed, config.loss.label, config.optimizer.epochs) == (3, "focal_0.5", 1)
    assert config.optimizer.milestones == pytest.approx((0.8, 0.9))
    assert config.optimizer.warmup_epochs == pytest.approx(1 / 40)


def test_evaluate_gives_the_numbers_of_the_training(finished, capsys):
    final = RunFolder(finished).result()["final"]
    printed, _, code = run(capsys, "evaluate", finished, "--json")
    found = json.loads(printed)
    assert code == 0
    assert found["error"] == pytest.approx(final["error"])
    assert found["nll"] == pytest.approx(final["nll"], rel=1e-5)
    assert list(found["recall"].values()) == pytest.approx(final["recall"])
    printed, _, _ = run(capsys, "evaluate", finished)
    lines = printed.splitlines()
    header = lines.index(next(line for line in lines if line.startswith("class ")))
    assert lines[0] == "test images: 500"
    assert lines[header].split("  ")[0] == "class"
    assert "training images" in lines[header]
    assert "test images" in lines[header]
    rows = [line.split() for line in lines[header + 1 :]]
    recalls = [float(row[-1].removesuffix("%")) for row in rows]
    assert all(row[-1].endswith("%") for row in rows)
    assert recalls == sorted(recalls)
    assert len(recalls) == 10
    assert sum(int(row[2]) for row in rows) == 500
    assert {row[0]: int(row[2]) for row in rows} == found["images"]
    printed, _, _ = run(capsys, "evaluate", finished, "--split", "train", "--json")
    assert json.loads(printed)["error"] < found["error"]


def test_predict_names_classes_of_image_files(finished, capsys, tmp_path):
    digits = open_dataset("digits")
    for place in range(20):
        pixels = digits.test.images[25 * place][0].numpy()
        Image.fromarray(pixels).save(tmp_path / f"{place:02d}-{int(digits.test.labels[25 * place])}.png")
    printed, _, code = run(capsys, "predict", finished, tmp_path, "--top", "2")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert code == 0
    assert len(rows) == 40
    first = [row for row in rows if row["rank"] == "1"]
    right = np.mean([row["path"].rpartition("-")[2] == f"{row['class']}.png" for row in first])
    assert right >= 1 - RunFolder(finished).result()["final"]["error"] / 100 - 0.25
    printed, _, _ = run(capsys, "predict", finished, min(tmp_path.iterdir()), "--json", "--top", "3")
    (image,) = json.loads(printed)
    assert len(image["classes"]) == 3
    assert image["probabilities"] == sorted(image["probabilities"], reverse=True)


def test_the_probabilities_of_predict_are_those_of_the_evaluation(finished, tmp_path):
    """Of a focal loss, which gives each class a probability of its own."""
    loaded = load_run(finished)
    digits, _ = open_data(loaded.config)
    batch = next(evaluation_loader(digits, 30).epoch(0))
    with torch.no_grad():
        alone = loaded.model(batch.images).double().sigmoid()
    expected = alone / alone.sum(dim=1, keepdim=True)
    paths = [tmp_path / f"{place}.png" for place in range(len(batch.labels))]
    for path, pixels in zip(paths, digits.test.images, strict=False):
        Image.fromarray(pixels[0].numpy()).save(path)
    for row, image in zip(expected, predict(loaded, paths, top=10), strict=True):
        found = dict(zip(image["classes"], image["probabilities"], strict=True))
        assert [found[name] for name in loaded.classes] == pytest.approx(row.tolist(), abs=1e-5)
        assert image["classes"][0] == loaded.classes[row.argmax()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "cifar11"], "unknown data set 'cifar11': did you mean 'cifar10'"),
        (["train", "--data", "digits", "--model", "resnet33"], "unknown model 'resnet33': did you mean 'resnet34'"),
        (["train", "--data", "digits", "--loss", "fokal"], "unknown loss 'fokal': did you mean 'focal'"),
        (["train", "--data", "digits", "--recipe", "cifer"], "unknown recipe 'cifer': did you mean 'cifar'"),
        (["train", "--data", "digits", "--imbalance", "0.5"], "imbalance must be a finite number >= 1, got 0.5"),
        (["train", "--data", "digits", "--beta", "1.5"], "beta must be in [0, 1], got 1.5"),
        (
            ["train", "--data", "digits", "--loss", "focal", "--gamma", "-1"],
            "gamma must be a finite number >= 0, got -1",
        ),
        (["train", "--data", "digits", "--gamma", "2"], "gamma 2 would do nothing: only the losses focal"),
        (["train", "--data", "digits", "--weighting", "inverse", "--beta", "0.9"], "beta 0.9 would do nothing"),
        (["train", "--data", "digits", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "--config", "nowhere.json"], "nowhere.json does not exist"),
        (["train", "--config", "nowhere.json", "--recipe", "cifar"], "recipe cifar would do nothing"),
        (["train"], "which data? --data digits"),
        (["train", "--epochs", "3"], "which data? --data digits"),
        (["train", "--data", "digits", "--image-size", "32"], "image_size 32 would do nothing: digits has 8 × 8"),
        (["train", "--data", "digits", "--checkpoint-minutes", "nan"], "checkpoint_minutes must be a finite number"),
        (["train", "--data", "digits", "--workers", "-1"], "workers must be a finite number >= 0, got -1"),
        (["train", "--data", "digits", "--folds", "3", "--fold", "3"], "fold must be from 0 to 2, got 3"),
        (["evaluate", "nowhere"], "nowhere does not exist"),
        (["predict", "nowhere", "nothing.png"], "nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    printed, error, code = run(capsys, *arguments)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert message in error
    assert os.listdir(tmp_path) == []


def test_help_shows_the_values_of_the_recipe(capsys):
    printed, _, _ = run(capsys, "train", "--data", "imagenet", "--loss", "focal", "--epochs", "45", "--help")
    text = " ".join(printed.split())
    for part in (
        "(default: resnet50)",
        "(default: 1024)",
        "(default: 0.2)",
        "(default: 15.0 30.0 40.0)",
        "--config FILE",
    ):
        assert part in text
    assert "--version" not in text


def test_own_images_are_trained_on(capsys, tmp_path):
    generator = np.random.default_rng(0)
    for name, shade in (("dark", 40), ("bright", 200)):
        for place in range(6):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(shade - 30, shade + 30, (40, 50, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{place}.png")
    printed, error, code = run(
        capsys,
        *("train", "--data", tmp_path / "photos", "--model", "resnet18", "--epochs", "1", "--batch-size", "4"),
        *("--image-size", "32", "--workers", "0", "--runs", tmp_path / "runs", "--accelerator", "cpu"),
    )
    assert code == 0, error
    (path,) = (tmp_path / "runs").iterdir()
    printed, _, code = run(capsys, "predict", path, tmp_path / "photos")
    assert code == 0
    assert printed.count("\n") == 1 + 12 * 2


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize(
    ("launcher", "flags"),
    [
        pytest.param(TORCHRUN, [], id="torchrun"),
        pytest.param([], ["--devices", "2"], id="devices", marks=pytest.mark.slow),
        pytest.param(TORCHRUN, ["--micro-batch-size", "13"], id="pieces", marks=pytest.mark.slow),
        pytest.param(TORCHRUN, ["--sampling", "progressive"], id="sampling", marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_the_losses_of_one(tmp_path, launcher, flags):
    """Real processes, gloo between them; batches of 51 images make uneven parts."""
    command = ["-m", "longtail.lab", "train", *SMALL, "--batch-size", "51", "--epochs", "3", "--sync-batch-norm"]
    command += ["--checkpoint-minutes", "0"]  # in the middle of epochs, which must not change their loss
    command += ["--learning-rate", "0.01"]  # at a high one, training blows up the rounding errors
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    lines, printed = {}, {}
    alone = flags if "--sampling" in flags else []
    for name, start, more in (("one", [], alone), ("two", launcher, flags)):
        finished = subprocess.run(
            [sys.executable, *start, *command, *more, "--runs", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert finished.returncode == 0, finished.stderr
        (path,) = (tmp_path / name).iterdir()
        lines[name], printed[name] = RunFolder(path).metrics(), finished.stdout
    assert printed["two"].count("the run is in") == 1
    if "--micro-batch-size" in flags:  # batch norms see the pieces
        assert lines["two"][-1]["train_loss"] == pytest.approx(lines["one"][-1]["train_loss"], rel=0.2)
        return
    for one, two in zip(lines["one"], lines["two"], strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
    assert lines["two"][0]["nll"] == pytest.approx(lines["one"][0]["nll"], rel=1e-4)
    assert lines["two"][0]["recall"] == pytest.approx(lines["one"][0]["recall"], abs=0.021)
    total = round(lines["two"][0]["error"] * 5)
    assert lines["two"][0]["error"] * 5 == pytest.approx(total)  # of 500 test images, each once


def test_the_configuration_of_the_command_is_that_of_python(capsys, tmp_path):
    run(capsys, "train", *SMALL, "--epochs", "1", "--runs", tmp_path)
    (path,) = tmp_path.iterdir()
    assert RunConfig.from_json((path / "config.json").read_text()).run_id == path.name


def test_a_flag_without_its_value_is_no_traceback(capsys):
    for arguments in (["--data"], ["--data", "digits", "--epochs"], ["--config"]):
        printed, error, code = run(capsys, "train", *arguments)
        assert code == 2
        assert (printed, error) == ("", f"error: {arguments[-1]} needs a value. See longtail train --help\n")
        assert "Traceback" not in printed + error


@pytest.mark.parametrize("epochs", ["10", "+10", "010"])
def test_the_schedule_is_scaled_however_the_epochs_are_written(epochs):
    assert starting_point(["--data", "digits", "--epochs", epochs]).optimizer.milestones == (8, 9)


def test_help_needs_no_data(capsys):
    for flag in ("--help", "-h"):
        printed, _, code = run(capsys, "train", flag)
        assert code == 0
        assert "--checkpoint-minutes" in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_an_accelerator_that_is_not_there_is_one_line(capsys, tmp_path):
    printed, error, code = run(capsys, "train", "--data", "digits", "--accelerator", "cuda", "--runs", tmp_path)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert "accelerator cuda cannot be used" in error
    assert os.listdir(tmp_path) == []


def test_a_finished_run_says_so_and_a_folder_is_a_configuration(finished, capsys):
    before = (finished / "result.json").stat().st_mtime_ns
    printed, error, code = run(capsys, "train", "--config", finished, "--runs", finished.parent)
    assert code == 0
    assert f"{finished} is complete already: nothing was trained" in error
    assert f"the run is in {finished}" in printed
    assert (finished / "result.json").stat().st_mtime_ns == before


def test_a_resumed_run_says_where_it_goes_on(capsys, tmp_path):
    config = small_config(epochs=3)
    path = interrupted(tmp_path, config, 2)
    printed, error, code = run(capsys, "train", "--config", path, "--runs", tmp_path, "--accelerator", "cpu")
    assert code == 0
    assert "going on in epoch 3 of 3" in error
    assert "complete already" not in error
    assert f"the run is in {path}" in printed


@pytest.mark.parametrize("content", ['{"optimizer": {"drop": 1' + "0" * 400 + "}}", "[" * 100_000, "\xff", "{}x"])
def test_a_config_file_that_cannot_be_used_is_one_line(capsys, tmp_path, content):
    file = tmp_path / "own.json"
    file.write_bytes(content.encode("latin-1"))
    printed, error, code = run(capsys, "train", "--config", file, "--runs", tmp_path / "runs")
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert str(file) in error
    assert os.listdir(tmp_path) == ["own.json"]


@pytest.fixture
def digit_files(tmp_path):
    """Three images and one that is broken."""
    folder = tmp_path / "digits"
    folder.mkdir()
    images = open_dataset("digits").test.images
    for place in range(3):
        Image.fromarray(images[place][0].numpy()).save(folder / f"{place}.png")
    (folder / "1b.png").write_bytes(b"no image")
    return folder


def test_predict_takes_several_paths(finished, capsys, digit_files):
    names = [digit_files / "2.png", digit_files / "0.png"]
    printed, _, code = run(capsys, "predict", finished, *names, "--top", "1")
    assert code == 0
    assert [row["path"] for row in csv.DictReader(io.StringIO(printed))] == [str(name) for name in names]


def test_predict_skips_a_broken_image_by_name_where_it_is_asked_to(finished, capsys, digit_files):
    printed, error, code = run(capsys, "predict", finished, digit_files, "--top", "1", "--on-error", "skip")
    assert code == 0
    paths = [row["path"] for row in csv.DictReader(io.StringIO(printed))]
    assert paths == [str(digit_files / f"{place}.png") for place in range(3)]
    assert error.count("\n") == 1
    assert str(digit_files / "1b.png") in error
    printed, error, code = run(capsys, "predict", finished, digit_files, "--top", "1")
    assert (code, error.count("\n")) == (2, 1)
    assert str(digit_files / "1b.png") in error


def test_predict_without_images_asks_for_them(finished, capsys):
    printed, error, code = run(capsys, "predict", finished)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert "which images?" in error


@pytest.mark.parametrize("top", ["0", "-1"])
def test_predict_names_at_least_one_class(finished, capsys, digit_files, top):
    printed, error, code = run(capsys, "predict", finished, digit_files / "0.png", "--top", top)
    assert (printed, code) == ("", 2)
    assert f"top must be at least 1, got {top}" in error


def test_evaluate_of_a_folder_of_runs_names_one(finished, capsys):
    printed, error, code = run(capsys, "evaluate", finished.parent)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert f"{finished.parent} is no run folder: it has no config.json; it holds 1 of them, such as {finished}" in error


@pytest.mark.parametrize("name", ["checkpoint.pt", "result.json"])
def test_a_full_disk_is_one_line_that_names_the_file(capsys, tmp_path, monkeypatch, name):
    no_room_for(monkeypatch, name)
    _, error, code = run(capsys, "train", *SMALL, "--epochs", "1", "--runs", tmp_path)
    (path,) = tmp_path.iterdir()
    assert code == 1
    assert error.splitlines()[-1] == f"error: cannot write {path / name}: No space left on device"
    assert "Traceback" not in error


def train_briefly(capsys, monkeypatch, folder, *words, runs="runs"):
    """Train on images of 16 pixels in a folder; then be in another one, which knows none of its paths."""
    monkeypatch.chdir(folder)
    _, error, code = run(
        capsys,
        *("train", *words, "--recipe", "cifar", "--model", "resnet8", "--epochs", "1", "--batch-size", "4"),
        *("--image-size", "16", "--workers", "0", "--runs", runs, "--accelerator", "cpu"),
    )
    elsewhere = folder / runs / ".." / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    monkeypatch.chdir(elsewhere)
    return error, code


def test_own_images_are_found_from_another_folder_and_changed_ones_refused(capsys, tmp_path, monkeypatch):
    for name, shade in (("dark", 40), ("bright", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(4):
            Image.new("RGB", (16, 16), (shade + place,) * 3).save(tmp_path / "photos" / name / f"{place}.png")
    error, code = train_briefly(capsys, monkeypatch, tmp_path, "--data", "photos")
    assert code == 0, error
    (path,) = (tmp_path / "runs").iterdir()
    printed, error, code = run(capsys, "evaluate", path, "--json")
    assert code == 0, error
    assert sum(json.loads(printed)["images"].values()) == 2
    (tmp_path / "photos" / "dark" / "0.png").rename(tmp_path / "photos" / "dark" / "9.png")
    printed, error, code = run(capsys, "evaluate", path)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert f"photos has changed since {path} began" in error


def test_a_finished_run_is_not_taken_for_one_of_other_images(capsys, tmp_path, monkeypatch):
    def draw(name, shade):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(4):
            Image.new("RGB", (16, 16), (shade + place,) * 3).save(tmp_path / "photos" / name / f"{place}.png")

    def trained():
        return train_briefly(capsys, monkeypatch, tmp_path, "--data", tmp_path / "photos")

    draw("dark", 40)
    draw("bright", 200)
    assert trained()[1] == 0
    assert "complete already" in trained()[0]
    draw("grey", 120)
    error, code = trained()
    assert (code, error.count("\n")) == (2, 1)
    (path,) = (tmp_path / "runs").iterdir()
    assert f"photos has changed since runs/{path.name} began" in error
    file = tmp_path / "sweep.json"
    values = {"recipe": "cifar", "model": "resnet8", "epochs": 1, "batch_size": 4, "image_size": 16, "seed": [0, 1]}
    file.write_text(json.dumps({"data": str(tmp_path / "photos")} | values))
    printed, error, code = run(capsys, "sweep", file, "--runs", tmp_path / "runs", "--accelerator", "cpu")
    assert (printed, code) == ("", 2)
    assert f"photos has changed since {path} began" in error
    (tmp_path / "photos").rename(tmp_path / "moved")  # then there is nothing to compare
    assert "complete already" in trained()[0]


def test_lists_test_images_and_their_root_are_found_from_another_folder(capsys, tmp_path, monkeypatch):
    lines = []
    for name, shade in (("dark", 40), ("bright", 200)):
        for place in range(4):
            (tmp_path / "photos").mkdir(exist_ok=True)
            Image.new("RGB", (16, 16), (shade + place,) * 3).save(tmp_path / "photos" / f"{name}{place}.png")
            lines.append(f"{name}{place}.png {name}\n")
    for name, part in (("ours", lines[::2]), ("theirs", lines[1::2])):
        (tmp_path / f"{name}.txt").write_text("".join(part))
    lists = ("--data", "ours.txt", "--test-data", "theirs.txt", "--image-root", "photos")
    error, code = train_briefly(capsys, monkeypatch, tmp_path, *lists)
    assert code == 0, error
    (path,) = (tmp_path / "runs").iterdir()
    printed, error, code = run(capsys, "evaluate", path, "--json")
    assert code == 0, error
    assert json.loads(printed)["images"] == {"bright": 2, "dark": 2}
    _, error, code = run(capsys, "rebalance", path, "--method", "tau_norm", "--accelerator", "cpu", "--workers", "0")
    assert code == 0, error
    (head,) = (other for other in (tmp_path / "runs").iterdir() if other != path)
    assert RunFolder(head).data()["places"] == RunFolder(path).data()["places"]
    _, error, code = run(capsys, "evaluate", head)
    assert code == 0, error


def test_a_run_on_the_folder_it_was_in_is_evaluated_on_its_own_images_from_another(capsys, tmp_path, monkeypatch):
    """Where it is now has a folder of that name, too: ``.`` is everywhere."""
    for folder, shades in (("photos", (40, 200)), ("elsewhere", (200, 40))):
        for name, shade in zip(("dark", "bright"), shades, strict=True):
            (tmp_path / folder / name).mkdir(parents=True)
            for place in range(5):
                Image.new("RGB", (16, 16), (shade + place,) * 3).save(tmp_path / folder / name / f"{place}.png")
    error, code = train_briefly(capsys, monkeypatch, tmp_path / "photos", "--data", ".", runs="../runs")
    assert code == 0, error
    (path,) = (tmp_path / "runs").iterdir()
    found = {}
    for folder in ("photos", "elsewhere", "runs"):
        monkeypatch.chdir(tmp_path / folder)
        printed, error, code = run(capsys, "evaluate", path, "--json")
        assert code == 0, error
        found[folder] = json.loads(printed)["nll"]
    assert len(set(found.values())) == 1, found


def test_processes_that_read_images_leave_signals_to_the_one_that_trains(tmp_path):
    for place in range(6):
        Image.new("RGB", (8, 8), (place,) * 3).save(tmp_path / f"{place}.png")
    files = ImageFiles(tmp_path, [f"{place}.png" for place in range(6)], [0] * 6)
    dataset = ImageDataset(name="photos", classes=("one",), train=files, test=files)
    loader = evaluation_loader(dataset, 1, image_size=8, workers=1)
    batches = loader.epoch(0)
    seen = [next(batches)]
    (worker,) = loader._loader._iterator._workers
    os.kill(worker.pid, signal.SIGTERM)
    seen += list(batches)
    assert len(seen) == 6
    assert worker.is_alive()


def test_data_that_is_not_there_is_said_before_other_processes_are_started(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(loop, "make_fabric", lambda *_: pytest.fail("processes were started"))
    _, error, code = run(capsys, "train", "--data", "nodata", "--devices", "2", "--runs", tmp_path)
    assert (code, error.count("unknown data set 'nodata'")) == (2, 1)


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_the_first_of_several_processes_speaks_for_all(monkeypatch, finished, capsys, rank, times):
    monkeypatch.setenv("RANK", rank)
    printed, error, _ = run(capsys, "train", "--config", finished, "--runs", finished.parent)
    assert (error.count("complete already"), printed.count("the run is in")) == (times, times)

    def stopped(_):
        raise Interrupted("interrupted in epoch 1")

    monkeypatch.setattr(app, "run", stopped)
    _, error, code = run(capsys, "train")
    assert (code, error.count("interrupted in epoch 1")) == (130, times)
