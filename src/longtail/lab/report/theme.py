"""One look for all charts: readable in a column of 8.5 cm, on a screen, and by those who see few colours."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from longtail.lab.config import ConfigError, LossConfig

__all__ = [
    "COLOURS",
    "DASHES",
    "GREY",
    "PLAIN",
    "SHAPES",
    "WIDEST",
    "WIDTH",
    "Chart",
    "beta_name",
    "data",
    "palette",
    "spec",
    "styled",
]

Chart = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart | alt.HConcatChart
"""What the functions of figures return."""

WIDTH = 232
"""Of a plot in pixels: with its axis and labels, about 320, which are 8.5 cm at 96 to the inch."""

WIDEST = 340
"""Pixels of a whole figure: in a column of 8.5 cm, its smallest text then still has 7 points."""

GREY = "#767676"
"""Of what others are compared with; as far from white as from black."""

PLAIN = LossConfig().weights_title
"""What a loss without class weights is called; it is grey everywhere."""

# Okabe and Ito 2008, without the yellow that no white page shows, and grey instead of black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", GREY)
DASHES = ((1, 0), (6, 2), (2, 2), (8, 2, 2, 2), (4, 4), (1, 3), (12, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

FONT = "Arial, Helvetica, 'Liberation Sans', sans-serif"
SMALL = 10
"""Pixels of all but titles: 7.5 points where the figure is 8.5 cm wide."""


def styled(chart: Any, title: str, subtitle: str = "") -> Chart:
    """The chart with its title, in the look of all.

    Args:
        chart: of Altair.
        title: a few words.
        subtitle: what the data are; it is broken into lines.

    Example:
        >>> styled(alt.Chart().mark_point(), "Recall").to_dict()["title"]["text"]
        'Recall'
    """
    # What stands together stays together.
    lines = textwrap.wrap(re.sub(r"(?<=[βγ=±]) | (?=[=(])", "\u00a0", subtitle), 56)
    heading = alt.TitleParams(title, subtitle=lines) if lines else alt.TitleParams(title)
    made: Chart = chart.properties(title=heading).configure(**_config("#1a1a1a", "transparent"))
    return made


def spec(chart: Any, ink: str = "#1a1a1a", background: str = "white") -> dict[str, Any]:
    """The Vega-Lite of a chart, for print; a page that may be dark takes ``currentColor`` on ``transparent``.

    Args:
        chart: what a function of figures returned.
        ink: colour of the text.
        background: colour of the paper.

    Example:
        >>> chart = styled(alt.Chart().mark_point(), "Recall")
        >>> spec(chart, "currentColor", "transparent")["config"]["title"]["color"]
        'currentColor'
    """
    content: dict[str, Any] = chart.to_dict()
    return content | {"config": _config(ink, background)}


def _config(ink: str, background: str) -> dict[str, Any]:
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": SMALL, "titleFontSize": SMALL}
    line = {"gridColor": GREY, "gridOpacity": 0.22, "domainColor": GREY, "tickColor": GREY, "tickSize": 4}
    return {
        "background": background,
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None, "continuousWidth": WIDTH, "continuousHeight": 170},
        "axis": text | line | {"titleFontWeight": "normal", "titlePadding": 6, "labelPadding": 3, "labelFlush": False},
        "legend": text
        | {"orient": "top", "titleFontWeight": "normal", "titleAnchor": "start", "titleOrient": "left"}
        | {
            "labelLimit": 270,
            "symbolSize": 70,
            "symbolStrokeWidth": 1.8,
            "symbolOpacity": 1,
            "columnPadding": 8,
            "offset": 6,
        },
        "header": text | {"titleFontWeight": "normal", "labelPadding": 4},
        "title": {"color": ink, "subtitleColor": ink, "fontSize": 11, "subtitleFontSize": SMALL}
        | {"anchor": "start", "fontWeight": 600, "subtitlePadding": 3, "offset": 8},
        "text": {"fontSize": SMALL, "color": ink},
        "line": {"strokeWidth": 1.7},
        "point": {"size": 34, "filled": True, "opacity": 1},
    }


def data(rows: list[dict[str, Any]]) -> Any:
    """Rows as the data of a chart; not as a table of pandas, of which Altair takes 5,000 rows at most.

    Example:
        >>> data([{"n": 1}]).to_dict()
        {'values': [{'n': 1}]}
    """
    return alt.Data(values=rows)  # type: ignore[no-untyped-call]


def palette(names: Sequence[str], what: str = "lines") -> dict[str, alt.Scale]:
    """Scales of colour, dash and shape, so that no two of the names differ by their colour alone.

    Args:
        names: in their order.
        what: they are, for the error that refuses more than can be told apart.

    Example:
        >>> palette(["plain", "β 0.999"])["shape"].range
        ['circle', 'square']
    """
    if len(names) > len(COLOURS):
        raise ConfigError(f"{len(names)} {what} cannot be told apart: at most {len(COLOURS)}")
    hues = [colour for colour in COLOURS if colour != GREY or not any(name.startswith(PLAIN) for name in names)]
    colours = [GREY if name.startswith(PLAIN) else hues.pop(0) for name in names]
    ranges: dict[str, list[Any]] = {
        "color": colours,
        "dash": [list(dash) for dash in DASHES[: len(names)]],
        "shape": list(SHAPES[: len(names)]),
    }
    return {name: alt.Scale(domain=list(names), range=values) for name, values in ranges.items()}


def beta_name(beta: float) -> str:
    """β as people write it.

    Example:
        >>> beta_name(0.9999), beta_name(0.9999999)
        ('0.9999', '0.9999999')
    """
    return f"{beta:.12g}"
