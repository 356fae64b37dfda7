"""Results of run folders that are written by hand, beside means and intervals computed anew."""

import csv
import dataclasses
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, RunConfig, leaves
from longtail.lab.data import FoldOptions, SubsetOptions
from longtail.lab.experiments.aggregate import deltas, summarize_results
from longtail.lab.experiments.results import SETTING, load_results, to_records, write_results
from longtail.lab.recipes import retrained
from longtail.lab.training import RunFolder
from tests.steps import count_steps

PLAIN = LossConfig()
FOCAL = LossConfig(name="focal", gamma=0.5, beta=0.999)
PLAIN_FOCAL = LossConfig(name="focal", gamma=0.5)


def run_of(loss=PLAIN, seed=0, data="cifar10", imbalance=50.0, model="resnet32", **values):
    data = DataConfig(name=data, subset=SubsetOptions(imbalance=imbalance))
    return RunConfig(data=data, model=ModelConfig(name=model), loss=loss, seed=seed, **values)


def result_of(config, classes=10, **metrics):
    final = {
        "epoch": 200,
        "train_loss": 0.5,
        "lr": 1e-05,
        "images_per_second": 2000.0,
        "seconds": 3.0,
        "error": 25.0,
        "error_top5": 2.0,
        "balanced_accuracy": 1 - metrics.get("error", 25.0) / 100,
        "many": 0.9,
        "medium": 0.6,
        "few": None,
        "nll": 1.1,
        "calibration_error": 0.05,
        "recall": [0.75] * classes,
    }
    versions = {"python": "3.11.4", "longtail": "0.1.0", "torch": "2.9"}
    best = min(24.0, metrics.get("error", 24.0))
    return {
        "run_id": config.run_id,
        "final": final | metrics,
        "best_error": best,
        "seconds": 600.0,
        "versions": versions,
    }


def write_run(runs, config, name=None, done=True, classes=10, **metrics):
    folder = runs / (name or config.run_id)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    if done:
        (folder / "result.json").write_text(json.dumps(result_of(config, classes, **metrics)))
    return folder


def write_adjustment(folder, method="tau_norm", tau=1.0, **metrics):
    final = result_of(RunFolder(folder).config(), **metrics)["final"]
    slug = f"{method}_{tau:g}"
    return RunFolder(folder).write_adjustment(slug, {"method": method, "tau": tau, "final": final})


def count_leaves(value):
    inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return sum(count_leaves(each) if dataclasses.is_dataclass(each) else 1 for each in inner)


def test_every_value_of_a_configuration_has_a_name_of_its_own():
    names = set(leaves(RunConfig))
    assert len(names) == count_leaves(RunConfig())
    where = {"path", "test_data", "image_root", "weights_path"}
    assert names - where == {*SETTING, "seed", "weights", "weights_sha256"} - {"weights_from", "adjustment"}
    metrics = set(result_of(RunConfig())["final"]) - {"lr"}
    assert metrics.isdisjoint(names)


def test_a_complete_run_is_a_row_of_all_it_was_and_gave(tmp_path):
    config = run_of(FOCAL, seed=3, imbalance=10, model="resnet20")
    write_run(tmp_path, config, error=12.5, few=0.25, status=1.0, new_metric=2)
    frame = load_results(tmp_path)
    (row,) = to_records(frame)
    assert (row["run_id"], row["status"], row["problem"]) == (config.run_id, "complete", None)
    assert (row["method"], row["loss"]) == ("class-balanced focal, β 0.999, γ 0.5", "focal")
    assert (row["weighting"], row["freeze"], row["adjustment"]) == ("effective", False, None)
    assert (row["data"], row["imbalance"], row["seed"], row["model"]) == ("cifar10", 10.0, 3, "resnet20")
    assert (row["beta"], row["gamma"], row["lr"], row["lr_decay"]) == (0.999, 0.5, 0.1, 0.01)
    assert (row["max_count"], row["folds"], row["fold"], row["weights"]) == (None, None, None, None)
    assert frame["milestones"][0] == (160.0, 180.0)
    assert (row["error"], row["few"], row["medium"], row["recall"]) == (12.5, 0.25, 0.6, [0.75] * 10)
    assert (row["best_error"], row["seconds"], row["images_per_second"]) == (12.5, 600.0, 2000.0)
    assert (row["version_torch"], row["version_longtail"]) == ("2.9", "0.1.0")
    assert row["new_metric"] == 2.0
    assert "epoch" not in row
    assert row["published"] is None


