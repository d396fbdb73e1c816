"""The flags of a job's options. None has a default: what a flag leaves out, a job file may say."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.commands.parsing import Late, TakesFlags
from launcher.errors import ConfigError
from launcher.job.option_table import Option
from launcher.job.options import OPTIONS, RANKS, grouped
from launcher.job.values import File, Switch, Whole, Words
from sharding.common.registry import PluginError

if TYPE_CHECKING:
    from sharding.common.encryption import Key

ABSENT = argparse.SUPPRESS
PLANNED = (
    "best for this one (default: 1 for a batch and for new tokens beside a cache, 64 for others); repeatable"
)

Read = TypeVar("Read")


def _starters() -> str:
    from launcher.starters.base import REGISTRY

    shown = []
    for name in REGISTRY.names[len(REGISTRY.names.first) :]:
        try:
            meaning = REGISTRY[name].meaning
        except PluginError:  # who chooses it is told
            meaning = ""
        shown.append(f"{name}: {meaning}" if meaning else name)
    return "; ".join(shown)


def add_groups(
    parser: argparse.ArgumentParser, *titles: str, but: Collection[str] = (), output: str = "--output"
) -> None:
    """All options of these groups ``but`` some; ``output`` is the flag that names the outputs' file."""
    for title in titles:
        group = parser.add_argument_group(title)
        exclusive = group.add_mutually_exclusive_group() if title == RANKS else group
        for option in grouped(title):
            if option.name not in but:
                place = exclusive if option.name in {"ranks", "rank_table"} else group
                add_option(place, option.name, flag=output if option.name == "output" else option.flag)


def add_option(
    parser: argparse._ActionsContainer, name: str, help: str | None = None, flag: str | None = None
) -> None:
    """One option; ``help`` and ``flag`` are the command's own, where it has others."""
    option = OPTIONS[name]
    text = help or option.help
    if name == "launcher":
        text = Late(lambda: option.help.format(_starters()))
    add_described(parser, option, text, flag)
    # What a job file says besides is not followed, and whoever wrote it is told.
    parser.set_defaults(takes=(parser.get_default("takes") or frozenset()) | {name})


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """For a command that plans for ranks and starts none: on which hosts they will run."""
    group = parser.add_argument_group("with --link").add_mutually_exclusive_group()
    for name in ("hosts", "hostfile", "rank_table"):
        add_option(group, name)


def add_described(
    parser: argparse._ActionsContainer, option: Option, help: str | None = None, flag: str | None = None
) -> None:
    """The flag of an option, of whichever table it is."""
    parser.add_argument(
        flag or option.flag, dest=option.name, default=ABSENT, help=help or option.help, **_taken(option)
    )


def _taken(option: Option) -> dict[str, Any]:
    """What argparse is told of the values that an option takes."""
    kind = option.kind
    if isinstance(kind, Switch):
        return {"action": "store_true"}
    shown = {"metavar": option.metavar}
    if isinstance(kind, Words):
        return {**shown, "action": TakesFlags, "type": _typed(kind.parse)}
    if kind.repeated:
        return {**shown, "action": "append"}
    if kind.choices is not None:
        return {**shown, "choices": kind.choices}
    return {**shown, "type": Path if isinstance(kind, File) else _typed(kind.parse)}


def whole(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number from ``low`` to ``high``."""
    return _typed(Whole(low, high).parse)


def _typed(parse: Callable[[str], Read]) -> Callable[[str], Read]:
    """An argparse type of a parser that raises `ConfigError`."""

    def typed(text: str) -> Read:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def key_of(args: argparse.Namespace) -> Key | None:
    """The key that the options of encrypted models name; raises `ConfigError`."""
    from launcher.job.decryption import read_key

    return read_key(vars(args).get("dec_key_file"), vars(args).get("dec_mode"))
