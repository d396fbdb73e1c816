"""Grids of places to sample at."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import FLOAT32, Builder, flattened


@primitive("AffineGrid")
def affine_grid(b: Builder, theta: Value, output_size: Operand, *, align_corners: bool = False) -> Value:
    """Where an affine map of [-1, 1] takes each place of an image (N, C, H, W) or volume (N, C, D, H, W)."""
    size = b.integers(flattened(output_size), "output_size")
    if len(size) not in {4, 5}:
        raise RefusedError(f"output_size {list(size)} is that of no image and no volume")
    b.bounded(*size[2:])
    lines = [_places(length, align_corners) for length in size[2:]]
    places = [item.reshape(-1) for item in np.meshgrid(*lines, indexing="ij")][::-1]
    grid = np.stack([*places, np.ones_like(places[0])], axis=-1).astype(np.float32)
    count = len(size) - 2
    turned = b.transpose(b.cast(b.computable(theta), FLOAT32), [0, 2, 1])
    return b.reshape(b.op("MatMul", [b.const(grid), turned]), (size[0], *size[2:], count))


def _places(length: int, align_corners: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The middles of a line's elements; with ``align_corners`` the outer ones are at its ends."""
    if align_corners:
        return np.linspace(-1, 1, length) if length > 1 else np.zeros(length)
    return (2 * np.arange(length) + 1) / length - 1
