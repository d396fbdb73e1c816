"""Runs all rank models of a slice folder in one process: ONNX Runtime between collectives, numpy for them.

For tests of slicing alone: it shares no code with the ranks' executor, and every collective checks that all
ranks are at the same one with equal types and shapes.
"""

import dataclasses
import functools
import itertools
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime

from sharding.slices.manifest import Manifest, read_manifest, verify_shard
from tests.sharding.graphs import digest
from tests.sharding.graphs import session as plain_session

if TYPE_CHECKING:
    import pytest

COLLECTIVES = {"AllReduce", "AllGather", "AllToAll", "Broadcast", "Send", "Recv"}
Arrays = dict[str, np.ndarray[Any, Any]]
Mail = dict[tuple[int, int, int], deque[np.ndarray[Any, Any]]]
"""(place in the tensor group, sending stage, receiving stage) -> what is on the way."""


def run_slices(folder: Path, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Arrays]:
    """The outputs by name, as each place of the tensor groups has them, given the whole inputs.

    Each rank is fed its part of a state, and the parts that ranks return are put together. Data groups and
    micro-batches get pieces of the batch, of uneven lengths, and their outputs are joined.
    """
    found = digest(folder)
    opened = _opened(folder, found, onnxruntime.SessionOptions) if found else _Opened(folder, keeps=False)
    manifest = opened.manifest
    pieces = manifest.mesh.length("data") * manifest.micro_batches
    batch = manifest.batch
    if pieces == 1:
        return _run_piece(opened, 0, feeds)
    lengths = {feeds[name].shape[axis] for name, axis in batch.inputs.items()}
    (length,) = lengths
    bounds = np.linspace(0, length, pieces + 1).astype(int)
    results = []
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        if start == end and (length or results):  # of an empty batch one piece tells the shapes
            continue
        part = {
            name: np.take(array, range(start, end), batch.inputs[name]) if name in batch.inputs else array
            for name, array in feeds.items()
        }
        results.append(_run_piece(opened, number // manifest.micro_batches, part))
    return [
        {
            name: np.concatenate([result[place][name] for result in results], batch.outputs[name])
            for name in results[0][place]
        }
        for place in range(manifest.mesh.length("tensor"))
    ]


def _run_piece(opened: "_Opened", group: int, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Arrays]:
    manifest = opened.manifest
    mesh, mail, results = manifest.mesh, defaultdict[Any, Any](deque), list[list[Arrays]]()
    world = mesh.length("tensor")
    own = [
        {
            **feeds,
            **{
                pair.input: cut(feeds[pair.input], pair.placement, place, world)
                for pair in manifest.state
                if pair.input in feeds
            },
        }
        for place in range(world)
    ]
    for stage in range(mesh.length("pipeline")):
        ranks = [
            mesh.rank(data=group, pipeline=stage, tensor=place) for place in range(mesh.length("tensor"))
        ]
        results.append(_run_stage(opened, ranks, stage, own, mail))
    assert not any(mail.values()), "something was sent that nobody received"
    names = [output.name for output in manifest.outputs]
    found = [
        {name: next(part[place][name] for part in results if name in part[place]) for name in names}
        for place in range(world)
    ]
    for pair in manifest.state:
        whole = joined([outputs[pair.output] for outputs in found], pair.placement)
        for outputs in found:
            outputs[pair.output] = whole if pair.placement != "replicated" else outputs[pair.output]
    return found


def cut(array: np.ndarray[Any, Any], placement: str, place: int, world: int) -> np.ndarray[Any, Any]:
    """A rank's part of a value."""
    if placement == "replicated":
        return array
    axis, blocks, copies = _split(placement)
    parts = [
        np.split(block, world // copies, axis)[place // copies] for block in np.split(array, blocks, axis)
    ]
    return np.concatenate(parts, axis)


def joined(parts: list[np.ndarray[Any, Any]], placement: str) -> np.ndarray[Any, Any]:
    """The whole of what ranks hold; copies must be equal."""
    if placement == "replicated":
        return parts[0]
    axis, blocks, copies = _split(placement)
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(part, parts[number // copies * copies])
    pieces = [np.split(part, blocks, axis) for part in parts[::copies]]
    return np.concatenate([piece[block] for block in range(blocks) for piece in pieces], axis)


def _split(placement: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"split:(\d+)(?:/(\d+))?(?:\*(\d+))?", placement)
    assert found is not None
    return int(found[1]), int(found[2] or 1), int(found[3] or 1)


class _Opened:
    """The rank models of a folder, each verified and read once; the parts that were made into sessions."""

    def __init__(self, folder: Path, *, keeps: bool = True) -> None:
        self.folder, self.manifest, self.keeps = folder, read_manifest(folder), keeps
        self.models: dict[int, onnx.ModelProto] = {}
        self.sessions: dict[bytes, onnxruntime.InferenceSession] = {}

    def model(self, rank: int, stage: int) -> onnx.ModelProto:
        if rank not in self.models:
            manifest = self.manifest
            entry = verify_shard(self.folder, manifest, rank, manifest.world_size)
            model = onnx.load(self.folder / entry.model, load_external_data=False)
            properties = {item.key: item.value for item in model.metadata_props}
            assert properties["shardrun.mesh"] == str(manifest.mesh)
            layout = json.loads(properties["shardrun.layout"])
            own = [name for name, place in layout["outputs"] if place == stage]
            assert own == [output.name for output in model.graph.output]
            _check_state(model, manifest, properties, own)
            self.models[rank] = model
        return self.models[rank]

    def session(self, content: bytes) -> onnxruntime.InferenceSession:
        """The weights of a part lie in the folder's files, so it must be a file there. It is often the same
        for several ranks, turns of a loop or steps."""
        if content not in self.sessions:
            path = self.folder / ".segment.onnx"
            try:
                path.write_bytes(content)
                made = plain_session(path)
            finally:
                path.unlink()
            if not self.keeps:
                return made
            self.sessions[content] = made
        return self.sessions[content]


@functools.lru_cache(maxsize=1)
def _opened(folder: Path, digest: str, options: Any) -> _Opened:
    """``options``: sessions are others where a test has other ones made."""
    return _Opened(folder)


def _run_stage(
    opened: _Opened, ranks: list[int], stage: int, feeds: list[Arrays], mail: Mail
) -> list[Arrays]:
    models = [opened.model(rank, stage) for rank in ranks]
    taken = {item.name for item in models[0].graph.input}
    values: list[Arrays] = [{name: own[name] for name in own if name in taken} for own in feeds]
    parts = [_parts(model) for model in models]
    assert len({len(part) for part in parts}) == 1, "ranks have differing numbers of collectives"
    _check_order(models[0])
    _run_parts(models, parts, values, opened, stage, mail)
    return [
        {output.name: held[output.name] for output in model.graph.output}
        for model, held in zip(models, values, strict=True)
    ]


def _check_state(
    model: onnx.ModelProto, manifest: Manifest, properties: Mapping[str, str], own: list[str]
) -> None:
    """A rank's file holds, says and takes the pairs whose outputs it gives, with the shapes of its parts."""
    everyone = [dataclasses.asdict(pair) for pair in manifest.state]
    assert json.loads(properties.get("shardrun.state", "[]")) == everyone
    pairs = [pair for pair in manifest.state if pair.output in own]
    inputs = {item.name: item for item in model.graph.input}
    shapes = {entry.name: entry.shape for entry in (*manifest.inputs, *manifest.outputs)}
    outputs = {item.name: item for item in model.graph.output}
    for pair in pairs:
        for name, listed in ((pair.input, inputs), (pair.output, outputs)):
            axes = listed[name].type.tensor_type.shape.dim
            held = [item.dim_value if item.HasField("dim_value") else item.dim_param or None for item in axes]
            expected = list(shapes[name])
            if pair.placement != "replicated":
                axis, _, copies = _split(pair.placement)
                expected[axis] = int(expected[axis] or 0) // (manifest.mesh.length("tensor") // copies)
            assert held == expected, (name, held, expected)


def _run_parts(
    models: list[onnx.ModelProto],
    parts: list[Any],
    values: list[Arrays],
    opened: _Opened,
    stage: int,
    mail: Mail,
) -> None:
    """Runs all ranks' nodes; ``values`` then hold what they made."""
    ranks = [_Rank(model) for model in models]
    for step in zip(*parts, strict=True):
        for rank, held, (nodes, _) in zip(ranks, values, step, strict=True):
            _run_segment(rank, nodes, held, opened)
        last = [node for _, node in step]
        if last[0] is None:
            continue
        if last[0].op_type in {"If", "Loop", "Scan"}:
            _run_control(models, last, values, opened)
        else:
            _combine(last, values, stage, mail)


def _run_control(
    models: list[onnx.ModelProto], nodes: list[onnx.NodeProto], values: list[Arrays], opened: _Opened
) -> None:
    """Control flow with collectives in its bodies: all ranks run the same body in step."""
    first = nodes[0]
    given = [
        {name: _value(model, held, name) for name in first.input if name}
        for model, held in zip(models, values, strict=True)
    ]
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in first.attribute}

    made: dict[str, list[onnx.ModelProto]] = {}

    def body(name: str, formals: list[list[np.ndarray[Any, Any]]]) -> list[list[np.ndarray[Any, Any]]]:
        graphs = [next(item.g for item in node.attribute if item.name == name) for node in nodes]
        if name not in made:
            made[name] = [_with_body(*both) for both in zip(models, graphs, strict=True)]
        inner = made[name]
        held = [
            {**outside, **dict(zip([item.name for item in graph.input], mine, strict=True))}
            for graph, outside, mine in zip(graphs, values, formals, strict=True)
        ]
        parts = [_parts(model) for model in inner]
        assert len({len(part) for part in parts}) == 1, "ranks have differing numbers of collectives"
        _run_parts(inner, parts, held, opened, 0, defaultdict(deque))
        return [[h[item.name] for item in model.graph.output] for model, h in zip(inner, held, strict=True)]

    def alike(name: str) -> np.ndarray[Any, Any]:
        for mine in given:
            np.testing.assert_array_equal(mine[name], given[0][name])
        return given[0][name]

    if first.op_type == "If":
        chosen = "then_branch" if alike(first.input[0]).item() else "else_branch"
        results = body(chosen, [[] for _ in nodes])
    else:
        results = _turns(first, attributes, given, alike, body)
    for node, held, result in zip(nodes, values, results, strict=True):
        held.update(zip(node.output, result, strict=True))


def _with_body(model: onnx.ModelProto, body: onnx.GraphProto) -> onnx.ModelProto:
    """The model with the nodes and outputs of a body in it instead of its own."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.ClearField("node")
    copy.graph.node.extend(body.node)
    copy.graph.ClearField("output")
    copy.graph.output.extend(body.output)
    copy.graph.initializer.extend(body.initializer)
    return copy


def _turns(
    node: onnx.NodeProto, attributes: dict[str, Any], given: list[Arrays], alike: Any, body: Any
) -> list[list[np.ndarray[Any, Any]]]:
    names = list(node.input)
    scanned = attributes.get("num_scan_inputs", 0)
    carried = names[2:] if node.op_type == "Loop" else names[: len(names) - scanned]
    rows = names[len(names) - scanned :] if scanned else []
    axes = attributes.get("scan_input_axes", [0] * scanned)
    backward = attributes.get("scan_input_directions", [0] * scanned)
    states = [[mine[name] for name in carried] for mine in given]
    stacks: list[list[list[np.ndarray[Any, Any]]]] = [[] for _ in given]
    if node.op_type == "Loop":
        count = int(alike(names[0]).item()) if names[0] else 1 << 62
        going = bool(alike(names[1]).item()) if names[1] else True
    else:
        count, going = given[0][rows[0]].shape[axes[0]], True
    turn = 0
    while going and turn < count:
        told = [np.array(turn), np.array(going)] if node.op_type == "Loop" else []
        formals = [
            [
                *told,
                *state,
                *(
                    np.take(mine[row], count - 1 - turn if back else turn, axis)
                    for row, axis, back in zip(rows, axes, backward, strict=True)
                ),
            ]
            for state, mine in zip(states, given, strict=True)
        ]
        results = body("body", formals)
        if node.op_type == "Loop":
            going = bool(results[0][0].item())
            assert all(bool(result[0].item()) == going for result in results)
            results = [result[1:] for result in results]
        states = [result[: len(carried)] for result in results]
        for stack, result in zip(stacks, results, strict=True):
            stack.append(result[len(carried) :])
        turn += 1
    if not turn:  # what would be stacked has the shapes that the body declares, as ONNX Runtime has it
        assert node.op_type == "Loop"
        rows_of = [_empty(output) for output in attributes["body"].output[1 + len(carried) :]]
        return [[*state, *rows_of] for state in states]
    places = len(stacks[0][0])
    outer = attributes.get("scan_output_axes", [0] * places)
    reverse = attributes.get("scan_output_directions", [0] * places)
    return [
        [
            *state,
            *(
                np.stack([row[place] for row in (stack[::-1] if reverse[place] else stack)], outer[place])
                for place in range(places)
            ),
        ]
        for state, stack in zip(states, stacks, strict=True)
    ]


def _empty(declared: onnx.ValueInfoProto) -> np.ndarray[Any, Any]:
    """No rows of what a body declares, an axis that is open being 0."""
    kind = declared.type.tensor_type
    lengths = [axis.dim_value for axis in kind.shape.dim]
    return np.zeros([0, *lengths], onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))


def _value(model: onnx.ModelProto, held: Arrays, name: str) -> np.ndarray[Any, Any]:
    """A value, or a small constant of the model."""
    if name in held:
        return held[name]
    return onnx.numpy_helper.to_array(next(item for item in model.graph.initializer if item.name == name))


def _check_order(model: onnx.ModelProto) -> None:
    """All Recv first, by source stage; all Send last, by target stage."""
    kinds = [node.op_type for node in model.graph.node]
    received = [node.attribute for node in model.graph.node if node.op_type == "Recv"]
    sent = [node.attribute for node in model.graph.node if node.op_type == "Send"]
    assert kinds[: len(received)] == ["Recv"] * len(received)
    assert kinds[len(kinds) - len(sent) :] == ["Send"] * len(sent)
    for nodes in (received, sent):
        peers = [next(item.i for item in attributes if item.name == "peer") for attributes in nodes]
        assert peers == sorted(peers)


def _parts(model: onnx.ModelProto) -> list[tuple[list[onnx.NodeProto], onnx.NodeProto | None]]:
    parts: list[tuple[list[onnx.NodeProto], onnx.NodeProto | None]] = []
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if _is_collective(node) or any(map(_is_collective, _inner(node))):
            parts.append((nodes, node))
            nodes = []
        else:
            nodes.append(node)
    return [*parts, (nodes, None)]


def _is_collective(node: onnx.NodeProto) -> bool:
    return node.op_type in COLLECTIVES and node.domain in {"com.microsoft", "shardrun"}


def _inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in graph.node:
                yield inner
                yield from _inner(inner)


class _Rank:
    """One rank's model, and what is asked about it segment by segment."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.outputs = [item.name for item in model.graph.output]
        self.initializers = {item.name: item for item in model.graph.initializer}
        self.declared = {item.name: item for item in model.graph.value_info}
        self.read = {name for node in model.graph.node for name in _reads(node)}.union(self.outputs)

    def segment(self, nodes: list[onnx.NodeProto], values: Arrays) -> tuple[bytes, list[str], list[str]]:
        """A model of these nodes alone, the names that it is fed, and those that it gives: all that anything
        reads, so that nothing is fused away."""
        weights = {name: item for name, item in self.initializers.items() if name not in values}
        produced = [name for node in nodes for name in node.output if name]
        mentioned = sorted({name for node in nodes for name in _reads(node)} - set(produced))
        fed = [name for name in mentioned if name in values]
        given = [name for name in produced if name in self.read]
        given += [name for name in self.outputs if name in weights]
        segment = onnx.ModelProto(ir_version=self.model.ir_version)
        segment.opset_import.extend(self.model.opset_import)
        segment.functions.extend(self.model.functions)
        graph = segment.graph
        graph.name = self.model.graph.name
        graph.node.extend(nodes)
        held = dict.fromkeys([*mentioned, *given])
        graph.initializer.extend(weights[name] for name in held if name in weights)
        for name in fed:
            kind = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
            open_lengths = [None] * values[name].ndim  # one session for inputs of all lengths
            graph.input.append(onnx.helper.make_tensor_value_info(name, kind, open_lengths))
        known = [name for name in (*mentioned, *produced) if name in self.declared and name not in fed]
        graph.value_info.extend(self.declared[name] for name in known)
        graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in given)
        return segment.SerializeToString(), fed, given


def _run_segment(rank: _Rank, nodes: list[onnx.NodeProto], values: Arrays, opened: _Opened) -> None:
    content, fed, given = rank.segment(nodes, values)
    if given:
        found = opened.session(content).run(given, {name: values[name] for name in fed})
        values.update(zip(given, found, strict=True))


def _reads(node: onnx.NodeProto) -> set[str]:
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            names |= {name for inner in graph.node for name in _reads(inner)}
            names |= {output.name for output in graph.output}
    return names


def _combine(nodes: list[Any], values: list[Arrays], stage: int, mail: Mail) -> None:
    world = len(nodes)
    if nodes[0].op_type in {"Send", "Recv"}:
        for place, (node, held) in enumerate(zip(nodes, values, strict=True)):
            _pass_on(node, held, place, stage, mail)
        return
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


def _pass_on(node: Any, held: Arrays, place: int, stage: int, mail: Mail) -> None:
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    if node.op_type == "Send":
        assert attributes["peer"] > stage
        mail[place, stage, attributes["peer"]].append(held[node.input[0]])
        return
    array = mail[place, attributes["peer"], stage].popleft()
    shape = [int(axis) for axis in attributes["shape"]]
    assert onnx.helper.np_dtype_to_tensor_dtype(array.dtype) == attributes["dtype"]
    assert len(shape) == array.ndim and attributes["announce"] == (-1 in shape)
    assert all(axis in {-1, length} for axis, length in zip(shape, array.shape, strict=True))
    held[node.output[0]] = array


def reference(model: Path, feeds: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    """Plain ONNX Runtime's outputs on the unsliced model."""
    found = digest(model.parent)
    session = _whole(model, found, onnxruntime.SessionOptions) if found else plain_session(model)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


@functools.lru_cache(maxsize=1)
def _whole(model: Path, digest: str, options: Any) -> onnxruntime.InferenceSession:
    return plain_session(model)


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


def without_rounding(monkeypatch: "pytest.MonkeyPatch") -> None:
    """ONNX Runtime multiplies with dequantized weights of few bits without rounding the other operand."""
    plain = onnxruntime.SessionOptions

    def options() -> onnxruntime.SessionOptions:
        made = plain()
        made.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
        return made

    monkeypatch.setattr(onnxruntime, "SessionOptions", options)


def collectives(folder: Path) -> list[str]:
    """The collectives in rank 0's model, in order."""
    model = onnx.load(folder / "rank_0.onnx", load_external_data=False)
    nodes = (item for node in model.graph.node for item in (node, *_inner(node)))
    return [node.op_type for node in nodes if _is_collective(node)]


def peak_kilobytes() -> int:
    """The most memory this process ever held (``ru_maxrss`` would count the process that started it too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
