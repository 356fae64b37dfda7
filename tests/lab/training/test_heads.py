"""Class-aware sampling, classifier re-training (cRT) and adjustments of a finished run."""

import contextlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from longtail.lab.config import ConfigError, LossConfig, ModelConfig, RunOptions, with_fields
from longtail.lab.data import Shard, evaluation_loader, training_loader
from longtail.lab.experiments import load_results
from longtail.lab.models import build_model
from longtail.lab.recipes import retrained
from longtail.lab.training import RunFolder, adjust_run, evaluate_run, load_run, loop, open_data, train
from longtail.lab.training.build import build_network, build_optimizer, build_order, load_initial_weights
from longtail.lab.training.evaluation import adjust_
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
    dataset = open_data(config).dataset

    def batches(rank, processes):
        shard = Shard(rank, processes)
        return training_loader(dataset, 64, order=build_order(config, dataset), shard=shard).epoch(3)

    for whole, *parts in zip(batches(0, 1), *(batches(rank, 3) for rank in range(3)), strict=True):
        assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
        assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)


def test_a_sampling_changes_which_classes_are_seen():
    config = small_config()
    dataset = open_data(config).dataset
    seen = {}
    for sampling in ("shuffled", "square_root", "class_balanced"):
        loader = training_loader(dataset, 64, order=build_order(with_fields(config, {"sampling": sampling}), dataset))
        seen[sampling] = torch.cat([batch.labels for batch in loader.epoch(0)]).bincount(minlength=10)
    assert seen["shuffled"].tolist() == dataset.counts.tolist()
    assert np.ptp(seen["class_balanced"].numpy()) <= 1
    roots = np.sqrt(dataset.counts)
    np.testing.assert_allclose(seen["square_root"], roots / roots.sum() * len(dataset.train), atol=1)


def crt(parent, epochs=2, **changes):
    """cRT of a run, as it is once its weights are found."""
    config = with_fields(retrained(RunFolder(parent).config(), str(parent), epochs), changes)
    return open_data(config).config


def test_only_the_head_is_retrained_and_killed_runs_end_with_the_same_bits(parent, tmp_path):
    config = crt(parent)
    assert (config.loss.slug, config.data.sampling, config.title) == ("softmax", "class_balanced", "softmax, cRT")
    whole = train(config, RunOptions(runs=parent.parent))
    assert whole.name.startswith("digits-20-resnet8-softmax-class_balanced-frozen-s0-")
    before, after = load_run(parent).model.state_dict(), load_run(whole).model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"fc.weight", "fc.bias"}
    assert [line["epoch"] for line in RunFolder(whole).metrics()] == [1, 2]
    assert outcome(killed_and_resumed(config, tmp_path / "other")) == outcome(whole)


def test_weights_count_by_what_they_hold_and_not_by_where_they_are(parent, tmp_path):
    elsewhere = shutil.copytree(parent, tmp_path / "elsewhere" / parent.name)
    assert crt(parent).run_id == crt(elsewhere).run_id
    other = train(small_config(epochs=1, seed=1), RunOptions(runs=tmp_path / "runs"))
    assert crt(parent).run_id != crt(other).run_id


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("decay_norms", [True, False])
def test_the_optimizer_of_a_frozen_network_has_a_new_head_and_nothing_else(parent, loss, decay_norms):
    config = crt(parent, loss=loss, decay_norms=decay_norms)
    network = build_network(config, open_data(config).dataset)
    trained = load_run(parent).model
    assert torch.equal(network.conv1.weight, trained.conv1.weight)
    assert not torch.equal(network.fc.weight, trained.fc.weight)
    groups = build_optimizer(config, network).param_groups
    assert {id(weight) for group in groups for weight in group["params"]} == {
        id(weight) for weight in network.fc.parameters()
    }


def test_a_network_that_is_not_frozen_keeps_a_head_that_fits(parent):
    config = replace(small_config(), model=ModelConfig(name="resnet8", weights=str(parent)))
    dataset, _, config = open_data(config)
    network, trained = build_network(config, dataset), load_run(parent).model
    assert torch.equal(network.fc.weight, trained.fc.weight)
    assert all(weight.requires_grad for weight in network.parameters())
    other = build_model("resnet8", 11, 1)  # of more classes: the head stays new, the backbone is loaded
    load_initial_weights(other, config.model)
    assert torch.equal(other.conv1.weight, trained.conv1.weight)


