"""Summaries of runs over seeds: one row per setting, and the effect of class weights."""

from __future__ import annotations

from typing import Any

import pandas as pd

from longtail.lab.config import LOSS_KWARGS, WEIGHT_FIELDS
from longtail.lab.experiments.results import COMPARED, CONFIGURATION, SETTING, to_records
from longtail.losses import LOSSES
from longtail.samplers import SAMPLINGS

WEIGHTINGS = ("uniform", "effective", "inverse_sqrt", "inverse")
"""In the order of tables and figures, the plain loss first."""


def without_folds(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs that were tested on test images; those of cross-validation alone, if there are no others.

    Example:
        >>> without_folds(pd.DataFrame({"run_id": ["a", "b"], "fold": [None, 1]}))["run_id"].tolist()
        ['a']
    """
    whole = frame[frame["fold"].isna()]
    return frame if whole.empty else whole


def summarize_results(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each setting, which is all of a configuration but the seed; only complete runs count.

    A run that is there twice counts once. Where one of its runs misses a metric, a setting misses it too.

    Args:
        frame: what :func:`load_results` gave, or some rows of it.

    Returns:
        The columns of the setting, ``method``, ``published``, ``n``, and ``…_mean`` and ``…_std`` (of a sample: missing
        for a single run) of each metric; ordered by data, imbalance, network, loss, weights, last layer and
        sampling, the plain loss first.
    """
    runs = _complete(frame)
    metrics = _metrics(frame)
    groups = runs.groupby("_setting")
    means, spreads = _means_and_spreads(groups[metrics])
    means, spreads = means.add_suffix("_mean"), spreads.add_suffix("_std")
    pairs = [name for metric in metrics for name in (f"{metric}_mean", f"{metric}_std")]
    return in_order(_settings(runs).assign(n=groups.size()).join(pd.concat([means, spreads], axis=1)[pairs]))


def deltas(frame: pd.DataFrame) -> pd.DataFrame:
    """The effect of class weights: each weighted setting against the plain one, paired by seed.

    The plain setting has the same loss, γ and everything else, and no weights. Both runs of a pair start from the same
    network and see the same images in the same order.

    Args:
        frame: what :func:`load_results` gave, or some rows of it.

    Returns:
        The columns of the setting, ``method``, ``pairs``, and for each metric of ``COMPARED`` ``…_delta``, the mean
        difference, with the limits ``…_low`` and ``…_high`` of its 95% Student t interval, which needs two pairs. A
        setting without a plain partner has 0 pairs.
    """
    from scipy.special import stdtrit  # and not scipy.stats, which is slow to import

    runs = _complete(frame)
    runs["_family"] = _groups(runs, [name for name in SETTING if name not in WEIGHT_FIELDS])
    is_plain = runs["weighting"] == "uniform"
    # Plain runs that differ by how their weights of 1 would be normalized are the same run.
    plain = runs[is_plain].drop_duplicates(["_family", "seed"])[["_family", "seed", *COMPARED]]
    pairs = runs[~is_plain].merge(plain, on=["_family", "seed"], suffixes=("", "_plain"))
    differences = pd.DataFrame({name: pairs[name] - pairs[f"{name}_plain"] for name in COMPARED})
    groups = differences.groupby(pairs["_setting"])
    table = _settings(runs[~is_plain]).drop(columns="published")
    table["pairs"] = groups.size().reindex(table.index, fill_value=0)
    mean, spread = (values.reindex(table.index) for values in _means_and_spreads(groups))
    radius = stdtrit(table["pairs"] - 1, 0.975) / table["pairs"] ** 0.5
    for name in COMPARED:
        table[f"{name}_delta"] = mean[name]
        table[f"{name}_low"] = mean[name] - radius * spread[name]
        table[f"{name}_high"] = mean[name] + radius * spread[name]
    return in_order(table)


def _means_and_spreads(groups: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean and standard deviation of each group, missing where a value is: pandas 2 has no ``skipna`` here."""
    is_whole = groups.count().eq(groups.size(), axis=0)
    return groups.mean().where(is_whole), groups.std().where(is_whole)


def _complete(frame: pd.DataFrame) -> pd.DataFrame:
    runs = frame[frame["status"] == "complete"]
    runs = runs.drop_duplicates([*CONFIGURATION, "adjustment"]).reset_index(drop=True)
    return runs.assign(_setting=_groups(runs, list(SETTING)))


def _groups(runs: pd.DataFrame, columns: list[str]) -> pd.Series:
    """A number for each group; missing values are values like others."""
    return runs.groupby(columns, dropna=False, sort=False).ngroup()


def _settings(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.drop_duplicates("_setting").set_index("_setting")[[*SETTING, "method", "published"]]


def _metrics(frame: pd.DataFrame) -> list[str]:
    columns = [name for name in frame.columns if name not in (*CONFIGURATION, "published")]
    return [name for name in columns if frame[name].dtype == "float64"]


def in_order(settings: pd.DataFrame) -> pd.DataFrame:
    """Rows by data, imbalance, network, loss, weights, last layer and sampling, the plain loss first."""
    ranks = {
        "loss": {name: rank for rank, name in enumerate(LOSSES)},
        "sampling": {name: rank for rank, name in enumerate(("shuffled", *SAMPLINGS))},
        "weighting": {name: rank for rank, name in enumerate(WEIGHTINGS)},
    }
    first = ("data", "imbalance", "model", "loss", *LOSS_KWARGS, "weighting", "beta")
    first += ("freeze", "adjustment", "sampling")
    columns = [*first, *(name for name in SETTING if name not in first)]

    def key(row: dict[str, Any]) -> list[tuple[bool, Any]]:
        values = [ranks[name][row[name]] if name in ranks else row[name] for name in columns]
        return [(value is not None, 0 if value is None else value) for value in values]

    keys = [key(row) for row in to_records(settings[columns])]
    return settings.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(drop=True)
