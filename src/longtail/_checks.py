"""Checks of arguments: bad input gets one line that names the argument and its value."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

__all__ = [
    "check_choice",
    "check_in_unit_interval",
    "check_integer",
    "check_loss_option",
    "check_non_negative",
    "check_positive_integer",
]


FEW = 30
"""So many names are listed beside the nearest one."""


def check_choice(argument: str, value: object, choices: Sequence[str], hint: str = "") -> None:
    """Refuse a name that is not one of ``choices``, and suggest the nearest one, or all if they are few."""
    if value in choices:
        return
    word = str(value).lower()
    near = [choice for choice in choices if word and choice.startswith(word)]
    near = near or difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    told = [f"did you mean {near[0]!r}?"] if near else []
    told += [f"choose from {', '.join(choices)}{hint}"] if not near or len(choices) <= FEW else []
    raise ValueError(f"unknown {argument} {value!r}: {' '.join(told)}")


def check_in_unit_interval(argument: str, value: float) -> None:
    """Refuse a number outside [0, 1], NaN included."""
    _check_number(argument, value)
    if not 0 <= value <= 1:
        raise ValueError(f"{argument} must be in [0, 1], got {_shown(value)}")


def check_non_negative(argument: str, value: float) -> None:
    """Refuse a number that is negative, infinite or NaN."""
    _check_number(argument, value)
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{argument} must be a finite number >= 0, got {_shown(value)}")


LARGEST_OPTION = 1e6
"""Of γ, τ, margins and scales: far from the range of float32, whatever it is multiplied by."""


def check_loss_option(option: str, value: float) -> None:
    """Refuse what an option of a loss cannot be."""
    if type(value) is float and 0 < value <= LARGEST_OPTION and option != "clip":  # the rule, and quick
        return
    if option == "clip":
        check_in_unit_interval(option, value)
        return
    check_non_negative(option, value)
    if value > LARGEST_OPTION:
        raise ValueError(f"{option} must be at most 1e6, got {_shown(value)}")
    if option == "scale" and value == 0:
        raise ValueError(f"scale must be above 0, got {value}")


def check_integer(argument: str, value: Any) -> None:
    """Refuse what is not an integer of 64 bits."""
    if not isinstance(value, Integral):
        raise TypeError(f"{argument} must be an integer, got {value!r}")
    if not -(2**63) <= int(value) < 2**63:
        raise ValueError(f"{argument} must fit in 64 bits, got {_shown(value)}")


def check_positive_integer(argument: str, value: Any, largest: int = 2**63 - 1) -> None:
    """Refuse what is not an integer of at least 1 and at most ``largest``."""
    check_integer(argument, value)
    if value < 1:
        raise ValueError(f"{argument} must be at least 1, got {value}")
    if value > largest:
        raise ValueError(f"{argument} must be at most {largest:,}, got {value:,}")


def _check_number(argument: str, value: object) -> None:
    if not isinstance(value, Real):
        raise TypeError(f"{argument} must be a number, got {value!r} of type {type(value).__name__}")


def _shown(value: Any) -> str:
    """A number for an error message; an integer of very many digits is rounded."""
    try:
        return f"{value}" if abs(value) < 10**18 else f"{float(value):g}"
    except OverflowError:
        return "an integer larger than any float"
