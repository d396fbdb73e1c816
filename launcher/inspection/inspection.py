"""What a model, a plan or a slice folder holds, as plain values to print and to draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.inspection.layers import Used, by_layer, scope_of
from sharding.errors import ShardError
from sharding.graph.sizes import tensor_bytes
from sharding.graph.state_size import Kept, StateSize, joined_shape, state_size
from sharding.graph.values import in_turn
from sharding.onnx_files.walk import nodes_in_turn
from sharding.planning.unsplit import hardly_splits_slices
from sharding.slices.domains import OWN_DOMAIN
from sharding.slices.mesh import Mesh
from sharding.slices.placement import REPLICATED, Placement, held_bytes, parse_placement
from sharding.slices.state import Shape, Tensor

if TYPE_CHECKING:
    import onnx

    from sharding.planning.plan import Plan
    from sharding.planning.rank_graph import Collective, RankGraph
    from sharding.slices.manifest import CollectiveEntry, Manifest, TensorEntry


@dataclass(frozen=True)
class Weight:
    """One weight: how it lies over the tensor group, its bytes, and those that a rank of its stages holds."""

    name: str
    placement: Placement
    dtype: str
    shape: Sequence[int]
    bytes: int
    rank_bytes: int


@dataclass(frozen=True)
class Talk:
    """One collective of an inference: the bytes that a rank puts in, and those that it sends."""

    op: str
    tensor: str
    dtype: str
    shape: Shape
    bytes: int
    sent: int
    within: str = ""
    """The bodies of control flow that it lies in."""


@dataclass(frozen=True)
class Layer:
    """A layer of one pipeline stage."""

    name: str
    stage: int
    weights: tuple[Weight, ...]
    talks: tuple[Talk, ...]

    @property
    def bytes(self) -> int:
        """Of its weights, whole."""
        return sum(weight.bytes for weight in self.weights)

    @property
    def rank_bytes(self) -> int:
        """Of its weights, on each rank of the stage."""
        return sum(weight.rank_bytes for weight in self.weights)

    @property
    def split_bytes(self) -> int:
        """The part of ``rank_bytes`` that other ranks do not hold too."""
        return sum(weight.rank_bytes for weight in self.weights if weight.placement != REPLICATED)

    @property
    def sent(self) -> int:
        """Bytes that each rank of the stage sends."""
        return sum(talk.sent for talk in self.talks)


@dataclass(frozen=True)
class Inspection:
    """A sliced or planned model."""

    title: str
    mesh: Mesh
    micro_batches: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    layers: tuple[Layer, ...]
    whole: Mapping[str, int] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    """Lengths that symbols stand for in figures of bytes."""
    warning: str = ""
    """What to know of a plan of which almost nothing is split."""
    state: StateSize | None = None
    """What ranks keep from one step to the next."""
    reason: str = ""
    """Why the strategy ``auto`` chose this mesh."""

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.mesh.length("pipeline")

    @property
    def bytes(self) -> int:
        """Bytes of the model's weights; of one that several stages hold, once."""
        return sum({w.name: w.bytes for layer in self.layers for w in layer.weights}.values())

    def stage_bytes(self, stage: int) -> int:
        """Bytes of weights that each rank of a stage holds."""
        return sum(layer.rank_bytes for layer in self.layers if layer.stage == stage)

    def stage_sent(self, stage: int) -> int:
        """Bytes that each rank of a stage sends in one inference."""
        return sum(layer.sent for layer in self.layers if layer.stage == stage)

    def to_json(self) -> dict[str, object]:
        """All of it as plain JSON values."""
        return {
            "title": self.title,
            "mesh": dict(self.mesh.axes),
            "micro_batches": self.micro_batches,
            **({"reason": self.reason} if self.reason else {}),
            "weight_bytes": self.bytes,
            "stages": [
                {"weight_bytes": self.stage_bytes(stage), "sent_bytes": self.stage_sent(stage)}
                for stage in range(self.stages)
            ],
            "inputs": tensors_json(self.inputs),
            "outputs": tensors_json(self.outputs),
            "dims": dict(self.dims),
            **({"state": self.state.to_json()} if self.state else {}),
            "layers": [
                {
                    "name": layer.name,
                    "stage": layer.stage,
                    "weights": [
                        asdict(weight) | {"placement": str(weight.placement), "shape": list(weight.shape)}
                        for weight in layer.weights
                    ],
                    "collectives": [
                        {"op": talk.op, "tensor": talk.tensor, "shape": list(talk.shape), "sent": talk.sent}
                        for talk in layer.talks
                    ],
                }
                for layer in self.layers
            ],
            "whole": dict(self.whole),
            "warning": self.warning,
        }


