"""The page as text: what it tells, that it is whole, and that no name in it becomes markup."""

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
from longtail.lab.report.content import Classes, Group, class_table, find_groups, overview
from longtail.lab.report.page import make_page, write_page
from longtail.lab.report.tables import setting_table
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
    names = [row[0] for row in page.rows("classes-1")[1:]]
    assert sorted(names) == sorted(NAMES)
    assert ["failed", run_of(seed=8).run_id, f"CUDA {EVIL} out of memory"] in page.rows("problem-runs")
    assert page.json("presets")[0]["names"] == NAMES
    assert len(page.all("script")) == 6


def test_charts_are_those_that_the_runs_allow(page):
    charts = page.json("charts")
    titles = [chart["title"]["text"] for chart in charts.values()]
    assert titles == [
        "Class-balanced term",
        "Test error over β",
        "Recall of many, medium and few",
        "Recall of each class",
        "Training curves",
        "Calibration",
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
    header, plain, weighted = page.rows("settings")
    assert header == ["loss", "data", "imbalance", "network", "epochs", "n", "error %", "many %", "medium %", "few %",
                      "Δ error", "published (full protocol)"]  # fmt: skip
    assert plain == ["focal, γ 0.5", "cifar10", "50", "resnet32", "200", "3", "26.00 ± 1.00", "90.0", "60.0", "12.5",
                     "", "23.28"]  # fmt: skip
    assert weighted[5:] == ["3", "23.00 ± 1.00", "90.0", "60.0", "50.0", "-3.00 [-5.48, -0.52]", "–"]
    values = [attributes.get("data-value") for attributes, _ in page.all("td")]
    assert "23.28" in values
    assert len(page.rows("each")) == 7


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
    rows = Page(make_page(tmp_path)).rows("settings")
    assert [(row[0], row[6]) for row in rows[1:]] == [("softmax", "30.00"), ("softmax, τ-norm τ 1", "25.00")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "adjustments/tau_norm_1.json is damaged: "),
        ('{"method": "tau_norm", "tau": 1.0, "final": {}}', "adjustments/tau_norm_1.json is damaged: it has no error"),
        ('{"method": "tau_norm", "tau": "x", "final": {"error": 1}}', "adjustments/tau_norm_1.json is damaged: "),
    ],
)
def test_a_damaged_adjustment_is_listed_and_its_run_still_counts(tmp_path, content, problem):
    folder = write_run(tmp_path, run_of(PLAIN), error=30.0)
    (folder / "adjustments").mkdir()
    (folder / "adjustments" / "tau_norm_1.json").write_text(content)
    page = Page(make_page(tmp_path))
    assert [(row[0], row[6]) for row in page.rows("settings")[1:]] == [("softmax", "30.00")]
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


def test_classes_are_the_worst_first_and_means_over_seeds(tmp_path):
    recalls = [([1.0, 0.0, None], [0.9, 0.4, None]), ([1.0, 0.2, 0.5], [0.7, 0.6, 0.5])]
    for seed, (plain, weighted) in enumerate(recalls):
        write_data(write_run(tmp_path, run_of(PLAIN, seed), error=30.0, recall=plain), "abc", [500, 20, 20])
        write_run(tmp_path, run_of(LossConfig(beta=0.9), seed), error=25.0, recall=weighted)
        write_run(tmp_path, run_of(LossConfig(beta=0.99), seed), error=28.0, recall=[0.0] * 3)
    (group,) = find_groups(load_results(tmp_path), tmp_path)
    table = class_table(group)
    assert [column.name for column in table.columns] == [
        "class", "training images", "softmax %", "class-balanced softmax, β 0.9 %", "difference",
    ]  # fmt: skip
    assert [[cell.text for cell in line.cells] for line in table.lines] == [
        ["b", "20", "10.0", "50.0", "+40.0"],
        ["a", "500", "100.0", "80.0", "-20.0"],
        ["c", "20", "–", "–", "–"],
    ]


def test_without_a_pair_the_best_loss_is_alone(tmp_path):
    write_data(write_run(tmp_path, run_of(FOCAL), error=30.0, recall=[0.5] * 10))
    write_run(tmp_path, run_of(PLAIN), error=28.0, recall=[0.25] * 10)
    (group,) = find_groups(load_results(tmp_path), tmp_path)
    table = class_table(group)
    assert [column.name for column in table.columns] == ["class", "training images", "softmax %"]
    assert "Class-balanced term" in make_page(tmp_path)


def test_of_thousands_of_classes_the_worst_are_listed(tmp_path):
    recall = [place / 5000 for place in range(5000)]
    path = write_run(tmp_path, run_of(PLAIN), recall=recall)
    write_data(path, [f"class {place}" for place in range(5000)], range(5000, 0, -1))
    write_run(tmp_path, run_of(LossConfig(beta=0.999)), recall=recall)
    text = make_page(tmp_path)
    rows = Page(text).rows("classes-1")
    assert [row[0] for row in rows[1:3]] == ["class 0", "class 1"]
    assert len(rows) == 201
    assert "4,800 more rows are left out" in text
    assert len(text.encode()) < 3e6


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
    assert 'id="classes"' not in make_page(tmp_path)
    assert class_table(Group("", load_results(tmp_path), Classes(["a"], [1]))) is None


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("metrics.jsonl", "{", "metrics.jsonl is damaged in line 1: "),
        ("metrics.jsonl", '{"epoch": 1, "error": "x"}', "metrics.jsonl is damaged in line 1: 'x' is no number"),
        ("result.json", '"seconds": "x"', "result.json is damaged: 'x' is no number"),
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


def test_runs_that_differ_by_more_than_the_loss_are_groups_of_their_own(tmp_path):
    base = run_of(PLAIN)
    for config in (
        base,
        run_of(FOCAL),
        run_of(PLAIN, imbalance=10.0),
        run_of(PLAIN, data="digits", imbalance=None),
        replace(base, optimizer=replace(base.optimizer, lr=0.2)),
    ):
        write_run(tmp_path, config)
    groups = find_groups(load_results(tmp_path), tmp_path)
    assert [(group.name, len(group.frame)) for group in groups] == [
        ("cifar10, imbalance 10, resnet32, 200 epochs, lr 0.1", 1),
        ("cifar10, imbalance 50, resnet32, 200 epochs, lr 0.1", 2),
        ("cifar10, imbalance 50, resnet32, 200 epochs, lr 0.2", 1),
        ("digits, resnet32, 200 epochs, lr 0.1", 1),
    ]


def test_a_run_whose_error_is_no_number_does_not_count(tmp_path):
    path = write_run(tmp_path, run_of(PLAIN), error=math.nan)
    write_data(path)
    page = Page(make_page(tmp_path))
    assert page.rows("problem-runs")[1:] == [["damaged", path.name, "result.json is damaged: nan is no number"]]
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
    assert len(page.rows("classes-1")) == 11


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
    assert titles[:2] == ["Class-balanced term", "Test errors of all losses"]
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
