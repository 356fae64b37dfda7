"""Charts as files: for print, for a page, and as a page of their own that needs no network."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from longtail._checks import check_choice
from longtail.lab.files import write_atomically
from longtail.lab.report.theme import spec

FORMATS = ("svg", "pdf", "png", "html")

PPI = 300
"""Of a PNG at its natural size."""

POINT = 72 / 96
"""Of a pixel: 96 pixels of a chart are an inch, and 72 points of a PDF; so a figure is some 8.5 cm wide as it is."""


def save(chart: Any, folder: Path | str, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a chart to ``folder/name.format`` in each format.

    Args:
        chart: what a function of figures returned.
        folder: made if it is not there.
        name: of the files, without ending.
        formats: svg and pdf for print, png at 300 pixels an inch, html with tooltips and everything it needs inside.

    Returns:
        The files, in the order of the formats.

    Example:
        >>> import tempfile
        >>> from longtail.lab.report.figures import class_balanced_term
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in save(class_balanced_term(), folder, "term", ["svg"])]
        ['term.svg']
    """
    for form in formats:
        check_choice("format", form, FORMATS)
    content = spec(chart)
    makers: dict[str, Callable[[dict[str, Any]], str | bytes]] = {
        "svg": vl_convert.vegalite_to_svg,
        "pdf": lambda content: vl_convert.svg_to_pdf(_in_points(vl_convert.vegalite_to_svg(content))),
        "png": lambda content: vl_convert.vegalite_to_png(content, scale=POINT, ppi=PPI),
        "html": lambda content: to_html(content, name),
    }
    written = []
    for form in dict.fromkeys(formats):
        path = Path(folder) / f"{name}.{form}"
        write_atomically(path, makers[form](content))
        written.append(path)
    return written


def _in_points(svg: str) -> str:
    """The same drawing, of a size in points."""
    return re.sub(r' (width|height)="([\d.]+)"', lambda size: f' {size[1]}="{float(size[2]) * POINT:g}"', svg, count=2)


def to_html(content: dict[str, Any], title: str) -> str:
    """A page with the chart in it, which fetches nothing."""
    return templates().get_template("figure.html").render(title=title, vega=Markup(vega()), spec=content)


@functools.cache
def templates() -> Environment:
    """Whatever is put into a template is escaped; JSON, too, has no <."""
    made = Environment(
        loader=PackageLoader("longtail.lab.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return made


@functools.cache
def vega() -> str:
    """Vega, Vega-Lite and what puts a chart into a page; to bundle them takes seconds."""
    return script_text(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def script_text(source: str) -> str:
    r"""JavaScript for a script element, which nothing in it can end; the escapes mean the same in its strings.

    Example:
        >>> script_text('say("</script>")')
        'say("<\\/script>")'
    """
    return source.replace("</script", "<\\/script").replace("<!--", "<\\!--")
