"""All commands."""

from tyro.extras import SubcommandApp

from longtail.lab.cli import data

__all__ = ["app"]

app = SubcommandApp()
app.command(data.app, name="data", help="Which data sets there are, what is in them, and how to get them.")
