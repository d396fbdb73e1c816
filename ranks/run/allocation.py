"""Buffers for the values of a cut model, for one set of shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranks.collectives.buffers import Memory, Pool, Shape, nbytes
from ranks.sessions.cut import Cut
from ranks.sessions.lifetimes import Lifetimes

if TYPE_CHECKING:
    from ranks.collectives.base import Buffer
    from ranks.run.plans import Values


Taken = dict[str, tuple[Pool, tuple[int, "Buffer"]]]


@dataclass(frozen=True)
class Buffers:
    """What is needed to allocate: ``place`` says where a value lies, ``memory`` is where most do."""

    cut: Cut
    life: Lifetimes
    place: Callable[[str], Memory]
    memory: Memory
    elements: Mapping[str, int | None]

    def allocate(self, shapes: Mapping[str, Shape], inputs: Iterable[str], levels: int) -> Values:
        """Buffers for the values of these shapes among ``inputs``, which are kept, and the first ``levels``
        levels; values that do not live together share memory."""
        life = self.life
        pools: dict[tuple[bool, bool], Pool] = {}
        values: Values = {}
        taken: Taken = {}

        def add(name: str, *, keep: bool = False) -> None:
            if name not in shapes:
                return
            memory, exchanged, element = self.place(name), name in life.exchanged, self.elements[name] or 0
            pool = pools.setdefault((memory is self.memory, exchanged), Pool(memory, exchanged=exchanged))
            taken[name] = pool, pool.take(nbytes(shapes[name], element))
            values[name] = memory.view(taken[name][1][1], shapes[name], element)
            if keep:
                del taken[name]

        for name in inputs:
            add(name, keep=True)
        for level in range(levels):
            for name in life.produced[level]:
                add(name)
            for name in life.dead_before_exchange[level]:
                _release(taken, name)
            for c in self.cut.collectives[level]:
                if c.output in life.in_place and c.input in values and c.output in shapes:
                    assert c.input and c.output
                    values[c.output] = values[c.input]
                    taken[c.output] = taken.pop(c.input)
                elif c.output:
                    add(c.output)
            for name in life.dead_after[level]:
                _release(taken, name)
        return values


def _release(taken: Taken, name: str) -> None:
    if name in taken:
        pool, block = taken.pop(name)
        pool.give(block)
