"""Two recurrent operators, one of which reads the same sequence backward, written as one of two directions.

MindSpore exports a bidirectional layer so: an operator on the sequence, another on the reversed sequence,
whose states are reversed again and put beside the first's. The rules cut one operator of two directions into
its directions, a half of the weights for each rank; of two operators neither could be cut.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from sharding.graph.fold import small_constant
from sharding.graph.values import captured, integer_of, plain_attribute, shape_of
from sharding.rewrite.built_weights import MOVES, chain
from sharding.rewrite.graph_writer import GraphWriter, take_place
from sharding.rewrite.recurrent_weights import RECURRENT, WEIGHTS
from sharding.rules.flow import FLOW

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 13
"""The first with what is written and matched."""
_STATES_BY = 2
"""The input that multiplies the states."""
_LENGTHS = 4
"""The input that has the length of each sequence."""
_LISTED = "activations"
"""What one direction has as a list, and two have as both lists in turn."""
_CONSUMED = frozenset({"activation_alpha", "activation_beta"})
"""Lists of which each activation takes what it needs, or a default: joined, one could take the other's."""


def join_directions(graph: ir.Graph, opset: int) -> None:
    """Rewrites the graph in place, where both states of all times are read side by side or not at all."""
    if opset < OPSET:
        return
    layers: dict[tuple[object, ...], dict[bool, list[ir.Node]]] = {}
    writer = GraphWriter(graph, opset)
    joined = False
    for node in list(graph):  # in order: what joins one layer's directions is what the next layer reads
        found = _layer(node)
        if found is None:
            continue
        layer, backward = found
        ways = layers.setdefault(layer, {False: [], True: []})
        for other in ways[not backward]:
            if _join(writer, node, *((other, node) if backward else (node, other))):
                ways[not backward].remove(other)
                joined = True
                break
        else:
            ways[backward].append(node)
    if joined:
        graph.sort()  # what read the earlier one's last state now waits for the later one


def _layer(node: ir.Node) -> tuple[tuple[object, ...], bool] | None:
    """What the two directions of a layer have in common, and whether this is the backward one."""
    if node.op_type not in RECURRENT or node.domain or len(node.inputs) <= _STATES_BY:
        return None
    given = tuple(place for place, value in enumerate(node.inputs) if value is not None)
    unfit = any(name in _CONSUMED or item.is_ref() for name, item in node.attributes.items())
    if unfit or _LENGTHS in given:
        return None  # with lengths, a reversed sequence would begin with what fills it up
    attributes = {name: plain_attribute(item) for name, item in node.attributes.items()}
    direction = attributes.pop("direction", "forward")
    if direction not in ("forward", "reverse") or attributes.pop("layout", 0):
        return None
    turned = _reversed(node.inputs[0])
    if turned is not None and direction == "reverse":
        return None
    if _is_constant(turned or node.inputs[0]):
        return None  # it enters no body, so that two bodies may read it: only the rest tells them apart
    alike = [name if name == _LISTED else f"{name} {item!r}" for name, item in sorted(attributes.items())]
    layer = (node.op_type, turned or node.inputs[0], given, len(node.outputs), *alike)
    return layer, direction == "reverse" or turned is not None


def _reversed(value: ir.Value | None) -> ir.Value | None:
    """What this value is, from its end along the first axis; None if it is no such value."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Slice" or node.domain or len(node.inputs) != 5:
        return None
    numbers = []
    for item in node.inputs[1:]:
        found = None if item is None else small_constant(item)
        if found is None or found.size != 1:
            return None
        numbers.append(int(found.reshape(-1)[0]))
    start, end, axis, step = numbers
    length = (shape_of(node.inputs[0]) or (None,))[0]
    most = length if isinstance(length, int) else 2**31
    first = start == -1 or start >= most - 1
    last = end < -most or end <= -(2**31) + 1
    return node.inputs[0] if first and last and axis == 0 and step == -1 else None


def _is_constant(value: ir.Value | None) -> bool:
    """Whether it is computed from constants only."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        node = None if current is None else current.producer()
        if current is None or (node is None and current.is_initializer()):
            continue
        if node is None or node.domain == FLOW or not node.inputs:
            return False
        above = {*node.inputs, *captured(node)} - seen
        seen |= above
        pending += above
    return True


def _join(writer: GraphWriter, later: ir.Node, forward: ir.Node, backward: ir.Node) -> bool:
    """Writes both as one, where the later one stands; False where that cannot be."""
    read = _read_together(forward, backward)
    width, other_width = ((shape_of(node.inputs[_STATES_BY]) or (None,))[-1] for node in (forward, backward))
    if read is None or not isinstance(width, int) or width != other_width:
        return False
    if _waits(forward, backward) or _waits(backward, forward):
        return False
    if not all(_own_weights(writer.graph, place, forward, backward) for place in WEIGHTS):
        return False
    graph, writer.place = writer.graph, later
    inputs = [forward.inputs[0]]
    for one, other in zip_longest(forward.inputs[1:], backward.inputs[1:]):
        inputs.append(None if one is None or other is None else _beside(writer, one, other))
    attributes: dict[str, object] = {"direction": "bidirectional"}
    if _LISTED in forward.attributes:
        attributes[_LISTED] = [*forward.attributes[_LISTED].value, *backward.attributes[_LISTED].value]
    kept = forward.attributes.values()
    outputs = writer.node(forward.op_type, inputs, attributes, kept, len(forward.outputs))
    for made, old in zip(outputs, forward.outputs, strict=True):
        shape = shape_of(old)
        axis = 1 if old is forward.outputs[0] else 0
        whole = None if shape is None else [*shape[:axis], 2, *shape[axis + 1 :]]
        writer.described(made, old, whole)
    if read:
        turned = writer.op("Transpose", [outputs[0]], perm=[0, 2, 1, 3])
        shape = shape_of(outputs[0])
        writer.described(turned, outputs[0], shape and [shape[0], shape[2], 2, shape[3]])
    for old in read:
        flat = writer.op("Reshape", [turned, writer.constant([0, 0, 2 * width])])
        take_place(graph, old, flat)
    for made, one, other in zip(outputs[1:], forward.outputs[1:], backward.outputs[1:], strict=True):
        _last(writer, made, one, other)
    return True


