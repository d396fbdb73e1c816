"""Whether each rank loaded its own part: two ranks may have the same file, or files of two slicings.

Nothing else would show such mistakes: these models run together, and give a wrong answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ranks.agreement.handshake import gather_rows
from ranks.collectives.base import Communicator
from ranks.collectives.buffers import Memory
from ranks.errors import ShardError
from ranks.models import model_file
from sharding.onnx_files.walk import tensors_in

if TYPE_CHECKING:
    import onnx

    from ranks.models.part import Part
    from sharding.slices.manifest import Manifest

_SAMPLE = 4096
_NOTHING = bytes(32)


@dataclass(frozen=True)
class Loaded:
    """What a rank loaded: the file, its model, what its metadata say, and the manifest beside it."""

    file: Path
    model: onnx.ModelProto
    part: Part | None = None
    manifest: Manifest | None = None


def compare(group: Communicator, memory: Memory, mine: Loaded) -> str | None:
    """What to warn of. Only the first of the ranks concerned gets the text; the others, and all ranks where
    there is nothing to warn of, get None.

    Every rank of ``group``, which is the world, must call it. Weights are compared where no metadata say
    whose part the file is: first samples, and all bytes only where the samples are equal. Raises
    `ShardError`, on every rank, where the slice folders of the ranks' files are of different models or plans.
    """
    weights = _weights(mine, whole=False) if mine.part is None else _NOTHING
    rows = gather_rows(_slicing(mine.manifest) + weights, group, memory)
    slicings = {row[:32]: rank for rank, row in reversed(list(enumerate(rows))) if row[:32] != _NOTHING}
    if len(slicings) > 1:
        first, other = sorted(slicings.values())[:2]
        raise ShardError(
            f"The ranks' files come from slice folders of different models or plans (those of ranks {first} "
            f"and {other} differ): give every rank its file of one slicing."
        )
    samples = [row[32:] for row in rows if row[32:] != _NOTHING]
    if len(set(samples)) == len(samples):
        return None
    rows = gather_rows(_weights(mine, whole=True), group, memory)
    known = [row for row in rows if row != _NOTHING]
    twice = next((row for row in known if known.count(row) > 1), None)
    same = [rank for rank, row in enumerate(rows) if row == twice]
    if not same or same[0] != group.rank:
        return None
    return (
        f"ranks {', '.join(map(str, same[:-1]))} and {same[-1]} loaded the same weights, so that their "
        "collectives add up, or join, one part with itself: give each rank its own file, say by a pattern "
        "such as rank_{}.onnx."
    )


def _slicing(manifest: Manifest | None) -> bytes:
    """A hash of what a folder of slices was made of, and how; which ranks' files it holds does not matter."""
    if manifest is None:
        return _NOTHING
    said = json.loads(manifest.to_json())
    plan = ("world_size", "mesh", "micro_batches", "batch", "weights", "collectives")
    kept = {key: said[key] for key in plan}
    kept["source"] = said["source"]["sha256"]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).digest()


def _weights(mine: Loaded, *, whole: bool) -> bytes:
    """A hash of a model's weights, or of the ends of each; zeros where it has none."""
    digest, found = hashlib.sha256(), False
    for tensor in _large(mine.model):
        found = True
        digest.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}\n".encode(errors="replace"))
        data = model_file.bytes_of(tensor, mine.file)
        for piece in (data,) if whole or len(data) <= 2 * _SAMPLE else (data[:_SAMPLE], data[-_SAMPLE:]):
            digest.update(piece)
    return digest.digest() if found else _NOTHING


def _large(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The model's weights of two axes and more, which are what is cut; biases and constants may be alike."""
    for tensor in tensors_in(model.graph):
        if len(tensor.dims) > 1 and np.prod(tensor.dims) > 1:
            yield tensor
