"""Progress of many runs: an ETA in a terminal, and a line at least every minute without one."""

from io import StringIO

import pytest
from rich.console import Console

from longtail.lab.experiments import progress
from longtail.lab.experiments.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_there_is_a_line_every_minute(clock):
    file = StringIO()
    with Progress(Console(file=file, width=200), total=10) as shown:
        shown.expect(40.0)
        for seconds in (30, 61, 90, 125):
            clock[0] = seconds
            shown.show(2, 0, 2)
            if seconds == 90:
                shown.finished(20.0)
                shown.skip(3)
    assert file.getvalue().splitlines() == [
        "0/10 runs done, 2 running, 3 min 20 s left",
        "1/7 runs done, 2 running, 1 min 0 s left",
    ]


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
