"""Reads the multi-device annotations of a model (ONNX IR version 11) as demands on its nodes.

A model declares configurations (``DeviceConfigurationProto``: a name and a number of devices); a node says,
for each of them, how its inputs and outputs are sharded and to which pipeline stage it belongs. Devices count
the ranks of one copy of the model, stage by stage: the mesh's data axis has no part in them.
An input's spec is what the node takes, an output's how the value is left after it; what moves data between is
not annotated. Where nothing is annotated, the solver chooses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.text import counted
from sharding.demands.demand import Demand, first_output, in_words, label_of
from sharding.demands.device_specs import SpecError, read_spec
from sharding.errors import SliceError
from sharding.graph.values import shape_of
from sharding.importers.message import parse_without_weights
from sharding.onnx_files.walk import nodes_in, subgraphs
from sharding.slices.mesh import Mesh
from sharding.slices.placement import Placement, Replicated

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from sharding.reading.read import Source
    from sharding.search.steps import Step

IGNORE = "leave the annotations aside with --ignore-annotations (in Python: annotations=False)"


@dataclass(frozen=True)
class NodeAnnotation:
    """What one node of the file's main graph says for the chosen configuration."""

    label: str
    names: frozenset[str]
    """Its inputs and outputs."""
    specs: Mapping[str, onnx.ShardingSpecProto]
    """By tensor name."""
    stage: int | None


@dataclass(frozen=True)
class Annotations:
    """The annotations for one number of devices. ``nodes``: by the node's first output."""

    devices: int
    nodes: Mapping[str, NodeAnnotation] = field(default_factory=dict)

    @property
    def stages(self) -> list[int]:
        """The pipeline stages that occur, in order; the standard does not say that they count from 0."""
        return sorted({node.stage for node in self.nodes.values() if node.stage is not None})


def is_annotated(source: Source) -> bool:
    """Whether the model has multi-device annotations of any kind."""
    nodes = source.model.graph.all_nodes()
    return bool(source.model.device_configurations) or any(node.device_configurations for node in nodes)


def read_annotations(source: Source, devices: int) -> Annotations | None:
    """The annotations for this number of devices; None if the model has none at all.

    Raises `SliceError` if those that it has are for other numbers, or contradict each other. One device
    does all, whatever they say.
    """
    if devices == 1:
        return None
    if not is_annotated(source):
        return None
    status = source.path.stat()
    return _read(source.path, (status.st_ino, status.st_size, status.st_mtime_ns), devices)


@functools.lru_cache(maxsize=2)
def _read(path: Path, _version: tuple[int, int, int], devices: int) -> Annotations | None:
    """``_version``: what tells the file from one that has its name later; a plan reads it many times."""
    proto = read_stripped(path)
    where = str(path)
    used = {item.configuration_id for node in _all_nodes(proto) for item in node.device_configurations}
    configuration = _chosen(proto, used, devices, where)
    if configuration is None:
        return None
    found: dict[str, NodeAnnotation] = {}
    for node in proto.graph.node:
        annotation = _of_node(node, configuration, where)
        if annotation is not None:
            found[next((name for name in node.output if name), "")] = annotation
    for node in _inner_nodes(proto):
        inner = _of_node(node, configuration, where)
        if inner is not None:
            _refuse_cuts(inner, where)
    return Annotations(devices, found)


def _refuse_cuts(inner: NodeAnnotation, where: str) -> None:
    for name, spec in inner.specs.items():
        for dim in spec.sharded_dim:
            if any(simple.num_shards > 1 for simple in dim.simple_sharding):
                raise SliceError(
                    f"{where}: {inner.label}: tensor {name!r} cannot be cut on axis {dim.axis} as annotated: "
                    "the node is in the body of a function or of a control-flow operator, which is planned "
                    f"without annotations. Take this one away, or {IGNORE}."
                )


def read_stripped(path: Path) -> onnx.ModelProto:
    """The model's message, its large weights left in the file. The file was read once already."""
    try:
        return parse_without_weights(path)
    except Exception as error:  # it could be read a moment ago
        raise SliceError(f"{path} changed while it was read: {error}.") from None


