"""Starting, watching and serving groups of ranks; the shardrun command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.errors import RankFailedError as RankFailedError
    from launcher.errors import ShardrunError as ShardrunError
    from launcher.group.group import Group as Group
    from launcher.group.group import PredictError as PredictError
    from launcher.group.group import start as start
    from launcher.group.language import generate as generate
    from launcher.group.language import load_language_model as load_language_model
    from launcher.group.led import lead as lead

    __version__: str

__all__ = [
    "Group", "PredictError", "RankFailedError", "ShardrunError", "generate", "lead",
    "load_language_model", "start",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # On demand: the command starts without numpy, and only what runs a group loads it.
    if name in {"RankFailedError", "ShardrunError"}:
        from launcher import errors

        return getattr(errors, name)
    if name in {"generate", "load_language_model"}:
        from launcher.group import language

        return getattr(language, name)
    if name == "lead":
        from launcher.group import led

        return led.lead
    if name in __all__:
        from launcher.group import group

        return getattr(group, name)
    if name == "__version__":
        from sharding.common.version import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