def test_the_rarest_quarter_of_a_run_that_did_not_keep_it_is_from_its_recalls(tmp_path):
    folder = write_run(tmp_path, run_of(), classes=5, recall=[0.9, 0.8, None, 0.5, 0.1], precision=[0.5] * 5)
    assert load_results(tmp_path)["rarest_quarter"].isna().all()  # without data.json nobody knows which they are
    data = {"classes": list("abcde"), "train_counts": [90, 9, 2, 50, 8], "mean": [0], "std": [1]}
    (folder / "data.json").write_text(json.dumps(data | {"image_shape": [1, 8, 8]}))
    write_adjustment(folder, classes=5, recall=[0.9, 0.8, 0.5, 0.5, 0.3])
    frame = load_results(tmp_path)
    assert frame["rarest_quarter"].tolist() == [pytest.approx(0.1), pytest.approx((0.5 + 0.3) / 2)]
    assert frame["macro_f1"].isna().all()
    assert frame["precision"].tolist() == ["32-true"] * 2  # that of the training, and no list


def test_the_published_error_is_beside_a_run_of_the_paper(tmp_path):
    write_run(tmp_path, run_of(LossConfig(name="focal", gamma=2.0, beta=0.9999)))
    assert load_results(tmp_path)["published"].tolist() == [20.73]
    assert summarize_results(load_results(tmp_path))["published"].tolist() == [20.73]


def test_every_status_is_told_with_its_problem(tmp_path):
    configs = [run_of(seed=seed) for seed in range(13)]
    write_run(tmp_path, configs[0], "a-complete")
    failed = write_run(tmp_path, configs[1], "b-failed", done=False)
    (failed / "error.json").write_text(json.dumps({"error": "out of\nmemory", "traceback": "…", "time": "now"}))
    begun = write_run(tmp_path, configs[2], "c-begun", done=False)
    (begun / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3}\n')
    write_run(tmp_path, configs[3], "d-new", done=False)
    (write_run(tmp_path, configs[4], "e-result") / "result.json").write_text('{"run_id": ')
    write_run(tmp_path, configs[5], "f-config").joinpath("config.json").write_bytes(b"\xff\xfe")
    other = write_run(tmp_path, configs[6], "g-other")
    (other / "result.json").write_text(json.dumps(result_of(configs[0])))
    (tmp_path / "h-rest").mkdir()
    (tmp_path / "h-rest" / "model.safetensors").write_bytes(b"")
    half = write_run(tmp_path, configs[8], "i-half", done=False)
    (half / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo')
    (write_run(tmp_path, configs[9], "j-error", done=False) / "error.json").write_text("[]")
    (write_run(tmp_path, configs[10], "k-short") / "result.json").write_text(
        json.dumps({"run_id": configs[10].run_id, "final": {"many": 1.0}, "seconds": 1.0})
    )
    write_run(tmp_path, configs[7], "m-deep").joinpath("config.json").write_text("[" * 100_000)
    late = write_run(tmp_path, configs[11], "l-late")
    (late / "error.json").write_text(json.dumps({"error": "of an attempt before", "traceback": "", "time": ""}))
    (tmp_path / "n-lock").mkdir()
    (tmp_path / "n-lock" / ".lock").touch()
    write_run(tmp_path, configs[12], "o-nan", error=math.nan)
    frame = load_results(tmp_path).set_index("run_id")
    assert frame["status"].to_dict() == {
        "a-complete": "complete",
        "b-failed": "failed",
        "c-begun": "unfinished",
        "d-new": "unfinished",
        **dict.fromkeys(("e-result", "f-config", "g-other", "h-rest", "i-half", "j-error", "k-short"), "damaged"),
        "l-late": "complete",
        **dict.fromkeys(("m-deep", "n-lock", "o-nan"), "damaged"),
    }
    problems = frame["problem"]
    assert problems["a-complete"] is problems["l-late"] is None
    assert problems["b-failed"] == "out of memory"
    assert (problems["c-begun"], problems["d-new"]) == ("3 of 200 epochs", "0 of 200 epochs")
    assert problems["e-result"].startswith("result.json is damaged: ")
    assert problems["f-config"].startswith("cannot read config.json: ")
    assert problems["g-other"] == f"result.json is of {configs[0].run_id}, but config.json of {configs[6].run_id}"
    assert problems["h-rest"] == "it has no config.json"
    assert problems["i-half"].startswith("metrics.jsonl is damaged in line 2: ")
    assert problems["j-error"] == "error.json is damaged: [] is not an object"
    assert problems["k-short"] == "result.json is damaged: it lacks 'error'"
    assert problems["m-deep"].startswith("config.json is not valid JSON: ")
    assert problems["n-lock"] == "it has no config.json"
    assert problems["o-nan"] == "result.json is damaged: nan is not a number"
    incomplete = frame[frame["status"] != "complete"]
    assert incomplete[["error", "many", "best_error", "seconds"]].isna().all(axis=None)
    assert incomplete["recall"].isna().all()
    assert frame.loc["b-failed", "seed"] == 1
    assert pd.isna(frame.loc["f-config", "seed"])
    assert summarize_results(load_results(tmp_path))["n"].tolist() == [2]


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(
    file=st.sampled_from(["config.json", "result.json", "error.json", "metrics.jsonl"]),
    keys=st.lists(
        st.sampled_from(["final", "error", "recall", "versions", "data", "loss", "beta", "seed"]), max_size=2
    ),
    content=ANY_JSON | st.just(10**400),
    cut=st.none() | st.integers(0, 200),
)
def test_no_file_stops_the_others_from_being_listed(tmp_path_factory, file, keys, content, cut):
    """One run has any JSON in a file, or in a place of it, or a file that ends early; the other is as ever."""
    runs = tmp_path_factory.mktemp("runs")
    write_run(runs, run_of(), "good")
    folder = write_run(runs, run_of(seed=1), "odd", done=file == "result.json")
    path = folder / file
    whole = json.loads(path.read_text()) if path.exists() else {}
    inner = whole
    for key in keys[:-1]:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else {}
    if keys and isinstance(inner, dict):
        inner[keys[-1]] = content
    path.write_text(json.dumps(whole if keys else content)[:cut])
    frame = load_results(runs)
    good, odd = to_records(frame)
    assert (good["status"], good["error"]) == ("complete", 25.0)
    assert odd["status"] in ("complete", "failed", "unfinished", "damaged")
    assert (odd["problem"] is None) == (odd["status"] == "complete")
    assert 1 <= summarize_results(frame)["n"].sum() <= 2
    json.dumps(to_records(frame), allow_nan=False)
    shutil.rmtree(runs)


def test_a_seed_too_large_for_a_column_of_integers_is_kept(tmp_path):
    config = RunConfig(data=DataConfig(subset=SubsetOptions(imbalance=10, subset_seed=2**80)))
    write_run(tmp_path, config)
    frame = load_results(tmp_path)
    assert frame["subset_seed"].tolist() == [2**80]
    assert summarize_results(frame)["n"].tolist() == [1]


def test_hidden_and_unrelated_folders_and_files_are_passed_over(tmp_path):
    write_run(tmp_path, run_of())
    write_run(tmp_path, run_of(seed=1), ".hidden")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "error.png").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    assert load_results(str(tmp_path))["run_id"].tolist() == [run_of().run_id]