def _all_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return nodes_in(proto.graph, *proto.functions)


def _inner_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return nodes_in(*proto.functions, *(body for node in proto.graph.node for body in subgraphs(node)))


def _chosen(proto: onnx.ModelProto, used: set[str], devices: int, where: str) -> str | None:
    """The name of the configuration for this number of devices; None if no node says anything."""
    names = [item.name for item in proto.configuration]
    for name in names:
        if not name or names.count(name) > 1:
            what = "two configurations have the name" if name else "a configuration has the empty name"
            raise SliceError(f"{where}: {what} {name!r}; expected one name for each.")
    for item in proto.configuration:
        if item.device and len(item.device) != item.num_devices:
            raise SliceError(
                f"{where}: configuration {item.name!r} names {counted(len(item.device), 'device')}, but has "
                f"num_devices {item.num_devices}."
            )
    if not used:
        return None
    for node in _all_nodes(proto):
        for entry in node.device_configurations:
            if entry.configuration_id not in names:
                raise SliceError(
                    f"{where}: {_label(node)} is annotated for the configuration "
                    f"{entry.configuration_id!r}, which the model does not declare (it declares "
                    f"{', '.join(map(repr, names)) or 'none'})."
                )
    fitting = [item.name for item in proto.configuration if item.num_devices == devices and item.name in used]
    if len(fitting) == 1:
        return str(fitting[0])
    if fitting:
        listed = ", ".join(map(repr, fitting))
        raise SliceError(
            f"{where}: the configurations {listed} are all for {counted(devices, 'device')}: remove the "
            f"annotations of all but one, or {IGNORE}."
        )
    listed = ", ".join(f"{item.num_devices} ({item.name!r})" for item in proto.configuration)
    sizes = [item.num_devices for item in proto.configuration if item.num_devices > 0]
    copies = next(
        (
            f" or copies of it (--mesh data={devices // size},tensor={size})"
            for size in sizes
            if devices % size == 0
        ),
        "",
    )
    raise SliceError(
        f"{where}: its annotations are for {listed} devices, not for {devices}: slice it for such a number "
        f"of ranks{copies}, or {IGNORE}."
    )


def _label(node: onnx.NodeProto) -> str:
    made = next((name for name in node.output if name), "")
    return f"node {node.name!r} ({node.op_type})" if node.name else f"the {node.op_type} that makes {made!r}"


def _of_node(node: onnx.NodeProto, configuration: str, where: str) -> NodeAnnotation | None:
    entries = [item for item in node.device_configurations if item.configuration_id == configuration]
    if not entries:
        return None
    label = _label(node)
    if len(entries) > 1:
        raise SliceError(f"{where}: {label} is annotated twice for the configuration {configuration!r}.")
    entry = entries[0]
    names = frozenset(name for name in (*node.input, *node.output) if name)
    specs: dict[str, onnx.ShardingSpecProto] = {}
    for spec in entry.sharding_spec:
        if spec.tensor_name not in names:
            raise SliceError(
                f"{where}: {label} is annotated for the tensor {spec.tensor_name!r}, which is none of its "
                f"inputs and outputs ({', '.join(sorted(map(repr, names)))})."
            )
        if spec.tensor_name in specs:
            raise SliceError(f"{where}: {label} is annotated twice for the tensor {spec.tensor_name!r}.")
        specs[spec.tensor_name] = spec
    stage = entry.pipeline_stage if entry.HasField("pipeline_stage") else None
    if stage is not None and stage < 0:
        raise SliceError(f"{where}: {label} has the pipeline_stage {stage}; expected 0 or more.")
    return NodeAnnotation(label, names, specs, stage)


