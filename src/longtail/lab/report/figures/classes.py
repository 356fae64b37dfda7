"""Figures of what happens to classes: recalls of each and of groups, and how sure the classifier may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from longtail.counts import check_counts
from longtail.lab.config import ConfigError
from longtail.lab.data.summary import GROUPS
from longtail.lab.report.figures.runs import about, best_pair, choice_said, one_experiment, seeds_said
from longtail.lab.report.theme import COLOURS, GREY, Chart, data, palette, styled

__all__ = ["calibration", "group_recalls", "recall_per_class"]

Row = dict[str, Any]

NAMED = 40
"""Up to so many classes, each has a row with its name; of more, neighbours are taken together."""

GROUP_NAMES = {"many": "many: > 100 images", "medium": "medium: 20 to 100 images", "few": "few: < 20 images"}

BARS = 8
"""Losses in a group; of more, the best one with class weights and its plain partner."""


def recall_per_class(frame: pd.DataFrame, classes: Sequence[str], counts: Any) -> Chart:
    """Recall of each class, plain against class-balanced, classes in order of their training images.

    Args:
        frame: of :func:`longtail.lab.experiments.load_results`, of one experiment.
        classes: their names.
        counts: training images of each.

    Returns:
        The chart of the best class-balanced loss and its plain partner; means over seeds.

    Example:
        >>> recall_per_class(pd.DataFrame({"status": ["failed"]}), ["cat", "owl"], [50, 2])
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: none of the runs is complete
    """
    images = check_counts(counts)
    if len(images) != len(classes):
        raise ConfigError(f"{len(classes)} names of classes but {len(images)} counts")
    candidates = _with_lists(one_experiment(frame), "recall")
    runs = best_pair(candidates)
    wrong = [len(recall) for recall in runs["recall"] if len(recall) != len(classes)]
    if wrong:
        raise ConfigError(f"a run has recalls of {wrong[0]} classes, but there are {len(classes)}")
    names = runs["name"].drop_duplicates().tolist()
    order = np.argsort(-images, kind="stable")
    tables = {}
    for name in names:
        values = np.array(runs[runs["name"] == name]["recall"].tolist(), dtype=np.float64) * 100
        tables[name] = values[:, order]
    if len(classes) <= NAMED:
        chart = _named_recalls(tables, [str(classes[place]) for place in order], images[order])
        bars = "bars"
    else:
        chart, bars = _ranked_recalls(tables, images[order]), ""
    return styled(chart, "Recall of each class", about(runs, choice_said(candidates, runs) + seeds_said(runs, bars)))


def _named_recalls(tables: dict[str, Any], classes: list[str], images: Any) -> Any:
    names = list(tables)
    labels = _unique([f"{_short(name)} ({int(count):,})" for name, count in zip(classes, images, strict=True)])
    rows: list[Row] = []
    for name, values in tables.items():
        for place, label in enumerate(labels):
            found = values[:, place][~np.isnan(values[:, place])]
            if len(found):
                row = {"name": name, "label": label, "class": classes[place], "images": int(images[place])}
                rows.append({**row, **_recall(found)})
    scales = palette(names)
    y = alt.Y("label:N", sort=labels, title="class (training images)", axis=alt.Axis(labelLimit=120, grid=True))
    x: dict[str, Any] = {"title": "recall on the test images (%)", "scale": alt.Scale(domain=[0, 100])}
    offset = alt.YOffset("name:N", sort=names, scale=alt.Scale(domain=names, paddingOuter=0.6))
    legend = alt.Legend(title=None, columns=1 if sum(map(len, names)) > 28 else 2)
    colour = alt.Color("name:N", scale=scales["color"], sort=names, legend=legend)
    base = alt.Chart(data(rows)).encode(y=y, yOffset=offset)
    bars = base.mark_rule(strokeWidth=1.2).encode(x=alt.X("low:Q", **x), x2="high:Q", color=colour)
    points = base.mark_point().encode(
        x=alt.X("recall:Q", **x),
        color=colour,
        shape=alt.Shape("name:N", scale=scales["shape"], sort=names, legend=legend),
        tooltip=[
            alt.Tooltip("class:N"),
            alt.Tooltip("images:Q", title="training images", format=",d"),
            alt.Tooltip("name:N", title="loss"),
            alt.Tooltip("recall:Q", title="recall (%)", format=".1f"),
        ],
    )
    width = 210 if max(map(len, labels)) <= 18 else 175
    return (bars + points).properties(width=width, height=alt.Step(18, **{"for": "position"}))


def _ranked_recalls(tables: dict[str, Any], images: Any) -> Any:
    """Neighbours in the order of images together, about 40 points a line."""
    names = list(tables)
    parts = np.array_split(np.arange(len(images)), NAMED)
    rows: list[Row] = []
    for name, values in tables.items():
        for part in parts:
            found = values[:, part][~np.isnan(values[:, part])]
            if len(found):
                row = {"name": name, "class": float(part.mean() + 1), "recall": float(found.mean())}
                rows.append(
                    {**row, "classes": len(part), "most": int(images[part[0]]), "fewest": int(images[part[-1]])}
                )
    scales = palette(names)
    legend = alt.Legend(title=None)
    size = -(-len(images) // NAMED)
    chart = alt.Chart(data(rows)).encode(
        x=alt.X(
            "class:Q",
            title=[f"class, from {images[0]:,.0f} to {images[-1]:,.0f} training images", f"({size:,} classes a point)"],
            scale=alt.Scale(domain=[1, len(images)], nice=False),
            axis=alt.Axis(format=",d", grid=False, tickCount=6),
        ),
        y=alt.Y("recall:Q", title="mean recall on the test images (%)", scale=alt.Scale(domain=[0, 100])),
        color=alt.Color("name:N", scale=scales["color"], sort=names, legend=legend),
        tooltip=[
            alt.Tooltip("name:N", title="loss"),
            alt.Tooltip("classes:Q", format=",d"),
            alt.Tooltip("most:Q", title="most images", format=",d"),
            alt.Tooltip("fewest:Q", title="fewest images", format=",d"),
            alt.Tooltip("recall:Q", title="mean recall (%)", format=".1f"),
        ],
    )
    points = chart.mark_point().encode(shape=alt.Shape("name:N", scale=scales["shape"], sort=names, legend=legend))
    return (chart.mark_line(strokeWidth=1, opacity=0.7) + points).properties(width=265)


def group_recalls(frame: pd.DataFrame) -> Chart:
    """Mean recall of the classes with many, medium and few training images, with its spread over seeds.

    Args:
        frame: of :func:`longtail.lab.experiments.load_results`, of one experiment.

    Returns:
        The chart; a group that no class is in is left out.

    Example:
        >>> group_recalls(pd.DataFrame({"status": ["failed"]}))
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: none of the runs is complete
    """
    runs = one_experiment(frame)
    groups = [name for name in GROUPS if runs[name].notna().any()]
    if not groups:
        raise ConfigError("group_recalls needs runs with recalls of groups of classes: there is none")
    candidates = runs
    if runs["name"].nunique() > BARS:
        runs = best_pair(runs)
    names = runs["name"].drop_duplicates().tolist()
    rows = _group_rows(runs, groups, names)
    width = 285
    x: dict[str, Any] = {"title": "mean recall of the group's classes (%)", "scale": alt.Scale(domain=[0, 100])}
    base = alt.Chart().encode(y=alt.Y("name:N", sort=names, axis=None))
    colour: Any = alt.condition("datum.weighted", alt.value(COLOURS[0]), alt.value("#9a9a9a"))
    below = 6  # the name, which stands above its bar and has all of the width
    bars = base.mark_bar(size=9, yOffset=below).encode(
        x=alt.X("recall:Q", **x),
        color=colour,
        tooltip=[
            alt.Tooltip("group:N", title="classes"),
            alt.Tooltip("name:N", title="loss"),
            alt.Tooltip("recall:Q", title="mean recall (%)", format=".1f"),
            alt.Tooltip("spread:Q", title="standard deviation", format=".1f"),
            alt.Tooltip("seeds:Q"),
        ],
    )
    spreads = base.mark_rule(strokeWidth=1.4, color=COLOURS[1], yOffset=below).encode(
        x=alt.X("low:Q", **x), x2="high:Q"
    )
    titles = base.mark_text(align="left", dy=-5).encode(x=alt.value(0), text="name:N")
    # Beyond the bar and its spread, where nothing covers it.
    numbers = base.mark_text(align="left", dy=below).encode(
        x=alt.value(width + 4), text=alt.Text("recall:Q", format=".1f")
    )
    layers = alt.layer(bars, spreads, titles, numbers, data=data(rows))
    chart = layers.properties(width=width, height=alt.Step(25)).facet(
        row=alt.Row(
            "group:N",
            sort=[GROUP_NAMES[name] for name in groups],
            title=None,
            header=alt.Header(
                labelAngle=0, labelOrient="top", labelAnchor="start", labelPadding=-5, labelFontWeight=600
            ),
        ),
        spacing=14,
    )
    return styled(
        chart, "Recall of many, medium and few", about(runs, choice_said(candidates, runs) + seeds_said(runs))
    )


def _group_rows(runs: pd.DataFrame, groups: list[str], names: list[str]) -> list[Row]:
    rows: list[Row] = []
    for group in groups:
        for name in names:
            chosen = runs[runs["name"] == name]
            found = 100 * chosen[group].dropna()
            if len(found):
                weighted = bool((chosen["weighting"] != "uniform").any())
                row = {"group": GROUP_NAMES[group], "name": name, "weighted": weighted, "seeds": len(found)}
                rows.append({**row, **_recall(found.to_numpy())})
    return rows


def _recall(values: Any) -> Row:
    """Mean and standard deviation of percentages, and how far its bar goes."""
    mean, spread = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"recall": mean, "spread": spread, "low": max(mean - spread, 0.0), "high": min(mean + spread, 100.0)}


def calibration(frame: pd.DataFrame) -> Chart:
    """Reliability diagram: accuracy over confidence, plain against class-balanced, images of all seeds together.

    The calibration error beside a name is the mean of those of the seeds, as in tables.

    Args:
        frame: of :func:`longtail.lab.experiments.load_results`, of one experiment.

    Returns:
        The chart of the best class-balanced loss and its plain partner; below it, how many images are how sure.

    Example:
        >>> calibration(pd.DataFrame({"status": ["failed"]}))
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: none of the runs is complete
    """
    candidates = _with_lists(one_experiment(frame), "calibration")
    runs = best_pair(candidates)
    tables = {name: _bins(runs[runs["name"] == name]) for name in runs["name"].drop_duplicates()}
    gaps = {name: np.mean([_gap(_bins(run)) for _, run in each.groupby("seed")]) for name, each in runs.groupby("name")}
    titles = {name: f"{name}: {100 * gaps[name]:.1f}%" for name in tables}
    rows = [row for name, bins in tables.items() for row in _bin_rows(titles[name], bins)]
    names = list(titles.values())
    scales = palette(names)
    legend = alt.Legend(title="calibration error", titleOrient="top", columns=1 if max(map(len, names)) > 24 else 2)
    styles: dict[str, Any] = {
        "color": alt.Color("name:N", scale=scales["color"], sort=names, legend=legend),
        "shape": alt.Shape("name:N", scale=scales["shape"], sort=names, legend=legend),
    }
    whole = alt.Scale(domain=[0, 100])
    tips = [
        alt.Tooltip("name:N", title="loss: calibration error"),
        alt.Tooltip("confidence:Q", title="mean confidence (%)", format=".1f"),
        alt.Tooltip("accuracy:Q", title="accuracy (%)", format=".1f"),
        alt.Tooltip("images:Q", title="test images", format=",d"),
    ]
    x = alt.X("confidence:Q", title=None, scale=whole, axis=alt.Axis(labels=False, ticks=False))
    y = alt.Y("accuracy:Q", title="accuracy (%)", scale=whole)
    table = data(rows)
    base = alt.Chart(table).transform_filter("datum.images > 0").encode(x=x, y=y, color=styles["color"])
    ideal = alt.Chart(data([{"confidence": 0, "accuracy": 0}, {"confidence": 100, "accuracy": 100}]))
    diagonal = ideal.mark_line(color=GREY, strokeDash=[3, 3], strokeWidth=1).encode(x=x, y=y)
    points = base.mark_point().encode(**styles, tooltip=tips)
    upper = (diagonal + base.mark_line(strokeWidth=1.2) + points).properties(
        width=WIDTH_OF_SQUARE, height=WIDTH_OF_SQUARE
    )
    lower = (
        alt.Chart(table)
        .mark_line(strokeWidth=1, point=alt.OverlayMarkDef(size=18))
        .encode(
            x=alt.X("middle:Q", title="confidence of the prediction (%)", scale=whole),
            y=alt.Y("share:Q", title="images (%)", axis=alt.Axis(tickCount=3)),
            **styles,
        )
        .properties(width=WIDTH_OF_SQUARE, height=45)
    )
    said = choice_said(candidates, runs) + seeds_said(runs, "") + (" together" if len(runs) > len(names) else "")
    return styled(alt.vconcat(upper, lower, spacing=8), "Calibration", about(runs, said))


WIDTH_OF_SQUARE = 225


def _bin_rows(name: str, bins: Any) -> list[Row]:
    edges = np.linspace(0, 100, len(bins) + 1)
    rows: list[Row] = []
    for (images, confidence, accuracy), middle in zip(bins, (edges[:-1] + edges[1:]) / 2, strict=True):
        row = {"name": name, "images": int(images), "share": 100 * float(images / bins[:, 0].sum())}
        sure = {"confidence": 100 * float(confidence), "accuracy": 100 * float(accuracy)} if images else {}
        rows.append({**row, "middle": float(middle), **sure})
    return rows


def _bins(runs: pd.DataFrame) -> Any:
    """Images, mean confidence and accuracy of each bin, over all runs."""
    tables = np.array(
        [[[count, sure or 0.0, right or 0.0] for count, sure, right in table] for table in runs["calibration"]],
        dtype=np.float64,
    )
    images = tables[:, :, 0].sum(axis=0)
    sums = (tables[:, :, 1:] * tables[:, :, :1]).sum(axis=0)
    return np.column_stack([images, sums / np.maximum(images, 1)[:, None]])


def _gap(bins: Any) -> float:
    """Expected calibration error."""
    return float((bins[:, 0] * np.abs(bins[:, 1] - bins[:, 2])).sum() / max(bins[:, 0].sum(), 1))


def _with_lists(runs: pd.DataFrame, column: str) -> pd.DataFrame:
    """The runs that have the list."""
    there = [isinstance(value, list) and bool(value) for value in runs[column]]
    if not any(there):
        raise ConfigError(f"none of the runs has a {column}: they are of an older version")
    return runs[there].reset_index(drop=True)


def _short(name: str, most: int = 17) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _unique(names: list[str]) -> list[str]:
    """Names of rows, of which no two are the same, though they may look it."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        found.append(name + "\u00a0" * seen.get(name, 0))
        seen[name] = seen.get(name, 0) + 1
    return found
