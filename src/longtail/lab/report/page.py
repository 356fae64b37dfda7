"""The report: one HTML file that opens from disk, fetches nothing, and has tables, figures and an explorer."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import altair as alt
from markupsafe import Markup
from pandas import DataFrame
from PIL import Image
from torch import Tensor

import longtail
from longtail.counts import long_tailed_counts
from longtail.lab.config import ConfigError
from longtail.lab.config.encoding import encode
from longtail.lab.data import DataError
from longtail.lab.data.cifar import CLASSES, SIZES
from longtail.lab.experiments.aggregate import without_folds
from longtail.lab.experiments.results import load_results, run_folder_of, to_records
from longtail.lab.files import write_atomically
from longtail.lab.report import content, tables
from longtail.lab.report.compare import Method, Step, difference, find_methods, find_verdict, points
from longtail.lab.report.figures import FIGURES, Inputs
from longtail.lab.report.figures.runs import compared
from longtail.lab.report.formats import script_text, templates, vega
from longtail.lab.report.theme import method_style, spec
from longtail.lab.training import RunFolder
from longtail.lab.training.evaluation import open_run_data

MOST_CHARTS = 1_400_000
"""Characters of all charts together: with the charts' library, which takes 0.9 MB, the page stays below 3 MB."""

OF_GROUP = ("training_curves", "calibration", "group_recalls", "error_over_beta")
"""Figures of each experiment."""

MOST_IMAGES = 150
"""Thumbnails of a page, some 4 kB each."""

THUMBNAIL = 112
"""Pixels of the longer side."""


@dataclass
class Charts:
    """Vega-Lite by key, as long as there is room for it."""

    specs: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0
    _size: int = 0

    def add(self, name: str, inputs: Inputs) -> Iterator[tuple[str, str]]:
        """Draw a figure if the runs allow it: the key by which the page finds it, and a label for screen readers."""
        try:
            chart = FIGURES[name].make(inputs)
        except (ConfigError, ValueError):
            return  # the runs have not what it needs, such as two β
        with alt.data_transformers.enable("default", max_rows=None):
            drawn = spec(chart, "currentColor", "transparent")
        size = len(json.dumps(drawn, ensure_ascii=False))
        if self._size + size > MOST_CHARTS:
            self.left_out += 1
            return
        self._size += size
        key = f"chart-{len(self.specs)}"
        self.specs[key] = drawn
        title = drawn["title"]
        yield key, ": ".join([title["text"], " ".join(title.get("subtitle", []))]).removesuffix(": ")


def write_page(
    runs: Path | str,
    output: Path | str = "report.html",
    title: str | None = None,
    *,
    images: bool = True,
    command: Callable[[Step], str] = str,
) -> Path:
    """Write the page of runs.

    Args:
        runs: folder of run folders, or a run folder.
        output: the file, which ends in .html.
        title: of the page.
        images: whether to embed test images that were misclassified.
        command: how to do what the verdict suggests, for its reader.

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
    write_atomically(path, make_page(runs, title, images=images, command=command).encode("utf-8", "replace"))
    return path


def make_page(
    runs: Path | str, title: str | None = None, *, images: bool = True, command: Callable[[Step], str] = str
) -> str:
    """The page of runs as text; see :func:`write_page`.

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
    charts = Charts()
    theory = list(charts.add("class_balanced_term", Inputs()))
    order = tuple(dict.fromkeys(name for group in groups for name in group.frame["method"]))
    thumbnails = Thumbnails(MOST_IMAGES if images else 0)
    experiments = [_experiment(group, folder, charts, thumbnails, order) for group in groups]
    problems = tables.problem_table(frame)
    return (
        templates()
        .get_template("report.html")
        .render(
            title=title or f"Results in {folder.resolve().name}",
            version=longtail.__version__,
            date=datetime.now(UTC).strftime("%d %B %Y").lstrip("0"),
            sections=_sections(bool(experiments)),
            overview=content.overview(frame),
            experiments=experiments,
            opened=max(range(len(groups)), key=lambda index: groups[index].frame["method"].nunique(), default=0),
            command=command,
            searches=content.searches(folder),
            problems=problems,
            theory=[*theory, *_heatmaps(frame, folder, charts)],
            charts=charts.specs,
            charts_left_out=charts.left_out,
            data=[each["data"] for each in experiments],
            presets=_presets(groups),
            vega=Markup(vega()),
            css=Markup(_asset("report.css")),
            **{f"{name}_js": Markup(script_text(_asset(f"{name}.js"))) for name in ("report", "explorer")},
        )
    )


def make_explorer() -> str:
    """The explorer of class weights alone, as a page.

    Example:
        >>> "cifar10, imbalance 100" in make_explorer()
        True
    """
    explorer = Markup(script_text(_asset("explorer.js")))
    page = templates().get_template("explorer_page.html")
    return page.render(presets=_presets([]), css=Markup(_asset("report.css")), explorer_js=explorer)


