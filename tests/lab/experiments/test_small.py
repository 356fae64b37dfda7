"""The protocol for a laptop: what it holds, and the tables that are made of its records."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import small, small_tune
from benchmarks.tables import methods, table, write_tables
from longtail.lab.config import RunOptions
from longtail.lab.experiments import (
    SWEEPS,
    SweepResult,
    keep_records,
    load_results,
    rescaled,
    small_protocol,
)
from longtail.lab.recipes import retrained
from longtail.lab.training import RunFolder
from tests.lab.experiments.test_results import result_of, write_run

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize(("dataset", "betas"), [("cifar10", {0.9999}), ("cifar100", {0.9, 0.99})])
def test_every_loss_is_there_plain_and_with_the_beta_of_the_paper(dataset, betas):
    runs = small_protocol(dataset)
    assert len(set(runs)) == len(runs) == 29
    assert {(run.model.name, run.optimizer.epochs, run.data.subset.imbalance) for run in runs} == {
        ("resnet8", 20, 100.0),
        ("resnet8", 20, 50.0),
    }
    kinds = {(run.loss.name, run.loss.weighting) for run in runs}
    assert {(loss, kind) for loss in ("softmax", "sigmoid", "focal") for kind in ("uniform", "effective")} <= kinds
    assert {run.loss.beta for run in runs if run.loss.name == "sigmoid"} == {None, *betas}
    at_50 = [run.loss.beta for run in runs if run.loss.name == "softmax" and run.data.subset.imbalance == 50]
    assert {0.9, 0.99, 0.999, 0.9999} <= set(at_50)
    later = [run for run in runs if run.loss.name in ("logit_adjusted", "ldam") or run.data.sampling != "shuffled"]
    assert sorted(run.data.subset.imbalance for run in later) == [50.0] * 3 + [100.0] * 3


def test_the_records_kept_are_the_runs_of_the_protocol():
    sweep = SWEEPS["small"]
    runs = [run for name in sweep.datasets for run in rescaled(sweep.runs(name), seeds=sweep.seeds)]
    parents = {run.run_id: run for run in runs if run.title == "softmax"}
    assert len(parents) == 2 * 2 * sweep.seeds == 8
    again = [retrained(run, weights=run_id).run_id for run_id, run in parents.items()]
    kept = load_results(RESULTS / "small" / "runs")
    assert set(kept["run_id"]) == {run.run_id for run in runs} | set(again)
    assert set(kept["status"]) == {"complete"}
    adjusted = kept.dropna(subset=["adjustment"])
    assert sorted(zip(adjusted["run_id"], adjusted["adjustment"], strict=True)) == sorted(
        (run_id, slug) for run_id in parents for slug in ("tau_norm_1", "logit_adjustment_1")
    )


def test_after_the_runs_come_their_classifiers_and_their_adjustments(tmp_path, monkeypatch):
    swept, adjusted = [], []

    def sweep_only(runs, options, console):
        swept.append(list(runs))
        return SweepResult(done=list(runs))

    monkeypatch.setattr(small, "run_sweep", sweep_only)
    monkeypatch.setattr(small, "adjust_run", lambda path, method, data_dir: adjusted.append((path, method, data_dir)))
    small.train_all(RunOptions(runs=tmp_path, data_dir=tmp_path / "data"))
    first, second = swept
    assert len(first) == 4 * 29
    parents = [tmp_path / run.run_id for run in first if run.title == "softmax"]
    assert [run.model.weights for run in second] == [str(path) for path in parents]
    assert {run.title for run in second} == {"softmax, cRT"}
    methods = ("tau_norm", "logit_adjustment")
    assert adjusted == [(path, method, tmp_path / "data") for path in parents for method in methods]


def write_protocol(folder, runs):
    """Each run, and for plain softmax also cRT and τ-normalisation, with errors that are all different."""
    for place, run in enumerate(runs):
        path = write_run(folder, run, error=50.0 + place + run.seed)
        if run.title == "softmax":
            final = result_of(run, error=40.0 + run.seed)["final"]
            RunFolder(path).write_adjustment("tau_norm_1", {"method": "tau_norm", "tau": 1.0, "final": final})
            write_run(folder, retrained(run, weights=run.run_id), error=30.0 + place + run.seed)


def test_a_table_has_each_method_once_with_its_difference_from_plain_softmax(tmp_path):
    write_protocol(tmp_path, rescaled(small_protocol("cifar10"), seeds=2))
    frame = load_results(tmp_path)
    frame.loc[frame["freeze"], "epochs"] = 20
    rows = methods(frame)
    assert len(rows) == 29 + 2 * 2
    at_100 = [row for row in rows if row["imbalance"] == 100]
    names = [row["method"] for row in at_100]
    assert len(set(names)) == len(names) == 15
    assert {"class-balanced LDAM, β 0.9999, deferred to 0.8", "softmax, cRT", "softmax, τ-norm τ 1"} <= set(names)
    first = next(row for row in at_100 if row["method"] == "softmax")
    assert (first["seeds"], first["delta"]) == ([0, 1], 0.0)
    balanced = next(row for row in at_100 if row["method"] == "class-balanced softmax, β 0.9999")
    assert balanced["delta"] == 2.0
    lines = table(at_100).to_markdown().splitlines()
    assert sum("**" in line for line in lines) == 1
    json.dumps(rows, allow_nan=False)


def test_a_name_for_two_settings_is_refused(tmp_path):
    plain = small_protocol("cifar10")[0]
    for run in (plain, replace(plain, optimizer=replace(plain.optimizer, lr=0.2))):
        write_run(tmp_path, run)
    with pytest.raises(ValueError, match="two settings have the name 'softmax'"):
        methods(load_results(tmp_path))


def test_tables_are_written_from_the_records_alone_the_best_first(tmp_path):
    runs = rescaled(small_protocol("cifar10")[:2], seeds=2)
    data = {
        "classes": list("0123456789"),
        "train_counts": [5000, 1001, 1000, *[50] * 7],
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
        "image_shape": None,
    }
    for run in runs:
        recall = [0.9, 0.8 + 0.02 * run.seed, *[0.5] * 8]
        error = {"softmax": 50.0}.get(run.title, 60.0) + 2 * run.seed
        path = write_run(tmp_path / "small" / "runs", run, error=error, recall=recall)
        (path / "data.json").write_text(json.dumps(data))
    parent = next(run for run in runs if run.title == "softmax")
    again = write_run(tmp_path / "small" / "runs", retrained(parent, weights=parent.run_id), error=45.0)
    (again / "data.json").write_text(json.dumps(data))
    final = result_of(parent, error=48.0)["final"]
    adjustment = {"method": "tau_norm", "tau": 1.0, "final": final}
    RunFolder(tmp_path / "small" / "runs" / parent.run_id).write_adjustment("tau_norm_1", adjustment)
    text = write_tables(tmp_path / "small")
    assert "5 runs and 1 adjustments, 10 minutes each" in text
    assert "| softmax | 2 | 51.0 ± 1.4 |  | 85.5 ± 0.7 | 90.0 ± 0.0 | 60.0 ± 0.0 | – | 5.0 ± 0.0 | 29.64 |" in text
    assert "| softmax, τ-norm τ 1 | 1 | 48.0 | -2.0 | 75.0 | 90.0 | 60.0 | – | 5.0 |  |" in text  # not published
    assert text.count("## ") == 1  # a re-trained classifier stands beside its run, whatever its own epochs
    assert (tmp_path / "small" / "small.md").read_text(encoding="utf-8") == text
    content = json.loads((tmp_path / "small" / "small.json").read_text(encoding="utf-8"))
    names = ["softmax, cRT", "softmax, τ-norm τ 1", "softmax", "class-balanced softmax, β 0.9999"]
    assert {row["method"] for row in content["methods"]} == set(names)
    places = [text.index(f"| {name} |") for name in names]
    assert places == sorted(places)


def test_a_run_with_adjustments_is_one_record(tmp_path):
    (run,) = small_protocol("cifar10")[:1]
    path = write_run(tmp_path / "runs", run)
    (path / "metrics.jsonl").write_text("")
    (path / "data.json").write_text(
        '{"classes": ["a"], "train_counts": [1], "mean": [0], "std": [1], "image_shape": [1, 8, 8]}'
    )
    adjustment = {"method": "tau_norm", "tau": 1.0, "final": result_of(run)["final"]}
    RunFolder(path).write_adjustment("tau_norm_1", adjustment)
    assert keep_records(tmp_path / "runs", tmp_path / "kept") == 1
    assert load_results(tmp_path / "kept")["adjustment"].dropna().tolist() == ["tau_norm_1"]


def test_without_the_data_one_line_says_how_to_get_them(tmp_path, monkeypatch, capsys):
    folders = ["--output", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), "--data-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["small", *folders])
    with pytest.raises(SystemExit) as stop:
        small.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("longtail data fetch cifar10 gets it\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["small", "resnet32", "table2"])
def test_the_tables_kept_are_those_of_the_records_kept(name, tmp_path):
    kept, copy = RESULTS / name, tmp_path / name
    shutil.copytree(kept / "runs", copy / "runs")
    assert write_tables(copy) == (kept / f"{name}.md").read_text(encoding="utf-8")
    assert (copy / f"{name}.json").read_bytes() == (kept / f"{name}.json").read_bytes()


def test_the_figures_kept_are_those_of_the_records_kept(tmp_path, monkeypatch):
    shutil.copytree(RESULTS / "small" / "runs", tmp_path / "small" / "runs")
    monkeypatch.setattr(sys, "argv", ["small", "--tables", "--output", str(tmp_path / "small")])
    small.main()
    drawn, kept = (
        {path.relative_to(folder): said(path) for path in folder.rglob("small/figures/*/*")}
        for folder in (tmp_path, RESULTS)
    )
    assert len(drawn) == 8
    assert drawn == kept


def test_the_tuning_kept_is_that_of_the_records_kept():
    content = json.loads((RESULTS / "small" / "tune.json").read_text(encoding="utf-8"))
    folds = load_results(RESULTS / "small" / "tune").dropna(subset=["fold"]).sort_values("fold")
    scores = {method: each["balanced_accuracy"].tolist() for method, each in folds.groupby("method")}
    assert scores == {candidate["title"]: candidate["scores"] for candidate in content["candidates"]}
    found = {**content["search"], "candidates": content["candidates"], "winner": {"title": content["picked"]}}
    assert small_tune.compared(found, load_results(RESULTS / "small" / "runs")) == content
    assert small_tune.report(content) == (RESULTS / "small" / "tune.md").read_text(encoding="utf-8")


def said(figure):
    """What a figure says, in words and in the values of its marks; where it puts them depends on the fonts."""
    return re.findall(r">([^<>]+)</text>|aria-label=\"([^\"]+)\"", figure.read_text(encoding="utf-8"))


def test_what_tune_picks_stands_beside_the_best_on_the_test_images(tmp_path):
    errors = {"softmax": 50.0, "class-balanced softmax, β 0.999": 40.0, "class-balanced softmax, β 0.9999": 38.5}
    runs = [run for run in small_protocol("cifar10") if run.loss.name == "softmax" and run.data.subset.imbalance == 50]
    assert len(runs) > len(errors)  # some have the same β, but deferred weights, say
    for run in rescaled(runs, seeds=2):
        write_run(tmp_path / "protocol", run, error=errors.get(run.title, 1.0) + run.seed)
    plain, picked, best = errors
    candidates = [
        {"title": picked, "state": "complete", "balanced_accuracy": 0.6, "spread": 0.01, "scores": [0.6] * 3},
        {"title": best, "state": "complete", "balanced_accuracy": 0.59, "spread": 0.02, "scores": [0.59] * 3},
        {"title": plain, "state": "pruned", "balanced_accuracy": 0.5, "spread": None, "scores": [0.5]},
    ]
    found = {
        "winner": {"title": picked},
        "candidates": candidates,
        **{"folds": 3, "runs": 7, "runs_without_pruning": 9, "test": {"error": 40.25}, "search": {}},
    }
    content = small_tune.compared(found, load_results(tmp_path / "protocol"))
    assert (content["picked"], content["best_on_test"]) == (picked, best)
    assert content["points_lost"] == pytest.approx(1.5)
    assert content["cost_in_trainings"] == pytest.approx(7 * 2 / 3 + 1)
    text = small_tune.report(content)
    assert f"| {picked} | 3 | 60.0 ± 1.0 | 2 | 40.5 ± 0.7 |" in text
    assert "| softmax | 1 | 50.0 | 2 | 50.5 ± 0.7 |" in text
    assert "1.5 points lost" in text
