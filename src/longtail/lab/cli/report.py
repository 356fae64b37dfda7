"""``longtail report``: runs as one HTML page; what is slow to import is imported where it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from longtail.lab.cli.output import console


def report_command(
    runs: Positional[Annotated[Path, arg(metavar="RUNS", help="A folder of run folders, or a run folder.")]],
    output: Annotated[Path, arg(aliases=["-o"], metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[
        str | None, arg(metavar="TEXT", help="Title of the page; the name of the folder by default.")
    ] = None,
    images: Annotated[bool, arg(help="Embed misclassified test images as thumbnails.")] = True,
) -> None:
    """Write runs as one HTML page that needs no network: tables, figures, classes, failures, and an explorer of β.

    Example: longtail report runs -o report.html --title "Long-tailed digits"
    """
    from longtail.lab.cli.arguments import command_from
    from longtail.lab.report.page import write_page

    path = write_page(
        runs,
        output,
        title,
        images=images,
        command=lambda step: command_from(step.action, step.run, step.changes, step.runs),
    )
    console().print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
