"""The page as text: what it tells, that it is whole, and that no name in it becomes markup."""

import html
import json
import math
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import tyro
from tyro.conf import DisallowNone

from longtail.lab.cli.report import report_command
from longtail.lab.cli.results import results_command
from longtail.lab.config import ConfigError, LossConfig
from longtail.lab.experiments import load_results
from longtail.lab.recipes import retrained
from longtail.lab.report.compare import Method, Step, difference, find_methods, find_verdict, points
from longtail.lab.report.content import find_groups, overview, searches
from longtail.lab.report.page import make_page, write_page
from longtail.lab.report.tables import run_table, setting_table
from longtail.lab.training import RunFolder
from tests.lab.experiments.test_results import FOCAL, PLAIN, PLAIN_FOCAL, result_of, run_of, write_run
from tests.lab.report.pages import COUNTS, EVIL, NAMES, write_data, write_runs

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """The elements of a page, each with its attributes and the text in it."""

    def __init__(self, text):
        super().__init__()
        self.elements, self._open, self.unclosed = [], [], []
        self.feed(text)
        self.close()
        self.unclosed = [tag for tag, _, _ in self._open]

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open[-1][0] == tag, f"</{tag}> closes {self._open[-1][:2]}"
        self._open.pop()

    def handle_data(self, data):
        for _, _, text in self._open:
            text.append(data)

    def all(self, tag):
        return [(attributes, "".join(text)) for name, attributes, text in self.elements if name == tag]

    def json(self, key):
        return next(json.loads(text) for attributes, text in self.all("script") if attributes.get("id") == key)

    def rows(self, key):
        """Texts of the cells of a table."""
        table = next(place for place, (_, attributes, _) in enumerate(self.elements) if attributes.get("id") == key)
        found = []
        for tag, _, text in self.elements[table + 1 :]:
            if tag == "table":
                break
            if tag == "tr":
                found.append([])
            elif tag in ("th", "td") and found:
                found[-1].append(" ".join("".join(text).split()))
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("page") / "runs")


