"""Figures that need no runs: of the effective number, of counts and of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from longtail._checks import check_choice, check_positive_integer
from longtail.counts import check_counts, check_no_class_is_absent
from longtail.counts import long_tailed_counts as profile
from longtail.lab.config import shortest
from longtail.lab.data.cifar import SIZES
from longtail.lab.data.summary import BETAS
from longtail.lab.experiments.paper import IMBALANCES
from longtail.lab.report.theme import GREY, Chart, data, line_styles, palette, styled, tooltips
from longtail.theory import expected_volume, simulate_covering
from longtail.weights import SCHEMES, check_beta, class_weights, effective_number

Row = dict[str, Any]

MARKED = 30
"""Up to so many classes, each has a point on its line."""

MOST = 400
"""Points of a line."""

SCHEME_NAMES = {"inverse": "1/n", "inverse_sqrt": "1/√n", "uniform": "uniform (plain loss)"}


def class_balanced_term(betas: Sequence[float] = BETAS, max_count: int = 10_000) -> Chart:
    """Figure 3: the class-balanced term (1 - β) / (1 - βⁿ) against the training images n of a class, on log axes."""
    check_positive_integer("max_count", max_count)
    counts = np.unique(np.geomspace(1, max_count, 80).round().astype(np.int64))
    lines = {f"β {shortest(beta)}": beta for beta in _below_one(betas)} | {"1/n": 1.0}
    rows = [
        {"name": name, "n": int(n), "term": float(1 / volume)}
        for name, beta in lines.items()
        for n, volume in zip(counts, effective_number(counts, beta), strict=True)
    ]
    chart = alt.Chart(data(rows)).mark_line()
    chart = chart.encode(
        x=alt.X("n:Q", title="training images of the class, n", **log_axis(1, max_count)),
        y=alt.Y("term:Q", title="(1 − β) / (1 − βⁿ)", **log_axis(1 / max_count, 1)),
        **line_styles(list(lines), "strokeDash", columns=3),
        tooltip=tooltips(name="line", n="n", term="term"),
    )
    return styled(chart, "Class-balanced term")


def long_tailed_counts(dataset: str) -> Chart:
    """Figure 4: training images of each class at the paper's imbalances; logarithmic, so that the tails can be seen."""
    check_choice("dataset", dataset, tuple(SIZES))
    num_classes, most = SIZES[dataset]
    lines = {f"{imbalance:g}": profile(most, num_classes, imbalance) for imbalance in sorted(IMBALANCES)}
    low = 10 ** int(np.log10(min(images[-1] for images in lines.values())))
    y = alt.Y("images:Q", title="training images of the class", **log_axis(low, most))
    chart = _by_rank(lines, "images", y, title="imbalance", columns=5)
    return styled(chart, "Long-tailed training sets", f"{dataset}, {most:,} images per class before")


def effective_numbers(counts: Any, betas: Sequence[float] = BETAS) -> Chart:
    """Figure 6: effective number of each class, logarithmic, classes in order of their images."""
    ordered = _ordered(counts)
    lines = {shortest(beta): effective_number(ordered, beta) for beta in _below_one(betas)} | {"1 (images)": ordered}
    y = alt.Y("effective:Q", title="effective number of images", **log_axis(1, ordered[0]))
    return styled(
        _by_rank(lines, "effective", y, ordered, title="β", columns=3), "Effective number of images", _describe(ordered)
    )


def scheme_weights(counts: Any, beta: float = 0.999) -> Chart:
    """Weight of each class under each scheme, logarithmic, classes in order of their images."""
    ordered = _ordered(counts)
    check_beta(beta)
    names = SCHEME_NAMES | {"effective": f"β {shortest(beta)}"}
    lines = {names[scheme]: class_weights(ordered, scheme=scheme, beta=beta) for scheme in SCHEMES}
    ends = min(line.min() for line in lines.values()), max(line.max() for line in lines.values())
    y = alt.Y("weight:Q", title="weight of the class (mean 1)", **log_axis(*ends))
    return styled(_by_rank(lines, "weight", y, ordered, columns=2), "Class weights", _describe(ordered))


