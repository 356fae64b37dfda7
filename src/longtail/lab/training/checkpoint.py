"""Checkpoints: the last two, each whole or not there."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from longtail.lab.files import atomic_file

__all__ = ["load_checkpoint", "save_checkpoint"]

LATEST, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Save ``state``, tensors and plain values, and keep the one before it."""
    # To memory first: PyTorch's own writer does not say what was wrong with the disk.
    content = io.BytesIO()
    torch.save(state, content)
    with atomic_file(folder / LATEST) as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())  # before, not between: for as short a time as can be there is no latest one
        if (folder / LATEST).exists():
            os.replace(folder / LATEST, folder / PREVIOUS)


def load_checkpoint(
    folder: Path, check: Callable[[dict[str, Any]], object] = dict
) -> tuple[dict[str, Any] | None, list[str]]:
    """The latest state that is whole, if there is one, and what was wrong with the others.

    Loading runs no code that a file may hold.

    Args:
        folder: of the run.
        check: what raises an error of a state that is something else.
    """
    notes: list[str] = []
    there = [folder / name for name in (LATEST, PREVIOUS) if (folder / name).exists()]
    for path in there:
        try:
            # PyTorch compares no checksums: a flipped bit in a tensor would go unnoticed.
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged:
                raise ValueError(f"checksum of {damaged}")
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict):
                raise TypeError("it is not a checkpoint")
            check(state)
            return state, notes
        except Exception as error:  # a damaged file can raise anything
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            following = "starting anew" if path == there[-1] else "resuming from the one before it"
            # Out of the way: the next checkpoint would push out the one before it, which is whole, for this one.
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                path.replace(path.with_suffix(".damaged"))
            notes.append(f"{path} is damaged ({reason}): {following}")
    return None, notes
