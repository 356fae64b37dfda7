"""Every command: its help, and what it says of arguments that it does not know."""

import re
import shlex
import signal
import subprocess
import sys

import pytest

from longtail.lab.cli.app import COMMANDS
from longtail.lab.cli.data import COMMANDS as DATA
from longtail.lab.config import ConfigError
from tests.lab.cli.test_data import run

ALL = [*(name for name in COMMANDS if name != "data"), *(f"data {name}" for name in DATA)]


def refused(capsys, *words):
    """The one line that a command ends with."""
    printed, error, code = run(capsys, *words)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert "Traceback" not in error
    return error.removeprefix("error: ").removesuffix("\n")


def refused_by_parser(capsys, *words):
    """What the parser says, in its own form, as one line without the lines of its box."""
    printed, error, code = run(capsys, *words)
    assert (printed, code) == ("", 2)
    assert "Traceback" not in error
    return " ".join(re.sub(r"[^\w\s'\-.,:]", " ", error).split())


@pytest.mark.parametrize("name", ALL)
def test_help_reads_like_documentation(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    printed, _, _ = run(capsys, *name.split(), "--help")
    lines = printed.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("usage: ")] == []
    assert [line for line in lines if re.search(r"None|default: (False|True)?\)", line)] == []
    text = " ".join(lines)
    example = re.search(r"Example: (longtail .*?)  usage: ", text.replace(" \\ ", " "))[1]
    words = shlex.split(re.sub(r" +", " ", example))
    assert words[1 : 1 + len(name.split())] == name.split()
    flags = [word for word in words if word.startswith("-")]
    assert [flag for flag in flags if not re.search(rf"(?m)^\W*(-o \w+, )?{flag}\b", printed)] == []


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help_with_an_example_and_refuses_an_unknown_option(capsys, name):
    printed, error, code = run(capsys, *name.split(), "--help")
    assert (code, error) == (0, "")
    assert f"usage: longtail {name} " in printed
    assert "Example: longtail" in printed
    assert "\x1b" not in printed
    assert "--no-such-thing" in refused_by_parser(capsys, *name.split(), "x", "x", "--no-such-thing")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("train --data digits --epoch 3", ["--epoch,", "--epochs"]),
        ("train --data digits --epochs x", ["--epochs", "'x'"]),
        ("train --data digits --epochs", ["Missing value for argument '--epochs'"]),
        ("weights --beta 0,9", ["--beta", "0,9"]),
        ("tune --data digits --betas 0.9 x", ["--betas", "x"]),
        ("sweep heatmap table2", ["table2"]),
        ("sweep heatmap --executor slurm", ["--executor", "'slurm'", "local", "ray"]),
        ("evaluate runs/x --spilt test", ["--spilt", "--split"]),
        ("evaluate", ["RUN"]),
        ("data list --jsn", ["--jsn", "--json"]),
    ],
)
def test_what_the_parser_refuses_is_named(capsys, words, named):
    error = refused_by_parser(capsys, *words.split())
    assert [word for word in named if word not in error] == []
    name = " ".join(words.split()[: 2 if words.startswith("data ") else 1])
    assert f"longtail {name} --help" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian': did you mean 'train'? choose from demo, weights"),
        (["--epochs"], "unknown command '--epochs': choose from"),
        (["data"], "longtail data needs a command: list, show, check, fetch, cache; see longtail data --help"),
        (["data", "lst"], "unknown data command 'lst': did you mean 'list'? choose from list, show, check, fetch"),
        (["data", "--json", "list"], "unknown data command '--json': choose from list"),
        (["completion", "fish"], "unknown shell 'fish'"),
    ],
)
def test_commands_that_there_are_not_are_refused_in_one_line(capsys, words, message):
    assert refused(capsys, *words).startswith(message)


def test_the_commands_of_a_command_are_shown_by_its_help(capsys):
    printed, _, code = run(capsys, "data", "--help")
    assert code == 0
    assert "usage: longtail data " in printed
    for name in DATA:
        assert name in printed


def test_debug_shows_where_an_error_is_from(capsys):
    with pytest.raises(ConfigError, match="--data is missing"):
        run(capsys, "train", "--debug")


def test_what_a_command_raises_is_its_own(capsys, monkeypatch):
    def fail() -> None:
        raise ValueError("of the command")

    monkeypatch.setattr("longtail.lab.cli.demo.demo_command", fail)
    assert refused(capsys, "demo") == "of the command"


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
