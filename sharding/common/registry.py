"""What can be chosen by name: one module each in a folder of ours, and what other packages bring.

A module's name is the name of what it describes, so that names are known before anything is imported. Another
package brings more as entry points of a group: ``NAME = module:object`` in its metadata.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Generic, NoReturn, TypeVar, overload

from sharding.errors import ShardrunError

T = TypeVar("T")
_ROOT = Path(__file__).resolve().parents[2]
_METADATA = (".dist-info", ".egg-info")
_OURS = b"[shardrun."


class PluginError(ShardrunError):
    """What another package brings cannot be used."""


class Names(Sequence[str]):
    """The names of one kind of thing, in order; other packages are asked only for names that we have not.

    ``folder`` holds our own modules, as a path beside the packages ("" where what we have is told apart
    otherwise), ``group`` is the group of entry points, ``first`` what may be said besides, such as "auto".
    """

    def __init__(self, folder: str, group: str, first: Sequence[str] = ()) -> None:
        self.folder = folder
        self.group = group
        self.first = tuple(first)

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The names of our own modules."""
        if not self.folder:
            return ()
        files = os.listdir(_ROOT.joinpath(self.folder))  # noqa: PTH208 - names are enough
        return tuple(sorted(name[:-3] for name in files if name.endswith(".py") and name[0] != "_"))

    @cached_property
    def others(self) -> dict[str, str]:
        """Where what other packages bring is found, by name; ours go before theirs."""
        found = entry_points().get(self.group, {})
        return {name: place for name, place in found.items() if name not in (*self.first, *self.own)}

    def __contains__(self, name: object) -> bool:
        return name in self.first or name in self.own or name in self.others

    def __iter__(self) -> Iterator[str]:
        return iter((*self.first, *self.own, *self.others))

    def __len__(self) -> int:
        return len(self.first) + len(self.own) + len(self.others)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return tuple(self)[index]

    def __repr__(self) -> str:
        return repr(tuple(self))


class Registry(Generic[T]):
    """The things that `names` name, imported when they are asked for.

    Each of our modules holds one object of the type ``kind``; an entry point names such a module or object.
    """

    def __init__(self, names: Names, kind: type[T]) -> None:
        self.names = names
        self._kind = kind
        self._found: dict[str, T] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.names and name not in self.names.first

    def __getitem__(self, name: str) -> T:
        """Raises `KeyError` for an unknown name, `PluginError` where another package's is of no use."""
        if name not in self._found:
            value: object
            if name in self.names.own:
                place = f"{self.names.folder.replace('/', '.')}.{name}"
                value = importlib.import_module(place)
            else:
                place = self.names.others[name]
                value = load(place, name, self.names.group)
            if isinstance(value, ModuleType):
                value = next((one for one in vars(value).values() if isinstance(one, self._kind)), None)
            if not isinstance(value, self._kind):
                _refuse(name, self.names.group, place, f"it is no {self._kind.__qualname__}")
            self._found[name] = value
        return self._found[name]

    def own(self) -> dict[str, T]:
        """What we have ourselves, by name."""
        return {name: self[name] for name in self.names.own}

    def all(self) -> dict[str, T]:
        """What we and others have, by name."""
        return {name: self[name] for name in (*self.names.own, *self.names.others)}


def load(place: str, name: str, group: str) -> object:
    """What an entry point names: ``module`` or ``module:object``. Raises `PluginError`."""
    module, _, attribute = place.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            found = getattr(found, part)
    except Exception as error:  # another package's code may raise anything
        _refuse(name, group, place, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return found


def code_of(place: str) -> str:
    """What tells versions of the module of an entry point apart: its file's name, size and time."""
    from importlib.util import find_spec

    try:
        origin = (spec := find_spec(place.partition(":")[0])) and spec.origin
        status = Path(origin or "").stat()
    except (ImportError, OSError, ValueError):
        return ""  # whoever loads it says what is wrong
    return f"{origin} {status.st_size} {status.st_mtime_ns}"


def _refuse(name: str, group: str, place: str, why: str) -> NoReturn:
    raise PluginError(
        f"The entry point {name} of the group {group} ({place}) cannot be used: {why}. Correct the package "
        "that brings it, or uninstall it."
    ) from None


def _once(function: Callable[[], T]) -> Callable[[], T]:
    kept: list[T] = []

    def get() -> T:
        if not kept:
            kept.append(function())
        return kept[0]

    return get


@_once
def entry_points() -> dict[str, dict[str, str]]:
    """The entry points of all packages on Python's path for groups of ours: group -> name -> place.

    `importlib.metadata` takes as long to be imported as all else that a command imports; the file's format
    is a few lines.
    """
    found: dict[str, dict[str, str]] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - one call for hundreds of folders
        except OSError:
            continue
        for name in sorted(names):
            if name.endswith(_METADATA):
                try:
                    text = Path(folder, name, "entry_points.txt").read_bytes()
                except OSError:
                    continue
                if _OURS in text:
                    _read(text.decode(errors="replace"), found)
    return found


def _read(text: str, found: dict[str, dict[str, str]]) -> None:
    group = ""
    for line in text.splitlines():
        name, equals, place = (part.strip() for part in line.partition("="))
        if name.startswith("[") and name.endswith("]"):
            group = name[1:-1].strip()
        elif equals and group.startswith("shardrun.") and not name.startswith("#"):
            # The first package on the path goes before others.
            found.setdefault(group, {}).setdefault(name, place.partition("[")[0].strip())
