"""Which runs a figure shows: experiments, and in them a baseline and a candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from longtail._checks import check_choice
from longtail.lab.config import LOSS_KWARGS, WEIGHT_FIELDS, ConfigError, shortest
from longtail.lab.experiments.aggregate import in_order
from longtail.lab.experiments.results import SETTING, run_folder_of

OF_METHOD = ("loss", *LOSS_KWARGS, *WEIGHT_FIELDS, "lr", "sampling", "sampling_beta", "mixup", "cutmix")
OF_METHOD += ("freeze", "sync_batch_norm", "fused_head", "weights_from", "adjustment")
COMMON = tuple(name for name in SETTING if name not in OF_METHOD)
"""Columns of the configuration that are the same in all runs of an experiment, whatever the method and the seed."""


def experiments(frame: pd.DataFrame, *may_differ: str) -> list[pd.DataFrame]:
    """The complete runs, by what they were trained on and how, whatever the method and the seed.

    A re-trained classifier belongs to the experiment of the run that its backbone is from. Settings of an experiment
    that would have the same name get what differs appended to it.
    """
    runs = frame[frame["status"] == "complete"]
    if runs.empty:
        return []
    runs = runs.sort_values(["seed", "test_every"], ascending=[True, False])
    # How often a run was tested changes nothing, unless the best epoch is kept: longtail tune tests at the end.
    runs["test_every"] = runs["test_every"].where(runs["keep"] == "best", 1)
    runs = in_order(runs.drop_duplicates([*SETTING, "seed"]))
    common = [name for name in COMMON if name not in may_differ]
    parents = runs[runs["adjustment"].isna()].drop_duplicates("run_id").set_index("run_id")
    is_child = runs["weights"].isin(parents.index)
    for name in COMMON:
        runs[name] = runs[name].where(~is_child, runs["weights"].map(parents[name]))
    parts = [part.reset_index(drop=True) for _, part in runs.groupby(common, dropna=False, sort=False)]
    return [part.assign(method=_unique_methods(part, may_differ)) for part in parts]


def _unique_methods(runs: pd.DataFrame, may_differ: tuple[str, ...]) -> pd.Series:
    methods = runs["method"].copy()
    for _, part in runs.groupby(["method", *may_differ], dropna=False):
        for name in OF_METHOD:
            texts = [_typed(value) for value in part[name]]
            found = list(dict.fromkeys(texts))
            if len(found) > 1:
                shown = [text if len(text) < 30 else f"({found.index(text) + 1} of {len(found)})" for text in texts]
                methods[part.index] += [f", {name.replace('_', ' ')} {text}" for text in shown]
    return methods


def one_experiment(frame: pd.DataFrame, *may_differ: str) -> pd.DataFrame:
    """The complete runs, if all are of one experiment; else an error that says how to choose one."""
    found = experiments(frame, *may_differ)
    if not found:
        raise ConfigError("none of the runs is complete")
    if len(found) > 1:
        left, largest, choice = found, max(found, key=len), ""
        for name in COMMON:
            same = [part for part in left if _typed(part[name].iloc[0]) == _typed(largest[name].iloc[0])]
            if name not in may_differ and len(same) < len(left):
                left, choice = same, f"{choice} {name}={_typed(largest[name].iloc[0])}"
        raise ConfigError(f"the runs belong to {len(found)} experiments: choose one, such as{choice}")
    return found[0]


def _typed(value: Any) -> str:
    text = "none" if not isinstance(value, tuple) and pd.isna(value) else shortest(value)
    return f"'{text}'" if " " in text else text


def compared(runs: pd.DataFrame, baseline: str | None = None, candidate: str | None = None) -> pd.DataFrame:
    """The runs of two methods, the baseline first; those of the baseline alone where there is no other method.

    By default, the baseline is the first method without class weights, as tables order them, and the candidate the
    other method of highest mean balanced accuracy.
    """
    methods = runs["method"].drop_duplicates().tolist()
    for method in (baseline, candidate):
        if method is not None:
            check_choice("method", method, tuple(methods))
    if baseline is None:
        others = runs[runs["method"] != candidate] if len(methods) > 1 else runs
        plain = others[others["weighting"] == "uniform"]
        baseline = (others if plain.empty else plain)["method"].iloc[0]
    if candidate is None and len(methods) > 1:
        others = runs[runs["method"] != baseline]
        candidate = others.groupby("method", sort=False)["balanced_accuracy"].mean().idxmax()
    chosen = runs[runs["method"].isin([baseline, candidate])]
    return chosen.sort_values("method", key=lambda names: names != baseline, kind="stable").reset_index(drop=True)


def describe(runs: pd.DataFrame, *parts: str) -> str:
    """What runs of one experiment have in common, for a subtitle, and further parts."""
    first = runs.iloc[0]
    imbalances = runs["imbalance"].drop_duplicates().tolist()
    named = [f"imbalance {imbalances[0]:g}"] if len(imbalances) == 1 and not pd.isna(imbalances[0]) else []
    data = Path(first["data"]).name or str(first["data"])
    return ", ".join([data, *named, str(first["model"]), f"{first['epochs']} epochs", *filter(None, parts)])


def describe_seeds(runs: pd.DataFrame, bars: str = "bars") -> str:
    """How many seeds there are, and what the bars of the figure are."""
    counts = runs.groupby(["imbalance", "method"], dropna=False).size()
    low, high = int(counts.min()), int(counts.max())
    if high == 1:
        return "one seed"
    return f"{low if low == high else f'{low} to {high}'} seeds" + (
        f", {bars} ± one standard deviation" if bars else ""
    )


def classes_of(folder: Path | str, frame: pd.DataFrame) -> tuple[list[str], list[int]]:
    """Names and training images of the classes, from the first run folder that has them."""
    problem = ConfigError("none of the runs is complete")
    for run_id in frame["run_id"]:
        try:
            data = run_folder_of(folder, run_id).data()
            return data["classes"], data["train_counts"]
        except ConfigError as error:  # a copied result may be without them
            problem = error
    raise problem


def load_epochs(folder: Path | str, frame: pd.DataFrame) -> pd.DataFrame:
    """The test error after each epoch of runs.

    Args:
        folder: of the run folders, or the run folder.
        frame: what :func:`longtail.lab.experiments.load_results` gave of it, or some rows.

    Returns:
        The rows of the complete runs, each as often as it was tested, with ``epoch`` and the ``error`` after it.

    Example:
        >>> load_epochs("runs", pd.DataFrame({"run_id": [], "status": [], "adjustment": []})).empty
        True
    """
    runs = frame[(frame["status"] == "complete") & frame["adjustment"].isna()]  # an adjustment has no epochs
    tests = [
        (index, each["epoch"], float(each["error"]))
        for index, run_id in runs["run_id"].items()
        for each in run_folder_of(folder, run_id).metrics()
        if each.get("error") is not None
    ]
    indices, epochs, errors = (list(column) for column in zip(*tests, strict=True)) if tests else ([], [], [])
    return runs.loc[indices].assign(epoch=epochs, error=errors).reset_index(drop=True)
