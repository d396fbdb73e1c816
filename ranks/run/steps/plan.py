"""Plans of steps: which values keep their shapes, and what is bound to them once for all."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnxruntime as ort

from ranks.collectives.buffers import Shape
from ranks.common.tensors import element_dtype
from ranks.run.allocation import Buffers
from ranks.run.steps.parts import Parts, Values
from ranks.sessions.bound import running
from ranks.sessions.cut import Collective
from ranks.state import feeds as known_feeds

if TYPE_CHECKING:
    from ranks.collectives.base import Buffer
    from sharding.slices.state import StatePair

Shapes = dict[str, Shape]


@dataclass
class Level:
    """One level of a plan: a session's binding, and what of it changes with each step."""

    binding: ort.IOBinding | None = None
    call: Callable[[], object] | None = None
    """Runs the session with its binding."""
    live: list[str] = field(default_factory=list)
    """Inputs that may lie in another buffer with each step: what grows, and state but for ``buffers``."""
    given: list[str] = field(default_factory=list)
    """Inputs that grow and that nobody writes to: arrays that ONNX Runtime reads where they are."""
    buffers: list[str] = field(default_factory=list)
    """State inputs that operators fill in place: they stay where they are for most steps."""
    copied: list[str] = field(default_factory=list)
    """Inputs that ONNX Runtime copies when they are bound: to bind in each step."""
    bound: dict[str, weakref.ref[Buffer]] = field(default_factory=dict)
    """The buffers to which ``live`` inputs and ``filled`` outputs are bound now."""
    grown: list[tuple[int, str]] = field(default_factory=list)
    """Outputs that ONNX Runtime allocates: their place among the outputs, and their names."""
    states: list[tuple[str, str, Shape]] = field(default_factory=list)
    """State outputs, their inputs, and by how much they are longer on each axis."""
    filled: list[tuple[str, str]] = field(default_factory=list)
    """State outputs that operators write into the buffer of their input."""
    exchanges: list[Callable[[], object] | Collective] = field(default_factory=list)
    """Calls on buffers that stay, and collectives of values that grow."""

    @property
    def changing(self) -> bool:
        """Whether something is bound anew in each step."""
        return bool(self.live or self.given or self.copied or self.states or self.grown)


@dataclass
class Plan:
    """Buffers of the values that keep their shapes, and the levels over them."""

    values: Values
    levels: list[Level]
    late: dict[str, list[Callable[[], object] | Collective]] = field(default_factory=dict)
    """Exchanges of results that a step may do without, by these."""
    fed: tuple[tuple[str, Shape], ...] = ()
    """The inputs that have a buffer, and its shape."""
    changing: tuple[bool, ...] = ()
    """Of each level, `Level.changing`."""
    bound: object = None
    """The place (`SequenceState.place`) of the state to which the levels are bound now."""
    left: bool = False
    """Whether a step did not fit it: no other is to be run by it."""


class Planner:
    """Makes the plans of one model."""

    def __init__(
        self,
        parts: Parts,
        inputs: Mapping[str, StatePair],
        outputs: Mapping[str, StatePair],
        fresh: Sequence[str],
        free: Callable[[ort.InferenceSession], tuple[ort.RunOptions, ...]],
        *,
        late: Mapping[str, Collective],
    ) -> None:
        """``inputs`` and ``outputs``: the state that this rank holds, by name; ``fresh``: other inputs;
        ``free``: `ranks.run.plans.Plans.free`; ``late``: results that a step may do without."""
        self._parts, self._inputs, self._outputs, self._fresh = parts, inputs, outputs, fresh
        self._free, self._late = free, late

    def plan(self, records: Sequence[Shapes]) -> Plan:
        """The plan for steps like those of which these are the values' shapes."""
        shapes, state = records[0], {*self._inputs, *self._outputs}
        steady = {
            name: shape
            for name, shape in shapes.items()
            if name not in state and all(other.get(name) == shape for other in records[1:])
        }
        parts = self._parts
        for c in (c for level in parts.cut.collectives for c in level):
            if c.input and c.input not in steady and c.output:
                # State lies elsewhere with each step, and so does what is exchanged of it.
                steady.pop(c.output, None)
        buffers = Buffers(parts.cut, parts.life, parts.place, parts.memory, parts.elements)
        plan = Plan(buffers.allocate(steady, self._fresh, len(parts.sessions)), [])
        for level, (session, segment) in enumerate(
            zip(self._parts.sessions, self._parts.cut.segments, strict=True)
        ):
            made = Level()
            plan.levels.append(made)
            if session is not None:
                made.binding = session.io_binding()
                on_host = parts.memory is parts.host
                made.call = running(session, made.binding, *self._free(session), on_host=on_host)
                for name in segment.inputs:
                    if name in self._parts.cut.weights:
                        self._parts.bind_input(made.binding, name, plan.values)
                    elif name in plan.values and not self._parts.apart(name):
                        self._parts.bind(made.binding.bind_input, name, plan.values[name])
                    elif self._parts.apart(name):
                        made.copied.append(name)
                    elif self._is_given(name):
                        made.given.append(name)
                    elif name in self._inputs and self._inputs[name].buffer:
                        made.buffers.append(name)
                    else:
                        made.live.append(name)
                for index, name in enumerate(segment.outputs):
                    self._plan_output(made, index, name, plan.values, records)
            for c in self._parts.cut.collectives[level]:
                calls = made.exchanges
                if c.output and self._late.get(c.output) is c:
                    calls = plan.late.setdefault(c.output, [])
                ends = [name for name in (c.input, c.output) if name]
                if all(name in plan.values for name in ends):
                    source = plan.values[c.input] if c.input else None
                    target = plan.values[c.output] if c.output else None
                    in_place = c.output in self._parts.life.in_place
                    calls += self._parts.exchanges.calls(c, source, target, in_place=in_place)
                else:
                    calls.append(c)
        kept = [name for name in self._fresh if name in plan.values]
        plan.fed = tuple((name, tuple(parts.place(name).shape(plan.values[name]))) for name in kept)
        plan.changing = tuple(made.changing for made in plan.levels)
        return plan

    def _is_given(self, name: str) -> bool:
        """Whether an input is a mask that grows, of a type that numpy has, read on the host."""
        element = self._parts.elements[name]
        on_host = self._parts.memory is self._parts.host and element is not None
        known = name in known_feeds.FILLED and name in self._fresh
        return known and on_host and element_dtype(element or 0).isbuiltin == 1

    def _plan_output(
        self, made: Level, index: int, name: str, values: Values, records: Sequence[Shapes]
    ) -> None:
        assert made.binding is not None
        if name in values:
            self._parts.bind(made.binding.bind_output, name, values[name])
            return
        self._parts.unbound(made.binding, name)
        pair = self._outputs.get(name)
        if pair is not None and pair.buffer:
            made.filled.append((name, pair.input))
            return
        if pair is not None:
            growth = {_less(shapes[name], shapes[pair.input]) for shapes in records}
            if len(growth) == 1 and (found := growth.pop()) is not None:
                made.states.append((name, pair.input, found))
                return
        made.grown.append((index, name))


def _less(longer: Shape, shorter: Shape) -> Shape | None:
    if len(longer) != len(shorter):
        return None
    return tuple(one - other for one, other in zip(longer, shorter, strict=True))
