"""Checks of arguments: bad input gets one line that names the argument and its value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

__all__ = ["check_choice", "check_in_unit_interval", "check_non_negative"]


def check_choice(argument: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a name that is not one of ``choices``, and suggest the nearest one."""
    if value in choices:
        return
    near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {argument} {value!r}: {hint}choose from {', '.join(choices)}")


def check_in_unit_interval(argument: str, value: float) -> None:
    """Refuse a number outside [0, 1], NaN included."""
    if not 0 <= value <= 1:
        raise ValueError(f"{argument} must be in [0, 1], got {value}")


def check_non_negative(argument: str, value: float) -> None:
    """Refuse a number that is negative, infinite or NaN."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{argument} must be a finite number >= 0, got {value}")
