"""One look for all charts: readable in a column of 8.5 cm, on a screen, and by those who see few colours."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from longtail.lab.config import ConfigError

Chart = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart | alt.HConcatChart
"""What the functions of figures return."""

WIDTH = 232
"""Of a plot in pixels: with its axis and labels, about 320, which are 8.5 cm at 96 to the inch."""

WIDEST = 340
"""Pixels of a whole figure: in a column of 8.5 cm, its smallest text then still has 7 points."""

GREY = "#767676"
"""Of the baseline; as far from white as from black."""

# Okabe and Ito 2008, without the yellow that no white page shows, and grey instead of black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", GREY)
DASHES = ((1, 0), (6, 2), (2, 2), (8, 2, 2, 2), (4, 4), (1, 3), (12, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

NUMBERS = dict.fromkeys(("n", "rank", "images", "classes", "epoch", "most", "fewest", "seeds"), ",d")
NUMBERS |= dict.fromkeys(("recall", "accuracy", "confidence", "low", "high", "effective", "simulated"), ",.1f")
NUMBERS |= {"closed_form": ",.1f", "error": ".2f", "spread": ".2f", "term": ".4~g", "weight": ".4~g", "N": ",.4~g"}
"""Fields of charts that are numbers, and how tooltips show them."""

FONT = "Arial, Helvetica, 'Liberation Sans', sans-serif"
SMALL = 10
"""Pixels of all but titles: 7.5 points where the figure is 8.5 cm wide."""


def styled(chart: Any, title: str, subtitle: str = "") -> Chart:
    """The chart with its title, in the look of all."""
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
    """Rows as the data of a chart; not as a table of pandas, of which Altair takes 5,000 rows at most."""
    return alt.Data(values=rows)  # type: ignore[no-untyped-call]


def method_style(index: int) -> tuple[str, list[int], str]:
    """Colour, dash and shape of a method by its number in the order of all methods; the first one, plain, is grey."""
    hues = (GREY, *(colour for colour in COLOURS if colour != GREY))
    # Beyond the colours, they repeat with another dash and shape.
    other = index + index // len(hues)
    return hues[index % len(hues)], list(DASHES[other % len(DASHES)]), SHAPES[other % len(SHAPES)]


def palette(names: Sequence[str], order: Sequence[str] | None = None) -> dict[str, alt.Scale]:
    """Scales of colour, dash and shape, so that no two of the names differ by their colour alone.

    With the order of all methods, each has the style of its number in it (:func:`method_style`).
    """
    if len(names) > len(COLOURS):
        raise ConfigError(f"{len(names)} lines cannot be told apart: at most {len(COLOURS)}")
    if order is None:
        styles = [(COLOURS[index], list(DASHES[index]), SHAPES[index]) for index in range(len(names))]
    else:
        ranked = [*order, *(name for name in names if name not in order)]
        styles = [method_style(ranked.index(name)) for name in names]
    ranges = zip(("color", "strokeDash", "shape"), zip(*styles, strict=True), strict=True)
    return {channel: alt.Scale(domain=list(names), range=list(values)) for channel, values in ranges}


def line_styles(
    names: Sequence[str], *channels: str, field: str = "name", order: Sequence[str] | None = None, **legend: Any
) -> dict[str, Any]:
    """Encodings of the colour and the other channels (strokeDash, shape) by name, with one legend for all of them."""
    scales = palette(names, order)
    if "strokeDash" in channels:
        legend |= {"symbolType": "stroke", "symbolSize": 180}
    shared = alt.Legend(**{"title": None, "columns": 1 if max(map(len, names)) > 24 else 2} | legend)
    kinds: dict[str, Any] = {"color": alt.Color, "strokeDash": alt.StrokeDash, "shape": alt.Shape}
    return {
        channel: kinds[channel](f"{field}:N", scale=scales[channel], sort=list(names), legend=shared)
        for channel in ("color", *channels)
    }


def tooltips(**titles: str) -> list[alt.Tooltip]:
    """What is shown of the row under the pointer: titles by field."""
    return [
        alt.Tooltip(f"{name}:Q", title=title, format=NUMBERS[name])
        if name in NUMBERS
        else alt.Tooltip(f"{name}:N", title=title)
        for name, title in titles.items()
    ]
