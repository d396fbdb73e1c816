"""Headers of ``.npy`` data, which say what follows before it is read."""

from __future__ import annotations

from typing import IO

import numpy as np

from sharding.common.arrays import DType

MAX_HEADER = 65536
"""In bytes."""


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, DType]:
    """Shape, whether it is in Fortran order, and type; the file stands behind the header then. Raises
    `ValueError`."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file, MAX_HEADER)
