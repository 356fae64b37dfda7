"""``longtail figures``, as a user types it."""

import ast
import json
from pathlib import Path

import pytest
import tyro
from tyro.conf import DisallowNone

from longtail.lab.cli import figures
from longtail.lab.cli.figures import figures_command
from longtail.lab.config import ConfigError, with_fields
from longtail.lab.report import FIGURES
from tests.lab.experiments.test_results import FOCAL, PLAIN, PLAIN_FOCAL, run_of, write_run
from tests.lab.report.test_figures import write_whole_run

SVG = ("--formats", "svg")


def run(capsys, *arguments):
    """What the command prints to standard output and error."""
    tyro.cli(figures_command, args=[str(argument) for argument in arguments], config=(DisallowNone,))
    return capsys.readouterr()


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for loss, error in ((PLAIN_FOCAL, 29.0), (FOCAL, 24.0)):
        for imbalance in (50.0, 10.0):
            write_whole_run(folder, run_of(loss, imbalance=imbalance), error)
    return folder


def test_the_figures_are_listed_with_what_they_need(capsys):
    printed = run(capsys, "--list").out
    lines = {line.split()[0]: line for line in printed.splitlines()[1:]}
    assert set(lines) == set(FIGURES)
    assert "--runs" in lines["heatmap"].split()
    assert "figure 3" in lines["class_balanced_term"]
    listed = json.loads(run(capsys, "--list", "--json").out)
    assert listed["calibration"]["needs_runs"]


def test_a_figure_is_written_in_the_formats_that_were_asked_for(capsys, tmp_path):
    printed = run(capsys, "effective_numbers", "-o", tmp_path, "--counts", "50,5,1", "--beta", "0.5", *SVG, "pdf").out
    assert printed.splitlines() == [str(tmp_path / "effective_numbers.svg"), str(tmp_path / "effective_numbers.pdf")]
    svg = (tmp_path / "effective_numbers.svg").read_text()
    assert "3 classes of 50 to 1 images" in svg
    assert ">0.5<" in svg
    run(capsys, "scheme_weights", "-o", tmp_path, "--dataset", "cifar20", *SVG)
    assert "20 classes of 2,500 to 50 images" in (tmp_path / "scheme_weights.svg").read_text()
    run(capsys, "long_tailed_counts", "-o", tmp_path, *SVG)
    assert "cifar100, 500 images per class" in (tmp_path / "long_tailed_counts.svg").read_text()


def test_all_makes_what_can_be_made_and_says_what_was_left_out(capsys, tmp_path):
    printed, error = run(capsys, "all", "-o", tmp_path, *SVG)
    without = {name for name, figure in FIGURES.items() if not figure.needs_runs}
    assert {path.stem for path in tmp_path.iterdir()} == without
    assert len(printed.splitlines()) == len(without)
    assert "left out: heatmap: --runs is missing" in error.splitlines()
    assert len(error.splitlines()) == len(FIGURES) - len(without)


def test_all_with_runs(capsys, runs, tmp_path):
    found = json.loads(run(capsys, "all", "-o", tmp_path / "out", "--runs", runs, *SVG, "--json").out)
    assert len(found["written"]) == len(FIGURES)
    assert found["left_out"] == {}
    assert "imbalance 50" in (tmp_path / "out" / "error_over_beta.svg").read_text()
    run(capsys, "error_over_beta", "-o", tmp_path, "--runs", runs, "--only", "imbalance=10", *SVG)
    assert "imbalance 10" in (tmp_path / "error_over_beta.svg").read_text()


def test_a_baseline_and_a_candidate_are_chosen(capsys, runs, tmp_path):
    write_whole_run(runs, run_of(PLAIN), 30.0)
    pair = ("--baseline", "softmax", "--candidate", "focal, γ 0.5")
    run(capsys, "recall_per_class", "-o", tmp_path, "--runs", runs, *pair, *SVG)
    text = (tmp_path / "recall_per_class.svg").read_text()
    assert ">softmax<" in text
    assert ">focal, γ 0.5<" in text
    assert "class-balanced" not in text


def test_only_takes_one_of_several_values(capsys, runs, tmp_path):
    run(capsys, "heatmap", "-o", tmp_path, "--runs", runs, "--only", "imbalance=10,50", "loss=focal", *SVG)
    both = (tmp_path / "heatmap.svg").read_text()
    run(capsys, "heatmap", "-o", tmp_path, "--runs", runs, "--only", "imbalance=10", "method=focal, γ 0.5", *SVG)
    assert ">50<" in both
    assert ">50<" not in (tmp_path / "heatmap.svg").read_text()


