"""Gathers of small parts over the ranks of one host, made ready once for buffers that stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ranks.collectives.shm.reduce import GLANCES
from ranks.collectives.shm.sync import STEP

if TYPE_CHECKING:
    from ranks.collectives.shm.phases import Phases, What
    from sharding.common.arrays import Array


def small(phases: Phases, rows: Array, target: Array, code: int, what: What) -> Callable[[], None]:
    """What puts this rank's ``rows``, (outer, inner), and those of the others into ``target``, (outer, ranks,
    inner)."""
    if phases.size == 2:
        return _pair(phases, rows, target, code, what)
    me, number, ranks = phases.rank, phases.number, range(phases.size)
    even, odd = ([phases.slot(rank, half * STEP, rows) for rank in ranks] for half in (0, 1))
    others = [(peer, target[:, peer]) for peer in ranks if peer != me]
    own = target[:, me]

    def gather() -> None:
        phases.check()
        value = next(number)
        slots = odd if value & STEP else even
        slots[me][...] = rows
        phases.meet(value | code, what)
        own[...] = rows
        for peer, theirs in others:
            theirs[...] = slots[peer]

    return gather


def _pair(phases: Phases, rows: Array, target: Array, code: int, what: What) -> Callable[[], None]:
    """Two ranks: as few steps as Python allows. A model whose sums stay whole has four of these a layer."""
    peer, line = phases.peers[0]
    me, words, number, wait, order = phases.me, phases.words, phases.number, phases.wait, phases.order
    even, odd = (phases.slot(phases.rank, half * STEP, rows) for half in (0, 1))
    even_in, odd_in = (phases.slot(peer, half * STEP, rows) for half in (0, 1))
    own, theirs, glances = target[:, phases.rank], target[:, peer], range(GLANCES)

    def gather() -> None:
        if phases.broken:
            phases.check()
        value = next(number)
        if value & STEP:
            mine, given = odd, odd_in
        else:
            mine, given = even, even_in
        mine[...] = rows
        value |= code
        if order is not None:
            order()
        words[me] = value
        own[...] = rows  # while the other rank may still be on its way
        for _ in glances:
            if words[line] == value:
                break
        else:
            wait(peer, value, what)
        if order is not None:
            order()
        theirs[...] = given

    return gather
