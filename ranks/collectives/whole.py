"""What a failure ends: a communicator, and the whole that it is a part of."""

from __future__ import annotations

from ranks.collectives.base import Communicator
from ranks.errors import CollectiveError

CLOSED = "it was closed."
FORKED = "it belongs to the process that this one was forked from."


class WholeOrPart(Communicator):
    """A communicator of all ranks, or a part of one: once a call has failed, neither can be used any more."""

    _whole: WholeOrPart
    """Itself, if it is no part."""
    _broken: str = ""
    """Why it cannot be used any more."""

    def _check_usable(self) -> None:
        if broken := self._broken or self._whole._broken:
            raise CollectiveError(f"The group cannot be used any more: {broken}")

    def _break(self, why: str) -> None:
        """From now on neither this group nor the one that it is a part of can be used; the first reason
        stays."""
        self._broken = why
        self._whole._broken = self._whole._broken or why

    def _shut(self) -> bool:
        """Closes its parts, and itself to further calls; whether it is a whole, which must close what both
        use."""
        self._close_parts()
        self._broken = self._broken or CLOSED
        return self._whole is self
