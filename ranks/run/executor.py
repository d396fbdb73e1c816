"""Loads what a rank runs, as a `RankModel`: a slice folder, a rank model, or a plain ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.cache import locks
from ranks.collectives.base import Communicator
from ranks.common import heap
from ranks.common.progress import LOADING
from ranks.common.tensors import Dim, element_number, spec_of
from ranks.devices import devices
from ranks.devices.providers import CPU
from ranks.errors import ModelError, ShardError
from ranks.identity.identity import identify
from ranks.models import imported, model_file, optional, pattern
from ranks.run import group
from ranks.run.placement import ON_CPU, Placement
from ranks.run.rank_model import Interface, RankModel, Stats
from ranks.sessions import empty, idle
from ranks.sessions.session import SessionConfig, at, create, default_threads
from ranks.weights.shared import automatic
from sharding.slices.cut_short import WHOLE_FILES

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

    from ranks.agreement.likeness import Loaded
    from ranks.precision.request import Precision
    from ranks.run.assembly import Assembly
    from ranks.run.steps.sequences import Stateful
    from ranks.weights.prepared.store import Store
    from ranks.weights.updated.parts import Whole
    from ranks.weights.updated.variable import VariableWeights
    from sharding.common.arrays import Array
    from sharding.slices.manifest import Manifest

__all__ = ["LoadOptions", "RankModel", "Stats", "load"]


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded, besides what `load` takes of every caller."""

    entries: Mapping[str, str] = field(default_factory=dict)
    """Further options of the sessions, by ONNX Runtime's keys."""
    store: Store | None = None
    """Where sessions on the CPU take their weights from, to share them with other processes."""
    check: bool = True
    """Whether all of a shard is read to verify its hash."""
    given: Path | None = None
    """The file that the path was made of, which errors name."""
    timeout: float | None = None
    """Seconds to wait for another process that makes the same; default: ``SHARDRUN_TIMEOUT``."""
    keep: bool = True
    """Whether weights may be prepared in the cache, where they stay."""
    alone: bool = False
    """Whether this process does nothing but serve the model, so that its heap may be set for it."""


DEFAULTS = LoadOptions()


@locks.keeping
@WHOLE_FILES
def load(
    path: str | Path,
    *,
    communicator: Communicator | None = None,
    threads: int | None = None,
    placement: Placement = ON_CPU,
    dims: Mapping[str, Sequence[Dim]] | None = None,
    variable_weights: Sequence[str] = (),
    precision: Precision | None = None,
    options: LoadOptions = DEFAULTS,
) -> RankModel:
    """Loads a slice folder, a rank model or a plain ONNX model.

    ``path`` may be a pattern such as ``rank_{}_model.onnx`` (`ranks.models.pattern`): each rank takes its own
    file.

    Each rank of a slice folder loads its own shard and compares it with the manifest, as it does with a rank
    model that lies in such a folder. Any other file runs as it is. Without ``communicator``, a model with
    collectives joins this process's group (`ranks.run.group.join`).

    ``threads`` are those of ONNX Runtime (see `default_threads`); ``dims`` gives inputs other dimensions than
    the file fixes; ``variable_weights`` names those that `RankModel.update_weights` may replace;
    ``precision`` says which nodes compute in other types than the model's.

    Raises `ModelError`, `ShardError`, `DeviceError` and the errors of joining a group.
    """
    provider, given = placement.providers[0], options.given
    devices.require(provider, placement.device_id)
    LOADING.report(0, 1)
    if pattern.is_pattern(path):
        communicator = communicator or group.join_for(provider)
        path, given = pattern.resolve(path, communicator.rank, communicator.size), None
    given, path = given or Path(path), imported.as_onnx(path, options.timeout)
    shard = model_file.find(path)
    if communicator is None and shard.manifest is not None:
        communicator = group.join_for(provider)
    rank, size = (communicator.rank, communicator.size) if communicator else (0, 1)
    file = shard.verify(rank, size, hashes=options.check)
    if options.alone and shard.manifest is not None and shard.manifest.state:
        heap.join()  # each of many small steps will read all weights
    local_size = group.local_size(communicator)
    config = SessionConfig(
        threads=threads if threads is not None else default_threads(local_size),
        providers=placement.providers,
        provider_options=placement.options,
        device_id=placement.device_id,
        entries=options.entries,
        store=options.store,
        hashes=shard.hashes(rank) if options.check else {},
        rank=_rank(communicator),
        timeout=options.timeout,
    )
    # Before anything is put on a device: variable weights are, too.
    config = at(config, communicator)
    if options.keep:
        config = automatic.choose(config, shard.manifest, local_size)
    given = given if file == path else file
    try:
        with imported.naming(file, given):
            found = _load(file, communicator, config, dims, shard.manifest, variable_weights, precision)
            found.path, found.on_device = file, provider != CPU
    except UnicodeDecodeError as error:
        raise ModelError(f"{given} is damaged: a name in it is not UTF-8 ({error}).") from None
    found.given = given
    LOADING.report(1, 1)
    return found