def test_a_run_folder_is_the_one_row(tmp_path, monkeypatch):
    folder = write_run(tmp_path, run_of())
    assert load_results(folder)["run_id"].tolist() == [folder.name]
    monkeypatch.chdir(folder)
    assert load_results(".")["run_id"].tolist() == [folder.name]


def test_a_folder_without_runs_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "runs").mkdir()
    for name, message in (
        ("runs", "runs/ holds no runs$"),
        ("nowhere", "nowhere/ holds no runs: it does not exist$"),
        ("file", "file/ holds no runs: it is not a folder$"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            load_results(name)


def write_grid(runs, generator, seeds=(0, 1, 2)):
    """Errors by method and seed, of runs that are written in no order."""
    errors = {}
    for seed in seeds:
        for loss in (FOCAL, PLAIN_FOCAL, PLAIN, LossConfig(beta=0.9), LossConfig(weighting="inverse")):
            errors[loss.title, seed] = error = float(generator.uniform(20, 40))
            write_run(runs, run_of(loss, seed), error=error, many=1 - error / 100)
    return errors


def test_means_and_spreads_are_those_of_numpy(tmp_path):
    errors = write_grid(tmp_path, np.random.default_rng(0))
    write_run(tmp_path, run_of(PLAIN, seed=9), done=False)
    found = summarize_results(load_results(tmp_path)).set_index("method")
    weighted = ["class-balanced softmax, β 0.9", "softmax, 1/n weights"]
    focal = ["focal, γ 0.5", "class-balanced focal, β 0.999, γ 0.5"]
    assert found.index.tolist() == ["softmax", *weighted, *focal]
    assert found["n"].tolist() == [3] * 5
    for method, row in found.iterrows():
        values = np.array([errors[method, seed] for seed in range(3)])
        assert row["error_mean"] == pytest.approx(values.mean())
        assert row["error_std"] == pytest.approx(np.sqrt(((values - values.mean()) ** 2).sum() / 2))
        assert row["many_mean"] == pytest.approx(1 - values.mean() / 100)
        assert math.isnan(row["few_mean"])
    assert "recall_mean" not in found
    assert "seed" not in found
    assert pd.isna(found.loc["softmax", "beta"])
    assert found.loc["focal, γ 0.5", "gamma"] == 0.5


def test_one_run_has_no_spread_and_the_same_run_twice_is_one(tmp_path):
    folder = write_run(tmp_path, run_of(FOCAL), error=30.0)
    write_run(tmp_path, run_of(PLAIN_FOCAL), error=33.0)
    shutil.copytree(folder, tmp_path / "copy")
    frame = load_results(tmp_path)
    assert len(frame) == 3
    found = summarize_results(frame)
    assert found["n"].tolist() == [1, 1]
    assert found["error_std"].isna().all()
    (delta,) = to_records(deltas(frame))
    assert (delta["pairs"], delta["error_delta"], delta["error_low"], delta["error_high"]) == (1, -3.0, None, None)


def test_settings_are_in_order_and_differ_by_anything_but_the_seed(tmp_path):
    configs = [
        run_of(imbalance=None),
        run_of(),
        run_of(model="resnet8"),
        run_of(LossConfig(name="sigmoid", beta=0.999)),
        run_of(imbalance=100.0),
        replace(run_of(imbalance=100.0), data=replace(run_of(imbalance=100.0).data, fold=FoldOptions(folds=3, fold=1))),
        run_of(data="digits"),
    ]
    for config in reversed(configs):
        for seed in (0, 1):
            write_run(tmp_path, replace(config, seed=seed))
    found = to_records(summarize_results(load_results(tmp_path)))
    assert [row["n"] for row in found] == [2] * 7
    assert [(row["data"], row["imbalance"], row["model"], row["method"], row["folds"]) for row in found] == [
        ("cifar10", None, "resnet32", "softmax", None),
        ("cifar10", 50.0, "resnet32", "softmax", None),
        ("cifar10", 50.0, "resnet32", "class-balanced sigmoid, β 0.999", None),
        ("cifar10", 50.0, "resnet8", "softmax", None),
        ("cifar10", 100.0, "resnet32", "softmax", None),
        ("cifar10", 100.0, "resnet32", "softmax", 3),
        ("digits", 50.0, "resnet32", "softmax", None),
    ]


def test_a_metric_that_one_run_misses_is_missing_and_not_the_mean_of_the_others(tmp_path):
    write_run(tmp_path, run_of(seed=0), nll=1.0)
    write_run(tmp_path, run_of(seed=1), nll=math.nan)
    found = summarize_results(load_results(tmp_path))
    assert math.isnan(found["nll_mean"][0])
    assert found["n"].tolist() == [2]


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), pairs=st.integers(2, 5))
def test_intervals_are_those_of_a_paired_t_test(tmp_path_factory, seed, pairs):
    runs = tmp_path_factory.mktemp("runs")
    errors = write_grid(runs, np.random.default_rng(seed), range(pairs))
    write_run(runs, run_of(FOCAL, seed=77), error=99.0)  # has no partner
    found = deltas(load_results(runs)).set_index("method")
    shutil.rmtree(runs)
    balanced = "class-balanced focal, β 0.999, γ 0.5"
    assert found.index.tolist() == ["class-balanced softmax, β 0.9", "softmax, 1/n weights", balanced]
    for method, row in found.iterrows():
        plain = "focal, γ 0.5" if method == balanced else "softmax"
        mine, theirs = ([errors[name, place] for place in range(pairs)] for name in (method, plain))
        interval = stats.ttest_rel(mine, theirs).confidence_interval(0.95)
        assert row["pairs"] == pairs
        assert row["error_delta"] == pytest.approx(np.subtract(mine, theirs).mean())
        assert (row["error_low"], row["error_high"]) == pytest.approx((interval.low, interval.high))
        assert (row["many_low"], row["many_high"]) == pytest.approx((-interval.high / 100, -interval.low / 100))


