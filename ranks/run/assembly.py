"""From a rank model that is cut at its collectives to what runs it: sessions, groups, buffers, outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from ranks.agreement import handshake, likeness
from ranks.collectives.base import Communicator
from ranks.collectives.buffers import HostMemory, Memory
from ranks.common.progress import LOADING
from ranks.common.tensors import Dim, TensorSpec, element_dtype
from ranks.devices import devices
from ranks.errors import ModelError, ShardError
from ranks.models import model_file
from ranks.run.control_flow import Agreement, Driven
from ranks.run.point_to_point import Mail
from ranks.run.program import Program
from ranks.run.steps.parts import Parts
from ranks.sessions.bodies import cut_with_bodies
from ranks.sessions.cut import Control, Cut
from ranks.sessions.idle import Idle, of_sessions
from ranks.sessions.nodes import POINT_TO_POINT
from ranks.sessions.segment import SegmentBuilder
from ranks.sessions.session import SessionConfig, at, create
from ranks.state import parts
from ranks.state.pairs import pairs_of
from ranks.weights.shared import automatic
from sharding.onnx_files.kinds import declared_shape

if TYPE_CHECKING:
    import onnx

    from ranks.models.part import Part
    from ranks.run.schedule import Schedule
    from ranks.run.steps.sequences import Stateful
    from ranks.run.steps.whole_state import WholeState
    from ranks.weights.updated.variable import VariableWeights
    from sharding.slices.manifest import Manifest
    from sharding.slices.state import StatePair

_SMALL_TYPES = frozenset({6, 7, 9})  # int32, int64, bool: what shapes, axes and conditions are made of


@dataclass(frozen=True)
class Assembly:
    """A rank model, ready to run; inputs and outputs are those of the whole model."""

    program: Program | Schedule | WholeState
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    segments: int
    collectives: int
    memory: Memory
    exchange: Communicator | None
    """All ranks, as a communicator of the memory's buffers."""
    model: onnx.ModelProto
    weights: VariableWeights | None
    idle: Idle | None
    """Gives buffers back where nobody runs the model."""
    stateful: Callable[[], Stateful] | None = None
    """Makes what runs the model step by step, where it has state."""


def assemble(
    loaded: likeness.Loaded,
    world: Communicator | None,
    config: SessionConfig,
    *,
    whole: Mapping[str, Sequence[Dim]] | None = None,
    weights: VariableWeights | None = None,
    fits: Mapping[str, bool] | None = None,
) -> Assembly:
    """Cuts a rank model, agrees with the other ranks on it, and makes its sessions.

    A collective of ``world``. ``whole``: shapes of the whole model's inputs and outputs, where something
    knows them better than the rank model does. ``weights``: the variable weights, which the model has as
    inputs. ``fits``: as for `handshake.agree`.

    Raises `ModelError`, `ShardError` and the communicator's errors.
    """
    file, part = loaded.file, loaded.part
    config = at(config, world)
    memory = memory_for(world, config)
    variable = frozenset(weights.feeds) if weights is not None else frozenset()
    plan, group, mail = cut_with_bodies(loaded.model, weights=variable), world, None
    exchange = _on_memory(world, memory) if world is not None else None
    if world is not None and exchange is not None:
        _check_group(plan, world, part, file)
        odd = likeness.compare(exchange, memory, loaded)
        if odd is not None:
            from ranks.common.notice import warn_user

            warn_user(odd)
        plan = _agreed(plan, exchange, memory, part, file, fits)
        group = exchange if part is None else exchange.split(part.groups("tensor"))
        if isinstance(memory, HostMemory):
            memory = HostMemory(group)
        if plan.point_to_point:
            peers = handshake.peers(part, world.rank, world.size)
            mail = Mail(exchange, memory, peers, plan.mail, announced=part is not None)
    programs = _Programs(file, config, memory, group, mail, weights, total=plan.sessions)
    builder, program = programs.make(plan)
    inputs = [_spec(name, builder.named(name)) for name in plan.inputs]
    outputs = [_spec(name, builder.named(name)) for name in plan.outputs]
    for spec in inputs + outputs:
        if not spec.is_tensor:
            raise ModelError(
                f"{spec.name!r} of {file} is no tensor: a model that is cut takes and gives tensors."
            )
    pairs = pairs_of(plan.model, str(file))
    own = {spec.name: spec for spec in inputs}
    one: Program | WholeState = program
    if group is not None and group.size > 1 and any(parts.split_of(pair) for pair in pairs):
        from ranks.run.steps.whole_state import WholeState

        names = [spec.name for spec in inputs], [spec.name for spec in outputs]
        one = WholeState(program, names, pairs, group, memory)
        inputs = parts.whole_specs(inputs, {pair.input: pair for pair in pairs}, group.size)
        outputs = parts.whole_specs(outputs, {pair.output: pair for pair in pairs}, group.size)
    runner: Program | Schedule | WholeState = one
    if world is not None and exchange is not None and part is not None and part.scheduled:
        from ranks.run.schedule import Schedule

        runner = Schedule(one, part, world, inputs, [spec.name for spec in outputs])
        inputs = [_whole(spec, part.batch_inputs, whole) for spec in inputs]
        everyone = handshake.gather_json(
            [_described(name, builder.named(name)) for name in plan.outputs], exchange, memory
        )
        outputs = [_whole(spec, part.batch_outputs, whole) for spec in _of_all(part, everyone)]
    stateful = None
    assert programs.parts is not None
    if pairs:
        stateful = partial(_stateful, programs.parts, pairs, own, weights, runner)
    return Assembly(
        runner, inputs, outputs, programs.segments, plan.count(), memory, exchange, plan.model, weights,
        of_sessions(programs.parts.sessions), stateful,
    )  # fmt: skip


