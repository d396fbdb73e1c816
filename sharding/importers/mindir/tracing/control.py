"""Branches as ONNX ``If`` and loops as ``Loop``.

MindIR's graphs end in calls of each other: a branch goes on with the graph that follows it, and a loop's body
calls the loop's header again. What a graph comes to is followed up to a set of *stops*: the graph where both
sides of a branch meet again, the header of the loop that is being built and the graphs behind it. The *ends*
that were met become the outputs of the ``If`` or ``Loop``: the arguments for the graph where it goes on, and,
if there are several such graphs, a number that says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sharding.errors import ModelError
from sharding.importers.mindir.primitives.base import Value
from sharding.importers.mindir.tracing.memory import Cell, Memory, contents, in_one_storage, storage
from sharding.importers.mindir.tracing.outcomes import (
    RAISED,
    Branch,
    Choice,
    Closure,
    Done,
    Outcome,
    Raised,
    Tail,
)
from sharding.importers.mindir.tracing.trace import MAX_CALLS, Tracer

if TYPE_CHECKING:
    from onnx import NodeProto

    from sharding.importers.mindir.tracing.outcomes import Traced

RESULT = ""
"""The end that is a value and no further graph."""
_STEPS = 64


@dataclass
class Ends:
    """Where ways to go on end: graph (or `RESULT`) to arguments, the last of which is the `Memory` then.
    ``which``: the number of the one that is taken; None where there is one."""

    ways: dict[str, tuple[Traced, ...]]
    which: Value | None = None


@dataclass
class Merge:
    """Outputs of an ``If``: what the two sides give."""

    bodies: Sequence[list[NodeProto]] = ()
    """The nodes of both sides."""
    pairs: list[tuple[Value, Value]] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


def follow(tracer: Tracer, outcome: Outcome) -> Traced:
    """The value that an outcome comes to."""
    ends = advance(tracer, outcome, frozenset(), {})
    value, tracer.memory = ends.ways[RESULT]
    return value


Fallbacks = dict[str, tuple["Traced", ...]]
"""For loops' headers: what stands for their arguments on a way that does not go on with them."""


def advance(tracer: Tracer, outcome: Outcome, stops: frozenset[str], fallbacks: Fallbacks) -> Ends:
    """Follows an outcome up to values and the graphs of ``stops``."""
    for _ in range(MAX_CALLS * _STEPS):
        if isinstance(outcome, Done):
            return Ends({RESULT: (outcome.value, outcome.memory)})
        if isinstance(outcome, Tail):
            if outcome.graph in stops:
                return Ends({outcome.graph: (*contents(outcome.arguments, outcome.memory), outcome.memory)})
            if outcome.graph not in tracer.program.graphs:
                raise tracer.invalid(f"it calls {outcome.graph[:80]!r}, which is no graph")
            if outcome.graph in tracer.active:
                raise ModelError(
                    f"{tracer.program.path} has a graph that calls itself and uses the result "
                    f"({outcome.graph[:80]!r}): only loops can be written as ONNX."
                )
            if not tracer.program.is_recursive(outcome.graph, stops):
                tracer.memory = outcome.memory
                with tracer.inside(outcome.graph):
                    outcome = tracer.run(outcome.graph, outcome.arguments)
                continue
            ends: Ends = tracer.following.loop(tracer, outcome, stops, fallbacks)
        else:
            ends = branch(tracer, outcome, stops, fallbacks)
        if all(name == RESULT or name in stops for name in ends.ways):
            return ends
        outcome = _dispatch(tracer, ends)
    raise ModelError(f"{tracer.program.path} has too many graphs that call each other one after another.")


def _dispatch(tracer: Tracer, ends: Ends) -> Outcome:
    """Ends as an outcome, to be followed further."""
    found: list[Outcome] = [
        Done(arguments[0], memory) if name == RESULT else Tail(name, tuple(arguments), memory)
        for name, (*arguments, memory) in ends.ways.items()
    ]
    result = found[-1]
    for number in range(len(found) - 2, -1, -1):
        assert ends.which is not None
        result = Branch(tracer.builder.op("Equal", [ends.which, number]), found[number], result)
    return result


def _targets(outcome: Outcome) -> frozenset[str]:
    if isinstance(outcome, Branch):
        return _targets(outcome.then) | _targets(outcome.otherwise)
    return frozenset({outcome.graph if isinstance(outcome, Tail) else RESULT})


