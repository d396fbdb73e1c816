"""What started ranks are asked: one request at a time, or one run of steps that they make by themselves."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from launcher.common.interrupts import held_back
from launcher.errors import LaunchError, RankFailedError, ShardrunError
from launcher.starters import cause
from ranks.collectives.base import ALIKE_SECONDS
from ranks.talk import wire

if TYPE_CHECKING:
    from launcher.group.watch import Job
    from ranks.talk.reports import StatsReport
    from sharding.common.arrays import Array


class PredictError(ShardrunError):
    """The model could not compute these inputs; the group is still good."""


class Requests:
    """The requests to the ranks of a job. Calls from several threads take turns.

    ``run_seconds``, ``communication_seconds`` and ``segment_seconds``: as `launcher.group.group.Group` has
    them.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._answers = job, job.answers
        self._lock = threading.Lock()
        self._request = 0
        self._run: RanksRun | None = None
        self.communication_seconds = self.segment_seconds = self.run_seconds = 0.0

    def predict(self, tensors: dict[str, Array], fields: Mapping[str, object]) -> dict[str, Array]:
        """The outputs, by name. Raises as `Group.predict` does."""
        with self._lock:
            result = self._ask(wire.Kind.PREDICT, fields, tensors)
            self._count(result)
            return result.tensors

    def ask(self, kind: wire.Kind, fields: Mapping[str, object]) -> wire.Message:
        """The answer to a request without tensors. Raises as `Group.predict` does."""
        with self._lock:
            return self._ask(kind, fields, {})

    def tell(self, kind: wire.Kind, fields: Mapping[str, object]) -> None:
        """Tells every rank something that none answers."""
        with self._lock, held_back():  # all ranks, or none
            for rank in range(self._job.world_size):
                self._job.send(rank, kind, fields)

    def run(self, tensors: dict[str, Array], fields: Mapping[str, object]) -> RanksRun:
        """Starts a run: a step with these inputs, and more that the ranks make by themselves."""
        run = RanksRun(self, self._job)
        with self._lock:
            self._prepare()
            with self._whole():
                self._send(wire.Kind.PREDICT, fields, tensors, run)
        return run

    def finish(self, run: RanksRun, *, halt: bool) -> None:
        """Waits for the end of a run; ``halt``: which is after the step that is under way."""
        with self._lock:
            if self._run is run:
                self._end_run(halt=halt)

    def extend(self, run: RanksRun, most: int) -> None:
        """Lets a run make so many steps, unless it has ended or another request ends it now."""
        with held_back():
            if not self._lock.acquire(blocking=False):
                return
            try:
                if self._run is run:
                    self._job.send(0, wire.Kind.LIMIT, {"request": run.request, "most": most})
            finally:
                self._lock.release()

    def _count(self, result: wire.Message) -> None:
        stats = cast("StatsReport", result.fields["stats"])
        self.communication_seconds = stats["communication_seconds"]
        self.segment_seconds = stats["segment_seconds"]
        self.run_seconds += cast("float", result.fields["seconds"])

    def _ask(self, kind: wire.Kind, fields: Mapping[str, object], tensors: dict[str, Array]) -> wire.Message:
        job, answers = self._job, self._answers
        self._prepare()
        number = self._request + 1
        with self._whole():
            try:
                self._send(kind, fields, tensors)
                job.wait_for(lambda: answers.came, None, "")
            except KeyboardInterrupt:
                answers.dropped = answers.request == number  # else nothing was sent yet
                raise
        if answers.result is not None and answers.good:
            return answers.result
        raise self._failed()

    def _prepare(self) -> None:
        """The ranks are free, and all is well, or it raises."""
        self._job.wait_for(lambda: True, None, "")  # raises at once what happened since the last call
        self._end_run(halt=True)
        self._settle()

    def _send(
        self,
        kind: wire.Kind,
        fields: Mapping[str, object],
        tensors: dict[str, Array],
        run: RanksRun | None = None,
    ) -> None:
        job, number = self._job, self._request + 1
        fields = {**fields, "request": number}
        with held_back():  # all ranks get the request, or none
            with job.changed:
                self._request = number
                self._answers.begin(number, run=run is not None)
            if run is not None:
                run.request, run.tokens = number, self._answers.tokens
                self._run = run
            job.send(0, kind, fields, tensors)
            for rank in range(1, job.world_size):
                job.send(rank, kind, fields)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Ends the group where a message may have been sent in part."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except wire.WireError:  # a tensor cannot travel, and nothing was sent
            self._answers.begin(0)
            self._run = None
            raise
        except (RankFailedError, LaunchError):
            raise
        except BaseException:  # another signal's handler, maybe in the middle of a message
            self._job.fail(LaunchError("This group's last request was interrupted: start another one."))
            raise

    def _end_run(self, *, halt: bool) -> None:
        """Waits until the run in progress has ended, if there is one; its owner is told."""
        job, answers, run = self._job, self._answers, self._run
        if run is None:
            return
        if halt and not answers.came:
            with held_back():
                job.send(0, wire.Kind.LIMIT, {"request": run.request, "most": 0})
        job.wait_for(lambda: answers.came, None, "")
        error: ShardrunError | None = None
        made = answers.made
        if answers.result is None or not answers.good:
            error = self._failed()
        else:
            self._count(answers.result)
            if (why := answers.result.fields.get("error")) is not None:
                error = PredictError(str(why))
                made += 1  # the step was made, of which no token could be chosen
        with held_back(), job.changed:  # or its owner would look for the end for ever
            self._run = None
            run.error, run.made, run.ended = error, made, True  # the end last: who reads it holds no lock
            job.changed.notify_all()

    def _settle(self) -> None:
        """Waits until the ranks have answered a request that was interrupted, and drops the answer.

        They cannot be stopped in the middle of a model, and read the inputs of a request where those of the
        next one are written.
        """
        job, answers = self._job, self._answers
        if not answers.dropped:
            return
        job.wait_for(lambda: answers.came, None, "")
        if not answers.good and not isinstance(error := self._failed(), PredictError):
            raise error
        answers.dropped = False

    def _failed(self) -> ShardrunError:
        """Called when a rank could not compute: if none could, they are still in step and the group is
        good."""
        job, answers = self._job, self._answers
        with job.changed:
            job.changed.wait_for(
                lambda: job.failure is not None or len(answers.failed) == job.world_size, ALIKE_SECONDS
            )
            rank, fields = next(iter(answers.failed.items()))
            text = str(fields.get("message"))
            if len(answers.failed) == job.world_size and job.failure is None:
                return PredictError(text)
            others = job.failure is None
        if others:
            job.abort(cause.error_of(cause.Trouble(rank, job.host(rank), cause.unlike(fields)), ()))
        assert job.failure is not None
        return job.failure


