"""``longtail results``; what is slow to import is imported where it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from longtail.lab.cli.arguments import AsJson, Switch
from longtail.lab.cli.output import console, progress
from longtail.lab.cli.plain import print_json
from longtail.lab.data import GROUPS

if TYPE_CHECKING:
    from pandas import DataFrame

    from longtail.lab.report.tables import Table

Runs = Positional[Annotated[Path, arg(metavar="RUNS", help="A folder of run folders, or a run folder.")]]
Output = Annotated[
    Path | None, arg(aliases=["-o"], metavar="FILE", help="Write one row for each run to a .csv or .json file.")
]

PROBLEMS = 20
"""How many runs that are not complete are named."""

WIDEST = 1000
"""Of tables in files, in which nothing is wrapped."""

Row = dict[str, Any]


def results_command(
    runs: Runs,
    per_run: Annotated[Switch, arg(help="Show one row for each run, not for each setting.")] = False,
    output: Output = None,
    records: Annotated[
        Path | None, arg(metavar="DIR", help="Copy complete runs there, without weights and checkpoints.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise runs over seeds: mean, spread, and the difference from the plain loss, best balanced accuracy first.

    Incomplete and failed runs are listed, and never counted.

    Example: longtail results runs --output results.csv
    """
    from longtail.lab.experiments.aggregate import without_folds
    from longtail.lab.experiments.results import keep_records, load_results, write_results

    frame = load_results(runs)
    if output:
        write_results(frame, output)
    if records:
        kept = keep_records(runs, records)
        progress().print(f"{kept} record{'s' if kept != 1 else ''} kept in {records}")
    whole = without_folds(frame)
    if left_out := len(frame) - len(whole):
        progress().print(f"left out: {left_out} runs of cross-validation, which were not tested on test images")
    show_results(whole, per_run, as_json)


def show_results(frame: DataFrame, per_run: bool = False, as_json: bool = False) -> None:
    """Print a summary of runs, and which are not complete."""
    from longtail.lab.experiments.aggregate import deltas, summarize_results
    from longtail.lab.experiments.results import to_records
    from longtail.lab.report.tables import run_table, setting_table

    rows = to_records(frame)
    settings, changes = to_records(summarize_results(frame)), to_records(deltas(frame))
    if as_json:
        print_json({"runs": rows, "settings": settings, "deltas": changes})
    elif per_run:
        out = console(WIDEST)
        out.print(run_table(frame).to_rich(out.width))
    elif settings:
        _print_settings(setting_table(frame), console(WIDEST))
    _print_problems(rows, progress())


def _print_settings(table: Table, out: Console) -> None:
    out.print(table.to_rich(out.width))
    names = {column.name for column in table.columns}
    groups = [name for name in GROUPS if f"{name} %" in names]
    if groups:
        out.print()
        out.print(f"{', '.join(groups)}: mean recall of classes with that many training images")
    if "rarest quarter %" in names:
        out.print("rarest quarter: mean recall of the quarter of the classes with the fewest training images")
    if "Δ balanced accuracy" in names:
        told = "difference from the plain loss in percentage points, paired by seed, with its 95% interval"
        out.print(f"Δ balanced accuracy: {told}")
    if any(name.startswith("published") for name in names):
        out.print("published: error of the full protocol of Cui et al. 2019")


def _print_problems(rows: list[Row], out: Console) -> None:
    problems = [row for row in rows if row["status"] != "complete"]
    for row in problems[:PROBLEMS]:
        out.print(f"{row['status']}: {row['run_id']}: {row['problem']}")
    if len(problems) > PROBLEMS:
        out.print(f"and {len(problems) - PROBLEMS} more that are not complete")
