"""Whether ONNX Runtime reads a weight on the GPU or in host memory, which only it can say.

In host memory read the nodes that CUDA's provider leaves to the CPU, and those that it takes some inputs:
what the registration of a kernel calls ``InputMemoryType(OrtMemTypeCPUInput, index)`` (in ONNX Runtime's
sources under core/providers/cuda and contrib_ops/cuda), such as the lengths of Reshape and the tokens that
BeamSearch begins with. Which these are differs between releases, and who takes a node between devices.

But a session uses a weight that it is given (``add_initializer``) only where it has planned it; for another
place it goes to the file. So each weight is given where it is believed to be read, under a name of its own
for each reader, and its file is empty: what ONNX Runtime then misses in there was believed wrongly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ranks.devices import dlpack
from ranks.errors import ShardrunError
from ranks.weights.device.bodies import Read, declare, names_in, reads, size_of, unused
from sharding.onnx_files.external import place_of, put_place

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

    from sharding.common.arrays import Array

Open = Callable[[bytes, Mapping[str, "ort.OrtValue"]], object]
"""Makes a session of a model over these values, or raises a `ShardrunError` with ONNX Runtime's words."""

_NOTE = "shardrun.read_in_host_memory"
EMPTY = "shardrun_empty"
"""The name of a file without bytes that must lie beside the model."""
_OWN = "shardrun_read_"
_MISSED = re.compile(rf"{_OWN}(\d+)")
_MOST_INSIDE = 1 << 20
_HOST = (1, 0)  # DLPack's CPU


class Place(Enum):
    """Where a weight is read; ``FILE``: ONNX Runtime takes it from its file alone; ``GRAPH``: it must lie in
    the graph itself, as long lists of lengths must, from which ONNX Runtime infers shapes."""

    DEVICE = "device"
    HOST = "host"
    FILE = "file"
    GRAPH = "graph"


class Apart(NamedTuple):
    """A weight that is not read on the device: what kinds of nodes read it, its bytes, and whether the device
    has it under another name."""

    readers: list[str]
    bytes: int
    both: bool


def find(
    model: onnx.ModelProto,
    names: Collection[str],
    open_: Open,
    block: tuple[int, tuple[int, int]],
    data: Array,
) -> list[Place]:
    """Where each of the `reads` of these weights takes place.

    ``block``: the address of memory on the device with room for the largest weight, and DLPack's kind and
    number of the device; ``data``: the file of all weights, as bytes. Raises what ``open_`` does if no place
    is to blame.
    """
    import onnx

    tried = onnx.ModelProto()
    tried.CopyFrom(model)
    found = list(reads(tried.graph, names))
    own, rest = _by_reader(tried.graph, found)
    sources = [place_of(tensor) for tensor in own]
    slots = [_slot(read, tensor) for read, tensor in zip(found, own, strict=True)]
    places, told = [Place.DEVICE] * len(own), set[int]()
    while True:
        values = {}
        for tensor, place, source in zip(own, places, sources, strict=True):
            size = size_of(tensor)
            if place is Place.GRAPH:
                _put_inside(tensor, source.offset, data)
            elif place is Place.FILE:
                put_place(tensor, source.location, source.offset, size)
            if place in {Place.GRAPH, Place.FILE}:
                continue
            put_place(tensor, EMPTY, 0, size)
            at = block if place is Place.DEVICE else (data.ctypes.data + source.offset, _HOST)
            values[tensor.name] = dlpack.value_at(at[0], tensor.data_type, list(tensor.dims), at[1])
        del tried.graph.initializer[:]
        tried.graph.initializer.extend((*rest, *own))
        declare(tried.graph)
        try:
            open_(tried.SerializeToString(), values)
        except ShardrunError as error:
            number = _missed(str(error), [tensor.name for tensor in own])
            if number is None or places[number] is Place.GRAPH:
                raise
            if places[number] is Place.FILE and size_of(own[number]) > _MOST_INSIDE:
                raise
            _correct(places, told, slots, number)
        else:
            return places