def _sections(complete: bool) -> list[tuple[str, str]]:
    named = {"verdict": "Verdict", "compare": "Compare", "confusion": "Confusions", "mistakes": "Mistakes"}
    named = named if complete else {}
    named |= {"results": "Results", "figures": "Figures", "problems": "Incomplete and failed runs"}
    return [*named.items(), ("explorer", "Explorer"), ("runs", "What was run")]


def _experiment(
    group: content.Group, folder: Path, charts: Charts, thumbnails: Thumbnails, order: tuple[str, ...]
) -> dict[str, Any]:
    """What the template and the page's script need to know about an experiment."""
    methods = find_methods(group, folder)
    pair = compared(group.frame)["method"].drop_duplicates().tolist()
    names = [method.name for method in methods]
    baseline = methods[names.index(pair[0])]
    changes = {method.name: _change(baseline, method) for method in methods} if len(methods) > 1 else {}
    shared, settings = tables.setting_table(group.frame, changes).collapsed()
    inputs = Inputs(
        runs=folder, frame=group.frame, counts=[count for count in group.counts if count > 0], methods=order
    )
    figures = (*OF_GROUP, "effective_numbers") if group.counts else OF_GROUP
    chosen = [methods[names.index(name)] for name in pair]
    ranked = [*reversed(chosen), *(method for method in methods if method not in chosen)]
    mistakes = {method.name: thumbnails.add(method, folder) for method in ranked}
    return {
        "name": group.name,
        "verdict": find_verdict(group, methods, folder),
        "shared": shared,
        "settings": settings,
        "runs": tables.run_table(group.frame),
        "charts": [chart for name in figures for chart in charts.add(name, inputs)],
        "data": {
            "name": group.name,
            "classes": group.classes,
            "counts": group.counts,
            "pair": [names.index(pair[0]), names.index(pair[-1])],
            "methods": [_method(method, mistakes[method.name], order) for method in methods],
            "differences": [[difference(a, b).text if a is not b else "" for b in methods] for a in methods],
        },
    }


def _change(baseline: Method, method: Method) -> tables.Cell:
    """The difference of the balanced accuracies in percentage points."""
    if method is baseline:
        return tables.Cell("baseline")
    found = difference(baseline, method)
    return tables.Cell(points(found.value), found.value, found.interval)


def _method(method: Method, mistakes: list[Any], order: tuple[str, ...]) -> dict[str, Any]:
    names = ("name", "recall", "tested", "predicted", "confused")
    found = {name: getattr(method, name) for name in names}
    colour, _, _ = method_style(order.index(method.name))
    return found | {"accuracy": method.mean, "mistakes": mistakes, "colour": colour, "seeds": len(method.accuracy)}


def _heatmaps(frame: DataFrame, folder: Path, charts: Charts) -> list[tuple[str, str]]:
    groups = content.find_groups(frame, folder, "imbalance")
    several = [group.frame for group in groups if group.frame["imbalance"].nunique() > 1]
    return [chart for part in several for chart in charts.add("heatmap", Inputs(runs=folder, frame=part))]


@dataclass
class Thumbnails:
    """Test images as small JPEG files in the page, as long as there is room for them."""

    left: int
    _images: dict[tuple[str, int], str] = field(default_factory=dict)
    _opened: dict[str, Any] = field(default_factory=dict)

    def add(self, method: Method, folder: Path) -> list[list[Any]]:
        """The mistakes of a method with their images, as far as these are there."""
        found = []
        for index, *about in method.mistakes:
            image = self._image(run_folder_of(folder, method.mistaken).path, int(index))
            found += [[image, *about]] if image else []
        return found

    def _image(self, run: Path, index: int) -> str | None:
        if not self.left and not self._images:
            return None
        images, key = self._test_images(run)
        if (key, index) not in self._images and self.left and images is not None:
            with contextlib.suppress(DataError, OSError, IndexError):
                self._images[key, index] = _thumbnail(images[index][0])
                self.left -= 1
        return self._images.get((key, index))

    def _test_images(self, run: Path) -> tuple[Any, str]:
        """The test images of a run, each data set opened once."""
        key = json.dumps(encode(RunFolder(run).config().data), default=str)
        if key not in self._opened:
            self._opened[key] = None
            with contextlib.suppress(ConfigError, DataError, OSError):
                self._opened[key] = open_run_data(run).test
        return self._opened[key], key


def _thumbnail(pixels: Tensor) -> str:
    image = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).numpy())
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=72)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _presets(groups: list[content.Group]) -> list[dict[str, Any]]:
    """Counts that the explorer offers: those of the runs, each once, and of the paper's CIFAR."""
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        if group.classes:
            preset = {"names": group.classes, "counts": group.counts}
            row = to_records(group.frame.iloc[:1])[0]
            name = row["data"] if row["imbalance"] is None else f"{row['data']}, imbalance {row['imbalance']:g}"
            found.setdefault(json.dumps(preset), {"name": name, **preset})
    for data in ("cifar10", "cifar100"):
        classes, most = SIZES[data]
        counts = long_tailed_counts(most, classes, 100).tolist()
        found[data] = {"name": f"{data}, imbalance 100", "names": CLASSES.get(data), "counts": counts}
    return list(found.values())


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
