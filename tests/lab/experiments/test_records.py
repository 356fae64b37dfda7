"""Records: run folders that are small enough to be kept, and say the same."""

import json

import pytest

from longtail.lab.cli import main
from longtail.lab.config import ConfigError, RunOptions
from longtail.lab.experiments import keep_records, load_results
from longtail.lab.report.page import write_page
from longtail.lab.training import RunFolder, train
from tests.lab.experiments.sweeps import BALANCED, PLAIN, small


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for loss in (PLAIN, BALANCED):
        train(small(loss, epochs=1), RunOptions(runs=folder, accelerator="cpu"))
    unfinished = folder / small(seed=9).run_id
    unfinished.mkdir()
    (unfinished / "config.json").write_text(small(seed=9).to_json())
    return folder


def test_records_say_what_the_runs_say_and_are_small(runs, tmp_path):
    assert keep_records(runs, tmp_path) == 2
    of_runs = load_results(runs)
    assert load_results(tmp_path).equals(of_runs[of_runs["status"] == "complete"].reset_index(drop=True))
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"config.json", "data.json", "metrics.jsonl", "result.json"}
    data = RunFolder(tmp_path / small(PLAIN, epochs=1).run_id).data()
    assert "indices" not in data
    assert data["sha256"] == json.loads((runs / small(PLAIN, epochs=1).run_id / "data.json").read_text())["sha256"]


def test_a_page_can_be_made_of_records(runs, tmp_path):
    keep_records(runs, tmp_path / "records")
    write_page(tmp_path / "records", tmp_path / "page.html")
    assert small(BALANCED, epochs=1).run_id in (tmp_path / "page.html").read_text()


def test_the_command_keeps_records_and_says_how_many(runs, tmp_path, capsys):
    main(["results", str(runs), "--records", str(tmp_path / "kept")])
    assert "2 records kept in" in capsys.readouterr().err
    assert len(load_results(tmp_path / "kept")) == 2


def test_records_do_not_replace_the_runs(runs):
    with pytest.raises(ConfigError, match="cannot be kept in the same folder"):
        keep_records(runs, runs)


def test_records_do_not_replace_a_run_that_is_named_itself_or_linked(runs, tmp_path):
    run = next(runs.iterdir())
    before = (run / "data.json").read_bytes()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / run.name).symlink_to(run)
    for source in (run, tmp_path / "links"):
        with pytest.raises(ConfigError, match="cannot be kept in the same folder"):
            keep_records(source, runs)
    assert (run / "data.json").read_bytes() == before


def test_records_of_linked_runs_have_the_names_of_the_links(runs, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "first").symlink_to(next(runs.iterdir()))
    assert keep_records(tmp_path / "links", tmp_path / "kept") == 1
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["first"]
