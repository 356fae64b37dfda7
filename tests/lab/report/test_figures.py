"""What is inside the charts, computed anew, and that every one of them becomes a file in every format."""

import io
import json
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from longtail.lab.config import ConfigError, LossConfig
from longtail.lab.experiments import heatmap as heatmap_runs
from longtail.lab.experiments import load_results, losses
from longtail.lab.report import FIGURES, Inputs, figures, save
from longtail.lab.report.figures.runs import compared, one_experiment
from longtail.lab.report.theme import COLOURS, GREY, WIDEST, palette, spec
from longtail.lab.training import RunFolder
from longtail.theory import expected_volume
from longtail.weights import class_weights, effective_number
from tests.lab.experiments.test_results import FOCAL, PLAIN, PLAIN_FOCAL, result_of, run_of, write_run

STRANGE = ["<script>alert(1)</script>", "owl & cat, β", "</script><!--", "owl & cat, β", *(f"c{i}" for i in range(6))]
COUNTS = [5, 400, 30, 90, 1000, 2, 17, 60, 800, 12]
BALANCED = LossConfig(beta=0.999)


def tables_of(content):
    """All tables of a chart."""
    if isinstance(content, list):
        return [table for part in content for table in tables_of(part)]
    if not isinstance(content, dict):
        return []
    own = [content["data"]["values"]] if "values" in content.get("data", {}) else []
    return own + [table for name, part in content.items() if name != "data" for table in tables_of(part)]


def rows_of(chart, *fields):
    """The rows of the first table that has these columns."""
    return next(rows for rows in tables_of(chart.to_dict()) if set(fields) <= set(rows[0]))


def calibration_of(seed, shift):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 50, 15)
    sure = (np.arange(15) + 0.5) / 15
    right = np.clip(sure - shift, 0, 1)
    return [[int(n), float(c), float(a)] if n else [0, None, None] for n, c, a in zip(images, sure, right, strict=True)]


