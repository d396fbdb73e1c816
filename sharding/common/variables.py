"""Environment variables that are set for a while, for libraries that have no other way in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def set_for_a_while(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets them, and puts back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
