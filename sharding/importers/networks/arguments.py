"""Which arguments of a network its inputs are."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from sharding.common.text import closest, one_line, shortened
from sharding.errors import OptionError
from sharding.importers.networks.inputs import Input

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def arguments_of(module: Any) -> list[str]:
    """The names of the arguments of a module's ``forward`` or a cell's ``construct``, without ``*args`` and
    ``**kwargs``."""
    return [item.name for item in _parameters(module) if item.kind not in _VARIADIC]


def are_named(module: Any, inputs: Sequence[Input], what: str) -> bool:
    """Whether the inputs are arguments by name; False where they can only be given in their order.

    That is so for ``*args``, and where a network does not tell its arguments. Raises `OptionError` for a name
    that is no argument's.
    """
    arguments = arguments_of(module)
    unknown = [item.name for item in inputs if item.name not in arguments]
    if not unknown:
        return True
    if not arguments or before_variadic(module) is not None:
        return False
    close = closest(unknown[0], arguments)
    hint = f" (did you mean {close}?)" if close else ""
    raise OptionError(
        f"{what} has no argument {shortened(one_line(unknown[0]))!r}{hint}; its arguments are "
        f"{', '.join(arguments)}. Name the inputs so; --input-names gives them other names in the result."
    )


def before_variadic(module: Any) -> int | None:
    """How many arguments stand before ``*args``; None where there is no such thing."""
    kinds = [item.kind for item in _parameters(module)]
    return (
        kinds.index(inspect.Parameter.VAR_POSITIONAL) if inspect.Parameter.VAR_POSITIONAL in kinds else None
    )


def in_order(module: Any, inputs: Sequence[Input], what: str) -> list[Input]:
    """The inputs in the order of the network's arguments, to be given without names. Raises `OptionError`
    where that leaves one out between others."""
    if not are_named(module, inputs, what):
        return list(inputs)
    given = {item.name: item for item in inputs}
    places = arguments_of(module)[: len(given)]
    if missing := [name for name in places if name not in given]:
        raise OptionError(f"{what}: its argument {missing[0]!r} stands before others: give it with --input.")
    return [given[name] for name in places]


def _parameters(module: Any) -> list[inspect.Parameter]:
    function: Any = getattr(module, "forward", None) or getattr(module, "construct", None)
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
