"""Tuning: what it tries, what it gives up, and what it never looks at."""

import io
import json
import os
import shlex
import shutil
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from PIL import Image
from rich.console import Console

from longtail.lab.cli.arguments import command_for
from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions
from longtail.lab.data import FoldOptions, SubsetOptions
from longtail.lab.experiments import ExecutorOptions, SearchOptions, estimate_tuning, runs, tune
from longtail.lab.experiments.search import Grid, Tpe, is_hopeless
from longtail.lab.experiments.task import Outcome
from longtail.lab.recipes import cifar
from longtail.lab.training import RunFolder, TrainingError
from tests.lab.experiments.sweeps import command, end, starts, wait_for


def configure(loss):
    data = DataConfig(subset=SubsetOptions(imbalance=20.0), fold=FoldOptions(folds=5))
    return replace(cifar(data, loss, 2), model=ModelConfig(name="resnet8"))


class Scored:
    """An executor of two slots that writes the results of a table in the place of training."""

    slots = 2

    def __init__(self, options, score):
        self.runs, self.score = options.runs, score
        self.queue, self.trained, self.measured = [], [], False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, task, config):
        self.queue.append((task, config))

    def wait(self, seconds):
        finished = []
        for task, config in self.queue[:1]:
            if task == "measure":
                self.measured = True
                finished.append((task, config, Outcome("done", value={"train": 100.0, "test": 300.0})))
                continue
            score = self.score(config)
            if isinstance(score, str):
                finished.append((task, config, Outcome("failed", score)))
                continue
            # The error leads astray: it is lowest where the balanced accuracy is.
            final = {"balanced_accuracy": score, "error": 100 * score, "many": score, "medium": None, "few": 0.5}
            folder = RunFolder(self.runs / config.run_id)
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.config_file.write_text(config.to_json())
            result = {"run_id": config.run_id, "final": final, "best_error": final["error"], "seconds": 1.0}
            folder.result_file.write_text(json.dumps(result | {"versions": {}}))
            self.trained.append(config)
            finished.append((task, config, Outcome("done")))
        del self.queue[:1]
        return finished

    def stop(self):
        return []


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """Tune on a table of scores."""

    def search(score, runs=tmp_path / "runs", **options):
        executor = Scored(RunOptions(runs=runs), score)
        monkeypatch.setattr(sys.modules[tune.__module__], "make_executor", lambda where, options: executor)
        return tune(configure, SearchOptions(**options), RunOptions(runs=runs)), executor

    return search


def noisy(true_score, noise=0.01):
    """A fold is as hard for one loss as for another, and each has its own luck."""

    def score(config):
        fold = config.data.fold.fold
        hard = 0 if fold is None else np.random.default_rng(fold).normal(0, 0.05)
        luck = np.random.default_rng([sum(config.run_id.encode())]).normal(0, noise)
        return float(true_score(config.loss) + hard + luck)

    return score


def by_beta(loss):
    return {None: 0.5, 0.9: 0.55, 0.99: 0.6, 0.999: 0.7, 0.9999: 0.65}[loss.beta] + 0.02 * (loss.gamma == 1.0)


def test_the_grid_is_the_papers_and_the_best_mean_wins(scored):
    result, executor = scored(noisy(by_beta, noise=0.0), prune=False)
    assert len(result.candidates) == len({each.loss.slug for each in result.candidates}) == 26
    assert {each.loss.beta for each in result.candidates} == {None, 0.9, 0.99, 0.999, 0.9999}
    assert result.winner.loss.slug == "focal_1_0.999"
    assert (result.runs, result.grid_runs) == (130, 130)
    assert len(executor.trained) == 131
    means = [each.mean for each in result.candidates]
    assert means == sorted(means, reverse=True)
    best = result.candidates[0]
    assert best.mean == pytest.approx(np.mean(best.scores))
    assert best.spread == pytest.approx(np.std(best.scores, ddof=1))
    assert best.groups == {"many": pytest.approx(best.mean), "medium": None, "few": 0.5}


