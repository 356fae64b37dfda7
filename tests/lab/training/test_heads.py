"""Class-aware sampling, classifier re-training (cRT) and adjustments of a finished run."""

import contextlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from longtail import NormedLinear
from longtail.lab.config import ConfigError, LossConfig, ModelConfig, RunOptions, with_fields
from longtail.lab.data import Shard, evaluation_loader, training_loader
from longtail.lab.experiments import load_results
from longtail.lab.models import build_model
from longtail.lab.recipes import retrained
from longtail.lab.training import RunFolder, adjust_run, evaluate_run, load_run, loop, open_data, train
from longtail.lab.training.adjustments import Adjustment, adjust_
from longtail.lab.training.build import build_network, build_order, load_initial_weights
from tests.lab.training.runs import small_config
from tests.lab.training.test_runs import outcome

PLAIN, BALANCED = LossConfig(), LossConfig(name="logit_adjusted")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, which was class-balanced."""
    return train(small_config(epochs=3), RunOptions(runs=tmp_path_factory.mktemp("trained")))


@pytest.fixture
def parent(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs" / trained.name)


@pytest.fixture(scope="module")
def trained_plain(tmp_path_factory):
    """Finished runs by their losses, plain and balanced softmax, with validation images."""
    runs = tmp_path_factory.mktemp("plain")
    configs = [
        with_fields(small_config(epochs=4, loss=loss), {"validation_fraction": 0.2}) for loss in (PLAIN, BALANCED)
    ]
    return {config.loss.name: train(config, RunOptions(runs=runs)) for config in configs}


@pytest.fixture
def plain(trained_plain, tmp_path):
    return shutil.copytree(trained_plain["softmax"], tmp_path / "runs" / trained_plain["softmax"].name)


@pytest.fixture
def balanced(trained_plain, tmp_path):
    path = trained_plain["logit_adjusted"]
    return shutil.copytree(path, tmp_path / "runs" / path.name)


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
def test_an_adjusted_run_is_the_run_with_other_logits(plain, method, tau):
    path = adjust_run(plain, method, tau)
    assert path == plain / "adjustments" / f"{method}_{tau:g}.json"
    before, after = load_run(plain), load_run(plain, path.stem)
    weights = {name: value.double().numpy() for name, value in before.model.state_dict().items()}
    if method == "tau_norm":
        lengths = np.sqrt((weights["fc.weight"] ** 2).sum(axis=1))
        expected = (logits_of(before).numpy() - weights["fc.bias"]) / lengths**tau
    else:
        expected = logits_of(before).numpy() - tau * np.log(before.counts / before.counts.sum())
    np.testing.assert_allclose(logits_of(after).numpy(), expected, atol=1e-4)
    final = RunFolder(plain).adjustment(path.stem)["final"]
    right = expected.argmax(axis=1) == open_data(before.config).dataset.test.labels.numpy()
    assert final["error"] == pytest.approx(100 * (1 - right.mean()))
    assert evaluate_run(after)["error"] == pytest.approx(final["error"])
    rows = load_results(plain.parent)
    assert rows["adjustment"].tolist()[1:] == [path.stem]
    assert rows["error"].tolist() == [RunFolder(plain).result()["final"]["error"], final["error"]]


def test_a_cosine_classifier_cannot_be_adjusted():
    for method in ("tau_norm", "logit_adjustment"):
        with pytest.raises(ConfigError, match=f"{method} requires a linear last layer with a bias"):
            adjust_(nn.Linear(3, 2, bias=False), Adjustment(method=method), np.array([9, 1]))


def test_a_cosine_classifier_has_a_temperature():
    head, features = NormedLinear(3, 2, scale=8.0), torch.randn(5, 3)
    expected = head(features) / 1.6
    adjust_(head, Adjustment(temperature=1.6), np.array([9, 1]))
    torch.testing.assert_close(head(features), expected)


def test_the_uniform_prior_is_logit_adjustment(plain):
    first = adjust_run(plain, "logit_adjustment")
    content = first.read_bytes()
    assert adjust_run(plain, prior="uniform") == first
    assert first.read_bytes() == content


def log_softmax(scores):
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def test_another_prior_is_that_of_bayes(plain, balanced, tmp_path):
    """p'(y|x) ∝ p(y|x) q(y) / π(y), where π is the prior that the loss of the run assumed."""
    shares = np.array([3.0, 1, 1, 1, 1, 1, 1, 1, 1, 9])
    rows = [f"{name},{share}" for name, share in zip("9876543210", shares[::-1], strict=True)]
    (tmp_path / "field work.csv").write_text("\n".join(["class,share", *rows]))
    assumed = load_run(plain).counts
    for run, source, target in (
        (plain, assumed, tmp_path / "field work.csv"),
        (balanced, np.ones(10), tmp_path / "field work.csv"),
        (balanced, np.ones(10), "train"),
    ):
        path = adjust_run(run, prior=target)
        assert path.stem == ("prior_train" if target == "train" else "prior_field_work")
        wanted = assumed if target == "train" else shares
        expected = log_softmax(log_softmax(logits_of(load_run(run)).numpy()) + np.log(wanted / source))
        found = log_softmax(logits_of(load_run(run, path.stem)).numpy())
        np.testing.assert_allclose(found, expected, atol=1e-4)
    methods = load_results(plain.parent)["method"].tolist()
    assert {"softmax, prior field work", "balanced softmax, prior train"} <= set(methods)


def validation_of(run):
    dataset = open_data(run.config).dataset
    loader = evaluation_loader(dataset, 500, images=dataset.validation)
    with torch.no_grad():
        logits = torch.cat([run.model(batch.images) for batch in loader.epoch(0)]).double().numpy()
    return logits, dataset.validation.labels.numpy()