def test_a_setting_without_a_plain_partner_is_there_with_no_pairs(tmp_path):
    write_run(tmp_path, run_of(FOCAL))
    write_run(tmp_path, run_of(PLAIN))  # of another loss
    write_run(tmp_path, run_of(replace(PLAIN_FOCAL, gamma=1.0)))  # of another γ
    write_run(tmp_path, run_of(PLAIN_FOCAL, imbalance=100.0))
    write_run(tmp_path, run_of(PLAIN_FOCAL, seed=1))
    write_run(tmp_path, run_of(PLAIN_FOCAL, model="resnet8"))
    (row,) = to_records(deltas(load_results(tmp_path)))
    assert (row["method"], row["pairs"]) == ("class-balanced focal, β 0.999, γ 0.5", 0)
    assert row["error_delta"] is row["error_low"] is row["few_high"] is None


def test_how_a_plain_loss_is_normalized_makes_no_difference(tmp_path):
    for normalize in ("classes", "samples"):
        write_run(tmp_path, run_of(replace(FOCAL, normalize=normalize)), error=20.0)
    write_run(tmp_path, run_of(replace(PLAIN_FOCAL, normalize="samples")), error=24.0)
    found = deltas(load_results(tmp_path))
    assert found["normalize"].tolist() == ["classes", "samples"]
    assert found["error_delta"].tolist() == [-4.0, -4.0]
    write_run(tmp_path, run_of(PLAIN_FOCAL), error=24.0)
    assert deltas(load_results(tmp_path))["pairs"].tolist() == [1, 1]


