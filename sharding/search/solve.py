"""Picks one option per node so that the whole graph costs least.

Dynamic programming over the nodes in order. A state says how the values that are still needed are placed;
two ways that lead to the same state differ only in what they cost so far, so the cheaper one is kept. A state
is dropped too where the best state could be turned into it by collectives and still cost no more, and at most
`WIDTH` are kept: those that cost least so far and, by the estimate of `sharding.search.lookahead`, from then
on. Layers that repeat meet in few states, so the work grows with the number of nodes.

Costs are compared as (bytes of weights held, seconds): weights are cut wherever that is possible. Where many
steps use the same weights (`sharding.search.reuse`) further searches, in which their placements are pinned,
may find a cheaper plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.common.text import counted
from sharding.errors import SliceError
from sharding.graph.values import shown_node
from sharding.search.carried import carried_ways
from sharding.search.fixed import fix
from sharding.search.lookahead import Lookahead
from sharding.search.problem import BYTE, NEVER, WHOLE, WHOLE_ONLY, Held, Problem, counted_weights
from sharding.search.reuse import Reuse
from sharding.search.steps import Step
from sharding.slices.placement import Placement

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

__all__ = ["counted_weights", "solve"]

WIDTH = 48
LIVE = 1024
"""The most states times the values that they hold apart: wide graphs keep fewer states."""
MAX_HELD = 96
"""Values that a state holds apart. Beyond that the oldest are settled as the best state has them. Only graphs
of very many parallel branches reach it: without it they would take hours."""


def solve(
    source: Source,
    graph: list[Step],
    world: int,
    fixed: Mapping[ir.Value, Placement] | None = None,
    *,
    whole: Collection[str] = (),
    held: Mapping[str, Placement] | None = None,
) -> list[int]:
    """The number of the chosen option for each step.

    ``fixed``: values that must be brought to a placement as soon as they are produced; the options of the
    steps that produce them are replaced accordingly (see `sharding.search.fixed`). ``whole``: weights that
    need not be cut. ``held``: how ranks hold state inputs and outputs; left out, inputs are free and outputs
    stay where they are made.
    """
    if fixed:
        fix(graph, fixed, world, source.path, source.sizes)
    problem = Problem(source, graph, world, whole, held)
    try:
        return _settled(problem, graph, _best(problem)).choices
    except _NoWayError as error:
        node = graph[error.step].node
        raise SliceError(
            f"{source.path}: {shown_node(node)} cannot run on {counted(world, 'rank')} with its "
            f"inputs held as is demanded: demand other placements there, or none."
        ) from None


def _settled(problem: Problem, graph: list[Step], found: _Found) -> _Found:
    """What was found, where each loop gives what it carries to the next turn as it was given it; else the
    best of what is so."""
    ways = carried_ways(problem, graph, found.choices)
    return min(map(_best, ways), key=lambda item: item.cost) if ways else found


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search found: its cost, and the number of the chosen option for each step."""

    cost: int
    choices: list[int]

    @property
    def picoseconds(self) -> int:
        return self.cost % BYTE


def _best(problem: Problem) -> _Found:
    found = _Search(problem).run()
    reuse = Reuse(problem)
    if not reuse.counts:
        return found
    apart, steps = reuse.apart()
    for ideal in _tried(apart):
        if ideal.picoseconds >= found.picoseconds:
            continue
        for pins in reuse.wishes(steps, ideal.choices):
            found = min([found, *_tried(reuse.pinned(pins))], key=lambda item: item.cost)
    for way, members in reuse.ways():
        pins = reuse.wanted(members, _best(way).choices)
        found = min([found, *_tried(reuse.pinned(pins))], key=lambda item: item.cost)
    # Where a cut takes longer than it saves, the weight is held whole; but something must be cut.
    alone = reuse.held_whole(by_all=True)
    if alone is not None and any(item.picoseconds < found.picoseconds for item in _tried(alone)):
        freed = reuse.held_whole(by_all=False)
        return next((item for item in _tried(freed or alone) if problem.cuts(item.choices)), found)
    return found


