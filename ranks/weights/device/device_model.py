"""A model whose weights lie on a GPU once, for all sessions of all processes that use it there.

ONNX Runtime optimises the model once, for the GPU, and writes the result: a graph and a file of its weights,
in a folder that all processes can read. Weights of some size are copied into one block of device memory
(`ranks.weights.device.cuda_ipc`). A session of the graph, in the owner as in every other process, gets them
as device values by name (``SessionOptions.add_initializer``) and uses them in place. The graph is not
optimised again, so that it asks for the very weights that the block holds; a weight that ONNX Runtime wants
elsewhere than on the device, it takes from the file.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np
import onnxruntime as ort

from ranks.cache.cache import Cache
from ranks.cache.durable import flush
from ranks.cache.locks import Pin, collected
from ranks.common.notice import warn_once
from ranks.devices import dlpack
from ranks.devices.cuda_driver import Driver
from ranks.devices.providers import CPU
from ranks.errors import WeightsError
from ranks.sessions import session
from ranks.weights.device import bodies, copies, cuda_ipc, places
from ranks.weights.device.cuda_ipc import ALIGNMENT, Block
from ranks.weights.prepared.keys import runtime
from ranks.weights.prepared.prepare import LARGE_BYTES, without_doubles
from sharding.onnx_files.external import place_of
from sharding.onnx_files.walk import graphs_in, subgraphs, tensors_in

if TYPE_CHECKING:
    import onnx

    from ranks.sessions.session import SessionConfig

DEVICE_KIND = "device"
"""Of things in the cache."""
GRAPH, DATA = "graph.onnx", "weights.data"
SOURCE = "model.txt"
"""Says what the folder was made from, for `shardrun cache list`."""
FORMAT = 1


class Placed(TypedDict):
    """Where a weight lies in the block: ``offset`` and ``bytes``; ``type`` is DLPack's."""

    name: str
    type: int
    shape: list[int]
    offset: int
    bytes: int


class DeviceWeights:
    """A model's weights in device memory, as sessions of this process use them.

    ``description`` and ``descriptors`` are for another process's `open_device_weights`: send both, and keep
    this object, whose descriptors they are.
    """

    def __init__(
        self,
        block: Block,
        folder: Path,
        description: dict[str, object],
        descriptors: list[int],
        used: Sequence[Pin] = (),
    ) -> None:
        """``used`` hold the folder in the cache."""
        self.description, self.descriptors = description, descriptors
        self.device = block.device
        self._block = block
        self._folder = folder
        self._used = used
        self._values = {
            tensor["name"]: dlpack.value_at(
                block.address + tensor["offset"],
                tensor["type"],
                tensor["shape"],
                (block.driver.dlpack_device, block.device),
            )
            for tensor in cast("Sequence[Placed]", description["tensors"])
        }

    @property
    def values(self) -> Mapping[str, ort.OrtValue]:
        """The shared weights by name, as values at their place in the block."""
        return self._values

    @property
    def bytes(self) -> int:
        """Bytes of device memory that are shared."""
        return self._block.size

    @property
    def read_only(self) -> bool:
        """Whether the device itself keeps this process from writing to the weights."""
        return self._block.read_only

    @property
    def outlives_owner(self) -> bool:
        """Whether the memory stays valid for others when its owner ends: `ranks.weights.device.cuda_ipc`."""
        return self._block.kind == "descriptor"

    def session(self, config: SessionConfig, what: str) -> ort.InferenceSession:
        """A session of the model over these weights. Raises `ModelError` and `DeviceError`."""
        config = replace(config, folder=self._folder, device_id=self.device)
        try:
            model = (self._folder / GRAPH).read_bytes()
        except OSError as error:
            raise WeightsError(f"{error.filename} of {what} cannot be read: {error.strerror}.") from None
        made = _unchanged(model, config, what, self._values)
        if config.providers[0] != CPU:
            _say_copies(model, what)
        return made

    def close(self) -> None:
        """Lets go of the memory, which no session may use any more. Safe to call twice."""
        self._values = {}
        self._block.close()
        for held in self._used:
            held.close()


def _unchanged(
    model: bytes, config: SessionConfig, what: str, values: Mapping[str, ort.OrtValue]
) -> ort.InferenceSession:
    """A session of an optimised model over these ``values``."""
    options = session.options_for(config)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in values.items():
        options.add_initializer(name, value)
    return session.create_plain(model, config, what, options)