def test_the_last_run_alone_sees_the_test_images_and_is_tested_once(scored):
    result, executor = scored(noisy(by_beta), losses=("softmax",))
    *folds, last = executor.trained
    assert all(config.data.fold.folds == 5 and config.data.fold.fold in range(5) for config in folds)
    assert last.data.fold == FoldOptions()
    assert last == result.winner
    assert {config.test_every for config in executor.trained} == {0}


def test_pruning_costs_a_part_of_the_grid_and_finds_its_winner(scored):
    result, executor = scored(noisy(by_beta))
    assert result.winner.loss.slug == "focal_1_0.999"
    assert len(executor.trained) - 1 == result.runs < 0.85 * result.grid_runs
    pruned = [each for each in result.candidates if each.state == "pruned"]
    assert pruned
    assert all(2 <= len(each.scores) < 5 for each in pruned)
    complete = [each for each in result.candidates if each.state == "complete"]
    assert result.candidates[: len(complete)] == complete


def test_a_loss_that_fails_is_told_and_the_others_go_on(scored, tmp_path):
    score = noisy(by_beta)
    result, _ = scored(lambda config: "it diverged" if config.loss.beta == 0.999 else score(config), prune=False)
    failed = [each for each in result.candidates if each.state == "failed"]
    assert len(failed) == 5
    assert {each.error for each in failed} == {"it diverged"}
    assert result.winner.loss.beta == 0.9999
    with pytest.raises(TrainingError, match="no loss has a result: it diverged"):
        scored(lambda config: "it diverged", runs=tmp_path / "others", losses=("sigmoid",))


def test_what_failed_is_tried_again_by_the_next_call(scored):
    score = noisy(by_beta)
    broken, _ = scored(lambda config: "no room" if config.loss.beta == 0.999 else score(config), prune=False)
    assert broken.winner.loss.beta == 0.9999
    repaired, executor = scored(score, prune=False)
    assert {config.loss.beta for config in executor.trained[:-1]} == {0.999}
    assert [each.state for each in repaired.candidates] == ["complete"] * 26
    assert repaired.winner.loss.slug == "focal_1_0.999"


def test_betas_that_look_alike_are_two(scored):
    result, _ = scored(noisy(lambda loss: 0.5), losses=("softmax",), betas=(0.9999999, 1.0), prune=False)
    assert len(result.candidates) == 3


def test_other_losses_can_be_tuned_too():
    search = SearchOptions(losses=("ldam", "softmax_focal"), betas=(0.9,), gammas=(1.0, 2.0))
    labels = [loss.slug for loss in search.space()]
    plain = ["softmax_focal_1", "softmax_focal_2", "ldam"]
    assert labels == [name for each in plain for name in (each, f"{each}_0.9")]


def test_tpe_searches_the_number_of_prototypes_and_gamma(scored):
    def bump(loss):
        prototypes = 1 / (1 - (loss.beta or 0))
        return 0.8 - 0.05 * (np.log10(prototypes) - 3) ** 2 - 0.02 * (loss.name != "focal")

    result, _ = scored(noisy(bump, noise=0.002), search="tpe", trials=30)
    drawn = Tpe(SearchOptions(search="tpe", trials=30), result.folder)
    assert len(drawn.study.trials) == 30
    # A loss that was drawn twice is there once, as balanced softmax is, which has nothing to choose.
    assert {each.loss for each in result.candidates} == set(drawn.losses())
    assert len(result.candidates) == len(drawn.losses())
    plain = [each.loss for each in result.candidates if each.loss.weighting == "uniform"]
    assert sorted(loss.name for loss in plain) == ["focal", "logit_adjusted", "sigmoid", "softmax"]
    for each in result.candidates:
        assert each.loss in plain or 1 < 1 / (1 - each.loss.beta) <= 1e5 + 1
        assert (each.loss.gamma is not None) == (each.loss.name == "focal")
        assert each.loss.gamma is None or 0 <= each.loss.gamma <= 3
        assert len(each.loss.slug) <= len("softmax_focal_1.23_0.999988")
    assert 100 <= 1 / (1 - result.winner.loss.beta) <= 10_000


