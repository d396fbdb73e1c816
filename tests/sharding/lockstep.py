"""Runs all rank models of a slice folder in one process: ONNX Runtime between collectives, numpy for them.

For tests of slicing alone: it shares no code with the ranks' executor, and every collective checks that all
ranks are at the same one with equal types and shapes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from sharding.manifest import read_manifest, verify_shard

COLLECTIVES = {"AllReduce", "AllGather", "AllToAll"}
Arrays = dict[str, np.ndarray[Any, Any]]


def run_slices(folder: Path, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Arrays]:
    """The outputs by name of every rank, given the same whole inputs."""
    manifest = read_manifest(folder)
    world = manifest.world_size
    models = []
    for rank in range(world):
        entry = verify_shard(folder, manifest, rank, world)
        models.append(onnx.load(folder / entry.model, load_external_data=False))
    values: list[Arrays] = [dict(feeds) for _ in range(world)]
    parts = [_parts(model) for model in models]
    assert len({len(part) for part in parts}) == 1, "ranks have differing numbers of collectives"
    for step in zip(*parts, strict=True):
        for rank, (nodes, _) in enumerate(step):
            _run_segment(models[rank], nodes, values[rank], folder)
        collectives = [collective for _, collective in step]
        if collectives[0] is not None:
            _combine(collectives, values)
    return [
        {output.name: held[output.name] for output in model.graph.output}
        for model, held in zip(models, values, strict=True)
    ]


def _parts(model: onnx.ModelProto) -> list[tuple[list[onnx.NodeProto], onnx.NodeProto | None]]:
    parts: list[tuple[list[onnx.NodeProto], onnx.NodeProto | None]] = []
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type in COLLECTIVES and node.domain == "com.microsoft":
            parts.append((nodes, node))
            nodes = []
        else:
            nodes.append(node)
    return [*parts, (nodes, None)]


def _run_segment(model: onnx.ModelProto, nodes: list[onnx.NodeProto], values: Arrays, folder: Path) -> None:
    initializers = {item.name: item for item in model.graph.initializer}
    produced = [name for node in nodes for name in node.output if name]
    mentioned = {name for node in nodes for name in _reads(node)} - set(produced)
    wanted = {item.name for item in model.graph.output}
    wanted |= {name for node in model.graph.node for name in _reads(node)}
    segment = onnx.ModelProto()
    segment.CopyFrom(model)
    graph = segment.graph
    for field in (graph.node, graph.initializer, graph.input, graph.output):
        del field[:]
    graph.node.extend(nodes)
    graph.initializer.extend(initializers[name] for name in sorted(mentioned) if name in initializers)
    fed = {name: values[name] for name in sorted(mentioned) if name in values and name not in initializers}
    for name, array in fed.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    kept = [info for info in model.graph.value_info if info.name not in fed]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    outputs = [name for name in produced if name in wanted]
    outputs += [
        item.name for item in model.graph.output if item.name in initializers and item.name not in values
    ]
    if not outputs:
        return
    graph.initializer.extend(initializers[name] for name in outputs if name in initializers)
    graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in outputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    path = folder / ".segment.onnx"
    try:
        path.write_bytes(segment.SerializeToString())
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    finally:
        path.unlink()
    values.update(zip(outputs, session.run(outputs, fed), strict=True))


def _reads(node: onnx.NodeProto) -> set[str]:
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            names |= {name for inner in graph.node for name in _reads(inner)}
            names |= {output.name for output in graph.output}
    return names


def _combine(nodes: list[Any], values: list[Arrays]) -> None:
    world = len(nodes)
    assert (
        len({(node.op_type, tuple(node.attribute[0].name if node.attribute else "")) for node in nodes}) == 1
    )
    arrays = [held[node.input[0]] for node, held in zip(nodes, values, strict=True)]
    assert len({(array.dtype, array.shape) for array in arrays}) == 1, "ranks put differing arrays in"
    attributes = {item.name: item.i for item in nodes[0].attribute}
    if nodes[0].op_type == "AllReduce":
        total = arrays[0].copy()
        for array in arrays[1:]:
            total = np.asarray(total + array)  # numpy makes a scalar of an array without axes
        results = [total] * world
    elif nodes[0].op_type == "AllGather":
        assert attributes["group_size"] == world
        results = [np.concatenate(arrays, attributes["axis"])] * world
    else:
        assert attributes["group_size"] == world and arrays[0].shape[0] % world == 0
        pieces = [np.split(array, world) for array in arrays]
        results = [np.concatenate([pieces[sender][rank] for sender in range(world)]) for rank in range(world)]
    for node, held, result in zip(nodes, values, results, strict=True):
        held[node.output[0]] = result


def reference(model: Path, feeds: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    """Plain ONNX Runtime's outputs on the unsliced model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def relative_error(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Largest absolute difference over the largest absolute value; infinite where shapes or NaNs differ."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if expected.size == 0:
        return 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    error = float(np.max(np.abs(a - b)) / max(float(np.max(np.abs(b))), 1e-30))
    return float("inf") if np.isnan(error) else error


def assert_same(
    folder: Path, model: Path, feeds: Mapping[str, np.ndarray[Any, Any]], tolerance: float = 1e-4
) -> None:
    """Every rank's outputs equal the unsliced model's within a relative tolerance."""
    expected = reference(model, feeds)
    for rank, outputs in enumerate(run_slices(folder, feeds)):
        assert list(outputs) == list(expected)
        for name, value in expected.items():
            error = relative_error(outputs[name], value)
            assert error <= tolerance, f"rank {rank}, output {name}: relative error {error}"


def collectives(folder: Path) -> list[str]:
    """The collectives in rank 0's model, in order."""
    model = onnx.load(folder / "rank_0.onnx", load_external_data=False)
    return [node.op_type for node in model.graph.node if node.domain == "com.microsoft"]


def peak_kilobytes() -> int:
    """The most memory this process ever held (``ru_maxrss`` would count the process that started it too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
