"""``longtail results``, as a user types it."""

import csv
import json
import re

import pytest
import tyro
from tyro.conf import DisallowNone

from longtail.lab.cli.results import results_command
from longtail.lab.config import ConfigError, LossConfig, with_fields
from longtail.lab.recipes import cifar
from tests.lab.experiments.test_results import FOCAL, PLAIN, PLAIN_FOCAL, run_of, write_run


def run(capsys, *arguments):
    """What the command prints to standard output and error."""
    tyro.cli(results_command, args=[str(argument) for argument in arguments], config=(DisallowNone,))
    return capsys.readouterr()


@pytest.fixture
def runs(tmp_path):
    """Two losses and three seeds, of one setting of the paper."""
    folder = tmp_path / "runs"
    for seed, (plain, weighted) in enumerate([(25.0, 22.0), (26.0, 24.0), (27.0, 23.0)]):
        write_run(folder, run_of(PLAIN_FOCAL, seed), error=plain, few=0.125)
        write_run(folder, run_of(FOCAL, seed), error=weighted, few=0.5)
    return folder


def test_a_table_by_setting(runs, capsys):
    printed, error = run(capsys, runs)
    title, header, weighted, plain, *_ = printed.splitlines()
    assert title.strip() == "cifar10, imbalance 50, resnet32, 200 epochs"
    for name in ("loss", "n", "error %", "many %", "medium %", "few %", "Δ balanced accuracy", "published"):
        assert name in header
    assert plain.split() == ["focal,", "γ", "0.5", "3", "74.0", "±", "1.0", "26.00", "±", "1.00",
                             "90.0", "60.0", "12.5", "23.28"]  # fmt: skip
    # Differences 3, 2, 4: mean 3, and 4.303 (t, 2 degrees of freedom) · 1 / √3 = 2.484 around it.
    name, numbers = weighted.split("  ", 1)
    assert name == "class-balanced focal, β 0.999, γ 0.5"
    assert numbers.split()[:10] == ["3", "77.0", "±", "1.0", "23.00", "±", "1.00", "90.0", "60.0", "50.0"]
    assert "+3.0 [+0.5, +5.5]" in weighted
    assert weighted.split()[-1] == "–"
    assert "of the full protocol of Cui et al. 2019" in printed
    assert error == ""
    assert max(map(len, printed.splitlines())) <= 160


def test_columns_tell_the_rows_apart_and_are_no_more(tmp_path, capsys):
    write_run(tmp_path, run_of(PLAIN, data="digits"))
    write_run(tmp_path, run_of(PLAIN, data="digits", precision="bf16-mixed"))
    write_run(tmp_path, cifar(run_of(data="digits").data, PLAIN, epochs=20))
    printed, _ = run(capsys, tmp_path)
    title, header, *rows = printed.splitlines()
    assert title.strip() == "digits, imbalance 50, resnet32"
    assert header.split()[:3] == ["loss", "epochs", "precision"]  # and no warm-up, which follows the epochs
    assert "Δ" not in header
    assert "published" not in header
    assert [row.split()[1:3] for row in rows[:3]] == [["20", "32-true"], ["200", "32-true"], ["200", "bf16-mixed"]]


def test_a_wide_table_fits_where_output_goes_to_a_file(tmp_path, capsys):
    for data, imbalance in (("cifar10", 10.0), ("inaturalist2018", None)):
        for loss in (PLAIN, LossConfig(weighting="inverse_sqrt"), FOCAL):
            for model in ("resnet32", "resnet110"):
                write_run(tmp_path, run_of(loss, data=data, imbalance=imbalance, model=model), few=0.5)
    printed, _ = run(capsys, tmp_path)
    assert "…" not in printed
    assert sum(len(re.findall(r" (?:cifar10|inaturalist2018) ", line)) for line in printed.splitlines()) == 12


def test_the_name_of_a_loss_is_never_cut_nor_wrapped_in_a_file(tmp_path, capsys):
    late = {"defer_reweighting": 0.8, "normalize": "samples"}
    others = [{"mixup": 0.25}, {"cutmix": 1.0}, {"sampling": "class_balanced"}, {"precision": "bf16-mixed"}]
    others += [{"batch_size": 64}, {"lr": 0.2}, {"model": "resnet110"}]
    for seed in (0, 1):
        write_run(tmp_path, run_of(PLAIN_FOCAL, seed), error=25.0 + 9 * seed)
        for changes in ({}, late, *others):
            write_run(tmp_path, with_fields(run_of(FOCAL, seed), changes), few=0.5)
    printed, _ = run(capsys, tmp_path)
    assert "…" not in printed
    names = [line.split("  ")[0] for line in printed.splitlines()[2:12]]
    assert "class-balanced focal, β 0.999, γ 0.5, normalised over samples, deferred to 0.8" in names
    printed, _ = run(capsys, tmp_path, "--per-run")
    assert len(printed.splitlines()) == 1 + 20


