"""Bodies with weights, opened: their nodes become nodes of the main graph, so that they are planned like all.

What passes into a body and out of it goes through markers (`sharding.rules.flow`), so that what belongs to
which body can be read from the graph at any time, whatever is rewritten in between: what depends on something
that entered a body belongs to it. A body without a weight worth splitting stays in its node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.graph.fold import SMALL_ELEMENTS
from sharding.graph.values import captured, subgraphs
from sharding.onnx_files.tensors import locate
from sharding.reading.control_flow import UniqueNames, let_go, replace_output
from sharding.reading.declared import forget
from sharding.rules.flow import FLOW

if TYPE_CHECKING:
    import onnx_ir as ir


def open_bodies(model: ir.Model, path: Path) -> bool:
    """Opens each `If` of the main graph that computes with weights; whether there was one."""
    found = [node for node in model.graph if _has_weights(node) and _can_open(node)]
    if not found:
        return False
    opener = _Opener(model)
    for node in found:
        _join_equal_weights(model, node, path)
        opener.open_if(node)
    return True


def _has_weights(node: ir.Node) -> bool:
    values = (value for value in captured(node) if value.is_initializer() and value.const_value is not None)
    own = (value for graph in _graphs(node) for value in graph.initializers.values())
    return any(_is_matrix(value) for value in (*values, *own))


def _is_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.size <= SMALL_ELEMENTS:
        return False
    return sum(axis > 1 for axis in tensor.shape.numpy()) > 1


def _graphs(node: ir.Node) -> Iterator[ir.Graph]:
    for graph in subgraphs(node):
        yield graph
        for inner in graph:
            yield from _graphs(inner)


def _can_open(node: ir.Node) -> bool:
    """Whether its values are tensors of known type, and nothing in it draws numbers at each turn anew."""
    if node.domain or node.op_type != "If" or len(node.inputs) != 1 or node.inputs[0] is None:
        return False
    branches = [node.attributes.get(name) for name in ("then_branch", "else_branch")]
    if any(item is None or item.is_ref() for item in branches):
        return False
    passing = [*node.outputs, *captured(node)]
    if not all(_is_tensor(value) for value in passing):
        return False
    for item in branches:
        assert item is not None
        graph = item.as_graph()
        if graph.inputs or len(graph.outputs) != len(node.outputs):
            return False
    inner = [item for graph in _graphs(node) for item in graph]
    return all(item.inputs or item.op_type == "Constant" for item in inner)


def _is_tensor(value: ir.Value) -> bool:
    import onnx_ir as ir

    return isinstance(value.type, ir.TensorType) and value.dtype is not None


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
            self._hand_over(output, leave.outputs[0])
        self.graph.insert_before(node, moved)
        let_go(node)
        self.graph.remove(node, safe=True)

    def _take(
        self, body: ir.Graph, region: int, branch: int, name: str
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        """The nodes of a body, those that its values enter by first, and what the body gives."""
        entering = [value for value in _captured_by(body) if not value.is_initializer()]
        markers = []
        for value in entering:
            marker = self._marker("Enter", [value], name, region, branch=branch)
            inside = marker.outputs[0]
            inside.name = f"{value.name}/{name}"
            inside.type, inside.shape = value.type, value.shape
            _replace_in(body, value, inside)
            markers.append(marker)
        initializers = list(body.initializers.values())
        for value in initializers:
            del body.initializers[value.name or ""]
        nodes, outputs = list(body), list(body.outputs)
        forget(body)  # what they declare is as little believed as in the main graph
        body.remove(nodes)
        body.outputs.clear()
        own = [value for inner in nodes for value in inner.outputs if value.name]
        for value in [*initializers, *own]:
            self.names.make_unique(value)
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
        for user, index in list(output.uses()):
            user.replace_input_with(index, result)
        for holder in self.model.graphs():
            replace_output(holder.outputs, output, result)


def _captured_by(body: ir.Graph) -> list[ir.Value]:
    found: dict[ir.Value, None] = {}
    inside = {*body.inputs, *body.initializers.values(), *(value for node in body for value in node.outputs)}
    for node in body:
        used = (*node.inputs, *captured(node))
        found.update((value, None) for value in used if value is not None and value not in inside)
    found.update((value, None) for value in body.outputs if value not in inside)
    return list(found)


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
        {value: None for value in _captured_by(body) if value.is_initializer() and _is_matrix(value)}
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
