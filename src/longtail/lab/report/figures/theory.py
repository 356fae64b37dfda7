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
from longtail.lab.report.theme import GREY, WIDTH, Chart, beta_name, palette, styled
from longtail.theory import expected_volume, simulate_covering
from longtail.weights import SCHEMES, check_beta, class_weights, effective_number

__all__ = ["class_balanced_term", "effective_numbers", "long_tailed_counts", "random_covering", "scheme_weights"]

Row = dict[str, Any]

MARKED = 30
"""Up to so many classes, each has a point on its line."""

SCHEME_NAMES = {"inverse_sqrt": "inverse square root", "uniform": "uniform (plain loss)"}


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
    lines = [*(float(beta) for beta in betas if beta < 1), 1.0]
    names = [f"β {beta_name(beta)}" for beta in lines[:-1]] + ["1/n"]
    rows = [
        {"line": name, "n": int(n), "term": float(1 / volume)}
        for name, beta in zip(names, lines, strict=True)
        for n, volume in zip(counts, effective_number(counts, beta), strict=True)
    ]
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("n:Q", title="training images of the class, n", scale=_log(1, max_count), axis=_counts_axis()),
        y=alt.Y("term:Q", title="(1 − β) / (1 − βⁿ)", scale=_log(None, 1), axis=_powers_axis()),
    )
    ends = _apart([row for row in rows if row["n"] == counts[-1]], "term", min(row["term"] for row in rows))
    chart = base.mark_line().encode(**_line_styles(names, None), tooltip=_tooltips("line", "n", "term"))
    return _of(styled(chart + _end_labels(ends, "n", "term"), "Class-balanced term"))


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
    rows = [
        {"imbalance": name, "class": place, "images": int(images)}
        for name, imbalance in zip(names, factors, strict=True)
        for place, images in enumerate(profile(most, num_classes, imbalance), start=1)
    ]
    base = alt.Chart(_data(rows)).encode(
        x=_rank_axis(num_classes),
        y=alt.Y("images:Q", title="training images of the class", scale=_log(1, most), axis=_counts_axis()),
    )
    ends = _apart([row for row in rows if row["class"] == num_classes], "images", 1)
    head = [{"line": "imbalance", "class": num_classes, "images": ends[0]["images"] * 1.45}]
    chart = base.mark_line(point=_points(num_classes)).encode(
        **_line_styles(names, None, "imbalance"), tooltip=_tooltips("imbalance", "class", "images")
    )
    labels = _end_labels([{**row, "line": row["imbalance"]} for row in ends] + head, "class", "images")
    return _of(styled(chart + labels, "Long-tailed training sets", f"{dataset}, {most:,} images of a class before"))


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
    names = [*(beta_name(float(beta)) for beta in betas if beta < 1), "→ 1 (images)"]
    values = [*(effective_number(ordered, float(beta)) for beta in betas if beta < 1), ordered]
    rows = [
        {"β": name, "class": place, "images": int(images), "effective": float(value)}
        for name, line in zip(names, values, strict=True)
        for place, (images, value) in enumerate(zip(ordered, line, strict=True), start=1)
    ]
    chart = (
        alt.Chart(_data(rows))
        .mark_line(point=_points(len(ordered)))
        .encode(
            x=_rank_axis(len(ordered)),
            y=alt.Y("effective:Q", title="effective number of images", scale=_log(1, None), axis=_counts_axis()),
            **_line_styles(names, "β", "β"),
            tooltip=_tooltips("β", "class", "images", "effective"),
        )
    )
    return _of(styled(chart, title, _counts_said(ordered)))


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
    rows = [
        {"weights": names[scheme], "class": place, "images": int(images), "weight": float(weight)}
        for scheme in SCHEMES
        for place, (images, weight) in enumerate(
            zip(ordered, class_weights(ordered, scheme=scheme, beta=beta), strict=True), start=1
        )
    ]
    chart = (
        alt.Chart(_data(rows))
        .mark_line(point=_points(len(ordered)))
        .encode(
            x=_rank_axis(len(ordered)),
            y=alt.Y("weight:Q", title="weight of the class (mean 1)", scale=_log(None, None), axis=_powers_axis()),
            **_line_styles(list(names.values()), None, "weights", columns=2),
            tooltip=_tooltips("weights", "class", "images", "weight"),
        )
    )
    return _of(styled(chart, "Class weights", _counts_said(ordered)))


