"""What the numbers look like: tables, figures as files, and runs as a page."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longtail.lab.report.figures import FIGURES, Figure, Inputs, load_epochs
    from longtail.lab.report.formats import FORMATS, save
    from longtail.lab.report.page import make_page, write_page
    from longtail.lab.report.theme import spec

__all__ = ["FIGURES", "FORMATS", "Figure", "Inputs", "load_epochs", "make_page", "save", "spec", "write_page"]

_MODULES = {"FORMATS": "formats", "save": "formats", "make_page": "page", "write_page": "page", "spec": "theme"}


def __getattr__(name: str) -> Any:
    """Import what draws only when it is needed: a table in the terminal does not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'figures')}")
    return getattr(module, name)
