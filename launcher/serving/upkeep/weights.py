"""New weights for a model that is served: read, checked, and given to all its ranks between two requests."""

from __future__ import annotations

import asyncio
import io
import math
import os
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from launcher.errors import ShardrunError
from launcher.serving.bodies import bad
from launcher.serving.refusals import RETRY_SECONDS, RefusalError

if TYPE_CHECKING:
    from launcher.serving.tensor_model import TensorModel
    from ranks.common.tensors import TensorSpec
    from sharding.common.arrays import Array

    Arrays = dict[str, Array]

_BODY = Path("the body")
_NPZ, _SUFFIXES = b"PK\x03\x04", (".npz", ".safetensors")
_MOST_NAME, _MOST_HEAD = 255, 16 << 20


def holds_weights(data: bytes) -> bool:
    """Whether a body is an .npz archive or safetensors, by how it begins."""
    from sharding.importers.checkpoints.safetensors import looks_like

    return data.startswith(_NPZ) or looks_like(data[:16])


def of_bytes(data: bytes, known: Sequence[TensorSpec]) -> Arrays:
    """The weights in a body of which `holds_weights` is true. Raises `RefusalError`, and `ShardrunError` for
    what is damaged; an array that does not fit the weight of its name is not read."""
    if data.startswith(_NPZ):
        return _of_archive(io.BytesIO(data), known)
    return _of_safetensors(memoryview(data), _BODY)


def of_file(folder: Path | None, name: str, known: Sequence[TensorSpec]) -> Arrays:
    """The weights in a file of the folder that the server was told. Raises as `of_bytes` does."""
    if folder is None:
        raise bad("file: this server was told no folder of weights (weights_from): send them in the body")
    path = folder / name
    plain = name.isprintable() and 0 < len(name.encode()) <= _MOST_NAME and Path(name).name == name
    if not plain or not name.endswith(_SUFFIXES):
        raise bad(
            f"file: expected the name of a file, such as new.safetensors or new.npz, found {name[:80]!r}"
        )
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        raise RefusalError(HTTPStatus.NOT_FOUND, f"file: there is no {name[:80]!r} in the folder of weights")
    try:
        with path.open("rb") as file:
            if name.endswith(".npz"):
                return _of_archive(file, known)
            # Read and not mapped: this process would be killed where somebody shortens the file meanwhile.
            size, most = os.fstat(file.fileno()).st_size, _MOST_HEAD + sum(map(_most_bytes, known))
            if size > most:
                raise bad(f"file: expected at most the {most} bytes that all weights take, found {size}")
            return _of_safetensors(memoryview(file.read(size)), Path(name))
    except OSError as error:
        raise bad(f"file: {name[:80]!r} cannot be read: {error.strerror or error}") from None


def _most_bytes(spec: TensorSpec) -> int:
    """Bytes of a weight as it may come: as float32, where its own type is narrower."""
    return math.prod(axis for axis in spec.shape if isinstance(axis, int)) * max(4, spec.dtype.itemsize)


def _of_safetensors(data: memoryview, path: Path) -> Arrays:
    from sharding.importers.checkpoints.safetensors import parse

    return {name: entry.array() for name, entry in parse(data, path).entries.items()}


def _of_archive(file: IO[bytes], known: Sequence[TensorSpec]) -> Arrays:
    from ranks.evaluation.compressed import check_length, check_member
    from ranks.evaluation.npy import MAX_HEADER, read_header

    specs, found = {spec.name: spec for spec in known}, {}
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                what = f"the weight {name[:80]!r}"
                if (spec := specs.get(name)) is None:
                    raise bad(f"{what} cannot be replaced; those that can are at GET of this address")
                if name in found:
                    raise bad(f"{what} stands there twice")
                check_member(info, what)
                with archive.open(info) as member:
                    shape, _, dtype = read_header(member)
                    narrow = spec.dtype.type.__module__ != "numpy" and dtype == np.float32
                    if tuple(shape) != spec.shape or not (dtype == spec.dtype or narrow):
                        raise bad(f"{what}: expected {spec}, found {dtype}{list(shape)[:8]}")
                    check_length(member.tell() + math.prod(shape) * dtype.itemsize, info.file_size, what)
                with archive.open(info) as member:
                    found[name] = np.lib.format.read_array(
                        member, allow_pickle=False, max_header_size=MAX_HEADER
                    )
    except ShardrunError:
        raise
    except Exception as error:  # damaged archives raise what they like
        why = " ".join(str(error).split())[:120] or type(error).__name__
        raise bad(f"the archive cannot be read: {why}") from None
    return found


@dataclass
class Updates:
    """The updates of one server's models: of each model one at a time. ``folders``: where weights may be
    taken from, by model."""

    folders: Mapping[str, Path] = field(default_factory=dict)
    _under_way: set[str] = field(default_factory=set)

    async def replace(self, model: TensorModel, source: bytes | str) -> tuple[int, list[str]]:
        """Gives all ranks new weights: those of a body, or in a file of this name; the number of the update,
        and the names of what was replaced. Waits for ranks that are being started again.

        Raises `RefusalError` and `ShardrunError`; no rank has new weights then."""
        if model.name in self._under_way:
            raise RefusalError(
                HTTPStatus.CONFLICT,
                f"other weights are just being given to the model {model.name!r}: ask again later",
                retry=RETRY_SECONDS,
            )
        self._under_way.add(model.name)
        try:
            group = await model.until_ready(time.monotonic() + model.limits.seconds)
            known = group.variable_weights
            if not known:
                raise RefusalError(
                    HTTPStatus.CONFLICT,
                    f"no weight of the model {model.name!r} may be replaced: name those that may be in "
                    "variable_weights when the server is started, or load another version of it",
                )

            def give() -> tuple[int, list[str]]:
                if isinstance(source, bytes):
                    weights = of_bytes(source, known)
                else:
                    weights = of_file(self.folders.get(model.name), source, known)
                return group.update_weights(weights), sorted(weights)

            return await asyncio.to_thread(give)
        finally:
            self._under_way.discard(model.name)