def put_apart(model: onnx.ModelProto, names: Collection[str], places: list[Place], data: Array) -> None:
    """Gives those of these weights that are read on the device and elsewhere, too, a second name for one of
    it, and notes in the model which are read elsewhere; ``places``: what `find` found."""
    graph = model.graph
    by_weight: dict[str, list[tuple[Read, Place]]] = {}
    for read, place in zip(reads(graph, names), places, strict=True):
        by_weight.setdefault(read.weight, []).append((read, place))
    tensors, taken = {tensor.name: tensor for tensor in graph.initializer}, names_in(graph)
    noted: dict[str, Apart] = {}
    for weight, found in by_weight.items():
        there = [read for read, place in found if place is not Place.DEVICE]
        here = [read for read, place in found if place is Place.DEVICE]
        tensor = tensors[weight]
        if there and here:
            second = graph.initializer.add()
            second.CopyFrom(tensor)
            if any(read.node is None for read in there):  # a name that is known outside stays
                moved, second.name = here, unused(f"{weight}_on_device", taken)
            else:
                moved, second.name = there, unused(f"{weight}_in_host_memory", taken)
                tensor = second
            for read in moved:
                assert read.node is not None
                read.node.input[read.index] = second.name
        if there:
            readers = sorted({read.kind for read in there})
            noted[tensor.name] = Apart(readers, size_of(tensor), bool(here))
        if any(place is Place.GRAPH for _, place in found):
            _put_inside(tensor, place_of(tensor).offset, data)
    model.metadata_props.add(key=_NOTE, value=json.dumps(noted))


def forget(model: onnx.ModelProto) -> None:
    """Removes what a model says already by the name of that note: its own words, or of an earlier sharing."""
    for index in reversed(range(len(model.metadata_props))):
        if model.metadata_props[index].key == _NOTE:
            del model.metadata_props[index]


def elsewhere(model: onnx.ModelProto) -> dict[str, Apart]:
    """The weights of a model that are not read on the device, as `put_apart` noted them; none where it did
    not."""
    found = next((entry.value for entry in model.metadata_props if entry.key == _NOTE), "{}")
    return {name: Apart(*noted) for name, noted in json.loads(found).items()}


def _put_inside(tensor: onnx.TensorProto, offset: int, data: Array) -> None:
    tensor.raw_data = data[offset : offset + size_of(tensor)].tobytes()
    tensor.data_location = tensor.DEFAULT
    del tensor.external_data[:]


def _by_reader(
    graph: onnx.GraphProto, found: list[Read]
) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
    """Has each reader read a weight of its own; gives these, and the graph's other weights."""
    import onnx

    names = {read.weight for read in found}
    held: dict[str, onnx.TensorProto] = {}
    rest, own = [], []
    for tensor in graph.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        if tensor.name in names:
            held[tensor.name] = copy
        else:
            rest.append(copy)
    taken = names_in(graph)
    for number, read in enumerate(found):
        tensor = onnx.TensorProto()
        tensor.CopyFrom(held[read.weight])
        if read.node is not None:
            tensor.name = read.node.input[read.index] = unused(f"{_OWN}{number}", taken)
        own.append(tensor)
    return own, rest


def _slot(read: Read, tensor: onnx.TensorProto) -> tuple[object, ...]:
    """What readers have in common that most likely read in one place."""
    domain = "" if read.node is None else read.node.domain
    return domain, read.kind, read.index, tensor.data_type


def _missed(said: str, names: list[str]) -> int | None:
    """Which weight ONNX Runtime has missed, by its error; None where that is about something else."""
    if found := _MISSED.search(said):
        return int(found[1])
    return next((number for number, name in enumerate(names) if f"tensor {name} " in said), None)


def _correct(places: list[Place], told: set[int], slots: list[tuple[object, ...]], number: int) -> None:
    """What was believed of a reader, after ONNX Runtime has missed its weight: it reads in the other place,
    and so do those like it of which nothing is known; if it has missed it before, from the file, or not even
    from there."""
    if places[number] is Place.DEVICE and number not in told:
        for other, slot in enumerate(slots):
            if slot == slots[number] and other not in told:
                places[other] = Place.HOST
    elif number not in told:
        places[number] = Place.DEVICE
    else:
        places[number] = Place.GRAPH if places[number] is Place.FILE else Place.FILE
    told.add(number)
