"""What following a program comes to: graphs as values, and how the result of a graph goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from sharding.importers.mindir.primitives.base import Value
from sharding.importers.mindir.tracing.memory import Memory

Traced: TypeAlias = Any
"""What a name of a program stands for: an `Operand`, a type, a graph (`Closure`), one of two (`Choice`).
The program decides which; what takes it refuses what does not fit."""


@dataclass(frozen=True)
class Closure:
    """A graph with its first arguments."""

    graph: str
    arguments: tuple[Traced, ...] = ()


@dataclass(frozen=True, eq=False)
class Choice:
    """What ``Switch`` gives: one of two, decided when it runs."""

    condition: Value
    then: Traced
    otherwise: Traced


class Raised:
    """What ``raise`` gives: a way that ends in it gives nothing."""


RAISED = Raised()


@dataclass(frozen=True)
class Done:
    """A graph's result is this value; ``memory``: what was changed in place until then."""

    value: Traced
    memory: Memory


@dataclass(frozen=True)
class Tail:
    """A graph's result is that of another one."""

    graph: str
    arguments: tuple[Traced, ...]
    memory: Memory


@dataclass(frozen=True, eq=False)
class Branch:
    """A graph's result is that of one of two ways to go on."""

    condition: Value
    then: Outcome
    otherwise: Outcome


Outcome = Union[Done, Tail, Branch]  # noqa: UP007 - it names itself