def _stateful(
    parts: Parts,
    pairs: tuple[StatePair, ...],
    specs: Mapping[str, TensorSpec],
    weights: VariableWeights | None,
    runner: object,
) -> Stateful:
    """What runs a rank's model step by step. ``specs``: its own inputs."""
    from ranks.run.schedule import Schedule
    from ranks.run.steps.copies import Copies
    from ranks.run.steps.sequences import Stateful

    if not isinstance(runner, Schedule):
        return Stateful.of(parts, pairs, specs, weights)
    copies = Copies(runner, pairs) if runner.part.mesh.length("data") > 1 else None
    return replace(Stateful.of(parts, pairs, specs, weights), shown=runner.show, copies=copies)


def _agreed(  # noqa: PLR0917 - what `assemble` was given
    plan: Cut,
    world: Communicator,
    memory: Memory,
    part: Part | None,
    file: Path,
    fits: Mapping[str, bool] | None,
) -> Cut:
    """The cut in which the ranks' models run together. Raises `ModelError` where there is none."""
    if handshake.agree(plan, world, memory, part, fits) is None:
        return plan
    plan = cut_with_bodies(plan.model, keep_order=True, weights=plan.weights)
    why = handshake.agree(plan, world, memory, part, final=True)
    if why is not None:
        raise ModelError(f"{file}: {why}")
    return plan


def whole_shapes(
    manifest: Manifest | None, dims: Mapping[str, Sequence[Dim]] | None
) -> dict[str, Sequence[Dim]]:
    """The shapes of the whole model's inputs and outputs, as far as they are known besides the rank model."""
    known: dict[str, Sequence[Dim]] = {}
    if manifest is not None:
        known = {entry.name: entry.shape for entry in (*manifest.inputs, *([] if dims else manifest.outputs))}
    return {**known, **(dims or {})}