def annotated_mesh(source: Source, ranks: int) -> Mesh | None:
    """The mesh that the annotations for this many ranks need; None if the model has none.

    Raises `SliceError`: the stages do not divide the ranks, or what `read_annotations` raises.
    """
    annotations = read_annotations(source, ranks)
    if annotations is None:
        return None
    stages = len(annotations.stages) or 1
    if ranks % stages:
        raise SliceError(
            f"{source.path}: its nodes are annotated with {stages} pipeline stages, which do not divide "
            f"{counted(ranks, 'rank')}."
        )
    return Mesh.of(pipeline=stages, tensor=ranks // stages)


def annotated_stages(source: Source, graph: Sequence[Step], devices: int) -> list[int | None]:
    """The pipeline stage that each step is annotated with, counted from 0; None where it is not.

    ``devices``: ranks of one copy of the model. Raises `SliceError` where a node reads what a later stage
    makes.
    """
    annotations = read_annotations(source, devices)
    if annotations is None:
        return [None] * len(graph)
    number = {stage: index for index, stage in enumerate(annotations.stages)}
    found: list[int | None] = []
    makers: dict[ir.Value, tuple[int, Step]] = {}
    for step in graph:
        node = annotations.nodes.get(first_output(step.node))
        stage = None if node is None or node.stage is None else number[node.stage]
        found.append(stage)
        read = [makers[value] for value in step.inputs if value is not None and value in makers]
        latest = max(read, key=lambda item: item[0], default=None)
        if stage is not None and latest is not None and latest[0] > stage:
            raise SliceError(
                f"{source.path}: {label_of(step.node)} is annotated with pipeline_stage "
                f"{annotations.stages[stage]}, but reads what {label_of(latest[1].node)} makes in "
                f"pipeline_stage {annotations.stages[latest[0]]}."
            )
        if stage is not None:
            latest = (stage, step)
        if latest is not None:
            makers.update((value, latest) for value in step.node.outputs)
    return found


def device_groups(mesh: Mesh) -> list[range]:
    """The devices of each stage, in the order of its tensor ranks: whatever ranks they are on the mesh."""
    size = mesh.length("tensor")
    return [range(stage * size, (stage + 1) * size) for stage in range(mesh.length("pipeline"))]


def annotated_demands(source: Source, graph: Sequence[Step], mesh: Mesh) -> list[tuple[Step, Demand, str]]:
    """What the annotations ask of each step on a mesh, with the words that begin an error about it."""
    devices = mesh.length("pipeline") * mesh.length("tensor")
    annotations = read_annotations(source, devices)
    if annotations is None:
        return []
    stages = annotations.stages
    if len(stages) not in {0, mesh.length("pipeline")}:
        raise SliceError(
            f"{source.path}: its nodes are annotated with {counted(len(stages), 'pipeline stage')}, but the "
            f"mesh {mesh} has {mesh.length('pipeline')}."
        )
    groups = device_groups(mesh)
    demands = []
    for step in graph:
        node = annotations.nodes.get(first_output(step.node))
        if node is None:
            continue
        where = f"{source.path}: {node.label}"
        group = groups[0 if node.stage is None or not stages else stages.index(node.stage)]
        if node.stage is None and len(stages) > 1 and any(spec.device for spec in node.specs.values()):
            raise SliceError(f"{where}: its devices are given, but no pipeline_stage, as for other nodes.")
        demand = Demand()
        for values, wanted in ((step.inputs, demand.inputs), (step.node.outputs, demand.outputs)):
            for index, value in enumerate(values):
                spec = None if value is None else node.specs.get(value.name or "")
                if value is not None and spec is not None:
                    wanted[index] = _placement(spec, value, group, where)
        demands.append((step, demand, where))
    return demands


def _placement(spec: onnx.ShardingSpecProto, value: ir.Value, group: Sequence[int], where: str) -> Placement:
    try:
        placement = read_spec(spec, shape_of(value), group)
    except SpecError as error:
        raise SliceError(f"{where}: tensor {value.name!r}: {error}.") from None
    if not isinstance(placement, Replicated) and value.dtype is None:
        raise SliceError(f"{where}: tensor {value.name!r} of unknown type cannot be {in_words(placement)}.")
    return placement
