"""Writes a plan into a copy of the model as the standard's multi-device annotations (ONNX IR version 11).

The file is copied field by field and never parsed as a whole: only nodes, the list of configurations and the
IR version are changed, so that weights stream from file to file, whatever their size. What is appended to a
protobuf message is merged into it, so a node keeps its bytes and gets its annotation behind them.
"""

from __future__ import annotations

import functools
import mmap
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sharding.common.storage import why_unwritable
from sharding.demands.annotations import device_groups, read_stripped
from sharding.demands.demand import first_output, label_of
from sharding.demands.device_specs import write_spec
from sharding.errors import OutputError
from sharding.graph.symbols import shown_shape
from sharding.importers.sniff import is_imported
from sharding.onnx_files.external import find_data, locations
from sharding.onnx_files.protobuf import field, fields, varint
from sharding.rules.flow import FLOW
from sharding.search.branches import paths
from sharding.slices.cut_short import WHOLE_FILES
from sharding.slices.folder import replace_file
from sharding.slices.manifest import sha256_of
from sharding.slices.mesh import Mesh
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split

if TYPE_CHECKING:
    import onnx

    from sharding.planning.plan import Plan
    from sharding.search.steps import Step

IR_VERSION = 11
"""The first with multi-device annotations."""
CHUNK_BYTES = 8 << 20
_MODEL_IR_VERSION, _MODEL_GRAPH, _MODEL_CONFIGURATION, _GRAPH_NODE = 1, 7, 26, 1
_NODE_OUTPUT, _NODE_CONFIGURATIONS = 2, 10
_BYTES = 2

Piece = bytes | tuple[int, int]
"""New bytes, or the range of the source file's that is copied."""


