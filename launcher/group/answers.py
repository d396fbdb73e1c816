"""What the ranks of a serving group answer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ranks.talk import wire

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class Answers:
    """The answers to the request in progress; guarded by the job's ``changed``."""

    request: int = 0
    dropped: bool = False
    """Whether nobody waits for them any more."""
    result: wire.Message | None = None
    failed: dict[int, Mapping[str, object]] = field(default_factory=dict)
    run: bool = False
    """Whether the request is a run of steps, which can be told to end."""
    tokens: deque[int] = field(default_factory=deque)
    """Of a run, as far as it has come; each request has its own."""
    made: int = 0
    """How many tokens of the run have come."""

    def begin(self, request: int, *, run: bool = False) -> None:
        """A new request: nothing is answered yet."""
        self.request, self.result, self.failed, self.dropped = request, None, {}, False
        self.run, self.tokens, self.made = run, deque(), 0

    @property
    def came(self) -> bool:
        """Whether there is one, from rank 0 for all or from a rank that could not compute."""
        return self.result is not None or bool(self.failed)

    @property
    def expected(self) -> bool:
        """Whether the ranks are still at work on the request."""
        return self.request > 0 and not self.came

    @property
    def good(self) -> bool:
        """Whether rank 0 has answered for all, and no rank could not compute."""
        return self.result is not None and not self.failed

    def take(self, rank: int, message: wire.Message) -> tuple[int, Mapping[str, object]] | None:
        """An answer; one to an earlier request is dropped.

        Gives a rank that could not compute what rank 0 could, and what it said: it is out of step with the
        others, however late that comes. (No request is over before rank 0 has answered, or all have failed.)
        """
        if message.fields.get("request") != self.request:
            return (rank, message.fields) if message.kind is wire.Kind.FAILED else None
        if message.kind is wire.Kind.RESULT and rank == 0:
            self.result = message
        elif message.kind is wire.Kind.TOKENS:
            tokens = message.fields.get("tokens")
            if isinstance(tokens, list):
                self.tokens.extend(tokens)
                self.made += len(tokens)
        elif message.kind is wire.Kind.FAILED:
            self.failed[rank] = message.fields
        unlike = next(iter(self.failed.items()), None)
        return unlike if self.result is not None else None
