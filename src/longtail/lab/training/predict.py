"""The most probable classes of image files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from longtail._checks import check_positive_integer
from longtail.lab.data import DataError
from longtail.lab.training.transform import read_batches

__all__ = ["Classifier", "predict"]


class Classifier(Protocol):
    """A finished run, or a network that was exported."""

    @property
    def transform(self) -> Callable[[Path], Tensor]:
        """From an image file to what the network takes."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names."""

    def probabilities(self, images: Tensor) -> Tensor:
        """Of each class, for images that were transformed, shape (N, C)."""


def predict(
    run: Classifier,
    paths: Sequence[Path],
    top: int = 5,
    *,
    workers: int | None = None,
    unreadable: Callable[[DataError], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """The most probable classes of image files, most probable first.

    Args:
        run: a finished run (:func:`load_run`), or an exported network (:func:`load_exported`).
        paths: the image files.
        top: how many classes to name.
        workers: processes that read them; by default one for each core, up to 8, and none for a few images.
        unreadable: is given the error of each image that cannot be read, and the others follow; without it, the first
            such error is raised.

    Example:
        >>> from longtail.lab.training import load_run
        >>> list(predict(load_run("runs/digits-…"), [Path("photo.png")], top=1))  # doctest: +SKIP
        [{'path': 'photo.png', 'classes': ['7'], 'probabilities': [0.93]}]
    """
    check_positive_integer("top", top)
    if isinstance(paths, (str, Path)):
        raise TypeError(f"paths must be a list of paths, got {paths!r}")
    remaining = iter(paths)
    for images, errors in read_batches(paths, run.transform, workers):
        best = _most_probable(run, images, top) if len(images) else iter(())
        for error, path in zip(errors, remaining, strict=False):
            if error is None:
                names, values = next(best)
                yield {"path": str(path), "classes": [run.classes[label] for label in names], "probabilities": values}
            elif unreadable is None:
                raise DataError(error)
            else:
                unreadable(DataError(error))


def _most_probable(run: Classifier, images: Tensor, top: int) -> Iterator[tuple[list[int], list[float]]]:
    """Of each image: class indices, and their probabilities."""
    values, labels = run.probabilities(images).topk(min(top, len(run.classes)))
    return zip(labels.tolist(), values.tolist(), strict=True)
