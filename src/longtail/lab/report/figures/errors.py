"""Figures of test errors: over β, over epochs, and of all losses at all imbalances."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from longtail.lab.config import ConfigError
from longtail.lab.report.figures.runs import about, best_pair, choice_said, one_experiment, seeds_said
from longtail.lab.report.theme import COLOURS, GREY, PLAIN, WIDEST, Chart, beta_name, data, palette, styled

__all__ = ["error_over_beta", "heatmap", "training_curves"]

Row = dict[str, Any]

CURVES = 6
"""More would hide each other."""

ROOM = WIDEST - 15
"""Pixels for the cells of a heatmap and the names beside them."""


def error_over_beta(frame: pd.DataFrame) -> Chart:
    """Figure 5: test error over β beside the error without class weights, a panel for each loss.

    Args:
        frame: of :func:`longtail.lab.experiments.load_results`, of a β sweep at one imbalance.

    Returns:
        The chart; means over seeds, with their standard deviation where there are two or more.

    Example:
        >>> error_over_beta(pd.DataFrame({"status": ["failed"]}))
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: none of the runs is complete
    """
    runs = _with_and_without(one_experiment(frame))
    both = runs["loss_name"].drop_duplicates().tolist()
    rows = _means(runs, ["loss_name", "term", "beta"])
    betas = [beta_name(beta) for beta in sorted({row["beta"] for row in rows if row["beta"] is not None})]
    points = [{**row, "β": beta_name(row["beta"])} for row in rows if row["beta"] is not None]
    # The line of the plain loss is as wide as the panel, whose points have it beside them.
    plain = {row["loss_name"]: row for row in rows if row["beta"] is None}
    for row in points:
        row |= {f"plain_{name}": plain[row["loss_name"]][name] for name in ("error", "low", "high")}
    columns = min(3, len(both))
    width = min(220, 262 // columns - 10)
    angle = -45 if width / len(betas) < 42 else 0
    x = alt.X("β:N", sort=betas, title="β", axis=alt.Axis(labelAngle=angle, grid=False), scale=alt.Scale(padding=0.4))
    title: dict[str, Any] = {"title": "test error (%)", "scale": alt.Scale(zero=False, nice=True)}
    tips = _tips("loss_name", "term", "error", "spread", "seeds")
    base = alt.Chart().encode(x=x)
    kinds = [PLAIN, "class-balanced"]
    legend = alt.Legend(title=None, symbolType="stroke", symbolSize=180)
    colour = alt.Color("kind:N", legend=legend, scale=alt.Scale(domain=kinds, range=[GREY, COLOURS[1]]), sort=kinds)
    dash = alt.StrokeDash("kind:N", legend=legend, scale=alt.Scale(domain=kinds, range=[[5, 3], [1, 0]]), sort=kinds)
    across: dict[str, Any] = {"x": alt.value(0), "x2": alt.value("width")}
    layers = alt.layer(
        base.mark_rect(color=GREY, opacity=0.2).encode(
            **across, y=alt.Y("mean(plain_low):Q", **title), y2="mean(plain_high):Q"
        ),
        base.transform_calculate(kind=f"'{PLAIN}'")
        .mark_rule(strokeWidth=1.7)
        .encode(**across, y=alt.Y("mean(plain_error):Q", **title), color=colour, strokeDash=dash),
        base.mark_rule(color=COLOURS[1], strokeWidth=1.3).encode(y=alt.Y("low:Q", **title), y2="high:Q"),
        base.transform_calculate(kind=f"'{kinds[1]}'")
        .mark_line(point=alt.OverlayMarkDef(size=30, filled=True))
        .encode(y=alt.Y("error:Q", **title), color=colour, strokeDash=dash, tooltip=tips),
        data=data(points),
    ).properties(width=width, height=110)
    chart = layers.facet(facet=alt.Facet("loss_name:N", title=None, sort=both), columns=columns, spacing=12)
    chart = chart.resolve_axis(x="independent")
    return styled(chart, "Test error over β", about(runs, seeds_said(runs, "bars and band")))


def _with_and_without(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of losses that were trained both class-balanced and without class weights."""
    plain = runs["weighting"] == "uniform"
    with_term = (runs["weighting"] == "effective") & (runs["normalize"] == "classes") & runs["beta"].notna()
    with_term &= runs["defer_reweighting"].isna()
    runs = runs[(plain | with_term) & runs["error"].notna()]
    names = [set(runs.loc[runs["weighting"] == kind, "loss_name"]) for kind in ("uniform", "effective")]
    chosen = runs[runs["loss_name"].isin(names[0] & names[1])].reset_index(drop=True)
    if chosen.empty:
        missing = "without weights" if not names[0] else "with a β" if not names[1] else "of the same loss"
        raise ConfigError(
            f"error_over_beta needs complete runs with and without class weights: there are none {missing}"
        )
    return chosen


