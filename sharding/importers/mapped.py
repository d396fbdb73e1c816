"""The bytes of a file, mapped: nothing is read before it is used."""

from __future__ import annotations

import mmap
from pathlib import Path

from sharding.common.nearby import hint, shown
from sharding.errors import ModelError


def mapped(path: Path, expected: str) -> memoryview:
    """A file's bytes. Raises `ModelError`: it is no file, is empty or cannot be read."""
    try:
        if not path.is_file():
            state = "is not a file" if path.exists() else f"does not exist{hint(path)}"
            raise ModelError(f"{shown(path)} {state}; expected {expected}.")
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:
        raise ModelError(f"{path} is empty; expected {expected}.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