def sent_bytes(op: str, size: int, ranks: int) -> int:
    """Bytes that each rank sends in a collective of which it puts in ``size`` bytes, by the usual algorithms
    that send least: AllReduce as reduce-scatter and all-gather (2 (n-1)/n of the size), AllGather (n-1 times
    its part), AllToAll ((n-1)/n)."""
    if op == "AllReduce":
        return 2 * size * (ranks - 1) // ranks
    if op == "AllGather":
        return size * (ranks - 1)
    return size * (ranks - 1) // ranks if op == "AllToAll" else size


def shape_of(entry: TensorEntry) -> Shape | None:
    """An entry's shape; None where the number of axes is open."""
    return None if entry.open_rank else entry.shape


def tensors_json(tensors: Sequence[Tensor]) -> list[list[object]]:
    """As plain JSON values."""
    return [[name, dtype, None if shape is None else list(shape)] for name, dtype, shape in tensors]


def weights_json(weights: Sequence[tuple[str, str, Sequence[int], int]]) -> list[dict[str, object]]:
    """Names, element types, shapes and bytes as plain JSON values."""
    return [
        {"name": name, "dtype": dtype, "shape": list(shape), "bytes": size}
        for name, dtype, shape, size in weights
    ]


def shape_text(shape: Shape | None) -> str:
    """A shape as people read it; ``[...]`` where the number of axes is open."""
    if shape is None:
        return "[...]"
    return "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"


def of_slices(folder: Path, manifest: Manifest, dims: Mapping[str, int]) -> Inspection:
    """Looks into a slice folder. Raises `ShardrunError` for a rank model that cannot be read."""
    from ranks.models.model_file import read
    from sharding.onnx_files.validity import demand_text

    mesh = manifest.mesh
    dims = {**manifest.lengths, **dims}
    layers: list[Layer] = []
    stages: dict[str, int] = {}
    for stage in range(mesh.length("pipeline")):
        held = {
            name: (parse_placement(item.placement) or REPLICATED, item.dtype, item.shape, item.bytes)
            for name, item in manifest.weights.items()
            if stage in item.stages
        }
        talks = [c for c in manifest.collectives if c.stage == stage]
        path = _model_of(folder, manifest, stage)
        model = read(path)
        demand_text(model, path)
        graph = model.graph
        stages.update((item.name, stage) for item in graph.output)
        nodes = [used(node) for node in nodes_in_turn(graph)]
        layers += _layers(nodes, held, talks, Place(stage, mesh.length("tensor"), dims))
    return Inspection(
        str(folder),
        mesh,
        manifest.micro_batches,
        tuple((item.name, item.dtype, shape_of(item)) for item in manifest.inputs),
        tuple((item.name, item.dtype, shape_of(item)) for item in manifest.outputs),
        tuple(layers),
        manifest.whole,
        dims,
        hardly_splits_slices(manifest),
        state_size(_kept(manifest, stages), mesh.length("tensor"), dims),
        manifest.reason,
    )


def _kept(manifest: Manifest, stages: Mapping[str, int]) -> Iterator[Kept]:
    inputs = {item.name: item for item in (*manifest.inputs, *manifest.optional_inputs)}
    outputs = {item.name: item for item in manifest.outputs}
    for pair in manifest.state:
        before, after = inputs[pair.input], outputs[pair.output]
        yield pair, stages[pair.output], before.dtype, joined_shape(shape_of(before), shape_of(after))


def _model_of(folder: Path, manifest: Manifest, stage: int) -> Path:
    """A rank model of this stage, all of which have the same nodes: a folder may hold some ranks only."""
    ranks = [
        rank for rank in range(manifest.world_size) if manifest.mesh.coordinates(rank)["pipeline"] == stage
    ]
    for rank in ranks:
        if manifest.ranks[rank].files:
            return folder / manifest.ranks[rank].model
    raise ShardError(
        f"{folder} holds no rank of pipeline stage {stage}, so not the whole plan: slice the model into it "
        f"with --rank {ranks[0]}, or without --rank; or inspect the model itself."
    )


