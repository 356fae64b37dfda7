"""``longtail train``, ``evaluate``, ``predict`` and ``demo``, as a user types them."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from longtail.lab.cli import app
from longtail.lab.cli import train as cli_train
from longtail.lab.config import RunConfig
from longtail.lab.data import DataError, ImageDataset, ImageFiles, evaluation_loader, open_dataset
from longtail.lab.models import build_model
from longtail.lab.training import Interrupted, RunFolder, evaluate_run, load_run, loop, open_data, predict, prediction
from tests.lab.cli.test_data import run
from tests.lab.training.runs import no_room_for, small_config
from tests.lab.training.test_run_folder import interrupted

SMALL = [
    "--data",
    "digits",
    "--imbalance",
    "20",
    "--model",
    "resnet8",
    "--batch-size",
    "64",
    "--set",
    "accelerator=cpu",
]


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
        capsys, "train", "--config", finished / "config.json", "--runs", tmp_path, "--set", "accelerator=cpu", "--json"
    )
    assert code == 0
    assert json.loads(printed)["run_id"] == finished.name
    again = tmp_path / finished.name
    assert (again / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_flags_change_what_a_config_file_says(finished, capsys, tmp_path):
    run(
        capsys,
        *("train", "--config", finished / "config.json", "--runs", tmp_path, "--set", "accelerator=cpu"),
        *("--seed", "3", "--set", "weighting=uniform", "--epochs", "1"),
    )
    (path,) = tmp_path.iterdir()
    config = RunFolder(path).config()
    assert (config.seed, config.loss.slug, config.optimizer.epochs) == (3, "focal_0.5", 1)
    assert config.optimizer.milestones == pytest.approx((0.8, 0.9))
    assert config.optimizer.warmup_epochs == pytest.approx(1 / 40)


def test_evaluate_shows_the_worst_of_many_classes_and_says_so(finished, capsys, monkeypatch):
    whole = run(capsys, "evaluate", finished)[0].splitlines()
    monkeypatch.setattr(cli_train, "MOST_CLASSES", 4)
    printed, _, code = run(capsys, "evaluate", finished)
    header = next(number for number, line in enumerate(whole) if line.startswith("class "))
    lines = printed.splitlines()
    assert [line.split() for line in lines[:-2]] == [line.split() for line in whole[: header + 5]]
    assert (lines[-1], code) == ("6 classes with a higher F1 are left out: --json lists all", 0)
    assert len(json.loads(run(capsys, "evaluate", finished, "--json")[0])["f1"]) == 10


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
    rows = [line.split() for line in lines[header + 1 : -1]]
    scores = [float(row[-1]) for row in rows]
    assert lines[header].endswith("F1 %")
    assert scores == sorted(scores)
    assert len(scores) == 10
    assert {row[0]: float(row[-1]) for row in rows} == {
        name: pytest.approx(100 * value, abs=0.06) for name, value in found["f1"].items()
    }
    for row in rows:
        low, high = found["recall_interval"][row[0]]
        assert row[4:6] == [f"[{100 * low:.0f},", f"{100 * high:.0f}]"]
    confusion = found["confusion"]
    assert sum(sum(row.values()) for row in confusion.values()) == 500
    for name, row in confusion.items():
        assert row.get(name, 0) / found["images"][name] == pytest.approx(found["recall"][name])
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
    digits = open_data(loaded.config).dataset
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
        (
            ["train", "--data", "digits", "--model", "resnet33"],
            "unknown model 'resnet33': did you mean 'resnet33ts', 'resnet34'",
        ),
        (["train", "--data", "digits", "--loss", "fokal"], "unknown loss 'fokal': did you mean 'focal'"),
        (["train", "--data", "digits", "--config", "cifer"], "unknown recipe 'cifer': did you mean 'cifar'"),
        (["train", "--data", "digits", "--imbalance", "0.5"], "imbalance must be a finite number >= 1, got 0.5"),
        (["train", "--data", "digits", "--beta", "1.5"], "beta must be in [0, 1], got 1.5"),
        (
            ["train", "--data", "digits", "--loss", "focal", "--gamma", "-1"],
            "gamma must be a finite number >= 0, got -1",
        ),
        *(
            (
                ["train", "--data", "digits", "--set", f"loss={loss}", "--set", f"{name}=1e39"],
                f"{name} must be at most {largest}, got 1e+39",
            )
            for loss, name, largest in (
                ("focal", "gamma", "1e6"),
                ("logit_adjusted", "tau", "1e6"),
                ("ldam", "scale", "1e6"),
                *(("softmax", name, "1,000,000,000") for name in ("lr", "weight_decay", "lr_decay", "momentum")),
            )
        ),
        (
            ["train", "--data", "digits", "--image-size", "1000000000"],
            "image_size must be at most 10,000, got 1,000,000,000",
        ),
        (["train", "--data", "digits", "--gamma", "2"], 'gamma requires loss "focal" or "softmax_focal"'),
        (
            ["train", "--data", "digits", "--set", "weighting=inverse", "--beta", "0.9"],
            'beta requires weighting "effective"',
        ),
        (["train", "--data", "digits", "--defer-reweighting", "0.5"], "defer_reweighting requires class weights"),
        (
            ["train", "--data", "digits", "--beta", "0.9", "--defer-reweighting", "3"],
            "defer_reweighting must be in [0, 1]",
        ),
        (["train", "--data", "digits", "--freeze"], "freeze requires initial weights"),
        (["train", "--data", "digits", "--pretrained", "nowhere"], "cannot read the initial weights"),
        (["train", "--data", "digits", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "--config", "nowhere.json"], "nowhere.json does not exist"),
        (["train", "--config", "nowhere"], "unknown recipe 'nowhere': choose from cifar, imagenet"),
        (["train"], "--data is missing: digits, another name of longtail data list, or a folder of images"),
        (["train", "--epochs", "3"], "--data is missing"),
        (
            ["train", "--data", "digits", "--image-size", "32"],
            "image_size requires image files or a model of timm: digits has 8 × 8",
        ),
        (["train", "--data", "digits", "--set", "accelerator=gpu"], "unknown accelerator 'gpu': did you mean 'cpu'?"),
        (["train", "--data", "digits", "--set", "workers=-1"], "workers must be a finite number >= 0, got -1"),
        (["train", "--data", "digits", "--set", "devices=0"], "devices must be at least 1, got 0"),
        (["train", "--data", "digits", "--set", "workers=x"], "workers cannot be 'x'"),
        (["tune", "--data", "digits", "--set", "devices=2"], "devices is for a single run"),
        (["train", "--data", "digits", "--set", "folds=3", "--set", "fold=3"], "fold must be from 0 to 2, got 3"),
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


@pytest.mark.parametrize("network", [(), ("--model", "resnet18", "--pretrained", "none"), ("--no-freeze",)])
def test_a_folder_of_images_is_trained_on(capsys, tmp_path, network):
    generator = np.random.default_rng(0)
    for name, shade in (("dark", 40), ("bright", 200)):
        for place in range(6):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(shade - 30, shade + 30, (40, 50, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{place}.png")
    printed, error, code = run(
        capsys,
        *("train", "--data", tmp_path / "photos", *network, "--epochs", "1", "--batch-size", "4"),
        *("--image-size", "32", "--set", "workers=0", "--runs", tmp_path / "runs", "--set", "accelerator=cpu"),
    )
    assert code == 0, error
    (path,) = (tmp_path / "runs").iterdir()
    printed, _, code = run(capsys, "predict", path, tmp_path / "photos")
    assert code == 0
    assert printed.count("\n") == 1 + 12 * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "resnte50"], "unknown model 'resnte50': did you mean 'resnet50'"),
        (
            ["--model", "resnet8", "--pretrained", "imagenet"],
            "resnet8 has no ImageNet weights; choose a --model of timm",
        ),
        (
            ["--model", "resnet50", "--pretrained", "resnet8.safetensors"],
            "does not fit resnet50: conv1.weight has shape (16, 3, 3, 3), not (64, 3, 7, 7)",
        ),
        (["--pretrained", "hostile.pth"], "hostile.pth is refused: it is not a file of weights alone"),
        (["--pretrained", "nowhere"], "cannot read the initial weights "),
        (["--pretrained", "empty"], "holds no weights: it is not a run folder, and has no model.safetensors"),
        (
            ["--model", "vit_tiny_patch16_224", "--image-size", "8", "--pretrained", "none"],
            "cannot build vit_tiny_patch16_224 for an input of 8",
        ),
    ],
)
def test_weights_and_networks_that_cannot_be_used_are_one_line(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    save_file(build_model("resnet8", 2).state_dict(), tmp_path / "resnet8.safetensors")
    torch.save({"weight": test_weights_and_networks_that_cannot_be_used_are_one_line}, tmp_path / "hostile.pth")
    for name in ("dark", "bright"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (224, 224), (60 + number,) * 3).save(tmp_path / "photos" / name / f"{number}.png")
    printed, error, code = run(capsys, "train", "--data", "photos", *words)
    assert (printed, code) == ("", 2)
    assert message in error.splitlines()[-1]
    assert error.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "runs").exists()


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize(
    ("launcher", "flags"),
    [
        pytest.param(TORCHRUN, [], id="torchrun"),
        pytest.param([], ["--set", "devices=2"], id="devices", marks=pytest.mark.slow),
        pytest.param(TORCHRUN, ["--micro-batch-size", "13"], id="pieces", marks=pytest.mark.slow),
        pytest.param(TORCHRUN, ["--sampling", "progressive"], id="sampling", marks=pytest.mark.slow),
        pytest.param(TORCHRUN, ["--set", "fused_head=true"], id="fused", marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_the_losses_of_one(tmp_path, launcher, flags):
    """Real processes, gloo between them; batches of 51 images make uneven parts."""
    command = ["-m", "longtail.lab", "train", *SMALL, "--batch-size", "51", "--epochs", "3"]
    command += ["--set", "sync_batch_norm=true", "--lr", "0.01"]  # at a high one, training blows up the rounding errors
    command += ["--set", "checkpoint_minutes=0"]  # in the middle of epochs, which must not change their loss
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


def test_two_processes_measure_the_network_that_they_save(tmp_path):
    """Without synchronised batch norms each process has statistics of its own, and those of the first are saved."""
    command = [sys.executable, *TORCHRUN, "-m", "longtail.lab", "train", *SMALL, "--epochs", "2"]
    finished = subprocess.run([*command, "--runs", str(tmp_path)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    (path,) = tmp_path.iterdir()
    final, found = RunFolder(path).result()["final"], evaluate_run(load_run(path))
    assert found["nll"] == pytest.approx(final["nll"], rel=1e-5)
    assert found["recall"] == final["recall"]


def test_the_configuration_of_the_command_is_that_of_python(capsys, tmp_path):
    run(capsys, "train", *SMALL, "--epochs", "1", "--runs", tmp_path)
    (path,) = tmp_path.iterdir()
    assert RunConfig.from_json((path / "config.json").read_text()).run_id == path.name


@pytest.mark.parametrize("epochs", ["10", "+10", "010"])
def test_the_schedule_is_scaled_however_the_epochs_are_written(capsys, epochs):
    printed, _, _ = run(capsys, "train", "--data", "digits", "--epochs", epochs, "--show-config")
    assert json.loads(printed)["optimizer"]["milestones"] == [8, 9]


def test_a_dry_run_says_what_and_how_long_and_trains_nothing(capsys, tmp_path):
    printed, error, code = run(capsys, "train", *SMALL, "--epochs", "1", "--runs", tmp_path / "runs", "--dry-run")
    assert code == 0, error
    run_id, *_, last = printed.splitlines()
    assert run_id.startswith("digits-20-resnet8-softmax-s0-")
    assert "1 run, 1 to do" in last
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_an_accelerator_that_is_not_there_is_one_line(capsys, tmp_path):
    printed, error, code = run(capsys, "train", "--data", "digits", "--set", "accelerator=cuda", "--runs", tmp_path)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert "accelerator cuda cannot be used" in error
    assert os.listdir(tmp_path) == []


def test_a_finished_run_says_so_and_a_folder_is_a_configuration(finished, capsys):
    before = (finished / "result.json").stat().st_mtime_ns
    printed, error, code = run(capsys, "train", "--config", finished, "--runs", finished.parent)
    assert code == 0
    assert f"{finished} is already complete" in error
    assert f"the run is in {finished}" in printed
    assert (finished / "result.json").stat().st_mtime_ns == before


def test_a_resumed_run_says_where_it_goes_on(capsys, tmp_path):
    config = small_config(epochs=3)
    path = interrupted(tmp_path, config, 2)
    printed, error, code = run(capsys, "train", "--config", path, "--runs", tmp_path, "--set", "accelerator=cpu")
    assert code == 0
    assert "resuming in epoch 3 of 3" in error
    assert "already complete" not in error
    assert f"the run is in {path}" in printed


@pytest.mark.parametrize("content", ['{"optimizer": {"lr_decay": 1' + "0" * 400 + "}}", "[" * 100_000, "\xff", "{}x"])
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [2, 64])
def test_predict_names_unreadable_images_and_goes_on(finished, capsys, digit_files, monkeypatch, workers, batch):
    monkeypatch.setattr(prediction, "PREDICTION_BATCH", batch)
    os.mkfifo(digit_files / "0b.png")
    printed, error, code = run(capsys, "predict", finished, digit_files, "--top", "1", "--workers", workers)
    assert code == 1
    paths = [row["path"] for row in csv.DictReader(io.StringIO(printed))]
    assert paths == [str(digit_files / f"{place}.png") for place in range(3)]
    assert error.splitlines() == [
        f"error: {digit_files / '0b.png'} is not a readable image: not a regular file",
        f"error: {digit_files / '1b.png'} is not a readable image: cannot identify image file",
        "error: 2 of 5 images could not be read",
    ]
    printed, error, code = run(capsys, "predict", finished, digit_files, "--json", "--workers", workers)
    assert (code, [image["path"] for image in json.loads(printed)]) == (1, paths)


def test_predict_refuses_a_path_that_is_not_there_at_once(finished, capsys, digit_files):
    printed, error, code = run(capsys, "predict", finished, digit_files, "nowhere.png")
    assert (printed, error, code) == ("", "error: nowhere.png does not exist\n", 2)


def test_predictions_are_those_of_each_image_alone(finished, monkeypatch, tmp_path):
    images = open_dataset("digits").test.images
    paths = [tmp_path / f"{place}.png" for place in range(11)]
    for place, path in enumerate(paths):
        Image.fromarray(images[40 * place][0].numpy()).save(path)
    loaded = load_run(finished)
    alone = [next(predict(loaded, [path])) for path in paths]
    assert len({image["classes"][0] for image in alone}) > 3
    monkeypatch.setattr(prediction, "PREDICTION_BATCH", 4)
    for workers in (0, 2):
        for found, expected in zip(predict(loaded, paths, workers=workers), alone, strict=True):
            assert (found["path"], found["classes"]) == (expected["path"], expected["classes"])
            assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_from_python_an_unreadable_image_is_an_error_unless_somebody_takes_it(finished, digit_files):
    loaded, paths = load_run(finished), [digit_files / "0.png", digit_files / "1b.png", digit_files / "2.png"]
    found = predict(loaded, paths)
    assert next(found)["path"] == str(paths[0])
    with pytest.raises(DataError, match=r"1b\.png is not a readable image"):
        next(found)
    errors = []
    assert len(list(predict(loaded, paths, unreadable=errors.append))) == 2
    assert [str(error) for error in errors] == [f"{paths[1]} is not a readable image: cannot identify image file"]


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
    assert (
        f"{finished.parent} is not a run folder: it has no config.json; it holds 1 of them, such as {finished}" in error
    )


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
        *("train", *words, "--config", "cifar", "--model", "resnet8", "--epochs", "1", "--batch-size", "4"),
        *("--image-size", "16", "--set", "workers=0", "--runs", runs, "--set", "accelerator=cpu"),
    )
    elsewhere = folder / runs / ".." / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    monkeypatch.chdir(elsewhere)
    return error, code


def draw(folder, **shades):
    """Four images for each class, each of one grey."""
    for name, shade in shades.items():
        (folder / name).mkdir(parents=True)
        for place in range(4):
            Image.new("RGB", (16, 16), (shade + place,) * 3).save(folder / name / f"{place}.png")


def test_a_folder_of_images_is_found_from_another_folder_and_refused_if_it_has_changed(capsys, tmp_path, monkeypatch):
    draw(tmp_path / "photos", dark=40, bright=200)
    error, code = train_briefly(capsys, monkeypatch, tmp_path, "--data", "photos")
    assert code == 0, error
    (path,) = (tmp_path / "runs").iterdir()
    printed, error, code = run(capsys, "evaluate", path, "--json")
    assert code == 0, error
    assert sum(json.loads(printed)["images"].values()) == 2
    (tmp_path / "photos" / "dark" / "0.png").rename(tmp_path / "photos" / "dark" / "9.png")
    for words in (["evaluate", path], ["adjust", path, "--method", "tau_norm"]):
        printed, error, code = run(capsys, *words)
        assert (printed, code, error.count("\n")) == ("", 2, 1)
        assert f"photos has changed since {path} began" in error


def test_a_run_is_of_its_images_however_their_folder_is_written(capsys, tmp_path, monkeypatch):
    def trained(data="photos"):
        error, code = train_briefly(capsys, monkeypatch, tmp_path, "--data", data)
        assert code == 0, error
        return "already complete" in error

    def complete(seeds):
        values = {"recipe": "cifar", "model": "resnet8", "epochs": 1, "batch_size": 4, "image_size": 16, "seed": seeds}
        (tmp_path / "sweep.json").write_text(json.dumps({"data": str(tmp_path / "photos")} | values))
        words = ["sweep", tmp_path / "sweep.json", "--dry-run", "--runs", tmp_path / "runs", "--accelerator", "cpu"]
        printed, error, code = run(capsys, *words)
        assert code == 0, error
        return [line.rpartition("  ")[2] for line in printed.splitlines()[: len(seeds)]]

    draw(tmp_path / "photos", dark=40, bright=200)
    assert not trained()
    for again in ("photos/", "./photos", tmp_path / "photos"):
        assert trained(again)
    assert complete([0]) == ["complete"]
    draw(tmp_path / "photos", grey=120)  # then these are other images, and it is another run
    assert not trained()
    assert len(list((tmp_path / "runs").iterdir())) == 2
    shutil.rmtree(tmp_path / "photos" / "grey")
    assert trained()


def test_a_renamed_folder_of_images_is_the_same_run(capsys, tmp_path, monkeypatch):
    """It is found complete, and resumed where it is not; other images of the old name are another run."""
    draw(tmp_path / "photos", dark=40, bright=200)
    words = ("--set", "folds=2", "--set", "fold=0")
    for name, more in (("photos", ()), ("pictures", ()), ("photos", words), ("pictures", words)):
        if not (tmp_path / name).exists():
            (tmp_path / {"photos": "pictures", "pictures": "photos"}[name]).rename(tmp_path / name)
        error, code = train_briefly(capsys, monkeypatch, tmp_path, "--data", name, *more)
        assert code == 0, error
        assert ("is already complete" in error) == (name == "pictures")
    paths = sorted((tmp_path / "runs").iterdir())
    assert [path.name.split("-")[0] for path in paths] == ["photos", "photos"]
    for name in ("result.json", "checkpoint.pt", "checkpoint.previous.pt", "metrics.jsonl"):
        (paths[0] / name).unlink(missing_ok=True)
    folder = RunFolder(paths[0])
    more = words if folder.config().data.fold.folds else ()
    assert train_briefly(capsys, monkeypatch, tmp_path, "--data", "pictures", *more)[1] == 0
    assert folder.result()["run_id"] == paths[0].name
    draw(tmp_path / "photos", dark=40, bright=100)
    draw(tmp_path / "photos", grey=128)
    assert train_briefly(capsys, monkeypatch, tmp_path, "--data", "photos")[1] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_the_best_epoch_is_kept_and_told(capsys, tmp_path):
    words = ("train", "--data", "digits", "--model", "resnet8", "--epochs", "2", "--imbalance", "20")
    words += ("--validation-fraction", "0.1", "--keep", "best")
    printed, error, code = run(capsys, *words, "--runs", tmp_path, "--set", "accelerator=cpu")
    assert code == 0, error
    assert "digits: 388 training, 43 validation and 500 test images" in error
    (path,) = tmp_path.iterdir()
    kept = RunFolder(path).result()["kept_epoch"]
    assert f"kept epoch {kept} of 2, the best on the validation images: balanced accuracy" in printed
    printed, error, code = run(capsys, "evaluate", path, "--split", "validation")
    assert (code, printed.splitlines()[0]) == (0, "validation images: 43"), error
    draw(tmp_path / "photos", **{str(digit): 20 * digit for digit in range(10)})
    printed, error, code = run(capsys, "evaluate", path, "--split", "validation", "--data", tmp_path / "photos")
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert "only those have validation images" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--keep", "best"),
            "keep best requires validation images (--validation-fraction), not test images",
        ),
        (("--keep", "first", "--validation-fraction", "0.1"), "keep cannot be 'first'"),
        (("--validation-fraction", "1"), "validation_fraction must be at least 0 and below 1, got 1.0"),
        (("--group-pattern", "x"), "digits has its own classes and test images"),
        (("--set", "path_column=x"), "digits has its own classes and test images"),
    ],
)
def test_bad_splits_are_one_line_and_leave_nothing(capsys, tmp_path, words, message):
    printed, error, code = run(capsys, "train", "--data", "digits", "--runs", tmp_path / "runs", *words)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert error.startswith(f"error: {message}")
    assert not (tmp_path / "runs").exists()


def test_validation_images_need_a_run_that_has_them(capsys, tmp_path):
    words = ("train", "--data", "digits", "--model", "resnet8", "--epochs", "1", "--imbalance", "20")
    assert run(capsys, *words, "--runs", tmp_path, "--set", "accelerator=cpu")[2] == 0
    (path,) = tmp_path.iterdir()
    printed, error, code = run(capsys, "evaluate", path, "--split", "validation")
    assert (printed, code, error) == ("", 2, "error: digits has no validation images: validation_fraction was 0\n")


def test_lists_test_images_and_their_root_are_found_from_another_folder(capsys, tmp_path, monkeypatch):
    lines = []
    for name, shade in (("dark", 40), ("bright", 200)):
        for place in range(4):
            (tmp_path / "photos").mkdir(exist_ok=True)
            Image.new("RGB", (16, 16), (shade + place,) * 3).save(tmp_path / "photos" / f"{name}{place}.png")
            lines.append(f"{name}{place}.png {name}\n")
    for name, part in (("ours", lines[::2]), ("theirs", lines[1::2])):
        (tmp_path / f"{name}.txt").write_text("".join(part))
    lists = ("--data", "ours.txt", "--set", "test_data=theirs.txt", "--set", "image_root=photos")
    error, code = train_briefly(capsys, monkeypatch, tmp_path, *lists)
    assert code == 0, error
    (path,) = (tmp_path / "runs").iterdir()
    printed, error, code = run(capsys, "evaluate", path, "--json")
    assert code == 0, error
    assert json.loads(printed)["images"] == {"bright": 2, "dark": 2}
    _, error, code = run(capsys, "adjust", path, "--method", "tau_norm")
    assert code == 0, error
    _, error, code = run(capsys, "retrain", path, "--epochs", "1", "--accelerator", "cpu", "--workers", "0")
    assert code == 0, error
    (head,) = (other for other in (tmp_path / "runs").iterdir() if other != path)
    locations = {"path": "ours.txt", "test_data": "theirs.txt", "image_root": "photos"}
    locations = {name: str(tmp_path / file) for name, file in locations.items()}
    assert RunFolder(path).data()["locations"] == locations
    assert RunFolder(head).data()["locations"] == locations | {"weights_path": str(path)}
    _, error, code = run(capsys, "evaluate", head)
    assert code == 0, error


def test_a_run_on_the_folder_it_was_in_is_evaluated_on_its_images_from_another(capsys, tmp_path, monkeypatch):
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
    loader = evaluation_loader(replace(dataset, input_size=8), 1, workers=1)
    batches = loader.epoch(0)
    seen = [next(batches)]
    (worker,) = loader._loader._iterator._workers
    os.kill(worker.pid, signal.SIGTERM)
    seen += list(batches)
    assert len(seen) == 6
    assert worker.is_alive()


def test_data_that_is_not_there_is_said_before_other_processes_are_started(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(loop, "make_fabric", lambda *_: pytest.fail("processes were started"))
    _, error, code = run(capsys, "train", "--data", "nodata", "--set", "devices=2", "--runs", tmp_path)
    assert (code, error.count("unknown data set 'nodata'")) == (2, 1)


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_the_first_of_several_processes_speaks_for_all(monkeypatch, finished, capsys, rank, times):
    monkeypatch.setenv("RANK", rank)
    printed, error, _ = run(capsys, "train", "--config", finished, "--runs", finished.parent)
    assert (error.count("already complete"), printed.count("the run is in")) == (times, times)

    def stopped(_):
        raise Interrupted("interrupted in epoch 1")

    monkeypatch.setattr(app, "run", stopped)
    _, error, code = run(capsys, "train")
    assert (code, error.count("interrupted in epoch 1")) == (130, times)
