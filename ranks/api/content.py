"""What kind of model a path holds, by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sharding.importers.sniff import Format, format_of

Content = Format | Literal["slices"]


def content_of(path: str | Path) -> Content:
    """Decides by content: a folder is one of slices, a file what `sharding.importers.sniff` finds.

    Raises `ModelError` for a file that cannot be read.
    """
    return "slices" if Path(path).is_dir() else format_of(path)
