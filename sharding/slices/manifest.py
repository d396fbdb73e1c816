"""``manifest.json``, the table of contents of a slice folder: written, read strictly, checked against files.

Imports only the standard library, for every rank reads a manifest while it starts. The format is documented
in docs/formats.md, "Manifest, version 2".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sharding.errors import ShardError
from sharding.slices.batch import BatchAxes, read_sums
from sharding.slices.manifest_fields import Field
from sharding.slices.mesh import AXES, Mesh
from sharding.slices.never_empty import NeverEmpty
from sharding.slices.never_empty import read as read_never_empty
from sharding.slices.state import StatePair, check_pairs, read_pairs, to_json

FORMAT = "shardrun-slices"
VERSION = 2
FILE_NAME = "manifest.json"
SLICE_FILE = r"rank_\d+\.(onnx|data)|(shared|stage_\d+|(stage_\d+_)?part_\d+_of_\d+)\.data"
"""A regular expression for the names of all other files in a slice folder."""
MAX_BYTES = 256 << 20
"""A larger manifest is refused unread: a model with a million weights needs about 150 MB."""

Shape = tuple["int | str | None", ...]


@dataclass(frozen=True)
class FileEntry:
    """One file: its name relative to the folder, length in bytes and SHA-256 in hexadecimal."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class RankEntry:
    """One rank's shard. Ranks of different data groups run the same files, and so may name the same ones.

    ``weight_bytes``: what the rank holds of weights, split ones and whole ones. No ``files``: this folder was
    written for other ranks only.
    """

    rank: int
    model: str
    weight_bytes: int
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class WeightEntry:
    """One weight of the source model: how it lies over the ranks, its whole shape and bytes, and the pipeline
    stages that use it. ``made_of``: what it was folded from, where the file has not itself."""

    placement: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    stages: tuple[int, ...] = (0,)
    made_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectiveEntry:
    """One collective of an inference, in order; ``shape`` is that of what each rank puts in. Of ``Send`` and
    ``Recv`` only the ``Send`` is listed."""

    op: str
    tensor: str
    dtype: str
    shape: Shape
    stage: int = 0
    within: str = ""
    """The bodies of control flow that it lies in; the file leaves it out for others."""


@dataclass(frozen=True)
class TensorEntry:
    """A model input or output, whole; an axis is a length, a symbol or unknown (None). ``open_rank``: it may
    have any number of axes, and ``shape`` is empty."""

    name: str
    dtype: str
    shape: Shape
    open_rank: bool = False


_NO_MESH = Mesh.of()


