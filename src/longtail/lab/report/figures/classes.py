"""Figures of what happens to classes: recalls of each and of groups, and how sure the classifier may be.

The functions take complete runs of one experiment, baseline and candidate as :func:`compared` does, and all methods in
the order of their colours; without these, those of the experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from longtail.counts import check_counts
from longtail.lab.config import ConfigError
from longtail.lab.report.figures.runs import compared, describe, describe_seeds, one_experiment
from longtail.lab.report.tables import percent_cell
from longtail.lab.report.theme import GREY, Chart, data, line_styles, palette, styled, tooltips

Row = dict[str, Any]

NAMED = 40
"""Up to so many classes, each has a row with its name; of more, neighbours are taken together."""

GROUP_NAMES = {"many": "many: > 100 images", "medium": "medium: 20 to 100 images", "few": "few: < 20 images"}
GROUP_NAMES |= {"rarest_quarter": "rarest quarter of the classes"}

BARS = 7
"""Methods in a group; of more, the baseline and the candidate."""

SQUARE = 225

PERCENT = alt.Scale(domain=[0, 100])


def recall_per_class(
    frame: pd.DataFrame,
    classes: Sequence[str],
    counts: Any,
    baseline: str | None = None,
    candidate: str | None = None,
    *,
    order: Sequence[str] = (),
) -> Chart:
    """Recall of each class, baseline against candidate, classes in order of their training images."""
    images = check_counts(counts)
    if len(images) != len(classes):
        raise ConfigError(f"{len(classes)} names of classes but {len(images)} counts")
    found = _with_lists(one_experiment(frame), "recall")
    styles = order or found["method"].drop_duplicates().tolist()
    runs = compared(found, baseline, candidate)
    if wrong := [len(recall) for recall in runs["recall"] if len(recall) != len(classes)]:
        raise ConfigError(f"a run has recalls of {wrong[0]} classes, but there are {len(classes)}")
    ranks = np.argsort(-images, kind="stable")
    recalls = {
        str(name): 100 * np.array(part["recall"].tolist(), dtype=np.float64)[:, ranks]
        for name, part in runs.groupby("method", sort=False)
    }
    if len(classes) <= NAMED:
        chart, bars = _named_recalls(recalls, [str(classes[index]) for index in ranks], images[ranks], styles), "bars"
    else:
        chart, bars = _ranked_recalls(recalls, images[ranks], styles), ""
    return styled(chart, "Recall of each class", describe(runs, describe_seeds(runs, bars)))


def _named_recalls(recalls: dict[str, Any], classes: list[str], images: Any, order: Sequence[str]) -> Any:
    names = list(recalls)
    labels = class_labels(classes, images)
    rows: list[Row] = [
        {"name": name, "label": label, "class": classes[rank], "images": int(images[rank])} | _recall(found)
        for name, values in recalls.items()
        for rank, label in enumerate(labels)
        if len(found := values[:, rank][~np.isnan(values[:, rank])])
    ]
    width = 210 if max(map(len, labels)) <= 18 else 175
    styles = line_styles(names, "shape", order=order, columns=1, labelLimit=width - 25)
    y = alt.Y("label:N", sort=labels, title="class (training images)", axis=alt.Axis(labelLimit=120, grid=True))
    x: dict[str, Any] = {"title": "recall on the test images (%)", "scale": PERCENT}
    offset = alt.YOffset("name:N", sort=names, scale=alt.Scale(domain=names, paddingOuter=0.6))
    base = alt.Chart(data(rows)).encode(y=y, yOffset=offset)
    bars = base.mark_rule(strokeWidth=1.2).encode(x=alt.X("low:Q", **x), x2="high:Q", color=styles["color"])
    tips = {"class": "class", "images": "training images", "name": "method", "recall": "recall (%)"}
    points = base.mark_point().encode(x=alt.X("recall:Q", **x), **styles, tooltip=tooltips(**tips))
    return (bars + points).properties(width=width, height=alt.Step(18, **{"for": "position"}))


def _ranked_recalls(recalls: dict[str, Any], images: Any, order: Sequence[str]) -> Any:
    """Neighbours in the order of images together, about 40 points a line."""
    names = list(recalls)
    rows: list[Row] = [
        {"name": name, "rank": float(part.mean() + 1), "recall": float(found.mean()), "classes": len(part)}
        | {"most": int(images[part[0]]), "fewest": int(images[part[-1]])}
        for name, values in recalls.items()
        for part in np.array_split(np.arange(len(images)), NAMED)
        if len(found := values[:, part][~np.isnan(values[:, part])])
    ]
    styles = line_styles(names, "shape", order=order)
    together = -(-len(images) // NAMED)
    heading = [f"class, from {images[0]:,.0f} to {images[-1]:,.0f} training images", f"({together:,} classes a point)"]
    tips = {"name": "method", "classes": "classes", "most": "most images", "fewest": "fewest images"}
    chart = alt.Chart(data(rows)).encode(
        x=alt.X(
            "rank:Q",
            title=heading,
            scale=alt.Scale(domain=[1, len(images)], nice=False),
            axis=alt.Axis(format=",d", grid=False, tickCount=6),
        ),
        y=alt.Y("recall:Q", title="mean recall on the test images (%)", scale=PERCENT),
        color=styles["color"],
        tooltip=tooltips(**tips, recall="mean recall (%)"),
    )
    points = chart.mark_point().encode(shape=styles["shape"])
    return (chart.mark_line(strokeWidth=1, opacity=0.7) + points).properties(width=265)


def group_recalls(
    frame: pd.DataFrame, baseline: str | None = None, candidate: str | None = None, *, order: Sequence[str] = ()
) -> Chart:
    """Mean recall of classes with many, medium and few training images and of the rarest quarter, with its spread.

    Of more than seven methods, or if one was chosen, it shows the baseline and the candidate.
    """
    runs = one_experiment(frame)
    groups = [name for name in GROUP_NAMES if name in runs and runs[name].notna().any()]
    if not groups:
        raise ConfigError("group_recalls needs runs with recalls of groups of classes: there is none")
    order = order or runs["method"].drop_duplicates().tolist()
    if baseline or candidate or runs["method"].nunique() > BARS:
        runs = compared(runs, baseline, candidate)
    names = runs["method"].drop_duplicates().tolist()
    rows: list[Row] = [
        {"group": GROUP_NAMES[group], "name": name, "seeds": len(found)}
        | _recall(100 * found.to_numpy())
        | {"text": percent_cell(float(found.mean())).text}
        for group in groups
        for name in names
        if len(found := runs.loc[runs["method"] == name, group].dropna())
    ]
    width, below = 285, 6  # the name stands above its bar and has all of the width
    x: dict[str, Any] = {"title": "mean recall of the group's classes (%)", "scale": PERCENT}
    base = alt.Chart().encode(y=alt.Y("name:N", sort=names, axis=None))
    colour = alt.Color("name:N", scale=palette(names, order)["color"], legend=None)
    tips = {"group": "classes", "name": "method", "recall": "mean recall (%)", "spread": "standard deviation"}
    bars = base.mark_bar(size=9, yOffset=below).encode(
        x=alt.X("recall:Q", **x), color=colour, tooltip=tooltips(**tips, seeds="seeds")
    )
    spreads = base.mark_rule(strokeWidth=1.4, yOffset=below)
    spreads = spreads.encode(x=alt.X("low:Q", **x), x2="high:Q")
    titles = base.mark_text(align="left", dy=-5).encode(x=alt.value(0), text="name:N")
    # Beyond the bar and its spread, where nothing covers it.
    numbers = base.mark_text(align="left", dy=below).encode(x=alt.value(width + 4), text="text:N")
    layers = alt.layer(bars, spreads, titles, numbers, data=data(rows))
    header = alt.Header(labelAngle=0, labelOrient="top", labelAnchor="start", labelPadding=-5, labelFontWeight=600)
    chart = layers.properties(width=width, height=alt.Step(25)).facet(
        row=alt.Row("group:N", sort=[GROUP_NAMES[name] for name in groups], title=None, header=header), spacing=14
    )
    return styled(chart, "Recall by class size", describe(runs, describe_seeds(runs)))


def _recall(values: Any) -> Row:
    """Mean and standard deviation of percentages, and how far its bar goes."""
    mean, spread = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"recall": mean, "spread": spread, "low": max(mean - spread, 0.0), "high": min(mean + spread, 100.0)}


def calibration(
    frame: pd.DataFrame, baseline: str | None = None, candidate: str | None = None, *, order: Sequence[str] = ()
) -> Chart:
    """Reliability diagram: accuracy over confidence, baseline against candidate, images of all seeds together.

    The calibration error beside a name is the mean of those of the seeds, as in tables.
    """
    found = _with_lists(one_experiment(frame), "calibration")
    order = order or found["method"].drop_duplicates().tolist()
    runs = compared(found, baseline, candidate)
    rows: list[Row] = []
    titles = {}
    for method, part in runs.groupby("method", sort=False):
        error = percent_cell(part["calibration_error"].mean()).text
        titles[method] = f"{method}: {error}%"
        rows += _bin_rows(titles[method], _bins(part["calibration"].tolist()))
    names = list(dict.fromkeys(row["name"] for row in rows))
    styles = line_styles(
        names, "shape", order=[titles.get(name, name) for name in order], title="calibration error", titleOrient="top"
    )
    x = alt.X("confidence:Q", title=None, scale=PERCENT, axis=alt.Axis(labels=False, ticks=False))
    y = alt.Y("accuracy:Q", title="accuracy (%)", scale=PERCENT)
    base = alt.Chart(data(rows)).transform_filter("datum.images > 0").encode(x=x, y=y, color=styles["color"])
    ideal = alt.Chart(data([{"confidence": 0, "accuracy": 0}, {"confidence": 100, "accuracy": 100}]))
    diagonal = ideal.mark_line(color=GREY, strokeDash=[3, 3], strokeWidth=1).encode(x=x, y=y)
    tips = {"name": "method: calibration error", "confidence": "mean confidence (%)", "accuracy": "accuracy (%)"}
    points = base.mark_point().encode(**styles, tooltip=tooltips(**tips, images="test images"))
    upper = (diagonal + base.mark_line(strokeWidth=1.2) + points).properties(width=SQUARE, height=SQUARE)
    shares = alt.Chart(data(rows)).mark_line(strokeWidth=1, point=alt.OverlayMarkDef(size=18))
    lower = shares.encode(
        x=alt.X("middle:Q", title="confidence of the prediction (%)", scale=PERCENT),
        y=alt.Y("share:Q", title="images (%)", axis=alt.Axis(tickCount=3)),
        **styles,
    ).properties(width=SQUARE, height=45)
    seeds = describe_seeds(runs, "") + (" together" if len(runs) > len(names) else "")
    return styled(alt.vconcat(upper, lower, spacing=8), "Calibration", describe(runs, seeds))


def _bin_rows(name: str, bins: Any) -> list[Row]:
    edges = np.linspace(0, 100, len(bins) + 1)
    rows: list[Row] = []
    for (images, confidence, accuracy), middle in zip(bins, (edges[:-1] + edges[1:]) / 2, strict=True):
        row = {"name": name, "images": int(images), "share": 100 * float(images / bins[:, 0].sum())}
        sure = {"confidence": 100 * float(confidence), "accuracy": 100 * float(accuracy)} if images else {}
        rows.append({**row, "middle": float(middle), **sure})
    return rows


def _bins(tables: list[Any]) -> Any:
    """Images, mean confidence and accuracy of each bin, over all runs."""
    values = np.nan_to_num(np.array(tables, dtype=np.float64))
    images = values[:, :, 0].sum(axis=0)
    sums = (values[:, :, 1:] * values[:, :, :1]).sum(axis=0)
    return np.column_stack([images, sums / np.maximum(images, 1)[:, None]])


def _with_lists(runs: pd.DataFrame, column: str) -> pd.DataFrame:
    """The runs that have the list."""
    there = [isinstance(value, list) and bool(value) for value in runs[column]]
    if not any(there):
        raise ConfigError(f"none of the runs has a {column}: they are from an older version")
    return runs[there].reset_index(drop=True)


def class_labels(classes: Sequence[str], images: Any) -> list[str]:
    """Names of classes with their training images, short, and no two the same though they may look it."""
    labels: list[str] = []
    for name, count in zip(classes, images, strict=True):
        label = f"{name if len(name) <= 17 else f'{name[:16]}…'} ({int(count):,})"
        while label in labels:
            label += "\u00a0"
        labels.append(label)
    return labels