class RanksRun:
    """Tokens that ranks choose and read on by themselves, as they come.

    Any other request ends it after the step under way: what was chosen by then still comes from here.
    """

    def __init__(self, requests: Requests, job: Job) -> None:
        self._requests, self._job = requests, job
        self.request = 0
        self.tokens: deque[int] = deque()
        self.ended, self.made = False, 0
        self.error: ShardrunError | None = None

    def next(self) -> int | None:
        """The next token; None after the last. Raises as `Group.predict` does."""
        while True:
            ended = self.ended  # first: what has come by then is there
            if self.tokens:
                return self.tokens.popleft()
            if ended:
                if self.error is not None:
                    raise self.error
                return None
            self._job.wait_for(lambda: bool(self.tokens) or self.ended or self._came(), None, "")
            if not self.tokens and not self.ended:
                self._requests.finish(self, halt=False)

    def _came(self) -> bool:
        answers = self._job.answers
        return answers.request == self.request and answers.came

    def extend(self, most: int) -> None:
        """Lets it make so many steps in all, unless it has ended."""
        if not self.ended:
            self._requests.extend(self, most)

    def close(self) -> int:
        """Ends it after the step under way; how many steps were made, their tokens taken or not."""
        if not self.ended:
            with contextlib.suppress(RankFailedError, LaunchError):  # which the next request says
                self._requests.finish(self, halt=True)
        return self.made
