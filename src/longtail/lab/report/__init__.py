"""What the numbers look like: figures as files, and runs as a page."""

from __future__ import annotations

from longtail.lab.report.figures import FIGURES, Figure, Inputs, load_epochs
from longtail.lab.report.page import make_page, write_page
from longtail.lab.report.save import FORMATS, save
from longtail.lab.report.theme import spec

__all__ = ["FIGURES", "FORMATS", "Figure", "Inputs", "load_epochs", "make_page", "save", "spec", "write_page"]
