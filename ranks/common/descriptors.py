"""File descriptors that one process gives to another, and what they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

Part = tuple[dict[str, object], list[int]]
"""A description and descriptors that belong to it."""


def close_all(descriptors: Sequence[int]) -> None:
    """Closes all of them, those that are closed already too."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
