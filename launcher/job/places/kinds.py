"""Kinds of options whose values in a job file are paths beside it, or variables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.job.places.placement import check_variables
from launcher.job.values import Pairs, Several, Written, absolute

if TYPE_CHECKING:
    from sharding.slices.topology import Link


class Variables(Pairs[str, str]):
    """Variables of the environment by name."""

    def read(self, value: object, where: str, folder: Path) -> dict[str, str]:
        found = super().read(value, where, folder)
        check_variables(found, f"{where}.")
        return found


class Patterns(Several[str]):
    """Patterns of paths; in a job file they are relative to the file's own folder."""

    def read(self, value: object, where: str, folder: Path) -> tuple[str, ...]:
        return tuple(str(folder / text) for text in super().read(value, where, folder))

    def _texts(self, value: object) -> list[str]:
        return [absolute(text) for text in cast("tuple[str, ...]", value)]


class LinkOrFile(Written["Link"]):
    """A link, or the file that says it."""

    def read(self, value: object, where: str, folder: Path) -> Link:
        named = isinstance(value, str) and "," not in value
        return super().read(str(folder / str(value)) if named else value, where, folder)