def branch(tracer: Tracer, outcome: Branch, stops: frozenset[str], fallbacks: Fallbacks) -> Ends:
    """Both sides of a condition up to where they meet, as one ``If``."""
    b = tracer.builder
    meeting = tracer.program.join(_targets(outcome.then), _targets(outcome.otherwise), stops)
    inner = stops | {meeting} if meeting is not None else stops
    sides, bodies, since = [], [], tracer.count
    for side, truth in ((outcome.then, True), (outcome.otherwise, False)):
        refusals = {reason: list(layers) for reason, layers in tracer.refusals.items()}
        with b.body() as nodes, tracer.nested():
            ends = advance(tracer, side, inner, fallbacks)
        ways = {name: _knowing(given, outcome.condition, truth) for name, given in ends.ways.items()}
        if _raises(ends):  # a check of what the network is given: the other way is the one that goes on
            tracer.refusals.clear()
            tracer.refusals.update(refusals)
            continue
        sides.append(Ends(ways, ends.which))
        bodies.append(nodes)
    if not sides:
        return Ends({RESULT: (RAISED, _memory_of(outcome))})
    if len(sides) == 1:
        b.nodes.extend(bodies[0])
        return sides[0]
    merged = Merge(bodies)
    made = [made_in(nodes) for nodes in bodies]
    ways = {
        name: _merged_way(
            tracer, merged, [side.ways.get(name) for side in sides], made, fallbacks.get(name), since=since
        )
        for name in dict.fromkeys([*sides[0].ways, *sides[1].ways])
    }
    which = None
    if len(ways) > 1:
        numbers = [
            _renumbered(tracer, side, list(ways), nodes) for side, nodes in zip(sides, bodies, strict=True)
        ]
        which = _output(tracer, merged, numbers[0], numbers[1])
    if merged.pairs:
        _emit_if(tracer, outcome.condition, merged, bodies)
    return Ends(ways, which)


def _raises(ends: Ends) -> bool:
    """Whether all that a way comes to is an error of the network's own."""
    return list(ends.ways) == [RESULT] and isinstance(ends.ways[RESULT][0], Raised)


def _memory_of(outcome: Outcome) -> Memory:
    """What was changed in place before the first end of an outcome."""
    return _memory_of(outcome.then) if isinstance(outcome, Branch) else outcome.memory


def _knowing(item: Traced, condition: Value, truth: bool) -> Traced:
    """What a side of a branch gives, where it gives the condition itself: that is known there."""
    if isinstance(item, tuple):
        return tuple(_knowing(part, condition, truth) for part in item)
    return truth if isinstance(item, Value) and same(item, condition) else item


def _renumbered(tracer: Tracer, side: Ends, names: list[str], nodes: list[NodeProto]) -> Value:
    """Which of ``names`` a side ends at, computed in its body."""
    places = [names.index(name) for name in side.ways]
    if side.which is None:
        return tracer.builder.const(places[0], np.int64)
    with tracer.builder.body(nodes):
        return tracer.builder.op("Gather", [tracer.builder.const(places, np.int64), side.which], {"axis": 0})


def _merged_way(
    tracer: Tracer,
    merged: Merge,
    given: Sequence[tuple[Traced, ...] | None],
    made: Sequence[set[str]],
    fallback: tuple[Traced, ...] | None,
    *,
    since: int,
) -> tuple[Traced, ...]:
    """The arguments for one end, of which a side that does not end there gives something of their type."""
    if given[0] is not None and given[1] is not None:
        (*xs, x_memory), (*ys, y_memory) = given[0], given[1]
        cells = {}
        for name, first in outer_cells(
            tracer, x_memory, y_memory, made=made[0] | made[1], since=since
        ).items():
            both = _both(tracer, merged, x_memory.now(first), y_memory.now(first), Memory())
            cells[name] = Cell(first, stored(both, name))
        memory = Memory(cells)
        return (*(_both(tracer, merged, x, y, memory) for x, y in zip(xs, ys, strict=True)), memory)
    side = 0 if given[0] is not None else 1
    present = given[side]
    assert present is not None
    *items, after = present
    dummies, before = (fallback[:-1], fallback[-1]) if fallback else ((None,) * len(items), Memory())
    cells = {}
    for name, first in outer_cells(tracer, after, made=made[side], since=since).items():
        one = _one(tracer, merged, after.now(first), before.now(first), side=side, made=made[side])
        cells[name] = Cell(first, stored(one, name))
    memory = Memory(cells)
    results = [
        memory.now(item)
        if memory.holds(item) and (dummy is None or in_one_storage(item, dummy))
        else _one(tracer, merged, item, dummy, side=side, made=made[side])
        for item, dummy in zip(items, dummies, strict=True)
    ]
    return (*results, memory)


def outer_cells(tracer: Tracer, *memories: Memory, made: set[str], since: int) -> dict[str, Value]:
    """The storages that were changed and are more than a body's own: name to what they held at first."""
    cells = {name: cell.first for memory in memories for name, cell in memory.cells.items()}
    return {name: first for name, first in cells.items() if not tracer.is_inner(first, made, since)}


def stored(value: Value, name: str) -> Value:
    return value if value.storage == name else replace(value, storage=name)


def made_in(nodes: list[NodeProto]) -> set[str]:
    return {name for node in nodes for name in node.output}


