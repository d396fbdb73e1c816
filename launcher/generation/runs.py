"""What a decoder needs of ranks that make several steps by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ranks.talk.reports import RunReport
    from sharding.common.arrays import Array


class TokenRun(Protocol):
    """Tokens that the ranks choose and read on by themselves."""

    def next(self) -> int | None:
        """The next token; None after the last."""

    def extend(self, most: int) -> None:
        """Lets it make so many steps in all, unless it has ended."""

    def close(self) -> int:
        """Ends it after the step under way; how many steps were made, their tokens taken or not."""


@runtime_checkable
class TokenRunHost(Protocol):
    """A host whose ranks make several steps by themselves."""

    def run(self, number: int, tensors: dict[str, Array], run: RunReport) -> TokenRun:
        """A step of a sequence, and more of which each reads the token that rank 0 chooses by the one before.

        All steps have the same ``tensors``, but for the token that they read."""
