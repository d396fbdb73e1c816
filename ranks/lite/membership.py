"""Which models belong to a `ModelGroup`, and what the members of a group share.

Apart from `ranks.lite.group`, so that `Model` finds its group without importing it.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranks.errors import ShardrunError

if TYPE_CHECKING:
    from ranks.lite.model import Model


@dataclass(frozen=True)
class Sharing:
    """What a model shares with the others of its group: equal weights, the arena, or both."""

    weights: bool
    workspace: bool


class Group:
    """A group as its members see it; a path stays in it after the group is gone, until another takes it."""

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing


_lock = threading.Lock()
_models: weakref.WeakKeyDictionary[Model, Group] = weakref.WeakKeyDictionary()
_paths: dict[str, tuple[weakref.ref[Group], Sharing]] = {}


def key_of(path: str) -> str:
    """Paths of the same file have the same key."""
    return os.path.realpath(path)


def enter(group: Group, models: list[Model], paths: list[str]) -> None:
    """Puts models and paths into ``group``; all or none. Raises `ShardrunError` where another has one."""
    with _lock:
        for index, model in enumerate(models):
            if _models.get(model, group) is not group:
                raise ShardrunError(f"the model at index {index} belongs to another ModelGroup already.")
        for path in paths:
            other = _paths[key_of(path)][0]() if key_of(path) in _paths else None
            if other is not None and other is not group:
                raise ShardrunError(f"the model {path} belongs to another ModelGroup already.")
        for model in models:
            _models[model] = group
        for path in paths:
            _paths[key_of(path)] = (weakref.ref(group), group.sharing)


def of(model: Model, path: str) -> Sharing | None:
    """What ``model``, about to be built from ``path``, shares; None where it is in no group.

    A group that holds the model itself goes before one that holds its path.
    """
    if not _models and not _paths:
        return None
    with _lock:
        group = _models.get(model)
        if group is not None:
            return group.sharing
        return _paths[key_of(path)][1] if key_of(path) in _paths else None
