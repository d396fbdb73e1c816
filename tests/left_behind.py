"""What a program left behind on this host, told apart from what other programs do meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def holding(text: str) -> dict[int, str]:
    """The living processes (zombies are dead) with this text in their environment, and their command lines.

    Every descendant inherits a variable, whoever its parent is now.
    """
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and text.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it has just ended, or is a zombie
    return found


def in_shared_memory() -> set[str]:
    """Names of shardrun's in the memory file system, whichever program made them."""
    names = {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
    return {name for name in names if "shardrun" in name}


def left_in_shared_memory(before: set[str]) -> set[str]:
    """What is new there and told to no living process: what another job uses, its ranks have been told."""
    return {name for name in in_shared_memory() - before if not holding(name)}


def open_descriptors() -> dict[str, str]:
    """This process's open files by their number."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing
            found[entry.name] = str(entry.readlink())
    return found


def left_open(before: dict[str, str]) -> dict[str, str]:
    """What is open now and was not before. A count would be wrong: what earlier tests left to the collector
    and to threads may be closed meanwhile."""
    return {number: what for number, what in open_descriptors().items() if before.get(number) != what}