@pytest.fixture(scope="module")
def text(runs):
    return make_page(runs, "Tails & <heads>")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_is_one_small_file_that_names_no_other(text, page):
    assert len(text.encode()) < 1.5e6
    links = [value for _, attributes, _ in page.elements for key, value in attributes.items() if key in ("src", "href")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    (policy,) = [meta["content"] for meta, _ in page.all("meta") if meta.get("http-equiv")]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_elements_are_closed_ids_are_unique_and_labels_lead_somewhere(page):
    assert page.unclosed == []
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in page.elements:
        for key in ("for", "aria-labelledby", "aria-describedby"):
            assert set(attributes.get(key, "").split()) <= set(ids)
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids


def test_no_name_becomes_markup(text, page):
    assert EVIL not in text
    assert page.all("img") == page.all("b") == []
    assert page.all("title") == [({}, "Tails & <heads>")]
    assert page.json("experiments")[0]["classes"] == NAMES
    assert ["failed", run_of(seed=8).run_id, f"CUDA {EVIL} out of memory"] in page.rows("problem-runs")
    assert page.json("presets")[0]["names"] == NAMES
    assert len(page.all("script")) == 6


def test_charts_are_those_that_the_runs_allow(page):
    charts = page.json("charts")
    titles = [chart["title"]["text"] for chart in charts.values()]
    assert titles == [
        "Class-balanced term",
        "Training curves",
        "Calibration",
        "Recall by class size",
        "Test error over β",
        "Effective number of images",
    ]
    places = {attributes["data-chart"] for attributes, _ in page.all("div") if "data-chart" in attributes}
    assert places == set(charts)
    assert all(chart["config"]["background"] == "transparent" for chart in charts.values())


def test_a_row_of_a_setting_has_mean_spread_groups_difference_and_published_error(tmp_path):
    for seed, (plain, weighted) in enumerate([(25.0, 22.0), (26.0, 24.0), (27.0, 23.0)]):
        write_run(tmp_path, run_of(PLAIN_FOCAL, seed), error=plain, few=0.125)
        write_run(tmp_path, run_of(FOCAL, seed), error=weighted, few=0.5)
    page = Page(make_page(tmp_path))
    header, weighted, plain = page.rows("settings-1")  # the better one first
    # What all rows share is a caption, so that the table fits.
    assert "cifar10, imbalance 50, resnet32, 200 epochs" in [text for _, text in page.all("p")]
    assert header == ["loss", "n", "balanced accuracy %", "error %", "many %", "medium %", "few %",
                      "Δ balanced accuracy", "published (full protocol)"]  # fmt: skip
    assert plain == ["focal, γ 0.5", "3", "74.0 ± 1.0", "26.00 ± 1.00", "90.0", "60.0", "12.5", "baseline", "23.28"]
    assert weighted[1:] == ["3", "77.0 ± 1.0", "23.00 ± 1.00", "90.0", "60.0", "50.0", "+3.0 [+0.5, +5.5]", "–"]
    values = [attributes.get("data-value") for attributes, _ in page.all("td")]
    assert "23.28" in values
    assert len(page.rows("each-1")) == 7


def test_the_overview_tells_what_was_run(runs):
    told = dict(overview(load_results(runs)))
    assert told["runs"] == "15 complete, 1 damaged, 1 failed, 1 unfinished"
    assert told["methods"] == (
        "class-balanced focal, β 0.999, γ 0.5; class-balanced softmax, β 0.9; class-balanced softmax, β 0.999; "
        "focal, γ 0.5; softmax"
    )
    assert told["seeds"] == "0, 1, 2, 7, 8, 9"
    assert told["training time"] == "2 h 30 min"
    assert "torch 2.9" in told["versions"]


def test_an_adjustment_is_a_row_beside_its_run_and_no_run(tmp_path):
    folder = write_run(tmp_path, run_of(PLAIN), error=30.0)
    final = result_of(run_of(PLAIN), error=25.0)["final"]
    RunFolder(folder).write_adjustment("tau_norm_1", {"method": "tau_norm", "tau": 1.0, "final": final})
    frame = load_results(tmp_path)
    told = dict(overview(frame))
    assert (told["runs"], told["training time"]) == ("1 complete, 1 adjusted", "10 min 0 s")
    assert told["methods"] == "softmax; softmax, τ-norm τ 1"
    rows = Page(make_page(tmp_path)).rows("settings-1")
    assert [(row[0], row[3]) for row in rows[1:]] == [("softmax, τ-norm τ 1", "25.00"), ("softmax", "30.00")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "adjustments/tau_norm_1.json is damaged: "),
        ('{"method": "tau_norm", "tau": 1.0, "final": {}}', "adjustments/tau_norm_1.json is damaged: it lacks 'error'"),
        ('{"method": "tau_norm", "tau": "x", "final": {"error": 1}}', "adjustments/tau_norm_1.json is damaged: "),
    ],
)
def test_a_damaged_adjustment_is_listed_and_its_run_still_counts(tmp_path, content, problem):
    folder = write_run(tmp_path, run_of(PLAIN), error=30.0)
    (folder / "adjustments").mkdir()
    (folder / "adjustments" / "tau_norm_1.json").write_text(content)
    page = Page(make_page(tmp_path))
    assert [(row[0], row[3]) for row in page.rows("settings-1")[1:]] == [("softmax", "30.00")]
    ((status, run_id, told),) = page.rows("problem-runs")[1:]
    assert (status, run_id) == ("damaged", folder.name)
    assert told.startswith(problem)


def test_columns_are_added_where_settings_could_not_be_told_apart(tmp_path):
    config = run_of(FOCAL)
    write_run(tmp_path, config)
    write_run(tmp_path, replace(config, optimizer=replace(config.optimizer, batch_size=64)))
    write_run(tmp_path, run_of(replace(FOCAL, normalize="samples")))
    names = [column.name for column in setting_table(load_results(tmp_path)).columns]
    assert "batch size" in names
    assert "normalize" not in names  # which the name of the method tells