def _rank(communicator: Communicator | None) -> int | None:
    """Which of several ranks this process is, also where its model needs no other; None: it is alone."""
    who = communicator.rank if communicator is not None else identify().rank
    size = communicator.size if communicator is not None else identify().world_size
    return who if size > 1 else None


def _load(  # noqa: PLR0917 - what `load` was given
    file: Path,
    communicator: Communicator | None,
    config: SessionConfig,
    dims: Mapping[str, Sequence[Dim]] | None,
    manifest: Manifest | None,
    variable: Sequence[str],
    precision: Precision | None,
) -> RankModel:
    model = weights = fits = None
    if dims or variable or precision or model_file.may_have_collectives(file):
        from ranks.models.part import is_part, read_part
        from ranks.sessions.nodes import has_collectives

        model, placed = model_file.read_placed(file)
        if placed != file:  # the manifest's hashes are of the links' names
            file, config = placed, replace(config, hashes={})
        model_file.check_operators(model, file)
        exchanges = has_collectives(model)
        together = exchanges or is_part(model)
        if together and communicator is None:
            communicator = group.join_for(config.providers[0])
            config = at(config, communicator)
            if communicator.size == 1 and exchanges:
                raise ShardError(
                    f"{file} has collectives, so it is one rank's part of a model, but this process runs "
                    "alone: start one process per rank."
                )
        if precision:
            from ranks.precision.convert import apply

            fits = apply(model, precision, file, part=together)
        part = read_part(model, file, communicator.rank, communicator.size) if communicator else None
        if dims:
            # What a rank model runs on is a micro-batch, however long the whole batch is.
            axes = part.batch_inputs if part is not None and part.scheduled else {}
            own = {
                name: [None if axis == axes.get(name) else dim for axis, dim in enumerate(shape)]
                for name, shape in dims.items()
            }
            model_file.resize(model, own, file)
        if together and communicator is not None:
            from ranks.agreement.likeness import Loaded

            read = Loaded(file, model, part, manifest)
            loaded = _load_group(read, communicator, config, dims, variable, fits)
            loaded.never_empty = empty.of_manifest(manifest)
            return loaded
        if variable:
            weights = _marked(model, variable, file, config)
    loaded = _load_plain(file, model if dims or variable or precision else None, config, weights)
    loaded.never_empty = empty.of_file(file) if manifest is None else empty.of_manifest(manifest)
    return loaded


def _load_plain(
    file: Path, model: onnx.ModelProto | None, config: SessionConfig, weights: VariableWeights | None
) -> RankModel:
    source: bytes | Path = file
    if model is not None:
        source = model_file.serialized(model, file)
        config = replace(config, folder=file.parent)
    feeds = weights.feeds if weights is not None else {}
    try:
        session = create(source, config, str(file))
    except ModelError as error:
        if weights is None or model is None:
            raise
        raise ModelError(weights.blamed(model, str(error))) from None
    inputs = [spec_of(argument) for argument in session.get_inputs() if argument.name not in feeds]
    if any(spec.is_tensor and not spec.shape for spec in inputs):  # a session does not tell these two apart
        free = model_file.of_any_rank(model or model_file.read(file))
        inputs = [spec._replace(open_rank=spec.name in free) for spec in inputs]
    outputs = [spec_of(argument) for argument in session.get_outputs()]
    fed = [spec_of(argument) for argument in session.get_overridable_initializers()]
    if any(spec.dtype.type.__module__ != "numpy" for spec in inputs + outputs + fed):
        # ONNX Runtime takes such arrays (bfloat16, float8) by address only.
        from ranks.agreement.likeness import Loaded
        from ranks.run.assembly import assemble

        if model is None:
            model, file = model_file.read_placed(file)
        defaults = optional.take(model, file)
        made = assemble(Loaded(file, model), None, config, weights=weights)
        return _cut_model(file, made, defaults=defaults)
    stats = None
    if weights is not None and model is not None:
        stats = Stats(1, 0, model_file.weight_bytes(model) + weights.nbytes, 0.0)
    interface = Interface(inputs, outputs, fed)
    stateful = partial(_plain_stateful, file, session, interface, config, weights)
    loaded = RankModel(file, interface, session=session, stats=stats, weights=weights, stateful=stateful)
    loaded.idle = idle.of_sessions([session])
    return loaded


