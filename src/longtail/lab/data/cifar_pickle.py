"""Pickled batches of CIFAR, read without running anything that they say."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from longtail.lab.data.errors import DataError


def load_batch(path: Path) -> dict[Any, Any]:
    """The dictionary in a pickle of the official Python layout; its keys are bytes, as Python 2 wrote them."""
    try:
        with path.open("rb") as file:
            content = _CifarUnpickler(file).load()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path} is damaged: {type(error).__name__} {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a batch of CIFAR")
    return content


class _CifarUnpickler(pickle.Unpickler):
    """Builds dictionaries, lists, numbers, bytes, and arrays of bytes: what CIFAR files hold, and nothing else.

    Not even NumPy's own constructors are called: the names that a pickled array refers to get the
    stand-ins of ``ARRAY_PARTS``, which look at their arguments.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """Stand-ins for what builds an array; anything else is refused."""
        found = ARRAY_PARTS.get((module, name))
        if found is None:
            raise DataError(f"refused to unpickle {module}.{name}, which no CIFAR file needs")
        return found

    def persistent_load(self, pid: Any) -> NoReturn:
        """No CIFAR file refers to anything outside of it."""
        raise DataError("refused to unpickle a reference to something outside of the file")


class _PickledArray:
    """An array of bytes that takes its shape and content from its pickled state."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _PickledDtype) or fortran or not isinstance(content, bytes):
            raise DataError("refused to unpickle an array that is not of bytes")
        if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) != len(content):
            raise DataError(f"an array of shape {shape} has {len(content)} bytes")
        self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape)


class _PickledDtype:
    """The dtype uint8, and no other."""

    def __init__(self, name: Any, *_: Any) -> None:
        if name not in (b"u1", "u1"):
            raise DataError(f"refused to unpickle an array of {name!r}")

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: nothing for single bytes."""


def _empty_array(*_: Any) -> _PickledArray:
    return _PickledArray()


def _latin1(text: Any, encoding: Any) -> bytes:
    """How Python 3 writes bytes into a pickle that Python 2 can read."""
    if not isinstance(text, str):
        raise DataError("refused to unpickle encoded bytes that are not text")
    return text.encode("latin1")


ARRAY_PARTS = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): "the first argument of _reconstruct, which nothing can call",
    ("numpy", "dtype"): _PickledDtype,
    ("_codecs", "encode"): _latin1,
}
