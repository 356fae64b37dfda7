"""``longtail weights``."""

import csv
import io
import json
import re
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
from packaging.requirements import Requirement

from longtail import class_weights, effective_number, long_tailed_counts
from tests.lab.cli.test_data import run

COUNTS = [5000, 2997, 1796]


def classes(capsys, *words):
    printed, error, code = run(capsys, "weights", *words, "--json")
    assert code == 0, error
    return json.loads(printed)["classes"]


def test_weights_of_counts_are_those_of_the_library(capsys):
    rows = classes(capsys, "--counts", "5000,2997,1796", "--beta", "0.99")
    assert [row["images"] for row in rows] == COUNTS
    assert [row["effective_number"] for row in rows] == effective_number(COUNTS, 0.99).tolist()
    assert [row["weight"] for row in rows] == class_weights(COUNTS, beta=0.99).tolist()


@pytest.mark.parametrize("scheme", ["effective", "inverse", "inverse_sqrt", "uniform"])
@pytest.mark.parametrize("normalize", ["classes", "samples"])
def test_schemes_side_by_side_are_the_same_as_one_by_one(capsys, scheme, normalize):
    both = ["--counts", "5000,2997,1796", "--normalize", normalize]
    alone = [row["weight"] for row in classes(capsys, *both, "--scheme", scheme)]
    assert alone == [row[scheme] for row in classes(capsys, *both, "--compare")]
    assert alone == class_weights(COUNTS, scheme=scheme, normalize=normalize).tolist()


def test_the_counts_of_cifar_are_known_without_its_files(capsys, tmp_path):
    words = ["--data", "cifar100", "--imbalance", "100", "--data-dir", tmp_path]
    rows = classes(capsys, *words)
    assert [row["images"] for row in rows] == long_tailed_counts(500, 100, 100).tolist()
    assert [row["class"] for row in classes(capsys, "--data", "digits", "--imbalance", "10")] == list("0123456789")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-count", "6000"], "max_count 6000 is more than the 5000 samples of class 0 (0)"),
        (["--profile", "step"], "profile step requires an imbalance"),
        (["--subset-seed", "3"], "subset_seed 3 requires an imbalance"),
        (["--class-depth", "2"], "cifar10 has its own classes and test images"),
    ],
)
def test_options_that_cifar_refuses_are_refused_without_its_files_too(capsys, tmp_path, words, message):
    printed, error, code = run(capsys, "weights", "--data", "cifar10", "--data-dir", tmp_path, *words)
    assert (printed, code) == ("", 2)
    assert error.startswith(f"error: {message}")