def training_curves(frame: pd.DataFrame) -> Chart:
    """Figure 7: test error over epochs, the mean over seeds, and each seed as a thin line.

    Args:
        frame: of :func:`longtail.lab.report.figures.load_epochs`: two or more losses of one experiment.

    Returns:
        The chart; of more than six losses, the best one with class weights and its plain partner.

    Example:
        >>> training_curves(pd.DataFrame({"run_id": ["a"], "status": ["failed"], "epoch": [1]}))
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: none of the runs is complete
    """
    if frame.empty:
        raise ConfigError("training_curves needs runs that were tested after their epochs: there is none")
    last = frame.loc[frame.groupby("run_id")["epoch"].idxmax()]
    runs = candidates = one_experiment(last)
    if len(runs["name"].drop_duplicates()) > CURVES:
        runs = best_pair(candidates)
    names = runs["name"].drop_duplicates().tolist()
    name_of = dict(zip(runs["run_id"], runs["name"], strict=True))
    chosen = frame[frame["run_id"].isin(list(name_of))]
    if chosen["epoch"].nunique() < 2:
        raise ConfigError("training_curves needs runs that were tested after two epochs or more: there is none")
    found = zip(*(chosen[name] for name in ("run_id", "epoch", "error", "seed")), strict=True)
    rows = [
        {"name": name_of[run], "run": run, "epoch": int(epoch), "error": float(error), "seed": int(seed)}
        for run, epoch, error, seed in found
    ]
    scales = palette(names)
    columns = 1 if max(map(len, names)) > 24 else 2
    legend = alt.Legend(title=None, columns=columns, symbolType="stroke", symbolSize=180)
    x = alt.X(
        "epoch:Q", title="epoch", axis=alt.Axis(format=",d", tickMinStep=1, grid=False), scale=alt.Scale(nice=False)
    )
    y: dict[str, Any] = {"title": "test error (%)", "scale": alt.Scale(zero=False)}
    base = alt.Chart(data(rows)).encode(
        x=x, color=alt.Color("name:N", scale=scales["color"], sort=names, legend=legend)
    )
    seeds = base.mark_line(strokeWidth=0.6, opacity=0.45).encode(y=alt.Y("error:Q", **y), detail="run:N")
    means = base.mark_line().encode(
        y=alt.Y("mean(error):Q", **y),
        strokeDash=alt.StrokeDash("name:N", scale=scales["dash"], sort=names, legend=legend),
        tooltip=[*_tips("name", "epoch"), alt.Tooltip("mean(error):Q", title="test error (%)", format=".2f")],
    )
    several = len(runs) > len(names)
    said = choice_said(candidates, runs) + seeds_said(runs, "") + (": means, and each seed thin" if several else "")
    chart = (seeds + means if several else means).properties(width=265)
    return styled(chart, "Training curves", about(runs, said))


