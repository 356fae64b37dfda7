"""Runs that survive: killed, interrupted, damaged, without room, and in each other's way."""

import contextlib
import json
import os
import random
import re
import signal
from dataclasses import replace

import pytest
import torch

from longtail import NormedLinear
from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions, with_fields
from longtail.lab.data import evaluation_loader, training_loader
from longtail.lab.training import RunFolder, TrainingError, evaluate_run, evaluation, load_run, loop, train
from longtail.lab.training.build import open_data
from longtail.lab.training.checkpoint import load_checkpoint, save_checkpoint
from longtail.lab.training.loop import evaluate_network
from longtail.lab.training.metrics import DETAILS, without_details
from tests.lab.training.runs import error_of, finish, small_config, start

TIMES = ("seconds", "images_per_second")


def outcome(path):
    """All that must not depend on interruptions."""
    epochs = [{name: value for name, value in line.items() if name not in TIMES} for line in RunFolder(path).metrics()]
    return epochs, RunFolder(path).model_file.read_bytes()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run that nobody disturbed."""
    runs = tmp_path_factory.mktemp("reference") / "runs"
    config = small_config()
    assert finish(start(config, runs)) == 0
    return runs / config.run_id


TIMED = {"defer_reweighting": 0.4, "mixup": 0.5, "cutmix": 1.0}
"""What depends on the epoch and the step."""


@pytest.mark.parametrize(
    ("seed", "changes"), [(3, TIMED), *(pytest.param(seed, {}, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_a_run_killed_again_and_again_ends_with_the_same_bits(reference, tmp_path, seed, changes):
    """Checkpoints after every step, so that kills also hit the middle of epochs and of writing."""
    config = RunFolder(reference).config()
    if changes:
        reference = tmp_path / "whole"
        config = with_fields(config, changes)
        assert finish(start(config, reference)) == 0
        reference /= config.run_id
    runs = tmp_path / "runs"
    path = runs / config.run_id
    draw = random.Random(seed)
    for _ in range(4):  # a step writes its checkpoint by four calls that count, and there are 42 of them
        ending = (signal.SIGKILL, None, draw.randint(5, 40))
        assert finish(start(config, runs, checkpoint_minutes=1e-9, ending=ending)) == -signal.SIGKILL
        assert not (path / "result.json").exists()
    assert finish(start(config, runs, checkpoint_minutes=1e-9)) == 0
    assert outcome(path) == outcome(reference)


@pytest.mark.parametrize("place", ["save_checkpoint", "write_metrics"])
def test_an_end_between_two_files_loses_no_epoch(tmp_path, monkeypatch, place):
    """Killed before or after each of the two is written, in turn."""
    config = small_config(epochs=3)
    owner = loop if place == "save_checkpoint" else RunFolder
    write = getattr(owner, place)
    for number in range(4):
        calls = []

        def killed(*arguments, number=number, calls=calls):
            calls.append(arguments)
            if number % 2:
                write(*arguments)
            if len(calls) == 1 + number // 2:
                raise KeyboardInterrupt
            if not number % 2:
                write(*arguments)

        runs = tmp_path / str(number)
        monkeypatch.setattr(owner, place, killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, RunOptions(runs=runs))
        monkeypatch.setattr(owner, place, write)
        path = train(config, RunOptions(runs=runs))
        assert [line["epoch"] for line in RunFolder(path).metrics()] == [1, 2, 3]


def test_a_run_killed_before_its_result_has_all_of_it(tmp_path, monkeypatch):
    """Lines of epochs do not have the confusion matrix: after the last one, the run is tested again."""
    config = small_config(epochs=2)
    whole = RunFolder(train(config, RunOptions(runs=tmp_path / "whole"))).result()
    finish_run = RunFolder.finish
    monkeypatch.setattr(RunFolder, "finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config, RunOptions(runs=tmp_path / "runs"))
    monkeypatch.setattr(RunFolder, "finish", finish_run)
    path = train(config, RunOptions(runs=tmp_path / "runs"))
    final = RunFolder(path).result()["final"]
    assert {name for name in final if final[name] != whole["final"][name]} <= set(TIMES)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves_with_a_message(reference, tmp_path, number):
    config = RunFolder(reference).config()
    runs = tmp_path / "runs"
    path = runs / config.run_id
    process = start(config, runs, ending=(number, "metrics.jsonl", 2))
    assert finish(process) == 130
    assert "interrupted in epoch" in error_of(process, runs)
    state, notes = load_checkpoint(path)
    assert notes == []
    assert (state["epoch"], state["step"]) == (2, 1)
    assert finish(start(config, runs)) == 0
    assert outcome(path) == outcome(reference)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "both"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(reference, tmp_path, damage):
    config = RunFolder(reference).config()
    runs = tmp_path / "runs"
    path = runs / config.run_id
    assert finish(start(config, runs, ending=(signal.SIGKILL, "metrics.jsonl", 3))) == -signal.SIGKILL
    latest = path / "checkpoint.pt"
    content = bytearray(latest.read_bytes())
    if damage == "truncated":
        latest.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        for place in range(1000, len(content), 997):  # some are in the unused space between tensors
            content[place] ^= 1
        latest.write_bytes(content)
    else:
        latest.write_bytes(b"")
    if damage == "both":
        (path / "checkpoint.previous.pt").write_bytes(b"no checkpoint")
    state, notes = load_checkpoint(path)
    assert f"{latest} is damaged" in notes[0]
    assert (state is None) == (damage == "both")
    assert finish(start(config, runs)) == 0
    assert outcome(path) == outcome(reference)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    torch.save({"epoch": Hostile()}, tmp_path / "checkpoint.pt")
    state, notes = load_checkpoint(tmp_path)
    assert state is None
    assert "is damaged" in notes[0]
    assert not (tmp_path / "pwned").exists()


def test_the_last_two_checkpoints_are_kept(tmp_path):
    for epoch in range(3):
        save_checkpoint(tmp_path, {"epoch": epoch})
    assert load_checkpoint(tmp_path) == ({"epoch": 2}, [])
    (tmp_path / "checkpoint.pt").unlink()
    assert load_checkpoint(tmp_path) == ({"epoch": 1}, [])


def test_no_room_ends_the_run_with_an_error_and_an_intact_folder(tmp_path, reference):
    config = RunFolder(reference).config()
    runs = tmp_path / "runs"
    process = start(config, runs, largest_file=100_000)
    assert finish(process) != 0
    assert "File too large" in error_of(process, runs)
    path = runs / config.run_id
    assert RunFolder(path).config() == config
    assert not [name for name in os.listdir(path) if name.startswith(".checkpoint")]
    assert not (path / "checkpoint.pt").exists()
    assert finish(start(config, runs)) == 0
    assert outcome(path) == outcome(reference)


def test_the_second_process_on_a_run_is_refused(tmp_path):
    config = small_config(epochs=1)
    runs = tmp_path / "runs"
    with RunFolder(runs / config.run_id).opened(config):
        second = start(config, runs)
        assert finish(second) == 2
    assert "is in use by another process" in error_of(second, runs)
    assert sorted(os.listdir(runs / config.run_id)) == [".lock", "config.json"]
    assert finish(start(config, runs)) == 0


def test_a_finished_run_is_left_as_it_is(reference):
    before = {path.name: path.stat().st_mtime_ns for path in reference.iterdir()}
    config = RunFolder(reference).config()
    assert train(config, RunOptions(runs=reference.parent)) == reference
    assert {path.name: path.stat().st_mtime_ns for path in reference.iterdir()} == before


def test_a_folder_of_something_else_is_refused_and_not_changed(tmp_path):
    config = small_config(epochs=1)
    (tmp_path / config.run_id).mkdir()
    (tmp_path / config.run_id / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds something other than a run"):
        train(config, RunOptions(runs=tmp_path))
    assert os.listdir(tmp_path / config.run_id) == ["thesis.tex"]
    (tmp_path / config.run_id / "thesis.tex").unlink()
    (tmp_path / config.run_id / "config.json").write_text(replace(config, seed=7).to_json())
    with pytest.raises(ConfigError, match=r"config\.json belongs to another run"):
        train(config, RunOptions(runs=tmp_path))


def test_a_loss_that_is_no_number_stops_the_run_with_advice(tmp_path):
    config = small_config(epochs=4, lr=1e9, warmup_epochs=2.0)
    message = r"became infinite or NaN in epoch (\d), step (\d+), at learning rate (\S+): .*optimizer"
    with pytest.raises(TrainingError, match=message) as error:
        train(config, RunOptions(runs=tmp_path))
    epoch, step, rate = re.search(message, str(error.value)).groups()
    steps = len(training_loader(open_data(config)[0], config.optimizer.batch_size))
    now = int(epoch) - 1 + (int(step) - 1) / steps
    assert int(step) < steps
    assert float(rate) == pytest.approx(0.5e9 * now / 2, rel=1e-5)  # of that step, not of the last one
    assert not (tmp_path / config.run_id / "result.json").exists()


def test_the_run_folder_holds_what_is_needed_to_understand_it(reference):
    folder = RunFolder(reference)
    assert {"config.json", "data.json", "metrics.jsonl", "checkpoint.pt", "model.safetensors", "result.json"} <= set(
        os.listdir(reference)
    )
    assert list(reference.glob("events.out.tfevents.*"))
    result, epochs = folder.result(), folder.metrics()
    assert [line["epoch"] for line in epochs] == list(range(1, 7))
    assert without_details(result["final"]) == epochs[-1]
    assert set(result["final"]) - set(epochs[-1]) == set(DETAILS)
    assert sum(images for _, _, images in result["final"]["confusion"]) == 500
    assert len(folder.result_file.read_text().splitlines()) < 50  # a list is a line
    assert result["run_id"] == reference.name == folder.config().run_id
    assert result["versions"]["torch"] == torch.__version__.split("+")[0] or "+" in result["versions"]["torch"]
    expected = {"epoch", "train_loss", "lr", "images_per_second", "seconds", "error", "error_top5"}
    expected |= {
        "balanced_accuracy",
        "macro_f1",
        "many",
        "medium",
        "few",
        "rarest_quarter",
        "nll",
        "calibration_error",
        "calibration",
        "recall",
    }
    assert set(epochs[0]) == expected
    assert epochs[-1]["error"] < 60
    assert folder.data()["classes"] == list("0123456789")
    assert sum(folder.data()["train_counts"]) == len(folder.data()["indices"])


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "bf16-mixed"},
        {"model": ModelConfig(name="resnet14")},
        {"optimizer": replace(small_config(epochs=2).optimizer, micro_batch_size=16)},
        {"loss": LossConfig(name="focal", gamma=1.0), "data": DataConfig(mixup=1.0, cutmix=1.0)},
        {"loss": LossConfig(name="logit_adjusted")},
        {"loss": LossConfig(name="asymmetric")},
        pytest.param({"compile": True}, marks=pytest.mark.slow),
    ],
)
def test_other_precisions_models_and_losses_train(tmp_path, change):
    config = replace(small_config(epochs=2), **change)
    line = RunFolder(train(config, RunOptions(runs=tmp_path))).metrics()[-1]
    assert line["error"] <= 95
    assert torch.tensor(line["train_loss"]).isfinite()


def test_a_run_on_cosines_is_loaded_with_its_head_and_its_scale(tmp_path):
    config = small_config(epochs=2, loss=LossConfig(name="ldam", scale=20.0, weighting="uniform"))
    folder = train(config, RunOptions(runs=tmp_path))
    run = load_run(folder)
    assert (type(run.model.fc), run.model.fc.scale) == (NormedLinear, 20.0)
    found, line = evaluate_run(run), RunFolder(folder).metrics()[-1]
    assert {name: found[name] for name in ("error", "recall")} == {name: line[name] for name in ("error", "recall")}
    assert found["nll"] == pytest.approx(line["nll"], rel=1e-5)


def test_a_run_is_evaluated_where_its_batches_are_and_stays_on_the_cpu(reference, monkeypatch):
    run, seen = load_run(reference), {}

    def loader(*arguments, **options):
        seen.update(options)
        return evaluation_loader(*arguments, **options)

    def network(fabric, model, *others):
        seen["model"] = next(model.parameters())
        return evaluate_network(fabric, model, *others)

    monkeypatch.setattr(evaluation, "evaluation_loader", loader)
    monkeypatch.setattr(evaluation, "evaluate_network", network)
    evaluate_run(run)
    assert seen["device"] == seen["model"].device
    assert seen["model"] is not next(run.model.parameters())


def test_a_finished_run_can_be_loaded_and_a_foreign_one_is_refused(reference, tmp_path):
    run = load_run(reference)
    assert run.classes == tuple("0123456789")
    assert not run.model.training
    with pytest.raises(ConfigError, match="is not a run folder: it has no config"):
        load_run(tmp_path)
    for name in ("config.json", "data.json", "model.safetensors", "result.json"):
        (tmp_path / name).write_bytes((reference / name).read_bytes())
    other = RunConfig.from_json((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(replace(other, model=ModelConfig(name="resnet14")).to_json())
    with pytest.raises(
        ConfigError, match=rf"result\.json is of {other.run_id}, but config\.json of digits-20-resnet14"
    ):
        load_run(tmp_path)
    (tmp_path / "config.json").write_text(other.to_json())
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"model\.safetensors is (not a resnet8|damaged)"):
        load_run(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a resnet8"):
        load_run(tmp_path)
    (tmp_path / "result.json").unlink()
    with pytest.raises(ConfigError, match="is not finished"):
        load_run(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text()) | {"version": 9}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="has configuration version 9; this longtail reads 2"):
        load_run(tmp_path)


def test_tensorboard_keeps_all_epochs_over_a_resumption(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = small_config(epochs=4)
    train_epoch = loop.train_epoch

    for ends_after in (1, 3, 4):

        def killed(training, *arguments, ends_after=ends_after):
            if training.state.epoch == ends_after:
                raise KeyboardInterrupt
            return train_epoch(training, *arguments)

        monkeypatch.setattr(loop, "train_epoch", killed)
        with contextlib.suppress(KeyboardInterrupt):
            train(config, RunOptions(runs=tmp_path))
    path = tmp_path / config.run_id
    events = EventAccumulator(str(path))
    events.Reload()
    lines = RunFolder(path).metrics()
    for name in ("train_loss", "error", "lr"):
        shown = [(scalar.step, scalar.value) for scalar in events.Scalars(name)]
        assert [step for step, _ in shown] == [1, 2, 3, 4]
        assert [value for _, value in shown] == pytest.approx([line[name] for line in lines], rel=1e-6)


def test_the_network_is_built_once(tmp_path, monkeypatch):
    built, build = [], loop.build_network
    monkeypatch.setattr(loop, "build_network", lambda *arguments: built.append(1) or build(*arguments))
    train(small_config(epochs=1), RunOptions(runs=tmp_path))
    assert len(built) == 1
