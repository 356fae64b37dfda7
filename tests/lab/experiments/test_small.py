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
from longtail.lab.experiments import SWEEPS, load_results, rescaled, small_heads, small_protocol
from tests.lab.experiments.test_results import write_run

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize(("dataset", "betas"), [("cifar10", {0.9999}), ("cifar100", {0.9, 0.99})])
def test_every_loss_is_there_plain_and_with_the_beta_of_the_paper(dataset, betas):
    runs = small_protocol(dataset)
    assert len(set(runs)) == len(runs) == 29
    assert {(run.model, run.optimizer.epochs, run.data.subset.imbalance) for run in runs} == {
        ("resnet8", 20, 100.0),
        ("resnet8", 20, 50.0),
    }
    labels = {(run.loss.loss, run.loss.weighting) for run in runs}
    assert {(loss, kind) for loss in ("softmax", "sigmoid", "focal") for kind in ("uniform", "effective")} <= labels
    assert {run.loss.beta for run in runs if run.loss.loss == "sigmoid"} == {None, *betas}
    at_50 = [run.loss.beta for run in runs if run.loss.loss == "softmax" and run.data.subset.imbalance == 50]
    assert {0.9, 0.99, 0.999, 0.9999} <= set(at_50)
    later = [run for run in runs if run.loss.loss in ("logit_adjusted", "ldam") or run.data.sampling != "shuffled"]
    assert sorted(run.data.subset.imbalance for run in later) == [50.0] * 3 + [100.0] * 3


def test_heads_are_those_of_the_plain_softmax_runs_of_each_seed():
    runs = rescaled(small_protocol("cifar10"), seeds=2)
    heads = small_heads(runs)
    parents = {run.run_id for run in runs if run.label == "softmax"}
    assert {run.head.head_of for run in heads} <= parents
    assert len({run.head.head_of for run in heads}) == 2 * SWEEPS["small"].seeds == 4
    assert len(heads) == 12


def test_a_table_has_each_method_once_with_its_difference_from_plain_softmax(tmp_path):
    runs = [*(found := rescaled(small_protocol("cifar10"), seeds=2)), *small_heads(found)]
    for place, run in enumerate(runs):
        write_run(tmp_path, run, error=50.0 + place + run.seed)
    rows = methods(load_results(tmp_path))
    assert len(rows) == len(runs) / 2
    at_100 = [row for row in rows if row["imbalance"] == 100]
    names = [row["method"] for row in at_100]
    assert len(set(names)) == len(names) == 16
    assert "class-balanced LDAM, β 0.9999, from epoch 16" in names
    assert "softmax, then classifier re-trained (cRT)" in names
    first = next(row for row in at_100 if row["method"] == "softmax")
    assert (first["seeds"], first["delta"]) == ([0, 1], 0.0)
    balanced = next(row for row in at_100 if row["method"] == "class-balanced softmax, β 0.9999")
    assert balanced["delta"] == 2.0
    lines = table(at_100)
    assert sum("**" in line for line in lines) == 1
    json.dumps(rows, allow_nan=False)


def test_a_name_for_two_settings_is_refused(tmp_path):
    plain = small_protocol("cifar10")[0]
    for run in (plain, replace(plain, data=replace(plain.data, mixup=0.2))):
        write_run(tmp_path, run)
    with pytest.raises(ValueError, match="two settings have the name 'softmax'"):
        methods(load_results(tmp_path))


