"""The verdict of the report: methods compared, the certainty of a difference, and what to try next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from longtail.lab.config import ConfigError
from longtail.lab.experiments.results import run_folder_of
from longtail.lab.report.content import Group
from longtail.lab.report.figures.runs import compared
from longtail.lab.training import RunFolder
from longtail.lab.training.adjustments import choose_adjustment
from longtail.lab.training.metrics import NORMAL_QUANTILE, balanced_accuracy_error

FEW_IMAGES = 10
"""Fewer test images of a class say little about its recall."""

ENOUGH_SEEDS = 3
NAMED = 3
"""Classes that are named in the verdict."""

TEST_IMAGES = "number of test images"
"""What limits a difference that more seeds would not make any clearer."""

MOST_PAIRS = 2000
"""Cells of a confusion matrix off its diagonal, the largest first, so that a page of many classes stays small."""

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Method:
    """A loss, sampling or head, over all of its seeds.

    Args:
        name: for people.
        runs: ids of its runs.
        accuracy: balanced accuracy by seed.
        recall: of each class, mean over seeds; empty where it is not known.
        tested: test images of each class, where any run of the experiment kept its confusion matrix.
        predicted: test images that were predicted as each class, mean over seeds.
        confused: class, other class and how many images were taken for it, mean over seeds; the most first.
        mistakes: image, class, predicted class and confidence, of the first seed that has any.
        mistaken: the run that they are of.
        adjustment: slug of what changes the head of its runs without training.
    """

    name: str
    runs: list[str]
    accuracy: dict[int, float]
    recall: list[float | None] = field(default_factory=list)
    tested: list[int] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    confused: list[tuple[int, int, float]] = field(default_factory=list)
    mistakes: list[list[float]] = field(default_factory=list)
    mistaken: str = ""
    adjustment: str | None = None

    @property
    def mean(self) -> float:
        """Balanced accuracy, mean over seeds."""
        return sum(self.accuracy.values()) / len(self.accuracy)

    @property
    def error(self) -> float | None:
        """Standard error of the balanced accuracy by the number of test images, where it is known."""
        known = [index for index, images in enumerate(self.tested) if images and self.recall[index] is not None]
        if not known:
            return None
        recall, tested = (np.array([values[index] for index in known]) for values in (self.recall, self.tested))
        return balanced_accuracy_error(recall.astype(np.float64), tested.astype(np.float64))


@dataclass(frozen=True)
class Difference:
    """Of two balanced accuracies, and its 95% interval: the wider one of those over seeds and over test images."""

    value: float
    radius: float | None
    by: str
    """What limits it: seeds, or test images."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves no doubt about the sign."""
        return self.radius is not None and abs(self.value) > self.radius

    @property
    def text(self) -> str:
        """In percentage points."""
        if self.radius is None:
            return f"{points(self.value)} points (one seed, no interval)"
        low, high = points(self.value - self.radius), points(self.value + self.radius)
        return f"{points(self.value)} points (95% interval {low} to {high}, from the {self.by})"

    @property
    def interval(self) -> str:
        """In brackets, for tables."""
        if self.radius is None:
            return ""
        return f"[{points(self.value - self.radius)}, {points(self.value + self.radius)}]"


@dataclass(frozen=True)
class Step:
    """Something to do next: ``train``, ``tune``, ``adjust`` or ``evaluate``, from a run.

    Args:
        action: what to do.
        run: folder of the run.
        changes: of its configuration, by path, or the options of the adjustment.
        runs: folder of the run folders, where the action makes one.

    Example:
        >>> str(Step("train", Path("runs/a"), {"seed": 1}, Path("runs")))
        'train runs/a, seed 1'
    """

    action: str
    run: Path
    changes: dict[str, Any] = field(default_factory=dict)
    runs: Path | None = None

    def __str__(self) -> str:
        return ", ".join([f"{self.action} {self.run}", *(f"{name} {value}" for name, value in self.changes.items())])