@dataclass(frozen=True)
class Manifest:
    """What a slice folder holds."""

    source: FileEntry
    world_size: int
    ranks: tuple[RankEntry, ...]
    weights: Mapping[str, WeightEntry] = field(default_factory=dict)
    collectives: tuple[CollectiveEntry, ...] = ()
    inputs: tuple[TensorEntry, ...] = ()
    outputs: tuple[TensorEntry, ...] = ()
    whole: Mapping[str, int] = field(default_factory=dict)
    strategy: str = "tensor"
    mesh: Mesh = _NO_MESH
    """Its size is the world size; left out, all ranks form one tensor group."""
    micro_batches: int = 1
    batch: BatchAxes = field(default_factory=BatchAxes)
    created_by: str = "shardrun"
    reason: str = ""
    """Why strategy ``auto`` chose this one; the file may leave it out."""
    optional_inputs: tuple[TensorEntry, ...] = ()
    """Inputs that have a default in the model; the file may leave them out."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """The open lengths planned for, by symbol; the file may leave them out."""
    state: tuple[StatePair, ...] = ()
    """The inputs that are fed what outputs gave in the step before; the file may leave them out."""
    never_empty: tuple[NeverEmpty, ...] = ()
    """Axes of inputs that must not be empty; the file may leave them out."""

    def __post_init__(self) -> None:
        if self.mesh is _NO_MESH:
            object.__setattr__(self, "mesh", Mesh.of(tensor=self.world_size))

    def to_json(self) -> str:
        """The text of the file; the same manifest gives the same bytes."""
        head = {"format": FORMAT, "version": VERSION, "created_by": self.created_by}
        body = asdict(self)
        body["mesh"] = dict(self.mesh.axes)
        body["batch"] = self.batch.to_json()
        body["state"] = to_json(self.state)
        body["never_empty"] = [rule.to_json() for rule in self.never_empty]
        tensors = (*body["inputs"], *body["optional_inputs"], *body["outputs"])
        for entry in (*tensors, *body["weights"].values(), *body["collectives"]):
            for key in ("open_rank", "made_of", "within"):  # left out where they say nothing
                if not entry.get(key, True):
                    del entry[key]
        order = (
            "source",
            "world_size",
            "strategy",
            "mesh",
            *(["reason"] if self.reason else []),
            "micro_batches",
            *(["lengths"] if self.lengths else []),
            "batch",
            "ranks",
            "weights",
            "collectives",
            "inputs",
            *(["optional_inputs"] if self.optional_inputs else []),
            "outputs",
            *(["state"] if self.state else []),
            *(["never_empty"] if self.never_empty else []),
            "whole",
        )
        return json.dumps(head | {key: body[key] for key in order}, indent=1, ensure_ascii=False) + "\n"


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Writes the manifest into a slice folder."""
    (Path(folder) / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")


def read_manifest(folder: str | Path) -> Manifest:
    """Reads a slice folder's manifest.

    Raises `ShardError` if it is missing, not JSON, or says anything that a manifest cannot say; the sentence
    names the file, the JSON path, what was expected and what was found.
    """
    path = Path(folder) / FILE_NAME
    try:
        size = path.stat().st_size
        if not path.is_file():  # to read a pipe would wait for who writes to it
            raise ShardError(f"{path} is not a file: slice the model again.")
        if size > MAX_BYTES:
            raise ShardError(
                f"{path} has {size} bytes; a manifest has at most {MAX_BYTES}: slice the model again."
            )
        text = path.read_bytes()
    except FileNotFoundError:
        raise ShardError(
            f"{path} does not exist: {folder} is not a slice folder made by `shardrun slice`."
        ) from None
    except (OSError, ValueError) as error:
        raise ShardError(f"{path} cannot be read: {error}.") from None
    return parse_manifest(text, str(path))


def parse_manifest(text: str | bytes, where: str = FILE_NAME) -> Manifest:
    """Parses a manifest's text; ``where`` names it in errors (`ShardError`)."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{where} is not valid JSON ({error}): slice the model again.") from None
    root = Field(where, "$", data)
    found_format = root.mapping().get("format")
    if found_format != FORMAT:
        raise root.error(f'"format": "{FORMAT}"', found_format)
    if (version := root["version"].integer(1)) != VERSION:
        raise ShardError(
            f"{where} has format version {version}, but this shardrun reads version {VERSION}: "
            f"slice the model again, or use the shardrun that made it ({root.text('created_by')})."
        )
    world_size = root["world_size"].integer(1)
    manifest = Manifest(
        source=_source(root["source"]),
        world_size=world_size,
        ranks=tuple(_rank(item) for item in root["ranks"].items()),
        weights={name: _weight(item) for name, item in root["weights"].entries()},
        collectives=tuple(_collective(item) for item in root["collectives"].items()),
        inputs=tuple(_tensor(item) for item in root["inputs"].items()),
        outputs=tuple(_tensor(item) for item in root["outputs"].items()),
        whole={name: item.integer(0) for name, item in root["whole"].entries()},
        strategy=root.text("strategy"),
        mesh=_mesh(root["mesh"]),
        micro_batches=root["micro_batches"].integer(1),
        batch=_batch(root),
        created_by=root.text("created_by"),
        reason=root.get("reason", "").string(),
        optional_inputs=tuple(_tensor(item) for item in root.get("optional_inputs", []).items()),
        lengths={name: item.integer(1) for name, item in root.get("lengths", {}).entries()},
        state=read_pairs(root.get("state", [])),
        never_empty=read_never_empty(root.get("never_empty", [])),
    )
    ranks = manifest.ranks
    if len(ranks) != world_size or any(entry.rank != rank for rank, entry in enumerate(ranks)):
        expected = f"one entry for each rank 0..{world_size - 1}, in order"
        raise root["ranks"].error(expected, [entry.rank for entry in manifest.ranks])
    if manifest.mesh.size != world_size:
        raise root["mesh"].error(f"a mesh of {world_size} ranks, the world size", dict(manifest.mesh.axes))
    _check_batch(root, manifest)
    if manifest.state:
        inputs, outputs = (
            {entry.name: None if entry.open_rank else entry.shape for entry in entries}
            for entries in ((*manifest.inputs, *manifest.optional_inputs), manifest.outputs)
        )
        check_pairs(root["state"], manifest.state, inputs, outputs, manifest.mesh.length("tensor"))
    return manifest


def verify_shard(
    folder: str | Path, manifest: Manifest, rank: int, world_size: int, *, hashes: bool = True
) -> RankEntry:
    """Checks that a rank may run this folder's shard, and returns its entry.

    Checks the world size, the rank, that each file is there with its length and, unless ``hashes`` is false,
    its SHA-256. Raises `ShardError` naming both values.
    """
    folder = Path(folder)
    if manifest.world_size != world_size:
        raise ShardError(
            f"{folder} was sliced for world size {manifest.world_size}, but this job has world size "
            f"{world_size}: start {manifest.world_size} ranks, or slice the model with --ranks {world_size}."
        )
    if not 0 <= rank < world_size:
        raise ShardError(f"Rank {rank} has no shard in {folder}: its ranks are 0..{world_size - 1}.")
    entry = manifest.ranks[rank]
    if not entry.files:
        here = ", ".join(str(item.rank) for item in manifest.ranks if item.files)
        raise ShardError(
            f"{folder} holds no shard of rank {rank}, only of {here or 'none'}: slice the model with --rank "
            f"{rank} into it, or give rank {rank} the folder that holds its shard."
        )
    for item in entry.files:
        _verify_file(folder / item.file, item, rank, hashes)
    return entry


def _verify_file(path: Path, entry: FileEntry, rank: int, hashes: bool) -> None:
    again = "copy the slice folder again, or slice the model again."
    try:
        if not path.is_file():
            state = "is not a file" if path.exists() else "does not exist"
            raise ShardError(f"{path}, which rank {rank} needs, {state}: {again}")
        if (size := path.stat().st_size) != entry.bytes:
            raise ShardError(
                f"{path} of rank {rank} has {size} bytes, but its manifest says {entry.bytes}: {again}"
            )
        if hashes and (digest := sha256_of(path)) != entry.sha256:
            raise ShardError(
                f"{path} of rank {rank} has SHA-256 {digest}, but its manifest says {entry.sha256}: {again}"
            )
    except OSError as error:
        raise ShardError(f"{path} of rank {rank} cannot be read: {error}.") from None


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _file(item: Field) -> FileEntry:
    return FileEntry(item["file"].file_name(), item["bytes"].integer(0), item["sha256"].sha256())


def _source(item: Field) -> FileEntry:
    """The model's file: not one of this folder, so it may have any name that a file can have."""
    name = item.text("file")
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise item["file"].error("the name of a file", name)
    return FileEntry(name, item["bytes"].integer(0), item["sha256"].sha256())


def _rank(item: Field) -> RankEntry:
    files = tuple(_file(entry) for entry in item["files"].items())
    model = item["model"].file_name()
    if files and model not in [entry.file for entry in files]:
        raise item["model"].error('one of the names in this rank\'s "files"', model)
    return RankEntry(item["rank"].integer(0), model, item["weight_bytes"].integer(0), files)


def _weight(item: Field) -> WeightEntry:
    shape = tuple(axis.integer(0) for axis in item["shape"].items())
    stages = tuple(stage.integer(0) for stage in item["stages"].items())
    size = item["bytes"].integer(0)
    made_of = tuple(name.string() for name in item.get("made_of", []).items())
    return WeightEntry(item["placement"].placement(), item.text("dtype"), shape, size, stages, made_of)


def _mesh(item: Field) -> Mesh:
    sizes = {name: size.integer(1) for name, size in item.entries()}
    if sorted(sizes) != sorted(AXES):
        raise item.error(f"an object with the keys {', '.join(AXES)}", sorted(sizes))
    return Mesh.of(**sizes)


def _batch(root: Field) -> BatchAxes:
    item = root["batch"]
    inputs, outputs = (
        {name: axis.integer(0) for name, axis in item[key].entries()} for key in ("inputs", "outputs")
    )
    fed = [_tensor(entry) for key in ("inputs", "optional_inputs") for entry in root.get(key, []).items()]
    return BatchAxes(inputs, outputs, *read_sums(item, [axis for entry in fed for axis in entry.shape]))


def _check_batch(root: Field, manifest: Manifest) -> None:
    """The axes to cut are axes of the model's inputs and outputs."""
    for key, axes, entries in (
        ("inputs", manifest.batch.inputs, (*manifest.inputs, *manifest.optional_inputs)),
        ("outputs", manifest.batch.outputs, manifest.outputs),
    ):
        ranks = {entry.name: len(entry.shape) for entry in entries}
        for name, axis in axes.items():
            if name not in ranks or 0 < ranks[name] <= axis:  # an output's rank may be unknown
                expected = f"an axis of one of the model's {key}"
                raise root["batch"][key].error(expected, {name: axis})


def _shape(item: Field) -> Shape:
    return tuple(axis.dimension() for axis in item.items())


def _collective(item: Field) -> CollectiveEntry:
    shape, stage = _shape(item["shape"]), item["stage"].integer(0)
    within = item.get("within", "").string()
    return CollectiveEntry(item.text("op"), item.text("tensor"), item.text("dtype"), shape, stage, within)


def _tensor(item: Field) -> TensorEntry:
    shape = _shape(item["shape"])
    is_open = item.get("open_rank", False).boolean()
    if is_open and shape:
        raise item["shape"].error("empty for a tensor of any number of axes", list(shape))
    return TensorEntry(item.text("name"), item.text("dtype"), shape, is_open)
