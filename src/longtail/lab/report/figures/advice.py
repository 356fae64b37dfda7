"""The figure of what the images say about β: prototypes of each class."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from longtail.lab.advice import Advice
from longtail.lab.report.figures.classes import NAMED, _short, _unique
from longtail.lab.report.figures.theory import _log, _log_axis
from longtail.lab.report.theme import COLOURS, GREY, Chart, beta_name, data, styled

__all__ = ["prototypes_per_class"]

OWN, SHRUNKEN = "of the class alone", "drawn to the typical one"


def prototypes_per_class(advice: Advice) -> Chart:
    """Prototypes of each class with their interval, beside those drawn to the typical class; logarithmic.

    Classes are in order of their training images. A class of which all samples are alone has a lower bound only: its
    bar has no end, and no point.

    Args:
        advice: of :func:`longtail.lab.advice.advise`.

    Example:
        >>> from longtail.lab.advice import advise
        >>> from longtail.lab.data import open_dataset
        >>> prototypes_per_class(advise(open_dataset("digits"))).to_dict()["title"]["text"]
        'Prototypes of each class'
    """
    estimate = advice.estimate
    order = np.argsort(-estimate.counts, kind="stable")
    low, high = _ends(advice)
    names = [f"{_short(advice.classes[place])} ({int(estimate.counts[place]):,})" for place in order]
    rows: list[dict[str, Any]] = []
    for rank, (place, label) in enumerate(zip(order, _unique(names), strict=True), start=1):
        shared = {"label": label, "rank": rank, "class": advice.classes[place], "images": int(estimate.counts[place])}
        ends = {"low": float(estimate.low[place]), "high": float(min(estimate.high[place], high))}
        for kind, value in ((OWN, estimate.prototypes[place]), (SHRUNKEN, estimate.shrunken[place])):
            there = {"N": float(value)} if np.isfinite(value) else {}
            rows.append({**shared, "kind": kind, **there, **(ends if kind == OWN else {})})
    said = [f"{advice.name}, {advice.features}, radius {estimate.radius:.3g}; bars: {estimate.level:.0%}"]
    if np.isfinite(estimate.pooled):
        typical = f"{estimate.pooled:,.0f}" if estimate.pooled >= 100 else f"{estimate.pooled:.3g}"
        said.append(f"typical: N = {typical}, β = {beta_name(advice.beta)}")
    return styled(_chart(rows, low, high, estimate.pooled, len(order)), "Prototypes of each class", ", ".join(said))


def _ends(advice: Advice) -> tuple[float, float]:
    """Of the axis: all that is finite is on it, and it ends at a 1, 2 or 5 with zeros."""
    estimate = advice.estimate
    values = np.concatenate([estimate.low, estimate.high, estimate.prototypes, estimate.shrunken])
    found = values[np.isfinite(values)]
    return max(1.0, _round_beside(float(found.min()), 0)), max(10.0, _round_beside(float(found.max()), 1))


def _round_beside(value: float, side: int) -> float:
    """The next 1, 2 or 5 with zeros below (0) or above (1)."""
    rounds = [step * 10.0**power for power in range(-1, 30) for step in (1, 2, 5)]
    return rounds[int(np.searchsorted(rounds, value)) - 1 + side]


def _chart(rows: list[dict[str, Any]], low: float, high: float, pooled: float, classes: int) -> Any:
    named = classes <= NAMED
    sort = list(dict.fromkeys(row["label"] for row in rows))
    y: Any = (
        alt.Y("label:N", sort=sort, title="class (training images)", axis=alt.Axis(labelLimit=120, grid=True))
        if named
        else alt.Y(
            "rank:Q",
            title="class, from most to fewest training images",
            scale=alt.Scale(domain=[classes, 1], nice=False),
            axis=alt.Axis(grid=False, format=",d"),
        )
    )
    kinds = [OWN, SHRUNKEN]
    legend = alt.Legend(title=None, columns=2)
    styles: dict[str, Any] = {
        "color": alt.Color("kind:N", sort=kinds, legend=legend, scale=alt.Scale(domain=kinds, range=COLOURS[:2])),
        "shape": alt.Shape(
            "kind:N", sort=kinds, legend=legend, scale=alt.Scale(domain=kinds, range=["circle", "diamond"])
        ),
    }
    x: dict[str, Any] = {"title": "prototypes, N", "scale": _log(low, high), "axis": _log_axis(low, high)}
    base = alt.Chart(data(rows)).encode(y=y)
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2 if named else 0.7, opacity=0.6)
    points = base.transform_filter("isValid(datum.N)").mark_point(
        size=34 if named else 12, filled=False, strokeWidth=1.5
    )
    tips = [
        alt.Tooltip("class:N"),
        alt.Tooltip("images:Q", title="training images", format=",d"),
        alt.Tooltip("N:Q", title="prototypes", format=",.4~g"),
    ]
    layers = [
        bars.encode(x=alt.X("low:Q", **x), x2="high:Q", color=styles["color"]),
        points.encode(x=alt.X("N:Q", **x), **styles, tooltip=tips),
    ]
    if np.isfinite(pooled):
        line = alt.Chart(data([{"N": pooled}])).mark_rule(color=GREY, strokeDash=[4, 3])
        layers.insert(0, line.encode(x=alt.X("N:Q", **x)))
    return alt.layer(*layers).properties(width=210, height=alt.Step(16) if named else 330)
