"""Small helpers on `onnx_ir` values and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

from sharding.rules.base import Dim
from sharding.rules.flow import FLOW

if TYPE_CHECKING:
    import onnx_ir as ir


def shape_of(value: ir.Value | None) -> tuple[Dim, ...] | None:
    """A value's shape: lengths, symbols, None for an unknown axis; None where the rank is unknown."""
    shape = None if value is None else value.shape
    if shape is None:
        return None
    return tuple([axis if isinstance(axis, int) else axis.value for axis in shape.dims])


def plain_attribute(attribute: ir.Attr) -> object:
    """An attribute as a plain Python value; tensors as numpy arrays."""
    import onnx_ir as ir

    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy()
    if attribute.type == ir.AttributeType.INT:
        return int(value)
    return list(value) if isinstance(value, list | tuple) else value


def integer_of(node: ir.Node, name: str, default: int = 0) -> int:
    """An attribute that is a whole number."""
    value = node.attributes[name].value if name in node.attributes else default
    return value if isinstance(value, int) else default


def onnx_attributes(plain: Mapping[str, object]) -> list[ir.Attr]:
    """Plain Python values and tensors as attributes; raises what `onnx_ir` does for other values."""
    import onnx_ir as ir

    return ir.convenience.convert_attributes(cast("Mapping[str, int]", plain))  # of the kinds that it takes


def bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs in a node's attributes, with the attributes' names."""
    if not node.attributes:
        return
    import onnx_ir as ir

    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from ((name, graph) for graph in attribute.as_graphs())


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs in a node's attributes."""
    for _, graph in bodies(node):
        yield graph


def in_turn(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Nodes in order, each followed by those of the graphs in it."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from in_turn(graph)


def captured(node: ir.Node) -> tuple[ir.Value, ...]:
    """The values from outside that the subgraphs of a control-flow node use, each once."""
    return captured_by(*subgraphs(node))


def captured_by(*graphs: ir.Graph) -> tuple[ir.Value, ...]:
    """The values from outside that graphs use, each once."""
    found: dict[ir.Value, None] = {}
    for graph in graphs:
        _collect_outer(graph, set(), found)
    return tuple(found)


def _collect_outer(graph: ir.Graph, known: set[ir.Value], found: dict[ir.Value, None]) -> None:
    inside = known | set(graph.inputs) | set(graph.initializers.values())
    for node in graph:
        inside.update(node.outputs)
    for node in graph:
        found.update((value, None) for value in node.inputs if value is not None and value not in inside)
        for inner in subgraphs(node):
            _collect_outer(inner, inside, found)
    found.update((value, None) for value in graph.outputs if value not in inside)


def captured_names(node: ir.Node) -> set[str]:
    """Names that a node's subgraphs mention: among them those of the outer values they use."""
    names: set[str] = set()
    for graph in subgraphs(node):
        names.update(value.name or "" for value in graph.outputs)
        for inner in graph:
            names.update(value.name or "" for value in inner.inputs if value is not None)
            names |= captured_names(inner)
    return names


def initializer(name: str | None, tensor: ir.TensorProtocol, graph: ir.Graph | None = None) -> ir.Value:
    """A constant, which a graph has from now on."""
    import onnx_ir as ir

    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    made: ir.Value = ir.Value(name=name, type=kind, shape=shape, const_value=tensor)
    if graph is not None:
        graph.register_initializer(made)
    return made


def use_instead(old: ir.Value, new: ir.Value) -> None:
    """Lets every node that uses a value use another one."""
    for user, index in list(old.uses()):
        user.replace_input_with(index, new)


def used_instead(value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    """A constant of the same name, which every node that used ``value`` uses from now on."""
    constant = initializer(value.name, tensor)
    use_instead(value, constant)
    return constant


def shown_node(node: ir.Node) -> str:
    """A node as errors name it; what stands for control flow in an opened graph as that."""
    if node.domain == FLOW:
        return f"the control flow {node.attributes['name'].as_string()!r}"
    return f"{node.op_type} {node.name!r}"


def replace_by_constant(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    """Turns the only output of a node into an initializer of the same name, which is returned, and removes
    the node."""
    node = value.producer()
    assert node is not None
    constant = used_instead(value, tensor)
    graph.remove(node, safe=True)
    graph.register_initializer(constant)
    return constant
