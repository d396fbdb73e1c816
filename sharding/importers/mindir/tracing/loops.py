"""Loops of MindIR, graphs that tail calls lead back to, as ONNX ``Loop``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sharding.errors import ModelError
from sharding.importers.mindir.primitives.base import Value
from sharding.importers.mindir.tracing.control import (
    Ends,
    Fallbacks,
    advance,
    kind,
    made_in,
    outer_cells,
    same,
    stored,
    united,
)
from sharding.importers.mindir.tracing.memory import Cell, Memory, contents, in_one_storage
from sharding.importers.mindir.tracing.outcomes import Tail
from sharding.importers.mindir.tracing.trace import Tracer

if TYPE_CHECKING:
    from onnx import NodeProto

    from sharding.importers.mindir.tracing.outcomes import Traced

_MOST_CELLS = 300
"""Storages that a loop changes; each may take a few rounds to be found."""


@dataclass
class State:
    """The arguments of a loop's header, flat. A leaf that stays what it was at first is no state.

    ``cells``: what the loop changes in place, and what that is inside of the body.
    """

    leaves: list[Traced]
    memory: Memory
    changing: dict[int, Value] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)

    def now(self) -> list[Traced]:
        """The leaves inside of the body."""
        return [self.changing.get(index, leaf) for index, leaf in enumerate(self.leaves)]

    def inside(self) -> Memory:
        """The memory inside of the body."""
        return Memory({**self.memory.cells, **self.cells})

    def variables(self) -> list[tuple[Traced, Value]]:
        """What the loop carries: what it is at first and inside of the body."""
        found = [(self.leaves[index], value) for index, value in self.changing.items()]
        return [*found, *((self.memory.now(cell.first), cell.now) for cell in self.cells.values())]

    def own(self) -> set[str]:
        """The names of what it carries."""
        return {value.name for _, value in self.variables()}


def loop(tracer: Tracer, call: Tail, stops: frozenset[str], fallbacks: Fallbacks) -> Ends:
    """A call of a header as one ``Loop``; ends at what follows the loop."""
    leaves, shape = _flat(contents(call.arguments, call.memory))
    state = State(leaves, call.memory)
    inner = stops | tracer.program.exits(call.graph, stops) | {call.graph}
    for _ in range(3 * len(leaves) + 3 + _MOST_CELLS):
        since = tracer.count
        with tracer.builder.body() as nodes, tracer.nested(), tracer.inside(call.graph):
            now = _nest(state.now(), shape)
            tracer.memory = state.inside()
            outcome = tracer.run(call.graph, now)
            ends = advance(tracer, outcome, inner, {**fallbacks, call.graph: (*now, state.inside())})
        if call.graph not in ends.ways:  # the condition is known: the body is never left for another round
            tracer.memory = call.memory
            with tracer.inside(call.graph):
                outcome = tracer.run(call.graph, call.arguments)
                return advance(tracer, outcome, inner, fallbacks)
        *after, memory = ends.ways[call.graph]
        following, following_shape = _flat(tuple(after))
        if following_shape != shape:
            raise tracer.invalid(
                f"the loop {call.graph[:80]!r} goes on with other arguments than it began with"
            )
        inner_names = made_in(nodes) | state.own()
        grown = _grown(tracer, state, following, memory)
        if not _cells_grown(tracer, state, memory, inner_names, since) and not grown:
            break
    else:
        raise tracer.invalid(f"the types of what the loop {call.graph[:80]!r} carries have no end")
    if len(ends.ways) == 1:
        raise ModelError(f"{tracer.program.path} has a loop that never ends ({call.graph[:80]!r}).")
    following = [following[index] for index in state.changing]
    following += [memory.now(cell.first) for cell in state.cells.values()]
    return _emit_loop(tracer, call.graph, state, following, ends=ends, nodes=nodes, since=since)


def _cells_grown(tracer: Tracer, state: State, memory: Memory, inner: set[str], since: int) -> bool:
    """Adds storages that the body changes, or lengths of what they hold; whether there were any."""
    grown = False
    for name, first in outer_cells(tracer, memory, made=inner, since=since).items():
        before, after = state.inside().now(first), memory.now(first)
        if name in state.cells:
            shape = united(before, after)
            if shape == before.shape:
                continue
            value = replace(before, shape=shape)
        elif same(before, after):
            continue
        else:
            value = Value(tracer.builder.names.fresh("state"), before.dtype, before.shape, storage=name)
        state.cells[name] = Cell(first, value)
        grown = True
    return grown


def _grown(tracer: Tracer, state: State, following: list[Traced], memory: Memory) -> bool:
    """Adds leaves that change to the state, or lengths that change; whether there were any."""
    grown = False
    b = tracer.builder
    for index, (leaf, after) in enumerate(zip(state.leaves, following, strict=True)):
        known = state.changing.get(index)
        if known is None:
            if same(leaf, after) or (memory.holds(leaf) and in_one_storage(leaf, after)):
                continue
            if not isinstance(leaf, (Value, bool, int, float)):
                raise ModelError(f"{tracer.program.path} has a loop that changes {kind(leaf)}.")
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
    tracer: Tracer,
    header: str,
    state: State,
    following: list[Traced],
    *,
    ends: Ends,
    nodes: list[NodeProto],
    since: int,
) -> Ends:
    b = tracer.builder
    names = list(ends.ways)
    inputs = [
        Value(b.names.fresh("round"), np.dtype(np.int64), ()),
        Value(b.names.fresh("going"), np.dtype(np.bool_), ()),
        *(value for _, value in state.variables()),
    ]
    variables = inputs[2:]
    first = [b.value(before, value.dtype) for before, value in state.variables()]
    results = [replace(value, name=b.fresh("Loop")) for value in variables]
    with b.body(nodes):
        assert ends.which is not None
        after = [b.cast(item, value.dtype) for item, value in zip(following, variables, strict=True)]
        again = b.op("Equal", [ends.which, names.index(header)])
    made = made_in(nodes)
    left = {value.name: result for value, result in zip(variables, results, strict=True)}
    carried: list[Value] = []

    def outside(item: Traced) -> Traced:
        """What an end's argument is behind the loop."""
        if isinstance(item, tuple):
            return tuple(outside(part) for part in item)
        if isinstance(item, Memory):
            cells = outer_cells(tracer, item, made=made | {value.name for value in variables}, since=since)
            return Memory(
                {name: Cell(first, stored(outside(item.now(first)), name)) for name, first in cells.items()}
            )
        if not isinstance(item, Value):
            return item
        if item.name in left:
            return replace(left[item.name], storage=item.storage)
        if item.name not in made:
            return item
        inputs.append(Value(b.names.fresh("carried"), item.dtype, None))
        first.append(b.const(np.zeros([0] * item.rank if item.rank else (), item.dtype)))
        after.append(item)
        left[item.name] = replace(item, name=b.fresh("Loop"), constant=None)
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


def _flat(arguments: tuple[Traced, ...]) -> tuple[list[Traced], Traced]:
    """Arguments without their nesting, and the nesting."""
    leaves: list[Traced] = []

    def shape(item: Traced) -> Traced:
        if isinstance(item, tuple):
            return tuple(shape(part) for part in item)
        leaves.append(item)
        return None

    return leaves, shape(arguments)


def _nest(leaves: list[Traced], shape: Traced) -> tuple[Traced, ...]:
    rest = iter(leaves)

    def build(item: Traced) -> Traced:
        return tuple(build(part) for part in item) if isinstance(item, tuple) else next(rest)

    result = build(shape)
    assert isinstance(result, tuple)
    return result
