"""Which files ``shardrun run --inputs`` stands for, and where the outputs of each go."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from sharding.common.nearby import hint
from sharding.common.storage import probe, why_unwritable

SUFFIX = ".npz"
OF_FOLDERS = (".npz", ".npy")
"""What is taken of a folder that is given without a pattern."""


@dataclass(frozen=True)
class Item:
    """One file and that of its outputs."""

    path: str
    target: Path


@dataclass(frozen=True)
class Listing:
    """All files, in order. Only their names are held, some 150 bytes each."""

    outputs: Path
    names: Sequence[Sequence[str]]
    """For each pattern, paths below its root."""
    roots: Sequence[str]

    def __len__(self) -> int:
        return sum(map(len, self.names))

    def __iter__(self) -> Iterator[Item]:
        for root, names in zip(self.roots, self.names, strict=True):
            for name in names:
                yield Item(os.path.join(root, name), self.outputs / _result(name))  # noqa: PTH118 - keeps "./"


def listed(patterns: Sequence[str], outputs: Path, *, resume: bool) -> Listing:
    """The files of these patterns. Raises `ConfigError` where there are none, where two would have one file
    of outputs, and where outputs are there already, unless to ``resume``."""
    _check_folder(outputs)
    here = os.path.abspath(outputs)  # noqa: PTH100 - links stay
    roots, names = [], []
    for pattern in patterns:
        root, found = _found(pattern, here)
        if not found:
            raise ConfigError(f"--inputs {pattern}: no such file, and no file fits{hint(pattern)}")
        roots.append(root)
        names.append(found)
    listing = Listing(outputs, names, roots)
    _check_targets(listing, resume=resume)
    return listing


def _found(pattern: str, outputs: str) -> tuple[str, list[str]]:
    """A pattern's fixed folder, and the files that fit below it, in order; without what lies in the folder of
    outputs."""
    if os.path.isdir(pattern):  # noqa: PTH112 - a text
        with os.scandir(pattern) as entries:
            found = [item.name for item in entries if item.name.lower().endswith(OF_FOLDERS)]
        root = pattern
    elif os.path.lexists(pattern):
        root, name = os.path.split(pattern)
        return root or ".", [name]
    else:
        root = _root(pattern)
        rest = pattern[len(root) :].lstrip("/")
        found = [
            name
            for name in glob.iglob(rest, root_dir=root or ".", recursive=True)  # noqa: PTH207 - many texts
            if not os.path.isdir(os.path.join(root, name))  # noqa: PTH112, PTH118
        ]
    below = os.path.abspath(root or ".")  # noqa: PTH100 - links stay
    if outputs == below or outputs.startswith(f"{below.rstrip('/')}/"):
        inside = outputs[len(below.rstrip("/")) + 1 :]
        kept = [name for name in found if not (inside and name.startswith(f"{inside}/"))]
        found = kept
    return root or ".", sorted(set(found))


def _root(pattern: str) -> str:
    """The folders of a pattern before the first one with a wildcard."""
    parts = pattern.split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not glob.has_magic(parts[fixed]):
        fixed += 1
    root = "/".join(parts[:fixed])
    return "/" if fixed and not root else root


def _result(name: str) -> str:
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 - many texts
    return (stem if suffix else name) + SUFFIX


def _check_folder(outputs: Path) -> None:
    """Raises `ConfigError` where the folder of outputs cannot be written to or, with the first result, be
    made."""
    there = outputs.absolute()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"--outputs {outputs}: expected a folder, found that {there} is none")
    try:
        probe(outputs.absolute() / "result")
    except OSError as problem:
        raise ConfigError(f"--outputs {outputs}: cannot write there: {why_unwritable(problem)}") from None


def _check_targets(listing: Listing, *, resume: bool) -> None:
    seen: set[int] = set()
    double: set[int] = set()
    for item in listing:
        key = hash(str(item.target))
        (double if key in seen else seen).add(key)
        if os.path.abspath(item.path) == os.path.abspath(item.target):  # noqa: PTH100 - links stay
            raise ConfigError(
                f"--outputs {listing.outputs}: the outputs of {item.path} would be written over it: name "
                "another folder"
            )
        if not resume and os.path.lexists(item.target):
            raise ConfigError(
                f"--outputs {listing.outputs}: {item.target} is there already: --resume keeps what is done "
                "and goes on, or name another folder"
            )
    if not double:
        return
    first: dict[str, str] = {}
    for item in listing:
        target = str(item.target)
        if hash(target) in double and first.setdefault(target, item.path) != item.path:
            raise ConfigError(
                f"--inputs: the outputs of {first[target]} and of {item.path} would both be written to "
                f"{target}: run them into two folders, or rename one"
            )
    # The same file by two patterns.
    for item in listing:
        if hash(str(item.target)) in double:
            raise ConfigError(f"--inputs: {item.path} is given twice: leave out one of the patterns")
