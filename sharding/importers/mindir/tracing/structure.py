"""The primitives that say how a program is put together: tuples, closures, choices, order of effects.

They are evaluated while the program is followed, and add at most a choice to the ONNX graph.
"""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value
from sharding.importers.mindir.tracing.memory import contents
from sharding.importers.mindir.tracing.outcomes import RAISED, Branch, Choice, Closure, Done, Traced
from sharding.importers.mindir.tracing.trace import Tracer


def _first(tracer: Tracer, operands: list[Traced]) -> Traced:
    if not operands:
        raise RefusedError("it has no inputs")
    return contents(operands[0], tracer.memory)


def _read(tracer: Tracer, operands: list[Traced]) -> Traced:
    """What a tensor holds now, whatever it is changed to later. A weight stays the weight."""
    found = _first(tracer, operands)
    return found if isinstance(found, Value) and found.name in tracer.weights else tracer.own(found)


def _partial(tracer: Tracer, operands: list[Traced]) -> Traced:
    if not operands or not isinstance(operands[0], Closure):
        raise RefusedError("its first input is no graph")
    return Closure(operands[0].graph, (*operands[0].arguments, *operands[1:]))


def _switch(tracer: Tracer, operands: list[Traced]) -> Traced:
    if len(operands) != 3:
        raise RefusedError(f"expected 3 inputs, found {len(operands)}")
    return choice(tracer, operands[0], operands[1], operands[2])


def choice(tracer: Tracer, condition: Operand, then: Traced, otherwise: Traced) -> Traced:
    """One of two by a condition; at once where that is known."""
    value = tracer.builder.cast(condition, np.bool_)
    if value.constant is not None and value.constant.size == 1:
        return then if bool(value.constant.reshape(())) else otherwise
    if isinstance(then, (Closure, Choice)) or isinstance(otherwise, (Closure, Choice)):
        return Choice(value, then, otherwise)
    return tracer.finish(Branch(value, Done(then, tracer.memory), Done(otherwise, tracer.memory)))


def _switch_layer(tracer: Tracer, operands: list[Traced]) -> Traced:
    if len(operands) != 2 or not isinstance(operands[1], tuple) or not operands[1]:
        raise RefusedError("expected an index and a tuple of graphs")
    b, graphs = tracer.builder, operands[1]
    index = b.cast(operands[0], np.int64)
    result = graphs[-1]
    for number in range(len(graphs) - 2, -1, -1):
        here = b.op("Or", [b.op("Equal", [index, number]), b.op("Equal", [index, number - len(graphs)])])
        result = choice(tracer, here, graphs[number], result)
    return result


def _item(tracer: Tracer, operands: list[Traced]) -> Traced:
    if len(operands) != 2:
        raise RefusedError(f"expected a tuple and an index, found {len(operands)} inputs")
    whole, b = operands[0], tracer.builder
    if isinstance(whole, Value) and whole.sequence:
        found = b.op("Gather", [whole, b.cast(operands[1], np.int64)], {"axis": 0})
        return b.squeeze(found, [0]) if found.rank == 1 else found
    items, place = _known_item(tracer, operands)
    return items[place]


def _set_item(tracer: Tracer, operands: list[Traced]) -> Traced:
    """The tuple with another item."""
    if len(operands) != 3:
        raise RefusedError(f"expected a tuple, an index and an item, found {len(operands)} inputs")
    items, place = _known_item(tracer, operands)
    return (*items[:place], operands[2], *items[place + 1 :])


def _known_item(tracer: Tracer, operands: list[Traced]) -> tuple[tuple[Traced, ...], int]:
    """A tuple and a place in it, from 0 on."""
    whole, index = operands[0], tracer.builder.known_ints(operands[1])
    if not isinstance(whole, tuple) or index is None or len(index) != 1:
        raise RefusedError("expected a tuple and an index that is known before it runs")
    if not -len(whole) <= index[0] < len(whole):
        raise RefusedError(f"item {index[0]} of a tuple of {len(whole)}")
    return whole, index[0] % len(whole)


STRUCTURE = {
    **dict.fromkeys(("Load", "TensorMove"), _read),
    "Depend": _first,
    "UpdateState": lambda tracer, operands: None,
    "raise": lambda tracer, operands: RAISED,
    **dict.fromkeys(("MakeTuple", "make_list", "MakeList"), lambda tracer, operands: tuple(operands)),
    **dict.fromkeys(
        ("TupleGetItem", "tuple_getitem", "list_getitem", "ListGetItem", "RealTupleGetItem"), _item
    ),
    **dict.fromkeys(
        ("tuple_setitem", "list_setitem", "TupleSetItem", "ListSetItem", "SequenceSetItem"), _set_item
    ),
    "Partial": _partial,
    **dict.fromkeys(("Switch", "switch"), _switch),
    **dict.fromkeys(("SwitchLayer", "switch_layer"), _switch_layer),
}
"""Primitives that say how a program is put together."""
