"""A MindIR file to an ONNX model whose weights stay where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.encryption import Key
from sharding.common.text import counted, one_line, shortened
from sharding.errors import ModelError
from sharding.importers.mindir import container, values
from sharding.importers.mindir.biases import with_biases
from sharding.importers.mindir.builder import IR_VERSION
from sharding.importers.mindir.data import Data, Weight
from sharding.importers.mindir.dtypes import ValueProblem
from sharding.importers.mindir.primitives import load
from sharding.importers.mindir.primitives.base import Absent, ComplexValue, RefusedError, TensorType, Value
from sharding.importers.mindir.primitives.complex_numbers import parts_of_array
from sharding.importers.mindir.primitives.operands import Builder
from sharding.importers.mindir.tracing.control import follow
from sharding.importers.mindir.tracing.effects import check_writes
from sharding.importers.mindir.tracing.loops import loop
from sharding.importers.mindir.tracing.outcomes import Traced
from sharding.importers.mindir.tracing.program import Program
from sharding.importers.mindir.tracing.structure import STRUCTURE
from sharding.importers.mindir.tracing.trace import Following, Tracer
from sharding.importers.sniff import RUN_OPSET
from sharding.onnx_files.external import put_place
from sharding.onnx_files.protobuf import INLINE_BYTES
from sharding.onnx_files.walk import mentioned, nodes_in

if TYPE_CHECKING:
    import onnx

    from sharding.common.arrays import DType

_SHOWN = 20
"""Operations without conversion that an error lists."""
_LAYERS = 3


def import_model(path: str | Path, *, key: Key | None = None, opset: int = RUN_OPSET) -> onnx.ModelProto:
    """Reads a MindIR file of version 1 or 3 as ONNX.

    The inputs keep their names, open lengths are symbols, and several results are several outputs in order.
    Weights larger than 4096 bytes are external data: in the MindIR file itself (`IN_MODEL_FILE`) or in its
    ``data_N`` files; of an encrypted file they are in the message.

    Raises `ModelError`: the file cannot be read, is encrypted without a key, of another version or damaged,
    or uses operations that have no conversion (all of them are listed, with the layers where they are used).
    """
    path = Path(path)
    try:
        return _import(path, key, opset)
    except ModelError as error:
        raise ModelError(one_line(str(error))) from None  # names in the file may hold line ends
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not a valid MindIR file: it holds text that is not UTF-8.") from None
    except RefusedError as refused:
        raise ModelError(f"{path} cannot be converted: {refused}.") from None
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply to convert.") from None
    except Exception as error:
        if type(error).__name__ != "DecodeError":  # protobuf's, of a message that is nested too deeply
            raise
        raise ModelError(f"{path} has branches and loops nested too deeply for an ONNX file.") from None


def _import(path: Path, key: Key | None, opset: int) -> onnx.ModelProto:
    load()
    content = container.read(path, key)
    program = Program(content.model, path)
    builder = Builder(opset)
    tracer = Tracer(program, builder, Following(follow, loop, STRUCTURE))
    tracer.version = content.version
    check_writes(tracer)
    inputs = _inputs(tracer)
    weights = _weights(tracer, Data(content))
    outcome = tracer.run_main(inputs)
    results = list(_flat(tracer.finish(outcome)))
    _check_refusals(tracer, path)
    outputs = [_output(builder, item, path) for item in results]
    if not outputs:
        raise ModelError(f"{path} gives no tensor.")
    names = ["output"] if len(outputs) == 1 else [f"output_{number}" for number in range(len(outputs))]
    return _model(builder, content, inputs, list(zip(names, outputs, strict=True)), weights)


def local_name(name: str) -> str:
    """The name that a user gave: without the graph's prefix and the mark of renamed values."""
    return name.partition(":")[2].removeprefix("ф") if ":" in name else name


def _inputs(tracer: Tracer) -> list[Value]:
    path = tracer.program.path
    found = []
    for item in tracer.program.main.message.input:
        what = f"{path}: its input {local_name(item.name)[:80]!r}"
        if len(item.tensor) != 1:
            said = item.denotation or "of no type"
            raise ModelError(f"{what} is no tensor ({said[:40]}): export the network with tensors as inputs.")
        try:
            kind = values.declared(item.tensor[0])
        except ValueProblem as problem:
            raise ModelError(f"{what}: {problem}.") from None
        if kind.dtype.kind == "c":
            raise ModelError(
                f"{what} is of complex numbers, which ONNX Runtime has no inputs of: let the network take "
                "their real and imaginary parts."
            )
        name = tracer.builder.names.fresh(local_name(item.name) or "input")
        found.append(Value(name, kind.dtype, kind.shape))
    return found


