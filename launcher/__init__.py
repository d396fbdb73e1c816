"""Starting, watching and serving groups of ranks; the shardrun command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.group import Group as Group
    from launcher.group import start as start

__all__ = ["Group", "start"]


def __getattr__(name: str) -> Any:
    # On demand: the command starts without numpy, and only what runs a group loads it.
    if name in __all__:
        from launcher import group

        return getattr(group, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