def _say_copies(text: bytes, what: str) -> None:
    """Warns of weights that sessions read elsewhere than in the block, of which ONNX Runtime says nothing."""
    import onnx

    model = onnx.load_from_string(text)
    apart, shareable = places.elsewhere(model), {tensor.name: tensor for tensor in _shareable(model.graph)}
    large = [tensor for tensor in tensors_in(model.graph) if tensor.data_location == tensor.EXTERNAL]
    odd = [tensor for tensor in large if tensor.name not in shareable]
    if not (apart or odd):
        return
    why = []
    if apart:
        readers = sorted({reader for one in apart.values() for reader in one.readers})
        why.append(f"ONNX Runtime reads them in host memory ({', '.join(readers)})")
    if odd:
        types = sorted({onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in odd})
        why.append(f"ONNX Runtime takes no {' or '.join(types)} from others")
    copied = [one.bytes for one in apart.values()] + [place_of(tensor).length or 0 for tensor in odd]
    there = [bodies.size_of(tensor) for name, tensor in shareable.items() if name not in apart]
    both = [one.bytes for one in apart.values() if one.both]  # one weight with two names
    warn_once(
        f"copies:{what}",
        f"{len(copied)} of the {len(copied) + len(there) - len(both)} weights of {what} on the GPU, "
        f"{sum(copied)} of {sum(copied) + sum(there) - sum(both)} bytes, are not shared, but loaded by each "
        f"process: {' and '.join(why)}. "
        + (f"The copies on the GPU of {len(both)} of them are shared. " if both else "")
        + "To share all, share the model on the CPU.",
    )


def export_device_weights(
    model: Path,
    config: SessionConfig,
    folder: Path,
    driver: Driver | None = None,
    cache: Cache | None = None,
) -> DeviceWeights:
    """Puts a model's weights on the device ``config.device_id``, to be shared from there.

    ``folder``: where the optimised model lies or is put, which the other processes must be able to read; one
    folder is for one model and one set of options; ``cache``: what it lies in, if that is the cache.
    Raises `ModelError`, `DeviceError` ("no CUDA device" where there is none) and `WeightsError`.
    """
    driver = driver or Driver()
    cache = cache or Cache(DEVICE_KIND, None, folder.parent)
    with collected() as used:
        cache.get_or_make(folder.name, lambda work: _prepare(model, config, work, driver))
    try:
        return _export(config, folder, driver, used)
    except BaseException:
        for held in used:
            held.close()
        raise


def _export(config: SessionConfig, folder: Path, driver: Driver, used: Sequence[Pin]) -> DeviceWeights:
    tensors, size = _layout(folder)
    block = cuda_ipc.allocate(driver, config.device_id, max(size, ALIGNMENT))
    try:
        data = np.memmap(folder / DATA, np.uint8, "r") if tensors else np.empty(0, np.uint8)
        for tensor, source in tensors:
            block.write(tensor["offset"], data.ctypes.data + source, tensor["bytes"])
        block.seal()
        told, descriptors = block.export()
        placed = [tensor for tensor, _ in tensors]
        description = {"format": FORMAT, "runtime": runtime(), "memory": told, "tensors": placed}
        return DeviceWeights(block, folder, description, descriptors, used)
    except BaseException:
        block.close()
        raise


def open_device_weights(
    description: Mapping[str, object], descriptors: Sequence[int], folder: Path, driver: Driver | None = None
) -> DeviceWeights:
    """Uses the weights that another process exported. The descriptors stay the caller's, to close.

    Raises `WeightsError` for a description that is damaged, of another release or of a device that this
    process does not see; `DeviceError` where there is no CUDA device or the memory is gone.
    """
    tensors, memory = description.get("tensors"), description.get("memory")
    if description.get("format") != FORMAT or description.get("runtime") != runtime():
        raise WeightsError(
            f"the weights on the GPU are of format {description.get('format')} for ONNX Runtime "
            f"{description.get('runtime')}, but this process has format {FORMAT} and {runtime()}: use the "
            "same releases in both."
        )
    if not (isinstance(memory, dict) and isinstance(tensors, list)):
        raise WeightsError("what the owner says of its GPU memory is damaged: build the model again.")
    for tensor in tensors:
        _check(tensor, memory.get("size"))
    block = cuda_ipc.attach(driver or Driver(), memory, list(descriptors))
    try:
        return DeviceWeights(block, folder, dict(description), list(descriptors))
    except BaseException:
        block.close()
        raise


