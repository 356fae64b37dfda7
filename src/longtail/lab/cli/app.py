"""All commands, each imported only when it is called, so that `longtail weights` starts fast.

The parser is imported late, too: ``longtail --help`` works without the extra ``lab``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

from longtail._checks import check_choice
from longtail.lab.cli.plain import print_line

if TYPE_CHECKING:
    from tyro.extras import SubcommandApp


class Command(NamedTuple):
    """Where a command is, and what it is for."""

    module: str
    name: str
    about: str


COMMANDS: Mapping[str, Command] = {
    "demo": Command("demo", "demo_command", "train on long-tailed digits, plain and class-balanced: about a minute"),
    "weights": Command("weights", "weights_command", "effective numbers and class weights of your counts or labels"),
    "data": Command("data", "COMMANDS", "data sets: list, show, check, fetch; cache of features"),
    "train": Command("train", "train_command", "train a classifier, or resume an interrupted training"),
    "evaluate": Command("train", "evaluate_command", "evaluate a finished run, class by class"),
    "predict": Command("train", "predict_command", "predict the classes of images"),
    "retrain": Command("heads", "retrain_command", "retrain the classifier of a finished run (cRT)"),
    "adjust": Command("heads", "adjust_command", "adjust a finished run for rare classes, without training"),
    "export": Command("export", "export_command", "write a finished run as an ONNX file"),
    "tune": Command("tune", "tune_command", "find the best loss, β and γ for your data, and train with it"),
    "sweep": Command("sweep", "sweep_command", "many runs: the paper's tables and figures, or your own grid"),
    "results": Command("results", "results_command", "summarise runs over seeds: mean, spread, difference from plain"),
    "report": Command("report", "report_command", "runs as one HTML page, with an explorer of class weights"),
    "figures": Command("figures", "figures_command", "the paper's figures for your runs, for print and screen"),
}


def run(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names."""
    name, rest = arguments[0], list(arguments[1:])
    check_choice("command", name, tuple(COMMANDS))
    called = commands_of(name)
    if not isinstance(called, Mapping):
        _call(called, f"longtail {name}", rest)
    elif {"-h", "--help"} & set(rest[:1]):
        _group(called).cli(prog=f"longtail {name}", description=COMMANDS[name].about, args=rest)
    elif rest:
        check_choice(f"{name} command", rest[0], tuple(called))
        _call(called[rest[0]], f"longtail {name} {rest[0]}", rest[1:])
    else:
        raise ValueError(f"longtail {name} needs a command: {', '.join(called)}; see longtail {name} --help")


def make_app() -> SubcommandApp:
    """All commands at once, for the shell's completion."""
    from tyro.extras import SubcommandApp

    app = SubcommandApp()
    for name, command in COMMANDS.items():
        called = commands_of(name)
        if isinstance(called, Mapping):
            app.command(_group(called), name=name, help=command.about)
        else:
            app.command(name=name)(called)
    return app


def commands_of(name: str) -> Callable[..., Any] | Mapping[str, Callable[..., Any]]:
    """The command, or, by their names, the commands that it has."""
    command = COMMANDS[name]
    return getattr(importlib.import_module(f"longtail.lab.cli.{command.module}"), command.name)  # type: ignore[no-any-return]


def _group(commands: Mapping[str, Callable[..., Any]]) -> SubcommandApp:
    from tyro.extras import SubcommandApp

    app = SubcommandApp()
    for name, command in commands.items():
        app.command(name=name)(command)
    return app


def _call(command: Callable[..., Any], prog: str, arguments: Sequence[str]) -> None:
    """Parse the arguments, then run the command: its own errors are not the parser's."""
    import tyro

    if {"-h", "--help"} & set(arguments):
        for line in _described(inspect.getdoc(command) or "", shutil.get_terminal_size().columns):
            print_line(line)
    parse = functools.partial(
        tyro.cli, as_parsed(command), prog=prog, description="", args=arguments, **parser_options()
    )
    called, unknown = parse(return_unknown_args=True)
    if unknown and not _set_fields(called, unknown):
        parse()  # says what is wrong
    called()


def _set_fields(called: functools.partial[Any], unknown: Sequence[str]) -> bool:
    """Take flags that the parser does not know as fields of the configuration; False if they are none."""
    group = next((name for name, value in called.keywords.items() if hasattr(value, "set")), None)
    if group is None:
        return False
    from longtail.lab.cli.arguments import other_fields

    if (found := other_fields(unknown)) is None:
        return False
    arguments = called.keywords[group]
    called.keywords[group] = dataclasses.replace(arguments, set=(*arguments.set, *found))
    return True


def _described(text: str, width: int) -> list[str]:
    """What a command is for, in lines that fit; its example can be copied."""
    described = []
    for paragraph in text.split("\n\n"):
        lines = textwrap.wrap(paragraph, width - 2, break_on_hyphens=False)
        if paragraph.startswith("Example: "):  # broken before flags only: quoted values have blanks
            lines = textwrap.wrap(re.sub(" (?!--)", "\xa0", paragraph), width - 2, break_on_hyphens=False)
            lines = " \\\n    ".join(lines).replace("\xa0", " ").split("\n")
        described += [*lines, ""]
    return described


def as_parsed(command: Callable[..., Any]) -> Callable[..., functools.partial[Any]]:
    """A function with the flags of a command, which returns the command with their values."""

    @functools.wraps(command)
    def parsed(*values: Any, **flags: Any) -> functools.partial[Any]:
        return functools.partial(command, *values, **flags)

    hints = get_type_hints(command, include_extras=True)
    del parsed.__wrapped__  # whose types tyro would take
    parsed.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    parsed.__annotations__ = {name: _with_default_shown(kind) for name, kind in hints.items()}
    return parsed


def parser_options() -> dict[str, Any]:
    """How all commands are parsed, and their help is written."""
    from tyro.conf import DisallowNone
    from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

    registry, inner = ConstructorRegistry(), False

    @registry.struct_rule
    def group(info: StructTypeInfo) -> StructConstructorSpec | None:
        """As tyro reads it, with other words for defaults."""
        nonlocal inner
        if inner:
            return None
        inner = True
        spec = registry.get_struct_spec(info)
        inner = False
        if not isinstance(spec, StructConstructorSpec):
            return None
        fields = [dataclasses.replace(each, type=_with_default_shown(each.type)) for each in spec.fields]
        return dataclasses.replace(spec, fields=tuple(fields))

    return {"config": (DisallowNone,), "registry": registry}


def _with_default_shown(kind: Any) -> Any:
    """The type of a flag whose help says what its default is, if it has one that says anything."""
    from tyro.conf import arg

    def shown(default: str) -> str:
        return "" if default in ("None", "False", "") else f"(default: {'on' if default == 'True' else default})"

    return Annotated[kind, arg(help_behavior_hint=shown)]
