"""Paragraphs that the docstrings of losses share, written once: functions insert them, modules take them over."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["arguments_of", "module_docstring", "with_shared_paragraphs"]

Function = TypeVar("Function", bound=Callable[..., Any])

PARAGRAPHS = {
    "shapes": "Shapes: logits (N, C) or (N, C, d1, …) or (C,); losses (N), (N, d1, …) or ().",
    "softmax_logits": "scores before the softmax; float16 and bfloat16 are computed in float32.",
    "sigmoid_logits": "scores before the sigmoid; float16 and bfloat16 are computed in float32.",
    "class_weight": """\
α, a tensor of shape (C,), such as ``torch.as_tensor(class_weights(counts))``; default all ones.""",
    "counts": "n, samples per class in the training set, shape (C,); a tensor on the logits' device costs no copy.",
    "label_smoothing": """\
ε in [0, 1]: the target becomes (1-ε)·target + ε/C. The class weight stays that of the target before
    smoothing.""",
    "ignore_index": "samples with this class index do not count.",
    "reduction": '``"mean"`` (over samples), ``"sum"``, ``"none"`` or ``"weighted_mean"`` (over the summed weights).',
    "returns": 'A scalar, or one loss per sample for ``"none"``, in float32 or wider.',
}

OF_MODULES = {
    "class_weight": "class_weight: α of shape (C,), kept as a buffer; default all ones.",
    "counts": "counts: samples per class in the training set, shape (C,), kept as a buffer.",
}
"""Arguments that modules keep, and functions do not."""

BUFFERS = """\
device, dtype: of the buffers; by default the device in use (``with torch.device(…)``), else that of the tensors
    given, and the default dtype."""


def with_shared_paragraphs(function: Function) -> Function:
    """Replace each line ``{name}`` or ``argument: {name}`` of the docstring by the shared paragraph of that name.

    Example:
        >>> @with_shared_paragraphs
        ... def loss(logits):
        ...     '''A loss.
        ...
        ...     Returns:
        ...         {returns}
        ...     '''
        >>> print(loss.__doc__.strip().splitlines()[-1].strip())
        A scalar, or one loss per sample for ``"none"``, in float32 or wider.
    """
    if function.__doc__:
        function.__doc__ = re.sub(
            r"^( *)(\w+: )?\{(\w+)\}$",
            lambda found: textwrap.indent((found[2] or "") + PARAGRAPHS[found[3]], found[1]),
            function.__doc__,
            flags=re.MULTILINE,
        )
    return function


def module_docstring(summary_and_example: str | None, function: Callable[..., Any]) -> str | None:
    """Docstring of a module: its first line and example, with the formula and arguments of its function between."""
    if summary_and_example is None or function.__doc__ is None:  # python -OO
        return summary_and_example
    summary, _, example = textwrap.dedent(f"    {summary_and_example}").strip().partition("\n\n")
    text = textwrap.dedent(f"    {function.__doc__}")
    formula = re.search(r"^\.\. math::.*?(?=\n\n)", text, flags=re.MULTILINE | re.DOTALL)
    arguments = [_for_modules(entry) for entry in _entries(text) if not entry.startswith(("logits:", "target:"))]
    parts = [
        summary,
        f"Module over :func:`longtail.functional.{function.__name__}`: see there for targets, weights and reductions.",
        formula[0] if formula else "",
        "Args:\n" + textwrap.indent("\n".join([*arguments, BUFFERS]), "    "),
        example,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def arguments_of(docstring: str | None) -> dict[str, str]:
    """What a docstring says of each argument, on one line.

    Example:
        >>> arguments_of(with_shared_paragraphs.__doc__)
        {}
    """
    entries = _entries(textwrap.dedent(f"    {docstring}")) if docstring else []
    parts = [entry.partition(": ") for entry in entries]
    return {name: " ".join(text.split()) for name, _, text in parts}


def _entries(text: str) -> list[str]:
    """The arguments of a docstring, each with its continuation lines."""
    section = re.search(r"^Args:\n(.*?)(?=\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return [] if section is None else re.split(r"\n(?=\S)", textwrap.dedent(section[1]))


def _for_modules(entry: str) -> str:
    entry = OF_MODULES.get(entry.partition(":")[0], entry)
    return re.sub(r":func:`(\w+)`", r":func:`longtail.functional.\1`", entry)