def of_plan(plan: Plan, dims: Mapping[str, int], graphs: Sequence[RankGraph] | None = None) -> Inspection:
    """Looks at a plan; nothing is written. ``graphs`` are its `stage_graphs`, if they are at hand."""
    from sharding.writing.write import tensor_entries

    layers: list[Layer] = []
    dims = {**plan.lengths, **dims}
    weights = plan.weights
    for stage, graph in enumerate(stage_graphs(plan) if graphs is None else graphs):
        held = {}
        for name, placements in plan.stage_held[stage].items():
            weight = plan.source.weights[name]
            if name in weights:
                held[name] = (placements[0], weight.dtype, weight.shape, weight.nbytes)
        nodes = [
            Used(
                node.domain,
                node.op_type,
                ["" if value is None else value.name or "" for value in node.inputs],
                [value.name or "" for value in node.outputs],
                scope_of(node.name or "", node.metadata_props),
            )
            for node in in_turn(graph.nodes)
        ]
        layers += _layers(nodes, held, graph.collectives, Place(stage, plan.tensor_size, dims))
    model = plan.source.model.graph
    return Inspection(
        str(plan.source.path),
        plan.mesh,
        plan.micro_batches,
        tuple((item.name, item.dtype, shape_of(item)) for item in tensor_entries(model.inputs)),
        tuple((item.name, item.dtype, shape_of(item)) for item in tensor_entries(model.outputs)),
        tuple(layers),
        plan.whole,
        dims,
        plan.warning,
        plan.state_size(dims),
        plan.reason,
    )


def stage_graphs(plan: Plan) -> Iterator[RankGraph]:
    """What the first rank of each pipeline stage would run."""
    from sharding.planning.emit import emit_rank

    for stage in range(plan.pipeline.count):
        yield emit_rank(
            plan.source, plan.steps, plan.choices, 0, plan.tensor_size, stages=plan.pipeline, stage=stage,
            state=plan.placed,
        )  # fmt: skip


Held = tuple[Placement, str, Sequence[int], int]


@dataclass(frozen=True)
class Place:
    """Where layers lie: their stage, the size of its tensor group; and what symbols stand for."""

    stage: int
    tensor: int
    dims: Mapping[str, int]


def _layers(
    nodes: Iterable[Used],
    weights: Mapping[str, Held],
    talks: Sequence[Collective | CollectiveEntry],
    place: Place,
) -> list[Layer]:
    result = []
    for layer in by_layer(_without_receives(nodes, weights), weights):
        rows = []
        for name in layer.weights:
            placement, dtype, shape, size = weights[name]
            rows.append(
                Weight(name, placement, dtype, shape, size, held_bytes(size, placement, place.tensor))
            )
        own = []
        for talk in (talks[number] for number in layer.collectives if number < len(talks)):
            size = tensor_bytes(talk.dtype, talk.shape, place.dims)
            sent = sent_bytes(talk.op, size, place.tensor)
            own.append(Talk(talk.op, talk.tensor, talk.dtype, talk.shape, size, sent, talk.within))
        if rows or own:
            result.append(Layer(layer.name, place.stage, tuple(rows), tuple(own)))
    return result


def _without_receives(nodes: Iterable[Used], weights: Mapping[str, Held]) -> Iterable[Used]:
    """What a manifest lists: of Send and Recv the Send only. A weight that is held in two ways has a second
    name in the rank model, which is led back to its own."""
    for node in nodes:
        if node.op_type == "Recv" and node.domain == OWN_DOMAIN:
            continue
        names = [name if name in weights else _source_name(name, weights) for name in node.inputs]
        yield replace(node, inputs=names)


def _source_name(name: str, weights: Mapping[str, Held]) -> str:
    for mark in ("/split:", "/replicated"):
        stem, found, _ = name.rpartition(mark)
        if found and stem in weights:
            return stem
    return name


def used(node: onnx.NodeProto) -> Used:
    """A node of a model file."""
    metadata = {item.key: item.value for item in node.metadata_props}
    return Used(node.domain, node.op_type, list(node.input), list(node.output), scope_of(node.name, metadata))
