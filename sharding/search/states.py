"""How ranks hold state: input and output of a pair alike, so that neither is ever moved as a whole.

The search takes a state's input for free at any placement, and leaves its output where it is made. Here each
pair gets the placement that then costs least: that of the output where the input is used so too, which it is
almost always, for keys are joined to the keys so far head by head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sharding.search.cost import NODE_SECONDS, reshard_seconds
from sharding.search.steps import Step, fits
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split, held_bytes
from sharding.slices.state import StatePair

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

Placed = Mapping[str, Placement]
"""Names of state inputs and outputs -> how ranks hold them."""


def place(source: Source, graph: Sequence[Step], choices: Sequence[int], world: int) -> dict[str, Placement]:
    """The placement of each state input and output with these choices."""
    return _Placer(source, graph, choices, world).run()


def wishes(source: Source, graph: Sequence[Step], choices: Sequence[int], world: int) -> dict[str, Placement]:
    """The placements of all state inputs and outputs with which a further search may need fewer exchanges;
    empty where these choices need none for state."""
    return _Placer(source, graph, choices, world).wishes() if source.state and world > 1 else {}


def settle(source: Source, graph: Sequence[Step], choices: list[int], world: int) -> list[int]:
    """The choices, but where a step can as well take a state as it is held, it does: the shape of a part
    tells that of the whole."""
    if not source.state or world == 1:
        return choices
    placed = place(source, graph, choices, world)
    found = list(choices)
    for index, step in enumerate(graph):
        option = step.options[found[index]]
        wanted = {
            i: placed[value.name or ""]
            for i, value in enumerate(step.inputs)
            if value is not None and value.is_graph_input() and (value.name or "") in placed
        }
        if all(option.inputs[i] == placement for i, placement in wanted.items()):
            continue
        for number, other in enumerate(step.options):
            others = [
                a == b
                for i, (a, b) in enumerate(zip(option.inputs, other.inputs, strict=True))
                if i not in wanted
            ]
            fits_here = all(other.inputs[i] == placement for i, placement in wanted.items())
            if fits_here and all(others) and other.outputs == option.outputs:
                found[index] = number
                break
    return found


class _Placer:
    def __init__(self, source: Source, graph: Sequence[Step], choices: Sequence[int], world: int) -> None:
        self.source, self.world = source, world
        wanted = {name for pair in source.state for name in (pair.input, pair.output)}
        self.values: dict[str, ir.Value] = {
            value.name or "": value
            for value in (*source.model.graph.inputs, *source.model.graph.outputs)
            if value.name in wanted
        }
        self.held: dict[str, dict[Placement, None]] = {}
        """Where the graph has each value: of an output first as it is made."""
        self.captured: set[str] = set()
        """What a subgraph uses whole, by name."""
        for step, choice in zip(graph, choices, strict=True):
            option = step.options[choice]
            for index, (value, where) in enumerate(zip(step.inputs, option.inputs, strict=True)):
                name = "" if value is None else value.name or ""
                if name in wanted:
                    self.held.setdefault(name, {})[where] = None
                    if index >= len(step.node.inputs) and where == REPLICATED:
                        self.captured.add(name)
            for value, where in zip(step.node.outputs, option.outputs, strict=True):
                if value.name in wanted:
                    self.held.setdefault(value.name or "", {})[where] = None

    def run(self) -> dict[str, Placement]:
        found: dict[str, Placement] = {}
        for pair in self.source.state:
            found[pair.input] = found[pair.output] = self._best(pair)
        return found

    def wishes(self) -> dict[str, Placement]:
        """The placements at which pairs would need no exchange if all that uses them agreed; empty where none
        needs one now."""
        found = self.run()
        changed = False
        for pair in self.source.state:
            where = found[pair.input]
            if max(self._moves(pair, where)) <= NODE_SECONDS:
                continue
            uses, ends = self.held.get(pair.input, {}), self.held.get(pair.output, {})
            values = self.values[pair.input], self.values[pair.output]
            wish = next((there for there in (*ends, *uses) if self._is_part(there, pair, *values)), None)
            if wish is not None:
                changed = True
                found[pair.input] = found[pair.output] = wish
        return found if changed else {}

    def _is_part(self, where: Placement, pair: StatePair, taken: ir.Value, made: ir.Value) -> bool:
        captured = not self.captured.isdisjoint((pair.input, pair.output))
        return isinstance(where, Split) and not captured and self._can_be(where, pair, taken, made)

    def _moves(self, pair: StatePair, where: Placement) -> list[float]:
        """The seconds of each exchange with what uses a pair that lies so, and with what makes its output."""
        size = self.source.sizes.bytes(self.values[pair.output])
        moves = [_moved([where], use, size, self.world) for use in self.held.get(pair.input, {})]
        return [*moves, _moved(self.held.get(pair.output) or [REPLICATED], where, size, self.world)]

    def _best(self, pair: StatePair) -> Placement:
        taken, made = self.values[pair.input], self.values[pair.output]
        whole = not self.captured.isdisjoint((pair.input, pair.output)) or pair.input in self.source.defaults
        if whole or self.world == 1:
            return REPLICATED
        uses, ends = list(self.held.get(pair.input, {})), list(self.held.get(pair.output, {}))
        candidates = dict.fromkeys([*ends, *uses, REPLICATED])
        size = self.source.sizes.bytes(made)

        def cost(where: Placement) -> tuple[int, bool, int, float]:
            moves = self._moves(pair, where)
            far = [seconds for seconds in moves if seconds > NODE_SECONDS]
            return len(far), bool(far) and where not in uses, held_bytes(size, where, self.world), sum(moves)

        possible = [where for where in candidates if self._can_be(where, pair, taken, made)]
        return min(possible, key=cost)

    def _can_be(self, where: Placement, pair: StatePair, taken: ir.Value, made: ir.Value) -> bool:
        if not isinstance(where, Split):
            return where == REPLICATED
        both = fits(where, taken, self.world) and fits(where, made, self.world)
        return both and where.axis != pair.axis


def _moved(there: Iterable[Placement], where: Placement, size: int, world: int) -> float:
    if where == PARTIAL:
        where = REPLICATED
    return min(reshard_seconds(source, where, size, world) for source in there)
