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


def key_of(path: str) -> str:
    """Paths of the same file have the same key."""
    return os.path.realpath(path)


class Members:
    """Which models and paths are in which group. One per process: a path that was added to a group stands for
    every model that is built from it, wherever that is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: weakref.WeakKeyDictionary[Model, Group] = weakref.WeakKeyDictionary()
        self._paths: dict[str, tuple[weakref.ref[Group], Sharing]] = {}

    def enter(self, group: Group, models: list[Model], paths: list[str]) -> None:
        """Puts models and paths into ``group``; all or none. Raises `ShardrunError` where another has one."""
        with self._lock:
            for index, model in enumerate(models):
                if self._models.get(model, group) is not group:
                    raise ShardrunError(f"the model at index {index} belongs to another ModelGroup already.")
            for path in paths:
                other = self._paths[key_of(path)][0]() if key_of(path) in self._paths else None
                if other is not None and other is not group:
                    raise ShardrunError(f"the model {path} belongs to another ModelGroup already.")
            for model in models:
                self._models[model] = group
            for path in paths:
                self._paths[key_of(path)] = (weakref.ref(group), group.sharing)

    def of(self, model: Model, path: str) -> Sharing | None:
        """What ``model``, about to be built from ``path``, shares; None where it is in no group.

        A group that holds the model itself goes before one that holds its path.
        """
        if not self._models and not self._paths:
            return None
        with self._lock:
            group = self._models.get(model)
            if group is not None:
                return group.sharing
            return self._paths[key_of(path)][1] if key_of(path) in self._paths else None


MEMBERS = Members()
enter, of = MEMBERS.enter, MEMBERS.of
