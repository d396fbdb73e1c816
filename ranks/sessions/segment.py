"""The segments of a cut model as small ONNX models of their own.

Weights stay where they are: a segment refers only to the external data of the weights that it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from ranks.common.tensors import ELEMENT_TYPES, element_dtype, element_number, is_extended
from ranks.errors import ModelError
from ranks.models import optional
from ranks.sessions.cut import Collective, Control, Cut, Segment
from ranks.sessions.nodes import is_constant, reads
from sharding.onnx_files.messages import AttributeProto, ModelProto, TypeProto, ValueInfoProto, tensor_type
from sharding.slices.domains import OWN_DOMAIN

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

    from sharding.common.arrays import DType

_FLOAT, _STRING = (ELEMENT_TYPES[name][0] for name in ("float", "string"))


class SegmentBuilder:
    """Makes the segments' models, in order.

    The type of a value that crosses a cut is what ONNX Runtime inferred for the segment that produced it,
    completed by what the rank model declares; so ``model`` of a segment follows ``learn`` of those before it.
    Shapes matter here: without them ONNX Runtime leaves out fusions.
    """

    def __init__(self, cut: Cut, size: int) -> None:
        graph = cut.model.graph
        self._cut = cut
        self._size = size
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self._constants = {node.output[0]: node for node in graph.node if is_constant(node)}
        shaped, shared = optional.made_here(cut.model), _shared_symbols(graph)
        self._declared = {
            value.name: _believed(value.type, shared, shaped=shaped)
            for value in [*graph.value_info, *graph.output]
        }
        self._types = {value.name: _without(value.type, shared) for value in graph.input}
        self._named = {value.name: value.type for value in [*graph.input, *graph.output]}
        self._opsets = [opset for opset in cut.model.opset_import if opset.domain != OWN_DOMAIN]

    def model(self, segment: Segment) -> onnx.ModelProto:
        """The segment as a model."""
        source = self._cut.model
        model = ModelProto(ir_version=source.ir_version, producer_name="shardrun")
        model.opset_import.extend(self._opsets)
        model.functions.extend(source.functions)
        graph = model.graph
        graph.name = source.graph.name or "segment"
        wanted = dict.fromkeys(name for node in segment.nodes for name in reads(node))
        for name in wanted | dict.fromkeys(segment.outputs):
            if name in self._initializers:
                graph.initializer.append(self._initializers[name])
            elif name in self._sparse:
                graph.sparse_initializer.append(self._sparse[name])
            elif name in self._constants:
                graph.node.append(self._constants[name])
        graph.node.extend(segment.nodes)
        for name in segment.inputs:
            graph.input.append(ValueInfoProto(name=name, type=self.type_of(name)))
        for name in segment.outputs:
            graph.output.append(ValueInfoProto(name=name, type=self._declared.get(name)))
        outside = {*segment.inputs, *segment.outputs}
        inside = (name for node in segment.nodes for name in node.output)
        for name in inside:
            if name in self._declared and name not in outside:
                graph.value_info.append(ValueInfoProto(name=name, type=self._declared[name]))
        return model

    def widen(self, model: onnx.ModelProto, outputs: Sequence[ort.NodeArg]) -> bool:
        """Has a segment's model that is given strings give float32 in place of what numpy lacks (bfloat16,
        float8): ONNX Runtime takes strings of numpy's in its `run` alone, which gives none of these. Whether
        there was any; ``outputs``: those of its session."""
        odd = {item.name for item in outputs if is_extended(element_dtype(element_number(item.type)))}
        if not odd or all(value.type.tensor_type.elem_type != _STRING for value in model.graph.input):
            return False
        for value in model.graph.output:
            if value.name in odd:
                name = f"shardrun/{value.name}/float32"
                cast = model.graph.node.add(op_type="Cast", input=[value.name], output=[name])
                cast.attribute.add(name="to", type=AttributeProto.INT, i=_FLOAT)
                value.CopyFrom(ValueInfoProto(name=name))
        return True

    def type_of(self, name: str) -> onnx.TypeProto:
        """The type of a value, once what produces it is known."""
        try:
            return self._types[name]
        except KeyError:
            raise ModelError(
                f"The type of {name!r}, which crosses between ranks, cannot be inferred."
            ) from None

    def named(self, name: str) -> onnx.TypeProto:
        """The type of an input or output of the model, its axes called as in the file where it fits."""
        result = TypeProto()
        result.CopyFrom(self.type_of(name))
        axes, said = result.tensor_type.shape.dim, self._named[name].tensor_type.shape.dim
        for axis, other in zip(axes, said, strict=False) if len(axes) == len(said) else ():
            if not axis.HasField("dim_value") and other.HasField("dim_param"):
                axis.CopyFrom(other)
        return result

    def learn(self, outputs: Sequence[ort.NodeArg], collectives: Sequence[Collective]) -> None:
        """Takes the types of a segment's outputs (a session's ``NodeArg`` list) and of what collectives
        make of them."""
        for output in outputs:
            self._types[output.name] = self._merged(output.name, _type_proto(output.type, output.shape))
        for collective in collectives:
            if collective.output:
                found = _recv_type(collective) if collective.input is None else self._passed(collective)
                self._types[collective.output] = self._merged(collective.output, found)

    def learn_given(
        self, control: Control, given: Sequence[Sequence[onnx.TypeProto]]
    ) -> list[tuple[DType, tuple[int, ...]]]:
        """Takes the types of what control flow gives, from those of its bodies' outputs; returns type and
        shape of one element of each stacked output, unknown axes 0."""
        if control.node.op_type == "If":
            kinds = [_either(*pair) for pair in zip(*given, strict=True)]
            count = len(kinds)
        else:
            kinds = list(given[0])[control.node.op_type == "Loop" :]
            count = control.carried
        for name, kind in zip(control.node.output, kinds, strict=False):
            if name:
                kept = TypeProto()
                kept.CopyFrom(kind)
                if control.node.op_type != "If" and kept.HasField("tensor_type"):
                    kept.tensor_type.ClearField("shape")  # other turns may give other lengths
                self._types[name] = self._merged(name, kept)
        return [
            (
                element_dtype(kind.tensor_type.elem_type),
                tuple(max(dim.dim_value, 0) for dim in kind.tensor_type.shape.dim),
            )
            for kind in kinds[count:]
        ]

    def _passed(self, collective: Collective) -> onnx.TypeProto:
        assert collective.input
        source = self.type_of(collective.input)
        if not source.HasField("tensor_type"):
            raise ModelError(
                f"{collective.op} of {collective.input!r}: collectives take tensors, but this is a sequence, "
                "map or optional value."
            )
        result = TypeProto()
        result.CopyFrom(source)
        if collective.op == "AllGather" and source.tensor_type.HasField("shape"):
            dims = result.tensor_type.shape.dim
            axis = collective.attributes["axis"]
            if not -len(dims) <= axis < len(dims):
                raise ModelError(
                    f"AllGather of {collective.input!r} has axis {axis}, but the value has {len(dims)} axes."
                )
            known = dims[axis].dim_value if dims[axis].HasField("dim_value") else None
            dims[axis].Clear()
            if known is not None:
                dims[axis].dim_value = known * self._size
        return result

    def _merged(self, name: str, inferred: onnx.TypeProto) -> onnx.TypeProto:
        """The inferred type with unknown axes filled in from the model's declaration."""
        declared = self._declared.get(name)
        if declared is None or not declared.tensor_type.HasField("shape"):
            return inferred
        if not inferred.tensor_type.HasField("shape"):
            inferred.tensor_type.shape.CopyFrom(declared.tensor_type.shape)
        ours, theirs = inferred.tensor_type.shape.dim, declared.tensor_type.shape.dim
        if len(ours) == len(theirs):
            for dim, known in zip(ours, theirs, strict=True):
                if not dim.HasField("dim_value") and known.WhichOneof("value"):
                    dim.CopyFrom(known)
        return inferred