def test_tables_are_written_from_the_records_alone_the_best_first(tmp_path):
    runs = rescaled(small_protocol("cifar10")[:2], seeds=2)
    for run in [*runs, *small_heads(runs)[:1]]:
        after = run.head.head_of is not None
        error = 45.0 if after else 50.0 + 2 * run.seed + (run.loss.beta or 0)
        recall = [0.9, 0.8 + 0.02 * run.seed, *[0.5] * 8]
        folder = write_run(tmp_path / "small" / "runs", run, error=error, recall=recall)
        data = {
            "train_counts": [5000, 1001, 1000, *[50] * 7],
            "classes": list("abcdefghij"),
            "mean": [0.0] * 3,
            "std": [1.0] * 3,
            "image_shape": None,
        }
        (folder / "data.json").write_text(json.dumps(data))
    text = write_tables(tmp_path / "small")
    assert "5 runs" in text
    assert "| softmax | 2 | 51.0 ± 1.4 |  | 85.5 ± 0.7 | 90.0 ± 0.0 | 60.0 ± 0.0 | – | 5.0 ± 0.0 | 29.64 |" in text
    assert text.count("## ") == 1  # what is done after training stands beside it, whatever its own epochs
    assert (tmp_path / "small" / "small.md").read_text(encoding="utf-8") == text
    content = json.loads((tmp_path / "small" / "small.json").read_text(encoding="utf-8"))
    names = sorted(row["method"] for row in content["methods"])
    assert names == ["class-balanced softmax, β 0.9999", "softmax", "softmax, then classifier re-trained (cRT)"]
    assert [text.index(f"| {name} |") for name in (names[2], names[1], names[0])] == sorted(
        text.index(f"| {name} |") for name in names
    )


def test_without_the_data_one_line_says_how_to_get_them(tmp_path, monkeypatch, capsys):
    folders = ["--output", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), "--data-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["small", *folders])
    with pytest.raises(SystemExit) as stop:
        small.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("longtail data fetch cifar10 gets it\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["small", "resnet32"])
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
    scores = {label: each["balanced_accuracy"].tolist() for label, each in folds.groupby("label")}
    assert scores == {candidate["label"]: candidate["scores"] for candidate in content["candidates"]}
    found = {**content["search"], "candidates": content["candidates"], "winner": {"label": content["picked"]}}
    assert small_tune.compared(found, load_results(RESULTS / "small" / "runs")) == content
    assert small_tune.report(content) == (RESULTS / "small" / "tune.md").read_text(encoding="utf-8")


def said(figure):
    """What a figure says, in words and in the values of its marks; where it puts them depends on the fonts."""
    return re.findall(r">([^<>]+)</text>|aria-label=\"([^\"]+)\"", figure.read_text(encoding="utf-8"))


def test_what_tune_picks_stands_beside_the_best_on_the_test_images(tmp_path):
    errors = {"softmax": 50.0, "softmax_0.999": 40.0, "softmax_0.9999": 38.5}
    runs = [run for run in small_protocol("cifar10") if run.label in errors and run.data.subset.imbalance == 50]
    at_once = [run for run in runs if run.optimizer.defer_reweighting is None and run.loss.normalize == "classes"]
    tried = [run for run in at_once if run.data.sampling == "shuffled"]
    assert len(tried) == len(errors) < len(runs)
    for run in rescaled(runs, seeds=2):
        error = errors[run.label] + run.seed if replace(run, seed=0) in tried else 1.0
        write_run(tmp_path / "protocol", run, error=error)
    candidates = [
        {"label": "softmax_0.999", "state": "complete", "balanced_accuracy": 0.6, "spread": 0.01, "scores": [0.6] * 3},
        {
            "label": "softmax_0.9999",
            "state": "complete",
            "balanced_accuracy": 0.59,
            "spread": 0.02,
            "scores": [0.59] * 3,
        },
        {"label": "softmax", "state": "pruned", "balanced_accuracy": 0.5, "spread": None, "scores": [0.5]},
    ]
    found = {
        "winner": {"label": "softmax_0.999"},
        "candidates": candidates,
        **{"folds": 3, "runs": 7, "runs_without_pruning": 9, "test": {"error": 40.25}, "search": {}},
    }
    content = small_tune.compared(found, load_results(tmp_path / "protocol"))
    assert (content["picked"], content["best_on_test"]) == ("softmax_0.999", "softmax_0.9999")
    assert content["points_lost"] == pytest.approx(1.5)
    assert content["cost_in_trainings"] == pytest.approx(7 * 2 / 3 + 1)
    text = small_tune.report(content)
    assert "| softmax_0.999 | 3 | 60.0 ± 1.0 | 2 | 40.5 ± 0.7 |" in text
    assert "| softmax | 1 | 50.0 | 2 | 50.5 ± 0.7 |" in text
    assert "1.5 points lost" in text
