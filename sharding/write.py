"""One rank model per rank, written into a slice folder: weights are cut while they stream to disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sharding import manifest as manifests
from sharding.emit import OWN_DOMAIN, HeldWeight, RankGraph, emit_rank
from sharding.fold import SMALL_ELEMENTS
from sharding.folder import check_output as check_output  # noqa: PLC0414 - part of this module's interface
from sharding.folder import new_folder
from sharding.manifest import FileEntry, Manifest, RankEntry
from sharding.placement import REPLICATED, Placement, held_bytes
from sharding.plan import Plan, model_tensors
from sharding.reshard import DOMAIN

if TYPE_CHECKING:
    import onnx_ir as ir

Progress = Callable[[int, int], None]
"""Called with the bytes of weights written so far and in all."""
INLINE_BYTES = 1024
"""Weights up to this size stay in the model file: ONNX Runtime wants shapes and axes there."""
ALIGNMENT = 64
PAGE = 4096
"""Weights of `PAGE_BYTES` and more start on a page, so that mapped parts share no page with a neighbour."""
PAGE_BYTES = 1 << 16
CREATED_BY = "shardrun 0.1.0"


def write_slices(plan: Plan, output: str | Path, progress: Progress | None = None) -> Manifest:
    """Writes rank models, weights and manifest; ``output`` appears at once, complete, or not at all.

    A slice folder that is already there is replaced. Raises `SliceError` if ``output`` is anything else, or
    cannot be written.
    """
    output = Path(output)
    mesh, stages = plan.mesh, range(plan.pipeline.count)
    total = sum(map(plan.stage_weight_bytes, stages)) * plan.tensor_size
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    with new_folder(output, total) as folder:
        written: dict[int, RankEntry] = {}
        for stage in stages:
            for place in range(plan.tensor_size):
                rank = mesh.rank(data=0, pipeline=stage, tensor=place)
                written[rank] = _write_rank(plan, rank, folder, advance)
        result = _manifest(plan, tuple(_entry(plan, rank, written) for rank in range(plan.world_size)))
        manifests.write_manifest(folder, result)
    return result


class _HashedFile:
    """A file written once from start to end, hashed on the way."""

    def __init__(self, path: Path) -> None:
        self.path, self.digest, self.size = path, hashlib.sha256(), 0
        self.file: BinaryIO = path.open("wb")

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.size += len(data)

    def align(self, alignment: int) -> int:
        """Pads to a multiple; the offset reached."""
        self.write(bytes(-self.size % alignment))
        return self.size

    def close(self) -> FileEntry:
        self.file.close()
        return FileEntry(self.path.name, self.size, self.digest.hexdigest())


def _entry(plan: Plan, rank: int, written: dict[int, RankEntry]) -> RankEntry:
    """Ranks that differ only in their data group run the same files: those of the first group."""
    first = plan.mesh.rank(**{**plan.mesh.coordinates(rank), "data": 0})
    return replace(written[first], rank=rank)


def _write_rank(plan: Plan, rank: int, folder: Path, advance: Callable[[int], None]) -> RankEntry:
    here = plan.mesh.coordinates(rank)
    stage, place = here["pipeline"], here["tensor"]
    graph = emit_rank(
        plan.source, plan.steps, plan.choices, place, plan.tensor_size, stages=plan.pipeline, stage=stage
    )
    data = _HashedFile(folder / f"rank_{rank}.data")
    try:
        for held in graph.weights:
            _store(plan, place, held, data, advance)
    finally:
        entry = data.close()
    model = _HashedFile(folder / f"rank_{rank}.onnx")
    try:
        model.write(_serialize(plan, rank, graph))
    finally:
        files = [model.close()]
    if entry.bytes:
        files.append(entry)
    else:
        data.path.unlink()
    return RankEntry(rank, f"rank_{rank}.onnx", plan.stage_weight_bytes(stage), tuple(files))


def _store(
    plan: Plan, rank: int, held: HeldWeight, data: _HashedFile, advance: Callable[[int], None]
) -> None:
    """Writes a rank's part of one weight and points the rank's graph to it."""
    import onnx_ir as ir

    weight, name = plan.source.weights[held.source], held.value.name or ""
    shape = held.value.shape
    assert shape is not None
    length = held_bytes(weight.nbytes, held.placement, plan.tensor_size)
    integers = weight.tensor.dtype.is_integer() and weight.tensor.size <= SMALL_ELEMENTS
    if weight.is_text or length <= INLINE_BYTES or (integers and weight.extent is None):
        if weight.extent is None and held.placement == REPLICATED:
            tensor: ir.TensorProtocol = weight.tensor
            held.value.const_value = _renamed(tensor, name)
        else:
            part = weight.part(held.placement, rank, plan.tensor_size)
            held.value.const_value = ir.Tensor(part.copy(), dtype=weight.tensor.dtype, name=name)
        advance(length)
        return
    offset = data.align(PAGE if length >= PAGE_BYTES else ALIGNMENT)
    for block in weight.part_bytes(held.placement, rank, plan.tensor_size):
        data.write(block)
        advance(len(block))
    held.value.const_value = ir.ExternalTensor(
        data.path.name, offset, data.size - offset, weight.tensor.dtype, shape=ir.Shape(shape.dims), name=name
    )


def _renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    import onnx_ir as ir

    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=ir.Shape(tensor.shape.numpy()), name=name)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def _serialize(plan: Plan, rank: int, rank_graph: RankGraph) -> bytes:
    import onnx_ir as ir

    model = plan.source.model
    source = model.graph
    defaults = [value for value in rank_graph.inputs if value.name in plan.source.defaults]
    for value in defaults:
        value.const_value = plan.source.defaults[value.name or ""]
    opsets = dict(source.opset_imports)
    for node in rank_graph.nodes:
        if node.domain in {DOMAIN, OWN_DOMAIN}:
            opsets.setdefault(node.domain, 1)
    graph = ir.Graph(
        rank_graph.inputs,
        rank_graph.outputs,
        nodes=rank_graph.nodes,
        initializers=[*(held.value for held in rank_graph.weights), *rank_graph.constants, *defaults],
        opset_imports=opsets,
        name=source.name,
        doc_string=source.doc_string,
        metadata_props=dict(source.metadata_props),
    )
    metadata = dict(model.metadata_props)
    metadata.update(_metadata(plan, rank))
    result = ir.Model(
        graph,
        # Weights that are no inputs need IR version 4.
        ir_version=max(model.ir_version, 4),
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=list(model.functions.values()),
        metadata_props=metadata,
    )
    data: bytes = ir.serde.serialize_model(result).SerializeToString(deterministic=True)
    return data


def _metadata(plan: Plan, rank: int) -> dict[str, str]:
    """What a rank must know to run its model without the manifest."""
    outputs = plan.source.model.graph.outputs
    places = plan.pipeline.output_stages(plan.steps, outputs)
    layout = {
        "outputs": [[value.name, place] for value, place in zip(outputs, places, strict=True)],
        "batch": asdict(plan.batch),
    }
    return {
        "shardrun.rank": str(rank),
        "shardrun.world_size": str(plan.world_size),
        "shardrun.mesh": str(plan.mesh),
        "shardrun.micro_batches": str(plan.micro_batches),
        "shardrun.layout": json.dumps(layout, ensure_ascii=False),
    }


def _manifest(plan: Plan, entries: tuple[RankEntry, ...]) -> Manifest:
    weights = {
        name: manifests.WeightEntry(
            str(_widest(held)), weight.dtype, weight.shape, weight.nbytes, plan.weight_stages(name)
        )
        for name, held in plan.weights.items()
        for weight in [plan.source.weights[name]]
    }
    graph = plan.source.model.graph
    fed = [value for value in graph.inputs if value.name not in plan.source.defaults]
    return Manifest(
        source=plan.source.file,
        world_size=plan.world_size,
        ranks=entries,
        weights=weights,
        collectives=tuple(
            manifests.CollectiveEntry(item.op, item.tensor, item.dtype, item.shape, item.stage)
            for item in plan.collectives
        ),
        inputs=tuple(manifests.TensorEntry(*item) for item in model_tensors(fed)),
        outputs=tuple(manifests.TensorEntry(*item) for item in model_tensors(graph.outputs)),
        whole=dict(sorted(plan.whole.items())),
        strategy=plan.strategy,
        mesh=plan.mesh,
        micro_batches=plan.micro_batches,
        batch=plan.batch,
        created_by=CREATED_BY,
    )


def _widest(held: tuple[Placement, ...]) -> Placement:
    return REPLICATED if REPLICATED in held else held[0]
