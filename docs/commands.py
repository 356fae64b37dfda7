"""The reference of the command line, generated from the parsers: every command with every flag."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from longtail.lab.cli.app import COMMANDS, as_parsed, commands_of, parser_options


def all_commands() -> str:
    """Markdown with a section for each command: what it does, an example, and a table of its flags."""
    return "\n".join(_section(name, command) for name, command in _commands())


def _commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in COMMANDS:
        called = commands_of(name)
        if isinstance(called, Mapping):
            yield from ((f"{name} {inner}", command) for inner, command in called.items())
        else:
            yield name, called


def _section(name: str, command: Callable[..., Any]) -> str:
    from tyro.extras import get_parser

    with warnings.catch_warnings():  # deprecated in favour of nothing that lists flags
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = get_parser(as_parsed(command), **parser_options())
    about, _, example = (parser.description or "").partition("\n\nExample: ")
    lines = [f"### longtail {name}", "", _escape(about), ""]
    if example:
        lines += ["```sh", example, "```", ""]
    lines += ["| argument | meaning |", "|---|---|"]
    lines += [_row(action) for action in parser._actions if action.dest != "help"]
    return "\n".join(lines) + "\n"


def _row(action: argparse.Action) -> str:
    names = action.option_strings or [str(action.dest)]
    metavar = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar
    flag = ", ".join(f"`{name}`" for name in names)
    if metavar and action.option_strings:
        flag += f" `{metavar}`"
    help_text = re.sub(r"\x1b\[[\d;]*m", "", action.help or "").strip()
    return f"| {_escape(flag)} | {_escape(help_text)} |"


def _escape(text: str) -> str:
    return re.sub(r"([|<*$])", r"\\\1", text.replace("\n", " "))
