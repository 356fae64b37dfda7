"""Class weights that begin late: one epoch on the command line, in sweeps and in the loop, and apart in results."""

import shlex
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import longtail.lab.training
from longtail.lab.cli import main
from longtail.lab.config import ConfigError, DataConfig, LossConfig, OptimizerConfig, RunConfig, RunOptions
from longtail.lab.experiments import expand, load_results, published
from longtail.lab.experiments.aggregate import deltas, summarize_results
from longtail.lab.recipes import cifar, scaled, train_command
from longtail.lab.report.figures.runs import one_experiment
from longtail.lab.training import RunFolder, loop, train
from longtail.schedules import AnnealedReweighting, DeferredReweighting
from tests.lab.experiments.test_results import PLAIN, run_of, write_run
from tests.lab.training.runs import small_config


@pytest.fixture
def configured(monkeypatch):
    """From the words of a command to the configuration that would be trained."""

    def configuration(*words):
        found = []

        def stop(config, *_):
            found.append(config)
            raise longtail.lab.training.Interrupted("enough")

        with monkeypatch.context() as patch:
            patch.setattr(longtail.lab.training, "train", stop)
            with pytest.raises(SystemExit):
                main(list(words))
        return found[0]

    return configuration


def test_the_epoch_is_one_of_the_recipe_however_many_there_are(configured):
    config = configured("train", "--data", "digits", "--epochs", "20", "--defer-reweighting", "160", "--beta", "0.9999")
    assert (config.optimizer.defer_reweighting, config.optimizer.milestones) == (16.0, (16.0, 18.0))
    assert config.run_id.startswith("digits-resnet32-softmax_0.9999_drw16-s0-")
    (swept,) = expand({"data": "digits", "epochs": 20, "defer_reweighting": 160, "beta": 0.9999})
    assert swept == config
    whole = configured("train", "--data", "digits", "--defer_reweighting=160", "--anneal-beta", "20")
    assert (whole.optimizer.defer_reweighting, whole.optimizer.anneal_beta) == (160.0, 20.0)
    assert whole.label == "softmax_0.999_drw160_annealed20"
    assert scaled(whole.optimizer, 20).anneal_beta == 2.0


def test_a_configuration_file_counts_in_its_own_epochs(configured, tmp_path):
    (tmp_path / "config.json").write_text(cifar(epochs=40).to_json())
    start = ("train", "--config", str(tmp_path))
    assert configured(*start, "--defer-reweighting", "32").optimizer.defer_reweighting == 32
    assert configured(*start, "--defer-reweighting", "32", "--epochs", "20").optimizer.defer_reweighting == 16
    late = replace(cifar(epochs=40).optimizer, defer_reweighting=30.0, anneal_beta=4.0)
    (tmp_path / "config.json").write_text(replace(cifar(), optimizer=late).to_json())
    assert configured(*start, "--epochs", "20").optimizer.defer_reweighting == 15
    other = configured(*start, "--weighting", "inverse").optimizer
    assert (other.defer_reweighting, other.anneal_beta) == (30.0, None)
    assert configured(*start, "--weighting", "uniform").label == "softmax"


@settings(max_examples=200)
@given(epochs=st.integers(1, 1000), when=st.floats(0.001, 199.999) | st.integers(1, 199))
def test_the_command_that_is_printed_says_the_same_epoch(epochs, when):
    optimizer = scaled(replace(OptimizerConfig(), defer_reweighting=float(when)), epochs)
    words = shlex.split(train_command(replace(cifar(epochs=epochs), optimizer=optimizer)))
    printed = float(words[words.index("--defer-reweighting") + 1])
    assert printed * epochs / 200 == optimizer.defer_reweighting
    if isinstance(when, int):
        assert printed == when


def test_the_command_that_is_printed_gives_the_configuration_back(configured):
    (config,) = expand({"epochs": 7, "defer_reweighting": 130, "anneal_beta": 33.3, "mixup": 0.2, "cutmix": 1.0})
    assert configured(*shlex.split(train_command(config))[1:]) == config