def _plain_stateful(
    file: Path,
    session: ort.InferenceSession,
    interface: Interface,
    config: SessionConfig,
    weights: VariableWeights | None,
) -> Stateful | None:
    """What runs a plain model step by step, on the session that it has; None for a model without state."""
    from ranks.run.assembly import memory_for
    from ranks.run.steps.parts import Parts
    from ranks.run.steps.sequences import Stateful
    from ranks.sessions.cut import Cut, Segment
    from ranks.state.pairs import pairs_of

    model = model_file.read(file)
    pairs = pairs_of(model, str(file))
    if not pairs:
        return None
    variable = frozenset(weights.feeds) if weights is not None else frozenset()
    taken = optional.take(model, file)
    defaults = {name: array for name, array in taken.items() if name not in variable}
    results = [spec.name for spec in interface.outputs]
    specs = (*interface.inputs, *(spec for spec in interface.optional if spec.name in defaults))
    fed = [spec.name for spec in specs]
    whole = Segment([], [*fed, *variable], results)
    plan = Cut(model, [whole], [[]], [[]], fed, results, variable)
    elements = {
        argument.name: element_number(argument.type)
        for argument in (
            *session.get_inputs(),
            *session.get_overridable_initializers(),
            *session.get_outputs(),
        )
    }
    parts = Parts(plan, [session], elements, memory_for(None, config), None)
    made = Stateful.of(parts, pairs, {spec.name: spec for spec in specs}, weights)
    return replace(made, defaults=defaults)


def _load_group(  # noqa: PLR0917 - what `_load` was given
    loaded: Loaded,
    communicator: Communicator,
    config: SessionConfig,
    dims: Mapping[str, Sequence[Dim]] | None,
    variable: Sequence[str],
    fits: Mapping[str, bool] | None,
) -> RankModel:
    from ranks.run.assembly import assemble, whole_shapes

    file, model, manifest = loaded.file, loaded.model, loaded.manifest
    weights, wholes = None, {}
    defaults = optional.take(model, file)
    if variable:
        from ranks.weights.updated.parts import wholes as find

        wholes = find(variable, model, manifest, loaded.part, (communicator.rank, communicator.size), file)
        held = [share.held for whole in wholes.values() for share in whole.shares]
        weights = _marked(model, held, file, config)
    whole = whole_shapes(manifest, dims)
    made = assemble(loaded, communicator, config, whole=whole, weights=weights, fits=fits)
    return _cut_model(file, made, communicator, wholes, defaults)


def _cut_model(
    file: Path,
    made: Assembly,
    communicator: Communicator | None = None,
    wholes: Mapping[str, Whole] | None = None,
    defaults: Mapping[str, Array] | None = None,
) -> RankModel:
    weights, together = made.weights, None
    if communicator is not None and made.exchange is not None:
        from ranks.weights.updated.group import Together

        together = Together(communicator, made.memory, made.exchange, weights, wholes or {})
    stats = Stats(
        segments=made.segments,
        collectives=made.collectives,
        weight_bytes=model_file.weight_bytes(made.model) + (weights.nbytes if weights is not None else 0),
        communication_seconds=0.0,
    )
    defaults = defaults or {}
    fed = [spec for spec in made.inputs if spec.name not in defaults]
    rest = [spec for spec in made.inputs if spec.name in defaults]
    interface = Interface(fed, made.outputs, rest, defaults)
    loaded = RankModel(
        file, interface, program=made.program, stats=stats, weights=weights, together=together,
        stateful=made.stateful,
    )  # fmt: skip
    loaded.idle = made.idle
    return loaded


def _marked(
    model: onnx.ModelProto, names: Sequence[str], file: Path, config: SessionConfig
) -> VariableWeights:
    """Makes weights of the model inputs of it."""
    from ranks.weights.updated.variable import mark

    device = devices.DEVICES.get(config.providers[0])
    on_gpu = device is not None and device.buffers == "cuda"
    return mark(model, names, file, config, ("cuda", config.device_id) if on_gpu else ("cpu", 0))
