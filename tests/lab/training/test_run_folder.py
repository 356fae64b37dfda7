"""Run folders: what they hold is checked, what is foreign is left alone, and who has one has it alone."""

import errno
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from longtail.lab import locks
from longtail.lab.config import ConfigError, DataConfig, RunOptions
from longtail.lab.data import InMemoryImages, SubsetOptions, open_dataset
from longtail.lab.files import atomic_file, write_atomically
from longtail.lab.training import (
    RunFolder,
    RunInUse,
    TrainingError,
    build,
    evaluate_run,
    load_run,
    loop,
    predict,
    run_folder,
    train,
)
from tests.lab.cli.test_data import run
from tests.lab.training.runs import no_room_for, small_config

EPOCHS = 3


def interrupted(runs, config, epochs):
    """The folder of a run that was killed after so many epochs."""
    saved, write = [], loop.save_checkpoint

    def killed(folder, state):
        write(folder, state)
        saved.append(state["epoch"])
        if len(saved) == epochs:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, RunOptions(runs=runs))
    return runs / config.run_id


@pytest.fixture(scope="module")
def after_two(tmp_path_factory):
    return interrupted(tmp_path_factory.mktemp("begun"), small_config(epochs=EPOCHS), 2)


@pytest.fixture
def begun(after_two, tmp_path):
    """A run after two of three epochs."""
    return shutil.copytree(after_two, tmp_path / "runs" / after_two.name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(small_config(epochs=1), RunOptions(runs=tmp_path_factory.mktemp("trained")))


@pytest.fixture
def finished(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs" / trained.name)


def go_on(path):
    return train(small_config(epochs=EPOCHS), RunOptions(runs=path.parent))


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def with_other_labels(dataset):
    return replace(dataset, train=InMemoryImages(dataset.train.images, dataset.train.labels.roll(1)))


def with_other_classes(dataset):
    return replace(dataset, classes=tuple("abcdefghij"))


def with_fewer_images(dataset):
    return replace(dataset, train=dataset.train.subset(range(len(dataset.train) - 1)))


@pytest.mark.parametrize("change", [with_other_labels, with_other_classes, with_fewer_images])
def test_a_run_neither_goes_on_nor_is_evaluated_with_other_data(begun, finished, monkeypatch, change):
    monkeypatch.setattr(build, "open_dataset", lambda *_, **__: change(open_dataset("digits")))
    before = contents(begun)
    with pytest.raises(ConfigError, match=f"digits has changed since {begun} began"):
        go_on(begun)
    after = contents(begun)
    assert {name: after[name] for name in before} == before
    with pytest.raises(ConfigError, match=f"digits has changed since {finished} began"):
        evaluate_run(load_run(finished))


def photos(folder, names):
    """A folder of images of two classes."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (7 * len(name), 0, 0)).save(path)
    return replace(small_config(epochs=1), data=DataConfig(name=str(folder), image_size=8))


NAMES = ["cat/1.png", "cat/2.png", "cat/3.png", "owl/1.png", "owl/2.png", "owl/3.png"]


def test_a_run_is_found_by_its_images_and_not_by_how_their_folder_was_typed(tmp_path, monkeypatch):
    config = photos(tmp_path / "photos", NAMES)
    runs = RunOptions(runs=tmp_path / "runs", workers=0)
    path = train(config, runs)
    monkeypatch.chdir(tmp_path)
    for typed in ("photos", "photos/", "./photos", "../" + tmp_path.name + "/photos"):
        assert train(replace(config, data=replace(config.data, name=typed)), runs) == path
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "photos").rename(tmp_path / "elsewhere" / "photos")
    assert train(replace(config, data=replace(config.data, name="elsewhere/photos")), runs) == path
    assert RunFolder(path).config().data.path == tmp_path / "photos"  # where they were
    assert str(tmp_path) not in RunFolder(path).config_file.read_text()


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "another size"])
def test_other_images_are_another_run(tmp_path, change):
    config = photos(tmp_path / "photos", NAMES)
    runs = RunOptions(runs=tmp_path / "runs", workers=0)
    path = train(config, runs)
    image = tmp_path / "photos" / "owl" / "2.png"
    if change == "added":
        shutil.copy(image, image.with_name("4.png"))
    elif change == "removed":
        image.unlink()
    elif change == "renamed":
        image.rename(image.with_name("5.png"))
    else:
        Image.effect_noise((16, 16), 50).convert("RGB").save(image)
    assert train(config, runs) != path


def test_another_choice_of_the_same_images_is_other_data(tmp_path):
    digits, folder = open_dataset("digits"), RunFolder(tmp_path)
    (dataset, subset), (other, chosen) = (
        SubsetOptions(imbalance=10.0, subset_seed=seed).choose(digits) for seed in (0, 1)
    )
    with folder.opened(small_config()):
        folder.write_data(dataset, subset, small_config())
    folder.check_data(dataset, subset, small_config())
    with pytest.raises(ConfigError, match="digits has changed since"):
        folder.check_data(other, chosen, small_config())


def test_a_lost_data_file_is_written_anew(begun):
    expected = (begun / "data.json").read_bytes()
    (begun / "data.json").unlink()
    go_on(begun)
    assert (begun / "data.json").read_bytes() == expected
    assert [line["epoch"] for line in RunFolder(begun).metrics()] == [1, 2, 3]


LEFTOVERS = [".checkpoint.pt.abcd1234", ".config.json.a_b1", ".metrics.jsonl.x"]


@pytest.mark.parametrize("names", [[".lock"], [".lock", *LEFTOVERS], LEFTOVERS])
def test_what_a_killed_process_leaves_behind_is_no_obstacle(tmp_path, names):
    config = small_config(epochs=1)
    path = tmp_path / config.run_id
    path.mkdir()
    for name in names:
        (path / name).write_bytes(b"half")
    with RunFolder(path).opened(config):
        assert sorted(os.listdir(path)) == [".lock", "config.json"]
    (path / LEFTOVERS[0]).write_bytes(b"half")
    with RunFolder(path).opened(config):
        assert sorted(os.listdir(path)) == [".lock", "config.json"]


@pytest.mark.parametrize("foreign", ["thesis.tex", ".bashrc", ".notes.txt.abcd1234", "checkpoint.pt"])
def test_foreign_files_are_refused_and_kept_also_beside_leftovers(tmp_path, foreign):
    for name in (".lock", *LEFTOVERS, foreign):
        (tmp_path / name).write_text("years of work")
    before = contents(tmp_path)
    with (
        pytest.raises(ConfigError, match="holds something other than a run"),
        RunFolder(tmp_path).opened(small_config()),
    ):
        pass
    assert contents(tmp_path) == before


def drop(number):
    return lambda lines: lines[: number - 1] + lines[number:]


def put(number, text):
    return lambda lines: [*lines[: number - 1], text, *lines[number:]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (None, r"metrics\.jsonl is damaged: 0 of 2 epochs are left"),
        (drop(1), r"metrics\.jsonl is damaged in line 1: it is from another epoch"),
        (drop(2), r"metrics\.jsonl is damaged: 1 of 2 epochs are left"),
        (put(1, '{"epoch": 1, "tra'), r"metrics\.jsonl is damaged in line 1: "),
        (put(2, '{"epoch": 2, "tra'), r"metrics\.jsonl is damaged in line 2: "),
        (put(2, "[2]"), r"metrics\.jsonl is damaged in line 2: "),
        (put(2, "2"), r"metrics\.jsonl is damaged in line 2: "),
        (put(2, "{}"), r"metrics\.jsonl is damaged in line 2: "),
        (put(1, ""), r"metrics\.jsonl is damaged in line 1: "),
        (put(1, '{"epoch": 1, "seconds": "x"}'), r"metrics\.jsonl is damaged in line 1: 'x' is not a number"),
        (put(1, '{"epoch": 1, "error": null}'), r"metrics\.jsonl is damaged in line 1: None is not a number"),
        (put(2, '{"epoch": "x"}'), r"metrics\.jsonl is damaged in line 2: 'x' is not a whole number"),
    ],
)
def test_damaged_metrics_are_refused_by_line(begun, damage, message):
    file = begun / "metrics.jsonl"
    lines = file.read_text().splitlines()
    if damage:
        file.write_text("".join(line + "\n" for line in damage(lines)))
    else:
        file.unlink()
    with pytest.raises(ConfigError, match=message) as error:
        go_on(begun)
    assert "\n" not in str(error.value)
    assert not (begun / "result.json").exists()


def test_a_torn_line_after_the_checkpoint_is_dropped(begun):
    with (begun / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "trai')
    go_on(begun)
    assert [line["epoch"] for line in RunFolder(begun).metrics()] == [1, 2, 3]


@pytest.mark.parametrize("name", ["result.json", "data.json"])
@pytest.mark.parametrize("content", ["{}", "[]", "3", "{", "[" * 100_000, "\xff"])
def test_a_damaged_file_is_named(finished, name, content):
    (finished / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as error:
        load_run(finished)
    assert "\n" not in str(error.value)


DAMAGE = [
    ("data.json", {"mean": [None]}, "None is not a number"),
    ("data.json", {"mean": [1.0, 2.0]}, "mean [1.0, 2.0] and std"),
    ("data.json", {"mean": 3}, "mean is 3, which is not a list"),
    ("data.json", {"std": [0.0]}, "std [0.0] cannot be"),
    ("data.json", {"std": [float("nan")]}, "nan is not a number"),
    ("data.json", {"classes": 5}, "classes is 5, which is not a list"),
    ("data.json", {"classes": [5] * 10}, "classes are not names"),
    ("data.json", {"classes": ["a"]}, "train_counts has 10 counts"),
    ("data.json", {"train_counts": ["x"] * 10}, "'x' is not a whole number"),
    ("data.json", {"train_counts": [1.5] * 10}, "1.5 is not a whole number"),
    ("data.json", {"train_counts": [0] * 10}, "0 images"),
    ("data.json", {"image_shape": "x"}, "image_shape is 'x', which is not a list"),
    ("data.json", {"image_shape": [1, 8]}, "image_shape is [1, 8]"),
    ("data.json", {"image_shape": [1, 8, 0]}, "image_shape is [1, 8, 0]"),
    ("data.json", {"image_shape": [1, 8, None]}, "None is not a whole number"),
    ("data.json", {"locations": 5}, "'int' object has no attribute 'items'"),
    ("data.json", {"locations": {"path": 5}}, "path is 5, which is not a path"),
    ("result.json", {"final": {}}, "it lacks 'error'"),
    ("result.json", {"final": 3}, "'int' object has no attribute 'items'"),
    ("result.json", {"final": {"error": "x"}}, "'x' is not a number"),
    ("result.json", {"final": {"error": 5.0}}, "it lacks 'balanced_accuracy'"),
    ("result.json", {"final": {"error": 5.0, "balanced_accuracy": 0.5}}, "it lacks 'many'"),
    ("result.json", {"final": {"error": 5.0, "balanced_accuracy": None}}, "None is not a number"),
    ("result.json", {"final": {"error": 5.0, "recall": 3}}, "3 is not a list"),
    ("result.json", {"best_error": None}, "None is not a number"),
    ("result.json", {"versions": 3}, "'int' object has no attribute 'items'"),
    ("result.json", {"run_id": 3}, "result.json is of 3, but config.json of"),
]


@pytest.mark.parametrize(("name", "values", "problem"), DAMAGE)
def test_a_wrong_value_in_a_file_is_one_line_of_every_command(capsys, finished, name, values, problem):
    content = json.loads((finished / name).read_text())
    (finished / name).write_text(json.dumps(content | values))
    image = finished.parent / "image.png"
    Image.new("L", (8, 8)).save(image)
    commands = [("evaluate", finished), ("predict", finished, image), ("adjust", finished, "--method", "tau_norm")]
    if name == "result.json":
        commands.append(("train", "--config", finished, "--runs", finished.parent))
    for words in commands:
        printed, error, code = run(capsys, *words)
        assert (printed, code, error.count("\n")) == ("", 2, 1), words
        assert name in error
        assert problem in error
    printed, error, code = run(capsys, "results", finished.parent)
    assert code == 0
    if name == "result.json":
        assert error.startswith(f"damaged: {finished.name}: {name} is")
        assert problem in error
    assert run(capsys, "report", finished.parent, "-o", finished.parent / "page.html")[2] == 0


def test_weights_of_another_run_are_refused(finished, tmp_path):
    other = train(small_config(epochs=1, seed=1), RunOptions(runs=tmp_path / "other"))
    shutil.copy(other / "model.safetensors", finished / "model.safetensors")
    with pytest.raises(
        ConfigError, match=rf"model\.safetensors is not a resnet8 of this run: it belongs to {other.name}"
    ) as error:
        load_run(finished)
    assert "\n" not in str(error.value)


def flip_bits(path, count=40):
    """Damage as a disk does it, in the numbers alone: the header still says what they are."""
    content = bytearray(path.read_bytes())
    first = 8 + int.from_bytes(content[:8], "little")
    for place in range(first, len(content), (len(content) - first) // count):
        content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("data.json", ["classes"]),
        ("data.json", ["mean"]),
        ("data.json", ["image_shape"]),
        ("data.json", ["input", "input_size"]),
        ("result.json", ["final"]),
        ("result.json", ["run_id"]),
        ("result.json", ["versions"]),
    ],
)
def test_a_missing_value_is_one_line_that_names_it(capsys, finished, name, keys):
    content = json.loads((finished / name).read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    (finished / name).write_text(json.dumps(content))
    printed, error, code = run(capsys, "evaluate", finished)
    assert (printed, code, error) == ("", 2, f"error: {finished / name} is damaged: it lacks '{keys[-1]}'\n")


def test_the_result_holds_the_checksum_of_the_weights(finished):
    expected = hashlib.sha256((finished / "model.safetensors").read_bytes()).hexdigest()
    assert RunFolder(finished).result()["model_sha256"] == expected


def test_damaged_weights_are_refused(finished):
    flip_bits(finished / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged: its SHA-256 is not that of") as error:
        load_run(finished)
    assert "\n" not in str(error.value)


def test_weights_whose_checksum_is_not_known_are_refused(finished):
    result = RunFolder(finished).result()
    del result["model_sha256"]
    (finished / "result.json").write_text(json.dumps(result))
    with pytest.raises(ConfigError, match=r"result\.json is damaged: it lacks 'model_sha256'"):
        load_run(finished)


def with_weight(path, value):
    """A finished run, whole by all that its files say, with one weight of its last layer changed."""
    weights = load_file(path / "model.safetensors")
    weights["fc.bias"][3] = value
    save_file(weights, path / "model.safetensors", {"run_id": path.name})
    result = RunFolder(path).result()
    result["model_sha256"] = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    (path / "result.json").write_text(json.dumps(result))
    return load_run(path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_no_numbers_are_refused(finished, tmp_path, value):
    run = with_weight(finished, value)
    Image.new("L", (8, 8)).save(tmp_path / "digit.png")
    for use in (lambda: evaluate_run(run), lambda: list(predict(run, [tmp_path / "digit.png"]))):
        with pytest.raises(ConfigError, match=rf"the outputs of {finished} are not finite numbers") as error:
            use()
        assert "\n" not in str(error.value)


def test_a_run_without_a_result_is_not_loaded(finished, monkeypatch, capsys):
    (finished / "result.json").unlink()
    with pytest.raises(ConfigError, match=rf"{finished} is not finished: resume its training first"):
        load_run(finished)
    resume = f"is not finished: resume its training first: longtail train --config {{}} --runs {finished.parent}\n"
    assert run(capsys, "evaluate", finished)[1].endswith(resume.format(finished))
    monkeypatch.chdir(finished)
    assert run(capsys, "evaluate", ".")[1] == "error: . " + resume.format(".")


def test_a_file_that_cannot_be_written_is_named_whatever_failed(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        write_atomically(tmp_path / "a", "x")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "a"))
    with pytest.raises(OSError, match="gone") as error, atomic_file(tmp_path / "b"):
        raise OSError(errno.EIO, "gone")
    assert error.value.filename == str(tmp_path / "b")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["checkpoint.pt", "metrics.jsonl", "model.safetensors", "result.json", "data.json"])
def test_a_full_disk_is_an_error_of_the_training_that_names_the_file(tmp_path, monkeypatch, name):
    sync = os.fsync
    no_room_for(monkeypatch, name)
    config = small_config(epochs=1)
    path = tmp_path / config.run_id
    with pytest.raises(TrainingError, match=f"cannot write {path / name}: No space left on device") as error:
        train(config, RunOptions(runs=tmp_path))
    assert error.value.exit_code == 1
    assert not [left for left in os.listdir(path) if left.startswith(f".{name}")]
    monkeypatch.setattr(os, "fsync", sync)
    assert RunFolder(train(config, RunOptions(runs=tmp_path))).result()


def test_a_file_that_is_opened_by_its_bytes_is_named_as_text(tmp_path):
    with (
        pytest.raises(TrainingError, match=r"cannot write runs/a/events: No such file or directory$"),
        RunFolder(tmp_path).written(),
    ):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), b"runs/a/events")


PARENT = """
import os, sys
from pathlib import Path
from longtail.lab.config import RunConfig
from longtail.lab.training.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).opened(RunConfig()):
    child = os.fork()
    if child:
        print(child, flush=True)
    sys.stdin.read()
    os._exit(0)
"""


def test_a_child_that_outlives_its_killed_parent_does_not_hold_the_folder(tmp_path):
    path = tmp_path / "run"
    config = small_config()
    program = PARENT.replace("RunConfig()", f"RunConfig.from_json({config.to_json()!r})")
    command = [sys.executable, "-c", program, str(path)]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(ConfigError, match="in use by another process"), RunFolder(path).opened(config):
            pass
        parent.kill()
        parent.wait()
        os.kill(child, 0)
        with RunFolder(path).opened(config):
            pass
    finally:
        parent.kill()
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_the_parent_keeps_its_lock_when_it_forks(tmp_path):
    config = small_config()
    with RunFolder(tmp_path).opened(config):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(ConfigError, match="in use by another process"), RunFolder(tmp_path).opened(config):
            pass


def test_the_weights_say_whose_they_are(finished):
    assert load_run(finished).config.run_id == finished.name
    assert torch.cat([weight.flatten() for weight in load_run(finished).model.parameters()]).isfinite().all()


def delete_lock(path):
    (path / ".lock").unlink()


def replace_lock(path):
    """As another process does that begins after the file is deleted."""
    (path / ".lock").unlink()
    (path / ".lock").touch()


def before(monkeypatch, owner, name, do, call=1):
    """Do something before a function is called for so many times."""
    function, calls = getattr(owner, name), []

    def wrapped(*arguments, **options):
        calls.append(arguments)
        if len(calls) == call:
            do()
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)


WRITES = [(RunFolder, "write_data", 1), (RunFolder, "write_metrics", 2), (loop.Training, "save", 2)]
WRITES += [(RunFolder, "finish", 1)]


@pytest.mark.parametrize(("owner", "name", "call"), WRITES)
@pytest.mark.parametrize("lose", [delete_lock, replace_lock])
def test_a_training_that_lost_its_lock_writes_nothing_more_and_says_so(tmp_path, monkeypatch, owner, name, call, lose):
    """Where folders cannot be locked, as on Windows."""
    monkeypatch.setattr(locks, "fcntl", None)
    config = small_config(epochs=EPOCHS)
    path, left = tmp_path / config.run_id, {}

    def lost():
        lose(path)
        left.update(without_events(path))

    before(monkeypatch, owner, name, lost, call)
    with pytest.raises(TrainingError, match=rf"{path}/\.lock was deleted during the run") as error:
        train(config, RunOptions(runs=tmp_path))
    assert (error.value.exit_code, str(error.value).count("\n")) == (1, 0)
    assert without_events(path) == left
    monkeypatch.undo()
    assert RunFolder(go_on(path)).result()


@pytest.mark.parametrize("lose", [delete_lock, replace_lock])
def test_a_deleted_lock_file_lets_no_second_process_in(tmp_path, monkeypatch, lose):
    config = small_config(epochs=EPOCHS)
    refused = []

    def lost():
        lose(tmp_path / config.run_id)
        with pytest.raises(RunInUse, match="is in use by another process"):
            train(config, RunOptions(runs=tmp_path))
        refused.append(True)

    before(monkeypatch, loop.Training, "save", lost, 2)
    assert RunFolder(train(config, RunOptions(runs=tmp_path))).result()
    assert refused


def without_events(path):
    return {name: content for name, content in contents(path).items() if not name.startswith("events.")}


@pytest.mark.parametrize(("owner", "name", "call"), WRITES)
def test_a_folder_that_is_deleted_during_the_run_is_not_rebuilt(tmp_path, monkeypatch, owner, name, call):
    config = small_config(epochs=EPOCHS)
    path = tmp_path / config.run_id
    before(monkeypatch, owner, name, lambda: shutil.rmtree(path), call)
    with pytest.raises(TrainingError, match=rf"{path} was deleted during the run$") as error:
        train(config, RunOptions(runs=tmp_path))
    assert error.value.exit_code == 1
    assert not path.exists()


@pytest.mark.parametrize(
    ("owner", "name", "file"),
    [
        (torch, "save", "checkpoint.pt"),
        (run_folder, "to_safetensors", "model.safetensors"),
        (run_folder, "model_card", "README.md"),
    ],
)
def test_a_folder_that_is_deleted_while_a_file_is_prepared_is_not_rebuilt(tmp_path, monkeypatch, owner, name, file):
    config = small_config(epochs=1)
    path = tmp_path / config.run_id
    before(monkeypatch, owner, name, lambda: shutil.rmtree(path))
    with pytest.raises(TrainingError, match=rf"cannot write {path}/{file}: No such file or directory$"):
        train(config, RunOptions(runs=tmp_path))
    assert not path.exists()


@pytest.mark.parametrize(("owner", "name", "call"), WRITES)
def test_a_folder_that_is_emptied_during_the_run_gets_no_more_files(tmp_path, monkeypatch, owner, name, call):
    """As by rm -r, which cannot remove a folder into which a file is written meanwhile."""
    config = small_config(epochs=EPOCHS)
    path = tmp_path / config.run_id

    def empty():
        for file in path.iterdir():
            file.unlink()

    before(monkeypatch, owner, name, empty, call)
    with pytest.raises(TrainingError, match=rf"{path}/config.json was deleted during the run") as error:
        train(config, RunOptions(runs=tmp_path))
    assert error.value.exit_code == 1
    assert without_events(path) == {}


def test_a_folder_that_is_deleted_with_the_last_write_has_no_result(tmp_path, monkeypatch):
    config = small_config(epochs=1)
    path = tmp_path / config.run_id
    write = run_folder.write_atomically

    def deleted(file, content, **options):
        write(file, content, **options)
        if file.name == "result.json":
            shutil.rmtree(path)

    monkeypatch.setattr(run_folder, "write_atomically", deleted)
    with pytest.raises(TrainingError, match=rf"{path} was deleted during the run$"):
        train(config, RunOptions(runs=tmp_path))


def test_a_folder_that_is_deleted_while_a_file_is_written_is_one_clear_line(tmp_path, monkeypatch):
    config = small_config(epochs=1)
    path = tmp_path / config.run_id

    def delete():
        while path.exists():  # a thread may be writing another file there
            shutil.rmtree(path, ignore_errors=True)

    before(monkeypatch, os, "fsync", delete, call=3)
    with pytest.raises(TrainingError, match=rf"cannot write {path}/\w+\.\w+: No such file or directory$"):
        train(config, RunOptions(runs=tmp_path))
    assert not path.exists()
