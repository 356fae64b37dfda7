"""Progress of many runs: an ETA in a terminal, and a line at least every minute without one."""

import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from longtail.lab.experiments import progress
from longtail.lab.experiments.progress import Progress
from longtail.lab.training import RunFolder


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def unknown(runs):
    """Runs that have not said how far they are."""
    return [RunFolder(Path("nowhere"))] * runs


def under_way(folder, share, seconds):
    folder.mkdir()
    run = RunFolder(folder)
    run.write_progress(share, seconds)
    return run


def test_the_first_runs_say_at_once_how_long_all_take(tmp_path, clock):
    file = StringIO()
    with Progress(Console(file=file, width=200), total=6) as shown:
        shown.show(unknown(2), 0, 2)
        runs = [under_way(tmp_path / "a", 0.0, 30.0), under_way(tmp_path / "b", 0.5, 20.0)]
        shown.show(runs, 0, 2)  # 30 s and 40 s a run: 50 s that are left of two, and 4 × 35 s, two at a time
        shown.show(runs, 0, 2)
        clock[0] = 61
        runs[0].write_progress(0.5, 60.0)
        shown.finished(10.0)
        shown.show([runs[0]], 0, 2)
        shown.skip(4)
        clock[0] = 122
        shown.show([runs[0]], 0, 2)  # alone, it takes as long as it takes
    assert file.getvalue().splitlines() == [
        "0/6 runs done, 2 running, 1 min 35 s left",
        "1/6 runs done, 1 running, 1 min 0 s left",
        "1/2 runs done, 1 running, 1 min 0 s left",
    ]


def test_a_bar_moves_within_a_run(tmp_path):
    file = StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system=None, _environ={})
    with Progress(console, total=2) as shown:
        shown.show([under_way(tmp_path / "a", 0.25, 30.0)], 0, 1)
        assert shown.bar.tasks[0].completed == 0.25
    assert "0/2 1 running, 1 min 10 s left" in file.getvalue()


def test_what_a_run_said_before_it_was_killed_counts_for_nothing(tmp_path):
    run = under_way(tmp_path / "a", 0.5, 20.0)
    assert run.progress(since=0.0) == (0.5, 20.0)
    assert run.progress(since=time.time() + 60.0) is None
    run.progress_file.write_text("[0.5")
    assert run.progress(since=0.0) is None


def test_without_a_terminal_there_is_a_line_every_minute(clock):
    file = StringIO()
    with Progress(Console(file=file, width=200), total=10) as shown:
        shown.expect(40.0)
        for seconds in (30, 61, 90, 125):
            clock[0] = seconds
            shown.show(unknown(2), 0, 2)
            if seconds == 90:
                shown.finished(20.0)
                shown.skip(3)
    assert file.getvalue().splitlines() == [
        "0/10 runs done, 2 running, 3 min 20 s left",
        "1/7 runs done, 2 running, 1 min 0 s left",
    ]


def test_the_time_left_follows_the_pace_of_the_runs(clock):
    file = StringIO()
    with Progress(Console(file=file, width=200), total=10) as shown:
        shown.finished(1.0)  # complete before
        shown.expect(1.0)
        for _ in range(4):
            shown.finished(1.0)
        clock[0] = 80  # two at a time: 40 s a run, with their start and whatever else the machine does
        shown.show(unknown(2), 0, 2)
    assert file.getvalue() == "5/10 runs done, 2 running, 1 min 40 s left\n"


def test_what_ended_is_a_line_and_a_failure_stays_in_a_terminal_too(clock):
    for terminal, lines in ((False, 2), (True, 1)):
        file = StringIO()
        console = Console(file=file, width=200, force_terminal=terminal, _environ={})
        shown = Progress(console, total=2)
        shown.finished(1.0, "a: error 9.00%")
        shown.fail("b: failed: no room")
        assert len([line for line in file.getvalue().splitlines() if line.strip()]) == lines
        assert "2/2 b: failed: no room" in file.getvalue()


def test_it_is_said_once_that_another_process_is_waited_for(clock):
    file = StringIO()
    shown = Progress(Console(file=file, width=200), total=2)
    shown.waits_for("a")
    shown.waits_for("b")
    assert file.getvalue() == "waiting for a, which is in use by another process\n"
