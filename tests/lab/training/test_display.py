"""Progress of a training without a terminal: a line at least every minute, with what is left."""

import re
from io import StringIO
from types import SimpleNamespace

from rich.console import Console

from longtail.lab.training import display
from longtail.lab.training.display import Display


def shown(monkeypatch, seconds, clock, steps):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(display, "LINE_SECONDS", seconds)
    file = StringIO()
    bar = Display(None, Console(file=file, width=200), epochs=2, steps=steps, start=SimpleNamespace(epoch=0, step=0))
    for step in range(1, steps + 1):
        now[0] += clock
        bar.step(SimpleNamespace(epoch=0, step=step))
    return file.getvalue().splitlines()


def test_a_long_epoch_has_a_line_every_minute(monkeypatch):
    lines = shown(monkeypatch, 60.0, clock=20.0, steps=10)
    assert lines == [
        "epoch 1/2: step 3/10, 5 min 40 s left",
        "epoch 1/2: step 6/10, 4 min 40 s left",
        "epoch 1/2: step 9/10, 3 min 40 s left",
    ]


def test_a_short_epoch_has_none(monkeypatch):
    assert shown(monkeypatch, 60.0, clock=1.0, steps=10) == []


def test_a_terminal_has_a_bar_instead(monkeypatch):
    monkeypatch.setattr(display, "LINE_SECONDS", 0.0)
    file = StringIO()
    console = Console(file=file, width=200, force_terminal=True)
    with Display(None, console, epochs=1, steps=2, start=SimpleNamespace(epoch=0, step=0)) as bar:
        bar.step(SimpleNamespace(epoch=0, step=1))
    assert not re.search(r"step 1/2, .* left", file.getvalue())
