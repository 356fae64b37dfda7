"""All commands, each imported only when it is called: who asks for weights does not wait for what trains."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tyro.extras import SubcommandApp

from longtail._checks import check_choice
from longtail.lab.cli.parse import CONFIG, parse

__all__ = ["COMMANDS", "make_app", "run"]


class Command(NamedTuple):
    """Where a command is, and what it is for."""

    module: str
    name: str
    about: str
    follows: bool = False
    """Whether its defaults follow from the arguments."""


COMMANDS: Mapping[str, Command] = {
    "demo": Command("demo", "demo_command", "train on long-tailed digits, plain and class-balanced: about a minute"),
    "weights": Command("weights", "weights_command", "effective numbers and class weights of your counts or labels"),
    "advise": Command("advise", "advise_command", "β from your images: how many prototypes each class has"),
    "data": Command("data", "COMMANDS", "data sets: list, show, check, fetch"),
    "train": Command("train", "train_command", "train, or go on with a training that was interrupted", follows=True),
    "evaluate": Command("train", "evaluate_command", "test a finished run: its classes, worst first"),
    "predict": Command("train", "predict_command", "name the classes of images"),
    "retrain": Command(
        "head", "retrain_command", "a new last layer for a finished run, on balanced classes", follows=True
    ),
    "rebalance": Command("head", "rebalance_command", "the last layer of a finished run, in favour of rare classes"),
    "tune": Command(
        "tune", "tune_command", "find the best loss, β and γ for your data, and train with it", follows=True
    ),
    "sweep": Command("sweep", "sweep_command", "many runs: the paper's tables and figures, or your own"),
    "results": Command("results", "results_command", "what runs say together: mean, spread, difference from plain"),
    "report": Command("report", "report_command", "runs as one page to look at, with an explorer of weights"),
    "figures": Command("figures", "figures_command", "the paper's figures of your runs, for print and for the screen"),
}


def run(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names."""
    name, rest = arguments[0], list(arguments[1:])
    check_choice("command", name, tuple(COMMANDS))
    called = _load(name, rest)
    if not isinstance(called, Mapping):
        parse(called, f"longtail {name}", rest)()
    elif {"-h", "--help"} & set(rest[:1]):
        _group(called).cli(prog=f"longtail {name}", description=COMMANDS[name].about, args=rest, config=CONFIG)
    elif rest:
        check_choice(f"{name} command", rest[0], tuple(called))
        parse(called[rest[0]], f"longtail {name} {rest[0]}", rest[1:])()
    else:
        raise ValueError(f"which one? longtail {name} {', '.join(called)}; longtail {name} --help says more")


def make_app() -> SubcommandApp:
    """All commands at once, for the shell's completion."""
    app = SubcommandApp()
    for name, command in COMMANDS.items():
        called = _load(name, None)
        if isinstance(called, Mapping):
            app.command(_group(called), name=name, help=command.about)
        else:
            app.command(name=name)(called)
    return app


def _group(commands: Mapping[str, Callable[..., Any]]) -> SubcommandApp:
    app = SubcommandApp()
    for name, command in commands.items():
        app.command(name=name)(command)
    return app


def _load(name: str, arguments: Sequence[str] | None) -> Callable[..., Any] | Mapping[str, Callable[..., Any]]:
    """The command, or, by their names, the commands that it has."""
    command = COMMANDS[name]
    found = getattr(importlib.import_module(f"longtail.lab.cli.{command.module}"), command.name)
    return found(arguments) if command.follows else found  # type: ignore[no-any-return]
