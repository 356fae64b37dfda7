"""Text from outside, such as class names, paths and metadata, as a terminal can show it."""

from __future__ import annotations

import re

ACTS_ON_TERMINAL = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # control characters, C0 and C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of text
    r"\u2028\u2029\ud800-\udfff]"  # ends of lines, and bytes of file names that are no text
)


def escaped(text: str) -> str:
    r"""The text with the characters that a terminal would act on, ends of lines included, as Python writes them.

    Example:
        >>> print(escaped("\x1b[2Jowl\n"))
        \x1b[2Jowl\n
    """
    return ACTS_ON_TERMINAL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
