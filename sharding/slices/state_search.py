"""Which of a model's outputs are given back to it as inputs with the next step.

Names tell it, the graph's own operators do, and a user may. A wrong pair is worse than none: where types,
numbers of axes or lengths do not fit, there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sharding.common.text import did_you_mean
from sharding.errors import OptionError
from sharding.slices.state import Shape, StatePair, Tensor
from sharding.slices.state_names import CACHE, ONCE, STATE, kind_of, outputs_for
from sharding.slices.state_use import Carried, Node, Uses

NO_NUMBERS = frozenset({"string", "8", "unknown", "undefined", "0"})
"""What element types of texts, and of what is no tensor, are called."""


def find(
    inputs: Iterable[Tensor],
    outputs: Iterable[Tensor],
    nodes: Iterable[Node],
    given: Iterable[tuple[str, str]] = (),
    named: Iterable[tuple[str, str]] = (),
) -> tuple[StatePair, ...]:
    """The pairs of a model, in the order of its inputs.

    ``given``: input and output of the pairs that a user says; `OptionError` where one cannot be. ``named``:
    those that a file beside the model names, which are left out where they do not fit.
    """
    finder = _Finder(inputs, outputs, nodes)
    for taken, made in given:
        finder.demand(taken, made)
    for taken, made in finder.uses_of_operators():
        finder.offer(taken, made, STATE)
    for taken, made in named:
        finder.offer(taken, made, kind_of(taken) or STATE)
    for taken in finder.inputs:
        for made, kind in outputs_for(taken):
            if finder.offer(taken, made, kind):
                break
    for taken, made in finder.joined():
        finder.offer(taken, made, CACHE)
    return tuple(finder.found[taken] for taken in finder.inputs if taken in finder.found)


class _Finder:
    def __init__(self, inputs: Iterable[Tensor], outputs: Iterable[Tensor], nodes: Iterable[Node]) -> None:
        self.inputs = {name: (dtype, shape) for name, dtype, shape in inputs}
        self.outputs = {name: (dtype, shape) for name, dtype, shape in outputs}
        self.uses = Uses(self.inputs, self.outputs, nodes)
        self.carried = {name: self.uses.carried(name) for name in self.outputs}
        self.found: dict[str, StatePair] = {}
        self.taken: set[str] = set()

    def uses_of_operators(self) -> list[tuple[str, str]]:
        """Pairs that operators with places for both name, and recurrent ones."""
        by_operator = [
            (item.input, output)
            for output, item in self.carried.items()
            if item is not None and item.by_operator
        ]
        kept = [taken for taken, _ in by_operator]
        alone = [(taken, made) for taken, made in by_operator if kept.count(taken) == 1]
        return [*alone, *self.uses.recurrent()]

    def joined(self) -> list[tuple[str, str]]:
        """Pairs of an input that is only kept, and grows at an open axis, and the output that it grows to."""
        found = []
        for output, item in self.carried.items():
            if item is None or not item.grows or item.by_operator or item.input in self.found:
                continue
            before, after = self.inputs[item.input][1], self.outputs[output][1]
            if before is None or after is None or len(before) != len(after) or len(before) < 3:
                continue
            axis = _growing(before, after)
            is_open = axis is not None and not isinstance(before[axis], int)
            if is_open and self.uses.is_only_kept(item):
                found.append((item.input, output))
        return found

    def demand(self, taken: str, made: str) -> None:
        """A pair that a user says. Raises `OptionError` where it cannot be one."""
        said = f"--state {taken}={made}"
        for name, known, what in ((taken, self.inputs, "input"), (made, self.outputs, "output")):
            if name not in known:
                raise OptionError(
                    f"{said}: the model has no {what} {name!r} (it has: {', '.join(known) or 'none'})"
                    f"{did_you_mean(name, known)}"
                )
        if taken in self.found or made in self.taken:
            raise OptionError(
                f"{said}: {taken!r} or {made!r} is in another pair already; each can be in one."
            )
        why = self._unfit(taken, made)
        if why:
            raise OptionError(f"{said}: {why}, so one cannot be the next step's other.")
        self._add(taken, made, kind_of(taken) or STATE)

    def offer(self, taken: str, made: str, kind: str) -> bool:
        """Adds a pair, if it can be one."""
        if taken not in self.inputs or made not in self.outputs or taken in self.found or made in self.taken:
            return False
        item = self.carried[made]
        if (
            item is not None
            and item.input not in {"", taken}
            and (item.by_operator or item.grows or (item.same and _is_state_by_name(item.input)))
        ):
            return False  # it carries on another
        return not self._unfit(taken, made) and self._add(taken, made, kind)

    def _unfit(self, taken: str, made: str) -> str:
        """Why two values cannot be a pair; empty where they can."""
        (dtype, before), (other, after) = self.inputs[taken], self.outputs[made]
        if dtype != other:
            return f"the input {taken!r} is of type {dtype}, the output {made!r} of {other}"
        if dtype in NO_NUMBERS:
            return f"the input {taken!r} holds no numbers, which alone can be kept"
        if before is None or after is None:
            return ""
        what = f"the input {taken!r} has the shape {_written(before)}, the output {made!r} {_written(after)}"
        if len(before) != len(after):
            return what
        return what if any(map(_surely_differ, before, after)) else ""

    def _add(self, taken: str, made: str, kind: str) -> bool:
        before, after = self.inputs[taken][1], self.outputs[made][1]
        self.found[taken] = _pair(StatePair(taken, made), kind, before, after, self.carried[made])
        self.taken.add(made)
        return True


def _pair(
    pair: StatePair, kind: str, before: Shape | None, after: Shape | None, item: Carried | None
) -> StatePair:
    """The pair with what its values' shapes and the graph say of it."""
    if kind == ONCE:
        return replace(pair, kind="once")
    opaque = item is not None and not item.input
    if item is not None and item.buffer and not item.grows:
        return replace(pair, buffer=True)
    if not (item is not None and item.grows) and not (opaque and kind == CACHE):
        return pair
    axis = None if item is None else item.axis
    if before is not None and after is not None:
        if axis is not None and isinstance(before[axis], int) and before[axis] == after[axis]:
            return pair
        axis = _growing(before, after) if axis is None else axis
    if axis is None:
        return pair
    return replace(pair, axis=axis, kind="append", buffer=item is not None and item.buffer)


def _is_state_by_name(name: str) -> bool:
    """Whether an input is called like one that carries state."""
    return next(outputs_for(name), None) is not None


def _surely_differ(a: int | str | None, b: int | str | None) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def _growing(before: Shape, after: Shape) -> int | None:
    """The axis that is longer afterwards; None where several may be."""
    open_ = [axis for axis in range(len(before)) if before[axis] != after[axis] or before[axis] is None]
    open_ = [axis for axis in open_ if not isinstance(before[axis], int) and not isinstance(after[axis], int)]
    behind = [axis for axis in open_ if axis > 0]  # the first may be a batch under two names
    if len(behind) == 1:
        return behind[0]
    sums = [axis for axis in open_ if isinstance(after[axis], str) and "+" in str(after[axis])]
    if len(sums) == 1:
        return sums[0]
    if len(behind) > 1:  # keys and values of several heads: batch, heads, positions, head size
        usual = {4: 2, 5: 3}.get(len(before))
        return usual if usual in behind else None
    return open_[0] if len(open_) == 1 else None


def _written(shape: Shape) -> str:
    return "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"