def test_problems_are_the_worst_first(page):
    assert [row[0] for row in page.rows("problem-runs")] == ["status", "failed", "damaged", "unfinished"]


def methods_of(folder):
    (group,) = find_groups(load_results(folder), folder)
    return group, find_methods(group, folder)


def write_compared(folder, seeds=2):
    """Two methods of three classes with a confusion matrix; the second one finds more of the rare class b."""
    found = []
    for seed in range(seeds):
        for loss, right in ((PLAIN, 2), (LossConfig(name="logit_adjusted"), 6 + seed)):
            confusion = [[0, 0, 95], [0, 1, 5], [1, 0, 8 - right], [1, 1, right], [2, 2, 50]]
            recall = [0.95, right / 8, 1.0]
            values = {"recall": recall, "balanced_accuracy": sum(recall) / 3, "confusion": confusion}
            path = write_run(folder, run_of(loss, seed), **values, mistakes=[[3, 1, 0, 0.9]])
            write_data(path, "abc", [500, 20, 20])
            (path / "model.safetensors").touch()
            found.append(path)
    return found


def test_methods_are_means_over_seeds_with_their_confusions(tmp_path):
    write_compared(tmp_path)
    _, (plain, balanced) = methods_of(tmp_path)
    assert (plain.name, balanced.name) == ("softmax", "balanced softmax")
    assert (plain.recall, balanced.recall) == ([0.95, 0.25, 1.0], [0.95, 0.8125, 1.0])
    assert balanced.tested == [100, 8, 50]
    assert balanced.predicted == [96.5, 11.5, 50]
    assert balanced.confused == [(0, 1, 5.0), (1, 0, 1.5)]


def test_the_verdict_names_the_best_and_how_sure_it_is(tmp_path):
    write_compared(tmp_path, seeds=3)
    group, methods = methods_of(tmp_path)
    verdict = find_verdict(group, methods, tmp_path)
    assert verdict.summary[0].startswith("balanced softmax has the highest balanced accuracy: 94.2% (95% interval ")
    assert "Against the baseline (softmax, 73.3%): +20.8 points" in verdict.summary[1]
    assert verdict.summary[1].endswith("a clear difference.")
    assert verdict.gains == ["b (20 training images): 25.0% → 87.5%"]
    assert verdict.losses == []
    assert verdict.warnings == ["1 class has fewer than 10 test images, such as b (8): see their intervals."]
    assert [steps[0].action for _, steps in verdict.next_steps] == ["adjust", "tune"]


def test_the_page_opens_on_the_experiment_with_the_most_methods(tmp_path):
    write_compared(tmp_path)
    write_data(write_run(tmp_path, run_of(imbalance=10.0)))
    found = re.findall(r'<option value="(\d)"( selected)?>([^<]*)</option>', make_page(tmp_path))
    names = [f"cifar10, imbalance {imbalance}, resnet32, 200 epochs" for imbalance in (10, 50)]
    assert found == [("0", "", names[0]), ("1", " selected", names[1])]


def test_a_single_method_is_the_highest_of_nothing(tmp_path):
    write_compared(tmp_path, seeds=1)
    group, methods = methods_of(tmp_path)
    verdict = find_verdict(group, methods[:1], tmp_path)
    assert verdict.summary[0].startswith("softmax has a balanced accuracy of 73.3% (95% interval ")
    assert verdict.warnings[0] == "There is one method only: nothing to compare it with."
    assert not any("seed" in warning for warning in verdict.warnings)


def test_one_seed_is_thin_evidence_and_more_seeds_are_the_next_step(tmp_path):
    _, path = write_compared(tmp_path, seeds=1)
    group, methods = methods_of(tmp_path)
    verdict = find_verdict(group, methods, tmp_path)
    assert verdict.warnings[0] == "All methods have one seed only: another seed can change their order."
    assert verdict.next_steps[0][1][0] == Step("train", path, {"seed": 1}, tmp_path)
    assert len(verdict.next_steps[0][1]) == 4