def logits_of(run):
    dataset = open_data(run.config).dataset
    with torch.no_grad():
        return torch.cat([run.model(batch.images) for batch in evaluation_loader(dataset, 500).epoch(0)]).double()


@pytest.mark.parametrize(("method", "tau"), [("tau_norm", 0.7), ("logit_adjustment", 1.0), ("logit_adjustment", 0.0)])
def test_an_adjusted_run_is_the_run_with_other_logits(parent, method, tau):
    path = adjust_run(parent, method, tau)
    assert path == parent / "adjustments" / f"{method}_{tau:g}.json"
    before, after = load_run(parent), load_run(parent, path.stem)
    weights = {name: value.double().numpy() for name, value in before.model.state_dict().items()}
    if method == "tau_norm":
        lengths = np.sqrt((weights["fc.weight"] ** 2).sum(axis=1))
        expected = (logits_of(before).numpy() - weights["fc.bias"]) / lengths**tau
    else:
        expected = logits_of(before).numpy() - tau * np.log(before.counts / before.counts.sum())
    np.testing.assert_allclose(logits_of(after).numpy(), expected, atol=1e-4)
    final = RunFolder(parent).adjustment(path.stem)["final"]
    right = expected.argmax(axis=1) == open_data(before.config).dataset.test.labels.numpy()
    assert final["error"] == pytest.approx(100 * (1 - right.mean()))
    assert evaluate_run(after)["error"] == pytest.approx(final["error"])
    rows = load_results(parent.parent)
    assert rows["adjustment"].tolist()[1:] == [path.stem]
    assert rows["error"].tolist() == [RunFolder(parent).result()["final"]["error"], final["error"]]


def test_a_cosine_classifier_cannot_be_adjusted():
    for method in ("tau_norm", "logit_adjustment"):
        with pytest.raises(ConfigError, match=f"{method} requires a linear last layer with a bias"):
            adjust_(nn.Linear(3, 2, bias=False), method, 1.0, np.array([9, 1]))


def test_correcting_for_the_prior_twice_is_refused(tmp_path):
    path = train(small_config(epochs=1, loss=LossConfig(name="logit_adjusted")), RunOptions(runs=tmp_path))
    with pytest.raises(ConfigError, match="logit_adjustment would correct twice"):
        adjust_run(path, "logit_adjustment")
    assert not (path / "adjustments").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tau-norm", 1.0), "unknown method 'tau-norm': did you mean 'tau_norm'"),
        (("tau_norm", -1.0), "tau must be a finite number >= 0, got -1"),
    ],
)
def test_an_adjustment_that_cannot_be_is_one_line(parent, arguments, message):
    with pytest.raises(ConfigError, match=message):
        adjust_run(parent, *arguments)
    with pytest.raises(ConfigError, match="has no adjustment 'tau_norm_3'; it has none"):
        load_run(parent, "tau_norm_3")


def test_a_head_may_be_retrained_with_other_augmentation_and_sampling(parent):
    config = crt(parent, 1, mixup=0.2, cutmix=1.0, augment=False, sampling="square_root")
    assert (train(config, RunOptions(runs=parent.parent)) / "result.json").exists()


def assert_refused(config, runs, message):
    before = sorted(runs.iterdir())
    with pytest.raises(ConfigError, match=message) as error:
        train(config, RunOptions(runs=runs))
    assert "\n" not in str(error.value)
    assert sorted(runs.iterdir()) == before


def test_weights_that_are_missing_damaged_or_of_another_network_are_refused(parent):
    runs = parent.parent
    config = retrained(RunFolder(parent).config(), str(parent))
    assert_refused(replace(config, model=replace(config.model, weights="nobody")), runs, "cannot read the initial w")
    other = replace(config, model=replace(config.model, name="resnet14"))
    assert_refused(other, runs, r"model\.safetensors does not fit resnet14: it has no stages\.0\.1")
    (parent / "model.safetensors").write_bytes(b"nothing")
    assert_refused(config, runs, r"model\.safetensors is damaged")
    (parent / "result.json").unlink()
    assert_refused(config, runs, "is not finished: resume its training first")
