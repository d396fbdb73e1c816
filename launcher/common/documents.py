"""JSON and YAML files of the launcher (job files, rank tables), read by `sharding.common.documents`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from launcher.errors import ConfigError
from sharding.common.documents import MAX_BYTES, MAX_DEPTH, quote, read_text
from sharding.common.documents import read_document as read_any_document

__all__ = ["MAX_BYTES", "MAX_DEPTH", "quote", "read_document", "read_text"]


def read_document(
    path: str | Path, what: str, error: type[ConfigError] = ConfigError
) -> tuple[object, Literal["json", "yaml"]]:
    """The data of a JSON or YAML file and which it is; ``what`` names its kind. Raises ``error``."""
    return read_any_document(path, what, error)