def test_a_loss_that_tpe_draws_twice_at_once_is_trained_and_shown_once(scored, monkeypatch):
    plain, weighted = SearchOptions(losses=("softmax",), betas=(0.9,)).space()

    monkeypatch.setattr(Tpe, "_loss", lambda search, values: weighted if values["prototypes"] > 1 else plain)
    score = noisy(lambda loss: 0.6 if loss == weighted else 0.5)
    result, executor = scored(score, search="tpe", losses=("softmax",), trials=6, prune=False)
    assert [candidate.loss for candidate in result.candidates] == [weighted, plain]
    folds = {config for config in executor.trained if config.data.fold.fold is not None}
    assert len(folds) == result.runs == 2 * 5


def test_it_is_said_once_that_runs_of_another_process_are_waited_for(tmp_path, monkeypatch):
    class Shared(Scored):
        """Another process has each run when it is asked for first."""

        def wait(self, seconds):
            for task, config in self.queue[:1]:
                if task == "train" and config not in asked:
                    asked.add(config)
                    del self.queue[0]
                    return [(task, config, Outcome("busy"))]
            return super().wait(seconds)

    asked = set()
    options = RunOptions(runs=tmp_path)
    module = sys.modules[tune.__module__]
    monkeypatch.setattr(runs, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(module, "make_executor", lambda where, options: Shared(options, noisy(by_beta)))
    said = io.StringIO()
    tune(configure, SearchOptions(losses=("softmax",), betas=(0.9,)), options, console=Console(file=said, width=200))
    waiting = [line for line in said.getvalue().splitlines() if line.startswith("waiting for ")]
    assert len(waiting) == 1
    assert waiting[0].endswith(", which is in use by another process")


def test_again_nothing_is_trained(scored):
    first, _ = scored(noisy(by_beta))
    second, executor = scored(noisy(by_beta))
    assert executor.trained == []
    assert not executor.measured
    assert second.candidates == first.candidates
    assert second.runs < second.grid_runs
    record = json.loads((second.folder / "result.json").read_text())
    assert record["winner"]["title"] == "class-balanced focal, β 0.999, γ 1"
    assert RunConfig.from_json(json.dumps(record["config"])) == second.winner


def test_the_run_folders_are_the_state_of_a_grid(scored, tmp_path):
    """A fold that is lost is trained again, and nothing else."""
    first, _ = scored(noisy(by_beta), losses=("softmax",))
    assert sorted(path.name for path in (tmp_path / "runs" / "tune").glob("*/*")) == ["result.json"]
    lost = sorted((tmp_path / "runs").glob("*fold1*"))[0]
    shutil.rmtree(lost)
    second, executor = scored(noisy(by_beta), losses=("softmax",))
    assert [config.run_id for config in executor.trained] == [lost.name]
    assert second.candidates == first.candidates


def test_progress_tells_the_cost_first_and_each_loss_then(tmp_path, monkeypatch):
    module = sys.modules[tune.__module__]
    executor = Scored(RunOptions(runs=tmp_path), noisy(by_beta))
    monkeypatch.setattr(module, "make_executor", lambda where, options: executor)
    said = io.StringIO()
    search = SearchOptions(losses=("softmax",), betas=(0.9,))
    tune(configure, search, RunOptions(runs=tmp_path), console=Console(file=said, width=200))
    lines = said.getvalue().splitlines()
    assert lines[0] == "2 losses × 5 folds, 2 runs at a time; measuring …"
    # 345 images at 100 a second for 2 epochs, a test of the other 86 at 300 a second; 10 folds, 2 at a time
    assert lines[1] == "about 36 s, less what pruning saves"
    assert lines[2].startswith("softmax: balanced accuracy ")
    assert lines[-1].startswith("training with class-balanced softmax, β 0.9 on all training images")


def test_a_dry_run_tells_the_cost_and_trains_nothing(tmp_path, monkeypatch):
    executor = Scored(RunOptions(runs=tmp_path), noisy(by_beta))
    monkeypatch.setattr(sys.modules[tune.__module__], "make_executor", lambda where, options: executor)
    said = io.StringIO()
    console = Console(file=said, width=200)
    seconds = estimate_tuning(configure, SearchOptions(), RunOptions(runs=tmp_path), console=console)
    # 345 images at 100 a second for 2 epochs, a test of the other 86 at 300 a second; 130 folds, 2 at a time
    assert seconds == pytest.approx(130 * (2 * 345 / 100 + 86 / 300) / 2, rel=0.01)
    assert said.getvalue().startswith("26 losses × 5 folds, 2 runs at a time; measuring …\nabout ")
    assert executor.trained == []


@pytest.mark.parametrize("seed", range(20))
def test_pruning_is_that_of_optuna(seed):
    draw = np.random.default_rng(seed)
    best = draw.normal(0.7, 0.05, 5).tolist()
    scores = (np.array(best) + draw.normal(-0.01, 0.03, 5))[: draw.integers(1, 5)].tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(
            direction="maximize", pruner=optuna.pruners.WilcoxonPruner(p_threshold=0.5, n_startup_steps=2)
        )
        for values in (best, scores):
            trial = study.ask()
            for step, value in enumerate(values):
                trial.report(value, step)
            pruned = trial.should_prune()
            if values is best:
                study.tell(trial, float(np.mean(best)))
    assert is_hopeless(scores, best, 0.5) == pruned


def test_tpe_goes_on_with_what_a_process_that_died_had_asked_for(tmp_path):
    search = SearchOptions(search="tpe", losses=("softmax", "sigmoid"), trials=4)
    dead = Tpe(search, tmp_path)
    assert [dead.extend() for _ in range(3)] == [True] * 3
    again = Tpe(search, tmp_path)
    assert again.losses() == dead.losses()
    assert [loss.slug for loss in again.losses()[:2]] == ["softmax", "sigmoid"]
    assert [again.extend(), again.extend()] == [True, False]
    assert len(again.losses()) == 4


def test_a_journal_of_tpe_that_cannot_be_read_is_one_line(tmp_path):
    search = SearchOptions(search="tpe", losses=("softmax",), trials=4)
    Tpe(search, tmp_path).extend()
    file = tmp_path / "journal.log"
    file.write_bytes(b"{garbage\n" + file.read_bytes())
    with pytest.raises(ConfigError, match=r"journal\.log is damaged: .*delete it to search anew") as error:
        Tpe(search, tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("prototypes", "beta"), [(1.0, None), (1.004, None), (1.25, 0.2), (10.0, 0.9), (812.0, 0.9988), (1e5, 0.99999)]
)
def test_prototypes_become_a_beta_of_two_digits(tmp_path, prototypes, beta):
    search = Tpe(SearchOptions(search="tpe", losses=("focal",)), tmp_path)
    loss = search._loss({"loss": "focal", "prototypes": prototypes, "gamma": 0.756})
    assert (loss.beta, loss.weighting, loss.gamma) == (beta, "effective" if beta else "uniform", 0.76)


def test_a_grid_has_nothing_to_keep():
    grid = Grid(SearchOptions(losses=("softmax",), betas=(0.9,)))
    assert [loss.slug for loss in grid.losses()] == ["softmax", "softmax_0.9"]
    assert not grid.extend()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"losses": ("hinge",)},
            "unknown loss 'hinge': choose from softmax, sigmoid, .*, balanced_softmax",
        ),
        ({"losses": ()}, "got none"),
        ({"betas": (1.5,)}, "betas"),
        ({"gammas": (-1.0,)}, "gammas"),
        ({"losses": ("focal",), "gammas": ()}, "gammas must have a value for focal"),
        ({"losses": ("softmax", "focal"), "gammas": ()}, "gammas must have a value for focal"),
        ({"search": "tpe", "losses": ("softmax", "ldam"), "trials": 1}, "trials must be at least 2"),
        ({"trials": 3}, "trials has no effect with search grid"),
        ({"search": "tpe", "betas": (0.5,)}, "betas has no effect with search tpe"),
        ({"search": "tpe", "trials": 0}, "trials"),
        ({"prune_threshold": 2.0}, "prune_threshold"),
    ],
)
def test_bad_options_are_refused_by_name(values, message):
    with pytest.raises(ConfigError, match=message):
        SearchOptions(**values)


