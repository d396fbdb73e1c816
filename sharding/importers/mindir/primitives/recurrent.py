"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import FLOAT32, Builder, known_rank


def _part(b: Builder, x: Value, axis: int, start: int, length: int) -> Value:
    return b.op("Slice", [x, b.ints((start,)), b.ints((start + length,)), b.ints((axis,))])


def _gates(b: Builder, x: Value, axis: int, order: Sequence[int]) -> Value:
    """The parts of the gates along an axis in another order."""
    parts = b.ops("Split", [x], {"axis": axis, "num_outputs": len(order)}, outputs=len(order))
    return b.op("Concat", [parts[place] for place in order], {"axis": axis})


def _settled(b: Builder, x: Value) -> Value:
    """The value as a constant where weights alone decide it: ONNX Runtime prepares only those in advance."""
    try:
        found = b.evaluate(x)
    except RefusedError:
        return x
    return x if found is None else b.const(found)


@primitive("LSTM")
def lstm(
    b: Builder,
    x: Value,
    h: Value,
    c: Value,
    w: Value,
    *,
    input_size: int = 0,
    hidden_size: int = 0,
    num_layers: int = 1,
    has_bias: bool = True,
    bidirectional: bool = False,
    dropout: Operand = 0.0,
    proj_size: Operand = 0,
) -> Operand:
    """Time first. The weights lie in one vector: for the input, for the state, one bias; gates i, f, g, o.

    Gives the states of all times, the last state and cell, and two results that only a gradient reads.
    """
    inputs, hidden = input_size, hidden_size
    b.bounded(hidden)
    directions = 2 if bidirectional else 1
    if num_layers != 1:
        raise RefusedError("several layers in one LSTM have no conversion: export it on a CPU")
    if proj_size:
        raise RefusedError("a projection (proj_size) has no conversion")
    wide = b.cast(x, FLOAT32)
    flat = b.reshape(b.cast(w, FLOAT32), (-1,))
    sizes = (4 * hidden * inputs, 4 * hidden * hidden, 4 * hidden if has_bias else 0)
    length = flat.shape[0] if flat.shape else None
    if length is not None and length != directions * sum(sizes):
        raise RefusedError(f"its weights have {length} numbers; expected {directions * sum(sizes)}")
    order = (0, 3, 1, 2)  # ONNX has i, o, f, g
    kinds: list[Value] = []
    start = 0
    shapes = ((directions, 4 * hidden, inputs), (directions, 4 * hidden, hidden), (directions, 4 * hidden))
    for size, shape in zip(sizes, shapes, strict=True):
        if not size:
            continue
        part = b.reshape(_part(b, flat, 0, start, directions * size), shape)
        kinds.append(_settled(b, _gates(b, part, 1, order)))
        start += directions * size
    if has_bias:  # ONNX has a second one for the state
        second = b.const(np.zeros((directions, 4 * hidden), np.float32))
        kinds[2] = _settled(b, b.op("Concat", [kinds[2], second], {"axis": 1}))
    else:
        kinds.append(b.const(np.zeros((directions, 8 * hidden), np.float32)))
    batch = b.dim(wide, 1)
    states = [b.reshape(b.cast(item, FLOAT32), (directions, batch, hidden)) for item in (h, c)]
    y, last_h, last_c = b.ops(
        "LSTM",
        [wide, *kinds, None, *states],
        {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward"},
        outputs=3,
    )
    if directions == 1:
        return b.squeeze(y, [1]), last_h, last_c
    joined = b.reshape(b.transpose(y, [0, 2, 1, 3]), (b.dim(wide, 0), batch, directions * hidden))
    return joined, last_h, last_c


_DYNAMIC: dict[str, object] = {
    "direction": "UNIDIRECTIONAL",
    "cell_depth": 1,
    "use_peephole": False,
    "keep_prob": 1.0,
    "cell_clip": -1.0,
    "num_proj": 0,
    "time_major": True,
    "activation": "tanh",
}
"""The settings of DynamicRNN and DynamicGRUV2 that have a conversion."""


def _check_dynamic(node: Node) -> None:
    """Raises `RefusedError` for settings other than the usual ones."""
    for name, usual in _DYNAMIC.items():
        found = node.attributes.get(name, usual)
        if found != usual:
            raise RefusedError(f"{name} {found!r:.40} has no conversion; only {usual!r} has")


def _state(b: Builder, operand: Operand) -> Value | None:
    """An initial state (1, batch, hidden), or None."""
    return b.cast(operand, FLOAT32) if isinstance(operand, Value) else None


@primitive("DynamicRNN")
def dynamic_rnn(
    b: Builder,
    node: Node,
    x: Value,
    w: Value,
    bias: Value,
    lengths: Operand = None,
    h: Operand = None,
    c: Operand = None,
    *rest: Operand,
) -> Operand:
    """An LSTM, time first; one matrix (input + hidden, 4 hidden) with the gates i, g, f, o. ``forget_bias``
    is added to the gate f. Gives states and cells of all times."""
    _check_dynamic(node)
    if isinstance(lengths, Value) or rest:
        raise RefusedError("sequence lengths and peepholes have no conversion")
    wide = b.cast(x, FLOAT32)
    if w.shape is None or w.shape[1] is None or wide.shape is None or wide.shape[2] is None:
        raise RefusedError("the weight's shape must be known")
    hidden, inputs = w.shape[1] // 4, wide.shape[2]
    b.bounded(hidden)
    order = (0, 3, 2, 1)  # to i, o, f, g
    turned = _gates(b, b.transpose(b.cast(w, FLOAT32), [1, 0]), 0, order)
    more = np.repeat(
        np.array([0, 0, b.number(node.attributes.get("forget_bias", 0.0), "forget_bias"), 0]), hidden
    )
    biases = b.op("Add", [_gates(b, b.cast(bias, FLOAT32), 0, order), b.const(more, np.float32)])
    second = b.const(np.zeros(4 * hidden, np.float32))
    operands = [
        _settled(b, b.unsqueeze(_part(b, turned, 1, 0, inputs), [0])),
        _settled(b, b.unsqueeze(_part(b, turned, 1, inputs, hidden), [0])),
        _settled(b, b.unsqueeze(b.op("Concat", [biases, second], {"axis": 0}), [0])),
    ]
    y, last_h, last_c = b.ops(
        "LSTM", [wide, *operands, None, _state(b, h), _state(b, c)], {"hidden_size": hidden}, outputs=3
    )
    del last_h
    return b.squeeze(y, [1]), last_c


@primitive("DynamicGRUV2")
def dynamic_gru(
    b: Builder,
    node: Node,
    x: Value,
    w_input: Value,
    w_hidden: Value,
    b_input: Operand = None,
    b_hidden: Operand = None,
    lengths: Operand = None,
    h: Operand = None,
) -> Operand:
    """A GRU, time first; matrices (input, 3 hidden) and (hidden, 3 hidden). Gives the states of all times."""
    _check_dynamic(node)
    if isinstance(lengths, Value):
        raise RefusedError("sequence lengths have no conversion")
    kind = str(node.attributes.get("gate_order", "rzh"))
    orders = {"rzh": (1, 0, 2), "zrh": (0, 1, 2)}  # to z, r, h
    if kind not in orders:
        raise RefusedError(f"gate_order {kind!r:.20} is none of rzh, zrh")
    if w_hidden.shape is None or w_hidden.shape[0] is None or known_rank(x) != 3:
        raise RefusedError("the weight's shape must be known, and the input have three axes")
    hidden = w_hidden.shape[0]
    b.bounded(hidden)
    weights = []
    for item in (w_input, w_hidden):
        turned = b.transpose(b.cast(item, FLOAT32), [1, 0])
        weights.append(_settled(b, b.unsqueeze(_gates(b, turned, 0, orders[kind]), [0])))
    parts = [
        _gates(b, b.cast(item, FLOAT32), 0, orders[kind])
        if isinstance(item, Value)
        else b.const(np.zeros(3 * hidden, np.float32))
        for item in (b_input, b_hidden)
    ]
    biases = _settled(b, b.unsqueeze(b.op("Concat", parts, {"axis": 0}), [0]))
    state = _state(b, h)
    if state is not None and state.rank == 2:
        state = b.unsqueeze(state, [0])
    after = int(bool(node.attributes.get("reset_after", True)))
    y, _ = b.ops(
        "GRU",
        [b.cast(x, FLOAT32), *weights, biases, None, state],
        {"hidden_size": hidden, "linear_before_reset": after},
        outputs=2,
    )
    return (b.squeeze(y, [1]),)
