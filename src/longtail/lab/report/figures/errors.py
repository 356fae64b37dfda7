"""Figures of test errors: over β, over epochs, and of all methods at all imbalances; means over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from longtail.lab.config import LOSS_KWARGS, ConfigError, LossConfig, shortest
from longtail.lab.report.figures.runs import compared, describe, describe_seeds, one_experiment
from longtail.lab.report.theme import COLOURS, GREY, SMALL, WIDEST, Chart, data, line_styles, styled, tooltips

Row = dict[str, Any]

CURVES = 6
"""More would hide each other."""

MOST_POINTS = 1000
"""Of all training curves of a chart together, or 20 a curve."""

ROOM = WIDEST - 15
"""Pixels for the cells of a heatmap and the names beside them."""

KINDS = ("no class weights", "class-balanced")

TIPS = {"error": "test error (%)", "spread": "standard deviation", "seeds": "seeds"}


def error_over_beta(frame: pd.DataFrame) -> Chart:
    """Figure 5: test error over β beside the error without class weights, a panel for each loss."""
    runs = _with_and_without(one_experiment(frame))
    losses = runs["loss_name"].drop_duplicates().tolist()
    rows = _means(runs, ["loss_name", "method", "beta"])
    plain = {row["loss_name"]: row for row in rows if row["beta"] is None}
    points = [
        # The line of the plain loss is as wide as the panel, whose points have it beside them.
        {**row, "β": shortest(row["beta"])}
        | {f"plain_{name}": plain[row["loss_name"]][name] for name in ("error", "low", "high")}
        for row in sorted((row for row in rows if row["beta"] is not None), key=lambda row: row["beta"])
    ]
    betas = list(dict.fromkeys(row["β"] for row in points))
    columns = min(3, len(losses))
    width = min(220, 262 // columns - 10)
    angle = -45 if width / len(betas) < 42 else 0
    x = alt.X("β:N", sort=betas, title="β", axis=alt.Axis(labelAngle=angle, grid=False), scale=alt.Scale(padding=0.4))
    y: dict[str, Any] = {"title": "test error (%)", "scale": alt.Scale(zero=False, nice=True)}
    styles = line_styles(KINDS, "strokeDash", field="kind", order=KINDS)
    across: dict[str, Any] = {"x": alt.value(0), "x2": alt.value("width")}
    base = alt.Chart().encode(x=x)
    plain_line, line = (base.transform_calculate(kind=f"'{kind}'") for kind in KINDS)
    layers = alt.layer(
        base.mark_rect(color=GREY, opacity=0.2).encode(
            **across, y=alt.Y("mean(plain_low):Q", **y), y2="mean(plain_high):Q"
        ),
        plain_line.mark_rule(strokeWidth=1.7).encode(**across, y=alt.Y("mean(plain_error):Q", **y), **styles),
        base.mark_rule(color=COLOURS[0], strokeWidth=1.3).encode(y=alt.Y("low:Q", **y), y2="high:Q"),
        line.mark_line(point=alt.OverlayMarkDef(size=30, filled=True)).encode(
            y=alt.Y("error:Q", **y), **styles, tooltip=tooltips(method="method", **TIPS)
        ),
        data=data(points),
    ).properties(width=width, height=110)
    chart = layers.facet(facet=alt.Facet("loss_name:N", title=None, sort=losses), columns=columns, spacing=12)
    chart = chart.resolve_axis(x="independent")
    return styled(chart, "Test error over β", describe(runs, describe_seeds(runs, "bars and band")))


def _with_and_without(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of losses that were trained both class-balanced and without class weights, and nothing else to them."""
    as_usual = (runs["sampling"] == "shuffled") & runs["adjustment"].isna() & ~runs["freeze"].astype(bool)
    plain = runs["weighting"] == "uniform"
    weighted = (runs["normalize"] == "classes") & runs["beta"].notna() & runs["defer_reweighting"].isna()
    runs = runs[as_usual & (plain | weighted)]
    runs = runs.assign(loss_name=[_loss_name(row) for row in runs.to_dict("records")])
    names = [set(part["loss_name"]) for part in (runs[runs["beta"].isna()], runs[runs["beta"].notna()])]
    if not names[0] & names[1]:
        raise ConfigError("error_over_beta needs a loss with complete runs both without class weights and with a β")
    return runs[runs["loss_name"].isin(names[0] & names[1])].reset_index(drop=True)


def _loss_name(row: Row) -> str:
    return LossConfig(name=row["loss"], **{name: row[name] for name in LOSS_KWARGS if not pd.isna(row[name])}).title