def test_a_single_fold_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="fold must not be given"):
        tune(lambda loss: replace(configure(loss), data=DataConfig(fold=FoldOptions(folds=3, fold=1))))


def photos(folder, permute_test, break_test=False):
    """Three classes of pictures, with a test folder whose labels may be wrong and whose files may be broken."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 6)):
        for label, name in enumerate("abc"):
            shown = (label + permute_test) % 3 if split == "test" else label
            target = folder / split / "abc"[shown]
            target.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = draw.integers(0, 100, (16, 16, 3), dtype=np.uint8)
                pixels[:, :, label] += 100
                Image.fromarray(pixels).save(target / f"{name}{number}.png")
                if split == "test" and break_test:
                    (target / f"{name}{number}.png").write_bytes(b"no image")
    return folder


def test_test_labels_cannot_change_the_choice(tmp_path):
    """Right, wrong and unreadable test images: the same scores, bit for bit; only the last run meets them."""
    results, errors = [], []
    for name, permute, broken in (("right", 0, False), ("wrong", 1, False), ("broken", 0, True)):
        data = photos(tmp_path / name / "photos", permute, broken)

        def on_photos(loss, data=data):
            config = cifar(DataConfig(name=str(data), image_size=16, fold=FoldOptions(folds=2)), loss, 2)
            return replace(config, model=ModelConfig(name="resnet8"), optimizer=replace(config.optimizer, batch_size=8))

        options = RunOptions(runs=tmp_path / name / "runs", accelerator="cpu", workers=0)
        search = SearchOptions(losses=("softmax",), betas=(0.9,))
        try:
            results.append(tune(on_photos, search, options, ExecutorOptions()))
        except TrainingError as error:
            errors.append(str(error))
    right, wrong = results
    assert [(each.loss, each.scores) for each in right.candidates] == [
        (each.loss, each.scores) for each in wrong.candidates
    ]
    assert right.winner.loss == wrong.winner.loss
    assert right.test["recall"] != wrong.test["recall"]
    assert len(errors) == 1
    assert "test" in errors[0]
    finished = [path.parent.name for path in (tmp_path / "broken" / "runs").glob("*/result.json")]
    assert len(finished) == 4
    assert all("fold" in name for name in finished)


TUNE = ["tune", "--data", "digits", "--imbalance", "50", "--model", "resnet8", "--epochs", "4", "--folds", "2"]
TUNE += ["--losses", "softmax", "--betas", "0.9", "0.999", "--no-prune"]


def complete(runs):
    return list(runs.glob("*fold*/result.json"))


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_and_two_processes_share_one(tmp_path):
    runs = tmp_path / "runs"
    first = command(*TUNE, folder=tmp_path)
    wait_for(lambda: len(complete(runs)) >= 2)
    os.kill(first.pid, signal.SIGKILL)
    assert end(first)[0] == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in complete(runs)}
    results = []
    for process in [command(*TUNE, "--json", folder=tmp_path) for _ in range(2)]:
        code, out, errors = end(process)
        assert code == 0, errors
        results.append(json.loads(out))
    assert results[0] == results[1]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [candidate["state"] for candidate in results[0]["candidates"]] == ["complete"] * 3
    assert len(complete(runs)) == 6
    config = RunConfig.from_json(json.dumps(results[0]["config"]))
    assert starts(runs, config) == 1
    shutil.rmtree(runs)
    code, out, errors = end(command(*TUNE, folder=tmp_path))
    assert code == 0, errors
    assert f"its model is in {Path('runs') / config.run_id}: " in out
    assert (runs / config.run_id / "result.json").exists()
    alone = json.loads(next(runs.glob("tune/*/result.json")).read_text())
    for result in (alone, results[0]):
        for name in ("seconds", "images_per_second"):
            del result["test"][name]
    assert alone == results[0]


def test_the_command_that_is_printed_trains_the_same_run(tmp_path):
    config = replace(configure(LossConfig(name="focal", gamma=0.25, beta=0.9997)), test_every=0, seed=3)
    config = replace(config, data=replace(config.data, fold=FoldOptions(), augment=False))
    options = RunOptions(runs=tmp_path / "my runs", data_dir=tmp_path / "data")
    words = shlex.split(command_for(config, options))[1:]
    code, out, errors = end(command(*words, "--json", folder=tmp_path))
    assert code == 0, errors
    assert json.loads(out)["run_id"] == config.run_id
    assert (options.runs / config.run_id / "result.json").exists()
    assert f"data_dir={options.data_dir}" in words
