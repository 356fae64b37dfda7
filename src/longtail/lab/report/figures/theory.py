"""Figures that need no runs: of the effective number, of counts and of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from longtail._checks import check_choice, check_positive_integer
from longtail.counts import check_counts, check_no_class_is_absent
from longtail.counts import long_tailed_counts as profile
from longtail.lab.data.cifar import SIZES
from longtail.lab.data.summary import BETAS
from longtail.lab.experiments.paper import IMBALANCES
from longtail.lab.report.theme import GREY, WIDTH, Chart, beta_name, data, palette, styled
from longtail.theory import expected_volume, simulate_covering
from longtail.weights import SCHEMES, check_beta, class_weights, effective_number

__all__ = ["class_balanced_term", "effective_numbers", "long_tailed_counts", "random_covering", "scheme_weights"]

Row = dict[str, Any]

MARKED = 30
"""Up to so many classes, each has a point on its line."""

MOST = 400
"""Points of a line."""

NARROW = WIDTH - 20
"""Of a plot whose lines have labels at their ends."""

SCHEME_NAMES = {"inverse": "1/n", "inverse_sqrt": "1/√n", "uniform": "uniform (plain loss)"}


def class_balanced_term(betas: Sequence[float] = BETAS, max_count: int = 10_000) -> Chart:
    """Figure 3: the class-balanced term (1 - β) / (1 - βⁿ) against the training images n of a class, both logarithmic.

    Args:
        betas: each a line; 1/n, where β → 1 leads, is one more.
        max_count: the largest n.

    Example:
        >>> class_balanced_term([0.9, 0.99]).to_dict()["title"]["text"]
        'Class-balanced term'
    """
    check_positive_integer("max_count", max_count)
    counts = np.unique(np.geomspace(1, max_count, 80).round().astype(np.int64))
    lines = [*_below_one(betas), 1.0]
    names = [f"β {beta_name(beta)}" for beta in lines[:-1]] + ["1/n"]
    rows = [
        {"line": name, "n": int(n), "term": float(1 / volume)}
        for name, beta in zip(names, lines, strict=True)
        for n, volume in zip(counts, effective_number(counts, beta), strict=True)
    ]
    base = alt.Chart(data(rows)).encode(
        x=alt.X("n:Q", title="training images of the class, n", scale=_log(1, max_count), axis=_log_axis(1, max_count)),
        y=alt.Y("term:Q", title="(1 − β) / (1 − βⁿ)", scale=_log(1 / max_count, 1), axis=_log_axis(1 / max_count, 1)),
    )
    ends = _apart([row for row in rows if row["n"] == counts[-1]], "term", 1 / max_count, 1.0)
    lines_drawn = base.mark_line().encode(**_line_styles(names, None), tooltip=_tooltips("line", "n", "term"))
    chart = (lines_drawn + _end_labels(ends, "n", "term")).properties(width=NARROW)
    return styled(chart, "Class-balanced term")


def long_tailed_counts(dataset: str) -> Chart:
    """Figure 4: training images of each class at the paper's imbalances; logarithmic, so that the tails can be seen.

    Args:
        dataset: cifar10, cifar20 or cifar100; no file of it is needed.

    Example:
        >>> long_tailed_counts("cifar100").to_dict()["title"]["subtitle"]
        ['cifar100, 500 images of a class before']
    """
    check_choice("dataset", dataset, tuple(SIZES))
    num_classes, most = SIZES[dataset]
    factors = sorted(IMBALANCES)
    names = [f"{imbalance:g}" for imbalance in factors]
    rows: list[Row] = [
        {"imbalance": name, "class": place, "images": int(images)}
        for name, imbalance in zip(names, factors, strict=True)
        for place, images in enumerate(profile(most, num_classes, imbalance), start=1)
    ]
    low = 10 ** int(np.log10(min(row["images"] for row in rows)))
    base = alt.Chart(data(rows)).encode(
        x=_rank_axis(num_classes),
        y=alt.Y("images:Q", title="training images of the class", scale=_log(low, most), axis=_log_axis(low, most)),
    )
    ends = _apart([row for row in rows if row["class"] == num_classes], "images", low, most)
    head = [{"line": "imbalance", "class": num_classes, "images": ends[0]["images"] * (most / low) ** (13 / 170)}]
    chart = base.mark_line(point=_points(num_classes)).encode(
        **_line_styles(names, None, "imbalance"), tooltip=_tooltips("imbalance", "class", "images")
    )
    labels = _end_labels([{**row, "line": row["imbalance"]} for row in ends] + head, "class", "images")
    chart = (chart + labels).properties(width=NARROW)
    return styled(chart, "Long-tailed training sets", f"{dataset}, {most:,} images of a class before")


def effective_numbers(counts: Any, betas: Sequence[float] = BETAS, title: str = "Effective number of images") -> Chart:
    """Figure 6: effective number of each class, logarithmic, classes in order of their images.

    Args:
        counts: training images of each class.
        betas: each a line; the images themselves, where β → 1 leads, are one more.
        title: of the chart.

    Example:
        >>> effective_numbers([50, 10], [0.9]).to_dict()["title"]["subtitle"]
        ['2 classes of 50 to 10 images']
    """
    ordered = _ordered(counts)
    names = [*(beta_name(beta) for beta in _below_one(betas)), "1 (images)"]
    values = [*(effective_number(ordered, beta) for beta in _below_one(betas)), ordered]
    rows = [
        {"β": name, "class": place + 1, "images": int(ordered[place]), "effective": float(line[place])}
        for name, line in zip(names, values, strict=True)
        for place in _places(len(ordered))
    ]
    chart = (
        alt.Chart(data(rows))
        .mark_line(point=_points(len(ordered)))
        .encode(
            x=_rank_axis(len(ordered)),
            y=alt.Y(
                "effective:Q",
                title="effective number of images",
                scale=_log(1, ordered[0]),
                axis=_log_axis(1, ordered[0]),
            ),
            **_line_styles(names, "β", "β", columns=3),
            tooltip=_tooltips("β", "class", "images", "effective"),
        )
    )
    return styled(chart, title, _counts_said(ordered))


def scheme_weights(counts: Any, beta: float = 0.999) -> Chart:
    """Weight of each class under each scheme, logarithmic, classes in order of their images.

    Args:
        counts: training images of each class.
        beta: of the effective number.

    Example:
        >>> scheme_weights([50, 10]).to_dict()["title"]["text"]
        'Class weights'
    """
    ordered = _ordered(counts)
    check_beta(beta)
    names = {scheme: SCHEME_NAMES.get(scheme, scheme) for scheme in SCHEMES} | {"effective": f"β {beta_name(beta)}"}
    weights = {scheme: class_weights(ordered, scheme=scheme, beta=beta) for scheme in SCHEMES}
    rows: list[Row] = [
        {
            "weights": names[scheme],
            "class": place + 1,
            "images": int(ordered[place]),
            "weight": float(weights[scheme][place]),
        }
        for scheme in SCHEMES
        for place in _places(len(ordered))
    ]
    ends = min(row["weight"] for row in rows), max(row["weight"] for row in rows)
    chart = (
        alt.Chart(data(rows))
        .mark_line(point=_points(len(ordered)))
        .encode(
            x=_rank_axis(len(ordered)),
            y=alt.Y("weight:Q", title="weight of the class (mean 1)", axis=_log_axis(*ends), scale=_log(*ends)),
            **_line_styles(list(names.values()), None, "weights", columns=2),
            tooltip=_tooltips("weights", "class", "images", "weight"),
        )
    )
    return styled(chart, "Class weights", _counts_said(ordered))


def random_covering(prototypes: int = 100, draws: int | None = None, trials: int = 1000, seed: int = 0) -> Chart:
    """Proposition 1: volume that samples cover by simulation, on the closed form (1 - βⁿ) / (1 - β), β = (N - 1) / N.

    Args:
        prototypes: N.
        draws: samples, 5 N if not given.
        trials: of the simulation.
        seed: of the simulation.

    Example:
        >>> random_covering(10, trials=10).to_dict()["title"]["text"]
        'Random covering'
    """
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
    scales = palette(names)
    kind = alt.Color("kind:N", title=None, scale=scales["color"], sort=names)
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=names, range=["stroke", "circle"]), sort=names)
    base = alt.Chart(data(rows)).encode(
        x=alt.X("n:Q", title="samples drawn, n", axis=alt.Axis(format=",d", tickMinStep=1)),
        tooltip=_tooltips("n", "simulated", "closed_form", "low", "high"),
    )
    shared: dict[str, Any] = {"title": "covered volume", "axis": alt.Axis(format=",~r", tickCount=5)}
    band = base.mark_area(color=GREY, opacity=0.3).encode(y=alt.Y("low:Q", **shared), y2="high:Q")
    line = (
        base.transform_calculate(kind=f"'{names[0]}'")
        .mark_line()
        .encode(y=alt.Y("closed_form:Q", **shared), color=kind)
    )
    points = (
        base.transform_calculate(kind=f"'{names[1]}'")
        .mark_point(filled=False, strokeWidth=1.3, size=28)
        .encode(y=alt.Y("simulated:Q", **shared), color=kind, shape=shape)
    )
    limit = alt.Chart(data([{"N": prototypes}])).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y="N:Q")
    said = f"N = {prototypes:,} prototypes, β = {beta_name(1 - 1 / prototypes)}; {trials:,} trials, band: 90%"
    return styled(band + limit + line + points, "Random covering", said)


def _ordered(counts: Any) -> Any:
    values = check_counts(counts)
    check_no_class_is_absent(values)
    return np.sort(values)[::-1]


def _places(num_classes: int) -> list[int]:
    """Of the classes that are drawn: of thousands, some hundreds look the same."""
    return sorted({round(place) for place in np.linspace(0, num_classes - 1, min(num_classes, MOST)).tolist()})


def _below_one(betas: Sequence[float]) -> list[float]:
    """Each once; 1 is a line of every figure."""
    check_beta(list(betas))
    return [beta for beta in dict.fromkeys(map(float, betas)) if beta < 1]


def _counts_said(ordered: Any) -> str:
    noun = "class" if len(ordered) == 1 else "classes"
    most, fewest = int(ordered[0]), int(ordered[-1])
    return f"{len(ordered):,} {noun} of {most:,}{f' to {fewest:,}' if fewest < most else ''} images"


def _log(low: float, high: float) -> alt.Scale:
    # Where all values are the same, but for rounding, they are in the middle.
    ends = [low, high] if high > 1.01 * low else [low / 2, high * 2]
    return alt.Scale(type="log", nice=False, domain=[float(end) for end in ends])


def _log_axis(low: float, high: float) -> alt.Axis:
    """Powers of ten and the end of the axis; where these are few, 2 and 5 times them, too."""
    low, high = (low, high) if high > 1.01 * low else (low / 2, high * 2)
    decades = np.log10(high / low)
    steps = (1,) if decades > 2.2 else (1, 2, 5)
    ticks = [float(f"{step}e{exponent}") for exponent in range(-12, 12) for step in steps]
    shown = [tick for tick in ticks if low <= tick <= high]
    if high >= 1 and decades > 2.2 and high > 2 * shown[-1]:
        shown.append(float(high))
    return alt.Axis(format=",~r" if low >= 1 else "~r", values=shown)


def _rank_axis(num_classes: int) -> alt.X:
    ticks: dict[str, Any] = {"values": list(range(1, num_classes + 1))} if num_classes <= 10 else {"tickCount": 6}
    return alt.X(
        "class:Q",
        title="class, from most to fewest training images",
        scale=alt.Scale(domain=[1, max(num_classes, 2)], nice=False),
        axis=alt.Axis(format=",d", grid=False, **ticks),
    )


def _points(num_classes: int) -> Any:
    return alt.OverlayMarkDef(size=22) if num_classes <= MARKED else False


def _line_styles(names: list[str], title: str | None, field: str = "line", columns: int = 0) -> dict[str, Any]:
    """Colour and dash, with a legend unless the lines have labels at their ends."""
    scales = palette(names)
    labelled = title is None and not columns
    legend = (
        None
        if labelled
        else alt.Legend(title=title, columns=columns or len(names), symbolType="stroke", symbolSize=180)
    )
    return {
        "color": alt.Color(f"{field}:N", scale=scales["color"], sort=names, legend=legend),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=scales["dash"], sort=names, legend=legend),
    }


def _tooltips(*fields: str) -> list[alt.Tooltip]:
    numbers = {"n": ",d", "class": ",d", "images": ",d", "term": ".4~g", "weight": ".4~g"}
    texts = ("line", "imbalance", "β", "weights")
    return [
        alt.Tooltip(f"{name}:N")
        if name in texts
        else alt.Tooltip(f"{name}:Q", title=name.replace("_", " "), format=numbers.get(name, ",.1f"))
        for name in fields
    ]


def _apart(ends: list[Row], field: str, low: float, high: float, height: float = 170, gap: float = 11) -> list[Row]:
    """The ends of lines, highest first, moved down where their labels would touch; the axis is logarithmic."""
    step = (high / low) ** (gap / height)
    moved: list[Row] = []
    for row in sorted(ends, key=lambda row: -row[field]):
        place = min(row[field], moved[-1][field] / step) if moved else row[field]
        moved.append({**row, field: place})
    return moved


def _end_labels(ends: list[Row], x: str, y: str) -> Any:
    return alt.Chart(data(ends)).mark_text(align="left", dx=6).encode(x=f"{x}:Q", y=f"{y}:Q", text="line:N")
