"""``longtail results``: what runs say together; what is slow to import is imported where it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from longtail.lab.cli.output import AsJson, console, print_json, progress
from longtail.lab.config import shortest
from longtail.lab.data import GROUPS

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["results_command", "show_results"]

Runs = Positional[Annotated[Path, arg(metavar="RUNS", help="A folder of run folders, or a run folder.")]]
Output = Annotated[
    Path | None, arg(aliases=["-o"], metavar="FILE", help="Write one row for each run to a .csv or .json file.")
]

PROBLEMS = 20
"""How many runs that are not complete are named."""

Row = dict[str, Any]


def results_command(
    runs: Runs,
    per_run: Annotated[bool, arg(help="Show one row for each run, not for each setting.")] = False,
    output: Output = None,
    records: Annotated[
        Path | None, arg(metavar="DIR", help="Copy complete runs there, without weights and checkpoints.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the results of runs: mean and spread over seeds, and the difference from the plain loss.

    Runs that are not complete are named, and never counted.

    Example: longtail results runs --output results.csv
    """
    from longtail.lab.experiments.aggregate import without_folds
    from longtail.lab.experiments.results import load_results, write_results

    frame = load_results(runs)
    if output:
        write_results(frame, output)
    if records:
        from longtail.lab.experiments.records import keep_records

        progress().print(f"records of {keep_records(runs, records)} runs are in {records}", soft_wrap=True)
    whole = without_folds(frame)
    if left_out := len(frame) - len(whole):
        progress().print(f"left out: {left_out} runs of cross-validation, which were not tested on test images")
    show_results(whole, per_run, as_json)


def show_results(frame: DataFrame, per_run: bool = False, as_json: bool = False) -> None:
    """Print what runs say together, and which are not complete."""
    from longtail.lab.experiments.aggregate import deltas, summarize_results
    from longtail.lab.experiments.results import to_records

    rows = to_records(frame)
    settings, changes = to_records(summarize_results(frame)), to_records(deltas(frame))
    if as_json:
        print_json({"runs": rows, "settings": settings, "deltas": changes})
    elif per_run:
        console().print(_run_table(rows))
    elif settings:
        _print_settings(settings, changes, console())
    _print_problems(rows, progress())


def _print_settings(settings: list[Row], changes: list[Row], out: Console) -> None:
    from longtail.lab.experiments.results import FIRST, SETTING, row_key, telling_columns

    change_of = {row_key(row, SETTING): row for row in changes}
    varying = [name for name in FIRST if len({row_key(row, [name]) for row in settings}) > 1]
    shown = telling_columns(settings, varying)
    same = [name for name in FIRST if name not in shown]
    groups = [name for name in GROUPS if any(row[f"{name}_mean"] is not None for row in settings)]
    compared = any(row["pairs"] for row in changes)
    known = any(row["published"] is not None for row in settings)
    title = ", ".join(_titled(name, settings[0][name]) for name in same if settings[0][name] is not None)
    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for name in (*shown, "loss"):
        side: Literal["left", "right"] = "left" if name in ("data", "model", "loss") else "right"
        table.add_column(name.replace("_", " "), justify=side, overflow="fold")
    for name in ("n", "error %", *(f"{name} %" for name in groups)):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ["Δ error"] * compared + ["published"] * known:
        table.add_column(name, justify="right", no_wrap=True)
    for row in settings:
        cells = [*(_shown(row[name]) for name in shown), row["label"], str(row["n"]), _spread(row)]
        cells += [_percent(row[f"{name}_mean"]) for name in groups]
        cells += [_difference(change_of.get(row_key(row, SETTING)))] * compared + [_number(row["published"])] * known
        table.add_row(*cells)
    out.print(table)
    if groups:
        out.print()
        out.print(f"{', '.join(groups)}: mean recall of classes with so many training images", soft_wrap=True)
    if compared:
        out.print("Δ error: from the plain loss, paired by seed, with its 95% interval", soft_wrap=True)
    if known:
        out.print("published: error of the full protocol of Cui et al. 2019", soft_wrap=True)


def _run_table(rows: list[Row]) -> Table:
    groups = [name for name in GROUPS if any(row[name] is not None for row in rows)]
    table = Table(box=None, pad_edge=False)
    for name in ("run", "status"):
        table.add_column(name, overflow="fold")
    for name in ("seed", "error %", "best %", *(f"{name} %" for name in groups), "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        seconds = "-" if row["seconds"] is None else f"{row['seconds']:,.0f}"
        cells = [row["run_id"], row["status"], _shown(row["seed"]), _number(row["error"]), _number(row["best_error"])]
        table.add_row(*cells, *(_percent(row[name]) for name in groups), seconds)
    return table


def _print_problems(rows: list[Row], out: Console) -> None:
    problems = [row for row in rows if row["status"] != "complete"]
    for row in problems[:PROBLEMS]:
        out.print(f"{row['status']}: {row['run_id']}: {row['problem']}", soft_wrap=True)
    if len(problems) > PROBLEMS:
        out.print(f"and {len(problems) - PROBLEMS} more that are not complete", soft_wrap=True)


def _titled(name: str, value: Any) -> str:
    return {"imbalance": f"imbalance {_shown(value)}", "epochs": f"{value} epochs"}.get(name, str(value))


def _shown(value: Any) -> str:
    return "-" if value is None else shortest(value)


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else f"{value:{form}}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _spread(row: Row) -> str:
    spread = row["error_std"]
    return _number(row["error_mean"]) + ("" if spread is None else f" ± {spread:.2f}")


def _difference(row: Row | None) -> str:
    """A mean difference and its interval; nothing for the plain loss itself."""
    if row is None:
        return ""
    interval = "" if row["error_low"] is None else f" [{row['error_low']:+.2f}, {row['error_high']:+.2f}]"
    return _number(row["error_delta"], "+.2f") + interval