def write_whole_run(runs, config, error, classes=10, names=STRANGE, counts=COUNTS, **metrics):
    """A run with all that figures read."""
    rng = np.random.default_rng(config.seed)
    metrics = {"recall": rng.random(classes).tolist(), "calibration": calibration_of(config.seed, 0.1)} | metrics
    folder = write_run(runs, config, error=error, few=float(rng.random()), **metrics)
    data = {"classes": names, "train_counts": counts, "mean": [0.0] * 3, "std": [1.0] * 3, "image_shape": [3, 8, 8]}
    (folder / "data.json").write_text(json.dumps(data))
    epochs = [{"epoch": epoch, "error": error + 40 / epoch} for epoch in range(1, 6)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two losses, with and without the term, three seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        for loss, error in ((PLAIN, 30.0), (BALANCED, 26.0), (PLAIN_FOCAL, 29.0), (FOCAL, 24.0)):
            write_whole_run(folder, run_of(loss, seed), error + seed)
    return folder


@pytest.fixture(scope="module")
def frame(runs):
    return load_results(runs)


def test_the_term_is_the_reciprocal_of_the_effective_number():
    rows = rows_of(figures.class_balanced_term([0.9, 0.999, 0.9, 1.0], max_count=500), "term", "n", "name")
    lines = {row["name"] for row in rows}
    counts = sorted({row["n"] for row in rows})
    assert (lines, counts[0], counts[-1]) == ({"β 0.9", "β 0.999", "1/n"}, 1, 500)
    for row in rows:
        beta = {"β 0.9": 0.9, "β 0.999": 0.999, "1/n": 1.0}[row["name"]]
        assert row["term"] == pytest.approx(1 / effective_number(row["n"], beta)), row


@pytest.mark.parametrize(
    ("dataset", "classes", "most"), [("cifar10", 10, 5000), ("cifar20", 20, 2500), ("cifar100", 100, 500)]
)
def test_the_tails_are_those_of_the_paper(dataset, classes, most):
    rows = rows_of(figures.long_tailed_counts(dataset), "images")
    assert len(rows) == 5 * classes
    for row in rows:
        if row["rank"] == 1:
            assert row["images"] == most
        if row["rank"] == classes:
            assert row["images"] == int(most / float(row["name"]))
    with pytest.raises(ValueError, match="digits"):
        figures.long_tailed_counts("digits")


def test_effective_numbers_are_in_the_order_of_counts():
    rows = rows_of(figures.effective_numbers(COUNTS, [0.99]), "effective")
    for name, beta in (("0.99", 0.99), ("1 (images)", 1.0)):
        line = [row for row in rows if row["name"] == name]
        assert [row["rank"] for row in line] == list(range(1, 11))
        assert [row["images"] for row in line] == sorted(COUNTS, reverse=True)
        assert [row["effective"] for row in line] == pytest.approx(effective_number(sorted(COUNTS)[::-1], beta))
    with pytest.raises(ValueError, match="class 1"):
        figures.effective_numbers([5, 0])


def test_thousands_of_classes_become_hundreds_of_points():
    rows = rows_of(figures.effective_numbers(np.arange(8000, 0, -1), [0.9]), "effective")
    assert len(rows) <= 800
    assert {1, 8000} <= {row["rank"] for row in rows}


def test_weights_of_all_schemes():
    rows = rows_of(figures.scheme_weights([10, 100], beta=0.9), "weight")
    found = {(row["name"], row["images"]): row["weight"] for row in rows}
    assert len(found) == 8
    expected = class_weights([100, 10], beta=0.9)
    assert [found["β 0.9", 100], found["β 0.9", 10]] == pytest.approx(expected)
    assert found["1/n", 10] == pytest.approx(20 / 11)
    assert found["1/√n", 10] / found["1/√n", 100] == pytest.approx(10**0.5)
    assert found["uniform (plain loss)", 10] == 1


@pytest.mark.parametrize("counts", [[7], [100, 100, 100], [1, 1], [10**6, 1]])
def test_equal_counts_and_a_single_class_can_be_drawn(counts, tmp_path):
    for name, chart in (("a", figures.effective_numbers(counts)), ("b", figures.scheme_weights(counts))):
        (path,) = save(chart, tmp_path, name, ["svg"])
        text = path.read_text()
        assert "NaN" not in text
        places = [float(place) for place in re.findall(r"translate\([\d.-]+,([\d.-]+)\)", text)]
        assert min(places) > -200


def test_the_simulated_covering_lies_on_the_closed_form():
    rows = rows_of(figures.random_covering(20, draws=60, trials=4000), "simulated")
    drawn = [row["n"] for row in rows]
    assert [row["closed_form"] for row in rows] == pytest.approx(expected_volume(drawn, 20))
    assert [row["simulated"] for row in rows] == pytest.approx([row["closed_form"] for row in rows], abs=0.15)
    assert all(row["low"] <= row["simulated"] <= row["high"] for row in rows if row["n"] > 1)


def test_errors_over_beta_have_the_plain_loss_beside_them(frame):
    rows = rows_of(figures.error_over_beta(frame), "plain_error")
    found = {
        row["loss_name"]: (row["β"], row["error"], row["spread"], row["plain_error"], row["seeds"]) for row in rows
    }
    assert found == {"softmax": ("0.999", 27.0, 1.0, 31.0, 3), "focal, γ 0.5": ("0.999", 25.0, 1.0, 30.0, 3)}


def test_the_heatmap_marks_the_best_of_each_column(tmp_path):
    rng = np.random.default_rng(0)
    errors = {}
    for config in heatmap_runs("cifar10"):
        for seed in (0, 1):
            error = float(rng.uniform(20, 40))
            errors.setdefault((config.title, f"{config.data.subset.imbalance:g}"), []).append(error)
            write_run(tmp_path, replace(config, seed=seed), error=error)
    chart = figures.heatmap(load_results(tmp_path))
    rows = rows_of(chart, "best")
    assert {(row["method"], row["column"]): row["error"] for row in rows} == pytest.approx(
        {key: np.mean(values) for key, values in errors.items()}
    )
    for column in ("200", "100", "50", "20", "10"):
        cells = {row["method"]: row for row in rows if row["column"] == column}
        assert len(cells) == 25
        (best,) = (name for name, row in cells.items() if row["best"])
        assert best == min(cells, key=lambda name: cells[name]["error"])
        assert (cells[best]["share"], max(row["share"] for row in cells.values())) == (0, 1)
        assert cells[best]["text"] == f"{cells[best]['error']:.1f}"  # as tables round it
    encoding = chart.to_dict()["layer"][0]["encoding"]
    assert encoding["y"]["sort"] == [loss.title for loss in losses()]
    assert encoding["x"]["sort"] == ["200", "100", "50", "20", "10"]
    # One imbalance more would be a figure of its own: the errors over β are of one.
    with pytest.raises(ConfigError, match="the runs belong to 5 experiments: choose one, such as imbalance=10"):
        figures.error_over_beta(load_results(tmp_path))


def test_the_heatmap_cuts_no_name(tmp_path):
    weights = LossConfig(name="softmax", beta=0.9999, normalize="samples")
    for imbalance in (100, 50):
        for loss in (PLAIN, weights):
            write_run(tmp_path / "runs", run_of(loss, imbalance=imbalance), error=30.0)
    axis = figures.heatmap(load_results(tmp_path / "runs")).to_dict()["layer"][0]["encoding"]["y"]["axis"]
    assert len(weights.title) > 50
    # A character of the browser's sans-serif is about half as wide as the font is high.
    assert 0.52 * axis["labelFontSize"] * len(weights.title) < axis["labelLimit"]


def luminance(colour):
    """As the Web Content Accessibility Guidelines have it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_on_every_shade_of_the_heatmap_can_be_read(tmp_path):
    for place, loss in enumerate(losses()):
        write_run(tmp_path / "runs", run_of(loss), error=20.0 + place)
    (path,) = save(figures.heatmap(load_results(tmp_path / "runs")), tmp_path, "heatmap", ["svg"])
    text = path.read_text()
    cells = re.findall(r'aria-roledescription="rect mark"[^>]* fill="(rgb[^"]*)"', text)
    inks = re.findall(r'aria-roledescription="text mark"[^>]* fill="#(0|f)', text)
    assert len(cells) == len(inks) == 25
    for cell, ink in zip(cells, inks, strict=True):
        light, dark = sorted([luminance(cell), 1.0 if ink == "f" else 0.0], reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 4.5


def test_recalls_are_in_the_order_of_counts_with_names_whole(frame):
    chart = figures.recall_per_class(frame, STRANGE, COUNTS, PLAIN_FOCAL.title, FOCAL.title)
    rows = rows_of(chart, "recall", "label")
    order = np.argsort([-count for count in COUNTS], kind="stable")
    for name in (PLAIN_FOCAL.title, FOCAL.title):
        line = [row for row in rows if row["name"] == name]
        assert [row["class"] for row in line] == [STRANGE[place] for place in order]
        assert [row["images"] for row in line] == sorted(COUNTS, reverse=True)
        expected = np.mean(frame[frame["method"] == name]["recall"].tolist(), axis=0)[order] * 100
        assert [row["recall"] for row in line] == pytest.approx(expected)
    assert len({row["label"] for row in rows}) == 10  # though two classes have the same name
    with pytest.raises(ConfigError, match="recalls of 10 classes, but there are 2"):
        figures.recall_per_class(frame, ["a", "b"], [1, 2])
    with pytest.raises(ConfigError, match="3 names of classes but 2 counts"):
        figures.recall_per_class(frame, ["a", "b", "c"], [1, 2])


def test_neighbours_stand_together_where_there_are_many_classes(tmp_path):
    counts = np.arange(200, 0, -1)
    for loss, shift in ((PLAIN, 0.0), (BALANCED, 0.1)):
        recall = [None, *(counts[1:] / 250 + shift).tolist()]
        write_run(tmp_path, run_of(loss), error=30 - shift, recall=recall)
    rows = rows_of(figures.recall_per_class(load_results(tmp_path), [f"c{i}" for i in range(200)], counts), "most")
    plain = [row for row in rows if row["name"] == "softmax"]
    assert len(plain) == 40
    assert plain[0]["recall"] == pytest.approx(100 * counts[1:5].mean() / 250)  # the class that has none is left out
    assert plain[-1]["recall"] == pytest.approx(100 * counts[-5:].mean() / 250)
    assert (plain[-1]["most"], plain[-1]["fewest"]) == (5, 1)


def test_losses_are_told_apart_by_what_is_not_usual(tmp_path):
    own = [{"name": "ldam", "scale": 20.0}, {"name": "ldam"}, {"name": "softmax_focal", "gamma": 1.0}, {}]
    for values in own:
        write_run(tmp_path, run_of(LossConfig(**values)))
    names = list(one_experiment(load_results(tmp_path))["method"])
    assert names == ["softmax", "softmax focal, γ 1", "LDAM, scale 20", "LDAM"]


def test_groups_that_have_no_class_are_left_out(frame):
    rows = rows_of(figures.group_recalls(frame), "group")
    assert len(rows) == 16
    rarest = [row for row in rows if row["group"] == "rarest quarter of the classes"]
    assert len(rarest) == 4
    few = frame[frame["method"] == "softmax"]["few"] * 100
    (row,) = (row for row in rows if row["group"].startswith("few") and row["name"] == "softmax")
    assert (row["recall"], row["spread"]) == pytest.approx((few.mean(), few.std()))
    assert row["text"] == f"{100 * (few / 100).mean():.1f}"
    rows = rows_of(figures.group_recalls(frame.assign(medium=float("nan"))), "group")
    assert {row["group"].split(":")[0] for row in rows} == {"many", "few", "rarest quarter of the classes"}
    with pytest.raises(ConfigError, match="needs runs with recalls of groups"):
        figures.group_recalls(frame.assign(**dict.fromkeys(("many", "medium", "few", "rarest_quarter"), math.nan)))


def test_calibration_adds_up_the_images_of_all_seeds(frame):
    rows = rows_of(figures.calibration(frame, "focal, γ 0.5", "softmax"), "share")
    plain = [row for row in rows if row["name"].startswith("focal")]
    tables = np.nan_to_num(np.array(frame[frame["method"] == "focal, γ 0.5"]["calibration"].tolist(), dtype=float))
    images = tables[:, :, 0].sum(axis=0)
    assert [row["images"] for row in plain] == images.tolist()
    assert sum(row["share"] for row in plain) == pytest.approx(100)
    right = (tables[:, :, 0] * tables[:, :, 2]).sum(axis=0)
    there = [row["accuracy"] for row in plain if row["images"]]
    assert there == pytest.approx(100 * (right / np.maximum(images, 1))[images > 0])
    assert plain[0]["name"] == "focal, γ 0.5: 5.0%"  # the mean of the seeds, as in tables
    with pytest.raises(ConfigError, match="none of the runs has a calibration"):
        figures.calibration(frame.assign(calibration=None))


def test_training_curves_have_every_seed(runs, frame):
    epochs = figures.load_epochs(runs, frame)
    rows = rows_of(figures.training_curves(epochs), "epoch")
    assert len(rows) == 4 * 3 * 5
    assert {row["name"] for row in rows} == {
        "softmax", "class-balanced softmax, β 0.999", "focal, γ 0.5", "class-balanced focal, β 0.999, γ 0.5",
    }  # fmt: skip
    found = [row["error"] for row in rows if row["name"] == "softmax" and row["seed"] == 2]
    assert found == pytest.approx([32 + 40 / epoch for epoch in range(1, 6)])
    with pytest.raises(ConfigError, match="tested after two epochs or more"):
        figures.training_curves(epochs[epochs["epoch"] == 5])
    with pytest.raises(ConfigError, match="tested after their epochs"):
        figures.training_curves(epochs[:0])
    alone = runs / frame["run_id"][0]
    assert len(figures.load_epochs(alone, load_results(alone))) == 5


def test_of_many_methods_the_curves_are_of_the_baseline_and_the_best(tmp_path):
    for place, loss in enumerate(losses(gammas=(0.5,))):
        best = 0.1 * (loss.slug == "sigmoid_0.99")
        write_whole_run(tmp_path, run_of(loss), 40.0, balanced_accuracy=0.5 + best + place / 1000)
    epochs = figures.load_epochs(tmp_path, load_results(tmp_path))
    rows = rows_of(figures.training_curves(epochs), "epoch")
    assert {row["name"] for row in rows} == {"softmax", "class-balanced sigmoid, β 0.99"}
    rows = rows_of(figures.training_curves(epochs, candidate="sigmoid"), "epoch")
    assert {row["name"] for row in rows} == {"softmax", "sigmoid"}


def test_few_epochs_have_a_tick_each(tmp_path):
    write_whole_run(tmp_path, run_of(PLAIN), 30.0)
    chart = figures.training_curves(figures.load_epochs(tmp_path, load_results(tmp_path))).to_dict()
    assert chart["encoding"]["x"]["axis"]["values"] == [1, 2, 3, 4, 5]


def test_the_baseline_is_plain_and_the_candidate_the_best_whatever_its_loss(tmp_path):
    balanced, adjusted = LossConfig(name="logit_adjusted"), LossConfig(weighting="inverse")
    for loss, accuracy in ((PLAIN, 0.5), (FOCAL, 0.6), (balanced, 0.8), (adjusted, 0.7)):
        write_run(tmp_path, run_of(loss), balanced_accuracy=accuracy)
    runs = one_experiment(load_results(tmp_path))
    assert list(compared(runs)["method"]) == ["softmax", "balanced softmax"]
    assert list(compared(runs, candidate="softmax")["method"]) == ["balanced softmax", "softmax"]
    assert list(compared(runs, FOCAL.title, "softmax")["method"]) == [FOCAL.title, "softmax"]
    assert list(compared(runs[runs["method"] == FOCAL.title])["method"]) == [FOCAL.title]
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        compared(runs, "softmox")


def test_missing_values_are_no_reason_to_fail(tmp_path):
    for seed, metrics in enumerate(
        [{"recall": [None] * 10, "error": 25.0}, {"recall": [0.5] * 9 + [None], "many": None}]
    ):
        for loss in (PLAIN, BALANCED):
            write_whole_run(tmp_path, run_of(loss, seed), **({"error": 24.0} | metrics))
    write_run(tmp_path, run_of(FOCAL), done=False)
    frame = load_results(tmp_path)
    for figure in FIGURES.values():
        spec(figure.make(Inputs(runs=tmp_path, frame=frame)))
    rows = rows_of(figures.recall_per_class(frame, STRANGE, COUNTS), "recall", "label")
    assert len(rows) == 2 * 9
    assert all(np.isfinite(row["recall"]) for row in rows)


@pytest.mark.parametrize("losses_there", [[PLAIN], [FOCAL], [PLAIN, FOCAL]])
def test_errors_over_beta_need_a_loss_with_and_without(tmp_path, losses_there):
    for loss in losses_there:
        write_whole_run(tmp_path, run_of(loss), 25.0)
    with pytest.raises(ConfigError, match="needs a loss with complete runs both without class weights and with a β"):
        figures.error_over_beta(load_results(tmp_path))


def test_two_lists_of_betas_are_two_losses_and_not_two_seeds(tmp_path):
    write_whole_run(tmp_path, run_of(PLAIN), 30.0)
    one, other = (LossConfig(betas=(beta,) * 9 + (0.99,)) for beta in (0.5, 0.9))
    write_whole_run(tmp_path, run_of(one), 25.0)
    write_whole_run(tmp_path, run_of(one, seed=1), 25.0)
    rows = rows_of(figures.group_recalls(load_results(tmp_path)), "name", "seeds")
    assert {row["name"]: row["seeds"] for row in rows} == {"softmax": 1, one.title: 2}
    write_whole_run(tmp_path, run_of(other), 20.0)
    rows = rows_of(figures.group_recalls(load_results(tmp_path)), "name", "seeds")
    seeds = {"softmax": 1, f"{one.title}, betas (1 of 2)": 2, f"{one.title}, betas (2 of 2)": 1}
    assert {row["name"]: row["seeds"] for row in rows} == seeds


def test_runs_of_several_experiments_are_never_mixed(tmp_path):
    write_run(tmp_path, run_of(PLAIN))
    write_run(tmp_path, run_of(BALANCED, model="resnet8"))
    write_run(tmp_path, run_of(BALANCED, model="resnet8", imbalance=20.0))
    frame = load_results(tmp_path)
    write_run(tmp_path, run_of(PLAIN, model="resnet8"))
    frame = load_results(tmp_path)
    message = "the runs belong to 3 experiments: choose one, such as imbalance=50 model=resnet8$"
    with pytest.raises(ConfigError, match=message):
        figures.group_recalls(frame)
    figures.group_recalls(frame[(frame["model"] == "resnet8") & (frame["imbalance"] == 50)])


def test_no_two_lines_differ_by_colour_alone():
    names = ["softmax", "a", "b", "c"]
    scales = {name: scale.to_dict() for name, scale in palette(names, order=names).items()}
    for scale in scales.values():
        assert scale["domain"] == names
        assert len({str(value) for value in scale["range"]}) == 4
    assert scales["color"]["range"][0] == GREY
    assert palette(["b"], order=names)["color"].range == [scales["color"]["range"][2]]  # the same in every figure
    with pytest.raises(ConfigError, match="8 lines cannot be told apart: at most 7"):
        palette([str(place) for place in range(len(COLOURS) + 1)])


def test_long_names_leave_a_figure_narrow(tmp_path):
    for loss in (PLAIN_FOCAL, replace(FOCAL, normalize="samples"), replace(PLAIN_FOCAL, weighting="inverse_sqrt")):
        for imbalance in (200.0, 100.0, 50.0, 20.0, 10.0, None):
            write_whole_run(tmp_path, run_of(loss, imbalance=imbalance), 25.0, names=["an albatross of the north"] * 10)
    frame = load_results(tmp_path)
    part = frame[frame["imbalance"] == 50]
    made = [figures.heatmap(frame), figures.group_recalls(part), figures.calibration(part)]
    made += [figures.recall_per_class(part, ["an albatross of the north"] * 10, COUNTS)]
    made += [figures.training_curves(figures.load_epochs(tmp_path, part))]
    for place, chart in enumerate(made):
        (path,) = save(chart, tmp_path / "out", str(place), ["svg"])
        assert float(ElementTree.parse(path).getroot().get("width")) <= WIDEST
    rows = rows_of(made[0], "column")
    assert {row["method"] for row in rows} == set(frame["method"])
    assert {row["column"] for row in rows} == {"200", "100", "50", "20", "10", "as it is"}


def test_long_names_of_methods_are_whole(tmp_path):
    late = [replace(loss, defer_reweighting=0.8) for loss in (BALANCED, FOCAL)]
    for loss in (PLAIN, PLAIN_FOCAL, *late):
        write_whole_run(tmp_path, run_of(loss), 25.0)
    frame = load_results(tmp_path)
    for figure in (figures.group_recalls(frame), figures.training_curves(figures.load_epochs(tmp_path, frame))):
        (path,) = save(figure, tmp_path / "out", "long", ["svg"])
        drawing = ElementTree.parse(path).getroot()
        assert float(drawing.get("width")) <= WIDEST
        assert {loss.title for loss in late} <= {element.text for element in drawing.iter()}


def test_an_adjustment_has_no_training_curve_of_its_own(tmp_path):
    for loss in (PLAIN, BALANCED):
        folder = write_whole_run(tmp_path, run_of(loss), 25.0)
        adjusted = {"method": "tau_norm", "tau": 1.0, "final": result_of(run_of(loss), error=20.0)["final"]}
        RunFolder(folder).write_adjustment("tau_norm_1", adjusted)
    frame = load_results(tmp_path)
    assert len(frame) == 4
    assert len(figures.load_epochs(tmp_path, frame)) == 2 * 5
    rows = rows_of(figures.group_recalls(frame), "name")  # beside its run
    assert {row["name"] for row in rows} == {
        "softmax",
        "softmax, τ-norm τ 1",
        *(f"{BALANCED.title}{part}" for part in ("", ", τ-norm τ 1")),
    }


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_saved_in_every_format(name, runs, frame, tmp_path):
    chart = FIGURES[name].make(Inputs(runs=runs, frame=frame))
    files = save(chart, tmp_path / "new", name)
    assert [path.name for path in files] == [f"{name}.{ending}" for ending in ("svg", "pdf", "png", "html")]
    svg, pdf, png, html = (path.read_bytes() for path in files)
    drawing = ElementTree.fromstring(svg)
    # So wide a figure has text of 7 points or more in a column of 8.5 cm.
    assert 200 < float(drawing.get("width")) <= WIDEST
    sizes = {float(size) for size in re.findall(rb'font-size="([\d.]+)px"', svg)}
    assert min(sizes) >= 10
    assert pdf.startswith(b"%PDF")
    image = Image.open(io.BytesIO(png)).convert("RGB")
    assert len(image.getcolors(10**7)) > 20
    assert image.getpixel((0, 0)) == (255, 255, 255)
    page = html.decode()
    assert not re.search(r"<(script|link)[^>]*\b(src|href)=", page)
    assert page.count("</script>") == 2


def test_strange_names_of_classes_come_through_whole(runs, frame, tmp_path):
    chart = figures.recall_per_class(frame, STRANGE, COUNTS)
    svg, html = (path.read_text() for path in save(chart, tmp_path, "recalls", ["svg", "html"]))
    texts = [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")]
    assert "owl & cat, β (400)" in texts
    assert any(text and text.startswith("<script>alert(1)") for text in texts)
    content = re.search(r"^const spec = (.*);$", html, flags=re.MULTILINE)[1]
    assert "<" not in content
    names = {row["class"] for rows in tables_of(json.loads(content)) for row in rows}
    assert names == set(STRANGE)


def test_a_dark_page_gets_text_of_its_own_colour():
    content = spec(figures.class_balanced_term(), "currentColor", "transparent")
    assert content["config"]["axis"]["labelColor"] == "currentColor"
    assert content["config"]["background"] == "transparent"


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'gif'"):
        save(figures.class_balanced_term(), tmp_path, "term", ["gif"])
    assert not list(tmp_path.iterdir())
