"""All commands."""

from __future__ import annotations

from collections.abc import Sequence

from tyro.extras import SubcommandApp

from longtail.lab.cli import data
from longtail.lab.cli.demo import demo_command
from longtail.lab.cli.results import results_command
from longtail.lab.cli.sweep import sweep_command
from longtail.lab.cli.train import evaluate_command, predict_command, train_command
from longtail.lab.cli.tune import tune_command

__all__ = ["make_app"]


def make_app(arguments: Sequence[str]) -> SubcommandApp:
    """The commands; the defaults of some follow from the arguments."""
    app = SubcommandApp()
    app.command(name="demo")(demo_command)
    app.command(data.app, name="data", help="Which data sets there are, what is in them, and how to get them.")
    app.command(name="train")(train_command(arguments if arguments[:1] == ["train"] else ()))
    app.command(name="evaluate")(evaluate_command)
    app.command(name="predict")(predict_command)
    app.command(name="sweep")(sweep_command)
    app.command(name="tune")(tune_command(arguments if arguments[:1] == ["tune"] else ()))
    app.command(name="results")(results_command)
    return app
