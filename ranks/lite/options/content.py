"""What kind of model a path holds, by its content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from sharding.common.nearby import hint
from sharding.importers.sniff import Format, format_of

Content = Format | Literal["slices"]


def exists(path: str) -> bool:
    """Whether a path is that of a file or folder."""
    # `os.path.exists`, unlike `Path.exists`, has no errors of its own: names that are too long, folders that
    # may not be searched.
    return "\0" not in path and os.path.exists(path)  # noqa: PTH110


def not_there(path: str) -> str:
    """The sentence for a path of a model that `is_there` does not find."""
    return f"No file or folder {path!r}{hint(path)}."


def is_there(path: str) -> bool:
    """Whether a path is that of a file or folder, or a pattern of files, which may be there or not."""
    from ranks.models import pattern

    return exists(path) or ("\0" not in path and pattern.is_pattern(path))


def content_of(path: str | Path) -> Content:
    """Decides by content: a folder is one of slices, a file what `sharding.importers.sniff` finds.

    Raises `ModelError` for a file that cannot be read.
    """
    return "slices" if Path(path).is_dir() else format_of(path)
