"""Shapes of all values, and the small constants behind them.

The onnx library infers most; it loses the thread where a shape is computed in a way it does not follow
(before opset 13 it follows little). A second pass in the order of the nodes then folds what is constant,
follows partly known shape arithmetic (`sharding.graph.shape_values`) and infers again what depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.errors import ModelError
from sharding.graph import body_shapes, contrib_shapes, flow_shapes, node_types, shape_values
from sharding.graph.demanded_lengths import demand
from sharding.graph.fold import evaluate, small_constant
from sharding.graph.open_lengths import refine, refine_inputs
from sharding.graph.symbols import is_made_up, made_up_names
from sharding.graph.values import plain_attribute, replace_by_constant, shape_of, subgraphs
from sharding.onnx_files import walk
from sharding.onnx_files.attributes import integer
from sharding.onnx_files.kinds import declared_shape
from sharding.rewrite.joined_means import join_means
from sharding.rewrite.joined_pieces import join_pieces
from sharding.rewrite.lowering import lower
from sharding.rewrite.merged_axes import take_apart
from sharding.rewrite.simplify import simplify
from sharding.rewrite.unequal_attention import part_unequal
from sharding.rules.base import Dim
from sharding.rules.flow import FLOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx
    import onnx_ir as ir

    from sharding.graph.shape_values import Known

logger = logging.getLogger(__name__)

_COUNTS = range(1, shape_values.MAX_ELEMENTS + 1)


def infer(model: ir.Model, path: Path) -> None:
    """Gives every value of the main graph its best known type and shape; folds constant shape arithmetic."""
    lower(model)
    _infer_all(model, path)
    _Completion(model).run()
    if part_unequal(model):
        _infer_all(model, path)
        _Completion(model).run()


def part_merged_axes(model: ir.Model) -> None:
    """Takes merged axes of an inferred model apart (`rewrite.joined_pieces`, `rewrite.merged_axes`)."""
    opset = model.opset_imports.get("", 1)
    completion = _Completion(model)
    completion.run()
    for _ in range(DEMANDS):
        if not (changed := demand(model.graph)):
            break
        completion = _Completion(model, changed)
        completion.run()
    if joined := join_pieces(model.graph, opset, completion.known_elements):
        completion = _Completion(model, joined)
        completion.run()
    better = take_apart(model.graph, opset, completion.known_elements)
    if better:
        _Completion(model, better).run()
    join_means(model.graph, opset)


def _infer_all(model: ir.Model, path: Path) -> None:
    import onnx
    import onnx_ir as ir

    # Large weights are references by now, so the message is small whatever the model's size.
    try:
        proto = ir.serde.serialize_model(model)
    except Exception as error:  # text that is not UTF-8, for one: only writing it shows
        raise ModelError(f"{path} is not a valid ONNX model: {error}.") from None
    for node in proto.graph.node:
        _forget_in_bodies(node)
        if node.domain == FLOW and node.op_type == "Enter":
            node.domain, node.op_type = "", "Identity"
            del node.attribute[:]
    try:
        # Its own data propagation would allocate whatever length a ConstantOfShape asks for.
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, data_prop=False)
    except Exception as error:  # inference is a help: without it fewer operators can be split
        logger.warning("%s: shapes could not be inferred (%s); fewer operators will be split.", path, error)
        return
    found = {info.name: info.type for info in [*inferred.graph.value_info, *inferred.graph.output]}
    for own in model.graph:
        for value in own.outputs:
            if value.name in found:
                _merge(value, found[value.name])


def _forget_in_bodies(node: onnx.NodeProto) -> None:
    """Takes declared shapes off the bodies of control flow, in the message that inference alone sees.

    What a body is given has the shapes of what is handed to it. The bodies that run keep what they declare:
    the Scan of ONNX Runtime wants the shapes of its outputs.
    """
    for body in walk.graphs_in(*walk.subgraphs(node)):
        held = {tensor.name for tensor in body.initializer}
        for info in [*body.value_info, *body.output, *body.input]:
            if info.name not in held:
                _forget_shape(info.type)


def _forget_shape(kind: onnx.TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which in {"tensor_type", "sparse_tensor_type"}:
        getattr(kind, which).ClearField("shape")
    elif which in {"sequence_type", "optional_type"}:
        _forget_shape(getattr(kind, which).elem_type)


def _merge(value: ir.Value, found: onnx.TypeProto) -> bool:
    """Adds to a value what inference found; returns whether that changed anything.

    Each axis keeps what is more exact: a length, then a symbol, then nothing.
    """
    import onnx_ir as ir

    if not found.HasField("tensor_type"):
        return False
    before = (value.dtype, shape_of(value))
    if value.type is None and found.tensor_type.elem_type:
        value.type = ir.TensorType(ir.DataType(found.tensor_type.elem_type))
    shape = before[1]
    if (axes := declared_shape(found)) is not None:
        if shape is None:
            shape = tuple(axes)
        elif len(shape) == len(axes):
            shape = tuple([_more_exact(a, b) for a, b in zip(shape, axes, strict=True)])
    if shape != before[1] and shape is not None:
        value.shape = ir.Shape(shape)
    return before != (value.dtype, shape)


def _more_exact(a: Dim, b: Dim) -> Dim:
    if a == b:
        return a

    def vagueness(axis: Dim) -> int:
        if axis is None or isinstance(axis, int):
            return 3 if axis is None else 0
        return 2 if is_made_up(axis) else 1

    # Of two made-up names the later one: it was carried here from a value of the same length.
    return min(b, a, key=vagueness) if vagueness(a) == 2 else min(a, b, key=vagueness)


_FOLLOWED = {"INT32", "INT64", "BOOL"}
"""Element types in which shapes are computed."""
DEMANDS = 3
"""How often what later nodes demand is followed back, and forward again."""
_SHAPED = {"ConstantOfShape", "Reshape", "Resize", "Expand", "Range", "Slice", "Tile"}


class _Completion:
    """The second pass over the nodes."""

    def __init__(self, model: ir.Model, changed: Iterable[ir.Value] = ()) -> None:
        self.model, self.graph = model, model.graph
        self.outputs = set(self.graph.outputs)
        self.opsets = model.opset_imports
        self.known: dict[ir.Value, Known] = {}
        self.changed = set(changed)
        self._names = made_up_names(value for node in self.graph for value in node.outputs)

    def run(self) -> None:
        for node in list(self.graph):
            has_body = any(True for _ in subgraphs(node))
            if has_body:
                found: dict[str, onnx.TypeProto] | None = body_shapes.infer(
                    node, self.model, _forget_in_bodies
                )
            elif node.domain == FLOW:
                found = flow_shapes.infer(node)
                if node.op_type == "Enter" and node.inputs[0] in self.known:
                    self.known[node.outputs[0]] = self.known[node.inputs[0]]
            else:
                found = contrib_shapes.infer(node)
            if found is not None:
                self.changed.update(
                    value
                    for value in node.outputs
                    if value.name in found and _merge(value, found[value.name])
                )
            elif not node.domain:
                self._learn(node)
        simplify(self.graph, self.opsets.get("", 1))
        for node in reversed(list(self.graph)):
            if not any(value.uses() or value in self.outputs for value in node.outputs):
                self.graph.remove(node, safe=True)

    def _learn(self, node: ir.Node) -> None:
        """Replaces a node of constant value; learns what one that stays says of its outputs."""
        may_go = len(node.outputs) == 1 and node.outputs[0] not in self.outputs
        tensor = evaluate(node, self.opsets.get("", 1)) if may_go else None
        elements = self._elements(node) if tensor is None and len(node.outputs) == 1 else None
        if may_go and elements is not None:
            tensor = _constant(node.outputs[0], elements)
        if tensor is None:
            self._follow(node, elements)
        else:
            # The bounds of a slice, say: what is cut with them can be inferred now, and could not before.
            self.changed.add(replace_by_constant(self.graph, node.outputs[0], tensor))

    def _elements(self, node: ir.Node) -> Known | None:
        """What is known of a node's output; nothing where its type could not hold it, for then it wraps."""
        import onnx_ir as ir

        elements = self._unbounded_elements(node)
        limit = 1 << (63 if node.outputs[0].dtype == ir.DataType.INT64 else 31)
        if elements is None or not all(
            -limit <= item < limit for item in elements.flat if isinstance(item, int)
        ):
            return None
        return elements

    def _unbounded_elements(self, node: ir.Node) -> Known | None:
        attributes = {
            name: plain_attribute(item) for name, item in node.attributes.items() if not item.is_ref()
        }
        if node.op_type == "Shape":
            shape = shape_of(node.inputs[0])
            end = integer(attributes, "end") if "end" in attributes else None
            part = None if shape is None else shape[integer(attributes, "start", 0) : end]
            return None if part is None else shape_values.known(part)
        if node.op_type == "Size":
            # Of a Shape alone, the number of axes. Other numbers of elements choose branches of ONNX's own
            # functions (AffineGrid) that ONNX Runtime refuses once their shapes are seen.
            source = node.inputs[0].producer() if node.inputs[0] is not None else None
            axes = shape_of(node.inputs[0]) if source is not None and source.op_type == "Shape" else None
            return shape_values.known(axes).reshape(()) if axes is not None and len(axes) == 1 else None
        if node.outputs[0].dtype is not None and node.outputs[0].dtype.name not in _FOLLOWED:
            return None
        known = [self._known_elements(value) for value in node.inputs]
        if node.op_type == "Concat":  # the elements of an input may be unknown while their number is known
            counts = [_vector_length(value) or 0 for value in node.inputs]
            known = [
                np.full(count, None, object) if found is None and count in _COUNTS else found
                for found, count in zip(known, counts, strict=True)
            ]
        return shape_values.evaluate(node.op_type, attributes, known)

    def known_elements(self, value: ir.Value | None) -> Known | None:
        """What is known of a small vector or scalar of whole numbers: numbers and symbols."""
        found = self._known_elements(value)
        if found is None or not any(isinstance(item, shape_values.Above) for item in found.flat):
            return found
        plain = np.empty(found.shape, object)
        plain.reshape(-1)[:] = [None if isinstance(item, shape_values.Above) else item for item in found.flat]
        return plain

    def _known_elements(self, value: ir.Value | None) -> Known | None:
        if value is None:
            return None
        if value in self.known:
            return self.known[value]
        constant = small_constant(value)
        if constant is None or constant.ndim > 1 or value.dtype is None or value.dtype.name not in _FOLLOWED:
            return None
        return shape_values.known(constant)

    def _follow(self, node: ir.Node, elements: Known | None) -> None:
        """Learns what a node that stays says of its outputs; ``elements``: what is known of the only one."""
        if elements is not None:
            self.known[node.outputs[0]] = elements
        self.changed |= refine_inputs(node, self.known_elements)
        vague = node.op_type in _SHAPED or any(
            value.name and (value.shape is None or value.dtype is None) for value in node.outputs
        )
        if vague or any(value in self.changed for value in node.inputs):
            self.changed.update(value for value in node.outputs if self._infer_node(node, value))
        self.changed |= refine(node)
        if elements is None:
            self._name_lengths(node)

    def _name_lengths(self, node: ir.Node) -> None:
        """Makes up names for lengths of which nothing is known, as onnx's inference does for most: so they
        can be followed through products and shape arithmetic."""
        import onnx_ir as ir

        for value in node.outputs:
            shape = shape_of(value)
            if shape is not None and None in shape:
                value.shape = ir.Shape([next(self._names) if axis is None else axis for axis in shape])
                self.changed.add(value)

    def _infer_node(self, node: ir.Node, value: ir.Value) -> bool:
        inferred = self._reshaped(node)
        if inferred is None:
            inferred = node_types.infer(node, self.opsets.get("", 1), self.model.ir_version)
        found = inferred.get(value.name or "")
        return found is not None and _merge(value, found)

    def _reshaped(self, node: ir.Node) -> dict[str, onnx.TypeProto] | None:
        """The output of operators whose shape follows from a partly known value of their second input."""
        import onnx

        source = node.inputs[0] if node.inputs else None
        if source is None or source.dtype is None:
            return None
        if node.op_type not in _SHAPED or node.outputs[0].name is None:
            return None
        if node.op_type == "ConstantOfShape":
            return self._of_lengths(node, source)
        if node.op_type == "Resize":
            whole = not {"axes", "keep_aspect_ratio_policy"}.intersection(node.attributes)
            sizes = node.inputs[3] if whole and len(node.inputs) > 3 else None
            return None if sizes is None else self._of_lengths(node, sizes)
        if len(node.inputs) < 2:
            return None
        axes: Sequence[Dim] | None = None
        target = self.known_elements(node.inputs[1])
        if node.op_type == "Range":
            start, step = self.known_elements(source), self.known_elements(node.inputs[2])
            counts = target is not None and target.ndim == 0 and start == 0 and step == 1
            axes = [target.item()] if counts and target is not None else [None]
            return {node.outputs[0].name: onnx.helper.make_tensor_type_proto(int(source.dtype), axes)}
        if node.op_type == "Slice":
            shape, bounds = shape_of(source), [self.known_elements(value) for value in node.inputs[1:]]
            count = _vector_length(node.inputs[1])
            axes = None if shape is None or count is None else shape_values.slice_target(shape, count, bounds)
            if axes is None:
                return None
            return {node.outputs[0].name: onnx.helper.make_tensor_type_proto(int(source.dtype), axes)}
        if target is None or target.ndim != 1:
            rank = _vector_length(node.inputs[1])
            target = None if rank is None else np.full(rank, None, object)
        if target is None:
            return None
        if node.op_type == "Reshape":
            allow_zero = "allowzero" in node.attributes and bool(node.attributes["allowzero"].value)
            axes = shape_values.reshape_target(shape_of(source), target, allow_zero=allow_zero)
        elif (shape := shape_of(source)) is not None:
            ways = {"Expand": shape_values.expand_target, "Tile": shape_values.tile_target}
            axes = ways[node.op_type](shape, target)
        if axes is None:
            return None
        return {node.outputs[0].name: onnx.helper.make_tensor_type_proto(int(source.dtype), axes)}

    def _of_lengths(self, node: ir.Node, target: ir.Value) -> dict[str, onnx.TypeProto] | None:
        """An output whose lengths are given, some of them as symbols."""
        import onnx

        lengths, dtype = self.known_elements(target), node.outputs[0].dtype
        if lengths is None or lengths.ndim != 1 or dtype is None:
            return None
        if any(isinstance(length, int) and length < 0 for length in lengths):
            return None
        return {node.outputs[0].name or "": onnx.helper.make_tensor_type_proto(int(dtype), lengths.tolist())}


def _constant(output: ir.Value, elements: Known) -> ir.TensorProtocol | None:
    """An output whose elements are all known."""
    import onnx_ir as ir

    if not all(type(item) is int for item in elements.flat):
        return None
    dtype = ir.DataType.INT64 if output.dtype is None else output.dtype
    return ir.Tensor(np.asarray(elements.tolist(), dtype.numpy())) if dtype.is_integer() else None


def _vector_length(value: ir.Value | None) -> int | None:
    shape = shape_of(value)
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None
