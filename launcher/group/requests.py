"""What started ranks are asked: numbered requests, a few of which are on their way at once.

Ranks answer in the order in which they are asked. So the next requests lie ready when one is answered, and no
rank waits for this process between two of them. What else is asked waits here, first come, first served.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from launcher.common.interrupts import held_back
from launcher.errors import LaunchError, RankFailedError, ShardrunError
from launcher.group import halted
from launcher.group.answers import CLOSED, PredictError
from launcher.group.serving.alike import heard
from launcher.group.serving.asked import MOST_HERE, Asked
from launcher.group.serving.flight import Flight
from launcher.group.serving.lookout import Lookout
from launcher.group.serving.renewal import Renewal
from launcher.group.serving.runs import RanksRun
from launcher.group.serving.spent import Spent
from launcher.group.serving.teller import Teller
from launcher.starters import cause
from ranks.errors import QueueFullError
from ranks.talk import wire

if TYPE_CHECKING:
    from launcher.group.watch import Job
    from sharding.common.arrays import Array

    Outputs = dict[str, Array]
    Unlike = tuple[int, Mapping[str, object]]

__all__ = ["MOST_TRIES", "MOST_WAITING", "PredictError", "Requests"]
MOST_WAITING, MOST_TRIES = 1000, 2  # futures that may wait to be sent; and how often each is
_INTERRUPTED = "This group's last request was interrupted: start another one."


class Requests:
    """The requests to the ranks of a group, from any threads. Locks are taken in this order: who sends
    (``_sending``), a job's ``changed``, ``_state``."""

    def __init__(self, job: Job, again: Callable[[Job], None] | None = None) -> None:
        """``again``: is called, and must not wait, when the ranks of a job are lost; it has `attach` or `end`
        called later. Without it, what is asked fails with them."""
        self._again = again
        self._sending, self._state = threading.Lock(), threading.Lock()
        self._space = threading.Condition(self._state)
        self._waiting: deque[Asked] = deque()
        self._flight = Flight()
        self._after: list[Callable[[], None]] = []
        self.down: RankFailedError | LaunchError | None = None
        """Why there are no ranks now."""
        self._last_cause: RankFailedError | LaunchError | None = None
        self._run: Asked | None = None
        self._teller, self._lookout = Teller(self.look), Lookout()
        self.age = 0
        """How many other ranks there were before these."""
        self.spent, self.most_waiting, self.renewal = Spent(), MOST_WAITING, Renewal()
        self._job, job.answers = job, self

    # What callers ask.

    def predict(self, tensors: Outputs, fields: Mapping[str, object], age: int | None = None) -> Outputs:
        """The outputs, by name. Raises as `Group.predict` does. ``age``: that of the ranks that it is for."""
        return self._await(Asked(wire.Kind.PREDICT, fields, tensors), age).tensors

    def ask(
        self, kind: wire.Kind, fields: Mapping[str, object], tensors: Outputs | None = None
    ) -> wire.Message:
        """The answer to a request that gives no outputs. Raises as `Group.predict` does."""
        return self._await(Asked(kind, fields, tensors or {}), None)

    def submit(self, tensors: Outputs, *, block: bool = True, bounded: bool = True) -> Future[Outputs]:
        """A future of the outputs. ``block``: waits while too many wait, else `QueueFullError` is raised;
        unless ``bounded``, any number may wait. Raises `LaunchError` where the group has ended."""
        asked = Asked(wire.Kind.PREDICT, {}, tensors, future=Future())
        assert asked.future is not None
        if self._again is not None:
            asked.keep()  # for ranks that come after these
        self._teller.expect()
        try:
            if bounded:
                self._wait_for_space(block=block)
            with held_back(), self._state:
                self._enter(asked, None)
        except BaseException:
            self._teller.forget()
            raise
        asked.future.add_done_callback(lambda future: self.drop(asked) if future.cancelled() else None)
        with held_back():
            self._pump()
            if not asked.sent and self._again is None:
                with self._sending:  # no other thread is sending it now
                    if not asked.sent:
                        asked.keep()
                self._pump()
        return asked.future

    def _wait_for_space(self, *, block: bool) -> None:
        with self._state:
            while len(self._waiting) >= self.most_waiting and self.ended is None:
                if not block:
                    raise QueueFullError(f"{len(self._waiting)} requests wait already: try again later.")
                self._space.wait(halted.LOOK_SECONDS)

    def tell(self, kind: wire.Kind, fields: Mapping[str, object], age: int) -> None:
        """Tells every rank something that none answers, if these ranks are still those of that ``age``."""
        number, stats = self._job.world_size, kind is wire.Kind.STATS
        with held_back():  # all ranks, or none
            if not self._sending.acquire(blocking=not stats):  # whoever sends may send much
                return
            try:
                if age == self.age and self.down is None and (not stats or self.spent.ask(number)):
                    for rank in range(number):
                        self._job.send(rank, kind, fields)
            finally:
                self._sending.release()
            self._pump()

    def run(self, tensors: Outputs, fields: Mapping[str, object], age: int) -> RanksRun:
        """Starts a run: a step with these inputs, and more that the ranks make by themselves."""
        run = RanksRun(self, self._job)
        run.asked = Asked(wire.Kind.PREDICT, fields, tensors, run=run)
        self.begin(run.asked, age)
        return run

    def halt(self, run: RanksRun) -> None:
        """Ends a run after the step that is under way, or before it was sent."""
        asked = run.asked
        with held_back():
            with self._sending:
                with run.job.changed, self._state:
                    if waits := asked is not None and asked in self._waiting:
                        self._waiting.remove(asked)
                        run.end(0, None)
                if not waits and asked is self._run:
                    self._halt()
            self._pump()

    def extend(self, run: RanksRun, most: int) -> None:
        """Lets a run make so many steps, unless it has ended or another request ends it now."""
        with held_back():
            if not self._sending.acquire(blocking=False):
                return
            try:
                if self._run is not None and self._run is run.asked:
                    self._job.send(0, wire.Kind.LIMIT, {"request": self._run.number, "most": most})
            finally:
                self._sending.release()
            self._pump()

    def _await(self, asked: Asked, age: int | None) -> wire.Message:
        bell = threading.Lock()  # cheaper than a condition that all requests have in common
        bell.acquire()
        asked.ring = bell.release
        try:
            self.begin(asked, age)
            while not bell.acquire(timeout=halted.LOOK_SECONDS):
                self.look()
        except BaseException:  # Ctrl-C: the ranks may compute it to the end, for nobody
            self.drop(asked)
            raise
        return asked.answer

    def begin(self, asked: Asked, age: int | None = None) -> None:
        """Asks. Raises where there are no ranks, and none come."""
        with held_back():
            with self._state:
                self._enter(asked, age)
            self._pump()

    @property
    def ended(self) -> RankFailedError | LaunchError | None:
        """Why there are no ranks, and none come."""
        return self.down if self._again is None else None

    def _enter(self, asked: Asked, age: int | None) -> None:
        """Lets a request wait for its turn. Holds ``_state``."""
        self._job.check_owner()
        if (down := self.ended) is not None:
            raise cause.copied(down)
        if age is not None and (age != self.age or self.down is not None):
            assert self._last_cause is not None
            raise cause.copied(self._last_cause)
        if not self._flight:
            self._lookout.moved()
        self._waiting.append(asked)

    def drop(self, asked: Asked) -> None:
        """Nobody wants the answer: what waits goes, and what is on its way is answered for nobody."""
        with held_back(), self._state:
            asked.abandoned = True
            if asked in self._waiting:
                self._waiting.remove(asked)
                self._space.notify()
                if asked.future is not None:
                    self._teller.forget()

    # Sending: by whichever thread finds that there is room.

    def _pump(self) -> None:
        """Sends what waits, as far as there is room. Ctrl-C must be held back."""
        while self._waiting:  # who lets another one wait sends, too
            with self._state:
                fits = self._fits()
            if not fits or not self._sending.acquire(blocking=False):
                return  # whoever sends looks again afterwards
            try:
                with self._state:
                    asked = self._next()
                if asked is not None:
                    self._send(asked)
            finally:
                self._sending.release()

    def _fits(self) -> bool:
        """Whether the first one that waits may be sent. Holds ``_state``."""
        return self.down is None and bool(self._waiting) and self._flight.fits(self._waiting[0])

    def _next(self) -> Asked | None:
        """The request whose turn it is, with its number and slot. Holds ``_state``."""
        while self._fits():
            asked = self._waiting.popleft()
            self._space.notify()
            future = asked.future
            if future is not None and not asked.tries and not future.set_running_or_notify_cancel():
                self._teller.forget()
                continue
            self._flight.launch(asked)
            return asked
        return None

    def _send(self, asked: Asked) -> None:
        """Sends a request to all ranks. Holds ``_sending``."""
        job = self._job
        try:
            self._halt()
            asked.send(job)
            asked.sent = True
            if asked.run is not None:
                self._run = asked
        except wire.WireError as error:  # a tensor cannot travel, and nothing was sent
            with job.changed, self._state:
                self._finish(asked, None, error)
        except Exception as error:  # such as no memory, maybe in the middle of a message
            job.fail(cause.shortage(error))
        except BaseException:  # a signal's handler
            job.fail(LaunchError(_INTERRUPTED))
            raise

    def _halt(self) -> None:
        """Ends the run in progress, if there is one, after the step under way. Holds ``_sending``."""
        run, self._run = self._run, None
        if run is not None and not run.done:
            self._job.send(0, wire.Kind.LIMIT, {"request": run.number, "most": 0})

    # What ranks tell: each in a thread of its own, with the job's lock held.

    @property
    def busy(self) -> bool:
        """Whether ranks are at work on a request that they cannot be told to end."""
        with self._state:
            return len(self._flight) > len(self._flight.runs)

    @property
    def running(self) -> int | None:
        """The number of the run in progress, which can be told to end."""
        with self._state:
            return next((item.number for item in self._flight.runs), None)

    @property
    def heavy(self) -> bool:
        """Whether more waits to be sent than an event loop should send."""
        return any(asked.size > MOST_HERE for asked in tuple(self._waiting))

    def take(self, rank: int, message: wire.Message) -> Unlike | None:
        """See `Answers.take`; an answer that nobody waits for any more is dropped."""
        with self._state:
            asked = self._flight.get(message.fields.get("request"))
            if message.kind is wire.Kind.STATS:
                self.spent.told(rank, message.fields)
            elif message.kind is wire.Kind.FAILED:
                if asked is None:  # rank 0 had answered for all
                    return rank, message.fields
                error, after = heard(self._job, asked, rank, message.fields)
                self._after += after
                if error is not None:
                    self._finish(asked, None, error)
            elif asked is None:
                return None
            elif message.kind is wire.Kind.TOKENS and asked.run is not None:
                if isinstance(tokens := message.fields.get("tokens"), list):
                    asked.run.tokens.extend(tokens)
                    asked.run.came += len(tokens)
            elif message.kind is wire.Kind.RESULT and rank == 0:
                if asked.failed:
                    return next(iter(asked.failed.items()))
                self.spent.add(message.fields)
                self._finish(asked, message, None)
        return None

    def took(self) -> None:
        """After `take`, with no lock held: sends what there is room for now."""
        with self._state:
            after, self._after = self._after, []
        for call in after:
            call()
        self._pump()

    def _finish(self, asked: Asked, result: wire.Message | None, error: ShardrunError | None) -> None:
        """A request is answered, or never will be. Holds the job's ``changed`` and ``_state``."""
        self._flight.land(asked)
        self._lookout.moved()
        if result is not None and self._again is not None:
            self.renewal.note(asked)
        asked.done, asked.result, asked.error, asked.tensors = True, result, error, {}
        if asked.run is not None:
            made, failed = asked.run.came, error
            if result is not None and (why := result.fields.get("error")) is not None:
                failed = PredictError(str(why))
                made += 1  # the step was made, of which no token could be chosen
            asked.run.end(made, failed)
        elif asked.future is not None:
            self._teller.tell(asked)
        else:
            asked.ring()

    # Ranks are lost, and others come.

    def lost(self, job: Job, error: RankFailedError | LaunchError) -> None:
        """The ranks of a job are gone: what they were asked fails, or waits for the ranks that come after
        them. Called once for each job, with its lock held."""
        with self._state:
            if job is not self._job or self.down is not None:
                return
            self.down = self._last_cause = error
            self._run = None
            left = [*self._flight.clear(), *self._waiting]
            self._waiting.clear()
            for asked in left:
                again = asked.repeatable and asked.tries < MOST_TRIES and not asked.abandoned
                if again and self._again is not None:
                    self._waiting.append(asked)
                else:
                    self._finish(asked, None, cause.copied(error))
            self._space.notify_all()
            revive = self._again
        if revive is not None:
            revive(job)

    def attach(self, job: Job) -> None:
        """Other ranks are ready, in place of those that were lost: from now on they are asked."""
        with self._sending, job.changed:  # nobody is sending to the ranks before
            with self._state:
                self._job, self.down, job.answers, self.age = job, None, self, self.age + 1
                self.spent.renew()
                if (renewed := self.renewal.again()) is not None:
                    self._waiting.appendleft(renewed)
                self._lookout.moved()
            self.check()
        self._pump()

    def check(self) -> None:
        """Notices that the ranks were lost before anybody was told of it."""
        with (job := self._job).changed:
            if job.failure is not None:
                self.lost(job, job.failure)

    def end(self, error: RankFailedError | LaunchError) -> None:
        """No other ranks come: all that waits for them fails."""
        with self._job.changed, self._state:
            self._again = None
            self.down = self._last_cause = error
            waiting, self._waiting = self._waiting, deque()
            for asked in waiting:
                self._finish(asked, None, cause.copied(error))
            self._space.notify_all()

    def close(self) -> None:
        """No ranks come after these. What is still asked fails when these are ended."""
        with self._state:
            self._again = None

    def closed(self) -> None:
        """After the end of all ranks: the thread that tells futures ends once it has told all."""
        self.end(LaunchError(CLOSED))
        self._teller.close()

    def look(self) -> None:
        """Looks for stopped ranks, while an answer is waited for."""
        if self.down is None and self._flight:
            self._lookout.look(self._job)