def test_no_complete_run_gives_empty_tables_with_their_columns(tmp_path):
    write_run(tmp_path, run_of(), done=False)
    frame = load_results(tmp_path)
    assert {"error", "few", "recall", "best_error"} <= set(frame.columns)
    for table, column in ((summarize_results(frame), "error_mean"), (deltas(frame), "error_delta")):
        assert len(table) == 0
        assert {"method", "beta", column} <= set(table.columns)


def test_files_hold_all_of_the_table(tmp_path):
    own = run_of(FOCAL, data="été")
    own = replace(own, data=replace(own.data, fingerprint="0" * 64))
    write_run(tmp_path / "runs", own, error=30.0, recall=[0.5, None], nll=math.inf)
    without_milestones = replace(run_of(seed=1), optimizer=replace(run_of().optimizer, milestones=()))
    write_run(tmp_path / "runs", without_milestones, done=False)
    frame = load_results(tmp_path / "runs")
    write_results(frame, tmp_path / "new" / "results.JSON")
    read = json.loads((tmp_path / "new" / "results.JSON").read_bytes())
    assert read == to_records(frame)
    by_status = {row["status"]: row for row in read}
    assert by_status["complete"]["recall"] == [0.5, None]
    assert by_status["complete"]["nll"] is by_status["unfinished"]["error"] is None
    assert by_status["complete"]["data"] == "été"
    write_results(frame, str(tmp_path / "results.csv"))
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["status"]: row for row in csv.DictReader(file)}
    assert list(rows["complete"]) == list(frame.columns)
    assert json.loads(rows["complete"]["recall"]) == [0.5, None]
    assert json.loads(rows["complete"]["milestones"]) == [160, 180]
    assert (rows["unfinished"]["milestones"], rows["unfinished"]["recall"], rows["unfinished"]["beta"]) == (
        "[]",
        "",
        "",
    )
    assert (float(rows["complete"]["error"]), rows["complete"]["epochs"]) == (30.0, "200")
    write_results(summarize_results(frame), tmp_path / "settings.csv")
    for name, message in (("table.xlsx", "ends in .xlsx"), ("table", "has no ending")):
        with pytest.raises(ConfigError, match=f"{name} {message}: results are written as .csv or .json"):
            write_results(frame, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "results.csv", "runs", "settings.csv"]