def test_damaged_files_of_cifar_are_not_passed_over_in_silence(capsys, tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    _, error, code = run(capsys, "weights", "--data", "cifar10", "--data-dir", tmp_path)
    assert (code, "cannot read" in error) == (2, True)


def test_labels_come_from_a_file_or_standard_input(capsys, tmp_path, monkeypatch):
    text = "owl\ncat\n\nowl\n10\n9\n"
    (tmp_path / "labels.txt").write_text(text)
    expected = [("9", 1), ("10", 1), ("cat", 1), ("owl", 2)]
    assert [(row["class"], row["images"]) for row in classes(capsys, "--labels", tmp_path / "labels.txt")] == expected
    for words in ([], ["--labels", "-"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff" + text))
        assert [(row["class"], row["images"]) for row in classes(capsys, *words)] == expected


@pytest.mark.parametrize("header", ["", "class,images\n"])
def test_counts_come_from_a_table(capsys, tmp_path, header):
    (tmp_path / "counts.csv").write_text(header + '"owl, snowy",20\ncat,5\n')
    rows = classes(capsys, "--counts", tmp_path / "counts.csv")
    assert [(row["class"], row["images"]) for row in rows] == [("owl, snowy", 20), ("cat", 5)]


def test_a_first_row_that_is_no_header_is_never_dropped(capsys, tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text("\ufeffcat,20\nowl,5\n", encoding="utf-8")
    assert [row["class"] for row in classes(capsys, "--counts", path)] == ["cat", "owl"]
    for content, message in (('cat,"5,000"\nowl,5\n', "got '5,000'"), ("cat,50.5\nowl,5\n", "got '50.5'")):
        path.write_text(content)
        _, error, code = run(capsys, "weights", "--counts", path)
        assert code == 2
        assert message in error
    path.write_bytes("été,5\n".encode("latin-1"))
    _, error, code = run(capsys, "weights", "--counts", path)
    assert (code, error.count("\n")) == (2, 1)
    assert f"{path} is not UTF-8 text" in error
    path.write_text(f"cat,20\n{'o' * 200_000},5\n")
    _, error, code = run(capsys, "weights", "--counts", path)
    assert (code, error) == (2, f"error: {path}, line 2: field larger than field limit (131072)\n")


def test_of_very_many_classes_the_largest_and_the_rarest_are_shown(capsys, tmp_path):
    """100,000 lines would take a minute to print."""
    path = tmp_path / "counts.csv"
    path.write_text("".join(f"kind {number},{1 + number * 7919 % 100_003}\n" for number in range(100_000)))
    printed, _, code = run(capsys, "weights", "--counts", path)
    images = [int(line.split()[2].replace(",", "")) for line in printed.splitlines() if line.startswith("kind ")]
    assert code == 0
    assert len(images) == 100
    assert images == sorted(images, reverse=True)
    assert "the 50 largest and the 50 rarest classes; 99,900 more are left out: --json lists all" in printed
    assert printed.splitlines()[-1].startswith("100,000 classes, ")
    assert len(json.loads(run(capsys, "weights", "--counts", path, "--json")[0])["classes"]) == 100_000
    assert len(run(capsys, "weights", "--counts", path, "--csv")[0].splitlines()) == 100_001


def test_csv_and_the_table_say_the_same(capsys):
    printed, _, code = run(capsys, "weights", "--counts", "100,10", "--compare", "--csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert np.isclose([float(row["inverse"]) for row in rows], class_weights([100, 10], scheme="inverse")).all()
    printed, _, _ = run(capsys, "weights", "--counts", "100,10")
    assert "2 classes, 110 images, imbalance 10" in printed


@pytest.mark.parametrize("words", [[], ["--compare"]])
def test_classes_without_images_can_be_left_out(capsys, words):
    rows = classes(capsys, "--counts", "5,0,3", "--absent", "ignore", *words)
    column = "effective" if words else "weight"
    assert [row[column] for row in rows] == class_weights([5, 0, 3], absent="ignore").tolist()
    assert rows[1]["effective_number"] == rows[1][column] == 0
    printed, _, code = run(capsys, "weights", "--counts", "5,0,3", "--absent", "ignore", *words)
    assert code == 0
    assert "3 classes, 1 without images, 8 images, imbalance 1.667" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--counts", "5,x"], "--counts: a count must be a whole number, got 'x'"),
        (["--counts", "5,-1"], "a count must be a whole number, got '-1'"),
        (["--counts", "5,0"], "counts are 0 for class 1: count the whole training set, or pass --absent ignore"),
        (["--counts", "0,0", "--absent", "ignore"], "0"),
        (["--counts", "99999999999999999999,5"], "a count must be a whole number, got '99999999999999999999'"),
        (["--counts", "nowhere.csv"], "nowhere.csv: No such file"),
        (["--labels", "nowhere.txt"], "nowhere.txt: No such file"),
        (["--counts", "5,1", "--data", "digits"], "--counts and --data exclude each other"),
        (["--counts", "5,1", "--imbalance", "10"], "options of a data set require --data"),
        (["--counts", "5,1", "--beta", "1.5"], "beta"),
        (["--counts", "5,1", "--scheme", "inverce"], "inverse"),
        (["--counts", "5,1", "--scheme", "inverse", "--compare"], "--scheme inverse and --compare exclude each other"),
        (["--counts", "5,1", "--csv", "--json"], "--csv and --json"),
        (["--data", "cifar11"], "cifar10"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, words, message):
    printed, error, code = run(capsys, "weights", *words)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert message in error


def test_no_labels_at_all_are_refused(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    _, error, code = run(capsys, "weights")
    assert (code, error) == (2, "error: standard input holds no labels\n")


def without_lab(*words, text=""):
    """A process in which nothing of the extra lab can be imported."""
    wanted = map(Requirement, metadata.requires("longtail"))
    lab = {need.name for need in wanted if need.marker and need.marker.evaluate({"extra": "lab"})}
    missing = sorted({name for name, packages in metadata.packages_distributions().items() if lab & {*packages}})
    assert {"tyro", "rich", "PIL"} <= set(missing)
    program = f"""
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import longtail_command
longtail_command.main()
"""
    command = [sys.executable, "-c", program, *words]
    finished = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return finished.stdout, finished.stderr, finished.returncode


@pytest.mark.parametrize("words", [["--compare"], ["--json", "--beta", "0.9", "--normalize", "samples"]], ids=" ".join)
def test_weights_are_the_same_without_the_lab(capsys, words):
    words = ["weights", "--counts", "5000,2997,0", "--absent", "ignore", *words]
    assert without_lab(*words) == run(capsys, *words)


def test_labels_are_read_from_standard_input_without_the_lab():
    printed, error, code = without_lab("weights", "--csv", text="owl\ncat\nowl\n")
    assert (printed.splitlines()[1].split(",")[:2], error, code) == (["cat", "1"], "", 0)


def test_help_and_version_need_no_lab(capsys):
    for words in (["--help"], ["--version"]):
        assert without_lab(*words) == run(capsys, *words)
    printed, error, code = without_lab("weights", "--help")
    assert (error, code) == ("", 0)
    with_lab = run(capsys, "weights", "--help")[0]
    for name in ("counts", "labels", "scheme", "beta", "normalize", "absent", "compare", "csv", "json"):
        assert f"--{name} " in printed
        assert f"--{name} " in with_lab


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--data", "digits"], r"\w+ is missing: pip install 'longtail\[lab\]'"),
        (["weights", "--data", "digits"], "--data is unknown, or requires the extra lab: pip install"),
        (["weights", "--counts", "5,x"], "--counts: a count must be a whole number, got 'x'"),
    ],
)
def test_what_needs_the_lab_says_so_in_one_line(words, message):
    printed, error, code = without_lab(*words)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert re.match(f"error: {message}", error)


def test_names_are_escaped_cut_and_aligned(capsys, tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text(f"\x1b[2Jowl,20\n猫猫,5\n{'x' * 200},4\n", encoding="utf-8")
    printed, _, code = run(capsys, "weights", "--counts", path)
    lines = printed.splitlines()
    assert code == 0
    assert lines[1].startswith("\\x1b[2Jowl ")
    assert lines[3].startswith("x" * 63 + "…  ")
    assert [len(line) for line in lines[:4]] == [len(lines[0]), len(lines[0]), len(lines[0]) - 2, len(lines[0])]