def test_the_wider_interval_counts():
    plain, other = Method("a", [], {0: 0.8, 1: 0.82}), Method("b", [], {0: 0.9, 1: 0.94})
    over_seeds = difference(plain, other)
    assert over_seeds.by == "2 seeds"
    assert over_seeds.radius == pytest.approx(12.706 * 0.01414 / 2**0.5, rel=1e-3)  # t of one degree of freedom
    assert not over_seeds.is_clear
    known = {"recall": [0.8, 0.8], "tested": [4, 4], "predicted": [4, 4]}
    sure = [Method(name, [], {0: value, 1: value}, **known) for name, value in (("a", 0.8), ("b", 0.9))]
    assert difference(*sure).by == "number of test images"
    assert not difference(*sure).is_clear
    assert difference(Method("a", [], {0: 0.8}), Method("b", [], {0: 0.9})).radius is None


def test_candidates_of_a_search_are_listed(tmp_path):
    folder = tmp_path / "tune" / "digits"
    folder.mkdir(parents=True)
    row = {"title": "focal", "state": "pruned", "scores": [0.5, 0.6], "balanced_accuracy": 0.55, "spread": 0.07}
    (folder / "result.json").write_text(json.dumps({"candidates": [row]}))
    (tmp_path / "tune" / "damaged").mkdir()
    (tmp_path / "tune" / "damaged" / "result.json").write_text("{")
    ((name, table),) = searches(tmp_path)
    assert name == "digits"
    assert [cell.text for cell in table.rows[0]] == ["focal", "2", "55.0", "pruned"]


def test_of_thousands_of_classes_the_page_stays_small(tmp_path):
    recall = [place / 5000 for place in range(5000)]
    path = write_run(tmp_path, run_of(PLAIN), recall=recall)
    write_data(path, [f"class {place}" for place in range(5000)], range(5000, 0, -1))
    write_run(tmp_path, run_of(LossConfig(beta=0.999)), recall=recall)
    assert len(make_page(tmp_path).encode()) < 3e6


@pytest.mark.parametrize("damage", ["none", "other lengths", "no numbers", "other classes", "negative", "zero"])
def test_runs_whose_classes_are_not_known_have_no_table_of_them(tmp_path, damage):
    path = write_run(tmp_path, run_of(PLAIN))
    if damage == "other lengths":
        write_data(path, "abc", [1, 2])
    elif damage == "no numbers":
        write_data(path, "abc", ["x", None, 3])
    elif damage in ("negative", "zero"):
        write_data(path, NAMES, [-1 if damage == "negative" else 0] * 10)
    elif damage == "other classes":
        write_data(path, "abc", [3, 2, 1])
    assert Page(make_page(tmp_path)).json("experiments")[0]["methods"][0]["recall"] == []


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("metrics.jsonl", "{", "metrics.jsonl is damaged in line 1: "),
        ("metrics.jsonl", '{"epoch": 1, "error": "x"}', "metrics.jsonl is damaged in line 1: 'x' is not a number"),
        ("result.json", '"seconds": "x"', "result.json is damaged: 'x' is not a number"),
    ],
)
def test_a_run_with_a_damaged_file_is_listed_and_the_page_goes_on(tmp_path, capsys, file, text, problem):
    write_runs(tmp_path)
    path = tmp_path / run_of(PLAIN).run_id / file
    path.write_text(re.sub(r'"seconds": [\d.]+', text, path.read_text()) if file == "result.json" else text)
    page = Page(make_page(tmp_path))
    (row,) = [row for row in page.rows("problem-runs") if row[1] == run_of(PLAIN).run_id]
    assert row[0] == "damaged"
    assert row[2].startswith(problem)
    assert "Calibration" in [chart["title"]["text"] for chart in page.json("charts").values()]
    results_command(tmp_path)
    printed, error = capsys.readouterr()
    assert f"damaged: {run_of(PLAIN).run_id}: {problem}" in error
    assert "focal" in printed


