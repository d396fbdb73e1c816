"""RNN, GRU and LSTM: the batch, or one direction of a bidirectional one on each half of the ranks.

Hidden units are not split: each step multiplies the whole hidden state of the step before with R, so a rank
that holds some units would need the others' at every step, which one operator cannot ask for. Nor are the
rows of W: the gates are no linear function of X, and no form of the operators takes X * W ready made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import absent, dim, int64, option, splits
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import Split


@rule("RNN", "GRU", "LSTM")
def recurrent(node: NodeView) -> list[Option]:
    """X [time, batch, input]; W, R, B and P by direction; states [directions, batch, hidden].

    Layout 1 (opset 14) has the batch before the other two axes: X [batch, time, input], Y [batch, time,
    directions, hidden], states [batch, directions, hidden].
    """
    shape = node.shapes[0]
    if shape is None or len(shape) != 3:
        return []
    batch_first = bool(node.attributes.get("layout", 0))
    # Where the batch lies in X, the lengths, and the initial states; where it lies in Y, Y_h, Y_c.
    batch_axes = {0: 0, 4: 0, 5: 0, 6: 0} if batch_first else {0: 1, 4: 0, 5: 1, 6: 1}
    out_axes = (0, 0, 0) if batch_first else (2, 1, 1)
    options = []
    for split in splits(node, shape, (batch_axes[0],)):
        parts = {i: Split(axis, split.blocks) for i, axis in batch_axes.items()}
        options.append(option(node, parts, [Split(axis, split.blocks) for axis in out_axes]))
    outs = (2, 1, 1) if batch_first else (1, 0, 0)
    return options + _directions(node, (1, 2, 3, 7), int(batch_first), outs)


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantized_lstm(node: NodeView) -> list[Option]:
    """As LSTM, then scale and zero point of W and R by direction; X is quantized by the range of the whole
    batch, which therefore stays together."""
    return _directions(node, (1, 2, 3, 7, 8, 9, 10, 11), 0, (1, 0, 0))


def reads_both_ways(node: NodeView) -> bool:
    """Whether a recurrent node reads its input from both ends."""
    return node.attributes.get("direction") in ("bidirectional", b"bidirectional")


def _directions(
    node: NodeView, weights: Sequence[int], state_axis: int, out_axes: tuple[int, ...]
) -> list[Option]:
    """The first half of the ranks computes the forward direction, the second half the other one."""
    if not reads_both_ways(node):
        return []
    if node.world % 2:
        return []
    copies = node.world // 2
    parts = dict.fromkeys(weights, Split(0, copies=copies))
    outputs = [Split(axis, copies=copies) for axis in out_axes]
    states = [i for i in (5, 6) if not absent(node, i)]
    # The shape of initial states is often computed; such ones come whole.
    whole = [i for i in states if dim(node.shapes[i], state_axis) != 2]
    parts |= {i: Split(state_axis, copies=copies) for i in states if i not in whole}
    return [option(node, parts, outputs, partial(_one_direction, node, whole, state_axis))]


def _one_direction(
    node: NodeView, whole: Sequence[int], state_axis: int, e: Emitter, values: Values
) -> list[Value]:
    direction = 0 if e.rank < e.world // 2 else 1
    values = list(values)
    for index in whole:
        values[index] = e.op("Gather", [values[index], int64(e, [direction])], axis=state_axis)[0]
    changed: dict[str, object] = {"direction": ("forward", "reverse")[direction]}
    for name in ("activations", "activation_alpha", "activation_beta"):
        listed = node.attributes.get(name)
        if listed and isinstance(listed, list):
            half = len(listed) // 2
            changed[name] = listed[direction * half : (direction + 1) * half]
    return e.copy(values, **changed)
