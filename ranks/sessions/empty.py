"""Requests that are empty where one of ONNX Runtime's operators would end the whole process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ranks.errors import ShardrunError
from sharding.slices.never_empty import NeverEmpty, Operator, find, is_fatal

if TYPE_CHECKING:
    import onnx

    from sharding.slices.manifest import Manifest

Find = Callable[[], Sequence[NeverEmpty]]


def nothing() -> Sequence[NeverEmpty]:
    """Of a model that nothing is known of."""
    return ()


def check(feeds: Mapping[str, object], known: Find) -> None:
    """Raises `ShardrunError` where all inputs of a length that must not be 0 are empty there; what is
    ``known`` of the model is only asked for where any is empty."""
    # What runs for each prediction: it does little.
    for array in feeds.values():
        if isinstance(array, np.ndarray) and not array.size:
            break
    else:
        return
    for rule in known():
        lengths = [
            array.shape[axis]
            for name, axis in rule.axes.items()
            if isinstance(array := feeds.get(name), np.ndarray) and axis < array.ndim
        ]
        if lengths and not any(lengths):
            where = " and ".join(f"{name} (axis {axis})" for name, axis in rule.axes.items() if name in feeds)
            raise ShardrunError(
                f"Nothing is in {where}, and ONNX Runtime's {rule.operator} would end the process over that: "
                "leave this request out."
            )


def of_manifest(manifest: Manifest | None) -> Find:
    """What slicing found in the whole model: a rank's own cut would have each judge by something else."""
    return (lambda: manifest.never_empty) if manifest is not None else nothing


def of_file(path: Path) -> Find:
    """The same of a whole model, which is read once, and only where it is asked for."""
    return functools.cache(functools.partial(_read, path))


def _read(path: Path) -> Sequence[NeverEmpty]:
    """Of a file, without its large weights; nothing where it cannot be read any more."""
    from sharding.onnx_files.functions import inline_functions
    from sharding.onnx_files.protobuf import read_message
    from sharding.onnx_files.walk import nodes_in

    try:
        model = read_message(path)
        if not any(is_fatal(node.domain, node.op_type) for node in nodes_in(model.graph, *model.functions)):
            return ()
        return _of_message(inline_functions(model, path))
    except Exception:  # the file may have gone, and inference has errors of its own: then ranks compute
        return ()


def _of_message(model: onnx.ModelProto) -> Sequence[NeverEmpty]:
    import onnx.shape_inference

    held = {tensor.name: list[int | str | None](tensor.dims) for tensor in model.graph.initializer}
    fed = [value for value in model.graph.input if value.name not in held]
    for node in model.graph.node:
        if node.domain == "ai.onnx":  # inference knows the short name alone
            node.domain = ""
    for value in fed:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.WhichOneof("value"):
                dim.dim_param = f"axis {axis} of {value.name}"
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes: dict[str, Sequence[int | str | None] | None] = {**held}
    shapes |= {value.name: _shape(value) for value in (*graph.value_info, *graph.output, *graph.input)}
    return find(
        [(value.name, shapes[value.name] or ()) for value in fed],
        (
            Operator(node.domain, node.op_type, [shapes.get(name) for name in node.input], _equation(node))
            for node in graph.node
        ),
    )


def _equation(node: onnx.NodeProto) -> str:
    return "".join(item.s.decode(errors="replace") for item in node.attribute if item.name == "equation")


def _shape(value: onnx.ValueInfoProto) -> Sequence[int | str | None] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None) for dim in tensor.shape.dim
    ]
