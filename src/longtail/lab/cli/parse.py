"""Arguments to the call that they ask for; what is wrong with them is one line."""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import tyro
from tyro.conf import DisallowNone, SuppressFixed

from longtail.lab.cli.escape import escaped

__all__ = ["CONFIG", "parse"]

CONFIG = (DisallowNone, SuppressFixed)
WIDTH = "100000"
"""Columns of a terminal in which the parser wraps no line of what it says."""


def parse(function: Callable[..., Any], prog: str, arguments: Sequence[str]) -> Callable[[], Any]:
    """The call of a command with these arguments, to be made when they are known to be good.

    Args:
        function: the command; its parameters are the flags.
        prog: how it is called.
        arguments: what was typed after that.

    Example:
        >>> def square(side: float) -> float: return side**2
        >>> parse(square, "square", ["--side", "3"])()
        9.0
        >>> parse(square, "square", ["--side", "x"])
        Traceback (most recent call last):
        ValueError: --side must be a number, got 'x'. See square --help
    """

    @functools.wraps(function)
    def later(*values: Any, **flags: Any) -> Callable[[], Any]:
        return functools.partial(function, *values, **flags)

    if {"-h", "--help"} & set(arguments):
        with _escaped_output():
            return tyro.cli(later, prog=prog, args=arguments, config=CONFIG)
    if name := _repeated(later, prog, arguments):
        raise ValueError(f"{name} is given twice: write all its values behind one. See {prog} --help")
    call, box = _attempt(later, prog, arguments)
    if call is None:
        # Behind an option that it does not know, the parser misses what is there: with that before it, it says so.
        lines = [_line(said) for said in (box, _attempt(later, prog, ["x", *arguments])[1])]
        unknown = next((line for line in lines[::-1] if line.startswith("unknown option")), None)
        raise ValueError(f"{unknown or _misspelt(later, prog, arguments) or lines[0]} See {prog} --help")
    sys.stderr.write(box)
    return call


def _attempt(function: Callable[..., Any], prog: str, arguments: Sequence[str]) -> tuple[Callable[[], Any] | None, str]:
    """What the parser makes of the arguments, if anything, and what it writes to standard error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), _wide():
            return tyro.cli(function, prog=prog, args=arguments, config=CONFIG), said.getvalue()
    except SystemExit as stop:
        if stop.code != 2:
            raise
        return None, said.getvalue()


@contextlib.contextmanager
def _escaped_output() -> Iterator[None]:
    """Of the parser's help, which shows values of configuration files; its own lines and colours stay."""
    out = sys.stdout
    shown = _Like(out)
    kept = re.compile(r"(\n|\x1b\[[\d;]*m)" if out.isatty() else r"(\n)")
    try:
        with contextlib.redirect_stdout(shown):
            yield
    finally:
        parts = kept.split(shown.getvalue())
        out.write("".join(part if place % 2 else escaped(part) for place, part in enumerate(parts)))


class _Like(io.StringIO):
    """Takes what is written to a stream; what that stream can show, colours and frames, the parser asks this one."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _misspelt(function: Callable[..., Any], prog: str, arguments: Sequence[str]) -> str | None:
    """An option that the help does not name: the parser speaks of required ones that are missing instead of it."""
    known = _options(function, prog)
    for flag in _flags(arguments):
        if flag.replace("_", "-") not in known:
            return _unknown(flag, difflib.get_close_matches(flag, sorted(known), 1))
    return None


def _repeated(function: Callable[..., Any], prog: str, arguments: Sequence[str]) -> str | None:
    """An option of several values that is there twice: the parser forgets those behind the first."""
    flags = [flag.replace("_", "-") for flag in _flags(arguments)]
    twice = [flag for flag in flags if flags.count(flag) > 1]
    if not twice:
        return None
    known = _options(function, prog)
    return next((flag for flag in twice if known.get(flag)), None)


def _flags(arguments: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in arguments if word.startswith("--")]


def _options(function: Callable[..., Any], prog: str) -> dict[str, bool]:
    """The options that the help names, and whether each takes several values: its first is in brackets then."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit), _wide():
        tyro.cli(function, prog=prog, args=["--help"], config=CONFIG)
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue())
    # In a box, or beside another where there are no frames, a flag has two blanks before it, and one in a sentence.
    found = re.findall(r"(?:^|\s\s|[│|] |, )(--[\w-]+)( \[)?", plain, re.MULTILINE)
    return {flag: bool(bracket) for flag, bracket in found}


def _line(box: str) -> str:
    """What the parser says in a box, as a sentence."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    # Without its frame, and the lines that divide it, which are of ASCII where a terminal shows no other.
    inside = [line.strip(" │╭╮╰╯─") for line in plain.splitlines()]
    title, *lines = [line for line in inside if line.strip("-") and not line.startswith("For full helptext")] or [""]
    text = lines[0] if lines else title
    if title == "Unrecognized options":
        return _unknown(text, lines[1:])
    if title == "Required options" and len(lines) > 1:
        return f"{lines[1]} is missing: {' '.join(lines[2:3]).removesuffix(' (required)')}"
    for pattern, sentence in SENTENCES.items():
        if found := re.fullmatch(pattern, text):
            return sentence(*found.groups())
    return f"{' '.join(lines) or title}."


def _unknown(text: str, below: Sequence[str]) -> str:
    given = text.removeprefix("Unrecognized options: ").split(", ")
    name = next((word for word in given if word.startswith("-")), None)
    if name is None:
        return f"unexpected argument {given[0]!r}."
    near = next((line.split()[0].rstrip(",") for line in below if line.startswith("--")), None)
    return f"unknown option {name}" + (f"; did you mean {near}?" if near else ".")


SENTENCES: dict[str, Callable[..., str]] = {
    r"Error parsing (.+?): invalid literal for int\(\) with base 10: (.+)": "{} must be a whole number, got {}.".format,
    r"Error parsing (.+?): could not convert string to float: (.+)": "{} must be a number, got {}.".format,
    r"Error parsing (.+?): no type matching INT could be instantiated from \[(.+)\]\.": (
        "{} must be a whole number, got {}.".format
    ),
    r"Error parsing (.+?): no type matching FLOAT could be instantiated from \[(.+)\]\.": (
        "{} must be a number, got {}.".format
    ),
    r"Error parsing (.+?): Could not find valid parse for arguments: \[(.+)\]": "{} cannot be {}.".format,
    r"Error parsing (.+?): (.+)": "{}: {}.".format,
    r"Missing value for argument '(.+)'\. Expected .+": "{} needs a value.".format,
    r"invalid choice '(.*)' for argument '(.+)'\. Expected one of \((.+?),?\)\.": (
        lambda value, flag, choices: f"{flag} cannot be {value!r}: choose from {choices.replace(chr(39), '')}."
    ),
}
"""What the parser says, and what is said instead."""
