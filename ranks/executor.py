"""Loads what a rank runs and runs it: a slice folder, a rank model, or a plain ONNX model."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from ranks import devices, model_file
from ranks.buffers import HostMemory, Memory
from ranks.collectives.base import Communicator
from ranks.errors import ModelError, ShardError, ShardrunError
from ranks.identity import identify
from ranks.session import SessionConfig, create, default_threads, reason
from ranks.tensors import Dim, TensorSpec, element_dtype, order_feeds, spec_of

if TYPE_CHECKING:
    import onnx

    from ranks.cut import Cut
    from ranks.program import Program

_UINT8 = 2
_HOST_COLLECTIVES = frozenset({"shm", "mpi", "gloo"})
_SMALL_TYPES = frozenset({6, 7, 9})  # int32, int64, bool: what shapes, axes and conditions are made of


@dataclass(frozen=True)
class Stats:
    """Of one loaded model; ``communication_seconds`` is the time spent in collectives so far."""

    segments: int
    collectives: int
    weight_bytes: int
    communication_seconds: float


class RankModel:
    """One rank's model, loaded."""

    def __init__(
        self,
        path: Path,
        inputs: list[TensorSpec],
        outputs: list[TensorSpec],
        *,
        session: ort.InferenceSession | None = None,
        program: Program | None = None,
        stats: Stats | None = None,
    ) -> None:
        self.path = path
        self.inputs = inputs
        self.outputs = outputs
        self._session = session
        self._program = program
        self._stats = stats
        self._lock = threading.Lock()

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        """Runs the model once; in a group every rank must call it, with the same feeds.

        ``feeds`` holds an array per input. Returns the outputs in the model's order, which the caller owns.
        Plain models may be run by several threads at once; others wait for one another.

        Raises `ShardrunError` for feeds that do not fit the inputs, `ModelError` where ONNX Runtime cannot
        compute, and the communicator's errors.
        """
        arrays = order_feeds(self.inputs, feeds)
        if self._session is not None:
            try:
                return list(self._session.run(None, dict(feeds)))
            except Exception as error:
                raise ModelError(f"ONNX Runtime could not run {self.path}: {reason(error)}") from None
        if self._program is None:
            raise ShardrunError(f"The model {self.path} is closed.")
        with self._lock:
            return self._program.run(arrays)

    @property
    def stats(self) -> Stats:
        """Segments, collectives per inference, bytes of weights, seconds of communication."""
        if self._stats is None:
            self._stats = Stats(1, 0, model_file.weight_bytes(model_file.read(self.path)), 0.0)
        if self._program is None:
            return self._stats
        return replace(self._stats, communication_seconds=self._program.communication_seconds)

    @property
    def collectives(self) -> str:
        """The name of the backend that joins the segments; empty where nothing is exchanged."""
        return self._program.collectives if self._program is not None else ""

    def close(self) -> None:
        """Frees sessions and buffers; the communicator stays open. Safe to call twice."""
        with self._lock:
            self._session = None
            self._program = None


def load(
    path: str | Path,
    *,
    communicator: Communicator | None = None,
    threads: int | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    provider_options: Sequence[Mapping[str, str]] | None = None,
    device_id: int = 0,
    dims: Mapping[str, Sequence[Dim]] | None = None,
    check: bool = True,
) -> RankModel:
    """Loads a slice folder, a rank model or a plain ONNX model.

    Of a slice folder each rank takes its own shard, which is verified against the manifest (with
    ``check=False`` without reading it all for its hash), and so is a rank model that lies in one. Any other
    file runs as it is. Without ``communicator``, a model with collectives joins this process's group
    (`ranks.group.join`).

    ``threads`` are those of ONNX Runtime (see `default_threads`); ``providers`` are ONNX Runtime's names, the
    one to run on first, with ``provider_options`` for each; ``dims`` gives inputs other dimensions than the
    file fixes.

    Raises `ModelError`, `ShardError`, `DeviceError` and the errors of joining a group.
    """
    shard = model_file.find(path)
    devices.require(providers[0], device_id)
    if communicator is None and shard.manifest is not None:
        communicator = _join(providers[0])
    rank, size = (communicator.rank, communicator.size) if communicator else (0, 1)
    file = shard.verify(rank, size, hashes=check)
    config = SessionConfig(
        threads=threads if threads is not None else default_threads(_local_size(communicator)),
        providers=tuple(providers),
        provider_options=tuple(provider_options or ()),
        device_id=device_id,
    )
    try:
        return _load(file, communicator, config, dims)
    except UnicodeDecodeError as error:
        raise ModelError(f"{file} is damaged: a name in it is not UTF-8 ({error}).") from None


