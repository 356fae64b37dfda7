"""Progress of a training without a terminal: a line at least every minute, with what is left."""

import contextlib
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


def test_a_long_test_has_a_line_every_minute(monkeypatch):
    now, file = [0.0], StringIO()
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    console = Console(file=file, width=200)
    bar = Display(None, console, epochs=1, steps=1, start=SimpleNamespace(epoch=0, step=0))
    for seconds in (0.0, 30.0, 61.0, 90.0, 130.0):
        now[0] = seconds
        bar.testing(round(100 * seconds))
    assert file.getvalue().splitlines() == ["testing: 6,100 images done", "testing: 13,000 images done"]


def test_a_short_epoch_has_none(monkeypatch):
    assert shown(monkeypatch, 60.0, clock=1.0, steps=10) == []


def test_a_terminal_has_a_bar_instead(monkeypatch):
    monkeypatch.setattr(display, "LINE_SECONDS", 0.0)
    file = StringIO()
    console = Console(file=file, width=200, force_terminal=True)
    with Display(None, console, epochs=1, steps=2, start=SimpleNamespace(epoch=0, step=0)) as bar:
        bar.step(SimpleNamespace(epoch=0, step=1))
    assert not re.search(r"step 1/2, .* left", file.getvalue())


def trained(losses, **options):
    file = StringIO()
    console = Console(file=file, width=200, **options)
    with Display(None, console, epochs=len(losses), steps=1, start=SimpleNamespace(epoch=0, step=0)) as bar:
        lines = []
        for epoch, loss in enumerate(losses, start=1):
            error = {"error": 10 * loss} if epoch % 2 else {}
            lines.append({"epoch": epoch, "train_loss": loss, "lr": 0.1, "images_per_second": 9.0, **error})
            bar.epoch(lines)
    return file.getvalue()


def test_the_bar_leaves_curves_behind():
    left = trained([4.0, 2.0, 1.5, 1.0, 0.5], force_terminal=True).splitlines()[-3:]
    assert left[0].endswith("5 epochs in 0 s")
    assert left[1:] == ["training loss 4 █▄▃▂▁ 0.5", "test error    40% █▃▁ 5%"]


def test_lines_of_epochs_need_no_curve():
    assert "█" not in trained([4.0, 2.0])


def test_an_interrupted_training_leaves_no_curve():
    file = StringIO()
    console = Console(file=file, force_terminal=True)
    start = SimpleNamespace(epoch=0, step=0)
    with contextlib.suppress(KeyboardInterrupt), Display(None, console, epochs=3, steps=1, start=start) as bar:
        bar.lines = [{"epoch": 1, "train_loss": 2.0}, {"epoch": 2, "train_loss": 1.0}]
        raise KeyboardInterrupt
    assert "training loss" not in file.getvalue()


def test_those_who_wait_are_told_every_second_how_far_it_is(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    start = SimpleNamespace(epoch=1, step=0)
    bar = Display(None, None, epochs=2, steps=10, start=start, report=lambda *progress: told.append(progress))
    for step in range(1, 10):
        now[0] += 0.5
        bar.step(SimpleNamespace(epoch=1, step=step))
    assert told == [(0.6, 4.0), (0.7, 3.0), (0.8, 2.0), (0.9, 1.0)]
