"""Runs a cut model step by step over a sequence's state, which stays where it is.

Most values of a step have the shapes that they had in the last one; only those that follow from how much has
been read (masks, caches) grow. So the first two steps with some input shapes learn which are which. From then
on values of steady shape lie in buffers that stay, to which sessions and collectives are bound once; only
what grows is bound anew in each step. A step over buffers that operators fill in place allocates nothing.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import onnxruntime as ort

from ranks.common.tensors import element_dtype
from ranks.run.plans import MAX_PLANS, Plans
from ranks.run.point_to_point import ReshapedError
from ranks.run.steps.again import Again
from ranks.run.steps.likeliest import Asked, gathered_last
from ranks.run.steps.plan import Level, Plan, Planner, Shapes
from ranks.sessions.cut import Collective
from ranks.sessions.session import run_error
from ranks.state import feeds as known_feeds

if TYPE_CHECKING:
    from ranks.collectives.base import Buffer
    from ranks.common.tensors import TensorSpec
    from ranks.run.steps.parts import Parts, Values
    from ranks.state.sequence import SequenceState
    from sharding.common.arrays import Array
    from sharding.slices.state import StatePair

MAX_SEEN = 64
"""Sets of input shapes whose values' shapes are remembered."""

Key = tuple[object, ...]


class Way(NamedTuple):
    """How a step runs: by a plan, kept under ``used``, or without; ``key``: what its inputs are like."""

    key: Key
    plan: Plan | None
    used: Key


