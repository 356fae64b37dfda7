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

__all__ = [
    "METRIC_LISTS",
    "check_adjustment",
    "check_data",
    "check_epoch",
    "check_preprocessing",
    "check_result",
    "damage_named",
]

METRIC_LISTS = ("recall", "calibration", *DETAILS)
"""Metrics that are lists: for each class, for each bin of the confidence, and for each cell of the confusion matrix."""


@contextlib.contextmanager
def damage_named(file: Path | str, where: str = "") -> Iterator[None]:
    """Whatever is wrong with what a file holds, or with a line of it, becomes an error that names it.

    Example:
        >>> with damage_named("result.json"):
        ...     check_result({"run_id": "digits"})
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: result.json is damaged: it has no final
    """
    try:
        yield
    except KeyError as missing:
        raise ConfigError(f"{file} is damaged{where}: it has no {missing.args[0]}") from None
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is damaged{where}: {error}") from None


def check_data(content: Any) -> None:
    """Of ``data.json``: the classes and their images, how images are prepared, and where they were."""
    classes, counts = (_list(content, name) for name in ("classes", "train_counts"))
    if not classes or not all(isinstance(name, str) for name in classes):
        raise TypeError("classes are not names")
    for count in counts:
        _check_whole_number(count)
    if len(counts) != len(classes) or not any(counts):
        raise ValueError(f"train_counts has {len(counts)} counts, {sum(counts)} images, of {len(classes)} classes")
    _check_images(content, "image_shape")
    for name, path in content.get("locations", {}).items():
        if not isinstance(path, str):
            raise TypeError(f"{name} is {path!r:.60}, which is not a path")


def _is_scaled(content: Any) -> bool:
    """Whether images are scaled to the input of the network, and how: its size, interpolation and centre crop."""
    found = content.get("input", {})
    size, fraction = found.get("input_size"), _finite(found.get("crop_fraction", 1.0))
    if size is not None:
        _check_whole_number(size)
    if size == 0 or not 0 < fraction <= 1 or found.get("interpolation", "bilinear") not in ("bilinear", "bicubic"):
        raise ValueError(f"input is {found!r:.120}")
    return size is not None


def check_preprocessing(content: Any) -> None:
    """Of the metadata of an exported network: how images are prepared."""
    found = {name: content[name] for name in ("interpolation", "crop_fraction") if name in content}
    _check_images(content | {"input": found | {"input_size": content["size"]}}, "shape")


def _check_images(content: Any, shape_name: str) -> None:
    """The shape of images in memory, or None for files, and how their channels are normalised."""
    shape = content[shape_name]
    if shape is not None:
        for size in _list(content, shape_name):
            _check_whole_number(size)
        if len(shape) != 3 or not all(shape):
            raise ValueError(f"{shape_name} is {shape}")
    mean, std = ([_finite(value) for value in _list(content, name)] for name in ("mean", "std"))
    channels = len(mean) if shape and _is_scaled(content) else shape[0] if shape else 3
    if not len(mean) == len(std) == channels or min(std) <= 0:
        raise ValueError(f"mean {mean} and std {std} cannot be of {channels} channels")


def check_result(content: Any) -> None:
    """Of ``result.json``: what came out of a run."""
    check_metrics(content["final"])
    final = content["final"]
    for value in (final["error"], final["balanced_accuracy"], content["best_error"], content["seconds"]):
        _finite(value)
    for name in GROUPS:  # None where no class is in it
        if name not in final:
            raise KeyError(name)
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
    check_metrics(content["final"])
    _finite(content["final"]["error"])


def check_epoch(content: Any) -> None:
    """Of a line of ``metrics.jsonl``."""
    _check_whole_number(content["epoch"])
    check_metrics(content)
    for name in ("error", "seconds"):
        if name in content:
            _number(content[name])


def check_metrics(metrics: Any) -> None:
    """All of them are numbers, or lists of numbers, or missing."""
    for name, value in metrics.items():
        if name in METRIC_LISTS:
            _check_numbers(value)
        elif value is not None:
            _number(value)


def _list(content: Any, name: str) -> list[Any]:
    if not isinstance(content[name], list):
        raise TypeError(f"{name} is {content[name]!r:.60}, which is not a list")
    return content[name]  # type: ignore[no-any-return]


def _check_numbers(value: Any) -> None:
    """A list of numbers, or of lists of numbers; each may be missing."""
    if value is None:
        return
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.60} is not a list")
    for part in value:
        if isinstance(part, list):
            _check_numbers(part)
        elif part is not None:
            _number(part)


def _check_whole_number(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r:.60} is not a whole number")


def _finite(value: Any) -> float:
    """What every run has; other metrics may be infinite, or missing."""
    if not math.isfinite(number := _number(value)):
        raise ValueError(f"{number} is not a number")
    return number


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r:.60} is not a number")
    return float(value)