@pytest.mark.slow
def test_five_times_the_runs_are_five_times_the_work(tmp_path):
    generator = np.random.default_rng(0)
    losses = [replace(FOCAL, beta=beta) for beta in (0.9, 0.99, 0.999, 0.9999)] + [PLAIN_FOCAL]

    def look(imbalances):
        frame = load_results(tmp_path / str(imbalances))
        summary, changes = summarize_results(frame), deltas(frame)
        assert (len(frame), len(summary), len(changes)) == (15 * imbalances, 5 * imbalances, 4 * imbalances)
        assert set(changes["pairs"]) == {3}

    for imbalances in (2, 10):
        for imbalance in range(10, 10 + imbalances):
            for loss in losses:
                for seed in range(3):
                    config = run_of(loss, seed, "cifar100", float(imbalance))
                    recall = generator.uniform(size=100).tolist()
                    write_run(tmp_path / str(imbalances), config, error=float(generator.uniform(40, 60)), recall=recall)
    look(2)  # what is imported and compiled once
    assert count_steps(look, 10) < 5.5 * count_steps(look, 2)


def test_heads_of_runs_that_differ_by_their_seed_are_one_setting(tmp_path):
    parents = [run_of(loss, seed) for loss in (PLAIN, LossConfig(beta=0.999)) for seed in (0, 1)]
    for parent in parents:
        head = retrained(parent, parent.run_id)
        head = replace(head, model=replace(head.model, weights_sha256=f"{parent.run_id:0<64}"[:64]))
        for config in (parent, head):
            write_adjustment(write_run(tmp_path, config, error=20.0 + parent.seed), tau=0.5)
    rows = to_records(summarize_results(load_results(tmp_path)))
    plain, adjusted = "softmax", "softmax, τ-norm τ 0.5"
    assert [(row["method"], row["freeze"], row["adjustment"], row["n"]) for row in rows] == [
        (plain, False, None, 2),
        (adjusted, False, "tau_norm_0.5", 2),
        *[("softmax, cRT", True, None, 2)] * 2,
        *[("softmax, cRT, τ-norm τ 0.5", True, "tau_norm_0.5", 2)] * 2,
        ("class-balanced softmax, β 0.999", False, None, 2),
        ("class-balanced softmax, β 0.999, τ-norm τ 0.5", False, "tau_norm_0.5", 2),
    ]
    assert {row["weights_from"] for row in rows[2:4]} == {parents[0].setting_id, parents[2].setting_id}
    shutil.rmtree(tmp_path / parents[0].run_id)
    frame = load_results(tmp_path)
    assert (frame["weights_from"] == parents[0].run_id).sum() == 2  # the name of what is gone


def test_an_adjustment_is_a_row_beside_its_run(tmp_path):
    run = write_run(tmp_path, run_of(PLAIN), error=25.0)
    write_adjustment(run, "tau_norm", 0.5, error=22.0, recall=[0.5] * 10)
    write_adjustment(run, "logit_adjustment", 1.0, error=21.0)
    rows = {row["adjustment"]: row for row in to_records(load_results(tmp_path))}
    assert list(rows) == [None, "logit_adjustment_1", "tau_norm_0.5"]
    assert {row["run_id"] for row in rows.values()} == {run.name}
    assert {row["status"] for row in rows.values()} == {"complete"}
    assert [row["method"] for row in rows.values()] == [
        "softmax",
        "softmax, logit adjustment τ 1",
        "softmax, τ-norm τ 0.5",
    ]
    assert [row["error"] for row in rows.values()] == [25.0, 21.0, 22.0]
    assert rows["tau_norm_0.5"]["recall"] == [0.5] * 10
    assert [row["published"] for row in rows.values()] == [25.19, None, None]  # of the run as it was trained
    assert summarize_results(load_results(tmp_path))["n"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "adjustments/tau_norm_1.json is damaged: "),
        ("[]", "adjustments/tau_norm_1.json is damaged: [] is not an object"),
        ('{"method": "tau_norm", "tau": 1, "final": {}}', "adjustments/tau_norm_1.json is damaged: it lacks 'error'"),
        ('{"method": "tau_norm", "tau": [], "final": {"error": 1}}', "adjustments/tau_norm_1.json is damaged: "),
    ],
)
def test_a_damaged_adjustment_is_a_row_and_stops_no_other(tmp_path, content, problem):
    run = write_run(tmp_path, run_of(PLAIN))
    write_adjustment(run, "logit_adjustment")
    write_adjustment(run, "tau_norm").write_text(content)
    rows = to_records(load_results(tmp_path))
    assert [(row["adjustment"], row["status"]) for row in rows] == [
        (None, "complete"),
        ("logit_adjustment_1", "complete"),
        ("tau_norm_1", "damaged"),
    ]
    assert rows[2]["problem"].startswith(problem)
    assert rows[2]["error"] is rows[2]["seconds"] is None
    assert summarize_results(load_results(tmp_path))["n"].tolist() == [1, 1]
