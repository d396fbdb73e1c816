"""Which part of a model a rank model is: what slicing wrote into its metadata.

The format is that of docs/formats.md, "Rank models".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.errors import ShardError, SliceError
from sharding.common.bounds import MAX_MICRO_BATCHES
from sharding.common.text import parse_whole
from sharding.slices.batch import read_sums
from sharding.slices.manifest_fields import Field
from sharding.slices.mesh import Mesh, parse_mesh

if TYPE_CHECKING:
    import onnx

_MAX_AXIS = 32
_MAX_TEXT = 64 << 20  # bytes of a layout: a million outputs


@dataclass(frozen=True)
class Part:
    """A rank's place in its mesh, and how the whole model's inputs and outputs are made of the ranks' own."""

    mesh: Mesh
    rank: int
    micro_batches: int = 1
    outputs: tuple[tuple[str, int], ...] = ()
    """Each output of the whole model, in order, and the stage that gives it."""
    batch_inputs: Mapping[str, int] = field(default_factory=dict)
    """Input -> the axis that data parallelism and micro-batches cut."""
    batch_outputs: Mapping[str, int] = field(default_factory=dict)
    batch_lengths: Mapping[str, str] = field(default_factory=dict)
    """Symbol of the inputs' axes -> the sum of others that it must be, for the batch to be cut."""
    digest: bytes = b""
    """The hash of all metadata that the ranks must have in common."""

    @property
    def scheduled(self) -> bool:
        """Whether running the model takes more than running this rank's part once."""
        return self.micro_batches > 1 or self.mesh.size != self.mesh.length("tensor")

    @property
    def place(self) -> dict[str, int]:
        """Where this rank stands on each axis of the mesh."""
        return self.mesh.coordinates(self.rank)

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """All groups of ranks that differ on this axis only."""
        return tuple(self.mesh.groups(axis))

    def columns(self) -> tuple[tuple[int, ...], ...]:
        """All groups of ranks with the same place on the tensor axis: each holds every stage once."""
        found: dict[int, list[int]] = {}
        for rank in range(self.mesh.size):
            found.setdefault(self.mesh.coordinates(rank)["tensor"], []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())


def is_part(model: onnx.ModelProto) -> bool:
    """Whether a model's metadata say that it takes several ranks, or several runs, to compute."""
    found = _metadata(model)
    try:
        mesh = parse_mesh(found.get("shardrun.mesh", "tensor=1"))
    except SliceError:
        return True  # `read_part` says what is wrong
    return mesh.size > 1 or found.get("shardrun.micro_batches", "1") != "1"


def read_part(model: onnx.ModelProto, file: Path, rank: int, world_size: int) -> Part | None:
    """The part that a model is; None for one that slicing did not make, or made without a mesh.

    Raises `ShardError` where the metadata say anything that slicing does not write, or that the model is for
    another rank or world size.
    """
    found = _metadata(model)
    text = found.get("shardrun.mesh")
    mesh = None if text is None else _mesh(text, file)
    _check_rank(found, file, rank, world_size, mesh)
    if mesh is None or text is None:
        return None
    if mesh.size != world_size:
        raise ShardError(
            f"{file} is for a mesh of {mesh.size} ranks ({mesh}), but this job has world size {world_size}: "
            f"start {mesh.size} ranks, or slice the model again."
        )
    said = found.get("shardrun.micro_batches", "1")
    micro = parse_whole(said, 1, MAX_MICRO_BATCHES)
    if micro is None:
        raise ShardError(
            f"{file}: its metadata shardrun.micro_batches must be a number from 1 to {MAX_MICRO_BATCHES}, "
            f"but is {said[:40]!r}: slice the model again."
        )
    layout = found.get("shardrun.layout")
    digest = hashlib.sha256(repr((str(mesh), micro, layout)).encode(errors="replace")).digest()
    if layout is None:
        part = Part(mesh, rank, micro, digest=digest)
        if part.scheduled:
            raise ShardError(
                f"{file} lacks the metadata shardrun.layout, which a mesh of {mesh} and {micro} "
                "micro-batches needs: slice the model again."
            )
        return part
    return _layout(layout, Part(mesh, rank, micro, digest=digest), file, model)


def _metadata(model: onnx.ModelProto) -> dict[str, str]:
    """Keys and values; protobuf gives what is not UTF-8 as bytes."""
    return {str(item.key): str(item.value) for item in model.metadata_props}


def _check_rank(found: Mapping[str, str], file: Path, rank: int, world_size: int, mesh: Mesh | None) -> None:
    """Ranks that differ on the data axis alone run the same file."""
    said, size = found.get("shardrun.rank", str(rank)), found.get("shardrun.world_size", str(world_size))
    fits = said == str(rank)
    if mesh is not None and (number := parse_whole(said, 0, mesh.size - 1)) is not None:
        fits = rank in mesh.group(number, "data")
    if not fits or size != str(world_size):
        raise ShardError(
            f"{file} is the model of rank {said[:20]} of {size[:20]}, but this process is rank {rank} of "
            f"{world_size}: give each rank its own file."
        )


def _mesh(text: str, file: Path) -> Mesh:
    try:
        return parse_mesh(text)
    except SliceError as error:
        raise ShardError(f"{file}: its metadata shardrun.mesh is damaged: {error}") from None


def _layout(text: str, part: Part, file: Path, model: onnx.ModelProto) -> Part:
    where = f"{file}, metadata shardrun.layout"
    if len(text) > _MAX_TEXT:
        raise ShardError(f"{where} has {len(text)} characters; at most {_MAX_TEXT} are possible.")
    try:
        root = Field(where, "$", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{where} is not valid JSON ({error}): slice the model again.") from None
    stages = part.mesh.length("pipeline")
    outputs = []
    for item in root["outputs"].items():
        pair = list(item.items())
        if len(pair) != 2 or pair[1].integer(0) >= stages:
            raise item.error(f"an output's name and its stage below {stages}", item.value)
        outputs.append((pair[0].string(), pair[1].integer(0)))
    names = [name for name, _ in outputs]
    if len(set(names)) != len(names) or not names:
        raise root["outputs"].error("the model's outputs, each once", names)
    axes = {kind: _axes(root["batch"][kind]) for kind in ("inputs", "outputs")}
    given = {value.name for value in model.graph.input}
    for kind, known in (("inputs", given), ("outputs", set(names))):
        for name in axes[kind]:
            if name not in known:
                raise root["batch"][kind].error(f"axes of the model's {kind}", name)
    here = part.place["pipeline"]
    mine = {name for name, stage in outputs if stage == here}
    if (own := {value.name for value in model.graph.output}) != mine:
        odd = sorted(own ^ mine)[0]
        raise ShardError(
            f"{where}: stage {here} gives {len(mine)} outputs there, but the file has {len(own)} "
            f"({odd[:80]!r} is in one of them only): slice the model again."
        )
    return Part(
        part.mesh,
        part.rank,
        part.micro_batches,
        tuple(outputs),
        axes["inputs"],
        axes["outputs"],
        read_sums(root["batch"], _open_axes(model))[0],
        part.digest,
    )


def _open_axes(model: onnx.ModelProto) -> list[str]:
    return [axis.dim_param for value in model.graph.input for axis in value.type.tensor_type.shape.dim]


def _axes(item: Field) -> dict[str, int]:
    axes = {}
    for name, value in item.entries():
        axes[name] = value.integer(0)
        if axes[name] >= _MAX_AXIS:
            raise value.error(f"an axis below {_MAX_AXIS}", value.value)
    return axes