@dataclass(frozen=True)
class Verdict:
    """The conclusions of an experiment, in sentences; ``next_steps`` has reasons, each with what to do."""

    summary: list[str]
    gains: list[str]
    losses: list[str]
    warnings: list[str]
    next_steps: list[tuple[str, list[Step]]]


def find_methods(group: Group, folder: Path) -> list[Method]:
    """The methods of an experiment, in the order of tables: an adjusted head follows the run that it is of."""
    parts = group.frame.groupby("method", sort=False)
    methods = [_method(str(name), part, len(group.classes), folder) for name, part in parts]
    # Records of older versions do not tell how many test images there are, but all methods saw the same ones.
    tested = next((method.tested for method in methods if method.tested), [])
    return [replace(method, tested=tested) if method.recall else method for method in methods]


def _method(name: str, part: DataFrame, classes: int, folder: Path) -> Method:
    rows = part.to_dict("records")
    accuracy = {int(row["seed"]): float(row["balanced_accuracy"]) for row in rows}
    adjusted = next((slug for slug in part["adjustment"] if isinstance(slug, str)), None)
    found = [(row["run_id"], _final(row, folder)) for row in rows]
    finals = [final for _, final in found if len(final.get("recall") or []) == classes]
    if not classes or not finals:
        return Method(name, part["run_id"].tolist(), accuracy, adjustment=adjusted)
    recalls = np.array([final["recall"] for final in finals], dtype=np.float64).mean(axis=0)
    recall = [None if math.isnan(value) else round(value, 4) for value in recalls.tolist()]
    made = {"name": name, "runs": part["run_id"].tolist(), "accuracy": accuracy, "adjustment": adjusted}
    matrices = [final["confusion"] for final in finals if final.get("confusion")]
    if len(matrices) < len(finals):
        return Method(**made, recall=recall)
    cells: dict[tuple[int, int], float] = {}
    for label, predicted, images in (cell for matrix in matrices for cell in matrix):
        cells[label, predicted] = cells.get((label, predicted), 0) + images / len(matrices)
    tested, taken = np.zeros(classes), np.zeros(classes)
    for (label, predicted), images in cells.items():
        tested[label] += images
        taken[predicted] += images
    wrong = [(label, predicted, round(images, 2)) for (label, predicted), images in cells.items() if label != predicted]
    mistaken, mistakes = next(((run, final["mistakes"]) for run, final in found if final.get("mistakes")), ("", []))
    return Method(
        **made,
        recall=recall,
        tested=tested.round().astype(int).tolist(),
        predicted=taken.round(2).tolist(),
        confused=sorted(wrong, key=lambda cell: (-cell[2], cell[:2]))[:MOST_PAIRS],
        mistakes=mistakes,
        mistaken=mistaken,
    )


def _final(row: Row, folder: Path) -> Row:
    """All metrics of a run or an adjustment."""
    run = run_folder_of(folder, row["run_id"])
    found = run.adjustment(row["adjustment"]) if isinstance(row["adjustment"], str) else run.finished_result()
    final: Row = found["final"]
    return final


def difference(baseline: Method, candidate: Method) -> Difference:
    """How much better the candidate is, with an interval.

    Over seeds: Student's t interval of the differences, paired by seed. Over test images: both balanced accuracies as
    independent, which is cautious, as both saw the same images.

    Example:
        >>> plain, other = Method("a", [], {0: 0.8, 1: 0.82}), Method("b", [], {0: 0.9, 1: 0.92})
        >>> difference(plain, other).text
        '+10.0 points (95% interval +10.0 to +10.0, from the 2 seeds)'
    """
    from scipy.special import stdtrit  # and not scipy.stats, which is slow to import

    value = candidate.mean - baseline.mean
    pairs = [
        candidate.accuracy[seed] - baseline.accuracy[seed] for seed in baseline.accuracy.keys() & candidate.accuracy
    ]
    radii: list[tuple[float, str]] = []
    if len(pairs) > 1:
        value = float(np.mean(pairs))
        t = float(stdtrit(len(pairs) - 1, 0.975))
        radii.append((t * float(np.std(pairs, ddof=1)) / len(pairs) ** 0.5, f"{len(pairs)} seeds"))
    if baseline.error is not None and candidate.error is not None:
        radii.append((NORMAL_QUANTILE * math.hypot(baseline.error, candidate.error), TEST_IMAGES))
    radius, by = max(radii, default=(None, ""))
    return Difference(value, radius, by)


