"""Builds the ONNX graph: nodes with the types of what they give, constants, names that nothing has yet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from sharding.common.arrays import ArrayLike, DTypeLike
from sharding.common.names import Names
from sharding.importers.mindir.doubles import written
from sharding.importers.mindir.folding import FOLDED, is_small, may_fold
from sharding.importers.mindir.kernels import from_front, substitute
from sharding.importers.mindir.onnx_types import (
    described,
    from_type_proto,
    type_proto,
    typed_info,
    value_info,
)
from sharding.importers.mindir.primitives.base import ComplexValue, Operand, RefusedError, TensorType, Value
from sharding.importers.sniff import RUN_OPSET
from sharding.onnx_files.nodes import make_node
from sharding.onnx_files.walk import subgraphs
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from sharding.common.arrays import Array

IR_VERSION = 9
MOST = 1 << 28
"""Elements of each result on the way to a constant that is computed while converting."""


class GraphBuilder:
    """The graph under construction. Nodes go to the innermost open body; constants to the main graph."""

    def __init__(self, opset: int = RUN_OPSET) -> None:
        import onnx

        self.opset = opset
        self.names = Names()
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.layer = ""
        """Names what is added: the layer of the node that is converted."""
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._producers: dict[str, tuple[NodeProto, list[Value | None]]] = {}
        self._imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(MICROSOFT, 1)]

    # Nodes

    def op(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        attributes: Mapping[str, object] | None = None,
        *,
        domain: str = "",
        types: Sequence[TensorType] | None = None,
    ) -> Value:
        """Adds a node with one result, and returns that; see `ops`."""
        return self.ops(op_type, inputs, attributes, outputs=1, domain=domain, types=types)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        attributes: Mapping[str, object] | None = None,
        *,
        outputs: int,
        domain: str = "",
        types: Sequence[TensorType] | None = None,
    ) -> list[Value]:
        """Adds a node and returns its results.

        ``inputs`` may hold None (left out), and Python's numbers and tuples of integers, which become
        constants; a number takes the type of the first tensor for an operator whose inputs have one type.
        Attributes that are None are left out. ``types`` are needed where ONNX has no rules for the operator
        (another ``domain``). Raises `RefusedError` where ONNX's rules do not allow such inputs.
        """
        values = self._values(op_type, inputs, domain)
        values, attributes = from_front(self.const, op_type, values, attributes or {})
        if not domain and (form := written(self, op_type, values, attributes)) is not None:
            return [form]
        if not domain and (change := substitute(op_type, values, attributes)) is not None:
            lacking, other, place = change
            rest = [
                self.cast(item, other) if item and item.dtype == lacking else item for item in values[place:]
            ]
            widened = self.ops(op_type, [*values[:place], *rest], attributes, outputs=outputs)
            return [self.cast(item, lacking) if item.dtype == other else item for item in widened]
        names = [self.fresh(op_type) for _ in range(outputs)]
        node = make_node(
            op_type,
            [value.name if value is not None else "" for value in values],
            names,
            attributes,
            name=names[0],
            domain=domain,
        )
        found = list(types) if types is not None else self._infer(node, values)
        results = [Value(name, item.dtype, item.shape) for name, item in zip(names, found, strict=True)]
        self.nodes.append(node)
        for result in results:
            self._producers[result.name] = (node, values)
        if not domain and is_small(op_type, values, results):
            results = self._folded(node, results)
        return results

    def add(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        results: Sequence[Value],
        attributes: Mapping[str, object],
        *,
        at: int | None = None,
    ) -> None:
        """Adds a node whose results were made before; ``at``: its place among the body's nodes."""
        node = make_node(
            op_type,
            [value.name if value is not None else "" for value in inputs],
            [result.name for result in results],
            attributes,
            name=self.fresh(op_type),
        )
        self.nodes.insert(len(self.nodes) if at is None else at, node)

    def fresh(self, kind: str) -> str:
        """A name that nothing has yet, from the layer."""
        return self.names.fresh(f"{self.layer}/{kind}" if self.layer else kind)

    def _values(self, op_type: str, inputs: Sequence[Operand], domain: str) -> list[Value | None]:
        like = next((item.dtype for item in inputs if isinstance(item, Value)), None)
        if domain or op_type not in _ONE_TYPE:
            like = None
        return [None if item is None else self.value(item, like) for item in inputs]

    def _infer(self, node: NodeProto, values: Sequence[Value | None]) -> list[TensorType]:
        import onnx

        schema = onnx.defs.get_schema(node.op_type, self.opset, node.domain)
        types = {value.name: type_proto(value) for value in values if value is not None}
        data = {
            value.name: onnx.numpy_helper.from_array(value.constant)
            for value in values
            if value is not None and value.constant is not None and value.constant.size <= FOLDED
        }
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self._imports, ir_version=IR_VERSION
            )
            return [from_type_proto(found[name]) for name in node.output]
        except Exception as error:  # onnx raises its own, ValueError, KeyError, ...
            shapes = ", ".join(described(value) for value in values if value is not None)
            reason = " ".join(str(error).split())[:300]
            raise RefusedError(
                f"its operands do not fit ONNX's {node.op_type} ({shapes}): {reason}"
            ) from None

    # Constants

    def const(self, data: ArrayLike, dtype: DTypeLike | None = None) -> Value:
        """A constant tensor; equal ones are one."""
        import onnx

        array = np.ascontiguousarray(np.asarray(data, dtype)).reshape(np.shape(data))
        key = (str(array.dtype), array.shape, array.tobytes())
        if (known := self._constants.get(key)) is None:
            name = self.names.fresh("constant")
            self.initializers[name] = onnx.numpy_helper.from_array(array, name)
            known = self._constants[key] = Value(name, array.dtype, array.shape, array)
        return known

    def value(self, operand: Operand, dtype: DTypeLike | None = None) -> Value:
        """An operand as a tensor: numbers become constants of ``dtype`` (default: bool, int64, float32), and
        tuples of integers, known or not, int64 tensors with one axis."""
        if isinstance(operand, ComplexValue):
            raise RefusedError("complex numbers have no conversion here")
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, tuple):
            return self.ints(operand) if dtype is None else self.cast(self.ints(operand), dtype)
        if operand is None or isinstance(operand, str):
            raise RefusedError(f"expected a tensor or a number, found {operand!r}")
        kind = bool if isinstance(operand, bool) else np.int64 if isinstance(operand, int) else np.float32
        try:
            return self.const(np.asarray(operand, kind if dtype is None else dtype))
        except (OverflowError, ValueError) as error:
            raise RefusedError(f"the number {operand!r} does not fit: {error}") from None

    def ints(self, operand: Operand) -> Value:
        """Integers as an int64 tensor with one axis: of a number, a tuple, or a tensor of integers."""
        if isinstance(operand, Value):
            flat = operand if operand.rank == 1 else self.op("Reshape", [operand, self.const([-1], np.int64)])
            return self.cast(flat, np.int64)
        items = operand if isinstance(operand, tuple) else (operand,)
        if any(isinstance(item, (tuple, str, float, type(None))) for item in items):
            raise RefusedError(f"expected integers, found {operand!r:.80}")
        if not any(isinstance(item, Value) for item in items):
            try:
                return self.const(np.array(items, np.int64))
            except OverflowError:
                raise RefusedError(f"{operand!r:.80} is beyond 64-bit integers") from None
        parts = [self.ints(item) for item in items]
        return self.op("Concat", parts, {"axis": 0}) if len(parts) > 1 else parts[0]

    def known_ints(self, operand: Operand) -> tuple[int, ...] | None:
        """Integers that are known while converting: of a number, a tuple or a constant tensor; else None."""
        if isinstance(operand, Value):
            found = operand.constant
            if found is None or found.dtype.kind not in "iub" or found.size > FOLDED:
                return None
            return tuple(int(item) for item in found.reshape(-1))
        items = operand if isinstance(operand, tuple) else (operand,)
        result: list[int] = []
        for item in items:
            if isinstance(item, (int, np.integer)):
                result.append(int(item))
            elif isinstance(item, Value) and (inner := self.known_ints(item)) is not None:
                result.extend(inner)
            else:
                return None
        return tuple(result)

    def evaluate(self, value: Value) -> Array | None:
        """What a value holds, computed from constants and weights alone; None where inputs decide it."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        if value.constant is not None:
            return value.constant
        nodes: dict[str, NodeProto] = {}
        leaves: dict[str, Array] = {}
        waiting = [value]
        while waiting:
            current = waiting.pop()
            if current.constant is not None:
                leaves[current.name] = current.constant
                continue
            if current.name not in self._producers:
                return None
            node, inputs = self._producers[current.name]
            if any(True for _ in subgraphs(node)):
                return None
            if current.shape is None or math.prod(n if n is not None else MOST for n in current.shape) > MOST:
                raise RefusedError("constants that it is computed from are too large")
            if node.output[0] not in nodes:
                nodes[node.output[0]] = node
                waiting.extend(item for item in inputs if item is not None)
        order = list(_ordered(nodes, self._producers))
        graph = onnx.helper.make_graph(
            order,
            "constants",
            [value_info(name, array) for name, array in leaves.items()],
            [onnx.helper.make_empty_tensor_value_info(value.name)],
        )
        model = onnx.helper.make_model(graph, opset_imports=self._imports, ir_version=IR_VERSION)
        try:
            (result,) = ReferenceEvaluator(model).run(None, leaves)
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            raise RefusedError(f"constants cannot be computed: {why}") from None
        value.constant = np.asarray(result)
        return value.constant

    def _folded(self, node: NodeProto, results: list[Value]) -> list[Value]:
        """The results as constants; the node is taken back."""
        try:
            arrays = [self.evaluate(result) for result in results]
        except RefusedError:
            return results
        known = [array for array in arrays if array is not None]
        if len(known) < len(arrays):
            return results
        assert self.nodes.pop() is node
        return [self.const(array) for array in known]

    # What is wanted often

    def cast(self, x: Operand, dtype: DTypeLike) -> Value:
        """The value with another element type; itself where it has that type."""
        import onnx

        wanted = np.dtype(dtype)
        value = self.value(x)
        if value.dtype == wanted:
            return value
        if value.constant is not None and may_fold(value.constant) and wanted.kind in "iubf":
            with np.errstate(all="ignore"):
                return self.const(value.constant.astype(wanted))
        return self.op("Cast", [value], {"to": onnx.helper.np_dtype_to_tensor_dtype(wanted)})

    def reshape(self, x: Value, shape: Operand) -> Value:
        """Another shape, in integers known or not; -1 is what is left. A 0 is a length of 0, and leaves 0."""
        known = self.known_ints(shape)
        if known is not None and 0 in known and -1 in known:  # which ONNX refuses
            known = shape = tuple(max(length, 0) for length in known)
        allow = 1 if known is not None and 0 in known else None
        result = self.op("Reshape", [x, self.ints(shape)], {"allowzero": allow})
        if result.constant is None and isinstance(shape, tuple):
            lengths = [item if isinstance(item, int) and item >= 0 else None for item in shape]
            found = result.shape or (None,) * len(shape)
            result.shape = tuple(a if a is not None else b for a, b in zip(lengths, found, strict=True))
        return result

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Axes in another order."""
        if list(perm) == list(range(len(perm))):
            return x
        return self.op("Transpose", [x], {"perm": list(perm)})

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """New axes of length 1 at these places of the result."""
        return self.op("Unsqueeze", [x, self.const(list(axes), np.int64)]) if axes else x

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Without these axes of length 1."""
        return self.op("Squeeze", [x, self.const(list(axes), np.int64)]) if axes else x

    def dim(self, x: Value, axis: int) -> int | Value:
        """One length: a number, or an int64 value without axes."""
        length = x.shape[axis] if x.shape is not None else None
        if length is not None:
            return length
        shape = self.op("Shape", [x])
        return self.op("Gather", [shape, self.const(axis, np.int64)], {"axis": 0})

    def shape_of(self, x: Value) -> tuple[int | Value, ...] | Value:
        """All lengths; a `Value` with ``sequence`` where their number is not known."""
        if x.shape is not None:
            return tuple(self.dim(x, axis) for axis in range(len(x.shape)))
        shape = self.op("Shape", [x])
        shape.sequence = True
        return shape

    def lengths(self, x: Value) -> tuple[int | Value, ...]:
        """All lengths of a tensor whose number of axes is known."""
        found = self.shape_of(x)
        assert isinstance(found, tuple)
        return found

    def axis(self, axis: int, x: Value) -> int:
        """An axis counted from the front. Raises `RefusedError` where there is no such axis."""
        if x.shape is None:
            return axis
        if not -len(x.shape) <= axis < len(x.shape):
            raise RefusedError(f"axis {axis} is none of a tensor with {len(x.shape)} axes")
        return axis % len(x.shape)

    # Bodies

    @contextmanager
    def body(self, nodes: list[NodeProto] | None = None) -> Iterator[list[NodeProto]]:
        """Collects the nodes that are added inside, behind these; they may read what was added before."""
        outer, self.nodes = self.nodes, [] if nodes is None else nodes
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def graph(
        self, nodes: list[NodeProto], name: str, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> GraphProto:
        """A body as a graph; an output that is made outside goes through an Identity."""
        import onnx

        made = {item for node in nodes for item in node.output}
        names = []
        for output in outputs:
            if output.name in made and output.name not in names:
                names.append(output.name)
                continue
            copy = self.names.fresh(f"{output.name}/copy")
            nodes.append(onnx.helper.make_node("Identity", [output.name], [copy], name=copy))
            names.append(copy)
        results = [typed_info(name, one.dtype, one.shape) for name, one in zip(names, outputs, strict=True)]
        wanted = [typed_info(item.name, item.dtype, item.shape) for item in inputs]
        return onnx.helper.make_graph(nodes, name, wanted, results)


_ONE_TYPE = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "PRelu", "And", "Or", "Xor",
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Clip", "MatMul", "Concat",
})  # fmt: skip
"""Operators whose inputs all have one type."""


def _ordered(
    nodes: Mapping[str, NodeProto], producers: Mapping[str, tuple[NodeProto, list[Value | None]]]
) -> Iterator[NodeProto]:
    """The nodes in the order in which they were added."""
    position = {node.output[0]: index for index, (node, _) in enumerate(producers.values())}
    return iter(sorted(nodes.values(), key=lambda node: position[node.output[0]]))