def _own_weights(graph: ir.Graph, place: int, forward: ir.Node, backward: ir.Node) -> bool:
    """Whether a weight of both becomes one initializer, and nothing else needs its halves.

    Otherwise each rank would hold both whole, and put them together in every inference.
    """
    ends = [
        value for node in (forward, backward) for value in node.inputs[place : place + 1] if value is not None
    ]
    order = [node for value in ends for node in chain(value, graph, MOVES)]
    made = {value for node in order for value in node.outputs}
    if not all(value in made or (value.is_initializer() and value.const_value is not None) for value in ends):
        return False
    read = [value for node in order for value in node.inputs if value is not None and not _is_whole(value)]
    allowed = {(forward, place), (backward, place)}
    return not any(
        value.is_graph_output()
        or any(user not in order and (user, at) not in allowed for user, at in value.uses())
        for value in (*ends, *made, *read)
    )


def _is_whole(value: ir.Value) -> bool:
    """Whether it is a place or length, which many weights may use."""
    return value.is_initializer() and value.dtype is not None and value.dtype.is_integer()


def _beside(writer: GraphWriter, one: ir.Value, other: ir.Value) -> ir.Value:
    """Both directions' part of an input."""
    shapes = shape_of(one), shape_of(other)
    known = None if None in shapes else [2, *(shapes[0] or ())[1:]]
    return writer.described(writer.op("Concat", [one, other], axis=0), one, known)


def _last(writer: GraphWriter, both: ir.Value, forward: ir.Value, backward: ir.Value) -> None:
    """A Concat of both last states reads them as they are; what reads one of them reads its part."""
    place = writer.place
    for user, index in list(forward.uses()):
        if not _is_concat(user, writer.graph, 0) or user.inputs[index + 1 : index + 2] != (backward,):
            continue
        values = [value for value in user.inputs if value is not None]
        writer.place = user
        made = writer.op("Concat", [*values[:index], both, *values[index + 2 :]], axis=0)
        take_place(writer.graph, user.outputs[0], made)
        writer.graph.remove(user, safe=True)
    writer.place = place
    for start, old in ((0, forward), (1, backward)):
        if old.uses() or old.is_graph_output():
            bounds = [writer.constant([number]) for number in (start, start + 1, 0)]
            take_place(writer.graph, old, writer.op("Slice", [both, *bounds]))


def _is_concat(node: ir.Node, graph: ir.Graph | None, *axes: int) -> bool:
    """Whether it joins values in this graph itself, along one of these axes."""
    joins = node.op_type == "Concat" and not node.domain and node.graph is graph
    return joins and integer_of(node, "axis") in axes


def _read_together(forward: ir.Node, backward: ir.Node) -> list[ir.Value] | None:
    """The values that have both states of all times side by side; None where something reads one alone."""
    ahead, back = _flat(forward.outputs[0]), _flat(backward.outputs[0])
    if ahead is None or back is None or any(value.is_graph_output() for value in (*ahead, *back)):
        return None
    if _reversed(backward.inputs[0]) is not None:  # its states are from the end, too
        turned = [user for value in back for user, _ in value.uses()]
        if any(user.graph is not backward.graph or _reversed(user.outputs[0]) not in back for user in turned):
            return None
        back = [user.outputs[0] for user in turned]
    if any(value.is_graph_output() for value in (*ahead, *back)):
        return None
    found = []
    for user in dict.fromkeys(user for value in (*ahead, *back) for user, _ in value.uses()):
        pair = list(user.inputs)
        if (
            not _is_concat(user, forward.graph, 2, -1)
            or len(pair) != 2
            or pair[0] not in ahead
            or pair[1] not in back
        ):
            return None
        found.append(user.outputs[0])
    return found


def _flat(states: ir.Value) -> list[ir.Value] | None:
    """The states of all times, of one direction, without the axis of directions."""
    found = []
    node = states.producer()
    for user, _ in states.uses():
        if node is None or user.graph is not node.graph:
            return None
        axes = small_constant(user.inputs[1]) if len(user.inputs) == 2 and user.inputs[1] else None
        if user.op_type != "Squeeze" or user.domain or axes is None or axes.tolist() != [1]:
            return None
        found.append(user.outputs[0])
    return None if states.is_graph_output() else found


def _waits(node: ir.Node, other: ir.Node) -> bool:
    """Whether a node's weights or first states come of another node, which then has to be done before."""
    pending, seen = [value for value in node.inputs[1:] if value is not None], set()
    while pending:
        above = pending.pop().producer()
        if above is other:
            return True
        if above is not None and above not in seen:
            seen.add(above)
            pending += [value for value in (*above.inputs, *captured(above)) if value is not None]
    return False
