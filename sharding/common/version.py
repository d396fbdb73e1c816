"""The version of the installed package."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache  # each manifest has it, and the package's data takes milliseconds to read
def version() -> str:
    """The installed version, or that of the source tree when it runs without being installed."""
    from importlib import metadata

    try:
        return metadata.version("shardrun")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[2] / "pyproject.toml"
        for line in project.read_text().splitlines():
            if line.startswith("version = "):
                return line.split('"')[1]
        raise
