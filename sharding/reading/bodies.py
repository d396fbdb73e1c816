"""Bodies with weights, opened: their nodes become nodes of the main graph, so that they are planned like all.
So are the branches of an `If` between two products: what one gives split, the other may take split.

What passes into a body and out of it goes through markers (`sharding.rules.flow`), so that what belongs to
which body can be read from the graph at any time, whatever is rewritten in between: what depends on something
that entered a body belongs to it. Any other body without a weight worth splitting stays in its node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.graph.fold import SMALL_ELEMENTS
from sharding.graph.values import (
    bodies,
    captured,
    captured_by,
    integer_of,
    shape_of,
    subgraphs,
    use_instead,
)
from sharding.onnx_files.tensors import locate
from sharding.reading.control_flow import UniqueNames, let_go, replace_output, take_apart
from sharding.rules.flow import FLOW

if TYPE_CHECKING:
    import onnx_ir as ir

BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
"""The attributes that hold the bodies."""
SCAN_OPSET = 9
"""Before it a Scan had a batch axis."""
LENGTHS = frozenset({"Shape", "Size"})
"""Operators that read nothing of a tensor but its lengths."""


def open_bodies(model: ir.Model, path: Path) -> bool:
    """Opens each `If`, `Loop` and `Scan` of the main graph that computes with weights, and each `If` between
    computations with weights; whether there was one."""
    version = model.opset_imports.get("", 1)
    between = _between_weights(model.graph)
    found = [
        node for node in model.graph if (node in between or _has_weights(node)) and _can_open(node, version)
    ]
    if not found:
        return False
    opener = _Opener(model)
    for node in found:
        if node.op_type == "If":
            _join_equal_weights(model, node, path)
            opener.open_if(node)
        else:
            opener.open_loop(node)
    return True


def _has_weights(node: ir.Node) -> bool:
    values = (value for value in captured(node) if value.is_initializer() and value.const_value is not None)
    own = (value for graph in _graphs(node) for value in graph.initializers.values())
    return any(_is_matrix(value) for value in (*values, *own))


def _between_weights(graph: ir.Graph) -> set[ir.Node]:
    """Each `If` that takes numbers computed with weights, and whose own go into such a computation."""
    if not any(node.op_type == "If" for node in graph):
        return set()
    nodes = [node for node in graph if node.op_type not in LENGTHS]
    read = {node: [*(value for value in node.inputs if value is not None), *captured(node)] for node in nodes}
    # A small matrix is reason enough here: what comes split from one side meets it.
    weighted = {node for node in nodes if any(_is_matrix(value, least=0) for value in read[node])}
    behind: set[ir.Value] = set()
    found = set()
    for node in nodes:
        if node in weighted or not behind.isdisjoint(read[node]):
            behind.update(node.outputs)
        if node.op_type == "If" and any(value in behind and _is_floating(value) for value in captured(node)):
            found.add(node)
    before: set[ir.Value] = set()
    for node in reversed(nodes):
        leads = any(value in before and _is_floating(value) for value in node.outputs)
        if not leads:
            found.discard(node)
        if node in weighted or not before.isdisjoint(node.outputs):
            before.update(read[node])
    return found


def _is_floating(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _is_matrix(value: ir.Value, least: int = SMALL_ELEMENTS) -> bool:
    """Whether a value is a constant with several axes, of more than so many elements."""
    tensor = value.const_value if value.is_initializer() else None
    if tensor is None or tensor.size <= least:
        return False
    return sum(axis > 1 for axis in tensor.shape.numpy()) > 1


def _graphs(node: ir.Node) -> Iterator[ir.Graph]:
    for graph in subgraphs(node):
        yield graph
        for inner in graph:
            yield from _graphs(inner)


def _can_open(node: ir.Node, version: int) -> bool:
    """Whether its values are tensors of known type, and nothing in it makes something of nothing: such a node
    would not be known to belong to its body."""

    if node.domain or node.op_type not in BODIES:
        return False
    found = dict(bodies(node))
    if set(found) != set(BODIES[node.op_type]):
        return False
    passing = [*(value for value in node.inputs if value is not None), *node.outputs, *captured(node)]
    if not all(_is_tensor(value) for value in passing):
        return False
    graphs = [found[name] for name in BODIES[node.op_type]]
    if node.op_type == "If":
        right = all(not graph.inputs and len(graph.outputs) == len(node.outputs) for graph in graphs)
        right = right and len(node.inputs) == 1 and node.inputs[0] is not None
    elif node.op_type == "Loop":
        carried, body = len(node.inputs) - 2, graphs[0]
        right = carried >= 0 and None not in node.inputs[2:] and len(body.inputs) == carried + 2
        right = right and len(body.outputs) == len(node.outputs) + 1 and len(node.outputs) >= carried
    else:
        scanned, body = integer_of(node, "num_scan_inputs"), graphs[0]
        carried = len(node.inputs) - scanned
        right = scanned > 0 and carried >= 0 and None not in node.inputs
        right = right and version >= SCAN_OPSET and len(body.inputs) == len(node.inputs)
        right = right and len(body.outputs) == len(node.outputs) >= carried
        right = right and _axes_exist(node, scanned)
    if not right:
        return False
    inner = [item for graph in _graphs(node) for item in graph]
    return all(item.inputs or item.op_type == "Constant" for item in inner)


def _is_tensor(value: ir.Value) -> bool:
    import onnx_ir as ir

    return isinstance(value.type, ir.TensorType) and value.dtype is not None


def _axes_exist(node: ir.Node, scanned: int) -> bool:
    """Whether what a Scan goes along is an axis of each of its inputs, as far as that is known."""
    axes = _integers(node, "scan_input_axes")
    ranks = [len(shape_of(value) or ()) for value in node.inputs[len(node.inputs) - scanned :]]
    return all(-rank <= axes.get(index, 0) < rank for index, rank in enumerate(ranks))


class _Opener:
    """Opens nodes of one model, one after the other."""

    def __init__(self, model: ir.Model) -> None:
        import onnx_ir as ir

        self.ir = ir
        self.model = model
        self.graph = model.graph
        self.names = UniqueNames(model)
        model.opset_imports.setdefault(FLOW, 1)
        numbers = [node.attributes["region"].as_int() for node in model.graph if node.domain == FLOW]
        self.next = max(numbers, default=-1) + 1

    def open_if(self, node: ir.Node) -> None:
        region, self.next = self.next, self.next + 1
        name = node.name or f"If_{region}"
        moved: list[ir.Node] = []
        given: list[list[ir.Value]] = []
        for branch, attribute in enumerate(("then_branch", "else_branch")):
            body = node.attributes[attribute].as_graph()
            nodes, outputs = self._take(body, region, branch, name)
            moved += nodes
            given.append(outputs)
        for index, output in enumerate(node.outputs):
            sources = [node.inputs[0], given[0][index], given[1][index]]
            leave = self._marker("Leave", sources, name, region, index=index)
            moved.append(leave)
            output.shape = None  # of two branches, it was made up; the markers tell
            self._hand_over(output, leave.outputs[0])
        self.graph.insert_before(node, moved)
        let_go(node)
        self.graph.remove(node, safe=True)

    def open_loop(self, node: ir.Node) -> None:
        """A Loop or Scan: what it carries, then what its body gives turn by turn."""
        region, self.next = self.next, self.next + 1
        name, body = node.name or f"{node.op_type}_{region}", node.attributes["body"].as_graph()
        scanned = integer_of(node, "num_scan_inputs")
        given = list(node.inputs[2:] if node.op_type == "Loop" else node.inputs[: len(node.inputs) - scanned])
        entering: list[ir.Node] = []
        if node.op_type == "Loop":
            turn = self._marker("Turn", [], name, region, outputs=2)
            entering.append(turn)
            for formal, inside in zip(body.inputs, turn.outputs, strict=False):
                self._enter(body, formal, inside)
        formals = list(body.inputs)[2 if node.op_type == "Loop" else 0 :]
        for index, (first, formal) in enumerate(zip(given, formals, strict=False)):
            marker = self._marker("Carry", [first], name, region, index=index)
            lasting = shape_of(node.outputs[index])  # found by going through the body
            if lasting is not None:
                said = ["" if axis is None else str(axis) for axis in lasting]
                marker.attributes["axes"] = self.ir.AttrStrings("axes", said)
                formal.shape = self.ir.Shape(lasting)
            else:
                formal.shape = None
            formal.type = node.outputs[index].type
            self._enter(body, formal, marker.outputs[0])
            entering.append(marker)
        axes, backward = _integers(node, "scan_input_axes"), _integers(node, "scan_input_directions")
        for index in range(scanned):
            source, formal = node.inputs[len(given) + index], formals[len(given) + index]
            assert source is not None
            told = {"index": index, "axis": axes.get(index, 0), "backward": backward.get(index, 0)}
            marker = self._marker("Element", [source], name, region, **told)
            formal.type, formal.shape = source.type, None
            self._enter(body, formal, marker.outputs[0])
            entering.append(marker)
        nodes, results = self._take(body, region, 0, name)
        condition = results.pop(0) if node.op_type == "Loop" else None
        leaving = []
        for index in range(len(given)):
            leaving.append(self._marker("Back", [results[index]], name, region, index=index))
            self._describe(leaving[-1].outputs[0], f"{name}/back", self.ir.DataType.BOOL)
        operands = [*node.inputs[:2], condition] if node.op_type == "Loop" else [None, None, None]
        tokens = [marker.outputs[0] for marker in leaving]
        ran = self._marker("Ran", [*operands, *tokens], name, region, scan=int(node.op_type == "Scan"))
        self._describe(ran.outputs[0], f"{name}/ran", self.ir.DataType.BOOL)
        leaving.append(ran)
        axes, backward = _integers(node, "scan_output_axes"), _integers(node, "scan_output_directions")
        for index, (output, result) in enumerate(zip(node.outputs, results, strict=True)):
            place = index - len(given)
            told = {"axis": axes.get(place, 0), "backward": backward.get(place, 0)} if place >= 0 else {}
            marker = self._marker(
                "Stack" if place >= 0 else "Last", [ran.outputs[0], result], name, region, index=index, **told
            )
            leaving.append(marker)
            self._hand_over(output, marker.outputs[0])
        self.graph.insert_before(node, [*entering, *nodes, *leaving])
        let_go(node)
        self.graph.remove(node, safe=True)

    def _enter(self, body: ir.Graph, formal: ir.Value, inside: ir.Value) -> None:
        """Lets a body use a marker's output in the place of one of its inputs."""
        inside.name, inside.type, inside.shape = formal.name, formal.type, formal.shape
        self.names.make_unique(inside)
        _replace_in(body, formal, inside)

    def _describe(self, value: ir.Value, name: str, dtype: ir.DataType) -> None:
        value.name, value.type, value.shape = name, self.ir.TensorType(dtype), self.ir.Shape([])
        self.names.add(value)

    def _take(
        self, body: ir.Graph, region: int, branch: int, name: str
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        """The nodes of a body, those that its values enter by first, and what the body gives."""
        entering = [
            value for value in captured_by(body) if not value.is_initializer() and not _entered(value, region)
        ]
        markers = []
        for value in entering:
            marker = self._marker("Enter", [value], name, region, branch=branch)
            inside = marker.outputs[0]
            inside.name = f"{value.name}/{name}"
            inside.type, inside.shape = value.type, value.shape
            _replace_in(body, value, inside)
            markers.append(marker)
        initializers, nodes, outputs = take_apart(body, self.names)
        for marker in markers:
            self.names.add(marker.outputs[0])
        for value in initializers:
            self.graph.register_initializer(value)
        return [*markers, *nodes], outputs

    def _marker(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        region: int,
        *,
        outputs: int = 1,
        **attributes: int,
    ) -> ir.Node:
        items = [self.ir.AttrInt64(key, number) for key, number in {"region": region, **attributes}.items()]
        items.append(self.ir.AttrString("name", name))
        return self.ir.Node(FLOW, op_type, inputs, items, num_outputs=outputs, name=f"{name}/{op_type}")

    def _hand_over(self, output: ir.Value, result: ir.Value) -> None:
        """Puts a marker's output in the place of the node's."""
        result.name, result.type, result.shape = output.name, output.type, output.shape
        use_instead(output, result)
        for holder in self.model.graphs():
            replace_output(holder.outputs, output, result)


def _entered(value: ir.Value, region: int) -> bool:
    producer = value.producer()
    return (
        producer is not None and producer.domain == FLOW and producer.attributes["region"].as_int() == region
    )


def _integers(node: ir.Node, name: str) -> dict[int, int]:
    value = None if (attribute := node.attributes.get(name)) is None else attribute.value
    numbers = value if isinstance(value, list | tuple) else ()
    return {index: number for index, number in enumerate(numbers) if isinstance(number, int)}


def _replace_in(body: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Lets a body, and all bodies in it, use another value."""
    for node in body:
        for index, value in enumerate(node.inputs):
            if value is old:
                node.replace_input_with(index, new)
        for inner in subgraphs(node):
            _replace_in(inner, old, new)
    replace_output(body.outputs, old, new)


def _join_equal_weights(model: ir.Model, node: ir.Node, path: Path) -> None:
    """Lets the branches of an `If` use one of two equal weights: exporters write a copy into each branch."""
    graph = model.graph
    then, other = (
        {value: None for value in captured_by(body) if value.is_initializer() and _is_matrix(value)}
        for body in subgraphs(node)
    )
    kinds = {_kind(value) for value in then if value not in other}
    apart = [value for value in other if value not in then and _kind(value) in kinds]
    kinds = {_kind(value) for value in apart}
    first: dict[bytes, ir.Value] = {}
    for value in then:
        if value not in other and _kind(value) in kinds:
            first.setdefault(_digest(value, path), value)
    for value in apart:
        kept = first.get(_digest(value, path))
        if kept is not None:
            _replace_in(list(subgraphs(node))[1], value, kept)
            if not value.uses() and value not in graph.outputs:
                del graph.initializers[value.name or ""]


def _kind(value: ir.Value) -> tuple[str, tuple[int, ...]]:
    tensor = value.const_value
    assert tensor is not None
    return tensor.dtype.name, tuple(tensor.shape.numpy())


def _digest(value: ir.Value, path: Path) -> bytes:
    assert value.const_value is not None
    data = locate(value.name or "", value.const_value, path).array().tobytes()
    return hashlib.sha256(repr(_kind(value)).encode() + data).digest()
