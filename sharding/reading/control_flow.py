"""Control flow made plain where it can be, and the weights in bodies brought to the main graph.

An `If` whose condition is known is replaced by the branch that it takes. A weight inside a body becomes one
of the main graph that the body uses from outside: it stays in its file, is stored once, and a plan that keeps
it whole says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sharding.graph.constants import constant_tensor
from sharding.graph.fold import SMALL_ELEMENTS, small_constant
from sharding.graph.values import subgraphs, use_instead, used_instead
from sharding.reading.declared import forget

if TYPE_CHECKING:
    from collections.abc import MutableSequence

    import onnx_ir as ir


def lift_weights(model: ir.Model) -> None:
    """Makes the large constants of control-flow bodies initializers of the main graph.

    Those that a function holds stay: a function sees nothing from outside.
    """
    names = UniqueNames(model)
    for node in model.graph:
        for body in subgraphs(node):
            _lift(model.graph, body, names)


def fold_branches(model: ir.Model) -> bool:
    """Replaces each `If` of the main graph of known condition by its branch; whether there was one."""
    found = [(node, branch) for node in model.graph if (branch := _taken(node)) is not None]
    names = UniqueNames(model) if found else None
    for node, branch in found:
        assert names is not None
        _inline(model, node, branch, names)
    return bool(found)


class UniqueNames:
    """The names of all values of a model, in bodies too: how often each occurs."""

    def __init__(self, model: ir.Model) -> None:
        self.counts: dict[str, int] = {}
        self._add([model.graph], 1)

    def _add(self, graphs: Iterable[ir.Graph], sign: int) -> None:
        for graph in graphs:
            for value in _own_values(graph):
                self.counts[value.name or ""] = self.counts.get(value.name or "", 0) + sign
            for node in graph:
                self._add(subgraphs(node), sign)

    def add(self, value: ir.Value) -> None:
        """Counts a new value, and renames it if another one has its name."""
        self.counts[value.name or ""] = self.counts.get(value.name or "", 0) + 1
        self.make_unique(value)

    def make_unique(self, value: ir.Value) -> None:
        """Renames a value if another one has its name."""
        name = value.name or "value"
        if value.name and self.counts.get(name, 0) <= 1:
            return
        number = 1
        while self.counts.get(f"{name}_{number}"):
            number += 1
        self.counts[value.name or ""] = self.counts.get(value.name or "", 1) - 1
        value.name = f"{name}_{number}"
        self.counts[value.name] = 1


def _own_values(graph: ir.Graph) -> Iterable[ir.Value]:
    initializers = graph.initializers.values()
    yield from graph.inputs
    yield from (value for value in initializers if not value.is_graph_input())
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def _lift(graph: ir.Graph, body: ir.Graph, names: UniqueNames) -> None:
    outputs = set(body.outputs)
    for value in list(body.initializers.values()):
        if value.is_graph_input() or value in outputs or not _is_large(value.const_value):
            continue
        del body.initializers[value.name or ""]
        names.make_unique(value)
        graph.register_initializer(value)
    for node in list(body):
        for inner in subgraphs(node):
            _lift(graph, inner, names)
        tensor = constant_tensor(node)
        if tensor is None or node.outputs[0] in outputs or not _is_large(tensor):
            continue
        value = used_instead(node.outputs[0], tensor)
        body.remove(node, safe=True)
        names.make_unique(value)
        graph.register_initializer(value)


def _is_large(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.dtype.name != "STRING" and tensor.size > SMALL_ELEMENTS


def _taken(node: ir.Node) -> ir.Graph | None:
    """The branch that an `If` takes whatever the inputs; None where that is not known."""
    import onnx_ir as ir

    if node.op_type != "If" or node.domain or len(node.inputs) != 1 or node.inputs[0] is None:
        return None
    condition = small_constant(node.inputs[0])
    attributes = [node.attributes.get(name) for name in ("then_branch", "else_branch")]
    if condition is None or condition.size != 1:
        return None
    chosen = attributes[0 if bool(condition.reshape(-1)[0]) else 1]
    if chosen is None or chosen.is_ref() or chosen.type != ir.AttributeType.GRAPH:
        return None
    branch = chosen.as_graph()
    if len(branch.outputs) != len(node.outputs) or branch.inputs:
        return None
    own = {value for inner in branch for value in inner.outputs}
    named = [value for value in branch.outputs if value in own]
    tensors = all(value.dtype is not None for value in (*branch.outputs, *node.outputs))
    # What the branch does not compute goes through an Identity, which long knew tensors only.
    return branch if tensors or len(set(named)) == len(node.outputs) else None


def take_apart(graph: ir.Graph, names: UniqueNames) -> tuple[list[ir.Value], list[ir.Node], list[ir.Value]]:
    """The initializers, nodes and outputs of a body, which is empty then, under names that nothing else
    has."""
    initializers = list(graph.initializers.values())
    for value in initializers:
        del graph.initializers[value.name or ""]
    nodes, outputs = list(graph), list(graph.outputs)
    forget(graph)  # what they declare is as little believed as in the main graph
    graph.remove(nodes)
    graph.outputs.clear()
    for value in [*initializers, *(value for node in nodes for value in node.outputs if value.name)]:
        names.make_unique(value)
    return initializers, nodes, outputs


def _inline(model: ir.Model, node: ir.Node, branch: ir.Graph, names: UniqueNames) -> None:
    import onnx_ir as ir

    graph = model.graph
    initializers, moved, sources = take_apart(branch, names)
    own = {value for inner in moved for value in inner.outputs if value.name}
    for value in initializers:
        graph.register_initializer(value)
    results = []
    for output, source in zip(node.outputs, sources, strict=True):
        if source in own:
            own.remove(source)
            result = source
            result.name = output.name
            result.type, result.shape = output.type or source.type, output.shape
        else:
            result = ir.Value(name=output.name, type=output.type or source.type, shape=output.shape)
            name = f"{node.name or 'If'}/{output.name}"
            results.append(ir.Node("", "Identity", [source], outputs=[result], name=name))
        use_instead(output, result)
        for holder in model.graphs():
            replace_output(holder.outputs, output, result)
    graph.insert_before(node, [*moved, *results])
    let_go(node)
    graph.remove(node, safe=True)


def let_go(node: ir.Node) -> None:
    """Takes the nodes of the branch that is not taken off the uses of what they read."""
    for body in subgraphs(node):
        for inner in body:
            let_go(inner)
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)


def replace_output(outputs: MutableSequence[ir.Value], old: ir.Value, new: ir.Value) -> None:
    for index, value in enumerate(outputs):
        if value is old:
            outputs[index] = new
