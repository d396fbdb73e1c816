"""Runs the segments of a cut model and the collectives between them.

The first run with some input shapes lets ONNX Runtime allocate every value and so learns their shapes. From
the second run on, the values lie in buffers that stay where they are: each session is bound once to the
buffers it reads and writes, collectives work in place on them, and a run is nothing but "run session, run
collectives" in turn. Buffers are used again within a run when their value has been read for the last time.

Where a segment's output shapes depend on its input's values (as those of NonZero do), the plan ends before
that segment, and ONNX Runtime allocates from there on.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from ranks.collectives.buffers import Memory, Shape, nbytes
from ranks.common.tensors import element_dtype, is_extended
from ranks.run.allocation import Buffers
from ranks.run.control_flow import Driven
from ranks.run.plans import Plan, Plans
from ranks.run.point_to_point import ReshapedError
from ranks.sessions.cut import Collective, Segment
from ranks.sessions.nodes import POINT_TO_POINT
from ranks.sessions.session import run_error

if TYPE_CHECKING:
    from ranks.collectives.base import Buffer
    from ranks.run.plans import Values
    from ranks.run.steps.parts import Parts
    from ranks.weights.updated.bound import Bindings, BoundWeights
    from sharding.common.arrays import Array

MAX_KNOWN_SHAPES = 256  # sets of input shapes whose values' shapes are remembered


class Program:
    """A cut model's sessions, ready to run; not safe for calls from several threads at once."""

    def __init__(self, parts: Parts, driven: Sequence[Driven] = ()) -> None:
        """``driven``: the cut's control flow, in order."""
        self.weights = parts.weights
        cut = self._cut = parts.cut
        self._sessions, self._elements = parts.sessions, parts.elements
        self._wider = {
            level
            for level, (session, segment) in enumerate(zip(self._sessions, cut.segments, strict=True))
            if session is not None and [item.name for item in session.get_outputs()] != list(segment.outputs)
        }
        """The segments that `SegmentBuilder.widen` has changed: what they give has other names."""
        self._communicator, self._mail = parts.group, parts.mail
        self._exchanges = parts.exchanges
        self._host, self._memory, self._small = parts.host, parts.memory, parts.small
        self._life = parts.life
        self._read = {*cut.outputs, *(name for segment in cut.segments for name in segment.inputs)}
        self._read.update(c.input for level in cut.collectives for c in level if c.input)
        self._driven: list[list[Driven]] = [[] for _ in cut.controls]
        for item in driven:
            self._driven[item.control.level].append(item)
        into_bodies = {name for item in driven for name in item.control.reads}
        self._passed_on = into_bodies.difference(self._read) if self._memory is self._host else frozenset()
        self._read |= into_bodies
        given = (name for item in driven for name in item.control.outputs)
        self._given = {name for name in given if self._place(name) is self._host}
        """What bodies gave: the caller may have it without a copy."""
        self._plans = Plans(parts.sessions, parts.memory)
        self._shapes: OrderedDict[tuple[Shape, ...], dict[str, Shape]] = OrderedDict()
        self._planned_levels = self._fixed_levels()
        self.communication_seconds = 0.0

    @property
    def collectives(self) -> str:
        """The name of the backend in use; empty without one."""
        return self._communicator.name if self._communicator is not None else ""

    def run(self, feeds: Sequence[Array]) -> list[Array]:
        """Runs the model on its inputs in order; returns its outputs in order, owned by the caller."""
        with self._memory.active():
            results = self._run(feeds)
            if self._mail is not None:
                self._mail.begin()
            return results

    def all_weights(self) -> list[BoundWeights]:
        """The variable weights, as the sessions of each program have them: this one's and its bodies'."""
        inner = [bound for level in self._driven for item in level for bound in item.all_weights()]
        return inner if self.weights is None else [self.weights, *inner]

    def fail(self, reason: str) -> None:
        """Instead of a run, or after one that failed: finishes its sends and receives without values, and so
        tells peers the reason."""
        if self._mail is not None:
            with self._memory.active():
                self._mail.fail(reason)

    def _run(self, feeds: Sequence[Array]) -> list[Array]:
        if self.weights is not None and self.weights.renew():
            self._bind_weights(self.weights)
        key = tuple([array.shape for array in feeds])
        plan = self._plans.get(key)
        if plan is None:
            if key not in self._shapes or not self._planned_levels:
                return self._first_run(key, feeds)
            plan = self._add_plan(key)
        for index, load in plan.loads:
            load(feeds[index])
        level = 0
        seconds, computing = 0.0, self._exchanges.computing_seconds
        clock = time.perf_counter
        for run, exchanges in plan.steps:
            if run is not None:
                try:
                    run()
                except Exception as error:
                    return self._leave_plan(plan, level, error)
            if exchanges:
                start = clock()
                try:
                    for exchange in exchanges:
                        exchange()
                except ReshapedError as found:
                    return self._leave_at_recv(plan, level, found)
                seconds += clock() - start
            level += 1
        self.communication_seconds += seconds - (self._exchanges.computing_seconds - computing)
        if level < len(self._sessions):
            values = dict(plan.values)
            self._run_free(values, level, {})
            return self._results(values)
        return [fetch() for fetch in plan.fetches]

    def _bind_weights(self, weights: BoundWeights) -> None:
        """Binds a new version in every plan. Values of another shape end what was known of shapes."""
        if weights.reshaped:
            self._plans.clear()
            self._shapes.clear()
        for plan in self._plans.values():
            for bound in plan.bound:
                weights.update(bound)

    # shapes unknown

    def _first_run(self, key: tuple[Shape, ...], feeds: Sequence[Array]) -> list[Array]:
        values: Values = {}
        for name, array in zip(self._cut.inputs, feeds, strict=True):
            memory = self._place(name)
            if self._elements[name] is None:
                values[name] = np.asarray(array, dtype=object)
                continue
            values[name] = array
            if name not in self._passed_on:  # else a body's program takes its own copy
                values[name] = memory.allocate(array.shape, self._elements[name] or 0)
                memory.load(values[name], array)
        shapes: dict[str, Shape] = {}
        self._run_free(values, 0, shapes)
        self._shapes[key] = shapes
        if len(self._shapes) > MAX_KNOWN_SHAPES:
            self._shapes.popitem(last=False)
        return self._results(values)

    def _run_free(self, values: Values, start: int, shapes: dict[str, Shape]) -> None:
        """Runs from level ``start`` on with buffers that ONNX Runtime allocates; notes the shapes found."""
        for level in range(start, len(self._sessions)):
            session = self._sessions[level]
            if session is not None:
                self._run_segment(session, level, values)
            self._note_shapes(self._life.produced[level], values, shapes)
            for name in self._life.dead_before_exchange[level]:
                values.pop(name, None)
            began = time.perf_counter()
            for collective in self._cut.collectives[level]:
                self._exchange_free(collective, values)
            self.communication_seconds += time.perf_counter() - began
            self.drive(level, values)
            self._note_shapes(self._life.received[level], values, shapes)
            for name in self._life.dead_after[level]:
                values.pop(name, None)

    def _note_shapes(self, names: Sequence[str], values: Values, shapes: dict[str, Shape]) -> None:
        for name in names:
            if self._elements[name] is not None:
                shapes[name] = self._place(name).shape(values[name])

    def _run_segment(self, session: ort.InferenceSession, level: int, values: Values) -> None:
        segment = self._cut.segments[level]
        if level in self._wider or any(
            self._elements[n] is None and isinstance(values[n], np.ndarray) for n in segment.inputs
        ):
            self._run_on_strings(session, level, values)
            return
        binding = session.io_binding()
        self._bind_inputs(binding, segment, values)
        for name in segment.outputs:
            memory = self._place(name)
            binding.bind_output(name, memory.device, memory.device_id)
        try:
            session.run_with_iobinding(binding, *self._plans.free(session))
        except Exception as error:
            raise run_error(error) from None
        for name, value in zip(segment.outputs, binding.get_outputs(), strict=True):
            values[name] = value if self._elements[name] is None else self._place(name).adopt(value)

    def _run_on_strings(self, session: ort.InferenceSession, level: int, values: Values) -> None:
        """Runs a segment that reads an input of strings: ONNX Runtime takes strings in this way only."""
        segment = self._cut.segments[level]
        feeds: dict[str, object] = {}
        for name in segment.inputs:
            if self.weights is not None and name in self._cut.weights:
                feeds[name] = self.weights.value(name)
                continue
            value, element = values[name], self._elements[name]
            if element is not None:
                value = self._place(name).fetch(value)
                if is_extended(value.dtype):
                    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(value, element)
            elif not isinstance(value, np.ndarray) and value.is_tensor():
                value = value.numpy()
            feeds[name] = value
        try:
            results = session.run(None, feeds, *self._plans.free(session))
        except Exception as error:
            raise run_error(error) from None
        for name, result in zip(segment.outputs, results, strict=True):
            element = self._elements[name]
            if element is None:
                values[name] = result
                continue
            values[name] = self._place(name).allocate(result.shape, element)
            given = element_dtype(element)  # not `SegmentBuilder.widen`'s float32
            self._place(name).load(values[name], result.astype(given) if is_extended(given) else result)

    def _exchange_free(self, collective: Collective, values: Values) -> None:
        source = values[collective.input] if collective.input else None
        target = self._exchanges.free(collective, source)
        if collective.output:
            values[collective.output] = target

    def drive(self, level: int, values: Values) -> None:
        """Runs the control flow of a level; its outputs are the bodies' own, which nobody else writes."""
        for driven in self._driven[level]:
            self._drive(driven, values)

    def _drive(self, driven: Driven, values: Values) -> None:
        given, before = {}, driven.communication_seconds
        for name in driven.control.reads:
            value = values[name]
            if self._elements[name] is not None and not isinstance(value, np.ndarray):
                value = self._place(name).fetch(value)
            given[name] = value.numpy() if isinstance(value, ort.OrtValue) else value
        for name, array in zip(driven.control.node.output, driven.run(given), strict=False):
            values[name] = array
            element = self._elements.get(name)
            if element is not None and self._place(name) is not self._host:
                values[name] = self._memory.allocate(array.shape, element)
                self._memory.load(values[name], array)
        self.communication_seconds += driven.communication_seconds - before

    # shapes known

    def _add_plan(self, key: tuple[Shape, ...]) -> Plan:
        shapes = dict(self._shapes[key])
        shapes.update(zip(self._cut.inputs, key, strict=True))
        buffers = Buffers(self._cut, self._life, self._place, self._memory, self._elements)
        values = buffers.allocate(shapes, self._cut.inputs, self._planned_levels)
        plan = self._plans.new(key, values)
        plan.levels = self._planned_levels
        read = [(index, name) for index, name in enumerate(self._cut.inputs) if name in self._read]
        plan.loads = [(index, partial(self._place(name).load, values[name])) for index, name in read]
        if plan.levels == len(self._sessions):
            plan.fetches = [partial(self._place(name).fetch, values[name]) for name in self._cut.outputs]
        for level in range(plan.levels):
            session = self._sessions[level]
            run = self._planned_run(plan, session, level, shapes) if session is not None else None
            exchanges: list[Callable[[], object]] = []
            for c in self._cut.collectives[level]:
                source = values[c.input] if c.input else None
                target = values[c.output] if c.output else None
                in_place = c.output in self._life.in_place
                exchanges += self._exchanges.calls(c, source, target, in_place=in_place)
            plan.steps.append((run, exchanges))
        return plan

    def _planned_run(
        self, plan: Plan, session: ort.InferenceSession, level: int, shapes: Mapping[str, Shape]
    ) -> Callable[[], object]:
        segment, values, binding = self._cut.segments[level], plan.values, session.io_binding()
        weights = self._bind_inputs(binding, segment, values)
        plan.bound += weights
        for name in segment.outputs:
            self._bind(binding.bind_output, name, values[name])
        away = [n for n in (*segment.inputs, *segment.outputs) if self._place_apart(n)]
        before = [
            partial(self._bind, binding.bind_input, name, values[name])
            for name in segment.inputs
            if name in away
        ]
        group = self._communicator
        all_wait = group is not None and group.awaits
        waiting = [c for c in self._cut.collectives[level] if all_wait or c.op in POINT_TO_POINT]
        moved = {n for c in waiting for n in (c.input, c.output) if n}
        waits = any(nbytes(shapes[name], self._elements[name] or 0) for name in moved)
        awaited = waits and not any(name in away for name in segment.outputs)
        return self._plans.call(
            plan, session, binding, before, awaited=awaited, fixed=not away and not weights
        )

    def _leave_plan(self, plan: Plan, level: int, error: Exception) -> list[Array]:
        """For a segment that failed in its plan: if its outputs have new shapes, no plan can hold them."""
        values = dict(plan.values)
        shapes: dict[str, Shape] = {}
        self._run_free(values, level, shapes)  # raises what is not about shapes
        if all(plan_shape == shapes.get(name) for name, plan_shape in self._planned_shapes(plan, level)):
            raise run_error(error)
        self._planned_levels = min(self._planned_levels, level)
        self._plans.clear()
        return self._results(values)

    def _leave_at_recv(self, plan: Plan, level: int, found: ReshapedError) -> list[Array]:
        """A value of another shape than planned has been announced: no plan can hold what depends on it."""
        values, collectives = dict(plan.values), self._cut.collectives[level]
        c = found.collective
        values[c.output or ""] = self._exchanges.finish(c, found.shape)
        for after in collectives[collectives.index(c) + 1 :]:
            self._exchange_free(after, values)
        self._run_free(values, level + 1, {})
        self._planned_levels = min(self._planned_levels, level)
        self._plans.clear()
        return self._results(values)

    def _planned_shapes(self, plan: Plan, level: int) -> list[tuple[str, Shape]]:
        return [(name, self._place(name).shape(plan.values[name])) for name in self._life.produced[level]]

    # both

    def _place_apart(self, name: str) -> bool:
        """Whether a value lies on the host while others lie on a device."""
        return name not in self._cut.weights and self._place(name) is not self._memory

    def _place(self, name: str) -> Memory:
        return self._host if name in self._small or self._elements[name] is None else self._memory

    def _bind(self, bind: Callable[..., None], name: str, buffer: Buffer) -> None:
        memory = self._place(name)
        shape = list(memory.shape(buffer))
        bind(name, memory.device, memory.device_id, self._elements[name], shape, memory.address(buffer))

    def _bind_inputs(self, binding: ort.IOBinding, segment: Segment, values: Values) -> list[Bindings]:
        weights = []
        for name in segment.inputs:
            if name in self._cut.weights:
                weights.append(name)
            elif self._elements[name] is None:
                binding.bind_ortvalue_input(name, values[name])
            else:
                self._bind(binding.bind_input, name, values[name])
        return [self.weights.bind(binding, weights)] if self.weights is not None and weights else []

    def _results(self, values: Values) -> list[Array]:
        results = []
        for name in self._cut.outputs:
            value = values[name]
            if self._elements[name] is not None and name not in self._given:
                value = self._place(name).fetch(value)
            elif isinstance(value, ort.OrtValue):
                value = value.numpy()
            results.append(value)
        return results

    def _fixed_levels(self) -> int:
        """The levels, from the first, in which every value lies in a plain block of memory, before control
        flow: which way it goes decides shapes."""
        if any(self._elements[name] is None for name in self._cut.inputs):
            return 0
        for level, names in enumerate(self._life.produced):
            if self._driven[level] or any(self._elements[name] is None for name in names):
                return level
        return len(self._sessions)
