"""Makes a model's prepared form: ONNX Runtime's optimised graph, and one file per distinct large weight.

ONNX Runtime itself writes the optimised graph, with weights and their packed forms in one file of external
data (the session options ``session.optimized_model_external_initializers_*`` and
``session.save_external_prepacked_constant_initializers``). A weight's entry then has, besides ``location``,
``offset`` and ``length``, one ``prepacked_N`` for each packed form:
``OPERATOR+HASH|offset;length;checksum|offset;length;checksum...``. That file is taken apart here, so that
equal weights of different models become one file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.cache.weight_entries import BLOBS
from ranks.cache.weight_entry import Blob, Prepared
from ranks.errors import WeightsError
from ranks.sessions import session
from ranks.weights.prepared.gelu import fuse_gelu
from ranks.weights.prepared.pages import give_back_memory
from sharding.common.storage import PAGE
from sharding.onnx_files.walk import graphs_in, tensors_in

if TYPE_CHECKING:
    import onnx

    from ranks.sessions.session import SessionConfig

LARGE_BYTES = 1024
"""Weights of this many bytes and more have files of their own; smaller ones stay in the graph, of which each
process has a copy."""

_LONGEST_LIST = 1 << 16

_GRAPH, _DATA = "graph.onnx", "weights.data"
_STANDARD = ("", "ai.onnx")
_CHUNK = 1 << 18  # stays in a core's cache from reading to hashing and writing
_THREADS = 2


def prepare(model: bytes | Path, config: SessionConfig, what: str, work: Path) -> Prepared:
    """Makes the prepared form in the empty folder ``work``; its blobs are files there, by their names.

    Raises `ModelError` where ONNX Runtime refuses the model or cannot write it, `WeightsError` where what it
    wrote is not as expected, `OSError` where files cannot be written.
    """
    import onnx

    options = session.options_for(replace(config, many=False))
    options.enable_cpu_mem_arena = False  # its memory goes back to the system with the session
    options.optimized_model_filepath = str(work / _GRAPH)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", _DATA),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(LARGE_BYTES)),
        ("session.save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(key, value)
    made = session.create_plain(model, config, what, options)
    outputs = len(made.get_outputs())
    del made
    give_back_memory()
    graph = onnx.load(str(work / _GRAPH), load_external_data=False)
    if len(graph.graph.output) != outputs:
        raise OSError(errno.ENOSPC, "only part of the graph was written", str(work / _GRAPH))
    (work / _GRAPH).unlink()
    without_doubles(graph.graph)
    fuse_gelu(graph)
    _forget_shapes(graph.graph)
    _keep_lists(graph, work)
    blobs = _take_apart(graph, work)
    (work / _DATA).unlink(missing_ok=True)
    return Prepared(graph.SerializeToString(), tuple(dict.fromkeys(blobs)))


@dataclass(frozen=True)
class _Extent:
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True)
class _Weight:
    """A tensor and where ONNX Runtime wrote its bytes and its packed forms."""

    tensor: onnx.TensorProto
    raw: _Extent
    packed: tuple[tuple[str, tuple[tuple[_Extent, str], ...]], ...]
    """For each form its name, and for each of its buffers the extent and the checksum."""

    @property
    def end(self) -> int:
        return max(self.raw.end, *(e.end for _, buffers in self.packed for e, _ in buffers), 0)


def _keep_lists(model: onnx.ModelProto, work: Path) -> None:
    """Puts lists of whole numbers into the graph: of lengths, sizes and axes ONNX Runtime infers shapes, and
    for that it reads no other file."""
    import onnx

    for tensor in tensors_in(model.graph):
        if tensor.data_location != tensor.EXTERNAL or tensor.data_type != onnx.TensorProto.INT64:
            continue
        extent = _located(tensor).raw
        if len(tensor.dims) == 1 and extent.length <= _LONGEST_LIST:
            with (work / _DATA).open("rb") as data:
                data.seek(extent.start)
                raw = data.read(extent.length)
            if len(raw) < extent.length:
                raise OSError(errno.ENOSPC, "only part of the weights was written", str(work / _DATA))
            tensor.raw_data = raw
            del tensor.external_data[:]
            tensor.data_location = tensor.DEFAULT


def _take_apart(graph: onnx.ModelProto, work: Path) -> list[Blob]:
    from concurrent.futures import ThreadPoolExecutor

    weights = [_located(t) for t in tensors_in(graph.graph) if t.data_location == t.EXTERNAL]
    if not weights:
        return []
    # From the file's end on, and cutting off what is done: the disk never holds all weights twice.
    weights.sort(key=lambda weight: weight.end, reverse=True)
    blobs = []
    with (work / _DATA).open("r+b") as data, ThreadPoolExecutor(_THREADS) as pool:
        if weights[0].end > data.seek(0, os.SEEK_END):  # ONNX Runtime does not notice a full disk
            raise OSError(errno.ENOSPC, "only part of the weights was written", str(work / _DATA))
        written = pool.map(lambda weight: _write_blob(weight, data.fileno(), work), weights)
        for (blob, fields), weight, left in zip(written, weights, [*weights[1:], None], strict=True):
            blobs.append(blob)
            del weight.tensor.external_data[:]
            for key, value in fields.items():
                weight.tensor.external_data.add(key=key, value=value)
            data.truncate(left.end if left is not None else 0)
    return blobs


def _located(tensor: onnx.TensorProto) -> _Weight:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    if fields.get("location") != _DATA:
        raise WeightsError(f"{tensor.name!r} was written to {fields.get('location')!r}, not to {_DATA}.")
    try:
        raw = _Extent(int(fields.get("offset") or 0), int(fields["length"]))
        packed = tuple(_form(value) for key, value in fields.items() if key.startswith("prepacked_"))
    except (KeyError, ValueError):
        raise WeightsError(
            f"{tensor.name!r} has external data that cannot be understood: {fields}."
        ) from None
    return _Weight(tensor, raw, packed)


def _form(value: str) -> tuple[str, tuple[tuple[_Extent, str], ...]]:
    name, *buffers = value.split("|")
    found = []
    for buffer in buffers:
        start, length, checksum = buffer.split(";")
        found.append((_Extent(int(start), int(length)), checksum))
    return name, tuple(found)


def _write_blob(weight: _Weight, data: int, work: Path) -> tuple[Blob, dict[str, str]]:
    """Writes a weight's own file; gives what the tensor is to say of its external data, too."""
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=work)
    try:
        writer = _Writer(descriptor)
        writer.copy(weight.raw, data)
        fields = {"location": "", "offset": "0", "length": str(weight.raw.length)}
        for index, (name, buffers) in enumerate(weight.packed):
            parts = [name]
            for extent, checksum in buffers:
                writer.write(bytes(-writer.size % PAGE))
                parts.append(f"{writer.size};{extent.length};{checksum}")
                writer.copy(extent, data)
            fields[f"prepacked_{index}"] = "|".join(parts)
        os.fchmod(descriptor, 0o400)
    finally:
        os.close(descriptor)
    blob = Blob(writer.digest.hexdigest(), writer.size)
    Path(temporary).replace(work / blob.name)
    fields["location"] = f"{BLOBS}/{blob.name}"
    return blob, fields


