"""Who else could put something into the cache folder: then it is not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ranks.cache import place

MINE, OTHER = 4711, 4712


def _status(owner: int, mode: int, group: int = 4711) -> Any:
    return SimpleNamespace(st_uid=owner, st_mode=mode, st_gid=group)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the system says: of a link, if there is one, and of the folder."""
    told: dict[str, Any] = {"folder": _status(MINE, stat.S_IFDIR | 0o700)}
    monkeypatch.setattr(os, "geteuid", lambda: MINE)
    monkeypatch.setattr(Path, "is_symlink", lambda _: "link" in told)
    monkeypatch.setattr(Path, "lstat", lambda _: told.get("link", told["folder"]))
    monkeypatch.setattr(Path, "stat", lambda _: told["folder"])
    monkeypatch.setattr(place, "_is_own_group", lambda number: number == 4711)
    return told


@pytest.mark.parametrize(("owner", "good"), [(MINE, True), (0, True), (1, False), (OTHER, False)])
@pytest.mark.parametrize("what", ["link", "folder"])
def test_whose_the_cache_folder_or_a_link_to_it_is(
    what: str, owner: int, good: bool, seen: dict[str, Any]
) -> None:
    """This user's or the system's."""
    seen[what] = _status(owner, stat.S_IFLNK if what == "link" else stat.S_IFDIR | 0o755)
    if good:
        place.demand_root(Path("/cache"))
    else:
        why = "it is a link of another user" if what == "link" else f"it belongs to another user .{owner}"
        with pytest.raises(OSError, match=why):
            place.demand_root(Path("/cache"))


@pytest.mark.parametrize(
    ("mode", "group", "good"),
    [
        (0o755, OTHER, True),
        (0o777, MINE, False),
        (0o1777, MINE, True),
        (0o702, MINE, False),
        (0o770, MINE, True),
        (0o770, OTHER, False),
        (0o1770, OTHER, True),
    ],
)
def test_who_may_write_to_the_cache_folder(mode: int, group: int, good: bool, seen: dict[str, Any]) -> None:
    """A group of the user alone is nobody else, and where only owners may rename nobody is in the way."""
    seen["folder"] = _status(MINE, stat.S_IFDIR | mode, group)
    if good:
        place.demand_root(Path("/cache"))
    else:
        with pytest.raises(OSError, match="others may write to it"):
            place.demand_root(Path("/cache"))


def test_a_file_in_the_place_of_the_cache_folder(seen: dict[str, Any]) -> None:
    seen["folder"] = _status(MINE, stat.S_IFREG | 0o700)
    with pytest.raises(NotADirectoryError):
        place.demand_root(Path("/cache"))