@dataclass
class _Programs:
    """Makes the program of a cut, and those of the bodies in it."""

    file: Path
    config: SessionConfig
    memory: Memory
    group: Communicator | None
    mail: Mail | None
    weights: VariableWeights | None
    segments: int = 0
    """Sessions made so far."""
    total: int = 0
    """Sessions to be made."""
    parts: Parts | None = None
    """What the program that was made last is made of."""

    def make(self, plan: Cut) -> tuple[SegmentBuilder, Program]:
        """The program, and what knows the types of its values."""
        many = len(plan.segments) > 1 or self.segments > 0
        config = replace(
            self.config,
            folder=self.file.parent,
            many=many,
            memory_options=self.memory.provider_options(),
            entries={**self.memory.session_entries(), **self.config.entries},
        )
        builder = SegmentBuilder(plan, self.group.size if self.group is not None else 1)
        sessions: list[ort.InferenceSession | None] = []
        driven: list[Driven] = []
        for index, segment in enumerate(plan.segments):
            session, given = None, []
            if segment.outputs:
                what = f"segment {self.segments} of {self.file}" if many else str(self.file)
                part = builder.model(segment)
                chosen = automatic.for_segment(config, part)
                session = _session(model_file.serialized(part, self.file), chosen, what)
                if builder.widen(part, given := session.get_outputs()):
                    session = _session(model_file.serialized(part, self.file), chosen, what)
                self.segments += 1
                LOADING.report(self.segments, self.total + 1)
            builder.learn(given, plan.collectives[index])
            sessions.append(session)
            driven += [self._driven(control, builder) for control in plan.controls[index]]
        types = {name: builder.type_of(name) for name in _names(plan)}
        elements = {name: _element(value) for name, value in types.items()}
        for c in plan.mail:
            if elements[c.input or c.output or ""] is None:
                raise ModelError(
                    f"{c.op} of {c.input or c.output!r} in {self.file}: only tensors of numbers are sent."
                )
        bound = None
        if self.weights is not None:
            from ranks.weights.updated.bound import BoundWeights

            bound = BoundWeights(self.weights)
        small = _small(plan, types)
        parts = Parts(plan, sessions, elements, self.memory, self.group, small, self.mail, bound)
        program = Program(parts, driven)
        # The last is that of the whole rank model: bodies are made before what they are in.
        self.parts = replace(parts, drive=program.drive)
        return builder, program

    def _driven(self, control: Control, outside: SegmentBuilder) -> Driven:
        """Control flow with the programs of its bodies; ``outside`` learns the types of what it gives."""
        builders, programs = [], []
        for body in control.bodies:
            for value in body.model.graph.input:
                if not value.HasField("type"):
                    value.type.CopyFrom(outside.type_of(value.name))
            builder, program = self.make(body)
            builders.append(builder)
            programs.append(program)
        given = [
            [builder.type_of(name) for name in body.outputs]
            for body, builder in zip(control.bodies, builders, strict=True)
        ]
        stacked = outside.learn_given(control, given)
        return Driven(control, programs, Agreement(self.group, self.memory), stacked)


def _session(model: bytes, config: SessionConfig, what: str) -> ort.InferenceSession:
    """The session, with its work captured as a graph only where ONNX Runtime can capture it: not what has
    control flow, or nodes on the CPU."""
    try:
        return create(model, config, what)
    except ModelError as error:
        if "graph capture feature" not in str(error):
            raise
    from ranks.sessions.cuda import GRAPHS

    memory, *given = (
        {key: value for key, value in options.items() if key != GRAPHS}
        for options in (config.memory_options, *config.provider_options)
    )
    return create(model, replace(config, memory_options=memory, provider_options=tuple(given)), what)


def _names(plan: Cut) -> set[str]:
    names = {*plan.inputs, *plan.outputs}
    for segment in plan.segments:
        names.update(segment.inputs, segment.outputs)
    names.update(n for level in plan.collectives for c in level for n in (c.input, c.output) if n)
    for control in (control for level in plan.controls for control in level):
        names.update(name for name in (*control.reads, *control.outputs) if name not in plan.weights)
    return names


def _small(plan: Cut, types: Mapping[str, onnx.TypeProto]) -> frozenset[str]:
    """Values that stay on the host even where the others lie on a GPU."""
    exchanged = {n for level in plan.collectives for c in level for n in (c.input, c.output)}
    return frozenset(
        name
        for name, value in types.items()
        if name not in exchanged
        and value.tensor_type.elem_type in _SMALL_TYPES
        and value.tensor_type.HasField("shape")
        and len(value.tensor_type.shape.dim) <= 1
    )