def _both(tracer: Tracer, merged: Merge, x: Traced, y: Traced, memory: Memory) -> Traced:
    if _is_sequence(x) and _is_sequence(y) and _is_open(x, y):
        x, y = (_in_body(tracer, nodes, item) for nodes, item in zip(merged.bodies, (x, y), strict=True))
    if isinstance(x, tuple) and isinstance(y, tuple):
        if len(x) != len(y):
            raise ModelError(
                f"{tracer.program.path} has branches that give tuples of {len(x)} and {len(y)}: ONNX needs "
                "the same number."
            )
        return tuple(_both(tracer, merged, one, other, memory) for one, other in zip(x, y, strict=True))
    if memory.holds(x) and in_one_storage(x, y):
        return memory.now(x)
    if same(x, y):
        return x
    numbers = (Value, bool, int, float)
    if not isinstance(x, numbers) or not isinstance(y, numbers):
        raise ModelError(
            f"{tracer.program.path} has branches that give {kind(x)} and {kind(y)}: ONNX needs two tensors."
        )
    like = next((item.dtype for item in (x, y) if isinstance(item, Value)), None)
    one, other = tracer.builder.value(x, like), tracer.builder.value(y, like)
    if one.dtype != other.dtype:
        raise ModelError(
            f"{tracer.program.path} has branches that give {one.dtype} and {other.dtype}: ONNX needs one "
            "type."
        )
    return _output(tracer, merged, one, other)


def _is_sequence(item: Traced) -> bool:
    """Whether it is a tuple of integers, of a number that is known or not."""
    if isinstance(item, Value):
        return item.sequence
    return isinstance(item, tuple) and all(
        isinstance(part, int) or (isinstance(part, Value) and not part.rank and part.dtype.kind == "i")
        for part in item
    )


def _is_open(x: Traced, y: Traced) -> bool:
    return isinstance(x, Value) or isinstance(y, Value) or len(x) != len(y)


def _in_body(tracer: Tracer, nodes: list[NodeProto], item: Traced) -> Value:
    """A tuple of integers as one tensor, put together in the side that gives it."""
    if isinstance(item, Value):
        return item
    with tracer.builder.body(nodes):
        found = tracer.builder.ints(item) if item else tracer.builder.const(np.zeros(0, np.int64))
    return replace(found, sequence=True)


def _one(
    tracer: Tracer, merged: Merge, item: Traced, fallback: Traced, *, side: int, made: set[str]
) -> Traced:
    """What one side gives; where it is made inside of that, an output, for which the other gives a dummy."""
    if isinstance(item, tuple):
        inner = fallback if isinstance(fallback, tuple) else (None,) * len(item)
        return tuple(
            _one(tracer, merged, part, other, side=side, made=made)
            for part, other in zip(item, inner, strict=True)
        )
    if fallback is None and not (isinstance(item, Value) and item.name in made):
        return item
    if fallback is not None and same(item, fallback):
        return item
    if fallback is not None and not isinstance(fallback, Value):
        return item  # the loop finds that this is no constant, and starts again with a value
    b = tracer.builder
    value = b.value(item, fallback.dtype if fallback is not None else None)
    if fallback is not None and value.dtype == fallback.dtype:
        dummy = fallback
    else:
        dummy = b.const(np.zeros([0] * value.rank if value.rank else (), value.dtype))
    pair = (value, dummy) if side == 0 else (dummy, value)
    return _output(tracer, merged, *pair)


def kind(item: Traced) -> str:
    return "a graph" if isinstance(item, (Closure, Choice)) else type(item).__name__


def same(x: Traced, y: Traced) -> bool:
    """Whether two operands are known to be equal."""
    if isinstance(x, Value) and isinstance(y, Value):
        return x.name == y.name and storage(x) == storage(y)
    if isinstance(x, (Value, Choice)) or isinstance(y, (Value, Choice)):
        return x is y
    if isinstance(x, Closure) and isinstance(y, Closure):
        return (
            x.graph == y.graph
            and len(x.arguments) == len(y.arguments)
            and all(same(one, other) for one, other in zip(x.arguments, y.arguments, strict=True))
        )
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(same(one, other) for one, other in zip(x, y, strict=True))
    return type(x) is type(y) and bool(x == y)


def _output(tracer: Tracer, merged: Merge, one: Value, other: Value) -> Value:
    result = Value(tracer.builder.fresh("If"), one.dtype, united(one, other), sequence=one.sequence)
    merged.pairs.append((one, other))
    merged.results.append(result)
    return result


def united(one: Value, other: Value) -> tuple[int | None, ...] | None:
    """The lengths that two values have in common."""
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return None
    return tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))


def _emit_if(tracer: Tracer, condition: Value, merged: Merge, bodies: Sequence[list[NodeProto]]) -> None:
    b = tracer.builder
    graphs = [
        b.graph(nodes, b.names.fresh(name), [], [pair[side] for pair in merged.pairs])
        for side, (name, nodes) in enumerate(zip(("then", "else"), bodies, strict=True))
    ]
    b.add("If", [condition], merged.results, {"then_branch": graphs[0], "else_branch": graphs[1]})