def _by_rank(lines: dict[str, Any], field: str, y: alt.Y, images: Any = None, **legend: Any) -> Any:
    """Lines over the rank of the classes, from most to fewest images; of thousands, some hundreds look the same."""
    classes = len(next(iter(lines.values())))
    ranks = sorted({round(rank) for rank in np.linspace(1, classes, min(classes, MOST)).tolist()})
    rows: list[Row] = [
        {"name": name, "rank": rank, field: float(values[rank - 1])}
        | ({} if images is None else {"images": int(images[rank - 1])})
        for name, values in lines.items()
        for rank in ranks
    ]
    ticks: dict[str, Any] = {"values": list(range(1, classes + 1))} if classes <= 10 else {"tickCount": 6}
    x = alt.X(
        "rank:Q",
        title="class, from most to fewest training images",
        scale=alt.Scale(domain=[1, max(classes, 2)], nice=False),
        axis=alt.Axis(format=",d", grid=False, **ticks),
    )
    point: Any = alt.OverlayMarkDef(size=22) if classes <= MARKED else False
    tips = {"name": str(legend.get("title", "weights")), "rank": "class", "images": "images", field: field}
    return (
        alt.Chart(data(rows))
        .mark_line(point=point)
        .encode(x=x, y=y, **line_styles(list(lines), "strokeDash", **legend), tooltip=tooltips(**tips))
    )


def random_covering(prototypes: int = 100, draws: int | None = None, trials: int = 1000, seed: int = 0) -> Chart:
    """Proposition 1: volume that samples cover by simulation, on the closed form (1 - βⁿ) / (1 - β), β = 1 - 1/N."""
    check_positive_integer("prototypes", prototypes)
    last = 5 * prototypes if draws is None else draws
    volume = simulate_covering(prototypes, last, trials, seed)
    steps = np.unique(np.linspace(1, last, 26).round().astype(np.int64))
    low, high = np.quantile(volume[:, steps - 1], [0.05, 0.95], axis=0)
    form = expected_volume(steps, prototypes)
    columns = zip(steps, volume.mean(axis=0)[steps - 1], form, low, high, strict=True)
    keys = ("n", "simulated", "closed_form", "low", "high")
    rows = [dict(zip(keys, (int(n), *map(float, values)), strict=True)) for n, *values in columns]
    names = ["closed form", "mean of the simulation"]
    kind = alt.Color("kind:N", title=None, scale=palette(names)["color"], sort=names)
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=names, range=["stroke", "circle"]), sort=names)
    base = alt.Chart(data(rows)).encode(
        x=alt.X("n:Q", title="samples drawn, n", axis=alt.Axis(format=",d", tickMinStep=1)),
        tooltip=tooltips(n="n", simulated="simulated", closed_form="closed form", low="low", high="high"),
    )
    shared: dict[str, Any] = {"title": "covered volume", "axis": alt.Axis(format=",~r", tickCount=5)}
    band = base.mark_area(color=GREY, opacity=0.3).encode(y=alt.Y("low:Q", **shared), y2="high:Q")
    line, points = (base.transform_calculate(kind=f"'{name}'") for name in names)
    line = line.mark_line().encode(y=alt.Y("closed_form:Q", **shared), color=kind)
    points = points.mark_point(filled=False, strokeWidth=1.3, size=28)
    points = points.encode(y=alt.Y("simulated:Q", **shared), color=kind, shape=shape)
    limit = alt.Chart(data([{"N": prototypes}])).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y="N:Q")
    subtitle = f"N = {prototypes:,} prototypes, β = {round(1 - 1 / prototypes, 6)}; {trials:,} trials, band: 90%"
    return styled(band + limit + line + points, "Random covering", subtitle)


def _ordered(counts: Any) -> Any:
    values = check_counts(counts)
    check_no_class_is_absent(values)
    return np.sort(values)[::-1]


def _below_one(betas: Sequence[float]) -> list[float]:
    """Each once; 1 is a line of every figure."""
    check_beta(list(betas))
    return [beta for beta in dict.fromkeys(map(float, betas)) if beta < 1]


def _describe(ordered: Any) -> str:
    noun = "class" if len(ordered) == 1 else "classes"
    most, fewest = int(ordered[0]), int(ordered[-1])
    return f"{len(ordered):,} {noun} of {most:,}{f' to {fewest:,}' if fewest < most else ''} images"


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Scale and axis: powers of ten and the end of the axis; where these are few, 2 and 5 times them, too."""
    # Where all values are the same, but for rounding, they are in the middle.
    low, high = (low, high) if high > 1.01 * low else (low / 2, high * 2)
    decades = np.log10(high / low)
    steps = (1,) if decades > 2.2 else (1, 2, 5)
    ticks = [float(f"{step}e{exponent}") for exponent in range(-12, 12) for step in steps]
    shown = [tick for tick in ticks if low <= tick <= high]
    if high >= 1 and decades > 2.2 and high > 2 * shown[-1]:
        shown.append(float(high))
    return {
        "scale": alt.Scale(type="log", nice=False, domain=[float(low), float(high)]),
        "axis": alt.Axis(format=",~r" if low >= 1 else "~r", values=shown),
    }
