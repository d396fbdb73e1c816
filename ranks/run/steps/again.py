"""Steps of one text that differ in nothing but their token and their length.

Between two steps all weights have gone through the processor's caches, so that every function which a step
calls, and every object which it looks at, comes from memory again: about a microsecond each. What further
steps have in common is therefore looked up once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ranks.state import feeds as known_feeds

if TYPE_CHECKING:
    from ranks.common.tensors import TensorSpec
    from ranks.run.steps.likeliest import Asked
    from ranks.run.steps.parts import Values
    from ranks.run.steps.plan import Plan
    from ranks.run.steps.sequences import Sequences
    from ranks.state.sequence import SequenceState
    from sharding.common.arrays import Array

_LOOKS = 4
"""Steps after which it is looked whether the next ones are all alike: a plan is made after two."""

Go = Callable[["Values", "Asked | None"], "dict[str, Array]"]


class Again:
    """Further steps of a state, by the plan and over the buffers of the last one, while these have room."""

    def __init__(self, go: Go, plan: Plan, state: SequenceState, values: Values) -> None:
        """``go``: runs a step over ``values``, among them what the plan and the state have."""
        self._go, self._plan, self._state, self._values = go, plan, state, values
        self._place = state.place
        self._given: list[tuple[Array, Array]] = []
        self._following: list[tuple[Array, Callable[[int], Array]]] = []
        self._masks: list[tuple[str, Array]] = []

    @classmethod
    def of(  # noqa: PLR0917 - what all steps have in common
        cls,
        go: Go,
        plan: Plan,
        state: SequenceState,
        fresh: Sequence[str],
        feeds: Mapping[str, Array],
        filled: Sequence[TensorSpec],
    ) -> Again | None:
        """None where something else changes. ``fresh``: the inputs that are no state, of which ``feeds`` has
        some, and the ones that are ``filled`` in the others."""
        made = cls(go, plan, state, {**plan.values, **state.values})
        specs = {spec.name: spec for spec in filled if spec.name not in feeds}
        masks = {name for level in plan.levels for name in level.given}
        if not masks <= specs.keys() & known_feeds.MASKS:
            return None
        if any(one.live or one.copied or one.states or one.grown for one in plan.levels):
            return None
        for name in fresh:
            if name in masks:
                made._masks.append((name, np.ones((1, state.reserved), specs[name].dtype)))
            elif name not in plan.values:
                return None
            elif name in feeds:
                made._given.append((plan.values[name], feeds[name]))
            else:
                following = partial(_one_more, specs[name])
                made._following.append((plan.values[name], following))
        return made

    @property
    def fits(self) -> bool:
        """Whether the next step is like this: all buffers have room where they are."""
        state = self._state
        return state.length < state.reserved and state.place is self._place and not self._plan.left

    def step(self, asked: Asked | None) -> dict[str, Array]:
        """The next step, as `Sequences.step`."""
        state, values = self._state, self._values
        past = state.length
        try:
            for buffer, array in self._given:
                buffer[...] = array
            for buffer, following in self._following:
                buffer[...] = following(past)
            for name, ones in self._masks:
                values[name] = ones[:, : past + 1]
            results = self._go(values, asked)
        except BaseException:
            state.abandon()
            raise
        state.commit(1)
        return results


def _one_more(spec: TensorSpec, past: int) -> Array:
    return known_feeds.FILLED[spec.name](spec, 1, past, 1)


class Stepping:
    """Steps of a sequence with the same feeds, in which other values may stand each time."""

    def __init__(self, sequences: Sequences, number: int, feeds: Mapping[str, Array]) -> None:
        self._sequences, self._number, self._feeds = sequences, number, feeds
        self._again: Again | None = None
        self._left = _LOOKS

    def step(self, asked: Asked | None = None) -> dict[str, Array]:
        """The next step, as `Sequences.step`."""
        again = self._again
        if again is not None:
            if again.fits:
                return again.step(asked)
            self._again, self._left = None, _LOOKS
        results = self._sequences.step(self._number, self._feeds, asked)
        if self._left:
            self._left -= 1
            # The step is made on all ranks. Steps of the ordinary kind exchange the same with the others.
            with contextlib.suppress(MemoryError):
                self._again = self._sequences.again(self._number, self._feeds)
        return results