@WHOLE_FILES
def annotate(plan: Plan, output: str | Path) -> None:
    """Writes a copy of the plan's model with the plan as annotations.

    The configuration is for the ranks of one copy of the model (data-parallel copies are not devices of it),
    and replaces an earlier one for as many ranks. External data stay where they lie if the copy is in the
    model's folder, and are copied beside it otherwise. Raises `OutputError` if the output cannot be written.
    """
    output, source = Path(output), plan.source.path
    try:
        in_the_way = output.exists() and not output.is_file()
    except OSError as error:  # too long a name, a circle of links
        raise OutputError(f"{output} cannot be written: {why_unwritable(error)}.") from None
    if in_the_way:
        raise OutputError(f"{output} is not a file: give the annotated copy the name of a new ONNX file.")
    if not output.absolute().parent.is_dir():
        raise OutputError(f"{output} cannot be written: its folder does not exist.")
    if output.exists() and output.samefile(source):
        raise OutputError(f"{output} is the model itself: give the annotated copy another name.")
    if is_imported(source):
        raise OutputError(
            f"{source} is no ONNX file, so no copy of it can be annotated: convert it first, with `shardrun "
            "convert`."
        )
    proto = read_stripped(source)
    for name in locations(proto):
        held = find_data(source, name, str(source))
        if output.exists() and held.exists() and output.samefile(held):
            raise OutputError(f"{output} holds weights of {source}: give the annotated copy another name.")
    _check_bodies(plan)
    mesh = plan.mesh
    devices = mesh.length("pipeline") * mesh.length("tensor")
    replaced = {item.name for item in proto.configuration if item.num_devices == devices}
    taken = {item.name for item in proto.configuration} - replaced
    name = next(name for name in _names(devices) if name not in taken)
    notes = _annotations(plan, proto, name, mesh)
    try:
        _copy_external(proto, source, output.absolute().parent)
        with (
            source.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            pieces = _model_pieces(data, notes, replaced | {name})
            pieces.append(field(_MODEL_CONFIGURATION, _configuration(name, devices)))
            replace_file(output, lambda target: _write_pieces(target, data, pieces))
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {why_unwritable(error)}.") from None


def _names(devices: int) -> Iterator[str]:
    yield f"shardrun_{devices}"
    number = 2
    while True:
        yield f"shardrun_{devices}_{number}"
        number += 1


def _configuration(name: str, devices: int) -> bytes:
    import onnx

    found: bytes = onnx.DeviceConfigurationProto(name=name, num_devices=devices).SerializeToString()
    return found


# What is annotated.


def _check_bodies(plan: Plan) -> None:
    """Raises `OutputError` where the plan cuts what is in the body of a control-flow operator: no annotation
    there is read."""
    for step, choice, path in zip(plan.steps, plan.choices, paths(plan.steps), strict=True):
        option = step.options[choice]
        cut = any(placement != REPLICATED for placement in (*option.inputs, *option.outputs))
        if cut and path and step.node.domain != FLOW:
            raise OutputError(
                f"{plan.source.path}: this plan cannot be written as annotations: it cuts "
                f"{label_of(step.node)} in the body of a control-flow operator, where none are followed. "
                "Keep the plan in a file of its own, with --save-plan."
            )


def _annotations(plan: Plan, proto: onnx.ModelProto, name: str, mesh: Mesh) -> dict[str, bytes]:
    """By the first output of each node of the file what is appended to it."""
    import onnx

    groups = device_groups(mesh)
    in_file = {_made_by(node.output): node for node in proto.graph.node}
    summed = _kept_as_sums(plan)
    notes = {}
    for index, step in enumerate(plan.steps):
        made = first_output(step.node)
        node = in_file.get(made)
        if node is None:  # the reader wrote it otherwise
            continue
        stage = plan.stages[index]
        entry = onnx.NodeDeviceConfigurationProto(configuration_id=name)
        for tensor, (placement, shape) in _placements(step, plan.choices[index], node, summed).items():
            write_spec(entry.sharding_spec.add(), tensor, placement, shape, groups[stage])
        if len(groups) > 1:
            entry.pipeline_stage = stage
        notes[made] = onnx.NodeProto(device_configurations=[entry]).SerializeToString()
    return notes


def _made_by(outputs: Sequence[str]) -> str:
    return next((name for name in outputs if name), "")


def _kept_as_sums(plan: Plan) -> set[str]:
    """Values that some node takes as summands: where these are reduced cannot be said."""
    return {
        value.name or ""
        for step, choice in zip(plan.steps, plan.choices, strict=True)
        for value, placement in zip(step.inputs, step.options[choice].inputs, strict=True)
        if value is not None and placement == PARTIAL
    }


def _placements(
    step: Step, choice: int, node: onnx.NodeProto, summed: set[str]
) -> dict[str, tuple[Placement, Sequence[int | str | None]]]:
    """By tensor name the placement and the whole shape; what cannot be said is left out.

    That is a sum that a later node reduces, and a tensor that one node takes at two placements.
    """
    option = step.options[choice]
    names = {*node.input, *node.output}
    found: dict[str, tuple[Placement, Sequence[int | str | None]]] = {}
    twofold = set()
    for value, placement in [
        *zip(step.inputs, option.inputs, strict=True),
        *zip(step.node.outputs, option.outputs, strict=True),
    ]:
        name = "" if value is None else value.name or ""
        if name not in names or not name:
            continue
        where = placement
        if where == PARTIAL:
            if name in summed:
                continue
            where = REPLICATED
        shape = shown_shape(value)
        if isinstance(where, Split) and shape is None:
            continue
        if name in found and found[name][0] != where:
            twofold.add(name)
        found[name] = (where, shape or ())
    return {name: item for name, item in found.items() if name not in twofold}


# How the file is copied.


def _model_pieces(data: memoryview, notes: dict[str, bytes], replaced: set[str]) -> list[Piece]:
    import onnx

    pieces: list[Piece] = []
    version = 0
    for number, wire, first, payload, end in fields(data, 0, len(data)):
        if number == _MODEL_IR_VERSION:
            version = onnx.ModelProto.FromString(bytes(data[first:end])).ir_version
        elif number == _MODEL_GRAPH and wire == _BYTES:
            inner = _graph_pieces(data, payload, end, notes, replaced)
            size = sum(len(item) if isinstance(item, bytes) else item[1] - item[0] for item in inner)
            pieces += [varint(_MODEL_GRAPH << 3 | _BYTES) + varint(size), *inner]
        elif number == _MODEL_CONFIGURATION and wire == _BYTES:
            if onnx.DeviceConfigurationProto.FromString(bytes(data[payload:end])).name not in replaced:
                pieces.append((first, end))
        else:
            pieces.append((first, end))
    return [varint(_MODEL_IR_VERSION << 3) + varint(max(version, IR_VERSION)), *pieces]


def _graph_pieces(
    data: memoryview, start: int, stop: int, notes: dict[str, bytes], replaced: set[str]
) -> list[Piece]:
    pieces: list[Piece] = []
    for number, wire, first, payload, end in fields(data, start, stop):
        if number == _GRAPH_NODE and wire == _BYTES:
            pieces += _node_pieces(data, payload, end, notes, replaced)
        else:
            pieces.append((first, end))
    return pieces


def _node_pieces(
    data: memoryview, start: int, stop: int, notes: dict[str, bytes], replaced: set[str]
) -> list[Piece]:
    import onnx

    kept: list[Piece] = []
    outputs = []
    for number, wire, first, payload, end in fields(data, start, stop):
        if number == _NODE_OUTPUT and wire == _BYTES:
            outputs.append(bytes(data[payload:end]).decode())
        if number == _NODE_CONFIGURATIONS and wire == _BYTES:
            entry = onnx.NodeDeviceConfigurationProto.FromString(bytes(data[payload:end]))
            if entry.configuration_id in replaced:
                continue
        kept.append((first, end))
    kept.append(notes.get(_made_by(outputs), b""))
    size = sum(len(item) if isinstance(item, bytes) else item[1] - item[0] for item in kept)
    return [varint(_GRAPH_NODE << 3 | _BYTES) + varint(size), *kept]


def _write_pieces(target: BinaryIO, data: memoryview, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if isinstance(piece, bytes):
            target.write(piece)
            continue
        for start in range(*piece, CHUNK_BYTES):
            target.write(data[start : min(start + CHUNK_BYTES, piece[1])])


def _copy_external(proto: onnx.ModelProto, source: Path, target: Path) -> None:
    """Copies the files with external data beside the copy, unless they lie there."""
    for location in locations(proto):
        there, here = find_data(source, location, str(source)), target / location
        if here.exists():
            if not here.resolve().is_relative_to(target.resolve()):
                raise OutputError(
                    f"{here} is a link that leads out of the folder, where the annotated copy's data would "
                    "not be read: write the copy into another folder."
                )
            if here.samefile(there) or _same_bytes(here, there):
                continue
            raise OutputError(
                f"{here} is there already, with other content than {there}, which the annotated copy needs "
                f"beside it: write the copy into another folder."
            )
        here.parent.mkdir(parents=True, exist_ok=True)
        replace_file(here, functools.partial(_copy_file, there))


def _same_bytes(one: Path, other: Path) -> bool:
    return one.is_file() and one.stat().st_size == other.stat().st_size and sha256_of(one) == sha256_of(other)


def _copy_file(path: Path, target: BinaryIO) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, target, CHUNK_BYTES)
