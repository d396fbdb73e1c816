"""One rank's model as an ONNX file: its graph, pointing to its weights in the data files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from sharding.planning.emit import emit_rank
from sharding.planning.plan import Plan
from sharding.planning.rank_graph import HeldWeight, RankGraph
from sharding.rules.flow import FLOW
from sharding.slices.domains import MICROSOFT, OWN_DOMAIN
from sharding.slices.placement import REPLICATED
from sharding.slices.state import LOGITS_FROM, METADATA, metadata_text
from sharding.writing.layout import Layout, Part, Place, part_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.common.arrays import Array


def rank_model(plan: Plan, layout: Layout, rank: int) -> tuple[bytes, list[str]]:
    """A rank's model, and the data files that it reads."""
    here = plan.mesh.coordinates(rank)
    stage, tensor_rank = here["pipeline"], here["tensor"]
    graph = emit_rank(
        plan.source,
        plan.steps,
        plan.choices,
        tensor_rank,
        plan.tensor_size,
        stages=plan.pipeline,
        stage=stage,
        state=plan.placed,
    )
    places = layout.add_rank(rank, graph)
    for held in graph.weights:
        _point(plan, tensor_rank, held, places)
    return _serialize(plan, rank, graph), sorted({place.file for place in places.values()})


def _point(plan: Plan, tensor_rank: int, held: HeldWeight, places: dict[Part, Place]) -> None:
    """Gives a rank's part of one weight its data: where they lie, or themselves if they are few."""
    import onnx_ir as ir

    weight, name = plan.source.weights[held.source], held.value.name or ""
    place = places.get(part_of(held.source, held.placement, tensor_rank))
    if place is None and weight.extent is None and held.placement == REPLICATED:
        held.value.const_value = _in_memory(weight.tensor.numpy(), weight.tensor.dtype, name)
    elif place is None:
        part = weight.part(held.placement, tensor_rank, plan.tensor_size)
        held.value.const_value = _in_memory(part.copy(), weight.tensor.dtype, name)
    else:
        shape = held.value.shape
        assert shape is not None
        held.value.const_value = ir.ExternalTensor(
            place.file, place.offset, place.length, weight.tensor.dtype, shape=ir.Shape(shape.dims), name=name
        )


def _in_memory(array: Array, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    import onnx_ir as ir

    if dtype == ir.DataType.STRING:
        return ir.StringTensor(array, shape=ir.Shape(array.shape), name=name)
    return ir.Tensor(array, dtype=dtype, shape=ir.Shape(array.shape), name=name)


def _serialize(plan: Plan, rank: int, rank_graph: RankGraph) -> bytes:
    import onnx_ir as ir

    model = plan.source.model
    source = model.graph
    given = {**plan.source.defaults, LOGITS_FROM: ir.Tensor(np.zeros(1, np.int64), name=LOGITS_FROM)}
    defaults = [value for value in rank_graph.inputs if value.name in given]
    for value in defaults:
        value.const_value = given[value.name or ""]
    opsets = {domain: version for domain, version in source.opset_imports.items() if domain != FLOW}
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
    for node in graph.all_nodes():
        if node.domain in {MICROSOFT, OWN_DOMAIN}:
            graph.opset_imports.setdefault(node.domain, 1)
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
        "batch": plan.batch.to_json(),
    }
    return {
        "shardrun.rank": str(rank),
        "shardrun.world_size": str(plan.world_size),
        "shardrun.mesh": str(plan.mesh),
        "shardrun.micro_batches": str(plan.micro_batches),
        "shardrun.layout": json.dumps(layout, ensure_ascii=False),
        # All pairs in every file: a rank holds those whose outputs it gives.
        **({METADATA: metadata_text(plan.state)} if plan.state else {}),
    }