def _tried(problem: Problem) -> list[_Found]:
    """What a search finds; nothing where demands leave no way."""
    try:
        return [_Search(problem).run()]
    except _NoWayError:
        return []


class _NoWayError(Exception):
    """No option of a step can be reached; only demands make that happen."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


@dataclass(eq=False, slots=True)
class _State:
    cost: int
    regret: int
    """What the placements held here will cost beyond the best ones."""
    held: dict[int, Held]
    """By value number; a value that is not here is whole on every rank, a weight that is not here unused."""
    key: int
    """A hash of ``held``, kept up to date with it: equal states have equal keys."""
    parent: _State | None
    step: int
    choice: int


@dataclass(slots=True)
class _Outcome:
    """What one option makes of the values that a step touches."""

    choice: int
    cost: int
    regret: int
    changes: list[tuple[int, Held | None]]
    key: int
    """What the changes do to a state's key."""


@dataclass(slots=True)
class _Reached:
    """What becomes of a state by one outcome."""

    cost: int
    total: int
    """The cost so far and the regret."""
    parent: _State
    outcome: _Outcome

    def state(self, step: int) -> _State:
        parent, outcome = self.parent, self.outcome
        held = parent.held.copy()
        for number, where in outcome.changes:
            if where is None:
                held.pop(number, None)
            else:
                held[number] = where
        regret = parent.regret + outcome.regret
        return _State(self.cost, regret, held, parent.key ^ outcome.key, parent, step, outcome.choice)