def memory_for(communicator: Communicator | None, config: SessionConfig) -> Memory:
    """Where values lie that sessions of a config exchange."""
    device = devices.DEVICES.get(config.providers[0])
    if device is not None and device.buffers == "cuda":
        from ranks.sessions.cuda import CudaMemory, graphs_wanted

        return CudaMemory(config.device_id, graphs=graphs_wanted(config.provider_options))
    return HostMemory(communicator)


def _on_memory(world: Communicator, memory: Memory) -> Communicator:
    if memory.device != "cuda":
        return world
    from ranks.collectives.torch.staged import on_device

    return on_device(world, memory)


def _check_group(plan: Cut, world: Communicator, part: Part | None, file: Path) -> None:
    """Checks what collectives say of their group. Raises `ModelError`."""
    size, length, here = world.size, world.size, world.rank
    if part is not None:
        size, length = part.mesh.length("tensor"), part.mesh.length("pipeline")
        here = part.place["pipeline"]
    for c in plan.everywhere():
        name = c.input or c.output
        found = c.attributes.get("group_size")
        if found is not None and found != size:
            raise ModelError(
                f"{c.op} of {name!r} in {file} is for a group of {found}, but this group has {size} ranks."
            )
        key, most = ("peer", length) if c.op in POINT_TO_POINT else ("root", size)
        other = c.attributes.get("peer") if key == "peer" else c.attributes.get("root")
        if other is not None and not 0 <= other < most:
            what = "stages" if part is not None and key == "peer" else "ranks"
            raise ModelError(
                f"{c.op} of {name!r} in {file} has {key} {other}, but this group's {what} are 0..{most - 1}."
            )
        if c.attributes.get("peer") == here:
            what = "stage" if part is not None else "rank"
            raise ModelError(f"{c.op} of {name!r} in {file} has this {what} itself as its peer.")


def _of_all(part: Part, everyone: Sequence[Sequence[tuple[str, int, list[Dim]]]]) -> list[TensorSpec]:
    """The whole model's outputs, each as a rank that makes it describes it."""
    place = {**part.place, "data": 0}
    specs = []
    for name, stage in part.outputs:
        owner = part.mesh.rank(**{**place, "pipeline": stage})
        found = next((item for item in everyone[owner] if item[0] == name), None)
        if found is None:
            raise ShardError(f"Rank {owner} does not give the output {name!r}: slice the model again.")
        specs.append(TensorSpec(name, element_dtype(found[1]), tuple(found[2])))
    return specs


def _whole(
    spec: TensorSpec, axes: Mapping[str, int], whole: Mapping[str, Sequence[Dim]] | None
) -> TensorSpec:
    """A rank model's input or output as the whole model has it: its batch is longer than a micro-batch."""
    shape = list(spec.shape)
    axis = axes.get(spec.name)
    if axis is not None and axis < len(shape) and isinstance(shape[axis], int):
        shape[axis] = None
    known = (whole or {}).get(spec.name)
    if known is not None and len(known) == len(shape):
        shape = list(known)
    return spec._replace(shape=tuple(shape))


def _element(value: onnx.TypeProto) -> int | None:
    """The element type's number, or None where values do not lie in a plain block of memory."""
    if not value.HasField("tensor_type"):
        return None
    number: int = value.tensor_type.elem_type
    return None if element_dtype(number).hasobject else number


def _described(name: str, value: onnx.TypeProto) -> tuple[str, int, list[Dim]]:
    return name, value.tensor_type.elem_type, list(_spec(name, value).shape)


def _spec(name: str, value: onnx.TypeProto) -> TensorSpec:
    shape, is_tensor = declared_shape(value), value.HasField("tensor_type")
    return TensorSpec(
        name, element_dtype(value.tensor_type.elem_type), shape or (), is_tensor, is_tensor and shape is None
    )
