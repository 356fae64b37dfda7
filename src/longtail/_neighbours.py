"""How many samples lie near each sample: exact, in blocks, in memory that does not grow with the pairs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from longtail.counts import FloatArray, IntArray

__all__ = ["count_neighbours"]

BLOCK = 2048
"""Samples on each side of a block of pairs."""

CHECKED = 1 << 15
"""Pairs at once whose distance is computed in float64."""

UNIT = 2.0**-24
"""Rounding error of float32."""


def count_neighbours(features: FloatArray, radius: float, block: int = BLOCK) -> IntArray:
    r"""How many other samples lie within ``radius`` of each sample, :math:`\|x_i - x_j\| \le r`.

    A float32 matrix product gives all :math:`-\|x_i - x_j\|^2` of a block at once, with an error that has a bound. The
    pairs that are nearer to the radius than that are computed again as differences in float64, so the answer is that
    of float64 for every pair.

    Args:
        features: float64, shape (n, D).
        radius: r ≥ 0.
        block: samples on each side of a block.

    Returns:
        int64 counts of shape (n,).

    Example:
        >>> count_neighbours(np.array([[0.0], [1.0], [2.5]]), radius=1.0)
        array([1, 1, 0])
    """
    counts = np.zeros(len(features), dtype=np.int64)
    if not len(features):
        return counts
    centred = features - features.mean(axis=0)
    squares = np.einsum("ij,ij->i", centred, centred)
    # In units of the largest norm nothing overflows in float32, however large the features are.
    scale = float(np.sqrt(squares.max()))
    if scale == 0:
        return counts + len(counts) - 1
    left, right = _factors(centred / scale, squares / scale**2)
    limit = min(radius / scale, 3.0) ** 2  # no two samples are further apart than 2
    # Of a sum of D+2 products, each factor rounded: with |x|, |y| ≤ 1 the products add up to 4 at most.
    error = 4 * (left.shape[1] + 4) * UNIT * (1 + UNIT * left.shape[1])
    for rows, columns in _blocks(len(features), block):
        # NumPy's product: no setting of PyTorch makes it less precise than the bound.
        negative = left[rows] @ right[columns].T
        near = negative >= -limit - error
        if rows == columns:
            np.fill_diagonal(near, False)
        if near.any():
            _check(near, negative < -limit + error, features[rows], features[columns], radius)
            # As bytes: NumPy adds booleans far more slowly.
            counts[rows] += near.view(np.uint8).sum(axis=1, dtype=np.int32)
            if rows != columns:
                counts[columns] += near.view(np.uint8).sum(axis=0, dtype=np.int32)
    return counts


def _factors(points: FloatArray, squares: FloatArray) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Matrices whose product holds 2xy - x² - y² for all pairs."""
    ones = np.ones_like(squares)
    left = np.column_stack([2 * points, -squares, -ones]).astype(np.float32)
    right = np.column_stack([points, ones, squares]).astype(np.float32)
    return left, right


def _blocks(size: int, block: int) -> Iterator[tuple[slice, slice]]:
    """Every pair once: blocks on the diagonal and above it."""
    for row in range(0, size, block):
        for column in range(row, size, block):
            yield slice(row, row + block), slice(column, column + block)


def _check(
    near: npt.NDArray[np.bool_], doubtful: npt.NDArray[np.bool_], rows: FloatArray, columns: FloatArray, radius: float
) -> None:
    """Take out of ``near`` the doubtful pairs that are not."""
    doubtful &= near
    indices = np.flatnonzero(doubtful)
    for start in range(0, len(indices), CHECKED):
        i, j = np.divmod(indices[start : start + CHECKED], near.shape[1])
        near[i, j] = np.linalg.norm(rows[i] - columns[j], axis=1) <= radius