def training_curves(
    frame: pd.DataFrame, baseline: str | None = None, candidate: str | None = None, *, order: Sequence[str] = ()
) -> Chart:
    """Figure 7: test error over epochs, the mean over seeds, and each seed as a thin line.

    Of more than six methods, or if one was chosen, it shows the baseline and the candidate. The rows are those of
    :func:`load_epochs`, the other arguments those of :mod:`longtail.lab.report.figures.classes`.
    """
    if frame.empty:
        raise ConfigError("training_curves needs runs that were tested after their epochs: there is none")
    runs = one_experiment(frame.loc[frame.groupby("run_id")["epoch"].idxmax()])
    order = order or runs["method"].drop_duplicates().tolist()
    if baseline or candidate or runs["method"].nunique() > CURVES:
        runs = compared(runs, baseline, candidate)
    names = runs["method"].drop_duplicates().tolist()
    method_of = dict(zip(runs["run_id"], runs["method"], strict=True))
    chosen = _thinned(frame[frame["run_id"].isin(list(method_of))])
    if chosen["epoch"].nunique() < 2:
        raise ConfigError("training_curves needs runs that were tested after two epochs or more: there is none")
    rows = [
        {"name": method_of[row["run_id"]], "run": row["run_id"], "seed": int(row["seed"])}
        | {"epoch": int(row["epoch"]), "error": float(row["error"])}
        for row in chosen[["run_id", "seed", "epoch", "error"]].to_dict("records")
    ]
    styles = line_styles(names, "strokeDash", order=order)
    last = max(row["epoch"] for row in rows)
    ticks: dict[str, Any] = {"values": sorted({row["epoch"] for row in rows})} if last <= 10 else {"format": ",d"}
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(grid=False, **ticks), scale=alt.Scale(nice=False))
    y: dict[str, Any] = {"title": "test error (%)", "scale": alt.Scale(zero=False)}
    base = alt.Chart(data(rows)).encode(x=x, color=styles["color"])
    seeds = base.mark_line(strokeWidth=0.6, opacity=0.45).encode(y=alt.Y("error:Q", **y), detail="run:N")
    tips = [*tooltips(name="method", epoch="epoch"), alt.Tooltip("mean(error):Q", title="test error (%)", format=".2f")]
    means = base.mark_line().encode(y=alt.Y("mean(error):Q", **y), **styles, tooltip=tips)
    several = len(runs) > len(names)
    thin = ": means, and each seed as a thin line" if several else ""
    chart = (seeds + means if several else means).properties(width=265)
    return styled(chart, "Training curves", describe(runs, describe_seeds(runs, "") + thin))


def _thinned(epochs: pd.DataFrame) -> pd.DataFrame:
    """Every so many epochs, and the last one: a curve has no more points than pixels."""
    points = max(20, MOST_POINTS // epochs["run_id"].nunique())
    step = -(-int(epochs["epoch"].max()) // points)
    last = epochs.groupby("run_id")["epoch"].transform("max")
    return epochs[(epochs["epoch"] % step == 0) | (epochs["epoch"] == last)]


def heatmap(frame: pd.DataFrame) -> Chart:
    """Appendix A: test error of each method at each imbalance, coloured within each column, the best cell framed."""
    runs = one_experiment(frame, "imbalance")
    order = runs["method"].drop_duplicates().tolist()
    found = runs["imbalance"].sort_values(ascending=False, na_position="last").unique()
    columns = [_imbalance(value) for value in found]
    rows = _cells(_means(runs.assign(column=runs["imbalance"].map(_imbalance)), ["method", "column"]))
    # Long names leave the cells just enough room for their numbers.
    step = max(26, min(50, (ROOM - 5 * max(map(len, order))) // len(columns)))
    room = ROOM - step * len(columns)
    # The longest name decides the size of all: a character is about 0.53 as wide as the font is high.
    size = max(7.5, min(SMALL, room / (0.53 * max(map(len, order)))))
    bare: dict[str, Any] = {"domain": False, "ticks": False, "grid": False}
    names = alt.Axis(labelLimit=room, labelFontSize=size, **bare)
    base = alt.Chart(data(rows)).encode(
        x=alt.X("column:N", sort=columns, title="imbalance", axis=alt.Axis(orient="top", labelAngle=0, **bare)),
        y=alt.Y("method:N", sort=order, title=None, axis=names),
        tooltip=tooltips(method="method", column="imbalance", **TIPS),
    )
    # From light to dark in one hue: it can be told in grey, too.
    shades = alt.Scale(domain=[0, 0.5, 1], range=["#eef5fb", "#9cc4e4", "#0b5394"])
    cells = base.mark_rect().encode(color=alt.Color("share:Q", scale=shades, legend=None))
    best = base.transform_filter("datum.best")
    frames = best.mark_rect(
        fillOpacity=0, stroke=COLOURS[1], strokeWidth=2, xOffset=1, x2Offset=-1, yOffset=1, y2Offset=-1
    )
    ink: Any = alt.condition(f"datum.share > {DARK}", alt.value("#ffffff"), alt.value("#000000"))
    texts = base.mark_text().encode(text="text:N", color=ink)
    chart = (cells + frames + texts).properties(width=alt.Step(step), height=alt.Step(17))
    seeds = f"test error (%), {describe_seeds(runs, '')}; darker is worse within a column, the best is framed"
    return styled(chart, "Test errors of all methods", describe(runs, seeds))


DARK = 0.83
"""Beyond it, white text on the shade has more contrast than black."""


def _imbalance(value: float) -> str:
    return "as it is" if pd.isna(value) else f"{value:g}"


def _cells(rows: list[Row]) -> list[Row]:
    """With its share of the way from the best to the worst of its column, and whether it is the best."""
    cells = []
    for row in rows:
        errors = [other["error"] for other in rows if other["column"] == row["column"]]
        low, high = min(errors), max(errors)
        share = (row["error"] - low) / (high - low) if high > low else 0.0
        cells.append({**row, "share": share, "best": share == 0 and len(errors) > 1, "text": f"{row['error']:.1f}"})
    return cells


def _means(runs: pd.DataFrame, columns: list[str]) -> list[Row]:
    """Mean error over seeds of each group, and its standard deviation, as far as the bar goes."""
    rows: list[Row] = []
    for key, errors in runs.groupby(columns, dropna=False, sort=False)["error"]:
        mean, spread = float(errors.mean()), float(errors.std()) if len(errors) > 1 else None
        row = {name: None if pd.isna(value) else value for name, value in zip(columns, key, strict=True)}
        ends = {"low": mean - (spread or 0.0), "high": mean + (spread or 0.0)}
        rows.append({**row, "error": mean, "spread": spread, "seeds": len(errors), **ends})
    return rows