@pytest.mark.parametrize("name", ["plain", "balanced", "tau_norm"])
def test_the_temperature_is_the_most_likely_one_of_the_validation_images(plain, balanced, name):
    path = balanced if name == "balanced" else plain
    method = "tau_norm" if name == "tau_norm" else None
    slug = adjust_run(path, method, calibrate=True).stem
    assert slug == ("tau_norm_1_calibrated" if method else "calibrated")
    found = RunFolder(path).adjustment(slug)
    base = load_run(path, adjust_run(path, method).stem) if method else load_run(path)
    logits, labels = validation_of(base)
    # Balanced softmax adds log π to its logits where images have the prior of the training.
    shift = np.log(base.counts / base.counts.sum()) if name == "balanced" else 0.0

    def nll(temperature):
        return -log_softmax(logits / temperature + shift)[np.arange(len(labels)), labels].mean()

    grid = np.exp(np.linspace(np.log(0.2), np.log(5), 2001))
    best = grid[np.argmin([nll(temperature) for temperature in grid])]
    assert found["temperature"] == pytest.approx(best, rel=0.01)
    before, after = (found["calibration"]["validation"][when] for when in ("before", "after"))
    assert before["nll"] == pytest.approx(nll(1.0), rel=1e-4)
    assert after["nll"] == pytest.approx(nll(found["temperature"]), rel=1e-4)
    assert after["nll"] < before["nll"]
    on_test = found["calibration"]["test"]
    result = RunFolder(path).result()["final"]
    assert on_test["before"] == {name: result[name] for name in ("nll", "calibration_error")}
    assert on_test["after"] == {name: found["final"][name] for name in ("nll", "calibration_error")}
    scaled = found["temperature"] * logits_of(load_run(path, slug))
    torch.testing.assert_close(scaled, logits_of(base), rtol=1e-4, atol=1e-4)
    assert found["final"]["error"] == evaluate_run(base)["error"]  # no class changes its place


def test_a_prior_is_changed_after_the_temperature(plain):
    slug = adjust_run(plain, prior="uniform", calibrate=True).stem
    assert slug == "logit_adjustment_1_calibrated"
    temperature = RunFolder(plain).adjustment(slug)["temperature"]
    assert temperature == RunFolder(plain).adjustment(adjust_run(plain, calibrate=True).stem)["temperature"]
    run = load_run(plain)
    expected = logits_of(run).numpy() / temperature - np.log(run.counts / run.counts.sum())
    np.testing.assert_allclose(logits_of(load_run(plain, slug)).numpy(), expected, atol=1e-4)


def test_correcting_for_the_prior_twice_is_refused(parent, plain, balanced, tmp_path):
    retrained_run = train(crt(parent, epochs=1), RunOptions(runs=tmp_path / "crt"))
    for path, cause in (
        (balanced, "balanced softmax did so in training"),
        (parent, "class weights did so in training"),
        (retrained_run, "class_balanced sampling did so in training"),
    ):
        for options in ({"method": "logit_adjustment"}, {"prior": "uniform"}):
            with pytest.raises(ConfigError, match=f"would correct twice: {cause}"):
                adjust_run(path, **options)
        assert not (path / "adjustments").exists()
    for method in ("tau_norm", "logit_adjustment"):
        with pytest.raises(ConfigError, match=f"{method} and prior uniform would correct for the class prior twice"):
            adjust_run(plain, method, prior="uniform")
    with pytest.raises(ConfigError, match="nothing to adjust: the outputs of this run have the prior"):
        adjust_run(plain, prior="train")
    assert not (plain / "adjustments").exists()


def test_calibrating_without_validation_images_is_refused(parent):
    with pytest.raises(ConfigError, match="calibrate requires validation images"):
        adjust_run(parent, calibrate=True)
    assert not (parent / "adjustments").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0,1\n1,1\n", "has no share of class '2'"),
        ("".join(f"{name},1\n" for name in "01234567890"), "row 11: class '0' is there twice"),
        ("".join(f"{name},1\n" for name in "0123456789x"), "row 11: class 'x' is not among the classes of the run"),
        ("0,0\n", "row 1: the share of '0' must be above 0, got 0"),
        ("0,nan\n", "row 1: the share of '0' must be above 0, got nan"),
        ("class,share\n0,many\n", "row 2: a class and its share are needed"),
        ("0.1\n0.2\n", "row 1: a class and its share are needed"),
        ("", "has no share of class '0'"),
    ],
)
def test_a_prior_that_does_not_fit_is_one_line(plain, tmp_path, text, problem):
    (tmp_path / "prior.csv").write_text(text)
    with pytest.raises(ConfigError, match=problem) as error:
        adjust_run(plain, prior=tmp_path / "prior.csv")
    assert "\n" not in str(error.value)
    assert str(tmp_path / "prior.csv") in str(error.value)
    assert not (plain / "adjustments").exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"temperature": 0}, "is damaged: 0 is not above 0"),
        ({"temperature": "hot"}, "is damaged: 'hot' is not a number"),
        ({"prior": [0.5] * 9}, "the prior has 9 shares, but the run has 10 classes"),
        ({"method": "tau-norm"}, "unknown method 'tau-norm'"),
    ],
)
def test_an_adjustment_that_was_changed_is_refused(plain, changes, problem):
    path = adjust_run(plain, "logit_adjustment")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConfigError, match=problem):
        load_run(plain, path.stem)


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
    config = crt(parent, 1, mixup=0.2, augment=False, sampling="square_root")
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
