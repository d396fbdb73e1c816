"""Branches as ONNX ``If`` and loops as ``Loop``.

MindIR's graphs end in calls of each other: a branch goes on with the graph that follows it, and a loop's body
calls the loop's header again. What a graph comes to is followed up to a set of *stops*: the graph where both
sides of a branch meet again, the header of the loop that is being built and the graphs behind it. The *ends*
that were met become the outputs of the ``If`` or ``Loop``: the arguments for the graph where it goes on, and,
if there are several such graphs, a number that says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharding.errors import ModelError
from sharding.importers.mindir.primitives.base import Value
from sharding.importers.mindir.trace import MAX_CALLS, Branch, Choice, Closure, Done, Outcome, Tail, Tracer

RESULT = ""
"""The end that is a value and no further graph."""
_STEPS = 64


@dataclass
class Ends:
    """Where ways to go on end: graph (or `RESULT`) to arguments. ``which``: the number of the one that is
    taken; None where there is one."""

    ways: dict[str, tuple[Any, ...]]
    which: Value | None = None


@dataclass
class Merge:
    """Outputs of an ``If``: what the two sides give."""

    pairs: list[tuple[Value, Value]] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


def follow(tracer: Tracer, outcome: Outcome) -> Any:
    """The value that an outcome comes to."""
    ends = advance(tracer, outcome, frozenset(), {})
    return ends.ways[RESULT][0]


Fallbacks = dict[str, tuple[Any, ...]]
"""For loops' headers: what stands for their arguments on a way that does not go on with them."""


def advance(tracer: Tracer, outcome: Outcome, stops: frozenset[str], fallbacks: Fallbacks) -> Ends:
    """Follows an outcome up to values and the graphs of ``stops``."""
    for _ in range(MAX_CALLS * _STEPS):
        if isinstance(outcome, Done):
            return Ends({RESULT: (outcome.value,)})
        if isinstance(outcome, Tail):
            if outcome.graph in stops:
                return Ends({outcome.graph: outcome.arguments})
            if outcome.graph not in tracer.program.graphs:
                raise tracer.invalid(f"it calls {outcome.graph[:80]!r}, which is no graph")
            if outcome.graph in tracer.active:
                raise ModelError(
                    f"{tracer.program.path} has a graph that calls itself and uses the result "
                    f"({outcome.graph[:80]!r}): only loops can be written as ONNX."
                )
            if not tracer.program.is_recursive(outcome.graph):
                with tracer.inside(outcome.graph):
                    outcome = tracer.run(outcome.graph, outcome.arguments)
                continue
            ends = loop(tracer, outcome, stops, fallbacks)
        else:
            ends = branch(tracer, outcome, stops, fallbacks)
        if all(name == RESULT or name in stops for name in ends.ways):
            return ends
        outcome = _dispatch(tracer, ends)
    raise ModelError(f"{tracer.program.path} has too many graphs that call each other one after another.")


