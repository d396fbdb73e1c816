"""Who is told what ranks answer, and that they are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from launcher.errors import ShardrunError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.errors import LaunchError, RankFailedError
    from launcher.group.watch import Job
    from ranks.talk import wire


CLOSED = "This group was closed: start another one."


class PredictError(ShardrunError):
    """The model could not compute these inputs; the group is still good."""


class Answers(Protocol):
    """What a job tells of its serving ranks: `launcher.group.requests.Requests`."""

    @property
    def busy(self) -> bool:
        """Whether ranks are at work on a request that they cannot be told to end."""

    @property
    def running(self) -> int | None:
        """The number of the run in progress, which can be told to end."""

    @property
    def heavy(self) -> bool:
        """Whether `took` may send more than an event loop should."""

    def take(self, rank: int, message: wire.Message) -> tuple[int, Mapping[str, object]] | None:
        """A rank's message; with the job's lock held.

        Gives a rank that could not compute what rank 0 could, and what it said: it is out of step with the
        others, however late that comes.
        """

    def took(self) -> None:
        """After `take`, with no lock held."""

    def lost(self, job: Job, error: RankFailedError | LaunchError) -> None:
        """The ranks are gone; with the job's lock held."""


class NoAnswers:
    """Of ranks that are asked nothing."""

    busy = heavy = False
    running = None

    def take(self, rank: int, message: wire.Message) -> None:
        """Drops it."""

    def took(self) -> None:
        """Does nothing."""

    def lost(self, job: Job, error: RankFailedError | LaunchError) -> None:
        """Does nothing."""
