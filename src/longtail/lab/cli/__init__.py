"""The command ``longtail``."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shlex import quote

import longtail
from longtail.lab.cli.escape import escaped

__all__ = ["is_first_process", "main", "one_line_errors"]

HELP = """usage: longtail COMMAND [options]

Train classifiers on long-tailed data with the class-balanced loss.

Start here:
  longtail demo                            see it work: about a minute, nothing to download
  longtail weights --counts 5000,500,50    class weights for your own training loop
  longtail tune --data photos/             the best loss for your images, one folder per class

Commands:
{commands}

longtail COMMAND --help shows its flags and an example; longtail --version the version.
longtail completion bash|zsh|tcsh prints a script for the shell; --debug shows the traceback of an error.
Exit codes: 0 done, 1 something that was run failed, 2 bad input, 130 interrupted and resumable.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    # A shell can close them: then output goes nowhere.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A β is no reason to fail where only ASCII can be shown.
            stream.reconfigure(errors="replace")
    with one_line_errors(debug), one_line_warnings():
        if given == ["--version"]:
            sys.stdout.write(f"longtail {longtail.__version__}\n")
        else:
            _run(given)
        sys.stdout.flush()


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """Exit with one line and a code on errors that the user can fix; with ``debug``, let them through."""
    try:
        yield
    except KeyboardInterrupt:
        if is_first_process():
            sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has seen enough; without this, Python complains once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        code = getattr(error, "exit_code", 2 if isinstance(error, (ValueError, OSError)) else None)
        if debug or code is None:
            raise
        text = (
            f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else _message(error)
        )
        if code != 130 or is_first_process():
            sys.stderr.write(f"{'' if code == 130 else 'error: '}{escaped(' '.join(text.split()))}\n")
        sys.exit(code)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show warnings as errors are shown: one line, without the code that they come from."""

    def show(message: Warning | str, *_: object) -> None:
        if is_first_process():
            sys.stderr.write(f"warning: {escaped(' '.join(str(message).split()))}\n")

    before = warnings.showwarning
    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = before


def _message(error: Exception) -> str:
    """The message of an error: fields that flags set as flags, and with the command that resumes an unfinished run."""
    try:
        from longtail.lab.cli.arguments import in_flags
        from longtail.lab.config import FileError
    except ImportError:  # without the extra lab
        return str(error)
    text = str(error) if isinstance(error, FileError) else in_flags(str(error))
    if type(error).__name__ == "NotFinished":  # whose module is slow to import
        path = error.path  # type: ignore[attr-defined]
        text += f": longtail train --config {quote(str(path))} --runs {quote(str(path.absolute().parent))}"
    return text


def is_first_process() -> bool:
    """Whether this is the first of a training's processes: torchrun numbers them all, Fabric those of a machine."""
    return not int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


def _run(arguments: list[str]) -> None:
    try:
        from longtail._checks import check_choice
        from longtail.lab.cli.app import COMMANDS, make_app, run

        if not arguments or arguments[0] in ("-h", "--help", "help"):
            lines = [f"  {name:<10}{command.about}" for name, command in COMMANDS.items()]
            sys.stdout.write(HELP.format(commands="\n".join(lines)))
        elif arguments[0] == "completion":
            shell = (arguments[1:] or ["bash"])[0]
            check_choice("shell", shell, ("bash", "zsh", "tcsh"))
            make_app().cli(prog="longtail", args=["--tyro-print-completion", shell])
        else:
            run(arguments)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").split(".")[0]
        if package == "longtail":
            raise
        if arguments[:1] == ["weights"]:
            from longtail.lab.cli.class_weights import weights_without_lab

            return weights_without_lab(arguments[1:])
        raise ValueError(f"{package} is missing: pip install 'longtail[lab]'") from None
