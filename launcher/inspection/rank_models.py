"""Rank models made elsewhere, one file per rank (``rank_{}_model.onnx``), described as a slice folder is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from sharding.common.nearby import hint, shown
from sharding.common.text import counted
from sharding.errors import ModelError
from sharding.onnx_files.walk import nodes_in_turn
from sharding.slices.domains import MICROSOFT, OWN_DOMAIN

if TYPE_CHECKING:
    import onnx

    from sharding.common.encryption import Key
    from sharding.slices.manifest import Manifest, TensorEntry, WeightEntry

STRATEGY = "rank models"
"""What their manifest gives as the strategy: nobody knows how they were made."""
BY_FLAG = "--ranks"
_COLLECTIVES = {"AllReduce", "AllGather", "AllToAll", "Send", "Broadcast"}


def is_rank_models(path: Path) -> bool:
    """Whether a path is a pattern that stands for one file per rank."""
    if "{" not in str(path):
        return False
    from ranks.models.pattern import is_pattern

    return is_pattern(path)


def missing(path: Path) -> ConfigError:
    """The error for a model that is not there."""
    rule = "; {}, {r} or {rank} stands for the rank" if "{" in str(path) else ""
    return ConfigError(
        f"{shown(path)}: no such file or folder{hint(path)}; expected a model or a slice folder{rule}"
    )


def count_files(pattern: Path) -> int:
    """The number of ranks that have a file; raises `ConfigError` if there is none, or one is missing."""
    from ranks.errors import ShardrunError
    from ranks.models import pattern as patterns

    try:
        found = patterns.files(pattern)
        first = patterns.expand(pattern, 0)
    except ShardrunError as error:
        raise ConfigError(str(error).rstrip(".")) from None
    if not found:
        raise ConfigError(f"no file fits {pattern}: expected one for each rank, as {first}")
    missing = next((rank for rank in range(max(found) + 1) if rank not in found), None)
    if missing is not None:
        raise ConfigError(
            f"{pattern}: there is no file of rank {missing}, but one of rank {max(found)}: expected one for "
            "each rank from 0 up"
        )
    return len(found)


def wrong_count(asked: int, there: int, said_by: str) -> str:
    """The middle of a sentence: who asks for a wrong number of ranks, and what to do."""
    if said_by == BY_FLAG:
        return f"{asked} are asked for by --ranks: leave out --ranks"
    change = "give a table of" if said_by.startswith("the rank table") else "start"
    return f"{asked} are asked for by {said_by}: {change} {counted(there, 'rank')}"


def open_rank_models(
    pattern: Path, ranks: int | None, key: Key | None = None, said_by: str = BY_FLAG
) -> Manifest:
    """What is known of the files: rank 0's inputs, outputs, weights and collectives, and each rank's bytes.
    ``key`` is that of encrypted ones.

    Raises `ConfigError` if they are not one for each rank, and what reading a model file raises.
    """
    from ranks.models import pattern as patterns
    from sharding.slices.manifest import CollectiveEntry, FileEntry, Manifest, RankEntry

    count = count_files(pattern)
    if ranks is not None and ranks != count:
        raise ConfigError(
            f"{pattern} has the files of {counted(count, 'rank')}, but {wrong_count(ranks, count, said_by)}, "
            "or give a pattern with as many files"
        )
    entries, first = [], None
    for rank in range(count):
        path = patterns.expand(pattern, rank)
        model = read_rank_model(path, key)
        weights = {item.name: _weight(item) for item in model.graph.initializer}
        held = sum(weight.bytes for weight in weights.values())
        entries.append(RankEntry(rank, path.name, held, (FileEntry(path.name, path.stat().st_size, ""),)))
        first = first or (model, weights)
    assert first is not None
    model, weights = first
    names = set(weights)
    return Manifest(
        source=FileEntry(pattern.name, 0, ""),
        world_size=count,
        ranks=tuple(entries),
        weights=weights,
        collectives=tuple(
            CollectiveEntry(node.op_type, node.input[0] if node.input else "", "", ())
            for node in nodes_in_turn(model.graph)
            if node.domain in {MICROSOFT, OWN_DOMAIN} and node.op_type in _COLLECTIVES
        ),
        inputs=tuple(_tensor(item) for item in model.graph.input if item.name not in names),
        outputs=tuple(_tensor(item) for item in model.graph.output),
        strategy=STRATEGY,
    )


def folder_of(pattern: Path) -> Path | None:
    """The slice folder whose rank models a pattern names, if these are such."""
    from ranks.models import pattern as patterns
    from sharding.errors import ShardrunError
    from sharding.slices.manifest import FILE_NAME, read_manifest

    folder = pattern.parent
    try:
        if (folder / FILE_NAME).is_file():
            manifest = read_manifest(folder)
            if all(patterns.expand(pattern, rank.rank).name == rank.model for rank in manifest.ranks):
                return folder
    except ShardrunError:
        return None  # the rank models may be good all the same
    return None


def read_rank_model(path: Path, key: Key | None = None) -> onnx.ModelProto:
    """A rank model without its large weights. Raises `ModelError`."""
    from sharding.importers.message import parse_without_weights
    from sharding.onnx_files.protobuf import MalformedError, not_a_model
    from sharding.onnx_files.validity import demand_text

    try:
        if path.stat().st_size == 0:
            raise ModelError(f"{path} is empty; expected an ONNX model.")
        model = parse_without_weights(path, key)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    except Exception as error:  # protobuf's error has another module in each of its implementations
        if isinstance(error, ModelError) and not isinstance(error, MalformedError):
            raise  # it says it all
        raise not_a_model(path, error) from None
    if not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it has no outputs.")
    demand_text(model, path)
    return model


def _weight(item: onnx.TensorProto) -> WeightEntry:
    """Type, shape and bytes of an initializer; how it is placed is not known."""
    from launcher.inspection.model_summary import weight_of
    from sharding.slices.manifest import WeightEntry

    _, _, shape, size = weight_of(item)
    return WeightEntry("", _type_name(item.data_type), shape, size)


def _tensor(item: onnx.ValueInfoProto) -> TensorEntry:
    from sharding.onnx_files.kinds import declared_shape
    from sharding.slices.manifest import TensorEntry

    shape = declared_shape(item.type)
    return TensorEntry(item.name, _type_name(item.type.tensor_type.elem_type), shape or (), shape is None)


def _type_name(number: int) -> str:
    """numpy's name of an element type, but of a text and of what numpy lacks, such as int4."""
    from launcher.inspection.model_summary import name_of_type
    from ranks.common.tensors import element_dtype

    dtype = element_dtype(number)
    return name_of_type(number) if dtype.hasobject else dtype.name
