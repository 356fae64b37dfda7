"""Dataclasses as JSON and back; a value that does not fit is refused by the name of its field."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from longtail._checks import check_choice
from longtail.lab.config.errors import ConfigError, config_errors

Config = TypeVar("Config")


def _fields(kind: Any) -> list[dataclasses.Field[Any]]:
    """Those that count: where data was found is no part of a configuration."""
    return [item for item in dataclasses.fields(kind) if item.compare]


def encode(value: Any) -> Any:
    """A configuration as JSON; whole numbers in float fields become floats, so that 50 and 50.0 are the same."""
    if not dataclasses.is_dataclass(value):
        return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    kinds = _kinds(type(value))  # type: ignore[arg-type]
    encoded = {}
    for item in _fields(value):
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
    """The encoded fields that differ from their defaults."""
    encoded, default = encode(value), _default(type(value))  # type: ignore[arg-type]
    different: dict[str, Any] = {}
    for item in _fields(value):
        content = getattr(value, item.name)
        if dataclasses.is_dataclass(content):
            inner = without_defaults(content)
            different |= {item.name: inner} if inner else {}
        elif encoded[item.name] != default[item.name]:
            different[item.name] = encoded[item.name]
    return different


def decode(content: Any, kind: Any, path: str) -> Any:
    """JSON as a value of the type ``kind``; ``path`` names its field.

    Example:
        >>> from longtail.lab.data import SubsetOptions
        >>> decode({"imbalance": "x"}, SubsetOptions, "data.subset")
        Traceback (most recent call last):
        ValueError: data.subset.imbalance cannot be 'x'
    """
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(content, kind, path)
    if get_origin(kind) in (Union, types.UnionType):
        if content is None and type(None) in get_args(kind):
            return None
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is tuple and isinstance(content, (list, tuple)):
        return tuple(decode(part, get_args(kind)[0], path) for part in content)
    if get_origin(kind) is Literal and content in get_args(kind):
        return content
    if kind is float and type(content) in (int, float):
        return float(content)
    if kind is Path and isinstance(content, (str, Path)):
        return Path(content)
    if type(content) is kind:
        return content
    raise ValueError(f"{path} cannot be {content!r}")


def _decode_dataclass(content: Any, kind: Any, path: str) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{path or 'it'} must be an object, got {content!r:.60}")
    kinds = {item.name: _kinds(kind)[item.name] for item in _fields(kind)}
    inner = {name: f"{path}.{name}".removeprefix(".") for name in content}
    unknown = [name for name in content if name not in kinds]
    if unknown:
        check_choice("key", inner[unknown[0]], [f"{path}.{name}".removeprefix(".") for name in kinds])
    values = {name: decode(value, kinds[name], inner[name]) for name, value in content.items()}
    return kind(**values)


def leaves(kind: Any, path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Where in a configuration each value is, by its short name: that of its field, or of its part for a ``name``.

    Example:
        >>> from longtail.lab.config import RunConfig
        >>> found = leaves(RunConfig)
        >>> found["imbalance"], found["model"], found["seed"]
        (('data', 'subset', 'imbalance'), ('model', 'name'), ('seed',))
    """
    found: dict[str, tuple[str, ...]] = {}
    for item in dataclasses.fields(kind):
        here, inner = (*path, item.name), _kinds(kind)[item.name]
        if dataclasses.is_dataclass(inner):
            found |= leaves(inner, here)
        else:
            found[path[-1] if path and item.name == "name" else item.name] = here
    return found


def values_by_name(config: Any) -> dict[str, Any]:
    """The values of a configuration by their short names, as :func:`leaves` has them.

    Example:
        >>> from longtail.lab.config import RunConfig
        >>> values_by_name(RunConfig())["model"]
        'resnet32'
    """
    return {name: functools.reduce(getattr, path, config) for name, path in leaves(type(config)).items()}


def with_fields(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with other values, by short names or dotted paths.

    Example:
        >>> from longtail.lab.config import RunConfig
        >>> config = with_fields(RunConfig(), {"imbalance": 50, "optimizer.momentum": 0.8})
        >>> config.data.subset.imbalance, config.optimizer.momentum
        (50.0, 0.8)
    """
    short = leaves(type(config))
    paths = {".".join(path): path for path in short.values()}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in short and name not in paths:
            with config_errors():
                check_choice("field", name, tuple(paths) if "." in name else tuple(short))
        *parents, leaf = short.get(name) or paths[name]
        inner = changes
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[leaf] = value
    changed: Config = _replaced(config, changes, "")
    return changed


def _replaced(part: Any, changes: Mapping[str, Any], path: str) -> Any:
    kinds, values = _kinds(part.__class__), {}
    for name, value in changes.items():
        here = f"{path}.{name}".removeprefix(".")
        if dataclasses.is_dataclass(kinds[name]):
            values[name] = _replaced(getattr(part, name), value, here)
            continue
        try:
            values[name] = decode(value, kinds[name], here)
        except (ValueError, OverflowError) as error:
            raise ConfigError(str(error)) from None
    return dataclasses.replace(part, **values)