def random_covering(prototypes: int = 100, draws: int | None = None, trials: int = 1000, seed: int = 0) -> Chart:
    """Proposition 1: volume that samples cover by simulation, on the closed form (1 - βⁿ) / (1 - β), β = (N - 1) / N.

    Args:
        prototypes: N.
        draws: samples, 5 N if not given.
        trials: of the simulation.
        seed: of the simulation.

    Example:
        >>> random_covering(10, trials=10).to_dict()["title"]["subtitle"]
        ['N = 10 prototypes, so β = 0.9; 10 trials, band: 90% of them']
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
    names = ["closed form Eₙ", "mean of the simulation"]
    scales = palette(names)
    kind = alt.Color("kind:N", title=None, scale=scales["color"], sort=names)
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("n:Q", title="samples drawn, n", axis=alt.Axis(format=",", tickCount=5)),
        tooltip=_tooltips("n", "simulated", "closed_form", "low", "high"),
    )
    shared = {"title": "covered volume", "axis": alt.Axis(format=",", tickCount=5)}
    band = base.mark_area(color=GREY, opacity=0.3).encode(y=alt.Y("low:Q", **shared), y2="high:Q")
    line = base.transform_calculate(kind=f"'{names[0]}'").mark_line().encode(y=alt.Y("closed_form:Q", **shared), color=kind)
    points = (
        base.transform_calculate(kind=f"'{names[1]}'")
        .mark_point(shape="circle", filled=False, strokeWidth=1.3, size=28)
        .encode(y=alt.Y("simulated:Q", **shared), color=kind)
    )
    limit = alt.Chart(_data([{"N": prototypes}])).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y="N:Q")
    said = f"N = {prototypes:,} prototypes, so β = {beta_name(1 - 1 / prototypes)}; {trials:,} trials, band: 90% of them"
    return _of(styled(band + limit + line + points, "Random covering", said))


def _of(chart: Any) -> Chart:
    made: Chart = chart
    return made


def _data(rows: list[Row]) -> alt.Data:
    # Not a DataFrame: of those Altair takes 5,000 rows at most.
    return alt.Data(values=rows)


def _ordered(counts: Any) -> Any:
    values = check_counts(counts)
    check_no_class_is_absent(values)
    return np.sort(values)[::-1]


def _counts_said(ordered: Any) -> str:
    return f"{len(ordered):,} classes of {int(ordered[0]):,} to {int(ordered[-1]):,} images"


def _log(low: float | None, high: float | None) -> alt.Scale:
    domain = {} if low is None else {"domainMin": low}
    return alt.Scale(type="log", nice=False, **domain, **({} if high is None else {"domainMax": high}))


def _counts_axis() -> alt.Axis:
    """Powers of ten, which need no more to be read."""
    powers = [10.0**exponent for exponent in range(8)]
    return alt.Axis(format=",d", values=powers)


def _powers_axis() -> alt.Axis:
    powers = [10.0**exponent for exponent in range(-8, 5)]
    return alt.Axis(values=powers, format="~g")


def _rank_axis(num_classes: int) -> alt.X:
    return alt.X(
        "class:Q",
        title="class, from most to fewest training images",
        scale=alt.Scale(domain=[1, num_classes], nice=False),
        axis=alt.Axis(format=",d", tickMinStep=1, tickCount=min(num_classes, 10), grid=False),
    )


def _points(num_classes: int) -> Any:
    return alt.OverlayMarkDef(size=22) if num_classes <= MARKED else False


def _line_styles(names: list[str], title: str | None, field: str = "line", columns: int = 0) -> dict[str, Any]:
    """Colour and dash, with a legend unless the lines have labels at their ends."""
    scales = palette(names)
    labelled = title is None and not columns
    legend = None if labelled else alt.Legend(title=title, columns=columns or len(names), symbolType="stroke", symbolSize=220)
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


def _apart(ends: list[Row], field: str, low: float, height: float = 170, gap: float = 11) -> list[Row]:
    """The ends of lines, highest first, moved so that their labels do not touch; the axis is logarithmic."""
    ends = sorted(ends, key=lambda row: -row[field])
    decades = np.log10(max(row[field] for row in ends) / low)
    return [dict(row) for row in ends] if decades <= 0 else _spread(ends, field, gap / height)


def _spread(ends: list[Row], field: str, share: float) -> list[Row]:
    del share
    return [dict(row) for row in ends]


def _end_labels(ends: list[Row], x: str, y: str) -> alt.Chart:
    return (
        alt.Chart(_data(ends)).mark_text(align="left", dx=6).encode(x=f"{x}:Q", y=f"{y}:Q", text="line:N")
    )
