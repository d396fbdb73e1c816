"""What slicing for a number of ranks would give, without slicing: bytes that a rank holds and sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.inspection.inspection import of_plan, stage_graphs
from sharding.graph.sizes import tensor_bytes
from sharding.graph.symbols import shown_shape

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.common.encryption import Key
    from sharding.demands.options import SliceOptions
    from sharding.planning.rank_graph import RankGraph


@dataclass(frozen=True)
class Forecast:
    """For one number of ranks: bytes of the rank that holds, or sends, most."""

    ranks: int
    mesh: str
    all_bytes: int
    """All weights of the model."""
    weight_bytes: int
    activation_bytes: int
    """The most that live at once between nodes; an estimate, for ONNX Runtime reuses and fuses."""
    collectives: int
    sent_bytes: int
    note: str

    def to_json(self) -> dict[str, object]:
        """All of it as plain JSON values."""
        return asdict(self)


def forecast(
    model: Path, ranks: int, options: SliceOptions, dims: Mapping[str, int], key: Key | None = None
) -> Forecast:
    """Plans for this many ranks, replicating where nothing splits. Raises what planning raises."""
    from sharding.planning.plan import plan_model

    plan = plan_model(model, ranks, options=replace(options, allow_replicated=True), key=key)
    graphs = list(stage_graphs(plan))
    inspection = of_plan(plan, dims, graphs)
    stages = range(inspection.stages)
    note = plan.reason
    if not note and ranks > 1 and plan.mesh.length("tensor") == ranks and not plan.split_weights:
        note = "nothing splits: every rank holds the whole model"
    elif not note and plan.whole_weights:
        note = f"{len(plan.whole_weights)} weights stay whole"
    return Forecast(
        ranks,
        str(plan.mesh),
        inspection.bytes,
        plan.rank_weight_bytes(),
        max(peak_bytes(graph, inspection.dims) for graph in graphs),
        len(plan.collectives),
        max(inspection.stage_sent(stage) for stage in stages),
        note,
    )


def peak_bytes(graph: RankGraph, dims: Mapping[str, int]) -> int:
    """The most bytes of inputs and activations that live at the same time, running the nodes in order."""
    last: dict[ir.Value, int] = {}
    for index, node in enumerate(graph.nodes):
        last.update((value, index) for value in node.inputs if value is not None)
    last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    sizes = {value: _bytes(value, dims) for value in graph.inputs}
    live = peak = sum(sizes.values())
    for index, node in enumerate(graph.nodes):
        for value in node.outputs:
            if value in last:
                sizes[value] = _bytes(value, dims)
                live += sizes[value]
        peak = max(peak, live)
        for used in {value for value in node.inputs if value is not None and last[value] == index}:
            live -= sizes.pop(used, 0)
    return peak


def _bytes(value: ir.Value, dims: Mapping[str, int]) -> int:
    from sharding.onnx_files.tensors import dtype_name

    return tensor_bytes(dtype_name(value.dtype), shown_shape(value) or (), dims)
