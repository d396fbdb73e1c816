"""Shapes of the outputs of nodes with bodies (If, Loop, Scan), from what is known of the values they use.

onnx's inference says nothing about the values that a Loop carries from turn to turn, for the body may change
their shapes. Here shapes are inferred through the body. If it returns a value in the shape that it was given,
the shape holds after any number of turns, and after none. If it changes an axis, that axis is open, and the
body is inferred again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph import contrib_shapes
from sharding.graph.flow_shapes import joined
from sharding.graph.fold import small_constant
from sharding.graph.values import captured, shape_of
from sharding.onnx_files import walk
from sharding.onnx_files.kinds import declared_shape

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

DEPTH = 4
"""How many bodies within bodies are gone through: each costs twice what the one around it does, or more."""
Types = dict[str, "onnx.TypeProto"]
logger = logging.getLogger(__name__)


def infer(node: ir.Node, model: ir.Model, forget: Callable[[onnx.NodeProto], None]) -> Types:
    """The types of a node's outputs by name, those of which nothing is found left out.

    ``forget`` takes off the node's message what its bodies declare of shapes.
    """
    import onnx_ir as ir

    if node.domain or all(shape_of(value) is not None for value in node.outputs):
        return {}
    used = [value for value in (*node.inputs, *captured(node)) if value is not None and value.name]
    if any(value.dtype is None for value in used):  # a sequence, say
        return {}
    try:
        message = ir.serde.serialize_node(node)
        forget(message)
        asked = _Question(model.opset_imports, used)
        return asked.loop(message) if node.op_type == "Loop" else asked.node(message)
    except Exception as error:  # inference is a help: what it cannot do stays unknown
        logger.debug("%s: %s", node.name, error)
        return {}


class _Question:
    """The values that a node uses, as the inputs and constants of a small model."""

    def __init__(self, opsets: Mapping[str, int], used: Iterable[ir.Value] = (), depth: int = 0) -> None:
        import onnx

        helper = onnx.helper
        self.versions = opsets
        self.depth = depth
        self.opsets = [helper.make_opsetid(*item) for item in opsets.items()]
        self.inputs: Types = {}
        self.constants: dict[str, onnx.TensorProto] = {}
        for value in dict.fromkeys(used):
            name = value.name or ""
            constant = small_constant(value)
            if constant is None:
                self.inputs[name] = helper.make_tensor_type_proto(int(value.dtype or 0), shape_of(value))
            else:
                self.constants[name] = onnx.numpy_helper.from_array(np.asarray(constant), name)

    def node(self, message: onnx.NodeProto) -> Types:
        return self._ask([message], list(message.output), {})

    def loop(self, message: onnx.NodeProto) -> Types:
        """The carried values first, then what is stacked turn by turn."""
        import onnx

        body = next(item.g for item in message.attribute if item.name == "body")
        names = [value.name for value in body.input]
        first = [self._type(name) for name in message.input[2:]]
        if len(first) != len(names) - 2 or not all(kind.tensor_type.elem_type for kind in first):
            return {}
        make = onnx.helper.make_tensor_type_proto
        shapes = [declared_shape(kind) for kind in first]
        kinds = [kind.tensor_type.elem_type for kind in first]
        given = {names[0]: make(onnx.TensorProto.INT64, []), names[1]: make(onnx.TensorProto.BOOL, [])}
        results = [value.name for value in body.output][1:]
        for tensor in body.initializer:
            self.constants[tensor.name] = tensor
        while True:
            given |= {
                name: make(kind, shape) for name, kind, shape in zip(names[2:], kinds, shapes, strict=True)
            }
            found = self._ask(body.node, results, given)
            after = [declared_shape(found.get(name)) for name in results]
            common = [joined(a, b) for a, b in zip(shapes, after, strict=False)]
            if common == shapes:
                break
            shapes = common
        types = {}
        for output, kind, shape in zip(message.output, kinds, shapes, strict=False):
            if shape is not None:
                types[output] = make(kind, shape)
        for output, name, shape in zip(
            message.output[len(first) :], results[len(first) :], after[len(first) :], strict=True
        ):
            if shape is not None:
                types[output] = make(found[name].tensor_type.elem_type, [None, *shape])
        return types

    def _ask(self, nodes: Iterable[onnx.NodeProto], wanted: list[str], more: Types) -> Types:
        given, nodes = {**self.inputs, **more}, list(nodes)
        types = self._inferred(nodes, wanted, given, {})
        found: Types = {}
        asked_with: dict[int, set[str]] = {}
        while True:  # behind each of what is found here onnx's inference goes on
            fresh = {**_of_contrib(nodes, types), **self._of_bodies(nodes, types, asked_with)}
            if fresh.keys() <= found.keys():
                fresh = self._of_bodies(nodes, types, asked_with, wait=False)
            if fresh.keys() <= found.keys():
                break
            found |= fresh
            types = self._inferred(nodes, wanted, given, found)
        symbols = {
            axis for kind in given.values() for axis in declared_shape(kind) or () if isinstance(axis, str)
        }
        asked = {name: types[name] for name in wanted if name in types}
        for kind in asked.values():
            for axis in kind.tensor_type.shape.dim:
                # A name made up here could be another value's in the model.
                if axis.HasField("dim_param") and axis.dim_param not in symbols:
                    axis.Clear()
        return asked

    def _of_bodies(
        self, nodes: list[onnx.NodeProto], types: Types, asked_with: dict[int, set[str]], wait: bool = True
    ) -> Types:
        """The types of what control flow inside the body gives, those known already left out.

        A node waits as long as nodes before it may give it more. ``asked_with`` has what each, by its place,
        did not know when it was asked: with no more than that it gives no more.
        """
        found: Types = {}
        unknown_of = [
            {n for n in proto.output if n and declared_shape(types.get(n)) is None} for proto in nodes
        ]
        still_open = set().union(*unknown_of)
        for place, (proto, unknown) in enumerate(zip(nodes, unknown_of, strict=True)):
            if not unknown or proto.domain or proto.op_type not in {"If", "Loop"} or self.depth >= DEPTH:
                continue
            missing = still_open.intersection(walk.mentioned(proto))
            if (wait and missing) or asked_with.get(place) == missing:
                continue
            if proto.op_type == "Loop" and any(declared_shape(types.get(n)) is None for n in proto.input[2:]):
                continue  # not yet known, or never
            asked_with[place] = missing
            inner = self._within(types, self.depth + 1)
            try:
                made = inner.loop(proto) if proto.op_type == "Loop" else inner._branches(proto)
            except Exception as error:  # what is found of the others still holds
                logger.debug("%s: %s", proto.name, error)
                continue
            found |= {name: kind for name, kind in made.items() if name in unknown}
        return found

    def _within(self, types: Types, depth: int) -> _Question:
        """The question for a body that may use values of these types."""
        inner = _Question(self.versions, depth=depth)
        inner.inputs = {name: kind for name, kind in types.items() if name not in self.constants}
        inner.constants = dict(self.constants)
        return inner

    def _branches(self, message: onnx.NodeProto) -> Types:
        """What both branches of an If give alike."""
        import onnx

        ways = []
        for body in (item.g for item in message.attribute):
            way = self._within(self.inputs, self.depth)
            way.constants |= {tensor.name: tensor for tensor in body.initializer}
            names = [value.name for value in body.output]
            found = way._ask(body.node, names, {})
            ways.append([found.get(name, onnx.TypeProto()) for name in names])
        types = {}
        for output, a, b in zip(message.output, *ways, strict=True):
            shape = joined(declared_shape(a), declared_shape(b))
            if shape is not None:
                types[output] = onnx.helper.make_tensor_type_proto(a.tensor_type.elem_type, shape)
        return types

    def _type(self, name: str) -> onnx.TypeProto:
        import onnx

        tensor = self.constants.get(name)
        if tensor is None:
            return self.inputs.get(name) or onnx.TypeProto()
        return onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))

    def _inferred(self, nodes: list[onnx.NodeProto], wanted: list[str], given: Types, inner: Types) -> Types:
        """The types of all values, by onnx's inference; ``inner``: those known of what nodes give."""
        import onnx

        helper = onnx.helper
        graph = helper.make_graph(
            nodes,
            "asked",
            [helper.make_value_info(name, kind) for name, kind in given.items()],
            [onnx.ValueInfoProto(name=name) for name in wanted if name not in given and name not in inner],
            list(self.constants.values()),
            value_info=[helper.make_value_info(name, kind) for name, kind in inner.items()],
        )
        asked = helper.make_model(graph, opset_imports=self.opsets)
        inferred = onnx.shape_inference.infer_shapes(asked, check_type=False, data_prop=False).graph
        types = {name: self._type(name) for name in self.constants}
        for info in [*inferred.input, *inferred.value_info, *inferred.output]:
            if info.type.WhichOneof("value") is not None:
                types[info.name] = info.type
        return types


def _of_contrib(nodes: Iterable[onnx.NodeProto], types: Types) -> Types:
    """The types of what operators of other domains give, where they are found and not among ``types``."""
    import onnx_ir as ir

    found: Types = {}
    for proto in nodes:
        if not proto.domain or all(
            declared_shape(types.get(name)) is not None for name in proto.output if name
        ):
            continue
        node = ir.Node(
            proto.domain,
            proto.op_type,
            [_value(name, types.get(name)) for name in proto.input],
            [ir.serde.deserialize_attribute(item) for item in proto.attribute],
            outputs=[_value(name, None) or ir.Value() for name in proto.output],
        )
        made = contrib_shapes.infer(node) or {}
        found |= {
            name: kind
            for name, kind in made.items()
            if name and declared_shape(kind) and not declared_shape(types.get(name))
        }
    return found


def _value(name: str, kind: onnx.TypeProto | None) -> ir.Value | None:
    import onnx_ir as ir

    if not name or kind is None or not kind.HasField("tensor_type"):
        return ir.Value(name=name) if name else None
    axes = declared_shape(kind)
    shape = None if axes is None else ir.Shape(axes)
    return ir.Value(name=name, type=ir.TensorType(ir.DataType(kind.tensor_type.elem_type)), shape=shape)
