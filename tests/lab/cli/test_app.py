"""Every command: its help, and what it says of arguments that it does not know."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from longtail.lab.cli.app import COMMANDS
from longtail.lab.cli.data import COMMANDS as DATA
from longtail.lab.cli.parse import parse
from tests.lab.cli.test_data import run

ALL = [*(name for name in COMMANDS if name != "data"), *(f"data {name}" for name in DATA)]


def refused(capsys, *words):
    """The one line that a command ends with."""
    printed, error, code = run(capsys, *words)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert "Traceback" not in error
    return error.removeprefix("error: ").removesuffix("\n")


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help_with_an_example_and_refuses_an_unknown_option_in_one_line(capsys, name):
    printed, error, code = run(capsys, *name.split(), "--help")
    assert (code, error) == (0, "")
    assert f"usage: longtail {name} " in printed
    assert "Example: longtail" in printed
    assert "\x1b" not in printed
    data = ["--data", "digits"] if name in COMMANDS and COMMANDS[name].follows else []
    line = refused(capsys, *name.split(), *data, "--no-such-thing", "3")
    assert line == f"unknown option --no-such-thing. See longtail {name} --help"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --data digits --epoch 3", "unknown option --epoch; did you mean --epochs?"),
        ("train --data digits --batch_sise 3 --seed 1", "unknown option --batch_sise; did you mean --batch-size?"),
        ("train --data digits -q", "unknown option -q."),
        ("train --data digits --epochs x", "--epochs must be a whole number, got 'x'."),
        ("train --data digits --imbalance x", "--imbalance must be a number, got 'x'."),
        ("train --data digits --workers 1.5", "--workers must be a whole number, got '1.5'."),
        ("train --data digits --epochs", "--epochs needs a value."),
        ("train --data digits --on-error ask", "--on-error cannot be 'ask': choose from stop, skip."),
        ("weights --beta 0,9", "--beta must be a number, got '0,9'."),
        ("tune --data digits --betas 0.9 x", "--betas cannot be '0.9', 'x'."),
        ("sweep heatmap table2", "unexpected argument 'table2'."),
        ("sweep heatmap --executor slurm", "--executor cannot be 'slurm': choose from local, ray."),
        ("evaluate --spilt test runs/x", "unknown option --spilt; did you mean --split?"),
        ("evaluate", "RUN is missing: A run folder."),
        ("rebalance runs/x --metod tau_norm", "unknown option --metod; did you mean --method?"),
        ("rebalance --typo", "unknown option --typo."),
        ("report", "RUNS is missing: A folder of run folders, or a run folder."),
        ("tune --data digits --betas 0.9 --betas 0.99", "--betas is given twice: write all its values behind one."),
        ("figures heatmap --only beta=0.9 --only=seed=1", "--only is given twice: write all its values behind one."),
        ("data list --jsn", "unknown option --jsn; did you mean --json?"),
        ("data show", "DATA is missing: A name of longtail data list, or a folder or list of your own images."),
    ],
)
def test_what_the_parser_refuses_is_one_line_that_names_it(capsys, monkeypatch, words, message):
    monkeypatch.setenv("COLUMNS", "50")  # a box would be wrapped
    name = " ".join(words.split()[: 2 if words.startswith("data ") else 1])
    assert refused(capsys, *words.split()) == f"{message} See longtail {name} --help"
    assert os.environ["COLUMNS"] == "50"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian': did you mean 'train'? choose from demo, weights"),
        (["--epochs"], "unknown command '--epochs': choose from"),
        (["data"], "which one? longtail data list, show, check, fetch; longtail data --help says more"),
        (["data", "lst"], "unknown data command 'lst': did you mean 'list'? choose from list, show, check, fetch"),
        (["data", "--json", "list"], "unknown data command '--json': choose from list"),
        (["completion", "fish"], "unknown shell 'fish'"),
    ],
)
def test_commands_that_there_are_not_are_refused_in_one_line(capsys, words, message):
    assert refused(capsys, *words).startswith(message)


def test_a_long_value_is_shown_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    long = "x" * 300
    assert f"got '{long}'." in refused(capsys, "weights", "--beta", long)


def test_the_commands_of_a_command_are_shown_by_its_help(capsys):
    printed, _, code = run(capsys, "data", "--help")
    assert code == 0
    assert "usage: longtail data " in printed
    for name in DATA:
        assert name in printed


def test_debug_shows_where_the_parser_stopped(capsys):
    with pytest.raises(ValueError, match="unknown option --epoch; did you mean --epochs"):
        run(capsys, "train", "--data", "digits", "--epoch", "3", "--debug")


def test_what_a_command_raises_is_its_own():
    def fail() -> None:
        raise ValueError("of the command")

    with pytest.raises(ValueError, match=r"^of the command$"):
        parse(fail, "fail", [])()


def test_a_terminal_that_shows_colours_but_no_boxes_gets_the_same_line():
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "longtail.lab", "weights", "--bta", "3"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=120,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert done.stderr == b"error: unknown option --bta; did you mean --beta? See longtail weights --help\n"


@pytest.mark.parametrize(("closed", "printed"), [("2>&-", True), (">&-", False), (">&- 2>&-", False)])
def test_a_stream_that_the_shell_closed_is_no_error(closed, printed):
    command = f"{sys.executable} -m longtail.lab weights --counts 5,3 {closed}"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr, "0.75" in finished.stdout) == (0, "", printed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["torch", "tyro", "longtail.lab.training.loop"])
def test_a_signal_while_a_command_starts_ends_it_with_its_code(tmp_path, number, module):
    program = f"""
import signal, sys

class Signalled:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal({number:d})

sys.meta_path.insert(0, Signalled())
sys.argv[1:] = ["train", "--data", "digits"]
from longtail_command import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not list(tmp_path.iterdir())
