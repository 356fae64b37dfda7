"""The figure of what the images say about β: prototypes of each class."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from longtail.lab.advice import Advice
from longtail.lab.config import shortest
from longtail.lab.report.figures.classes import NAMED, class_labels
from longtail.lab.report.figures.theory import log_axis
from longtail.lab.report.theme import GREY, Chart, data, line_styles, styled, tooltips

__all__ = ["prototypes_per_class"]

KINDS = ("estimate", "shrunken")


def prototypes_per_class(advice: Advice) -> Chart:
    """Prototypes of each class with their interval, beside those shrunken towards the typical class; logarithmic.

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
    classes = [advice.classes[index] for index in order]
    labels = class_labels(classes, estimate.counts[order])
    values = np.concatenate([estimate.low, estimate.high, estimate.prototypes, estimate.shrunken])
    values = values[np.isfinite(values)]
    low, high = max(1.0, _round_number(values.min(), 0)), max(10.0, _round_number(values.max(), 1))
    rows: list[dict[str, Any]] = []
    for rank, (index, label, name) in enumerate(zip(order, labels, classes, strict=True), start=1):
        row = {"label": label, "rank": rank, "class": name, "images": int(estimate.counts[index])}
        ends = {"low": float(estimate.low[index]), "high": float(min(estimate.high[index], high))}
        for kind, value in zip(KINDS, (estimate.prototypes[index], estimate.shrunken[index]), strict=True):
            found = {"N": float(value)} if np.isfinite(value) else {}
            rows.append({**row, "name": kind, **found, **(ends if kind == KINDS[0] else {})})
    subtitle = f"{advice.name}, {advice.features}, radius {estimate.radius:.3g}; bars: {estimate.level:.0%}"
    if np.isfinite(estimate.pooled):
        typical = f"{estimate.pooled:,.0f}" if estimate.pooled >= 100 else f"{estimate.pooled:.3g}"
        subtitle += f", typical: N = {typical}, β = {shortest(advice.beta)}"
    chart = _chart(rows, labels, log_axis(low, high), estimate.pooled)
    return styled(chart, "Prototypes of each class", subtitle)


def _round_number(value: float, side: int) -> float:
    """The next 1, 2 or 5 with zeros below (0) or above (1)."""
    rounds = [step * 10.0**power for power in range(-1, 30) for step in (1, 2, 5)]
    return rounds[int(np.searchsorted(rounds, value)) - 1 + side]


def _chart(rows: list[dict[str, Any]], labels: list[str], axis: dict[str, Any], pooled: float) -> Any:
    named = len(labels) <= NAMED
    y: Any = alt.Y("label:N", sort=labels, title="class (training images)", axis=alt.Axis(labelLimit=120, grid=True))
    if not named:
        title = "class, from most to fewest training images"
        scale = alt.Scale(domain=[len(labels), 1], nice=False)
        y = alt.Y("rank:Q", title=title, scale=scale, axis=alt.Axis(grid=False, format=",d"))
    styles = line_styles(KINDS, "shape")
    x: dict[str, Any] = {"title": "prototypes, N", **axis}
    base = alt.Chart(data(rows)).encode(y=y)
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2 if named else 0.7, opacity=0.6)
    points = base.transform_filter("isValid(datum.N)")
    points = points.mark_point(size=34 if named else 12, filled=False, strokeWidth=1.5)
    tips = tooltips(**{"class": "class", "images": "training images", "N": "prototypes"})
    layers = [
        bars.encode(x=alt.X("low:Q", **x), x2="high:Q", color=styles["color"]),
        points.encode(x=alt.X("N:Q", **x), **styles, tooltip=tips),
    ]
    if np.isfinite(pooled):
        line = alt.Chart(data([{"N": pooled}])).mark_rule(color=GREY, strokeDash=[4, 3])
        layers.insert(0, line.encode(x=alt.X("N:Q", **x)))
    return alt.layer(*layers).properties(width=210, height=alt.Step(16) if named else 330)