class Steps:
    """A cut model's sessions, to be run over states; not safe for calls from several threads at once."""

    def __init__(self, parts: Parts, pairs: Sequence[StatePair]) -> None:
        """``pairs``: the model's state."""
        self._parts = parts
        cut = parts.cut
        self._free = Plans(parts.sessions, parts.memory).free
        held = [pair for pair in pairs if pair.output in cut.outputs]
        self._inputs = {pair.input: pair for pair in held}
        self._outputs = {pair.output: pair for pair in held}
        others = {name for pair in pairs for name in (pair.input, pair.output)}
        read = {name for segment in cut.segments for name in segment.inputs}
        read.update(c.input for level in cut.collectives for c in level if c.input)
        read.update(name for level in cut.controls for control in level for name in control.reads)
        self._fresh = [name for name in cut.inputs if name in read and name not in others]
        self._shaping = [name for name in self._fresh if name not in known_feeds.FILLED]
        self._first = list(self._inputs)[:1]
        self.results = [name for name in cut.outputs if name not in others]
        self._buffers = [name for name, pair in self._inputs.items() if pair.buffer]
        filled = {name for segment in cut.segments for name in segment.outputs}
        self._taken = {
            output: pair for output, pair in self._outputs.items() if not (pair.buffer and output in filled)
        }
        """State that is no buffer which the model's operators have filled."""
        self._late = gathered_last(parts, set(self.results), read)
        self._read_late = {c.input for c in self._late.values()}
        self._planner = Planner(parts, self._inputs, self._outputs, self._fresh, self._free, late=self._late)
        self._plans: OrderedDict[Key, Plan] = OrderedDict()
        self._seen: OrderedDict[Key, dict[int, Shapes]] = OrderedDict()
        self._left: dict[Key, int] = {}
        # Which way control flow goes decides shapes.
        self._plannable = not any(cut.controls) and None not in parts.elements.values()
        self.communication_seconds = self.segment_seconds = 0.0
        self.waiting_seconds = self.choosing_seconds = 0.0

    def run(
        self, state: SequenceState, feeds: Mapping[str, Array], count: int, asked: Asked | None = None
    ) -> dict[str, Array]:
        """One step: the outputs that are no state, by name, owned by the caller.

        ``feeds``: arrays for all inputs that are no state; ``count``: the positions that they add. What they
        leave becomes the state with its `commit`, or not with `abandon`, which a step that fails calls.
        Where what is ``asked`` was found, the output that it asks about is left out.
        """
        if self._parts.weights is not None and self._parts.weights.renew():
            self._plans.clear()
            self._seen.clear()
        with self._parts.memory.active():
            try:
                state.reserve(count)
                results = self._run(state, feeds, asked)
            except BaseException:
                state.abandon()
                raise
            if self._parts.mail is not None:
                self._parts.mail.begin()
        return results

    def fail(self, reason: str) -> None:
        """After a run that failed: tells peers the reason (`Program.fail`)."""
        if self._parts.mail is not None:
            with self._parts.memory.active():
                self._parts.mail.fail(reason)

    def _run(self, state: SequenceState, feeds: Mapping[str, Array], asked: Asked | None) -> dict[str, Array]:
        way = self._way(state, feeds)
        values: Values = {} if way.plan is None else dict(way.plan.values)
        for name in self._fresh:
            values[name] = self._given(name, feeds[name], way.plan)
        values.update(state.values)
        return self._go(way, state, values, asked)

    def _way(self, state: SequenceState, feeds: Mapping[str, Array]) -> Way:
        shapes = [feeds[name].shape for name in self._shaping]
        key: Key = (*shapes, *(self._parts.memory.shape(state.value(n))[0:1] for n in self._first))
        plan, used = self._plan(key, state.length)
        if plan is not None and not all(feeds[name].shape == shape for name, shape in plan.fed):
            # The key leaves out masks, which grow, but a caller may give any.
            plan = None
        return Way(key, plan, used)

    def _go(self, way: Way, state: SequenceState, values: Values, asked: Asked | None) -> dict[str, Array]:
        """`run`, where all inputs and the state are in ``values``."""
        key, plan, noted = way.key, way.plan, cast("Shapes", {})
        waited = self._parts.exchanges.waiting_seconds
        level = 0
        if plan is None:
            for name in (*self._fresh, *self._inputs):
                self._note(name, values, noted)
        else:
            level = self._run_planned(plan, values, state)
            if level < len(self._parts.sessions):
                plan.left = True
                self._plans.pop(way.used, None)
                self._seen.pop(key, None)
                self._left[key] = self._left.get(key, 0) + 1
        if level < len(self._parts.sessions):
            self._run_free(values, level, state, noted)
        whole = level == len(self._parts.sessions)  # else what comes last has left the plan's buffers, too
        found = self._finish(values, plan if whole else None, asked, noted)
        if plan is None and self._plannable:
            self._learn(key, state.length, noted)
        for output, pair in self._taken.items():
            self._keep(output, pair, values, state, plan)
        self.waiting_seconds += self._parts.exchanges.waiting_seconds - waited
        return {name: self._result(values[name], name) for name in self.results if name != found}

    def again(
        self, state: SequenceState, feeds: Mapping[str, Array], filled: Sequence[TensorSpec]
    ) -> Again | None:
        """Further steps of a state with the same ``feeds``, to which those that are ``filled`` in come; None
        where more changes from step to step than these say."""
        parts = self._parts
        plain = parts.weights is None and parts.mail is None and parts.memory is parts.host
        if not plain or self._taken or known_feeds.size(feeds) != (1, 1):
            return None
        way = self._way(state, known_feeds.fill(filled, feeds, state.length))
        if way.plan is None or way.used != (way.key, None):
            return None
        go = partial(self._go, way, state)
        return Again.of(go, way.plan, state, self._fresh, feeds, filled)

    def _finish(self, values: Values, plan: Plan | None, asked: Asked | None, noted: Shapes) -> str:
        """Gathers the results that come last; the one that was left out, for what is ``asked`` is enough."""
        found, choosing = "", 0.0
        if asked is not None:
            asked.forget()
        began = time.perf_counter()
        for name, c in self._late.items():
            group = self._parts.group
            assert c.input and group is not None
            if asked is not None and asked.output == name:
                start = time.perf_counter()
                enough = asked.find(values[c.input], group)
                choosing += time.perf_counter() - start - asked.exchanging_seconds
                if enough:
                    found = name
                    continue
            for exchange in plan.late[name] if plan is not None else (c,):
                if isinstance(exchange, Collective):
                    self._exchange_free(exchange, values)
                else:
                    exchange()
            self._note(name, values, noted)
        self.communication_seconds += time.perf_counter() - began - choosing
        self.choosing_seconds += choosing
        return found

    def _given(self, name: str, array: Array, plan: Plan | None) -> Buffer:
        element, memory = self._parts.elements[name], self._parts.place(name)
        if element is None:
            return np.asarray(array, dtype=object)
        buffer = plan.values.get(name) if plan is not None else None
        if buffer is None:
            fits = array.flags.c_contiguous and array.dtype == element_dtype(element)
            if name in known_feeds.FILLED and memory is self._parts.host and fits:
                return array  # a mask that has grown: nobody writes to it
            buffer = memory.allocate(array.shape, element)
        memory.load(buffer, array)
        return buffer

    def _keep(
        self, output: str, pair: StatePair, values: Values, state: SequenceState, plan: Plan | None
    ) -> None:
        """Takes over a state output that did not go to a buffer of the state already."""
        value = values[output]
        if pair.buffer and value is state.value(pair.input):
            return
        if state.has_next(pair.input, value):
            return
        if plan is None or plan.values.get(output) is not value:
            # What ONNX Runtime or a collective has allocated; a constant of the model is read only.
            state.put(pair.input, value)
            return
        self._parts.memory.copy(state.room(pair.input, self._parts.memory.shape(value)), value)

    # shapes unknown

    def _run_free(self, values: Values, start: int, state: SequenceState, noted: Shapes) -> None:
        for level in range(start, len(self._parts.sessions)):
            session, segment = self._parts.sessions[level], self._parts.cut.segments[level]
            if session is not None:
                binding = session.io_binding()
                for name in segment.inputs:
                    self._parts.bind_input(binding, name, values)
                for name in segment.outputs:
                    pair = self._outputs.get(name)
                    if pair is not None and pair.buffer:
                        values[name] = state.value(pair.input)
                        self._parts.bind(binding.bind_output, name, values[name])
                    else:
                        self._parts.unbound(binding, name)
                began = time.perf_counter()
                try:
                    session.run_with_iobinding(binding, *self._free(session))
                except Exception as error:
                    raise run_error(error) from None
                self.segment_seconds += time.perf_counter() - began
                for name, value in zip(segment.outputs, binding.get_outputs(), strict=True):
                    pair = self._outputs.get(name)
                    if pair is None or not pair.buffer:
                        known = self._parts.elements[name] is not None
                        values[name] = self._parts.place(name).adopt(value) if known else value
            began = time.perf_counter()
            for c in self._parts.cut.collectives[level]:
                if c.output not in self._late:
                    self._exchange_free(c, values)
            self.communication_seconds += time.perf_counter() - began
            if self._parts.drive is not None:
                self._parts.drive(level, values)
            for name in (*self._parts.life.produced[level], *self._parts.life.received[level]):
                if name not in self._late:
                    self._note(name, values, noted)
            for name in (*self._parts.life.dead_before_exchange[level], *self._parts.life.dead_after[level]):
                if name not in self._read_late:
                    values.pop(name, None)

    def _exchange_free(self, c: Collective, values: Values) -> None:
        target = self._parts.exchanges.free(c, values[c.input] if c.input else None)
        if c.output:
            values[c.output] = target

    def _note(self, name: str, values: Values, noted: Shapes) -> None:
        if self._parts.elements[name] is not None:
            noted[name] = tuple(self._parts.place(name).shape(values[name]))

    # shapes known

    def _learn(self, key: Key, length: int, noted: Shapes) -> None:
        self._seen.setdefault(key, {})[length] = noted
        self._seen.move_to_end(key)
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    def _plan(self, key: Key, length: int) -> tuple[Plan | None, Key]:
        """The plan for inputs of these shapes, and what it is kept under: one for all lengths of the sequence
        where two were seen, or one for this length."""
        for kept in ((key, None), (key, length)):
            if kept in self._plans:
                self._plans.move_to_end(kept)
                return self._plans[kept], kept
        seen = self._seen.get(key, {})
        if self._left.get(key, 0) > 2 or (len(seen) < 2 and length not in seen):
            return None, ()
        while len(self._plans) >= MAX_PLANS:
            self._plans.popitem(last=False)
        records = list(seen.values()) if len(seen) > 1 else [seen[length]]
        used: Key = (key, None if len(seen) > 1 else length)
        self._plans[used] = self._planner.plan(records)
        return self._plans[used], used

    def _run_planned(self, plan: Plan, values: Values, state: SequenceState) -> int:
        """Runs the levels of a plan; returns how many, fewer than all where one does not fit the plan."""
        moved = plan.bound is not state.place
        clock = time.perf_counter
        segments = exchanging = 0.0
        try:
            for level, made in enumerate(plan.levels):
                changing = plan.changing[level]
                if (changing or moved) and not self._bind(made, values, state, moved=moved):
                    return level
                began = clock()
                if made.call is not None:
                    try:
                        made.call()
                    except Exception:
                        return level  # for its shapes, or for what the run that follows will say
                    ended = clock()
                    segments += ended - began
                    if changing and made.grown:
                        self._adopt(made, values)
                    began = ended
                if made.exchanges:
                    for position, exchange in enumerate(made.exchanges):
                        if isinstance(exchange, Collective):
                            self._exchange_free(exchange, values)
                            continue
                        try:
                            exchange()
                        except ReshapedError as found:
                            return self._leave_at_recv(level, position, made, found, values)
                    exchanging += clock() - began
        finally:
            self.segment_seconds += segments
            self.communication_seconds += exchanging
        plan.bound = state.place
        return len(plan.levels)

    def _bind(self, made: Level, values: Values, state: SequenceState, *, moved: bool) -> bool:
        """Binds what has changed since the step before; whether it fits the plan. ``moved``: state lies
        elsewhere."""
        binding = made.binding
        if binding is None:
            return True
        for name in made.given:
            binding.bind_cpu_input(name, values[name])  # in half the time of `bind_input`
        for name in made.live:
            self._rebind(made, binding.bind_input, name, values[name])
        for name in made.copied:
            self._parts.bind_input(binding, name, values)
        if moved:
            for name in made.buffers:
                self._rebind(made, binding.bind_input, name, values[name])
            for name, source in made.filled:
                self._rebind(made, binding.bind_output, name, values[source])
        for name, source, growth in made.states:
            before = self._parts.memory.shape(values[source])
            shape = tuple(map(int.__add__, before, growth))
            if min(shape, default=0) < 0:  # what has shrunk twice does not go on so for ever
                return False
            values[name] = state.room(source, shape)
            self._parts.bind(binding.bind_output, name, values[name])
        for _, name in made.grown:
            self._parts.unbound(binding, name)
        return True

    def _adopt(self, made: Level, values: Values) -> None:
        """Takes what ONNX Runtime has allocated."""
        assert made.binding is not None
        outputs = made.binding.get_outputs()
        for index, name in made.grown:
            values[name] = self._parts.place(name).adopt(outputs[index])

    def _rebind(self, made: Level, bind: Callable[..., None], name: str, buffer: Buffer) -> None:
        """Binds to a buffer, unless it is the one of the step before: most state stays where it is."""
        before = made.bound.get(name)
        if before is None or before() is not buffer:
            self._parts.bind(bind, name, buffer)
            made.bound[name] = weakref.ref(buffer)

    def _leave_at_recv(
        self, level: int, position: int, made: Level, found: ReshapedError, values: Values
    ) -> int:
        """A value of another shape than planned has been announced: what depends on it runs without plan."""
        collectives = self._parts.cut.collectives[level]
        values[found.collective.output or ""] = self._parts.exchanges.finish(found.collective, found.shape)
        for after in collectives[collectives.index(found.collective) + 1 :]:
            if after.output not in self._late:
                self._exchange_free(after, values)
        return level + 1

    def _result(self, value: Buffer, name: str) -> Array:
        if self._parts.elements[name] is not None:
            return self._parts.place(name).fetch(value)
        return value.numpy() if isinstance(value, ort.OrtValue) else value
