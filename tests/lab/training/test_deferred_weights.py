"""Deferred class weights: a fraction of training in the configuration, the loop and the results."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.lab.config import ConfigError, LossConfig, RunConfig, RunOptions
from longtail.lab.experiments import expand, load_results, published
from longtail.lab.experiments.aggregate import deltas, summarize_results
from longtail.lab.recipes import cifar, configure
from longtail.lab.training import RunFolder, loop, train
from longtail.schedules import DeferredReweighting
from tests.lab.experiments.test_results import PLAIN, run_of, write_run
from tests.lab.training.runs import small_config


def deferred(fraction, **loss):
    return LossConfig(**({"beta": 0.9999} | loss), defer_reweighting=fraction)


def test_the_start_follows_the_number_of_epochs():
    assert [cifar(loss=deferred(0.8), epochs=epochs).reweight_start for epochs in (200, 20, 5)] == [160.0, 16.0, 4.0]
    config = configure({"data": "digits", "epochs": 20, "defer_reweighting": 0.8, "beta": 0.9999})
    assert config.run_id.startswith("digits-resnet32-softmax_0.9999_drw0.8-s0-")
    assert config.reweight_start == config.optimizer.milestones[0]
    assert configure({"epochs": 40}, config).reweight_start == 32.0
    assert expand({"epochs": 20, "defer_reweighting": 0.8, "beta": 0.9999}) == [config]


@given(epochs=st.integers(1, 1000), start=st.integers(1, 999))
def test_a_fraction_of_whole_epochs_starts_at_that_epoch(epochs, start):
    if start < epochs:
        assert cifar(loss=deferred(start / epochs), epochs=epochs).reweight_start == start


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"beta": 0.9, "defer_reweighting": 1}, "defer_reweighting must be between 0 and 1, got 1"),
        ({"beta": 0.9, "defer_reweighting": 0}, "defer_reweighting must be between 0 and 1, got 0"),
        ({"beta": 0.9, "defer_reweighting": -1}, r"defer_reweighting must be in \[0, 1\], got -1"),
        ({"beta": 0.9, "defer_reweighting": 160}, r"defer_reweighting must be in \[0, 1\], got 160"),
        ({"defer_reweighting": 0.8}, "defer_reweighting requires class weights"),
        ({"beta": 0.0, "defer_reweighting": 0.8}, "defer_reweighting requires class weights"),
    ],
)
def test_what_never_starts_or_has_no_weights_is_refused(loss, message):
    with pytest.raises(ConfigError, match=message):
        LossConfig(**loss)


def test_a_sweep_leaves_plain_losses_plain():
    runs = expand({"weighting": ["uniform", "inverse", "effective"], "defer_reweighting": 0.5})
    assert [run.loss.slug for run in runs] == ["softmax", "softmax_inverse_drw0.5", "softmax_0.999_drw0.5"]
    with pytest.raises(ConfigError, match="defer_reweighting applies to none of these runs"):
        expand({"weighting": "uniform", "defer_reweighting": 0.5})


def test_the_loop_follows_the_epoch_step_by_step(tmp_path, monkeypatch):
    """From the middle of the second of three epochs on: the middle of an epoch counts."""
    seen = []
    train_step = loop.train_step

    def looked_at(training, batch):
        seen.append(training.criterion.class_weight[0].item())
        assert isinstance(training.criterion, DeferredReweighting)
        train_step(training, batch)

    monkeypatch.setattr(loop, "train_step", looked_at)
    config = small_config(epochs=3, imbalance=100.0, loss=deferred(0.5))
    path = train(config, RunOptions(runs=tmp_path))
    assert path.name == config.run_id
    assert len(set(seen)) == 2
    assert seen == sorted(seen, reverse=True)  # first 1, then less: the first class is the largest
    assert sum(weight == 1 for weight in seen) == -(-len(seen) // 2)


def test_the_weights_change_the_training_only_once_they_have_begun(tmp_path):
    plain = small_config(epochs=2, imbalance=100.0, loss=LossConfig())
    late = small_config(epochs=2, imbalance=100.0, loss=deferred(0.5))
    first, second = (RunFolder(train(config, RunOptions(runs=tmp_path))).metrics() for config in (plain, late))
    assert first[0]["train_loss"] == second[0]["train_loss"]
    assert first[0]["nll"] == second[0]["nll"]
    assert first[1]["train_loss"] != second[1]["train_loss"]


def test_results_keep_deferred_weights_apart_and_compare_them_with_the_plain_loss(tmp_path):
    balanced, late = LossConfig(beta=0.99), deferred(0.8, beta=0.99)
    for seed in (0, 1):
        write_run(tmp_path, run_of(PLAIN, seed=seed), error=30.0)
        write_run(tmp_path, run_of(balanced, seed=seed), error=28.0)
        write_run(tmp_path, run_of(late, seed=seed), error=25.0)
    frame = load_results(tmp_path)
    found = summarize_results(frame).set_index("method")
    assert found["n"].to_dict() == {PLAIN.title: 2, balanced.title: 2, late.title: 2}
    changes = deltas(frame).set_index("method")
    assert changes["error_delta"].to_dict() == {balanced.title: -2.0, late.title: -5.0}
    assert changes["pairs"].tolist() == [2, 2]


def test_the_paper_has_no_number_for_deferred_weights_or_mixed_images():
    loss = LossConfig(name="focal", gamma=1.0, beta=0.9999)
    config = run_of(loss, imbalance=100.0)
    assert published(config).error == 25.43
    assert published(replace(config, loss=replace(loss, defer_reweighting=0.8))) is None
    assert published(replace(config, data=replace(config.data, mixup=1.0))) is None
    assert published(replace(config, data=replace(config.data, cutmix=1.0))) is None
    assert RunConfig().data.mixup == RunConfig().data.cutmix == 0
