"""Other names for the inputs and outputs of an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sharding.common.text import counted, shortened
from sharding.errors import OptionError
from sharding.onnx_files.walk import graphs_in

if TYPE_CHECKING:
    import onnx


def default_outputs(count: int) -> list[str]:
    """The names of outputs that have none: output, or output_0, output_1, ..."""
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


def inputs_of(model: onnx.ModelProto) -> list[str]:
    """The names of what must be fed."""
    held = {item.name for item in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in held]


def rename_inputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Gives all inputs other names, in order. Raises `OptionError` (`_rename`)."""
    _rename(model, inputs_of(model), names, "input")


def rename_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Gives all outputs other names, in order. Raises `OptionError` (`_rename`).

    An output that is an input or a weight itself, or stands there twice, gets a node of its own.
    """
    graph = model.graph
    seen = {value.name for value in graph.input} | {weight.name for weight in graph.initializer}
    for value in graph.output:
        if value.name in seen:
            fresh = _fresh(model, f"{value.name}_out")
            graph.node.add(op_type="Identity", name=fresh, input=[value.name], output=[fresh])
            value.name = fresh
        seen.add(value.name)
    _rename(model, [value.name for value in graph.output], names, "output")


def _rename(model: onnx.ModelProto, old: Sequence[str], new: Sequence[str], what: str) -> None:
    """Raises `OptionError` for a wrong number of names, an empty one, one that is there twice or no text."""
    if len(old) != len(new):
        raise OptionError(
            f"--{what}-names: the model has {counted(len(old), what)} ({', '.join(old)}); found "
            f"{counted(len(new), 'name')}."
        )
    if not all(new) or len(set(new)) != len(new):
        raise OptionError(f"--{what}-names: each {what} needs a name of its own, found {', '.join(new)}.")
    for name in new:
        if name != name.encode(errors="replace").decode():
            raise OptionError(
                f"--{what}-names: {shortened(name, 100)!r} is no text in UTF-8, as names must be."
            )
    graph = model.graph
    ends = {value.name for value in (*graph.input, *graph.output)} - set(old)
    clash = sorted(ends & set(new))
    if clash:
        raise OptionError(f"--{what}-names: {clash[0]!r} is already the name of another input or output.")
    changes = dict(zip(old, new, strict=True))
    # Values inside the graph that have such a name already get another.
    taken = _names(graph)
    for name in new:
        if name in taken and name not in old:
            changes[name] = _fresh(model, f"{name}_inner", {*taken, *changes.values()})
    _apply(graph, changes)


def _apply(model_graph: onnx.GraphProto, changes: dict[str, str]) -> None:
    for graph in graphs_in(model_graph):
        named: list[onnx.ValueInfoProto | onnx.TensorProto] = [*graph.input, *graph.output]
        named += [*graph.value_info, *graph.initializer]
        for value in named:
            value.name = changes.get(value.name, value.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = changes.get(sparse.values.name, sparse.values.name)
        for item in graph.quantization_annotation:
            item.tensor_name = changes.get(item.tensor_name, item.tensor_name)
            for entry in item.quant_parameter_tensor_names:
                entry.value = changes.get(entry.value, entry.value)
        for node in graph.node:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name in changes:
                        names[index] = changes[name]


def _names(model_graph: onnx.GraphProto) -> set[str]:
    found: set[str] = set()
    for graph in graphs_in(model_graph):
        found.update(value.name for value in (*graph.input, *graph.output))
        found.update(weight.name for weight in graph.initializer)
        found.update(weight.values.name for weight in graph.sparse_initializer)
        for node in graph.node:
            found.update(node.input, node.output)
    return found


def _fresh(model: onnx.ModelProto, wanted: str, taken: Iterable[str] | None = None) -> str:
    used = set(taken) if taken is not None else _names(model.graph)
    name, number = wanted, 1
    while name in used:
        name, number = f"{wanted}_{number}", number + 1
    return name
