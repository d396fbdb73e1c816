"""Ranks that something else started, led by rank 0: it asks, and all of them run their models for it.

No launcher stands beside these ranks to compare their answers. So a rank that cannot compute waits a moment
for the others to fail alike: if they do, all are still in step. If they do not, it leaves and says why.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ranks.errors import CollectiveError, ShardrunError
from ranks.run.steps.shown import Asking, shown
from ranks.talk.wire import Kind, Message, WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

    from ranks.collectives.broadcast import Spreader
    from ranks.run.rank_model import RankModel
    from ranks.state.session import Wish
    from ranks.talk.reports import Change, More
    from sharding.common.arrays import Array


WELL, MISUSED, FAILED = FATES = ("well", "misused", "failed")
"""How a leader ends: its work is done, what it was given is wrong, or something failed."""
_LOOKS = 4
"""Times within the time-out of collectives that an idle leader speaks."""


class Leader:
    """Rank 0's side: has every rank run its models, which all ranks have in the same order. Threads take
    turns."""

    def __init__(self, models: Sequence[RankModel], spreader: Spreader) -> None:
        self.models = list(models)
        self._spreader = spreader
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._asked = 0
        self._asking = [Asking() for _ in models]
        if spreader.size > 1:
            patience = spreader.timeout / _LOOKS
            waker = threading.Thread(target=self._wake, args=(patience,), name="shardrun leader", daemon=True)
            waker.start()

    @property
    def ended(self) -> bool:
        """Whether nobody follows any more."""
        return self._ended.is_set()

    def run(self, place: int, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name, of the model at this place among them; ``feeds``: all that it takes, checked.

        Raises what running raises; the ranks are still in step unless it is a `CollectiveError`."""
        model = self.models[place]

        def run() -> dict[str, Array]:
            return dict(zip((spec.name for spec in model.outputs), model.run(feeds), strict=True))

        return self._together({"model": place}, feeds, run)

    def step(
        self, place: int, number: int, feeds: Mapping[str, Array], ask: Wish | None = None
    ) -> dict[str, Array]:
        """One step of a sequence of a model; as `run`, and as `ranks.state.session.Host.step`."""
        model, tensors = self.models[place], dict(feeds)
        told: dict[str, object] = {"model": place, "session": number}
        if ask is not None:
            told["asked"], more = ask.told()
            tensors |= more

        def run() -> dict[str, Array]:
            rows = self._asking[place].rows(told, tensors)
            return shown(model.step(number, tensors, rows), rows)

        return self._together(told, tensors, run)

    def change(self, place: int, change: str, number: int, **more: Unpack[More]) -> None:
        """As `ranks.state.session.Host.change`, on every rank."""
        with self._turn:
            if not self.ended:
                with self._in_step():
                    self._tell(Kind.SESSION, {"model": place, "change": change, "number": number, **more})
                    self.models[place].sequences.change(change, number, **more)

    def end(self, fate: str) -> None:
        """Tells the other ranks to end, if they listen; ``fate``: one of `FATES`, which `follow` returns."""
        with self._turn:
            if not self.ended:
                self._tell(Kind.STOP, {"fate": fate})
                self._ended.set()

    def _together(
        self, fields: Mapping[str, object], feeds: Mapping[str, Array], run: Callable[[], dict[str, Array]]
    ) -> dict[str, Array]:
        with self._turn, self._in_step():
            if self.ended:
                raise CollectiveError("The ranks that this one led have ended: start the job anew.")
            self._tell(Kind.PREDICT, fields, dict(feeds))
            try:
                return run()
            except CollectiveError:
                self._ended.set()
                raise
            except Exception as error:
                if self._spreader.all_failed(_reason(error)):
                    raise
                self._ended.set()
                raise _alone(error, "this rank") from error

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        """Around what all ranks do alike. After a Ctrl-C in the middle nobody follows any more: the others
        finish it, or wait in it."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._ended.set()
            raise

    def _tell(
        self, kind: Kind, fields: Mapping[str, object], tensors: dict[str, Array] | None = None
    ) -> None:
        """Sends a message to all other ranks, or ends where it is sent to some only."""
        self._asked += 1
        try:
            self._spreader.spread(Message(kind, fields, tensors or {}))
        except WireError:  # of a tensor that cannot travel: nothing was sent
            raise
        except BaseException:
            self._ended.set()
            raise

    def _wake(self, patience: float) -> None:
        """Speaks to the others while there is nothing to do: else they would take this rank for lost."""
        asked = -1
        while not self._ended.wait(patience):
            with self._turn:
                if self.ended:
                    return
                if self._asked == asked:
                    try:
                        self._tell(Kind.HELLO, {})
                    except CollectiveError:  # whoever asks next is told
                        return
                asked = self._asked


def follow(models: Sequence[RankModel], spreader: Spreader) -> str:
    """The other ranks' side: does what rank 0 asks until it ends; returns how it did, one of `FATES`.

    Raises `CollectiveError` where the group breaks, and the first cause where this rank cannot compute what
    others can.
    """
    asking = [Asking() for _ in models]
    while True:
        message = spreader.spread(None)
        fields = message.fields
        if message.kind is Kind.STOP:
            return str(fields.get("fate"))
        if message.kind is Kind.HELLO:
            continue
        place = cast("int", fields["model"])
        model = models[place]
        if message.kind is Kind.SESSION:
            more = {name: value for name, value in fields.items() if name != "model"}
            model.sequences.change(**cast("Change", more))
            continue
        try:
            session = fields.get("session")
            if session is None:
                model.run(message.tensors)
            else:
                rows = asking[place].rows(fields, message.tensors)
                model.step(cast("int", session), message.tensors, rows)
        except CollectiveError:
            raise
        except Exception as error:
            if not spreader.all_failed(_reason(error)):
                raise _alone(error, f"rank {spreader.rank}") from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ShardrunError) else f"{type(error).__name__}: {error}."


def _alone(error: Exception, who: str) -> ShardrunError:
    return CollectiveError(f"{_reason(error)} Other ranks could compute what {who} could not.")