@pytest.mark.parametrize(
    ("loss", "optimizer", "message"),
    [
        ({}, {"defer_reweighting": 200}, "defer_reweighting 200 would never begin: there are 200 epochs"),
        ({}, {"defer_reweighting": 0}, "defer_reweighting 0 would do nothing"),
        ({}, {"defer_reweighting": -1}, "defer_reweighting must be a finite number >= 0, got -1"),
        ({"weighting": "uniform"}, {"defer_reweighting": 9}, "defer_reweighting 9 would do nothing: there are no"),
        ({"beta": 0.0}, {"defer_reweighting": 9}, "defer_reweighting 9 would do nothing: there are no class weights"),
        ({"weighting": "inverse"}, {"anneal_beta": 9}, "anneal_beta 9 needs a β between 0 and 1: there is none"),
        ({"beta": 1.0}, {"anneal_beta": 9}, "anneal_beta 9 needs a β between 0 and 1: it is 1"),
        ({}, {"defer_reweighting": 160, "anneal_beta": 41}, "anneal_beta 41 would not end: there are 40 epochs left"),
    ],
)
def test_what_would_do_nothing_or_never_begin_is_refused(loss, optimizer, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(loss=LossConfig(**loss), optimizer=OptimizerConfig(**optimizer))


def test_a_sweep_leaves_plain_losses_plain():
    runs = expand({"weighting": ["uniform", "inverse", "effective"], "defer_reweighting": 100, "anneal_beta": 20})
    assert [run.label for run in runs] == ["softmax", "softmax_inverse_drw100", "softmax_0.999_drw100_annealed20"]
    assert len(expand({"defer_reweighting": [None, 100], "beta": [0, 0.9]})) == 3
    with pytest.raises(ConfigError, match="anneal_beta would do nothing in any of these runs"):
        expand({"weighting": "inverse", "anneal_beta": 20})


def test_run_ids_of_before_are_what_they_were():
    assert RunConfig().run_id == "digits-resnet32-softmax_0.999-s0-c3aa974421"
    assert cifar(epochs=1).run_id == "digits-resnet32-softmax_0.999-s0-60aeb9e367"


@pytest.mark.parametrize(
    ("late", "kind", "values"),
    [
        ({"defer_reweighting": 1.5}, DeferredReweighting, [0, 0, 1]),
        ({"anneal_beta": 3.0}, AnnealedReweighting, [0, 0.4, 0.8]),
    ],
)
def test_the_loop_follows_the_epoch_step_by_step(tmp_path, monkeypatch, late, kind, values):
    """Where in the way from weights of 1 to the last ones each epoch begins; the middle of an epoch counts."""
    seen = []
    train_step = loop.train_step

    def looked_at(training, batch):
        seen.append((training.state.epoch, training.state.step, training.criterion.class_weight[0].item()))
        assert isinstance(training.criterion, kind)
        train_step(training, batch)

    monkeypatch.setattr(loop, "train_step", looked_at)
    config = small_config(epochs=3, imbalance=100.0, **late)
    path = train(config, RunOptions(runs=tmp_path))
    assert path.name == config.run_id
    weights = [weight for _, _, weight in seen]
    assert weights[0] == pytest.approx(1)
    assert weights == sorted(weights, reverse=True)
    steps = len(weights) // 3
    starts = [weights[epoch * steps] for epoch in range(3)]
    last = min(weights)
    assert [(1 - weight) / (1 - last) for weight in starts] == pytest.approx(values, abs=0.3)
    if "defer_reweighting" in late:
        assert len(set(weights)) == 2
        assert sum(weight == 1 for weight in weights) == -(-3 * steps // 2)


def test_the_weights_change_the_training_only_once_they_have_begun(tmp_path):
    plain = small_config(epochs=2, imbalance=100.0, loss=LossConfig())
    late = small_config(epochs=2, imbalance=100.0, defer_reweighting=1.0)
    first, second = (RunFolder(train(config, RunOptions(runs=tmp_path))).metrics() for config in (plain, late))
    assert first[0]["train_loss"] == second[0]["train_loss"]
    assert first[0]["nll"] == second[0]["nll"]
    assert first[1]["train_loss"] != second[1]["train_loss"]


def test_results_keep_late_weights_apart_and_compare_them_with_the_plain_loss(tmp_path):
    balanced = LossConfig(beta=0.99)
    late = OptimizerConfig(defer_reweighting=160.0)
    for seed in (0, 1):
        write_run(tmp_path, run_of(PLAIN, seed=seed), error=30.0)
        write_run(tmp_path, run_of(balanced, seed=seed), error=28.0)
        write_run(tmp_path, run_of(balanced, seed=seed, optimizer=late), error=25.0)
    frame = load_results(tmp_path)
    found = summarize_results(frame).set_index("method")
    assert found["n"].to_dict() == {"softmax": 2, "softmax_0.99": 2, "softmax_0.99_drw160": 2}
    terms = one_experiment(frame)["term"].drop_duplicates().tolist()
    assert terms == ["no class weights", "β 0.99", "β 0.99, from epoch 160"]
    changes = deltas(frame).set_index("method")
    assert changes["error_delta"].to_dict() == {"softmax_0.99": -2.0, "softmax_0.99_drw160": -5.0}
    assert changes["pairs"].tolist() == [2, 2]


def test_the_paper_has_no_number_for_late_weights_or_mixed_images():
    config = run_of(LossConfig(name="focal", gamma=1.0, beta=0.9999), imbalance=100.0)
    assert published(config).error == 25.43
    assert published(replace(config, optimizer=OptimizerConfig(defer_reweighting=160.0))) is None
    assert published(replace(config, data=replace(config.data, mixup=1.0))) is None
    assert published(replace(config, data=replace(config.data, cutmix=1.0))) is None
    assert DataConfig().mixup == DataConfig().cutmix == 0
