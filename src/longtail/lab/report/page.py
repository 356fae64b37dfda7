"""The report: one HTML file that opens from disk, fetches nothing, and has tables, figures and an explorer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import longtail
from longtail.counts import long_tailed_counts
from longtail.lab.config import ConfigError
from longtail.lab.config.loss import TITLES
from longtail.lab.data.cifar import SIZES
from longtail.lab.experiments.aggregate import without_folds
from longtail.lab.experiments.results import SETTING, load_results, to_records
from longtail.lab.files import write_atomically
from longtail.lab.report import content, figures, tables
from longtail.lab.report.figures.runs import OF_LOSS
from longtail.lab.report.formats import script_text, vega
from longtail.lab.report.theme import spec

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["make_page", "write_page"]

MOST_CHARTS = 1_400_000
"""Characters of all charts together: with the charts' library, which takes 0.9 MB, the page stays below 3 MB."""

MOST_POINTS = 1000
"""Of all training curves of a chart together, or 20 a curve."""


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Args:
        key: by which the page finds it.
        label: for those who do not see it.
    """

    key: str
    label: str


@dataclass
class Charts:
    """Vega-Lite by key, as long as there is room for it."""

    specs: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0
    _size: int = 0

    def add(self, makers: list[Callable[[], Any]]) -> list[Chart]:
        """Draw what the data allow."""
        made = []
        for maker in makers:
            try:
                chart = maker()
            except ConfigError:
                continue  # the runs have not what it needs, such as two β, or a loss with and without weights
            with alt.data_transformers.enable("default", max_rows=None):
                drawn = spec(chart, "currentColor", "transparent")
            size = len(json.dumps(drawn, ensure_ascii=False))
            if self._size + size > MOST_CHARTS:
                self.left_out += 1
                continue
            self._size += size
            key = f"chart-{len(self.specs)}"
            self.specs[key] = drawn
            made.append(Chart(key, _label(drawn)))
        return made


def _label(drawn: dict[str, Any]) -> str:
    title = drawn.get("title", "figure")
    if not isinstance(title, dict):
        return str(title)
    below = title.get("subtitle", [])
    return ": ".join([str(title["text"]), " ".join([below] if isinstance(below, str) else below)]).removesuffix(": ")


def write_page(runs: Path | str, output: Path | str = "report.html", title: str | None = None) -> Path:
    """Write the page of runs.

    Args:
        runs: folder of run folders, or a run folder.
        output: the file, which ends in .html.
        title: of the page.

    Returns:
        The file.

    Example:
        >>> write_page("runs", "report.pdf")
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: report.pdf ends in .pdf: a report is written as .html
    """
    path = Path(output)
    if path.suffix.lower() not in (".html", ".htm"):
        known = f"ends in {path.suffix}" if path.suffix else "has no ending"
        raise ConfigError(f"{path} {known}: a report is written as .html")
    # Names of folders may be bytes that are no text.
    write_atomically(path, make_page(runs, title).encode("utf-8", "replace"))
    return path


def make_page(runs: Path | str, title: str | None = None) -> str:
    """The page of runs as text.

    Args:
        runs: folder of run folders, or a run folder.
        title: of the page.

    Example:
        >>> import tempfile
        >>> from longtail.lab.config import RunConfig
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / "a" / "config.json", RunConfig().to_json())
        ...     "<h1>Cats &amp; dogs</h1>" in make_page(runs, "Cats & dogs")
        True
    """
    folder = Path(runs)
    frame = without_folds(load_results(folder))
    groups = content.find_groups(frame, folder)
    by_class = [(group.name, content.class_table(group)) for group in groups]
    settings = tables.setting_table(frame)
    headers = {column.name for column in settings.columns}
    charts = Charts()
    shown = [{"name": name, "charts": made} for name, made in _figures(frame, groups, folder, charts) if made]
    complete = frame[frame["status"] == "complete"]
    environment = _environment()
    return environment.get_template("report.html").render(
        title=title or f"Results in {folder.resolve().name}",
        version=longtail.__version__,
        date=datetime.now(UTC).strftime("%d %B %Y").lstrip("0"),
        sections=_sections(any(table for _, table in by_class)),
        overview=content.overview(frame),
        settings=settings,
        runs=tables.run_table(frame),
        problems=tables.problem_table(frame),
        data_sets=list(dict.fromkeys(complete["data"])),
        losses={name: TITLES.get(name, name) for name in complete["loss"]},
        has_groups="few %" in headers or "many %" in headers or "medium %" in headers,
        has_deltas="Δ error" in headers,
        has_published="published (full protocol)" in headers,
        groups=shown,
        charts=charts.specs,
        charts_left_out=charts.left_out,
        class_tables=[(name, table) for name, table in by_class if table],
        presets=_presets(groups),
        vega=Markup(vega()),
        css=Markup(_asset(environment, "report.css")),
        **{
            f"{name}_js": Markup(script_text(_asset(environment, f"{name}.js")))
            for name in ("tables", "charts", "explorer")
        },
    )


def _environment() -> Environment:
    """Whatever is put into a template is escaped; JSON, too, has no < of its own."""
    made = Environment(
        loader=PackageLoader("longtail.lab.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return made


def _sections(classes: bool) -> list[tuple[str, str]]:
    named = {"runs": "What was run", "results": "Results", "figures": "Figures", "classes": "Classes"}
    named |= {"problems": "Incomplete and failed runs", "explorer": "Explorer"}
    return [(key, name) for key, name in named.items() if classes or key != "classes"]


def _figures(
    frame: DataFrame, groups: list[content.Group], folder: Path, charts: Charts
) -> Iterator[tuple[str, list[Chart]]]:
    """Name and charts of each part of the section: the theory first has room, as it is small."""
    theory = charts.add([figures.class_balanced_term])
    for name, part in _over_imbalances(frame):
        yield name, charts.add([partial(figures.heatmap, part)])
    for group in groups:
        yield group.name, charts.add(_of_group(group, folder))
    yield "Theory", theory


def _of_group(group: content.Group, folder: Path) -> list[Callable[[], Any]]:
    runs, classes = group.frame, group.classes
    makers = [
        lambda: figures.error_over_beta(runs),
        lambda: figures.group_recalls(runs),
        lambda: figures.training_curves(_thinned(figures.load_epochs(folder, runs))),
        lambda: figures.calibration(runs),
    ]
    if classes is None:
        return makers
    makers.insert(2, lambda: figures.recall_per_class(runs, classes.names, classes.counts))
    present = [count for count in classes.counts if count > 0]
    return [*makers, lambda: figures.effective_numbers(present)]


def _thinned(epochs: DataFrame) -> DataFrame:
    """Every so many epochs, and the last one: a curve on a page has no more points than pixels."""
    if epochs.empty:
        raise ConfigError("no run has its epochs")
    points = max(20, MOST_POINTS // epochs["run_id"].nunique())
    step = -(-int(epochs["epoch"].max()) // points)
    last = epochs.groupby("run_id")["epoch"].transform("max")
    return epochs[(epochs["epoch"] % step == 0) | (epochs["epoch"] == last)].round({"error": 3})


def _over_imbalances(frame: DataFrame) -> list[tuple[str, DataFrame]]:
    """Complete runs of a data set and a network at several imbalances."""
    complete = frame[frame["status"] == "complete"]
    common = [name for name in SETTING if name not in (*OF_LOSS, "imbalance")]
    parts = [part for _, part in complete.groupby(common, dropna=False, sort=False) if part["imbalance"].nunique() > 1]
    firsts = [to_records(part.iloc[:1])[0] for part in parts]
    return [
        (f"{first['data']}, {first['model']}, {first['epochs']} epochs, all imbalances", part)
        for first, part in zip(firsts, parts, strict=True)
    ]


def _presets(groups: list[content.Group]) -> list[dict[str, Any]]:
    """Counts that the explorer offers: those of the runs, each once, and of the paper's CIFAR."""
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        if group.classes is not None:
            preset = {"names": group.classes.names, "counts": group.classes.counts}
            row = to_records(group.frame.iloc[:1])[0]
            name = row["data"] if row["imbalance"] is None else f"{row['data']}, imbalance {row['imbalance']:g}"
            found.setdefault(json.dumps(preset), {"name": name, **preset})
    for data in ("cifar10", "cifar100"):
        classes, most = SIZES[data]
        counts = long_tailed_counts(most, classes, 100).tolist()
        found[data] = {"name": f"{data}, imbalance 100", "names": None, "counts": counts}
    return list(found.values())


def _asset(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]