def _shared_symbols(graph: onnx.GraphProto) -> frozenset[str]:
    """Symbols of more than one axis of the inputs. ONNX Runtime's optimizers take such axes to be of one
    length, though nothing holds them to it."""
    symbols = Counter(dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim)
    return frozenset(symbol for symbol, count in symbols.items() if symbol and count > 1)


def _without(declared: onnx.TypeProto, symbols: Set[str]) -> onnx.TypeProto:
    result = TypeProto()
    result.CopyFrom(declared)
    for dim in result.tensor_type.shape.dim if result.tensor_type.HasField("shape") else ():
        if dim.dim_param in symbols:
            dim.Clear()
    return result


def _believed(declared: onnx.TypeProto, shared: Set[str], *, shaped: bool) -> onnx.TypeProto:
    """A declared type without lengths and ``shared`` symbols; unless ``shaped``, also without the number of
    axes.

    Exporters declare wrong axes and lengths of values and outputs. ONNX Runtime only warns of that, but it
    would insist on them where the value is a later segment's input, or an output that lies in a buffer. The
    lengths that matter are inferred from the weights anyway. The axes in rank models that slicing wrote were
    inferred; in other files they are only what the exporter says.
    """
    result = _without(declared, shared)
    if result.HasField("tensor_type") and not shaped:
        result.tensor_type.ClearField("shape")
    for dim in result.tensor_type.shape.dim if result.tensor_type.HasField("shape") else ():
        if dim.HasField("dim_value"):
            dim.Clear()
    return result


def _either(a: onnx.TypeProto, b: onnx.TypeProto) -> onnx.TypeProto:
    """What holds of a value that is of one of these types."""
    result = TypeProto()
    result.CopyFrom(a)
    ours, theirs = result.tensor_type.shape.dim, b.tensor_type.shape.dim
    if len(ours) != len(theirs) or not b.tensor_type.HasField("shape"):
        result.tensor_type.ClearField("shape")
    else:
        for dim, other in zip(ours, theirs, strict=True):
            if dim != other:
                dim.Clear()
    return result


def _recv_type(collective: Collective) -> onnx.TypeProto:
    # A length of an announced value is the file's word (see `_believed`); any may come.
    fixed = not collective.attributes["announce"]
    shape: list[int | str | None] = [dim if fixed else None for dim in collective.attributes["shape"]]
    return tensor_type(collective.attributes["dtype"], shape)


def _type_proto(ort_type: str, shape: Sequence[int | str | None]) -> onnx.TypeProto:
    """ONNX Runtime's ``seq(tensor(float))`` and shape as a ``TypeProto``."""
    result = TypeProto()
    if ort_type.startswith("seq("):
        result.sequence_type.elem_type.CopyFrom(_type_proto(ort_type[4:-1], ()))
        return result
    if ort_type.startswith("optional("):
        result.optional_type.elem_type.CopyFrom(_type_proto(ort_type[9:-1], ()))
        return result
    number = element_number(ort_type)
    if number is None:
        raise ModelError(f"A value of type {ort_type} cannot cross between ranks.")
    result.tensor_type.elem_type = number
    if shape is not None and ort_type.startswith("tensor("):
        return tensor_type(number, shape) if shape else result
    return result