def test_the_counts_of_runs_are_taken_where_no_others_are_given(capsys, runs, tmp_path):
    run(capsys, "effective_numbers", "-o", tmp_path, "--runs", runs, *SVG)
    assert "10 classes of 1,000 to 2 images" in (tmp_path / "effective_numbers.svg").read_text()


def test_runs_of_cross_validation_are_left_out(capsys, runs, tmp_path):
    write_run(runs, with_fields(run_of(FOCAL, imbalance=50.0), {"folds": 2, "fold": 0}))
    assert "left out" not in run(capsys, "error_over_beta", "-o", tmp_path, "--runs", runs, *SVG).err


def test_bad_input_is_one_line_and_writes_nothing(capsys, runs, tmp_path):
    plain = tmp_path / "plain"
    write_run(plain, run_of(PLAIN))
    for words, message in (
        ([], "name a figure: random_covering, "),
        (["heatmop"], "'heatmap'"),
        (["heatmap"], "heatmap: --runs is missing"),
        (["heatmap", "--runs", tmp_path / "nowhere"], "holds no runs"),
        (["recall_per_class", "--runs", plain], "no data.json"),
        (["calibration", "--runs", plain], "none of the runs has a calibration"),
        (["error_over_beta", "--runs", plain], "both without class weights and with a β"),
        (["heatmap", "--runs", runs, "--candidate", "softmax"], "heatmap does not use --candidate"),
        (["calibration", "--runs", runs, "--candidate", "focal"], "did you mean 'focal, γ 0.5'?"),
        (["heatmap", "--runs", runs, "--dataset", "cifar100"], "holds no run with data=cifar100"),
        (
            ["heatmap", "--runs", runs, "--only", "model"],
            "--only takes FIELD=VALUE, such as model=resnet32, got 'model'",
        ),
        (["heatmap", "--runs", runs, "--only", "modal=resnet8"], "'model'"),
        (["heatmap", "--runs", runs, "--only", "imbalance=10,11"], "holds no run with imbalance=11"),
        (["heatmap", "--only", "model=resnet8"], "--only model=resnet8 requires --runs"),
        (["long_tailed_counts", "--dataset", "digits"], "digits"),
        (["effective_numbers", "--dataset", "digits"], "the counts of digits are not known"),
        (["effective_numbers", "--counts", "5,x"], "got 'x'"),
        (["effective_numbers", "--counts", "5,0"], "counts are 0 for class 1"),
        (["class_balanced_term", "--beta", "1.5"], "1.5"),
        (["class_balanced_term", "--formats", "gif"], "'gif'"),
    ):
        with pytest.raises((ConfigError, ValueError)) as error:
            run(capsys, *words, "-o", tmp_path / "out")
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("heatmap --counts 5,3 --runs RUNS", "heatmap does not use --counts"),
        ("calibration --beta 0.9 --runs RUNS", "calibration does not use --beta"),
        ("class_balanced_term --runs RUNS", "class_balanced_term does not use --runs"),
        ("class_balanced_term --counts 5,3", "class_balanced_term does not use --counts"),
        ("long_tailed_counts --runs RUNS", "long_tailed_counts does not use --runs"),
        ("long_tailed_counts --beta 0.9", "long_tailed_counts does not use --beta"),
        ("random_covering --dataset cifar10", "random_covering does not use --dataset"),
        ("effective_numbers --counts 5,3 --runs RUNS", "--runs and --counts exclude each other"),
        ("scheme_weights --counts 5,3 --dataset cifar10", "--dataset and --counts exclude each other"),
        ("scheme_weights --counts 5,3 --beta 0.9 0.99", "--beta 0.9 0.99: scheme_weights shows one β"),
    ],
)
def test_a_flag_that_a_figure_has_no_use_for_is_refused(capsys, runs, tmp_path, words, message):
    with pytest.raises(ConfigError) as error:
        run(capsys, *(runs if word == "RUNS" else word for word in words.split()), "-o", tmp_path / "out")
    assert str(error.value) == message
    assert not (tmp_path / "out").exists()


def test_all_takes_what_any_figure_has_a_use_for(capsys, tmp_path):
    run(capsys, "all", "-o", tmp_path, "--counts", "50,5", "--beta", "0.9", "0.99", *SVG)
    assert "2 classes of 50 to 5 images" in (tmp_path / "scheme_weights.svg").read_text()


def test_help_needs_no_library_of_charts():
    tree = ast.parse(Path(figures.__file__).read_text())
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
    assert not [name for name in modules if "report" in name or "experiments" in name or name in ("altair", "pandas")]
