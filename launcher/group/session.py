"""Sessions of a group: their state lies on its ranks, each with its part, and never travels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ranks.state.session import Known, Wish
from sharding.slices.state import StatePair

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from launcher.group.group import Group
    from launcher.group.serving.runs import RanksRun
    from ranks.talk.reports import More, RunReport, StateReport
    from sharding.common.arrays import Array


class RanksHost:
    """Runs the steps of sessions on the ranks that a group has now; their state is lost with them."""

    def __init__(self, group: Group, fields: StateReport) -> None:
        """``fields``: what rank 0 says of its model's state."""
        self._group, self.age = group, group.age
        pairs = [StatePair(**pair) for pair in fields["pairs"]]
        self.known = Known(group.inputs, group.optional_inputs, pairs, fields["filled"])

    def step(self, number: int, tensors: dict[str, Array], ask: Wish | None = None) -> dict[str, Array]:
        """As `ranks.state.session.Host.step`. Raises as `Group.predict` does."""
        self._free_forgotten()
        return self._group.step_session(self.age, number, tensors, ask)

    def run(self, number: int, tensors: dict[str, Array], run: RunReport) -> RanksRun:
        """As `launcher.generation.runs.TokenRunHost.run`."""
        self._free_forgotten()
        return self._group.run_session(self.age, number, tensors, run)

    def _free_forgotten(self) -> None:
        forgotten = self.known.forgotten
        while forgotten:
            self.change("close", forgotten.pop())

    def change(self, change: str, number: int, **more: Unpack[More]) -> None:
        """As `ranks.state.session.Host.change`: no rank answers, what fails is told by the next step."""
        self._group.change_session(self.age, {"change": change, "number": number, **more})
