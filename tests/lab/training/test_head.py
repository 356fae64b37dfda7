"""Another last layer for a finished run, and class-aware sampling: alike whoever deals out and whatever is killed."""

import contextlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from longtail.lab.training.head import rebalance_, take_over
from torch import nn

from longtail.lab.config import ConfigError, LossConfig, RunOptions, with_fields
from longtail.lab.data import Shard, evaluation_loader, training_loader
from longtail.lab.recipes import rebalanced, retrained
from longtail.lab.training import RunFolder, evaluate_run, load_run, loop, open_data, train
from longtail.lab.training.build import build_network, build_optimizer, build_order
from tests.lab.training.runs import small_config
from tests.lab.training.test_runs import outcome

PLAIN = LossConfig()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, which was class-balanced."""
    return train(small_config(epochs=3), RunOptions(runs=tmp_path_factory.mktemp("trained")))


@pytest.fixture
def parent(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs" / trained.name)


def killed_and_resumed(config, runs, every=5):
    """The folder of a run that has a checkpoint after each step, and ends after every few of them."""
    write, saved = loop.save_checkpoint, []

    def killing(folder, state):
        write(folder, state)
        saved.append(state["step"])
        if len(saved) % every == 0:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", killing)
        while not (runs / config.run_id / "result.json").exists():
            with contextlib.suppress(KeyboardInterrupt):
                train(config, RunOptions(runs=runs, checkpoint_minutes=1e-9))
    assert any(saved[place] for place in range(every - 1, len(saved), every))  # in the middle of an epoch
    return runs / config.run_id


@pytest.mark.parametrize("sampling", ["class_balanced", "progressive"])
def test_a_run_with_a_sampling_is_the_same_bits_however_often_it_is_killed(tmp_path, sampling):
    config = with_fields(small_config(epochs=3, loss=PLAIN), {"sampling": sampling})
    whole = train(config, RunOptions(runs=tmp_path / "whole"))
    assert outcome(killed_and_resumed(config, tmp_path / "runs")) == outcome(whole)


@pytest.mark.parametrize("sampling", ["shuffled", "square_root", "effective", "progressive"])
def test_processes_together_see_the_batches_of_one(sampling):
    config = with_fields(small_config(epochs=4), {"sampling": sampling})
    dataset, _ = open_data(config)

    def batches(rank, processes):
        shard = Shard(rank, processes)
        return training_loader(dataset, 64, order=build_order(config, dataset), shard=shard).epoch(3)

    for whole, *parts in zip(batches(0, 1), *(batches(rank, 3) for rank in range(3)), strict=True):
        assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
        assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)


def test_a_sampling_changes_which_classes_are_seen():
    config = small_config()
    dataset, _ = open_data(config)
    seen = {}
    for sampling in ("shuffled", "square_root", "class_balanced"):
        loader = training_loader(dataset, 64, order=build_order(with_fields(config, {"sampling": sampling}), dataset))
        seen[sampling] = torch.cat([batch.labels for batch in loader.epoch(0)]).bincount(minlength=10)
    assert seen["shuffled"].tolist() == dataset.counts.tolist()
    assert np.ptp(seen["class_balanced"].numpy()) <= 1
    roots = np.sqrt(dataset.counts)
    np.testing.assert_allclose(seen["square_root"], roots / roots.sum() * len(dataset.train), atol=1)


def test_only_the_last_layer_is_retrained_and_killed_runs_end_with_the_same_bits(parent, tmp_path):
    config = retrained(RunFolder(parent).config(), epochs=2)
    assert (config.loss.slug, config.data.sampling) == ("softmax", "class_balanced")
    whole = train(config, RunOptions(runs=parent.parent))
    assert whole.name.startswith("digits-20-resnet8-softmax-class_balanced-s0-retrain-")
    before, after = load_run(parent).model.state_dict(), load_run(whole).model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"fc.weight", "fc.bias"}
    assert [line["epoch"] for line in RunFolder(whole).metrics()] == [1, 2]
    other = tmp_path / "other"
    shutil.copytree(parent, other / parent.name)
    assert outcome(killed_and_resumed(config, other)) == outcome(whole)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("decay_norms", [True, False])
def test_the_optimizer_of_a_retrained_head_has_nothing_else(parent, loss, decay_norms):
    config = with_fields(retrained(RunFolder(parent).config()), {"loss": loss, "decay_norms": decay_norms})
    dataset, _ = open_data(config)
    network = build_network(config, dataset)
    new = network.fc.weight.clone()
    take_over(network, config, parent.parent, dataset.counts)
    assert torch.equal(network.fc.weight, new)
    groups = build_optimizer(config, network).param_groups
    assert {id(weight) for group in groups for weight in group["params"]} == {
        id(weight) for weight in network.fc.parameters()
    }


def logits_of(run):
    dataset, _ = open_data(run.config)
    with torch.no_grad():
        return torch.cat([run.model(batch.images) for batch in evaluation_loader(dataset, 500).epoch(0)]).double()


@pytest.mark.parametrize(("method", "tau"), [("tau_norm", 0.7), ("logit_adjustment", 1.0), ("logit_adjustment", 0.0)])
def test_a_rebalanced_run_is_its_parent_with_other_logits(parent, method, tau):
    config = rebalanced(RunFolder(parent).config(), method, tau)
    path = train(config, RunOptions(runs=parent.parent))
    before, after = load_run(parent), load_run(path)
    weights = {name: value.double().numpy() for name, value in before.model.state_dict().items()}
    if method == "tau_norm":
        lengths = np.sqrt((weights["fc.weight"] ** 2).sum(axis=1))
        expected = (logits_of(before).numpy() - weights["fc.bias"]) / lengths**tau
    else:
        expected = logits_of(before).numpy() - tau * np.log(before.counts / before.counts.sum())
    np.testing.assert_allclose(logits_of(after).numpy(), expected, atol=1e-4)
    (line,) = RunFolder(path).metrics()
    result = RunFolder(path).result()
    assert line["epoch"] == RunFolder(parent).metrics()[-1]["epoch"]
    assert result["final"] == line
    right = expected.argmax(axis=1) == open_data(config)[0].test.labels.numpy()
    assert line["error"] == pytest.approx(100 * (1 - right.mean()))
    assert evaluate_run(after)["error"] == pytest.approx(line["error"])
    assert train(config, RunOptions(runs=parent.parent)) == path


def test_a_cosine_classifier_has_nothing_to_rebalance():
    for method in ("tau_norm", "logit_adjustment"):
        with pytest.raises(ConfigError, match=f"{method} needs a last layer with a bias"):
            rebalance_(nn.Linear(3, 2, bias=False), method, 1.0, np.array([9, 1]))


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (retrained, {"imbalance": 10.0}, "imbalance is 10.0 but 20.0 in .*, whose network is taken over"),
        (retrained, {"folds": 3, "fold": 0}, "folds is 3 but None in"),
        (retrained, {"model": "resnet14"}, "model is resnet14 but resnet8 in"),
        (rebalanced, {"lr": 0.5}, "learning_rate is 0.5 but 0.1 in"),
        (rebalanced, {"seed": 1}, "seed is 1 but 0 in"),
    ],
)
def test_a_network_of_other_data_or_another_kind_is_not_taken_over(parent, make, changes, message):
    config = RunFolder(parent).config()
    child = retrained(config) if make is retrained else rebalanced(config, "tau_norm")
    assert_refused(with_fields(child, changes), parent.parent, message)


def test_a_head_may_be_retrained_with_other_augmentation_and_sampling(parent):
    other = {"mixup": 0.2, "cutmix": 1.0, "augment": False, "sampling": "square_root"}
    config = with_fields(retrained(RunFolder(parent).config(), epochs=1), other)
    assert (train(config, RunOptions(runs=parent.parent)) / "result.json").exists()


def assert_refused(config, runs, message):
    with pytest.raises(ConfigError, match=message) as error:
        train(config, RunOptions(runs=runs))
    assert "\n" not in str(error.value)
    assert not (runs / config.run_id).exists()


def test_a_run_that_is_missing_or_not_finished_has_no_head(parent):
    config = retrained(RunFolder(parent).config())
    missing = replace(config, head=replace(config.head, head_of="nobody"))
    assert_refused(missing, parent.parent, "nobody does not exist")
    (parent / "model.safetensors").write_bytes(b"nothing")
    assert_refused(config, parent.parent, r"model\.safetensors is not a resnet8 of this run")
    (parent / "result.json").unlink()
    assert_refused(config, parent.parent, "is not finished: longtail train --config")


def test_a_head_of_a_head_can_be_rebalanced(parent):
    runs = RunOptions(runs=parent.parent)
    first = rebalanced(RunFolder(parent).config(), "tau_norm", 0.5)
    second = rebalanced(first, "logit_adjustment", 1.0)
    train(first, runs)
    found = load_run(train(second, runs))
    np.testing.assert_allclose(found.model.fc.bias.detach(), -np.log(found.counts / found.counts.sum()), rtol=1e-5)