def _weights(tracer: Tracer, data: Data) -> dict[str, Weight]:
    """The parameters by the names that they get in ONNX."""
    weights = {}
    for tensor in tracer.program.main.message.parameter:
        weight = data.weight(tensor, local_name(tensor.name))
        if weight.array.dtype.kind == "c":
            tracer.globals[tensor.name] = parts_of_array(tracer.builder, weight.array)
            continue
        name = tracer.builder.names.fresh(weight.name or "weight")
        weights[name] = weight
        tracer.weights.add(name)
        tracer.globals[tensor.name] = Value(name, weight.array.dtype, weight.array.shape, weight.array)
    return weights


def _flat(item: Traced) -> Iterator[Traced]:
    if isinstance(item, tuple):
        for part in item:
            yield from _flat(part)
    else:
        yield item


def _output(builder: Builder, item: Traced, path: Path) -> Value:
    if isinstance(item, ComplexValue):
        raise ModelError(
            f"{path} gives complex numbers, which ONNX Runtime has no outputs of: let the network return "
            "their real and imaginary parts."
        )
    if isinstance(item, (Value, bool, int, float)):
        return builder.value(item)
    if isinstance(item, Absent):
        raise ModelError(
            f"{path} gives a further result of an operation, of which only the first is converted."
        )
    raise ModelError(f"{path} gives {type(item).__name__}; expected tensors.")


def _check_refusals(tracer: Tracer, path: Path) -> None:
    """Raises one `ModelError` for all that has no conversion."""
    refusals = tracer.refusals
    if not refusals:
        return
    lines = []
    for reason, layers in sorted(refusals.items())[:_SHOWN]:
        places = ", ".join(shortened(layer or "?", 100) for layer in layers[:_LAYERS])
        more = f" and {len(layers) - _LAYERS} more" if len(layers) > _LAYERS else ""
        lines.append(f"{shortened(reason, 400)} (in {places}{more})")
    if len(refusals) > _SHOWN:
        lines.append(f"and {len(refusals) - _SHOWN} more")
    raise ModelError(
        f"{path} cannot be converted, for {counted(len(refusals), 'reason')}: " + "; ".join(lines) + "."
    )


def _model(
    builder: Builder,
    content: container.Container,
    inputs: list[Value],
    outputs: list[tuple[str, Value]],
    weights: Mapping[str, Weight],
) -> onnx.ModelProto:
    import onnx

    helper = onnx.helper
    nodes = list(builder.nodes)
    infos = []
    for wanted, value in outputs:
        name = builder.names.fresh(wanted)
        nodes.append(helper.make_node("Identity", [value.name], [name], name=name))
        infos.append(_info(name, TensorType(value.dtype, value.shape)))
    nodes, _ = _live(nodes, [info.name for info in infos])
    nodes = with_biases(nodes, _vectors(builder, weights), [info.name for info in infos])
    nodes, used = _live(nodes, [info.name for info in infos])
    initializers = [item for name, item in builder.initializers.items() if name in used]
    initializers += [_initializer(name, item) for name, item in weights.items() if name in used]
    graph = helper.make_graph(
        nodes,
        content.path.stem.encode(errors="replace").decode() or "model",
        [_info(value.name, TensorType(value.dtype, value.shape)) for value in inputs],
        infos,
        initializers,
    )
    imports = [helper.make_opsetid("", builder.opset)]
    used_domains = {node.domain for node in nodes_in(graph)} - {""}
    imports += [helper.make_opsetid(domain, 1) for domain in sorted(used_domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="shardrun")
    helper.set_model_props(
        model,
        {
            "shardrun.source": content.path.name.encode(errors="replace").decode(),
            "shardrun.source.format": f"MindIR {content.version}",
            "shardrun.source.producer": f"{content.model.producer_name} {content.model.model_version}",
        },
    )
    return model


def _vectors(builder: Builder, weights: Mapping[str, Weight]) -> frozenset[str]:
    """The constants and weights with one axis."""
    own = [name for name, tensor in builder.initializers.items() if len(tensor.dims) == 1]
    return frozenset([*own, *(name for name, weight in weights.items() if weight.array.ndim == 1)])


def _info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    import onnx

    shape: Sequence[int | str | None] | None = kind.shape
    if shape is not None:
        shape = [f"{name}_{axis}" if n is None else n for axis, n in enumerate(shape)]
    return onnx.helper.make_tensor_value_info(name, _element(kind.dtype), shape)


def _element(dtype: DType) -> int:
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def _initializer(name: str, weight: Weight) -> onnx.TensorProto:
    """A weight: its bytes if they are few or nowhere else, otherwise where they lie."""
    import onnx

    tensor = onnx.TensorProto(name=name, data_type=_element(weight.array.dtype), dims=weight.array.shape)
    if weight.location is None or weight.array.nbytes <= INLINE_BYTES:
        tensor.raw_data = weight.array.tobytes()
        return tensor
    put_place(tensor, weight.location, weight.offset, weight.array.nbytes)
    return tensor


def _live(nodes: list[onnx.NodeProto], outputs: Iterable[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that outputs need, in order, and all that these read."""
    used = set(outputs)
    kept = []
    for node in reversed(nodes):
        if used.intersection(node.output):
            kept.append(node)
            used.update(mentioned(node))
    return kept[::-1], used
