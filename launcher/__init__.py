"""Starting, watching and serving groups of ranks; the shardrun command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.errors import RankFailedError as RankFailedError
    from launcher.errors import ShardrunError as ShardrunError
    from launcher.group.group import Group as Group
    from launcher.group.group import start as start
    from launcher.group.language import generate as generate
    from launcher.group.language import load_language_model as load_language_model
    from launcher.group.led import lead as lead
    from launcher.group.requests import PredictError as PredictError

    __version__: str

_MODULES = {
    "Group": "launcher.group.group",
    "PredictError": "launcher.group.requests",
    "RankFailedError": "launcher.errors",
    "ShardrunError": "launcher.errors",
    "generate": "launcher.group.language",
    "lead": "launcher.group.led",
    "load_language_model": "launcher.group.language",
    "start": "launcher.group.group",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    # On demand: the command starts without numpy, and only what runs a group loads it.
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)
    if name == "__version__":
        from sharding.common.version import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