def _load(
    file: Path,
    communicator: Communicator | None,
    config: SessionConfig,
    dims: Mapping[str, Sequence[Dim]] | None,
) -> RankModel:
    model = None
    if dims or model_file.may_have_collectives(file):
        model = model_file.read(file)
        if dims:
            model_file.resize(model, dims, file)
        if _has_collectives(model):
            if communicator is None:
                communicator = _join(config.providers[0])
                if communicator.size == 1:
                    raise ShardError(
                        f"{file} has collectives, so it is one rank's part of a model, but this process runs "
                        f"alone: "
                        f"start one process per rank."
                    )
            return _load_cut(file, model, communicator, config)
    return _load_plain(file, model if dims else None, config)


def _load_plain(file: Path, model: onnx.ModelProto | None, config: SessionConfig) -> RankModel:
    source: bytes | Path = file
    if model is not None:
        source = _serialized(model, file)
        config = replace(config, folder=file.parent)
    session = create(source, config, str(file))
    inputs = [spec_of(argument) for argument in session.get_inputs()]
    outputs = [spec_of(argument) for argument in session.get_outputs()]
    if any(spec.dtype.type.__module__ != "numpy" for spec in inputs + outputs):
        # ONNX Runtime takes such arrays (bfloat16, float8) by address only.
        return _load_cut(file, model or model_file.read(file), None, config)
    return RankModel(file, inputs, outputs, session=session)


def _load_cut(
    file: Path, model: onnx.ModelProto, communicator: Communicator | None, config: SessionConfig
) -> RankModel:
    from ranks.cut import cut
    from ranks.program import Program
    from ranks.segment import SegmentBuilder

    size = communicator.size if communicator else 1
    index = getattr(getattr(communicator, "device", None), "index", None)
    if index is not None:  # the GPU that NCCL holds
        config = replace(config, device_id=index)
    memory = _memory(communicator, config)
    if memory.device == "cuda" and communicator is not None:
        from ranks.cuda import on_device

        communicator = on_device(communicator, memory)
    plan = cut(model)
    if communicator is not None:
        model_file.check_part(model, file, communicator.rank, size)
        _check_group(plan, communicator, file)
        if not _agree(plan, communicator, memory):
            plan = cut(model, keep_order=True)
            if not _agree(plan, communicator, memory, final=True):
                raise ModelError(
                    f"{file}: the ranks' models do not have the same collectives in the same order."
                )
    config = replace(
        config, folder=file.parent, many=len(plan.segments) > 1, memory_options=memory.provider_options()
    )
    builder = SegmentBuilder(plan, size)
    sessions: list[ort.InferenceSession | None] = []
    for index, segment in enumerate(plan.segments):
        session = None
        if segment.outputs:
            segment_model = builder.model(segment)
            what = str(file) if len(plan.segments) == 1 else f"segment {index} of {file}"
            session = create(_serialized(segment_model, file), config, what)
        builder.learn(session.get_outputs() if session else (), plan.collectives[index])
        sessions.append(session)
    names = {*plan.inputs, *plan.outputs}
    for segment in plan.segments:
        names.update(segment.inputs, segment.outputs)
    names.update(n for level in plan.collectives for c in level for n in (c.input, c.output) if n)
    types = {name: builder.type_of(name) for name in names}
    elements = {name: _element(value) for name, value in types.items()}
    exchanged = {n for level in plan.collectives for c in level for n in (c.input, c.output)}
    small = frozenset(
        name
        for name, value in types.items()
        if name not in exchanged
        and value.tensor_type.elem_type in _SMALL_TYPES
        and value.tensor_type.HasField("shape")
        and len(value.tensor_type.shape.dim) <= 1
    )
    program = Program(plan, sessions, elements, memory, communicator, small=small)
    stats = Stats(
        segments=sum(session is not None for session in sessions),
        collectives=sum(map(len, plan.collectives)),
        weight_bytes=model_file.weight_bytes(model),
        communication_seconds=0.0,
    )
    inputs = [_spec(name, types[name]) for name in plan.inputs]
    outputs = [_spec(name, types[name]) for name in plan.outputs]
    for spec in inputs + outputs:
        if not spec.is_tensor:
            raise ModelError(
                f"{spec.name!r} of {file} is no tensor: a model that is cut takes and gives tensors."
            )
    return RankModel(file, inputs, outputs, program=program, stats=stats)