def find_verdict(group: Group, methods: list[Method], folder: Path) -> Verdict:
    """Which method is best, how sure that is, which classes gain or lose, and what to do next."""
    by_name = {method.name: method for method in methods}
    best = max(methods, key=lambda method: method.mean)
    baseline = by_name[str(compared(group.frame)["method"].iloc[0])]
    others = sorted((method for method in methods if method is not best), key=lambda method: -method.mean)
    claim = "has the highest balanced accuracy:" if others else "has a balanced accuracy of"
    summary = [f"{best.name} {claim} {_share(best)}."]
    gains: list[str] = []
    losses: list[str] = []
    warnings = _warnings(group, methods, best)
    seeds_help = True
    if others:
        rival = others[0] if best is baseline else baseline
        lead = difference(rival, best)
        noun = "next best method" if best is baseline else "baseline"
        unclear = "more seeds will tell" if lead.radius is None else "too close to call"
        clear = "a clear difference" if lead.is_clear else unclear
        summary.append(f"Against the {noun} ({rival.name}, {_percent(rival.mean)}): {lead.text}: {clear}.")
        close = [method.name for method in others if method is not rival and not difference(method, best).is_clear]
        if close:
            more = f" and {len(close) - NAMED} more" if len(close) > NAMED else ""
            summary.append(f"Not clearly worse than the best: {'; '.join(close[:NAMED])}{more}.")
        gains, losses = _changes(group, rival, best)
        one = min(len(method.accuracy) for method in (best, rival)) == 1
        seeds_help = one or lead.by != TEST_IMAGES
        if not seeds_help and not lead.is_clear:
            warnings.append("More seeds would not narrow the interval, only more test images would.")
    return Verdict(summary, gains, losses, warnings, _next_steps(methods, best, baseline, folder, seeds_help))


def _share(method: Method) -> str:
    seeds = len(method.accuracy)
    over = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    if method.error is None:
        return f"{_percent(method.mean)} ({over})"
    radius = NORMAL_QUANTILE * method.error
    low, high = max(method.mean - radius, 0.0), min(method.mean + radius, 1.0)
    return f"{_percent(method.mean)} (95% interval {_percent(low)} to {_percent(high)}, {over})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def points(value: float) -> str:
    """A difference of fractions in percentage points."""
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def _changes(group: Group, before: Method, after: Method) -> tuple[list[str], list[str]]:
    """The classes that gain most, and those that lose most."""
    if not before.recall or not after.recall:
        return [], []
    rows = [
        (new - old, f"{name} ({count:,} training images): {_percent(old)} → {_percent(new)}")
        for name, count, old, new in zip(group.classes, group.counts, before.recall, after.recall, strict=True)
        if old is not None and new is not None
    ]
    rows.sort(key=lambda row: row[0])
    losses = [text for change, text in rows[:NAMED] if change < -0.0005]
    return [text for change, text in reversed(rows[-NAMED:]) if change > 0.0005], losses


def _warnings(group: Group, methods: list[Method], best: Method) -> list[str]:
    """Where the evidence is thin."""
    found = []
    if len(methods) == 1:
        found.append("There is one method only: nothing to compare it with.")
    few = [method.name for method in methods if len(method.accuracy) == 1]
    if few and len(methods) > 1:
        which = "All methods have" if len(few) == len(methods) else f"{len(few)} of {len(methods)} methods have"
        found.append(f"{which} one seed only: another seed can change their order.")
    thin = [index for index, images in enumerate(best.tested) if images < FEW_IMAGES]
    if thin:
        rare = sorted(thin, key=lambda index: best.tested[index])[:NAMED]
        named = ", ".join(f"{group.classes[index]} ({best.tested[index]})" for index in rare)
        noun = "class has" if len(thin) == 1 else "classes have"
        found.append(f"{len(thin)} {noun} fewer than {FEW_IMAGES} test images, such as {named}: see their intervals.")
    if len(methods) > 2:
        found.append(
            f"The best of {len(methods)} methods was picked on the test images themselves, which flatters it a little; "
            "longtail tune picks by cross-validation."
        )
    return found