def test_runs_that_differ_by_more_than_the_method_are_groups_of_their_own(tmp_path):
    base = run_of(PLAIN)
    for config in (
        base,
        run_of(FOCAL),
        run_of(PLAIN, imbalance=10.0),
        run_of(PLAIN, data="digits", imbalance=None),
        replace(base, optimizer=replace(base.optimizer, lr=0.2)),
        replace(base, data=replace(base.data, sampling="class_balanced")),
    ):
        write_run(tmp_path, config)
    groups = find_groups(load_results(tmp_path), tmp_path)
    assert [(group.name, list(group.frame["method"])) for group in groups] == [
        ("cifar10, imbalance 10, resnet32, 200 epochs", ["softmax"]),
        (
            "cifar10, imbalance 50, resnet32, 200 epochs",
            [
                "softmax, lr 0.1",
                "softmax, lr 0.2",
                "softmax, class-balanced sampling",
                "class-balanced focal, β 0.999, γ 0.5",
            ],
        ),
        ("digits, resnet32, 200 epochs", ["softmax"]),
    ]


def test_a_retrained_classifier_stands_beside_its_run(tmp_path):
    parent = run_of(PLAIN)
    folder = write_run(tmp_path, parent)
    child = retrained(parent, weights=folder.name)
    write_run(tmp_path, replace(child, model=replace(child.model, weights_sha256="0" * 64)))
    (group,) = find_groups(load_results(tmp_path), tmp_path)
    assert list(group.frame["method"]) == ["softmax", "softmax, cRT"]
    assert group.name == "cifar10, imbalance 50, resnet32, 200 epochs"


def test_a_run_whose_error_is_no_number_does_not_count(tmp_path):
    path = write_run(tmp_path, run_of(PLAIN), error=math.nan)
    write_data(path)
    page = Page(make_page(tmp_path))
    assert page.rows("problem-runs")[1:] == [["damaged", path.name, "result.json is damaged: nan is not a number"]]
    assert len(page.json("charts")) == 1


def test_a_loss_with_a_learning_rate_of_its_own_is_compared(tmp_path):
    write_run(tmp_path, run_of(PLAIN))
    config = run_of(FOCAL)
    write_run(tmp_path, replace(config, optimizer=replace(config.optimizer, lr=0.2)))
    assert len(find_groups(load_results(tmp_path), tmp_path)) == 1


def test_a_page_of_no_complete_run_says_so(tmp_path):
    write_run(tmp_path, run_of(), done=False)
    page = Page(make_page(tmp_path))
    assert any("No run is complete yet." in text for _, text in page.all("p"))
    assert page.rows("problem-runs")[1][0] == "unfinished"
    assert page.json("presets")[0]["name"] == "cifar10, imbalance 100"


def test_a_page_of_damaged_runs_alone(tmp_path):
    (write_run(tmp_path, run_of()) / "config.json").write_text("{")
    assert len(Page(make_page(tmp_path)).rows("problem-runs")) == 2


def test_a_run_folder_is_a_page(runs):
    folder = runs / run_of(PLAIN).run_id
    page = Page(make_page(folder))
    assert page.all("h1") == [({}, f"Results in {folder.name}")]
    assert page.json("experiments")[0]["classes"] == NAMES


