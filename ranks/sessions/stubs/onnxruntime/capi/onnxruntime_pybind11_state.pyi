"""Exceptions and values of the library itself, which are told apart by their names only."""

from typing import Any

def __getattr__(name: str) -> Any: ...
