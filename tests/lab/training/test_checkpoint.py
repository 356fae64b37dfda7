"""Checkpoints: one that is damaged, or something else, never costs one that is whole."""

import os
import shutil
import zipfile

import pytest
import torch

from longtail.lab.config import RunOptions
from longtail.lab.training import RunFolder, train
from longtail.lab.training.checkpoint import State, load_checkpoint, save_checkpoint
from tests.lab.cli.test_data import run
from tests.lab.training.runs import small_config
from tests.lab.training.test_run_folder import interrupted


def test_a_damaged_checkpoint_makes_way_and_the_one_before_it_stays(tmp_path):
    for epoch in (1, 2):
        save_checkpoint(tmp_path, {"epoch": epoch})
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    state, notes = load_checkpoint(tmp_path)
    assert state == {"epoch": 1}
    assert notes == [
        f"{tmp_path / 'checkpoint.pt'} is damaged (File is not a zip file): resuming from the one before it"
    ]
    assert (tmp_path / "checkpoint.damaged").read_bytes() == b"damaged"
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.damaged", "checkpoint.previous.pt"]
    save_checkpoint(tmp_path, {"epoch": 3})
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged again")
    assert load_checkpoint(tmp_path)[0] == {"epoch": 1}


def test_a_single_flipped_bit_of_a_weight_is_damage(tmp_path):
    """PyTorch itself would load it."""
    for epoch in (1, 2):
        save_checkpoint(tmp_path, {"epoch": epoch, "weights": torch.full((1000,), 0.123456)})
    path = tmp_path / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[content.index(torch.tensor([0.123456]).numpy().tobytes() * 1000) + 2000] ^= 1
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)["weights"].unique().numel() == 2
    state, notes = load_checkpoint(tmp_path)
    assert state["epoch"] == 1
    assert f"{path} is damaged (checksum of " in notes[0]


def test_the_last_of_the_notes_says_that_the_training_starts_anew(tmp_path):
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (tmp_path / name).write_bytes(b"damaged")
    state, notes = load_checkpoint(tmp_path)
    assert state is None
    assert [note.rpartition(": ")[2] for note in notes] == ["resuming from the one before it", "starting anew"]
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.damaged", "checkpoint.previous.damaged"]


def test_the_only_checkpoint_damaged_starts_anew(tmp_path):
    save_checkpoint(tmp_path, {"epoch": 1})
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    state, notes = load_checkpoint(tmp_path)
    assert state is None
    assert notes[-1].endswith("starting anew")


def test_several_processes_can_find_the_same_damage(tmp_path, monkeypatch):
    """Another one has renamed the file between this one's look at it and its own renaming."""
    for epoch in (1, 2):
        save_checkpoint(tmp_path, {"epoch": epoch})

    def renamed_meanwhile(_):
        if (tmp_path / "checkpoint.pt").exists():
            (tmp_path / "checkpoint.pt").rename(tmp_path / "checkpoint.damaged")
            return "data.pkl"
        return None

    monkeypatch.setattr(zipfile.ZipFile, "testzip", renamed_meanwhile)
    assert load_checkpoint(tmp_path)[0] == {"epoch": 1}


WHOLE = dict.fromkeys(State.CONTENT, 0) | {"rate": 0.1, "loss": torch.tensor(2.0)}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((other, "it is not a checkpoint") for other in ({"epoch": 1}, [1, 2], torch.zeros(2))),
        ({name: value for name, value in WHOLE.items() if name != "rate"}, "it is not a checkpoint"),
        (WHOLE | {"epoch": "x"}, "epoch is 'x'"),
        (WHOLE | {"epoch": True}, "epoch is True"),
        (WHOLE | {"step": -1}, "step is -1"),
        (WHOLE | {"rate": None}, "rate is None"),
        (WHOLE | {"loss": "x"}, "loss is 'x'"),
        (WHOLE | {"loss": torch.zeros(2)}, "loss is tensor"),
    ],
)
def test_a_file_of_another_form_falls_back_to_the_one_before_it(tmp_path, content, problem):
    save_checkpoint(tmp_path, WHOLE)
    save_checkpoint(tmp_path, {})
    torch.save(content, tmp_path / "checkpoint.pt")
    state, notes = load_checkpoint(tmp_path, State.check)
    assert state == WHOLE
    assert f"is damaged ({problem}" in notes[0]


def test_a_failed_save_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, {"epoch": 1})
    monkeypatch.setattr(os, "fsync", lambda _: os.stat(tmp_path / "nothing"))
    with pytest.raises(OSError, match=r"checkpoint\.pt"):
        save_checkpoint(tmp_path, {"epoch": 2})
    assert load_checkpoint(tmp_path) == ({"epoch": 1}, [])


@pytest.fixture(scope="module")
def after_one(tmp_path_factory):
    return interrupted(tmp_path_factory.mktemp("begun"), small_config(epochs=2), 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state["model"].update({"fc.weight": torch.zeros(3, 3)}),
        lambda state: state["model"].update({"fc.weight": "x"}),
        lambda state: state.update({"model": 3}),
        lambda state: state.update({"optimizer": 3}),
        lambda state: state["optimizer"].update({"param_groups": []}),
        lambda state: state["optimizer"].update({"state": {0: 3}}),
        lambda state: state["optimizer"]["state"][0].update({"momentum_buffer": "x"}),
        lambda state: state["optimizer"]["state"][0].update({"momentum_buffer": torch.zeros(3)}),
    ],
)
def test_a_checkpoint_of_another_network_is_one_line(capsys, after_one, tmp_path, damage):
    path = shutil.copytree(after_one, tmp_path / after_one.name)
    state, _ = load_checkpoint(path)
    damage(state)
    save_checkpoint(path, state)
    printed, error, code = run(capsys, "train", "--config", path, "--runs", tmp_path, "--set", "accelerator=cpu")
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert f"the checkpoint in {path} is for another network" in error


def test_a_checkpoint_does_not_say_how_to_train(after_one, tmp_path):
    path = shutil.copytree(after_one, tmp_path / "runs" / after_one.name)
    state, _ = load_checkpoint(path)
    state["optimizer"]["param_groups"][0] |= {"momentum": "x", "weight_decay": 1e9}
    save_checkpoint(path, state)
    train(small_config(epochs=2), RunOptions(runs=path.parent))
    whole = train(small_config(epochs=2), RunOptions(runs=tmp_path / "whole"))
    assert RunFolder(path).model_file.read_bytes() == RunFolder(whole).model_file.read_bytes()


def test_a_run_whose_checkpoints_are_all_damaged_starts_anew_and_ends_alike(tmp_path):
    config = small_config(epochs=2)
    path = interrupted(tmp_path, config, 1)
    (path / "checkpoint.pt").write_bytes(b"damaged")
    train(config, RunOptions(runs=tmp_path))
    whole = train(config, RunOptions(runs=tmp_path / "whole"))
    assert RunFolder(path).model_file.read_bytes() == RunFolder(whole).model_file.read_bytes()
    assert [line["epoch"] for line in RunFolder(path).metrics()] == [1, 2]
