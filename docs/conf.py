"""The documentation site: ``sphinx-build -W --keep-going -b html docs build/docs``. Nothing is fetched, here or by the pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import longtail

DOCS = Path(__file__).parent

project = "longtail"
author = "The longtail authors"
copyright = author  # noqa: A001
version = release = longtail.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static"]

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "exclude-members": "extra_repr", "show-inheritance": False}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
add_module_names = False
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
html_show_sphinx = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"


def setup(app: Sphinx) -> None:
    """What the extensions do not have."""
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_formula, None))
    app.connect("source-read", _lead_to_pages)


def _inline_formula(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _formula(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def _lead_to_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Lead links to records, which are outside of this folder, to the pages that include them."""
    up = "../" * page.count("/")

    def lead(link: re.Match[str]) -> str:
        return f"]({up}benchmarks/{link[1]})" if (DOCS / "benchmarks" / link[1]).exists() else link[0]

    source[0] = re.sub(r"\]\((?:\.\./)+results/bench/([\w-]+\.md)\)", lead, source[0])
