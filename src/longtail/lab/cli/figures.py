"""``longtail figures``; what is slow to import is imported where it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from longtail._checks import check_choice, check_in_unit_interval
from longtail.lab.cli.arguments import AsJson
from longtail.lab.cli.output import console, print_json, progress, whole_numbers
from longtail.lab.config import ConfigError, config_errors, shortest

if TYPE_CHECKING:
    from pandas import DataFrame

    from longtail.lab.report import Inputs

__all__ = ["figures_command"]

ENDINGS = ("svg", "pdf", "png", "html")


def figures_command(
    name: Positional[Annotated[str | None, arg(metavar="NAME|all", help="A figure of --list, or all.")]] = None,
    output: Annotated[Path, arg(aliases=["-o"], metavar="DIR", help="Folder to write to.")] = Path("figures"),
    runs: Annotated[Path | None, arg(metavar="RUNS", help="A folder of run folders, or a run folder.")] = None,
    dataset: Annotated[
        str | None, arg(metavar="NAME", help="cifar10, cifar20 or cifar100: for counts; of runs, only those on it.")
    ] = None,
    counts: Annotated[str | None, arg(metavar="N,N,…", help="Training images of each class.")] = None,
    beta: Annotated[
        tuple[float, ...], arg(help="β of class_balanced_term, effective_numbers and, one of them, scheme_weights.")
    ] = (),
    only: Annotated[
        tuple[str, ...],
        arg(
            metavar="[FIELD=VALUE [FIELD=VALUE ...]]", help="Only runs with these values: model=resnet32 beta=0.9,0.99."
        ),
    ] = (),
    formats: Annotated[tuple[str, ...], arg(help="svg, pdf, png or html.")] = ENDINGS,
    list_: Annotated[bool, arg(name="list", help="List the figures, and what each needs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw the figures of the paper, of your own runs and counts, for print and for the screen.

    With all, those that cannot be drawn from what is there are left out, and named with the reason. Where runs have
    several imbalances and a figure shows one, it is 50, or else the largest; --only imbalance=10 chooses another.

    Example: longtail figures heatmap -o figures --runs runs --formats pdf
    """
    if list_:
        _list(as_json)
        return
    from longtail.lab.report import FIGURES

    if name is None:
        raise ConfigError(f"name a figure: {', '.join(FIGURES)}, or all; see longtail figures --list")
    check_choice("figure", name, (*FIGURES, "all"))
    if not formats:
        raise ConfigError(f"--formats is missing: {', '.join(ENDINGS)}")
    for ending in formats:
        check_choice("format", ending, ENDINGS)
    if name != "all":
        _refuse_idle(name, {"counts": counts, "runs": runs, "dataset": dataset, "beta": beta})
    inputs = _inputs(runs, dataset, counts, beta, only)
    written, left_out = _draw(list(FIGURES) if name == "all" else [name], inputs, output, formats, name == "all")
    if as_json:
        print_json({"written": [str(path) for path in written], "left_out": left_out})
        return
    for path in written:
        console().print(str(path), soft_wrap=True)
    for figure, reason in left_out.items():
        progress().print(f"left out: {figure}: {reason}", soft_wrap=True)


def _refuse_idle(name: str, flags: dict[str, Any]) -> None:
    from longtail.lab.report import FIGURES

    given = [flag for flag, value in flags.items() if value not in (None, ())]
    for flag in given:
        if flag not in FIGURES[name].reads:
            raise ConfigError(f"--{flag} would do nothing: {name} has no use for it")
        if flag in ("runs", "dataset") and "counts" in given:
            raise ConfigError(f"--{flag} would do nothing beside --counts")
    if name == "scheme_weights" and len(flags["beta"]) > 1:
        raise ConfigError(f"--beta {' '.join(map(shortest, flags['beta']))}: {name} shows one β")


def _draw(
    names: Sequence[str], inputs: Inputs, output: Path, formats: Sequence[str], go_on: bool
) -> tuple[list[Path], dict[str, str]]:
    """What was written, and what was not and why."""
    from longtail.lab.report import FIGURES, save

    written: list[Path] = []
    left_out: dict[str, str] = {}
    for name in names:
        try:
            if FIGURES[name].needs_runs and inputs.runs is None:
                raise ConfigError("--runs is missing")
            with config_errors():
                chart = FIGURES[name].make(inputs)
        except ConfigError as error:
            if not go_on:
                raise ConfigError(f"{name}: {error}") from None
            left_out[name] = str(error)
        else:
            written += save(chart, output, name, formats)
    if not written:
        raise ConfigError("none of the figures can be drawn: " + "; ".join(f"{k}: {v}" for k, v in left_out.items()))
    return written, left_out


def _list(as_json: bool) -> None:
    from longtail.lab.report import FIGURES

    if as_json:
        print_json({name: {"needs_runs": figure.needs_runs, "about": figure.about} for name, figure in FIGURES.items()})
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "needs", "what"):
        table.add_column(title)
    for name, figure in FIGURES.items():
        table.add_row(name, "--runs" if figure.needs_runs else "-", figure.about)
    console().print(table)


def _inputs(
    runs: Path | None, dataset: str | None, counts: str | None, betas: tuple[float, ...], only: Sequence[str]
) -> Inputs:
    from longtail.lab.experiments import load_results
    from longtail.lab.experiments.aggregate import without_folds
    from longtail.lab.report import Inputs

    if only and runs is None:
        raise ConfigError(f"--only {only[0]} would do nothing without --runs")
    frame = None if runs is None else without_folds(_chosen(load_results(runs), runs, dataset, only))
    with config_errors():
        for value in betas:
            check_in_unit_interval("beta", value)
    return Inputs(
        dataset=dataset,
        counts=None if counts is None else whole_numbers(counts.split(","), "--counts"),
        betas=betas,
        runs=runs,
        frame=frame,
    )


def _chosen(frame: DataFrame, runs: Path, dataset: str | None, only: Sequence[str]) -> DataFrame:
    """The runs that have the values."""
    from longtail.lab.experiments.results import SETTING

    for text in [*([f"data={dataset}"] if dataset else []), *only]:
        column, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"--only takes FIELD=VALUE, such as model=resnet32, got {text!r}")
        with config_errors():
            check_choice("field", column, ("method", "seed", *SETTING))
        values = frame[column].tolist()
        is_one = any(_matches(each, value) for each in values)  # the names of methods have commas in them
        there = {one: [_matches(each, one) for each in values] for one in ([value] if is_one else value.split(","))}
        for one, found in there.items():
            if not any(found):
                raise ConfigError(f"{runs}/ holds no run with {column}={one}")
        frame = frame[list(map(any, zip(*there.values(), strict=True)))]
    return frame


def _matches(value: object, text: str) -> bool:
    """Whether a value of a configuration is what was typed; a list is typed with blanks, what is missing as none."""
    if isinstance(value, tuple):
        return shortest(value) == text
    if value is None or str(value) in ("nan", "<NA>"):
        return text == "none"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(text) == float(value)
        except ValueError:
            return False
    return str(value).lower() == text.lower()