def heatmap(frame: pd.DataFrame) -> Chart:
    """Appendix A: test error of each loss at each imbalance, coloured within each column, the best cell framed.

    Args:
        frame: of :func:`longtail.lab.experiments.load_results`, of one data set and network.

    Returns:
        The chart; rows are in the order of the paper, lighter cells are better.

    Example:
        >>> heatmap(pd.DataFrame({"status": ["failed"]}))
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: none of the runs is complete
    """
    runs = one_experiment(frame, "imbalance")
    runs = runs[runs["error"].notna()].reset_index(drop=True)
    if runs.empty:
        raise ConfigError("heatmap needs runs with a test error: there is none")
    order = runs["name"].drop_duplicates().tolist()
    found = runs["imbalance"].sort_values(ascending=False, na_position="last").unique()
    columns = [_imbalance(value) for value in found]
    rows = _cells(_means(runs.assign(column=runs["imbalance"].map(_imbalance)), ["name", "column"]))
    # Long names leave the cells just enough room for their numbers.
    step = max(26, min(50, (ROOM - 5 * max(map(len, order))) // len(columns)))
    base = alt.Chart(data(rows)).encode(
        x=alt.X("column:N", sort=columns, title="imbalance", axis=alt.Axis(orient="top", labelAngle=0, **_BARE)),
        y=alt.Y("name:N", sort=order, title=None, axis=alt.Axis(labelLimit=ROOM - step * len(columns), **_BARE)),
        tooltip=[*_tips("name"), alt.Tooltip("column:N", title="imbalance"), *_tips("error", "spread", "seeds")],
    )
    cells = base.mark_rect().encode(color=alt.Color("fill:N", scale=None))
    frames = base.transform_filter("datum.best").mark_rect(
        fillOpacity=0, stroke=COLOURS[1], strokeWidth=2, xOffset=1, x2Offset=-1, yOffset=1, y2Offset=-1
    )
    text: dict[str, Any] = {"text": alt.Text("error:Q", format=".1f"), "color": alt.Color("ink:N", scale=None)}
    chart = cells + frames
    chart += base.transform_filter("!datum.best").mark_text().encode(**text)
    chart += base.transform_filter("datum.best").mark_text(fontWeight="bold").encode(**text)
    chart = chart.properties(width=alt.Step(step), height=alt.Step(17))
    said = f"test error (%), {seeds_said(runs, '')}; darker is worse in its column, frame: best"
    return styled(chart, "Test errors of all losses", about(runs, said))


_BARE: dict[str, Any] = {"domain": False, "ticks": False, "grid": False}


def _imbalance(value: float) -> str:
    return "as it is" if pd.isna(value) else f"{value:g}"


def _cells(rows: list[Row]) -> list[Row]:
    """With its place between the best and the worst of its column, and whether it is the best."""
    found = []
    for row in rows:
        errors = [other["error"] for other in rows if other["column"] == row["column"]]
        low, high = min(errors), max(errors)
        share = (row["error"] - low) / (high - low) if high > low else 0.0
        fill = _shade(share)
        ink = "#000000" if _luminance(fill) > 0.18 else "#ffffff"  # where both have the same contrast
        found.append({**row, "share": share, "best": row["error"] == low and len(errors) > 1, "fill": fill, "ink": ink})
    return found


# From light to dark in one hue: it can be told in grey, too.
SHADES = ((238, 245, 251), (156, 196, 228), (11, 83, 148))


def _shade(share: float) -> str:
    first, second = SHADES[:2] if share < 0.5 else SHADES[1:]
    part = 2 * share - (share >= 0.5)
    return "#" + "".join(f"{round(a + part * (b - a)):02x}" for a, b in zip(first, second, strict=True))


def _luminance(colour: str) -> float:
    """As the Web Content Accessibility Guidelines have it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _means(runs: pd.DataFrame, columns: list[str]) -> list[Row]:
    """Mean error over seeds of each group, and its standard deviation, as far as the bar goes."""
    groups = runs.groupby(columns, dropna=False, sort=False)["error"]
    rows: list[Row] = []
    for key, errors in groups:
        mean, spread = float(errors.mean()), float(errors.std()) if len(errors) > 1 else None
        row = {name: None if pd.isna(value) else value for name, value in zip(columns, key, strict=True)}
        radius = spread or 0.0
        rows.append(
            {**row, "error": mean, "spread": spread, "seeds": len(errors), "low": mean - radius, "high": mean + radius}
        )
    return rows


def _tips(*fields: str) -> list[alt.Tooltip]:
    titles = {"loss_name": "loss", "name": "loss", "error": "test error (%)", "spread": "standard deviation"}
    return [
        alt.Tooltip(f"{name}:Q", title=titles[name], format=".2f")
        if name in ("error", "spread")
        else alt.Tooltip(f"{name}:N", title=titles.get(name, name))
        for name in fields
    ]