class _Writer:
    """Writes a file, and hashes what it writes. Threads do so at once: all that takes time leaves the lock of
    the interpreter."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = memoryview(bytearray(_CHUNK))
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, block: bytes | memoryview) -> None:
        """Writes all of a block. Raises `OSError`."""
        self.digest.update(block)
        done = 0
        while done < len(block):
            done += os.write(self._descriptor, block[done:])
        self.size += done

    def copy(self, extent: _Extent, source: int) -> None:
        """Writes a part of another file. Raises `OSError`."""
        start = extent.start
        while start < extent.end:
            got = os.preadv(source, [self._buffer[: extent.end - start]], start)
            if not got:
                raise OSError(errno.EIO, f"the file ends before byte {extent.end}", _DATA)
            self.write(self._buffer[:got])
            start += got


def _forget_shapes(model_graph: onnx.GraphProto) -> None:
    """Removes what ONNX Runtime wrote of the values inside: it infers that again, and a session keeps both.
    What operators of its own give keep their types, for some of them have nothing that would infer these."""
    for graph in graphs_in(model_graph):
        made = {name for node in graph.node if node.domain in _STANDARD for name in node.output}
        for index in reversed(range(len(graph.value_info))):
            value = graph.value_info[index]
            if value.name in made:
                del graph.value_info[index]
            elif value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")


def without_doubles(model_graph: onnx.GraphProto) -> None:
    """Removes the first of two weights of one name: ONNX Runtime before 1.31 writes those of subgraphs twice,
    inside and outside of the graph, and then refuses the graph."""
    for graph in graphs_in(model_graph):
        last = {tensor.name: index for index, tensor in enumerate(graph.initializer)}
        for index in reversed(range(len(graph.initializer))):
            if last[graph.initializer[index].name] != index:
                del graph.initializer[index]
