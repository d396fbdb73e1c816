"""RNN, GRU and LSTM: the batch; or on two ranks one direction each of a bidirectional one."""

from __future__ import annotations

from functools import partial
from typing import Any

from sharding.placement import Placement, Split
from sharding.rules.base import Emitter, NodeView, Option, rule
from sharding.rules.common import Values, absent, option, splits


@rule("RNN", "GRU", "LSTM")
def recurrent(node: NodeView) -> list[Option]:
    """X [time, batch, input]; W, R, B and P by direction; states [directions, batch, hidden]; layout 0."""
    if node.attributes.get("layout", 0) or node.shapes[0] is None or len(node.shapes[0]) != 3:
        return []
    # Where the batch lies in X, the lengths, and the initial states; where it lies in Y, Y_h, Y_c.
    batch_axes = {0: 1, 4: 0, 5: 1, 6: 1}
    options = []
    for split in splits(node, node.shapes[0], (1,)):
        parts: dict[int, Placement] = {
            i: Split(axis, split.blocks) for i, axis in batch_axes.items() if not absent(node, i)
        }
        outputs = [Split(axis, split.blocks) for axis in (2, 1, 1)[: len(node.output_shapes)]]
        options.append(option(node, parts, outputs))
    direction = node.attributes.get("direction", "forward")
    if node.world == 2 and direction in ("bidirectional", b"bidirectional"):
        parts = {i: Split(0) for i in (1, 2, 3, 5, 6, 7) if not absent(node, i)}
        outputs = [Split(axis) for axis in (1, 0, 0)[: len(node.output_shapes)]]
        options.append(option(node, parts, outputs, partial(_one_direction, node)))
    return options


def _one_direction(node: NodeView, e: Emitter, values: Values) -> list[Any]:
    changed: dict[str, Any] = {"direction": ("forward", "reverse")[e.rank]}
    for name in ("activations", "activation_alpha", "activation_beta"):
        listed = node.attributes.get(name)
        if listed:
            half = len(listed) // 2
            changed[name] = list(listed)[e.rank * half : (e.rank + 1) * half]
    return e.copy(values, **changed)