def test_a_sweep_of_hundreds_of_runs_stays_below_three_megabytes(tmp_path):
    losses = [PLAIN_FOCAL, *(replace(FOCAL, beta=beta) for beta in (0.9, 0.99, 0.999, 0.9999))]
    lines = "".join(json.dumps({"epoch": epoch, "error": 100 / epoch}) + "\n" for epoch in range(1, 201))
    for imbalance in (10.0, 20.0, 50.0, 100.0, 200.0):
        for place, loss in enumerate(losses):
            for seed in range(5):
                config = run_of(loss, seed, "cifar100", imbalance)
                recall = [min(1.0, place / 100 + 0.1) for place in range(100)]
                path = write_run(tmp_path, config, error=60.0 + seed - place, recall=recall)
                write_data(path, [f"class {label}" for label in range(100)], range(500, 400, -1))
                (path / "metrics.jsonl").write_text(lines)
    page = write_page(tmp_path, tmp_path / "report.html")
    assert page.stat().st_size < 3e6
    titles = [chart["title"]["text"] for chart in Page(page.read_text()).json("charts").values()]
    assert titles[0] == "Class-balanced term"
    assert "Test errors of all methods" in titles
    assert titles.count("Training curves") == 5


def test_a_name_that_is_no_text_does_not_stop_the_page(tmp_path):
    runs = tmp_path / "runs"
    write_run(runs, run_of(PLAIN))
    write_run(runs, run_of(PLAIN, seed=1), name=os.fsdecode(b"caf\xe9"), done=False)
    path = write_page(runs, tmp_path / "new" / "report.html")
    assert "caf?" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "message"), [("a.pdf", "ends in .pdf"), ("a", "has no ending")])
def test_another_ending_is_refused_before_anything_is_read(tmp_path, name, message):
    with pytest.raises(ConfigError, match=f"{name} {message}: a report is written as .html"):
        write_page(tmp_path / "nowhere", tmp_path / name)


