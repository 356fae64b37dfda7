"""Sweep files: JSON or Python with lists of values."""

from __future__ import annotations

import itertools
import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longtail._checks import check_choice
from longtail.lab.config import LOSS_KWARGS, ConfigError, FileError, RunConfig, leaves
from longtail.lab.recipes import configure
from longtail.losses import LOSSES


def read_sweep(path: Path) -> list[RunConfig]:
    """The runs of a sweep file.

    A JSON file holds an object for :func:`expand`. A Python file, which is run, has one called ``sweep``, or a list of
    configurations of that name.

    Example:
        >>> read_sweep(Path("nowhere.json"))
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: nowhere.json does not exist
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    if path.suffix == ".py":
        try:
            content = runpy.run_path(str(path)).get("sweep")
        except Exception as error:
            raise ConfigError(f"{path}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    else:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if isinstance(content, (list, tuple)) and content and all(isinstance(each, RunConfig) for each in content):
        return list(content)
    if not isinstance(content, Mapping):
        expected = "a dictionary or a list of RunConfigs called sweep" if path.suffix == ".py" else "an object"
        raise ConfigError(f"{path} must hold {expected}, got {content!r:.60}")
    try:
        return expand(content)
    except (ConfigError, ValueError) as error:
        raise FileError(f"{path}: {error}") from None


def expand(values: Mapping[str, Any]) -> list[RunConfig]:
    """All combinations of lists of values.

    Keys are the fields of a configuration by their short names, such as ``lr``, and ``recipe``. A list is swept over;
    anything else is the same in all runs. Options that a loss does not have are left out of its runs (γ of the
    softmax loss), and what is then the same run is there once.

    Args:
        values: a value or a list of values for each name.

    Example:
        >>> runs = expand({"imbalance": [10, 50], "loss": ["softmax", "focal"], "gamma": [0.5, 2], "epochs": 20})
        >>> [run.loss.slug for run in runs[:3]], len(runs), runs[0].optimizer.milestones
        (['softmax', 'focal_0.5', 'focal_2'], 6, (16.0, 18.0))
    """
    for name in values:
        check_choice("name", name, ("recipe", *leaves(RunConfig)))
    lists = {name: _values(name, value) for name, value in values.items()}
    empty = [name for name, choices in lists.items() if not choices]
    if empty:
        raise ConfigError(f"{empty[0]} has no values")
    runs: dict[RunConfig, None] = {}
    used: set[str] = set()
    for combination in itertools.product(*lists.values()):
        config, applied = _config(dict(zip(lists, combination, strict=True)))
        runs[config] = None
        used |= applied
    if idle := [name for name in values if name not in used]:
        raise ConfigError(f"{idle[0]} applies to none of these runs")
    return list(runs)


def _values(name: str, value: Any) -> list[Any]:
    if name in ("milestones", "betas"):  # a value that is a list itself
        several = isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple))
        return list(value) if several else [value]
    return list(value) if isinstance(value, (list, tuple, range)) else [value]


def _config(values: dict[str, Any]) -> tuple[RunConfig, set[str]]:
    """A configuration, and the names of the values that apply to it."""
    loss = LOSSES.get(str(values.get("loss", "softmax")))
    idle = {name for name in LOSS_KWARGS if loss is not None and name not in loss.options}
    if values.get("weighting", "effective") != "effective":
        idle |= {"beta", "betas"}
    has_weights = any(values.get(name) is not None for name in ("weighting", "beta", "betas") if name not in idle)
    if not has_weights or values.get("weighting") == "uniform":
        idle |= {"defer_reweighting", "normalize"}
    if values.get("sampling") != "effective":
        idle.add("sampling_beta")
    used = {name: value for name, value in values.items() if name not in idle}
    return configure(used), set(used)
