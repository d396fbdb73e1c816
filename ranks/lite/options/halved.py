"""Weights of float32 written as float16, and widened again where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.importers.write import CHUNK, Weight
from sharding.onnx_files.external import file_of, place_of

if TYPE_CHECKING:
    import onnx

_LARGEST = float(np.finfo(np.float16).max)


class _Half:
    """A weight of float32, from memory or from the file that it lies in, as float16."""

    def __init__(self, tensor: onnx.TensorProto, source: Path, held: Mapping[str, Weight]) -> None:
        import onnx

        self.nbytes = 2 * int(np.prod(tensor.dims, dtype=np.int64))
        self._held = held.get(tensor.name)
        self._array: np.ndarray | None = None
        if self._held is None and tensor.data_location == tensor.EXTERNAL:
            place = place_of(tensor)
            count = (place.length or 0) // 4
            file = file_of(source, place.location, str(source))
            if count:
                self._array = np.memmap(file, np.float32, "r", place.offset, (count,))
        elif self._held is None:
            self._array = onnx.numpy_helper.to_array(tensor).reshape(-1)

    def pieces(self) -> Iterator[np.ndarray]:
        """The numbers as float32, some at a time."""
        if self._held is not None:
            for chunk in self._held.chunks():
                yield np.frombuffer(chunk, np.float32)
        elif self._array is not None:
            for start in range(0, len(self._array), CHUNK):
                yield self._array[start : start + CHUNK]

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of a few MB."""
        for piece in self.pieces():
            yield piece.astype(np.float16).tobytes()


def halve(model: onnx.ModelProto, source: Path, held: Mapping[str, Weight]) -> dict[str, Weight]:
    """Makes each weight of float32 with more than one element one of float16, which is widened first; those
    with numbers beyond float16 stay. Returns what `write_onnx` takes as ``weights``."""
    import onnx

    from sharding.common.names import Names

    weights = dict(held)
    graph = model.graph
    names = Names(name for node in graph.node for name in (*node.input, *node.output))
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or np.prod(tensor.dims) < 2:
            continue
        half = _Half(tensor, source, held)
        if any(not np.all(np.abs(piece) <= _LARGEST) for piece in half.pieces()):
            continue
        name, narrow = tensor.name, names.fresh(f"{tensor.name}/float16")
        weights.pop(name, None)
        weights[narrow] = half
        casts.append(onnx.helper.make_node("Cast", [narrow], [name], name=narrow, to=onnx.TensorProto.FLOAT))
        declared = onnx.TensorProto(name=narrow, dims=tensor.dims, data_type=onnx.TensorProto.FLOAT16)
        declared.data_location = onnx.TensorProto.EXTERNAL
        tensor.CopyFrom(declared)
    widened = {node.output[0] for node in casts}
    inputs = [value for value in graph.input if value.name not in widened]
    nodes = [*casts, *graph.node]
    del graph.input[:], graph.node[:]
    graph.input.extend(inputs)
    graph.node.extend(nodes)
    return weights
