"""Validation images choose the epoch whose weights are kept; test images never do."""

import json
import signal

import pytest
import torch

from longtail.lab.config import RunOptions, with_fields
from longtail.lab.training import RunFolder, evaluate_run, load_run, loop, train
from longtail.lab.training.build import open_data
from longtail.lab.training.checkpoint import State, load_checkpoint
from longtail.lab.training.metrics import without_details
from tests.lab.training.runs import finish, small_config, start
from tests.lab.training.test_runs import outcome

VALIDATED = {"validation_fraction": 0.2, "keep": "best"}


def config_of(seed=0, **changes):
    return with_fields(small_config(epochs=8, seed=seed), VALIDATED | changes)


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """A run whose best epoch is neither the last nor the one with the best test images."""
    runs = tmp_path_factory.mktemp("best") / "runs"
    for seed in range(20):
        config = config_of(seed)
        assert finish(start(config, runs)) == 0
        scores, tests = scores_of(runs / config.run_id)
        if scores.count(max(scores)) == 1 and scores.index(max(scores)) not in (
            len(scores) - 1,
            tests.index(max(tests)),
        ):
            return runs / config.run_id
    raise AssertionError("no run has such an epoch")


def scores_of(path):
    """Balanced accuracy of each epoch on the validation and on the test images."""
    lines = RunFolder(path).metrics()
    return [[line[name] for line in lines] for name in ("validation_balanced_accuracy", "balanced_accuracy")]


def test_the_best_epoch_on_validation_images_is_kept(best):
    result, lines = RunFolder(best).result(), RunFolder(best).metrics()
    scores, _ = scores_of(best)
    assert result["kept_epoch"] == 1 + scores.index(max(scores))
    assert without_details(result["final"]) == lines[result["kept_epoch"] - 1]
    run = load_run(best)
    assert result["final"]["confusion"] == evaluate_run(run)["confusion"]  # of that epoch, too
    for split, prefix in (("validation", "validation_"), ("test", "")):
        found = evaluate_run(run, split)
        for name in ("error", "balanced_accuracy", "nll"):
            assert found[name] == pytest.approx(result["final"][prefix + name], rel=1e-6)


def test_keeping_the_best_changes_no_step_of_the_training(best, tmp_path):
    config = with_fields(RunFolder(best).config(), {"keep": "last"})
    assert finish(start(config, tmp_path / "runs")) == 0
    last = RunFolder(tmp_path / "runs" / config.run_id)
    assert outcome(last.path)[0] == outcome(best)[0]
    result = last.result()
    assert (result["kept_epoch"], without_details(result["final"])) == (8, last.metrics()[-1])
    assert not torch.equal(*(load_run(path).model.fc.weight for path in (best, last.path)))


def test_an_interrupted_run_keeps_the_same_epoch_bit_for_bit(best, tmp_path):
    """Killed after the best epoch, which is then in the checkpoint alone, and again in the next one."""
    config, runs = RunFolder(best).config(), tmp_path / "runs"
    kept = RunFolder(best).result()["kept_epoch"]
    for ending in (("checkpoint.pt", kept), ("metrics.jsonl", 1)):
        assert finish(start(config, runs, ending=(signal.SIGKILL, *ending))) == -signal.SIGKILL
        state, _ = load_checkpoint(runs / config.run_id, State.check)
        assert state["best"]["epoch"] == kept
    assert finish(start(config, runs)) == 0
    assert outcome(runs / config.run_id) == outcome(best)
    assert RunFolder(runs / config.run_id).result()["kept_epoch"] == kept


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([(0.2, 10.0, 1.0), (0.9, 50.0, 9.0), (0.3, 5.0, 0.5)], 2),
        ([(0.9, 10.0, 2.0), (0.9, 50.0, 1.0), (0.9, 5.0, 1.5)], 2),
    ],
)
def test_the_epoch_is_chosen_by_balanced_accuracy_then_by_loss_and_not_by_error(tmp_path, monkeypatch, scores, kept):
    scores, evaluate = iter(scores), loop.evaluate_network

    def scripted(fabric, network, batches, *others):
        batches = list(batches)
        found = evaluate(fabric, network, batches, *others)
        if sum(len(batch.labels) for batch in batches) == 500:
            return found  # the test images
        return found | dict(zip(("balanced_accuracy", "error", "nll"), next(scores), strict=True))

    monkeypatch.setattr(loop, "evaluate_network", scripted)
    path = train(config_of(epochs=3), RunOptions(runs=tmp_path, accelerator="cpu"))
    assert RunFolder(path).result()["kept_epoch"] == kept


def test_validation_images_are_trained_on_by_nobody():
    dataset = open_data(config_of()).dataset
    whole = open_data(config_of(validation_fraction=0.0, keep="last")).dataset
    parts = torch.cat([dataset.train.images, dataset.validation.images])
    assert len(parts) == len(whole.train) == len(torch.unique(torch.cat([parts, whole.train.images]), dim=0))
    assert torch.equal(dataset.test.images, whole.test.images)


def test_validation_images_are_reported_without_choosing(tmp_path):
    path = train(config_of(keep="last", epochs=2), RunOptions(runs=tmp_path, accelerator="cpu"))
    result = json.loads((path / "result.json").read_text())
    assert result["kept_epoch"] == result["final"]["epoch"] == 2
    assert 0 <= result["final"]["validation_balanced_accuracy"] <= 1


@pytest.mark.parametrize("damage", [{}, {"epoch": "1"}, {"epoch": 9}, {"score": None}, {"nll": None}, {"model": {}}])
def test_a_damaged_best_epoch_is_refused(best, damage):
    state, _ = load_checkpoint(best, State.check)
    assert set(state["best"]) == {"epoch", "score", "nll", "model"}
    state["best"] |= damage
    if damage:
        with pytest.raises(TypeError, match="best is of epoch"):
            State.check(state)
    else:
        State.check(state)
