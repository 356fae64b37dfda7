"""``longtail figures``; what is slow to import is imported where it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from longtail._checks import check_choice, check_in_unit_interval
from longtail.lab.cli.arguments import AsJson, Switch
from longtail.lab.cli.output import console, progress
from longtail.lab.cli.plain import print_json, whole_numbers
from longtail.lab.config import ConfigError, config_errors, shortest

if TYPE_CHECKING:
    from pandas import DataFrame

    from longtail.lab.report import Inputs

ENDINGS = ("svg", "pdf", "png", "html")


def figures_command(
    name: Positional[Annotated[str | None, arg(metavar="NAME|all", help="A figure of --list, or all.")]] = None,
    output: Annotated[Path, arg(aliases=["-o"], metavar="DIR", help="Folder to write to.")] = Path("figures"),
    runs: Annotated[Path | None, arg(metavar="RUNS", help="A folder of run folders, or a run folder.")] = None,
    dataset: Annotated[
        str | None,
        arg(metavar="NAME", help="cifar10, cifar20 or cifar100: use its counts; with --runs, only runs on it."),
    ] = None,
    counts: Annotated[str | None, arg(metavar="N,N,…", help="Training images of each class.")] = None,
    beta: Annotated[
        tuple[float, ...], arg(help="β for class_balanced_term and effective_numbers; a single one for scheme_weights.")
    ] = (),
    baseline: Annotated[
        str | None, arg(metavar="METHOD", help="Method to compare with; by default the plain loss.")
    ] = None,
    candidate: Annotated[
        str | None, arg(metavar="METHOD", help="Method to compare; by default the one with the best balanced accuracy.")
    ] = None,
    only: Annotated[
        tuple[str, ...],
        arg(
            metavar="[FIELD=VALUE [FIELD=VALUE ...]]", help="Only runs with these values: model=resnet32 beta=0.9,0.99."
        ),
    ] = (),
    formats: Annotated[tuple[str, ...], arg(help="svg, pdf, png or html.")] = ENDINGS,
    list_: Annotated[Switch, arg(name="list", help="List the figures, and what each needs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw the figures of the paper, of your own runs and counts, for print and for the screen.

    With all, those that cannot be drawn from what is there are left out, and named with the reason. Where runs have
    several imbalances and a figure shows one, it is 50, or else the largest; --only imbalance=10 chooses another.

    Example: longtail figures recall_per_class --runs runs --candidate "balanced softmax" --formats pdf
    """
    from longtail.lab.report import FIGURES, Inputs
    from longtail.lab.report.tables import text_table

    if list_ and as_json:
        print_json({name: {"needs_runs": figure.needs_runs, "about": figure.about} for name, figure in FIGURES.items()})
    elif list_:
        rows = [(name, "--runs" if figure.needs_runs else "-", figure.about) for name, figure in FIGURES.items()]
        console().print(text_table(("name", "needs", "what"), rows).to_rich())
    if list_:
        return
    if name is None:
        raise ConfigError(f"name a figure: {', '.join(FIGURES)}, or all; see longtail figures --list")
    check_choice("figure", name, (*FIGURES, "all"))
    if not formats:
        raise ConfigError(f"--formats is missing: {', '.join(ENDINGS)}")
    for ending in formats:
        check_choice("format", ending, ENDINGS)
    given = {"counts": counts, "runs": runs, "dataset": dataset, "beta": beta, "baseline": baseline}
    if name != "all":
        _refuse_unused(name, FIGURES[name].reads, given | {"candidate": candidate})
    if only and runs is None:
        raise ConfigError(f"--only {only[0]} requires --runs")
    with config_errors():
        for value in beta:
            check_in_unit_interval("beta", value)
    inputs = Inputs(
        dataset=dataset,
        counts=None if counts is None else whole_numbers(counts.split(","), "--counts"),
        betas=beta or Inputs.betas,
        runs=runs,
        frame=None if runs is None else _chosen_runs(runs, dataset, only),
        baseline=baseline,
        candidate=candidate,
    )
    written, left_out = _draw(list(FIGURES) if name == "all" else [name], inputs, output, formats)
    if as_json:
        print_json({"written": [str(path) for path in written], "left_out": left_out})
        return
    for path in written:
        console().print(str(path))
    for figure, reason in left_out.items():
        progress().print(f"left out: {figure}: {reason}")


def _draw(
    names: Sequence[str], inputs: Inputs, output: Path, formats: Sequence[str]
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
            left_out[name] = str(error)
        else:
            written += save(chart, output, name, formats)
    if not written:
        raise ConfigError("; ".join(f"{figure}: {reason}" for figure, reason in left_out.items()))
    return written, left_out


def _refuse_unused(name: str, reads: tuple[str, ...], flags: dict[str, Any]) -> None:
    given = [flag for flag, value in flags.items() if value not in (None, ())]
    for flag in given:
        if flag not in reads:
            raise ConfigError(f"{name} does not use --{flag}")
        if flag in ("runs", "dataset") and "counts" in given:
            raise ConfigError(f"--{flag} and --counts exclude each other")
    if name == "scheme_weights" and len(flags["beta"]) > 1:
        raise ConfigError(f"--beta {' '.join(map(shortest, flags['beta']))}: {name} shows one β")


def _chosen_runs(runs: Path, dataset: str | None, only: Sequence[str]) -> DataFrame:
    """The runs that have the values."""
    from longtail.lab.experiments.aggregate import without_folds
    from longtail.lab.experiments.results import SETTING, load_results

    frame = load_results(runs)
    for text in [*([f"data={dataset}"] if dataset else []), *only]:
        column, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"--only takes FIELD=VALUE, such as model=resnet32, got {text!r}")
        with config_errors():
            check_choice("field", column, ("method", "seed", *SETTING))
        values = frame[column].tolist()
        is_one = any(_matches(each, value) for each in values)  # the names of methods have commas in them
        found = {one: [_matches(each, one) for each in values] for one in ([value] if is_one else value.split(","))}
        if missing := [one for one, matches in found.items() if not any(matches)]:
            raise ConfigError(f"{runs}/ holds no run with {column}={missing[0]}")
        frame = frame[list(map(any, zip(*found.values(), strict=True)))]
    return without_folds(frame)


def _matches(value: object, text: str) -> bool:
    """Whether a value of a configuration is what was typed; a list is typed with blanks, what is missing as none."""
    if value is None or str(value) in ("nan", "<NA>"):
        return text == "none"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(text) == float(value)
        except ValueError:
            return False
    return shortest(value).lower() == text.lower()
