"""What an engine takes and gives: the limits of what it does at once, and the texts of a request as they
come."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

from launcher.errors import ConfigError, ShardrunError
from launcher.generation.generate import Prepared
from launcher.generation.options import GenerateOptions
from launcher.generation.sample import Done, Event, Texts


@dataclass(frozen=True)
class EngineLimits:
    """How much an engine does at once. Raises `ConfigError` for limits under which nothing could be done."""

    sequences: int = 8
    """Texts under way; others wait."""
    positions: int | None = None
    """Positions that the texts under way may fill together, their prompts and all that they may still
    generate counted; None: what the context of each allows."""
    waiting: int = 1024
    """Requests that may wait; more are refused."""
    prefixes: int = 4
    """Prompts whose state is kept for others that begin alike; the longest unused goes first."""

    def __post_init__(self) -> None:
        for name, least in {"sequences": 1, "positions": 1, "waiting": 1, "prefixes": 0}.items():
            value = getattr(self, name)
            if name == "positions" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"the engine's limit {name!r}: expected a whole number from {least} up, found {value!r}"
                )


class EngineFullError(ShardrunError):
    """More requests wait than may; a later one may succeed."""


@dataclass
class Pace:
    """When a request was done what, in seconds of `time.perf_counter`; 0 where it was not yet."""

    submitted: float = 0.0
    began: float = 0.0
    """Its turn came: the first piece of its prompt was read."""
    first: float = 0.0
    """Its first token came."""
    last: float = 0.0
    """Its newest token came."""


class Stream(Texts):
    """The texts of one request as they come: an iterator over `Token` and `Done`, once.

    The engine does not wait for whoever reads: what has come is kept. `cancel`, or the end of a ``with``,
    ends the request early.
    """

    def __init__(
        self,
        prepared: Prepared,
        cancelled: Callable[[], None],
        *,
        has_text: bool,
        client: str = "",
        priority: int = 0,
    ) -> None:
        """``cancelled``: is called once the stream is cancelled. ``client``: who asked; ``priority``: 0 goes
        before 1."""
        super().__init__(has_text=has_text)
        self.client, self.priority = client, priority
        self._tell, self._prepared = cancelled, prepared
        self.pace = Pace(submitted=time.perf_counter())
        self.cancelled = False
        self._events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self._ended = False
        self._follower: Callable[[], None] | None = None

    @property
    def options(self) -> GenerateOptions:
        """How the texts are continued: settled."""
        return self._prepared.options

    @property
    def prompt(self) -> list[int]:
        """The token ids of the prompt."""
        return self._prepared.prompt

    @property
    def goes_on(self) -> bool:
        """Whether its texts go on that of the prompt, and are no answers."""
        return bool(self._prepared.limits.before)

    def put(self, event: Event) -> None:
        """For the engine: something has come."""
        if not isinstance(event, Done):
            self.pace.last = time.perf_counter()
            self.pace.first = self.pace.first or self.pace.last
        self._put(event)

    def end(self, error: BaseException | None = None) -> None:
        """For the engine: nothing more comes."""
        self._put(error)

    def _put(self, event: Event | BaseException | None) -> None:
        self._events.put(event)
        if self._follower is not None:
            self._follower()

    def follow(self, told: Callable[[], None]) -> None:
        """Has ``told`` called, from any thread, whenever something has come: for readers that must not block.
        What is there already is told at once."""
        self._follower = told
        told()

    @property
    def waits(self) -> bool:
        """Whether the next event would have to be waited for."""
        return self._events.empty() and not (self._ended or self.cancelled)

    def _next(self) -> Event:
        if self._ended or self.cancelled:
            raise StopIteration
        event = self._events.get()
        if event is None or isinstance(event, BaseException) or self.cancelled:
            self._ended = True
            if isinstance(event, BaseException) and not self.cancelled:
                raise event
            raise StopIteration
        return event

    def cancel(self) -> None:
        """Ends the request: no more events come. Safe to call at any time, from any thread, and twice."""
        if not self.cancelled:
            self.cancelled = True
            self._put(None)  # whoever waits for an event goes on
            self._tell()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
