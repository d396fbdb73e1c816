"""RNN, GRU and LSTM: the batch, or one direction of a bidirectional one on each half of the ranks.

Hidden units are not split: each step multiplies the whole hidden state of the step before with R, so a rank
that holds some units would need the others' at every step, which one operator cannot ask for. Nor are the
rows of W: the gates are no linear function of X, and no form of the operators takes X * W ready made.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sharding.placement import Placement, Split
from sharding.rules.base import Emitter, NodeView, Option, rule
from sharding.rules.common import Values, absent, option, splits

MICROSOFT = "com.microsoft"


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
        parts: dict[int, Placement] = {
            i: Split(axis, split.blocks) for i, axis in batch_axes.items() if not absent(node, i)
        }
        outputs = [Split(axis, split.blocks) for axis in out_axes[: len(node.output_shapes)]]
        options.append(option(node, parts, outputs))
    states, outs = (1, (2, 1, 1)) if batch_first else (0, (1, 0, 0))
    return options + _directions(node, dict.fromkeys((1, 2, 3, 7), 0) | dict.fromkeys((5, 6), states), outs)


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantized_lstm(node: NodeView) -> list[Option]:
    """As LSTM, then scale and zero point of W and R by direction; X is quantized by the range of the whole
    batch, which therefore stays together."""
    return _directions(node, dict.fromkeys((1, 2, 3, 5, 6, 7, 8, 9, 10, 11), 0), (1, 0, 0))


def _directions(node: NodeView, axes: dict[int, int], out_axes: tuple[int, ...]) -> list[Option]:
    """The first half of the ranks computes the forward direction, the second half the other one."""
    if node.attributes.get("direction", "forward") not in ("bidirectional", b"bidirectional"):
        return []
    if node.world % 2:
        return []
    copies = node.world // 2
    parts: dict[int, Placement] = {
        i: Split(axis, copies=copies) for i, axis in axes.items() if not absent(node, i)
    }
    outputs = [Split(axis, copies=copies) for axis in out_axes[: len(node.output_shapes)]]
    return [option(node, parts, outputs, partial(_one_direction, node))]


def _one_direction(node: NodeView, e: Emitter, values: Values) -> list[Any]:
    direction = 0 if e.rank < e.world // 2 else 1
    changed: dict[str, Any] = {"direction": ("forward", "reverse")[direction]}
    for name in ("activations", "activation_alpha", "activation_beta"):
        listed = node.attributes.get(name)
        if listed:
            half = len(listed) // 2
            changed[name] = list(listed)[direction * half : (direction + 1) * half]
    return e.copy(values, **changed)
