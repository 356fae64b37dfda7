"""Dataclasses as JSON and back; what does not fit is refused by the name of its place."""

from __future__ import annotations

import dataclasses
import functools
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from longtail._checks import check_choice

__all__ = ["decode", "encode", "without_defaults"]


def encode(value: Any) -> Any:
    """A configuration as JSON has it; numbers that are to be floats are floats, so that 50 and 50.0 are the same.

    Example:
        >>> from longtail.lab.data import SubsetOptions
        >>> encode(SubsetOptions(imbalance=50))["imbalance"]
        50.0
    """
    if not dataclasses.is_dataclass(value):
        return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    kinds = _kinds(type(value))  # type: ignore[arg-type]
    encoded = {}
    for item in dataclasses.fields(value):
        content = getattr(value, item.name)
        is_float = float in (kinds[item.name], *get_args(kinds[item.name]))
        content = tuple(map(float, content)) if is_float and isinstance(content, tuple) else content
        encoded[item.name] = float(content) if is_float and isinstance(content, int) else encode(content)
    return encoded


@functools.cache
def _kinds(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def _default(kind: Any) -> dict[str, Any]:
    default: dict[str, Any] = encode(kind())
    return default


def without_defaults(value: Any) -> dict[str, Any]:
    """The encoded fields that are not as they are by default.

    Example:
        >>> from longtail.lab.data import SubsetOptions
        >>> without_defaults(SubsetOptions(imbalance=50))
        {'imbalance': 50.0}
    """
    encoded, default = encode(value), _default(type(value))  # type: ignore[arg-type]
    different: dict[str, Any] = {}
    for item in dataclasses.fields(value):
        content = getattr(value, item.name)
        if dataclasses.is_dataclass(content):
            inner = without_defaults(content)
            different |= {item.name: inner} if inner else {}
        elif encoded[item.name] != default[item.name]:
            different[item.name] = encoded[item.name]
    return different


def decode(content: Any, kind: Any, place: str) -> Any:
    """JSON as a value of the type ``kind``; ``place`` says where it is from.

    Example:
        >>> from longtail.lab.data import SubsetOptions
        >>> decode({"imbalance": "x"}, SubsetOptions, "data.subset")
        Traceback (most recent call last):
        ValueError: data.subset.imbalance cannot be 'x'
    """
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(content, kind, place)
    if get_origin(kind) in (Union, types.UnionType):
        if content is None and type(None) in get_args(kind):
            return None
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is tuple and isinstance(content, list):
        return tuple(decode(part, get_args(kind)[0], place) for part in content)
    if get_origin(kind) is Literal and content in get_args(kind):
        return content
    if kind is float and type(content) in (int, float):
        return float(content)
    if kind is Path and isinstance(content, str):
        return Path(content)
    if type(content) is kind:
        return content
    raise ValueError(f"{place} cannot be {content!r}")


def _decode_dataclass(content: Any, kind: Any, place: str) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{place or 'it'} must be an object, got {content!r:.60}")
    kinds = _kinds(kind)
    inner = {name: f"{place}.{name}".removeprefix(".") for name in content}
    unknown = [name for name in content if name not in kinds]
    if unknown:
        check_choice("key", inner[unknown[0]], [f"{place}.{name}".removeprefix(".") for name in kinds])
    values = {name: decode(value, kinds[name], inner[name]) for name, value in content.items()}
    return kind(**values)