def _dispatch(tracer: Tracer, ends: Ends) -> Outcome:
    """Ends as an outcome, to be followed further."""
    found: list[Outcome] = [
        Done(arguments[0]) if name == RESULT else Tail(name, arguments)
        for name, arguments in ends.ways.items()
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
    sides, bodies = [], []
    for side in (outcome.then, outcome.otherwise):
        with b.body() as nodes, tracer.nested():
            sides.append(advance(tracer, side, inner, fallbacks))
        bodies.append(nodes)
    merged = Merge()
    made = [_made(nodes) for nodes in bodies]
    ways = {
        name: _merged_way(tracer, merged, [side.ways.get(name) for side in sides], made, fallbacks.get(name))
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


def _renumbered(tracer: Tracer, side: Ends, names: list[str], nodes: list[Any]) -> Value:
    """Which of ``names`` a side ends at, computed in its body."""
    places = [names.index(name) for name in side.ways]
    if side.which is None:
        return tracer.builder.const(places[0], np.int64)
    outer, tracer.builder.nodes = tracer.builder.nodes, nodes
    try:
        return tracer.builder.op("Gather", [tracer.builder.const(places, np.int64), side.which], {"axis": 0})
    finally:
        tracer.builder.nodes = outer


def _merged_way(
    tracer: Tracer,
    merged: Merge,
    given: Sequence[tuple[Any, ...] | None],
    made: Sequence[set[str]],
    fallback: tuple[Any, ...] | None,
) -> tuple[Any, ...]:
    """The arguments for one end, of which a side that does not end there gives something of their type."""
    if given[0] is not None and given[1] is not None:
        return tuple(_both(tracer, merged, x, y) for x, y in zip(given[0], given[1], strict=True))
    side = 0 if given[0] is not None else 1
    present = given[side]
    assert present is not None
    dummies = fallback if fallback is not None else (None,) * len(present)
    return tuple(
        _one(tracer, merged, item, dummy, side=side, made=made[side])
        for item, dummy in zip(present, dummies, strict=True)
    )


def _made(nodes: list[Any]) -> set[str]:
    return {name for node in nodes for name in node.output}


def _both(tracer: Tracer, merged: Merge, x: Any, y: Any) -> Any:
    if isinstance(x, tuple) and isinstance(y, tuple):
        if len(x) != len(y):
            raise ModelError(
                f"{tracer.program.path} has branches that give tuples of {len(x)} and {len(y)}: ONNX needs "
                "the same number."
            )
        return tuple(_both(tracer, merged, one, other) for one, other in zip(x, y, strict=True))
    if same(x, y):
        return x
    numbers = (Value, bool, int, float)
    if not isinstance(x, numbers) or not isinstance(y, numbers):
        raise ModelError(
            f"{tracer.program.path} has branches that give {_kind(x)} and {_kind(y)}: ONNX needs two tensors."
        )
    like = next((item.dtype for item in (x, y) if isinstance(item, Value)), None)
    one, other = tracer.builder.value(x, like), tracer.builder.value(y, like)
    if one.dtype != other.dtype:
        raise ModelError(
            f"{tracer.program.path} has branches that give {one.dtype} and {other.dtype}: ONNX needs one "
            "type."
        )
    return _output(tracer, merged, one, other)


def _one(tracer: Tracer, merged: Merge, item: Any, fallback: Any, *, side: int, made: set[str]) -> Any:
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


def _kind(item: Any) -> str:
    return "a graph" if isinstance(item, (Closure, Choice)) else type(item).__name__


def same(x: Any, y: Any) -> bool:
    """Whether two operands are known to be equal."""
    if isinstance(x, Value) or isinstance(y, Value) or isinstance(x, Choice) or isinstance(y, Choice):
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


def _emit_if(tracer: Tracer, condition: Value, merged: Merge, bodies: Sequence[list[Any]]) -> None:
    b = tracer.builder
    graphs = [
        b.graph(nodes, b.names.fresh(name), [], [pair[side] for pair in merged.pairs])
        for side, (name, nodes) in enumerate(zip(("then", "else"), bodies, strict=True))
    ]
    b.add("If", [condition], merged.results, {"then_branch": graphs[0], "else_branch": graphs[1]})


# Loops


@dataclass
class State:
    """The arguments of a loop's header, flat. A leaf that stays what it was at first is no state."""

    leaves: list[Any]
    changing: dict[int, Value] = field(default_factory=dict)

    def now(self) -> list[Any]:
        """The leaves inside of the body."""
        return [self.changing.get(index, leaf) for index, leaf in enumerate(self.leaves)]


def loop(tracer: Tracer, call: Tail, stops: frozenset[str], fallbacks: Fallbacks) -> Ends:
    """A call of a header as one ``Loop``; ends at what follows the loop."""
    leaves, shape = _flat(call.arguments)
    state = State(leaves)
    inner = stops | tracer.program.exits(call.graph) | {call.graph}
    for _ in range(3 * len(leaves) + 3):
        with tracer.builder.body() as nodes, tracer.nested(), tracer.inside(call.graph):
            now = _nest(state.now(), shape)
            outcome = tracer.run(call.graph, now)
            ends = advance(tracer, outcome, inner, {**fallbacks, call.graph: now})
        if call.graph not in ends.ways:  # the condition is known: the body is never left for another round
            with tracer.inside(call.graph):
                outcome = tracer.run(call.graph, call.arguments)
                return advance(tracer, outcome, inner, fallbacks)
        following, following_shape = _flat(ends.ways[call.graph])
        if following_shape != shape:
            raise tracer.invalid(
                f"the loop {call.graph[:80]!r} goes on with other arguments than it began with"
            )
        if not _grown(tracer, state, following):
            break
    else:
        raise tracer.invalid(f"the types of what the loop {call.graph[:80]!r} carries have no end")
    if len(ends.ways) == 1:
        raise ModelError(f"{tracer.program.path} has a loop that never ends ({call.graph[:80]!r}).")
    return _emit_loop(tracer, call.graph, state, following, ends=ends, nodes=nodes)


def _grown(tracer: Tracer, state: State, following: list[Any]) -> bool:
    """Adds leaves that change to the state, or lengths that change; whether there were any."""
    grown = False
    b = tracer.builder
    for index, (leaf, after) in enumerate(zip(state.leaves, following, strict=True)):
        known = state.changing.get(index)
        if known is None:
            if same(leaf, after):
                continue
            if not isinstance(leaf, (Value, bool, int, float)):
                raise ModelError(f"{tracer.program.path} has a loop that changes {_kind(leaf)}.")
            first = b.value(leaf, after.dtype if isinstance(after, Value) else None)
            state.changing[index] = Value(
                b.names.fresh("state"), first.dtype, first.shape, sequence=first.sequence
            )
            grown = True
        else:
            shape = united(known, b.value(after, known.dtype))
            if shape != known.shape:
                state.changing[index] = Value(known.name, known.dtype, shape, sequence=known.sequence)
                grown = True
    return grown


def _emit_loop(
    tracer: Tracer, header: str, state: State, following: list[Any], *, ends: Ends, nodes: list[Any]
) -> Ends:
    b = tracer.builder
    names = list(ends.ways)
    inputs = [
        Value(b.names.fresh("round"), np.dtype(np.int64), ()),
        Value(b.names.fresh("going"), np.dtype(np.bool_), ()),
        *state.changing.values(),
    ]
    first = [b.value(state.leaves[index], value.dtype) for index, value in state.changing.items()]
    results = [
        Value(b.fresh("Loop"), value.dtype, value.shape, sequence=value.sequence)
        for value in state.changing.values()
    ]
    outer, b.nodes = b.nodes, nodes
    try:
        assert ends.which is not None
        after = [b.cast(following[index], value.dtype) for index, value in state.changing.items()]
        again = b.op("Equal", [ends.which, names.index(header)])
    finally:
        b.nodes = outer
    made = _made(nodes)
    left = {value.name: result for value, result in zip(state.changing.values(), results, strict=True)}
    carried: list[Value] = []

    def outside(item: Any) -> Any:
        """What an end's argument is behind the loop."""
        if isinstance(item, tuple):
            return tuple(outside(part) for part in item)
        if not isinstance(item, Value):
            return item
        if item.name in left:
            return left[item.name]
        if item.name not in made:
            return item
        inputs.append(Value(b.names.fresh("carried"), item.dtype, None))
        first.append(b.const(np.zeros([0] * item.rank if item.rank else (), item.dtype)))
        after.append(item)
        left[item.name] = Value(b.fresh("Loop"), item.dtype, item.shape, sequence=item.sequence)
        carried.append(left[item.name])
        return left[item.name]

    ways = {name: outside(arguments) for name, arguments in ends.ways.items() if name != header}
    which = None
    if len(ways) > 1:
        places = [list(ways).index(name) if name in ways else 0 for name in names]
        which = b.op("Gather", [b.const(places, np.int64), outside(ends.which)], {"axis": 0})
    body = b.graph(nodes, b.names.fresh("body"), inputs, [again, *after])
    start: list[Value | None] = [None, b.const(True), *first]
    position = len(b.nodes) - (which is not None)
    b.add("Loop", start, [*results, *carried], {"body": body}, at=position)
    return Ends(ways, which)


def _flat(arguments: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """Arguments without their nesting, and the nesting."""
    leaves: list[Any] = []

    def shape(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(shape(part) for part in item)
        leaves.append(item)
        return None

    return leaves, shape(arguments)


def _nest(leaves: list[Any], shape: Any) -> tuple[Any, ...]:
    rest = iter(leaves)

    def build(item: Any) -> Any:
        return tuple(build(part) for part in item) if isinstance(item, tuple) else next(rest)

    result = build(shape)
    assert isinstance(result, tuple)
    return result