def test_the_command_writes_the_page_and_says_where(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tyro.cli(report_command, args=[str(runs), "-o", "my.html", "--title", "Ours"], config=(DisallowNone,))
    printed = capsys.readouterr()
    assert printed.out.startswith("my.html: 1.")
    assert printed.err == ""
    assert Page((tmp_path / "my.html").read_text()).all("h1") == [({}, "Ours")]
    with pytest.raises(ConfigError, match="nowhere/ holds no runs: it does not exist"):
        tyro.cli(report_command, args=["nowhere"], config=(DisallowNone,))


def test_counts_of_the_data_are_what_the_explorer_begins_with(page):
    presets = page.json("presets")
    assert presets[0] == {"name": "cifar10, imbalance 50", "names": NAMES, "counts": COUNTS}
    assert [preset["name"] for preset in presets[1:]] == ["cifar10, imbalance 100", "cifar100, imbalance 100"]


def test_when_an_adjusted_head_is_best_its_other_seeds_are_the_next_step(tmp_path):
    write_compared(tmp_path, seeds=3)
    group, (plain, balanced) = methods_of(tmp_path)
    run = RunFolder(tmp_path / plain.runs[0])
    final = {"error": 0.0, "recall": [1.0, 1.0, 1.0], "balanced_accuracy": 1.0}
    run.write_adjustment("tau_norm_0.5", {"method": "tau_norm", "tau": 0.5, "final": final})
    best = Method("softmax, τ-norm τ 0.5", plain.runs[:1], {0: 1.0}, adjustment="tau_norm_0.5")
    verdict = find_verdict(group, [plain, balanced, best], tmp_path)
    steps = [Step("adjust", tmp_path / other, {"method": "tau_norm", "tau": 0.5}) for other in plain.runs[1:]]
    assert verdict.next_steps[0] == ("Adjust the other seeds, too:", steps)
    done = replace(best, runs=plain.runs)
    (tmp_path / "tune").mkdir()
    assert find_verdict(group, [plain, balanced, done], tmp_path).next_steps == [
        ("Look at each class of the best run:", [Step("evaluate", run.path, {"adjustment": "tau_norm_0.5"})])
    ]


def test_mistakes_are_those_of_the_first_seed_that_has_any(tmp_path):
    write_compared(tmp_path, seeds=2)
    _, (plain, _) = methods_of(tmp_path)
    assert plain.mistaken == plain.runs[0]
    first = tmp_path / plain.runs[0] / "result.json"
    content = json.loads(first.read_text())
    content["final"]["mistakes"] = []
    first.write_text(json.dumps(content))
    _, (plain, _) = methods_of(tmp_path)
    assert (plain.mistaken, plain.mistakes) == (plain.runs[1], [[3, 1, 0, 0.9]])


def test_methods_without_a_confusion_matrix_know_the_test_images_from_the_others(tmp_path):
    path, _ = write_compared(tmp_path, seeds=1)
    content = json.loads((path / "result.json").read_text())
    del content["final"]["confusion"]
    (path / "result.json").write_text(json.dumps(content))
    group, (plain, balanced) = methods_of(tmp_path)
    assert (plain.tested, plain.predicted) == (balanced.tested, [])
    assert "95% interval" in find_verdict(group, [plain, balanced], tmp_path).summary[1]


def test_without_intervals_only_more_seeds_will_tell(tmp_path):
    write_runs(tmp_path, seeds=1)
    group, methods = methods_of(tmp_path)
    assert find_verdict(group, methods, tmp_path).summary[1].endswith("(one seed, no interval): more seeds will tell.")


def test_records_without_weights_are_not_to_be_adjusted(tmp_path):
    for path in write_compared(tmp_path, seeds=3):
        (path / "model.safetensors").unlink()
    group, methods = methods_of(tmp_path)
    steps = find_verdict(group, methods, tmp_path).next_steps
    assert [actions[0].action for _, actions in steps] == ["tune"]


@pytest.mark.parametrize(
    ("loss", "changes"),
    [
        (PLAIN, {"loss.name": "logit_adjusted"}),
        (LossConfig(name="logit_adjusted"), {"loss.name": "softmax"}),
        (FOCAL, {"loss.name": "logit_adjusted", "loss.weighting": "uniform", "loss.beta": None}),
    ],
)
def test_one_method_is_to_be_compared_with_one_that_corrects_for_the_prior_once(tmp_path, loss, changes):
    path = write_run(tmp_path, run_of(loss))
    write_data(path)
    group, methods = methods_of(tmp_path)
    steps = find_verdict(group, methods, tmp_path).next_steps
    assert steps[0] == ("Compare it with another loss:", [Step("train", path, changes, tmp_path)])


def test_the_page_shows_what_to_do_next_as_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, _ = write_compared(tmp_path / "runs", seeds=1)
    tyro.cli(report_command, args=["runs"], config=(DisallowNone,))
    shown = html.unescape((tmp_path / "report.html").read_text())
    assert f"longtail train --config runs/{path.name} --seed 1 --runs runs\n" in shown


def test_more_seeds_are_no_advice_where_test_images_are_too_few(tmp_path):
    write_compared(tmp_path, seeds=2)
    group, (plain, balanced) = methods_of(tmp_path)
    close = replace(balanced, accuracy={seed: value + 0.01 for seed, value in plain.accuracy.items()})
    verdict = find_verdict(group, [plain, close], tmp_path)
    assert verdict.summary[1].endswith("from the number of test images): too close to call.")
    assert verdict.warnings[-1] == "More seeds would not narrow the interval, only more test images would."
    assert [steps[0].action for _, steps in verdict.next_steps] == ["adjust", "tune"]


def test_a_difference_of_nothing_has_no_sign():
    assert [points(value) for value in (-0.0004, 0.0004, -0.0006, 0.001)] == ["0.0", "0.0", "−0.1", "+0.1"]


def test_the_table_of_runs_leaves_out_what_all_or_none_have(page, runs):
    header = page.rows("each-1")[0]
    assert "status" not in header  # all are complete
    assert "macro-F1 %" not in header  # no record has it
    assert {"run", "loss", "seed", "error %"} <= set(header)
    assert "status" in [column.name for column in run_table(load_results(runs)).columns]


def test_the_explorer_knows_the_classes_of_cifar10(page):
    preset = next(each for each in page.json("presets") if each["name"] == "cifar10, imbalance 100")
    assert preset["names"][:2] == ["airplane", "automobile"]
    assert len(preset["names"]) == len(preset["counts"]) == 10