class _Search:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.lookahead = problem, Lookahead(problem)
        self.settled: dict[int, Held] = dict(problem.begun)
        """What all states hold alike and no longer list."""

    def run(self) -> _Found:
        states = [_State(0, 0, {}, 0, None, -1, 0)]
        for index in range(len(self.problem.choices)):
            states = self._advance(states, index)
        self._unsettle(states, self.problem.weight_outputs)
        choices = [options[0].number for options in self.problem.choices]
        best = min(states, key=self._final_cost)
        state: _State | None = best
        while state is not None:
            if state.step >= 0:
                choices[state.step] = state.choice
            state = state.parent
        return _Found(self._final_cost(best), choices)

    def _advance(self, states: list[_State], index: int) -> list[_State]:
        problem = self.problem
        touched = list(dict.fromkeys(number for number in problem.inputs[index] if number is not None))
        choices = problem.choices[index]
        self._unsettle(states, touched)
        if (
            len(choices) == 1
            and not any(choices[0].outputs)
            and not any(problem.values[number].counted for number in touched)
            and all(state.held.keys().isdisjoint(touched) for state in states)
        ):
            for state in states:  # searches with other choices are compared with this one
                state.cost += choices[0].work
            return states
        known: dict[tuple[Held | None, ...], list[_Outcome]] = {}
        reached: dict[int, _Reached] = {}
        for state in states:
            places = tuple([state.held.get(number) for number in touched])
            outcomes = known.get(places)
            if outcomes is None:
                outcomes = known[places] = self._outcomes(index, touched, places)
            for outcome in outcomes:
                cost, key = state.cost + outcome.cost, state.key ^ outcome.key
                before = reached.get(key)
                if before is None or before.cost > cost:
                    reached[key] = _Reached(cost, cost + state.regret + outcome.regret, state, outcome)
        if not reached:
            raise _NoWayError(index)
        return self._settle(self._prune(list(reached.values()), index))

    def _settle(self, states: list[_State]) -> list[_State]:
        """Leaves only states that agree with the best about the oldest values, where too many are held."""
        widest = max(states, key=lambda state: len(state.held))
        if len(widest.held) <= MAX_HELD:
            return states
        best = states[0]
        for number in list(widest.held)[: len(widest.held) - MAX_HELD // 2]:
            where = best.held.get(number)
            states = [state for state in states if state.held.get(number) == where]
            if where is None:
                continue
            self.settled[number] = where
            for state in states:
                del state.held[number]
                state.key ^= _part_of_key(number, where)
        return states

    def _unsettle(self, states: list[_State], numbers: list[int]) -> None:
        """Gives the states back what was settled of the values that a step uses."""
        for number in numbers:
            where = self.settled.pop(number, None)
            if where is not None:
                for state in states:
                    state.held[number] = where
                    state.key ^= _part_of_key(number, where)

    def _outcomes(self, index: int, touched: list[int], places: tuple[Held | None, ...]) -> list[_Outcome]:
        """What each option of a step leads to from these placements of its inputs; of equal ones the best."""
        problem = self.problem
        values, inputs, outputs = problem.values, problem.inputs[index], problem.outputs[index]
        held = dict(zip(touched, places, strict=True))
        before = self._regret(self.lookahead.before[index], held)
        best: dict[int, _Outcome] = {}
        for option in problem.choices[index]:
            now = dict(held)
            cost = option.work
            for number, wanted in zip(inputs, option.inputs, strict=True):
                if number is not None:
                    more, now[number] = problem.bring(number, now[number], wanted)
                    cost += more
            if cost >= NEVER:
                continue
            for number, placement in zip(outputs, option.outputs, strict=True):
                now[number] = (placement,)
            for number, where in now.items():
                value = values[number]
                if value.last_use <= index:
                    cost += problem.end(number, where)
                    now[number] = None
                elif not where or (where == WHOLE_ONLY and not value.weight):
                    now[number] = None
            key = 0
            changes = []
            for number, where in now.items():
                old = held.get(number)
                if old != where:
                    changes.append((number, where))
                    key ^= _part_of_key(number, old) ^ _part_of_key(number, where)
            if key not in best or cost < best[key].cost:
                regret = self._regret(self.lookahead.after[index], now, index) - before
                best[key] = _Outcome(option.number, cost, regret, changes, key)
        return list(best.values())

    def _regret(
        self, regrets: Mapping[int, Mapping[int, int]], held: Mapping[int, Held | None], index: int = -1
    ) -> int:
        total = 0
        for number, known in regrets.items():
            value, where = self.problem.values[number], held[number]
            if known and value.last_use > index and (where or not value.weight):
                total += min(known.get(placement, 0) for placement in where or WHOLE_ONLY)
        return total

    def _prune(self, reached: list[_Reached], index: int) -> list[_State]:
        """The states that are kept; the others are never made."""
        reached.sort(key=lambda item: item.total)
        best = reached[0].state(index)
        width = min(WIDTH, max(4, LIVE // (len(best.held) + 1)))
        kept = [best]
        for item in reached[1:]:
            if len(kept) >= width:
                break
            state = item.state(index)
            if not self._reaches(best, state):
                kept.append(state)
        return kept

    def _reaches(self, best: _State, other: _State) -> bool:
        """Whether the best state can be turned into the other at no more than the other's cost."""
        problem, cost = self.problem, best.cost
        if cost > other.cost:
            return False
        for number in {number for number, _ in best.held.items() ^ other.held.items()}:
            here, there = best.held.get(number), other.held.get(number)
            if there is None and problem.values[number].weight:
                continue
            for placement in there or WHOLE_ONLY:
                more, here = problem.bring(number, here, placement)
                cost += more
            if cost > other.cost:
                return False
        return True

    def _final_cost(self, state: _State) -> int:
        outputs = self.problem.weight_outputs
        return state.cost + sum(
            self.problem.bring(number, state.held.get(number), WHOLE)[0] for number in outputs
        )


def _part_of_key(number: int, where: Held | None) -> int:
    """Keys are combined by exclusive or. Were two differing states ever to share one, the cheaper would stay:
    perhaps not the best plan, but never a wrong one."""
    return 0 if where is None else hash((number, where))
