"""Sessions bound to buffers that stay where they are, and how they are run.

Where values lie on a device, a session need not wait for it when a collective follows that does: both are in
order on the device's stream. And with fixed buffers the device can be given a session's whole work at once,
as a CUDA graph (`ranks.sessions.cuda.graphs_wanted`). ONNX Runtime captures it in the first run with these,
which it repeats for that: what a session reads never lies where it writes.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import onnxruntime as ort

from ranks.collectives.buffers import HostMemory, Memory, Shape
from ranks.sessions.bound import running

if TYPE_CHECKING:
    from ranks.collectives.base import Buffer
    from ranks.weights.updated.bound import Bindings
    from sharding.common.arrays import Array

    Values: TypeAlias = dict[str, Buffer]

MAX_PLANS = 8
"""Sets of input shapes whose buffers are kept; the longest unused goes first."""

MAX_GRAPHS = 64
"""Plans whose sessions' work is captured: CUDA's provider frees no graph before its session ends."""

_NO_WAIT = ("disable_synchronize_execution_providers", "1")
_GRAPH, _NO_GRAPH = "gpu_graph_id", "-1"

Call = Callable[[], object]


@dataclass
class Plan:
    """Sessions bound to buffers, for one set of input shapes."""

    number: int
    values: Values
    steps: list[tuple[Call | None, list[Call]]] = field(default_factory=list)
    levels: int = 0
    """How many levels, from the first, run as planned; the others run with shapes unknown."""
    bound: list[Bindings] = field(default_factory=list)
    """The variable weights that the sessions read."""
    bindings: list[ort.IOBinding] = field(default_factory=list)
    """Those of the sessions: they keep what is bound to them."""
    loads: list[tuple[int, Callable[[Array], object]]] = field(default_factory=list)
    """Which inputs are read, and what puts each where it is read."""
    fetches: list[Callable[[], Array]] = field(default_factory=list)
    """What gives each output, where all levels run as planned."""


class Plans:
    """The plans of a program, by the shapes of its inputs, and its sessions' run options."""

    def __init__(self, sessions: Sequence[ort.InferenceSession | None], memory: Memory) -> None:
        self._plans: OrderedDict[tuple[Shape, ...], Plan] = OrderedDict()
        self._numbers = itertools.count(1)  # 0 is ONNX Runtime's own
        self._on_host = isinstance(memory, HostMemory)
        there = [session for session in sessions if session is not None]
        self._ordered = {session for session in there if memory.orders(session)}
        self._captured = {session for session in there if memory.captures(session)}

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[tuple[Shape, ...]]:
        return iter(self._plans)

    def values(self) -> list[Plan]:
        """The plans, the longest unused first."""
        return list(self._plans.values())

    def get(self, key: tuple[Shape, ...]) -> Plan | None:
        """The plan for inputs of these shapes, if there is one; it is then the last to go."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def new(self, key: tuple[Shape, ...], values: Values) -> Plan:
        """An empty plan over buffers, in place of the longest unused one where there are many."""
        while len(self._plans) >= MAX_PLANS:
            self._forget(self._plans.popitem(last=False)[1])
        self._plans[key] = Plan(next(self._numbers), values)
        return self._plans[key]

    def clear(self) -> None:
        """Drops all plans."""
        while self._plans:
            self._forget(self._plans.popitem()[1])

    def call(
        self,
        plan: Plan,
        session: ort.InferenceSession,
        binding: ort.IOBinding,
        before: Sequence[Call],
        *,
        awaited: bool,
        fixed: bool,
    ) -> Call:
        """The call that runs a session in a plan.

        ``before``: calls that bind what does not lie on the device: ONNX Runtime copies such a value to the
        device when it is bound. ``awaited``: something that waits for the device comes next, and nothing
        that is read on the host comes out. ``fixed``: what the session reads and writes stays where it is.
        """
        options = None
        if awaited and session in self._ordered:
            options = _with(options, *_NO_WAIT)
        if session in self._captured:
            kept = fixed and plan.number <= MAX_GRAPHS
            options = _with(options, _GRAPH, str(plan.number) if kept else _NO_GRAPH)

        plan.bindings.append(binding)
        told = () if options is None else (options,)
        call = running(session, binding, *told, on_host=self._on_host)
        if not before:  # without a Python frame of its own: a microsecond a run
            return call

        def run() -> None:
            for bind in before:
                bind()
            call()

        return run

    def free(self, session: ort.InferenceSession) -> tuple[ort.RunOptions, ...]:
        """The last argument, if any, of a run with buffers that ONNX Runtime allocates."""
        return (_with(None, _GRAPH, _NO_GRAPH),) if session in self._captured else ()

    def _forget(self, plan: Plan) -> None:
        for session in self._captured:
            if hasattr(session, "release_captured_graph"):  # new in ONNX Runtime 1.31, for some providers
                session.release_captured_graph(plan.number)


def _with(options: ort.RunOptions | None, key: str, value: str) -> ort.RunOptions:
    options = options or ort.RunOptions()
    options.add_run_config_entry(key, value)
    return options
