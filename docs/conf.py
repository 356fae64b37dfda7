"""The documentation site: ``sphinx-build -W --keep-going -b html docs build/docs``.

Neither the build nor its pages need a network.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import longtail
from longtail.lab.report.page import make_explorer
from longtail.losses import LOSSES

if TYPE_CHECKING:  # pytest looks for doctests here also where there is no Sphinx
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.append(str(DOCS))  # for commands.py

project = "longtail"
author = "The longtail authors"
copyright = author  # noqa: A001
version = release = longtail.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
extensions += ["sphinx_copybutton"]
extensions += ["sphinx-mathjax-offline"]  # bundles MathJax, so that pages load nothing from the network

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "exclude-members": "extra_repr"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
add_module_names = False
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Reference", "References")]

html_theme = "furo"
html_title = f"longtail {release}"
html_static_path = ["_static"]
html_css_files = ["longtail.css"]
html_copy_source = False
html_search_scorer = str(DOCS / "_static" / "scorer.js")
html_show_sphinx = False
smartquotes_action = "qe"  # quotes and ellipses, but not the two hyphens of a flag
pygments_style = "friendly"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


FIT_FRAME = """
addEventListener("message", ({data}) => {
  const frame = document.querySelector(".explorer");
  if (data.explorerHeight) frame.style.height = `${data.explorerHeight + 4}px`;
});
"""
"""Makes the explorer's frame as tall as what it shows."""


def setup(app: Sphinx) -> None:
    """Register what only the site does."""
    app.connect("source-read", _for_the_site)
    app.connect("build-finished", _write_explorer)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)  # before Napoleon


def _for_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Adapt a page, which can be read in the repository as well, to the site."""
    text = source[0]
    # Records are outside of this folder; pages in benchmarks/ include them.
    up = "../" * page.count("/")
    for record in re.findall(
        r"\]\(((?:\.\./)+results/(?:bench|advise|small|resnet32|photographs|table2)/[\w-]+\.md)\)", text
    ):
        if (DOCS / "reference" / "benchmarks" / Path(record).name).exists():
            text = text.replace(f"({record})", f"({up}reference/benchmarks/{Path(record).name})")
    # A doctest ends with an empty line; a block of code need not.
    text = text.replace("\n\n```\n", "\n```\n")
    if page == "reference/api/longtail":
        modules = [f".. autoclass:: {kind.module.__name__}" for kind in LOSSES.values()]
        text = text.replace(".. the module of each loss", "\n".join(modules))
    if page == "reference/cli":
        from commands import all_commands

        text = text.replace("% every command and flag", all_commands())
    if page == "explanation/explorer":
        frame = '<iframe class="explorer" src="../_static/explorer.html" title="Explorer of class weights"></iframe>'
        frame += f"\n<script>\n{FIT_FRAME}</script>"
        text = text.replace("% explorer", f"```{{raw}} html\n{frame}\n```")
    if page == "explanation/decisions/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"
    source[0] = text


def _write_explorer(app: Sphinx, error: Exception | None) -> None:
    """The page that the explorer's frame shows."""
    if error is None:
        (Path(app.outdir) / "_static" / "explorer.html").write_text(make_explorer(), encoding="utf-8")


def _keep_colons(app: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Keep Napoleon from reading the first line of a field's docstring as a type, a colon and a description."""
    if kind in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]
