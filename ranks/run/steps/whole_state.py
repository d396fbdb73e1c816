"""Runs a model with split state on whole values, as one without a session has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ranks.state import parts

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.collectives.buffers import Memory
    from ranks.run.program import Program
    from ranks.weights.updated.bound import BoundWeights
    from sharding.common.arrays import Array
    from sharding.slices.state import StatePair


class WholeState:
    """A `Program` that takes whole state and gives whole state: it stands in for the program itself."""

    def __init__(
        self,
        program: Program,
        names: tuple[Sequence[str], Sequence[str]],
        pairs: Sequence[StatePair],
        group: Communicator,
        memory: Memory,
    ) -> None:
        """``names``: the program's inputs and outputs; ``group``: the ranks that share the state."""
        self._program = program
        self._inputs, self._outputs = names
        self._pairs = {pair.input: pair for pair in pairs if pair.output in self._outputs}
        self._group = group
        self._gatherer = parts.Gatherer(pairs, group, memory)

    @property
    def collectives(self) -> str:
        """The name of the backend in use."""
        return self._program.collectives

    def all_weights(self) -> list[BoundWeights]:
        """The program's variable weights, and those of bodies in it."""
        return self._program.all_weights()

    @property
    def communication_seconds(self) -> float:
        """Seconds that this rank spent in the program's collectives so far."""
        return self._program.communication_seconds

    def run(self, feeds: Sequence[Array]) -> list[Array]:
        """As `Program.run`, each rank with its part of the state."""
        rank, size = self._group.rank, self._group.size
        own = [
            parts.part(array, self._pairs[name], rank, size) if name in self._pairs else array
            for name, array in zip(self._inputs, feeds, strict=True)
        ]
        results = self._program.run(own)
        return [self._gatherer.whole(name, value) for name, value in zip(self._outputs, results, strict=True)]

    def fail(self, reason: str) -> None:
        """As `Program.fail`."""
        self._program.fail(reason)