def _next_steps(
    methods: list[Method], best: Method, baseline: Method, folder: Path, seeds_help: bool
) -> list[tuple[str, list[Step]]]:
    """At most two reasons and what to do; the first matters most."""

    def run(method: Method) -> RunFolder:
        return run_folder_of(folder, method.runs[0])

    runs = folder if (folder / best.runs[0]).is_dir() else folder.parent
    several = len(methods) > 1
    seeds = [
        Step("train", run(method).path, {"seed": seed}, runs)
        for method in dict.fromkeys((best, baseline))
        if method.adjustment is None
        for seed in _missing_seeds(method)
    ]
    one = min(len(method.accuracy) for method in (best, baseline)) == 1
    why = "the difference has an interval over seeds" if one else "the interval over seeds is narrower"
    adjusted = [method for method in methods if method.adjustment is not None]
    done = (run(best).adjustment(best.adjustment) or {}) if best.adjustment else {}
    same: dict[str, Any] = {name: done[name] for name in ("method", "tau") if name in done}
    rest = [run_folder_of(folder, name) for name in _not_adjusted(best, methods)] if done.get("method") else []
    steps = [
        (not several, "Compare it with another loss:", [Step("train", run(best).path, _other_loss(run(best)), runs)]),
        (several and seeds_help, f"Train more seeds, so that {why}:", seeds),
        (
            all(each.model_file.exists() for each in rest),  # records have no weights
            "Adjust the other seeds, too:",
            [Step("adjust", each.path, same) for each in rest][: max(ENOUGH_SEEDS - len(best.runs), 1)],
        ),
        (
            not adjusted and _can_be_adjusted(run(baseline)),
            f"Adjust the head of {baseline.name} for rare classes, which trains nothing:",
            [Step("adjust", run(baseline).path, {"method": "logit_adjustment"})],
        ),
        (
            not (runs / "tune").is_dir() and best.adjustment is None,
            "Let cross-validation choose the loss, β and γ:",
            [Step("tune", run(best).path, runs=runs)],
        ),
    ]
    found = [(reason, actions) for applies, reason, actions in steps if applies and actions]
    if not found and run(best).model_file.exists():
        options = {"adjustment": best.adjustment} if best.adjustment else {}
        found = [("Look at each class of the best run:", [Step("evaluate", run(best).path, options)])]
    return found[:2]


def _other_loss(run: RunFolder) -> dict[str, Any]:
    """What makes it a run with balanced softmax, or with plain softmax if it is one already."""
    config = run.config()
    changes: dict[str, Any] = {"loss.name": "softmax" if config.loss.name == "logit_adjusted" else "logit_adjusted"}
    if not config.loss.is_plain:
        changes |= {"loss.weighting": "uniform", "loss.beta": None}
    if config.data.sampling != "shuffled":
        changes["data.sampling"] = "shuffled"
    return changes


def _can_be_adjusted(run: RunFolder) -> bool:
    """Whether its weights are there, and nothing in its training corrected for the class prior."""
    try:
        data = run.data()
        choose_adjustment(run.config(), tuple(data["classes"]), data["train_counts"], "logit_adjustment")
    except ConfigError:
        return False
    return run.model_file.exists()


def _missing_seeds(method: Method) -> list[int]:
    """The first ones that make it enough."""
    missing = [seed for seed in range(ENOUGH_SEEDS) if seed not in method.accuracy]
    return missing[: max(ENOUGH_SEEDS - len(method.accuracy), 0)]


def _not_adjusted(adjusted: Method, methods: list[Method]) -> list[str]:
    """Runs of other seeds than those whose head is adjusted."""
    parent = next((each for each in methods if each.adjustment is None and adjusted.runs[0] in each.runs), adjusted)
    return [run for run in parent.runs if run not in adjusted.runs]
