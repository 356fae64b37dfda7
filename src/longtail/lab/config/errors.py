"""What is wrong with a configuration, in one line, and how its values are written for people."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class ConfigError(Exception):
    """A configuration or a run folder that cannot be used; the message is one line that names the value or the file."""

    exit_code = 2


class FileError(ConfigError):
    """What is wrong in a file that a person may have written: its fields keep their names, whatever flags there are."""


@contextlib.contextmanager
def config_errors() -> Iterator[None]:
    """Not a ValueError, which the command line's parser would print in a box."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


LARGEST = 10**9
"""Of most values: what is computed from them stays far below what 32 bits of a float can hold."""


def check_at_most(name: str, value: float, largest: int = LARGEST) -> None:
    """Reject a number above a limit."""
    if value > largest:
        raise ValueError(f"{name} must be at most {largest:,}, got {value:,}")


def shortest(value: object) -> str:
    """A value as a person would write it, if that is the same number.

    Example:
        >>> shortest(50.0), shortest(0.9999999), shortest((160.0, 180.0))
        ('50', '0.9999999', '160 180')
    """
    if isinstance(value, (list, tuple)):
        return " ".join(map(shortest, value))
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
