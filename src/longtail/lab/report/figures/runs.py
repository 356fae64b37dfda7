"""Which runs a figure shows, and what they are called in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from longtail.lab.config import LOSS_KWARGS, WEIGHT_FIELDS, ConfigError, LossConfig, shortest
from longtail.lab.experiments.aggregate import WEIGHTINGS
from longtail.lab.experiments.results import SETTING, run_folder_of
from longtail.lab.report.theme import PLAIN
from longtail.losses import LOSSES

__all__ = [
    "FREE",
    "OF_LOSS",
    "about",
    "best_pair",
    "choice_said",
    "load_epochs",
    "one_experiment",
    "seeds_said",
    "series",
]

OF_LOSS = ("loss", *LOSS_KWARGS, *WEIGHT_FIELDS)
# A loss may be trained with a rate of its own, as the paper does on large data.
FREE = (*OF_LOSS, "lr")


def one_experiment(frame: pd.DataFrame, *may_differ: str) -> pd.DataFrame:
    """The complete runs, if all are of one experiment: they differ by loss and seed, and by what may differ.

    Args:
        frame: of :func:`longtail.lab.experiments.load_results`.
        may_differ: further columns of the configuration.

    Returns:
        Them with the columns ``loss_name``, ``term`` and ``name``, in the order of the paper.

    Example:
        >>> one_experiment(pd.DataFrame({"status": ["failed"]}))
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: none of the runs is complete
    """
    runs = frame[frame["status"] == "complete"]
    if runs.empty:
        raise ConfigError("none of the runs is complete")
    runs = runs.drop_duplicates([*SETTING, "seed"])
    for column in SETTING:
        if column not in (*FREE, *may_differ):
            _refuse_several(runs, column)
    twice = runs[runs.duplicated([*OF_LOSS, *may_differ, "seed"], keep=False)]
    if not twice.empty:
        _refuse_several(twice, "lr")
    losses = [_loss(row) for row in runs[list(OF_LOSS)].to_dict("records")]
    per_class = [f"β per class{number}" for number in _numbered(runs)]
    runs = runs.assign(
        loss_name=[_loss(row).title for row in runs[["loss", *LOSS_KWARGS]].to_dict("records")],
        term=[loss.weights_title.replace("β per class", name) for loss, name in zip(losses, per_class, strict=True)],
        method=[text.replace("β per class", name) for text, name in zip(runs["method"], per_class, strict=True)],
    )
    kinds = list(LOSSES)
    ranks = pd.DataFrame(
        {
            "loss": runs["loss"].map(kinds.index),
            **{name: runs[name].fillna(-1) for name in LOSS_KWARGS},
            "weighting": runs["weighting"].map(WEIGHTINGS.index),
            "beta": runs["beta"].fillna(-1),
            "betas": runs["betas"],
            "defer_reweighting": runs["defer_reweighting"].fillna(-1),
            "normalize": runs["normalize"],
            "seed": runs["seed"],
        }
    )
    runs = runs.loc[ranks.sort_values(list(ranks.columns)).index].reset_index(drop=True)
    return runs.assign(name=series(runs))


def _refuse_several(runs: pd.DataFrame, column: str) -> None:
    values = runs[column].drop_duplicates().tolist()
    if len(values) > 1:
        texts = sorted(map(_shown, values))
        shown = ", ".join(texts[:4]) + (", …" if len(texts) > 4 else "")
        raise ConfigError(f"the runs differ in {column} ({shown}): choose one, such as {column}={texts[0]}")


def _shown(value: Any) -> str:
    return "none" if not isinstance(value, tuple) and pd.isna(value) else shortest(value)


def _loss(row: dict[str, Any]) -> LossConfig:
    given = {name: value for name, value in row.items() if isinstance(value, tuple) or not pd.isna(value)}
    return LossConfig(**{"name" if name == "loss" else name: value for name, value in given.items()})


def _numbered(runs: pd.DataFrame) -> list[str]:
    """A β for each class is too long a name: with several such lists, they have numbers."""
    lists = sorted({betas for betas in runs["betas"] if betas})
    numbers = {betas: f" ({number} of {len(lists)})" for number, betas in enumerate(lists, start=1)}
    return [numbers[betas] if betas and len(lists) > 1 else "" for betas in runs["betas"]]


def series(runs: pd.DataFrame) -> list[str]:
    """A name for each run: that of its method, or of its class weights alone where these are all that differs.

    Example:
        >>> series(pd.DataFrame({"loss_name": ["softmax"] * 2, "term": ["no class weights", "β 0.9"]}))
        ['no class weights', 'β 0.9']
    """
    one_loss = runs["loss_name"].nunique() == 1 and runs["term"].nunique() > 1
    return list(runs["term"] if one_loss else runs["method"])


def best_pair(runs: pd.DataFrame) -> pd.DataFrame:
    """Of the class-balanced losses that have a plain partner, the one of lowest mean error, and the partner.

    Args:
        runs: of :func:`one_experiment`.
    """
    plain = runs[runs["term"] == PLAIN]
    weighted = runs[runs["term"] != PLAIN]
    if plain.empty or weighted.empty:
        missing = "without class weights" if plain.empty else "with class weights"
        raise ConfigError(f"there is nothing to compare: no complete run {missing}")
    weighted = weighted[weighted["loss_name"].isin(plain["loss_name"])]
    if weighted.empty:
        raise ConfigError("there is nothing to compare: no loss has complete runs both with and without class weights")
    loss, term = weighted.groupby(["loss_name", "term"], sort=False)["error"].mean().idxmin()
    chosen = runs[(runs["loss_name"] == loss) & runs["term"].isin([PLAIN, term])].reset_index(drop=True)
    return chosen.assign(name=series(chosen))


def choice_said(runs: pd.DataFrame, pair: pd.DataFrame) -> str:
    """Of how many losses with class weights the one that is shown is the best: whoever looks should know."""
    found = runs.loc[runs["term"] != PLAIN, ["loss_name", "term"]].drop_duplicates()
    return f"best of {len(found)} by test error, " if len(found) > 1 and len(pair) < len(runs) else ""


def about(runs: pd.DataFrame, *parts: str) -> str:
    """What runs of one experiment have in common, for a subtitle.

    Args:
        runs: of :func:`one_experiment`.
        parts: more to say.
    """
    first = runs.iloc[0]
    losses = runs["loss_name"].drop_duplicates().tolist()
    imbalances = runs["imbalance"].drop_duplicates().tolist()
    said = [Path(first["data"]).name or str(first["data"])]
    said += [f"imbalance {imbalances[0]:g}"] if len(imbalances) == 1 and not pd.isna(imbalances[0]) else []
    said += [str(first["model"]), f"{first['epochs']} epochs"]
    said += (
        [losses[0].replace(",", " loss,") if "," in losses[0] else f"{losses[0]} loss"]
        if len(losses) == 1 and runs["term"].nunique() > 1
        else []
    )
    return ", ".join([*said, *parts])


def seeds_said(runs: pd.DataFrame, bars: str = "bars") -> str:
    """How many seeds there are, and what the bars of the figure are."""
    counts = runs.groupby(["imbalance", "loss_name", "term"], dropna=False).size()
    low, high = int(counts.min()), int(counts.max())
    if high == 1:
        return "one seed"
    return f"{low if low == high else f'{low} to {high}'} seeds" + (
        f", {bars} ± one standard deviation" if bars else ""
    )


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
    runs = frame[(frame["status"] == "complete") & frame["adjustment"].isna()]  # which have no epochs of their own
    tests = []
    for place, run_id in runs["run_id"].items():
        epochs = run_folder_of(folder, run_id).metrics()
        tests += [(place, each["epoch"], each["error"]) for each in epochs if each.get("error") is not None]
    places = [place for place, _, _ in tests]
    return (
        runs.loc[places]
        .assign(epoch=[epoch for _, epoch, _ in tests], error=[float(error) for *_, error in tests])
        .reset_index(drop=True)
    )