def _prepare(model: Path, config: SessionConfig, work: Path, driver: Driver) -> None:
    """Writes the optimised model into a new folder."""
    import onnx

    work.mkdir()
    options = session.options_for(replace(config, many=False))
    options.optimized_model_filepath = str(work / GRAPH)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", DATA),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(LARGE_BYTES)),
    ):
        options.add_session_config_entry(key, value)
    made = session.create_plain(model, config, str(model), options)
    del made
    gc.collect()  # its device memory is free again before the block is made
    optimised = onnx.load(str(work / GRAPH), load_external_data=False)
    places.forget(optimised)
    without_doubles(optimised.graph)
    copies.without_copy_nodes(optimised.graph)
    bodies.put_outside(optimised.graph)
    if config.providers[0] != CPU:
        _tell_apart(optimised, replace(config, folder=work), work, driver)
    bodies.declare(optimised.graph)
    (work / GRAPH).write_bytes(optimised.SerializeToString())
    (work / SOURCE).write_text(str(model), encoding="utf-8", errors="surrogateescape")
    for file in (work / GRAPH, work / DATA):
        if file.is_file():
            flush(file)  # a crash of the machine must not leave the folder without its bytes


def _tell_apart(model: onnx.ModelProto, config: SessionConfig, work: Path, driver: Driver) -> None:
    """Has each weight of an optimised model read in one place, and notes which are not read on the device."""
    shareable = list(_shareable(model.graph))
    for tensor in shareable:
        _demand_fit(tensor, work)
    if not shareable:
        return
    data = np.memmap(work / DATA, np.uint8, "r")
    copies.without_copied_weights(model.graph, {tensor.name for tensor in shareable}, data)
    names = {tensor.name for tensor in _shareable(model.graph)}
    entries = {**config.entries, "session.disable_prepacking": "1"}  # the values are not those of the model
    config = replace(config, threads=1, entries=entries)

    def open_(tried: bytes, values: Mapping[str, ort.OrtValue]) -> None:
        made = _unchanged(tried, config, str(work), values)
        del made
        gc.collect()

    block = cuda_ipc.allocate(driver, config.device_id, max(map(bodies.size_of, shareable)))
    empty = work / places.EMPTY
    try:
        empty.touch()
        device = driver.dlpack_device, config.device_id
        found = places.find(model, names, open_, (block.address, device), data)
    finally:
        empty.unlink(missing_ok=True)
        block.close()
    places.put_apart(model, names, found, data)


def _shareable(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The weights that sessions may find by name."""
    inner = graphs_in(*(body for node in graph.node for body in subgraphs(node)))
    others = {tensor.name for body in inner for tensor in body.initializer}
    for tensor in graph.initializer:
        # Sessions find shared weights by name, in subgraphs too, where another weight may have the name.
        if tensor.data_location != tensor.EXTERNAL or tensor.name in others:
            continue
        if tensor.data_type in dlpack.TYPES:
            yield tensor


def _demand_fit(tensor: onnx.TensorProto, folder: Path) -> None:
    """Raises `WeightsError` unless the file of a folder has the bytes of a weight."""
    location, source, _ = place_of(tensor)
    limit = (folder / DATA).stat().st_size if (folder / DATA).is_file() else 0
    if location != DATA or source + bodies.size_of(tensor) > limit:
        raise WeightsError(f"{folder / GRAPH} does not fit {DATA} beside it: delete the folder.")


def _layout(folder: Path) -> tuple[list[tuple[Placed, int]], int]:
    """The weights to share, each with its place in the file, and the block's size."""
    import onnx

    model = onnx.load(str(folder / GRAPH), load_external_data=False)
    not_there = places.elsewhere(model)
    tensors: list[tuple[Placed, int]] = []
    size = 0
    for tensor in _shareable(model.graph):
        if tensor.name in not_there:
            continue
        _demand_fit(tensor, folder)
        count = bodies.size_of(tensor)
        placed: Placed = {
            "name": tensor.name,
            "type": tensor.data_type,
            "shape": list(tensor.dims),
            "offset": size,
            "bytes": count,
        }
        tensors.append((placed, place_of(tensor).offset))
        size += -(-count // ALIGNMENT) * ALIGNMENT
    return tensors, size


def _check(tensor: object, size: object) -> None:
    """Raises `WeightsError` unless a tensor of a description lies within the block."""
    right = (
        isinstance(tensor, dict)
        and type(size) is int
        and isinstance(tensor.get("name"), str)
        and type(tensor.get("type")) is int
        and tensor["type"] in dlpack.TYPES
        and isinstance(tensor.get("shape"), list)
        and len(tensor["shape"]) <= dlpack.MOST_AXES
        and all(type(length) is int and 0 <= length < 1 << 48 for length in tensor["shape"])
        and type(tensor.get("offset")) is int
        and tensor["offset"] >= 0
        and tensor["offset"] % ALIGNMENT == 0
        and tensor["offset"] + math.prod(tensor["shape"]) * dlpack.width(tensor["type"]) <= size
    )
    if not right:
        text = json.dumps(tensor, default=str)[:200]
        raise WeightsError(
            f"what the owner says of its GPU memory is damaged ({text}): build the model again."
        )