def test_what_is_not_complete_is_named_on_standard_error_and_not_counted(runs, capsys):
    names = []
    for seed in range(10, 35):
        folder = write_run(runs, run_of(FOCAL, seed), done=False)
        names.append(folder.name)
    (folder / "error.json").write_text(json.dumps({"error": "[red] disk full", "traceback": "", "time": ""}))
    printed, error = run(capsys, runs)
    lines = error.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "and 5 more that are not complete"
    known = {f"unfinished: {name}: 0 of 200 epochs" for name in names} | {f"failed: {folder.name}: [red] disk full"}
    assert set(lines[:-1]) < known
    assert printed.splitlines()[2].split("  ")[:2] == ["class-balanced focal, β 0.999, γ 0.5", "3"]
    (alone,) = run(capsys, folder).err.splitlines()
    assert alone == f"failed: {folder.name}: [red] disk full"


def test_numbers_that_look_alike_are_shown_in_full(tmp_path, capsys):
    for momentum in (0.9999999, 0.99999999):
        write_run(tmp_path, with_fields(run_of(FOCAL), {"momentum": momentum}))
    _, header, *rows = run(capsys, tmp_path).out.splitlines()
    assert header.split()[:2] == ["loss", "momentum"]
    assert [re.split("  +", row)[1] for row in rows[:2]] == ["0.9999999", "0.99999999"]


def test_searches_are_no_damaged_runs_and_it_is_said_where_theirs_are(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "runs", run_of(FOCAL))
    search = tmp_path / "runs" / "tune" / "digits-grid"
    search.mkdir(parents=True)
    for name in ("journal.log", "result.json"):
        (search / name).write_text("{}")
    assert run(capsys, tmp_path / "runs").err == ""
    monkeypatch.chdir(tmp_path)
    for place in ("runs/tune", "runs/tune/digits-grid"):
        with pytest.raises(ConfigError) as error:
            run(capsys, place)
        assert str(error.value) == f"{place}/ holds no runs: those of a search are in runs"


def test_a_row_for_each_run(runs, capsys):
    unfinished = write_run(runs, run_of(FOCAL, 7), done=False)
    printed, _ = run(capsys, runs, "--per-run")
    rows = {cells[0]: cells[1:] for cells in (re.split("  +", line) for line in printed.splitlines()[1:])}
    name = "class-balanced focal, β 0.999, γ 0.5"
    assert rows[unfinished.name] == ["unfinished", name, "7", *["–"] * 7]
    complete = rows[run_of(FOCAL, 1).run_id]
    assert complete == ["complete", name, "1", "24.00", "24.00", "76.0", "90.0", "60.0", "50.0", "600.0"]
    assert len(rows) == 7


def test_json_holds_runs_settings_and_differences(runs, capsys):
    write_run(runs, run_of(FOCAL, 7), done=False)
    printed, error = run(capsys, runs, "--json")
    found = json.loads(printed, parse_constant=pytest.fail)
    assert {name: len(rows) for name, rows in found.items()} == {"runs": 7, "settings": 2, "deltas": 1}
    assert found["deltas"][0]["error_delta"] == pytest.approx(-3)
    assert found["settings"][1]["error_mean"] == pytest.approx(23)
    assert error.startswith("unfinished: ")


@pytest.mark.parametrize("flag", ["-o", "--output"])
def test_a_file_has_a_row_for_each_run(runs, capsys, tmp_path, flag):
    run(capsys, runs, flag, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(float(row["error"]) for row in rows) == [22.0, 23.0, 24.0, 25.0, 26.0, 27.0]
    run(capsys, runs, flag, tmp_path / "all.json")
    assert len(json.loads((tmp_path / "all.json").read_text())) == 6


def test_bad_input_is_one_line(runs, capsys, tmp_path):
    with pytest.raises(ConfigError, match="holds no runs"):
        run(capsys, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"ends in \.txt"):
        run(capsys, runs, "--output", tmp_path / "all.txt")
    assert capsys.readouterr().out == ""