def _join(provider: str) -> Communicator:
    from ranks import group

    device = devices.DEVICES.get(provider)
    if device is None or os.environ.get("SHARDRUN_COLLECTIVES", "").strip() in _HOST_COLLECTIVES:
        return group.join()
    return group.join(device=device.buffers)


def _local_size(communicator: Communicator | None) -> int:
    """Ranks on this host; where the launcher does not say how many, all of them."""
    identity = identify()
    if identity.local_size is not None and identity.world_size > 1:
        return identity.local_size
    return communicator.size if communicator is not None else identity.world_size


def _memory(communicator: Communicator | None, config: SessionConfig) -> Memory:
    device = devices.DEVICES.get(config.providers[0])
    if device is not None and device.buffers == "cuda":
        from ranks.cuda import CudaMemory

        return CudaMemory(config.device_id)
    return HostMemory(communicator)


def _has_collectives(model: onnx.ModelProto) -> bool:
    from ranks.cut import has_collectives

    return has_collectives(model)


def _check_group(plan: Cut, communicator: Communicator, file: Path) -> None:
    """Checks what collectives say of their group. Raises `ModelError`."""
    for level in plan.collectives:
        for c in level:
            found = c.attributes.get("group_size")
            if found is not None and found != communicator.size:
                raise ModelError(
                    f"{c.op} of {c.input!r} in {file} is for a group of {found}, but this group has "
                    f"{communicator.size} ranks."
                )
            for key in ("peer", "root"):
                other = c.attributes.get(key)
                if other is not None and not 0 <= other < communicator.size:
                    raise ModelError(
                        f"{c.op} of {c.input or c.output!r} in {file} has {key} {other}, but this group's "
                        f"ranks are "
                        f"0..{communicator.size - 1}."
                    )
            if c.attributes.get("peer") == communicator.rank:
                raise ModelError(
                    f"{c.op} of {c.input or c.output!r} in {file} has this rank itself as its peer."
                )


def _agree(plan: Cut, communicator: Communicator, memory: Memory, *, final: bool = False) -> bool:
    """Whether every rank runs the same collectives in the same order (by level only if none sends or
    receives)."""
    digest = hashlib.sha256(repr(plan.signatures()).encode()).digest()
    mine = np.frombuffer(digest + bytes([not plan.point_to_point or final]), np.uint8)
    with memory.active():
        buffer = memory.allocate((1, mine.size), _UINT8, exchanged=True)
        everyone = memory.allocate((communicator.size, mine.size), _UINT8, exchanged=True)
        memory.load(buffer, mine[None])
        communicator.all_gather(buffer, everyone, 0)
        rows = memory.fetch(everyone)
    return bool((rows == rows[0]).all() and rows[0, -1])


def _serialized(model: onnx.ModelProto, file: Path) -> bytes:
    try:
        return model.SerializeToString()
    except Exception as error:  # protobuf's own types differ between its implementations
        raise ModelError(
            f"{file} holds more than 2 GB inline; store its weights as external data ({error})."
        ) from None


def _element(value: onnx.TypeProto) -> int | None:
    """The element type's number, or None where values do not lie in a plain block of memory."""
    if not value.HasField("tensor_type"):
        return None
    number: int = value.tensor_type.elem_type
    return None if element_dtype(number).hasobject else number


def _spec(name: str, value: onnx.TypeProto) -> TensorSpec:
    tensor = value.tensor_type
    shape: tuple[Dim, ...] = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim
    )
    return TensorSpec(name, element_dtype(tensor.elem_type), shape, value.HasField("tensor_type"))
