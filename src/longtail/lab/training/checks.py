"""What the files of a run may hold: a value that they cannot have is refused before anybody computes with it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longtail.lab.config import ConfigError
from longtail.lab.data import GROUPS
from longtail.lab.training.metrics import DETAILS

METRIC_LISTS = ("recall", "calibration", *DETAILS)
"""Metrics that are lists: for each class, for each bin of the confidence, and for each cell of the confusion matrix."""


@contextlib.contextmanager
def damage_named(file: Path | str, where: str = "") -> Iterator[None]:
    """Whatever is wrong with what a file holds, or with a line of it, becomes an error that names it."""
    try:
        yield
    except KeyError as missing:
        raise ConfigError(f"{file} is damaged{where}: it lacks {missing.args[0]!r}") from None
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is damaged{where}: {error}") from None


def check_data(content: Any) -> None:
    """Of ``data.json``: the classes and their images, how images are prepared, and where they were."""
    classes, counts = _list(content, "classes"), [_whole_number(count) for count in _list(content, "train_counts")]
    if not classes or not all(isinstance(name, str) for name in classes):
        raise TypeError("classes are not names")
    if len(counts) != len(classes) or not any(counts):
        raise ValueError(f"train_counts has {len(counts)} counts, {sum(counts)} images, of {len(classes)} classes")
    _check_images(content, "image_shape", content.get("input") or {"input_size": None})
    for name, path in content.get("locations", {}).items():
        if not isinstance(path, str):
            raise TypeError(f"{name} is {path!r:.60}, which is not a path")


def check_preprocessing(content: Any) -> None:
    """Of the metadata of an exported network: how images are prepared."""
    _check_images(content, "shape", content | {"input_size": content["size"]})


def _check_images(content: Any, shape_name: str, scaling: Any) -> None:
    """The shape of images in memory, or None for files; how they are scaled, and how their channels are normalised."""
    shape, size, fraction = content[shape_name], scaling["input_size"], _finite(scaling.get("crop_fraction", 1.0))
    sides = None if shape is None else [_whole_number(side) for side in _list(content, shape_name)]
    if sides is not None and (len(sides) != 3 or not all(sides)):
        raise ValueError(f"{shape_name} is {shape}")
    is_scaled = size is not None and bool(_whole_number(size))
    if size == 0 or not 0 < fraction <= 1 or scaling.get("interpolation", "bilinear") not in ("bilinear", "bicubic"):
        raise ValueError(f"input is {scaling!r:.120}")
    mean, std = ([_finite(value) for value in _list(content, name)] for name in ("mean", "std"))
    channels = 3 if not shape else len(mean) if is_scaled else shape[0]
    if not len(mean) == len(std) == channels or min(std) <= 0:
        raise ValueError(f"mean {mean} and std {std} cannot be of {channels} channels")


def check_result(content: Any) -> None:
    """Of ``result.json``: what came out of a run."""
    content["run_id"]
    final = content["final"]
    _check_metrics(final)
    for value in (final["error"], final["balanced_accuracy"], content["best_error"], content["seconds"]):
        _finite(value)
    for name in GROUPS:  # None where no class is in it
        final[name]
    content["versions"].items()


def check_adjustment(content: Any) -> None:
    """Of a file in ``adjustments/``: what is changed and what came out."""
    for name, value in (("method", content["method"]), ("prior_name", content.get("prior_name"))):
        if not isinstance(value, (str, type(None))):
            raise TypeError(f"{name} is {value!r:.60}, which is not text")
    _finite(content["tau"])
    prior, temperature = content.get("prior"), content.get("temperature")
    for value in (*([] if prior is None else _list(content, "prior")), *([] if temperature is None else [temperature])):
        if _finite(value) <= 0:
            raise ValueError(f"{value} is not above 0")
    _check_metrics(content["final"])
    _finite(content["final"]["error"])


def check_epoch(content: Any) -> None:
    """Of a line of ``metrics.jsonl``."""
    _whole_number(content["epoch"])
    _check_metrics(content)
    for name in ("error", "seconds"):
        if name in content:
            _number(content[name])


def _check_metrics(metrics: Any) -> None:
    """All of them are numbers, or lists of numbers, or missing."""
    for name, value in metrics.items():
        if value is None:
            continue
        if name not in METRIC_LISTS:
            _number(value)
        elif not isinstance(value, list):
            raise TypeError(f"{value!r:.60} is not a list")
        else:
            _check_numbers(value)


def _check_numbers(values: list[Any]) -> None:
    """Numbers, or lists of numbers; each may be missing."""
    for value in values:
        if isinstance(value, list):
            _check_numbers(value)
        elif value is not None:
            _number(value)


def _list(content: Any, name: str) -> list[Any]:
    if not isinstance(content[name], list):
        raise TypeError(f"{name} is {content[name]!r:.60}, which is not a list")
    return content[name]  # type: ignore[no-any-return]


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r:.60} is not a whole number")
    return value


def _finite(value: Any) -> float:
    """What every run has; other metrics may be infinite, or missing."""
    if not math.isfinite(number := _number(value)):
        raise ValueError(f"{number} is not a number")
    return number


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r:.60} is not a number")
    return float(value)
