"""A group of ranks that stays up: they load once, then answer as often as asked."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.common.report import warn_unsplit
from launcher.errors import LaunchError, RankFailedError
from launcher.group.model import ReadyModel
from launcher.group.ready import RankStats, spec_of, stats_of, weight_of
from launcher.group.serving.crew import Crew
from launcher.group.serving.lent import lend
from launcher.group.starting import prepared
from launcher.inspection.reference import refer
from launcher.job.start_arguments import Start, StartArguments, count_ranks
from ranks.cache.locks import Pin, keeping
from ranks.common.elsewhere import ELSEWHERE
from ranks.common.tensors import TensorSpec
from ranks.talk import wire
from sharding.common.text import counted
from sharding.onnx_files.given import GivenModel, is_path

if TYPE_CHECKING:
    import asyncio

    import onnx
    import onnx_ir as ir
    from typing_extensions import Unpack

    from launcher.group.requests import Requests
    from launcher.group.serving.crew import State
    from launcher.group.serving.runs import RanksRun
    from launcher.group.serving.spent import Spent
    from launcher.group.session import RanksHost
    from launcher.group.starting import StartedJob
    from launcher.group.watch import Job
    from ranks.common.progress import Progress
    from ranks.state.session import Wish
    from ranks.talk.reports import RunReport, StateReport, WorkReport
    from sharding.common.arrays import Array
    from sharding.demands.options import SliceOptions


class Group(ReadyModel):
    """Started ranks of one model. Made by `start`; use it in a ``with``, or call `close`.

    ``inputs``, ``optional_inputs`` (those with a default) and ``outputs`` are the model's `TensorSpec`s.
    Requests come from any threads: a few are on their way at once, the others wait in their order.
    """

    def __init__(
        self,
        begin: Callable[[int], StartedJob],
        timeout: float,
        model: Path,
        progress: Progress | None = None,
        *,
        restarts: int = 0,
    ) -> None:
        """The arguments but ``model`` are those of `launcher.group.serving.crew.Crew`."""
        self.kept: Sequence[Pin] = ()
        self.given: GivenModel | None = None
        self.weights_version = 0
        """How often weights were replaced."""
        self._model = model
        self._lock = threading.Lock()
        self._host: RanksHost | None = None
        self._reader: asyncio.AbstractEventLoop | None = None
        self._crew = Crew(begin, timeout, restarts, progress)
        # Whoever collects a group may hold what its end waits for.
        self._closer = ELSEWHERE.when_gone(self, self._crew.close)
        try:
            ready = self._job.ready[0]
            self.inputs = [spec_of(item) for item in ready["inputs"]]
            self.outputs = [spec_of(item) for item in ready["outputs"]]
            self.optional_inputs = [spec_of(item) for item in ready.get("optional_inputs", [])]
            _ = self.stats
        except BaseException:
            self.close()
            raise

    @property
    def _job(self) -> Job:
        return self._crew.job

    @property
    def _requests(self) -> Requests:
        return self._crew.requests

    @property
    def stats(self) -> list[RankStats]:
        """What each rank said when it was ready: those that there are now, or were last."""
        job = self._job
        return [stats_of(rank, job, job.ready[rank]) for rank in range(job.world_size)]

    @property
    def state(self) -> State:
        """``ready``; ``restarting``, while ranks that were lost are started again; ``failed``, where they are
        not; ``closed``."""
        return self._crew.state

    @property
    def restarts(self) -> int:
        """How often the ranks were started again."""
        return self._crew.restarts

    @property
    def age(self) -> int:
        """How many other ranks were ready before these: sessions are lost with their ranks."""
        return self._requests.age

    def predict(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name, for one set of inputs, by name.

        Raises `ShardrunError` for inputs that do not fit the model (nothing is sent), `PredictError` where
        the model cannot compute them, and `RankFailedError` with the first cause as soon as a rank is lost:
        with ``restart`` only for a request that ranks were lost beside twice, or where they cannot be started
        again. After a Ctrl-C (`KeyboardInterrupt`) the group is still good: the answer is dropped when it
        comes.
        """
        tensors = self._tensors(feeds)
        return self._requests.predict(tensors, {})

    def submit(self, feeds: Mapping[str, Array], *, block: bool = True) -> Future[dict[str, Array]]:
        """A future of what `predict` returns or raises; inputs that do not fit are refused here.

        The arrays may be changed afterwards. A request that waits can be cancelled; one that ranks work on
        is answered in any case. Where 1000 requests wait this waits too, or raises
        `ranks.errors.QueueFullError` unless ``block``. What is called when a future is done runs in a thread
        of the group, and keeps others from their answers as long as it takes.
        """
        return self._requests.submit(self._tensors(feeds), block=block)

    async def predict_async(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """`predict` for an event loop, which goes on meanwhile; no thread waits. The arrays must stay as they
        are until then. A task that is cancelled gives its place up where its request waits."""
        return await self.submit_async(feeds)

    def submit_async(self, feeds: Mapping[str, Array]) -> asyncio.Future[dict[str, Array]]:
        """The same as a future of the event loop that runs: the request has its turn from now on; one of more
        than 1 MiB, which a thread sends, from when that has it."""
        return self._submit_fitting(self._tensors(feeds))

    def _submit_fitting(self, tensors: Mapping[str, Array]) -> asyncio.Future[dict[str, Array]]:
        """The same of what `_tensors` gave."""
        from launcher.group.serving.awaited import awaited

        if self._reader is not None:
            lend(self._job, self._reader)  # which may be another one after a restart
        return awaited(self._requests, dict(tensors))

    def _read_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has an event loop read what ranks answer, in place of a thread, from its next `submit_async` on. It
        must go on until the group is closed."""
        self._reader = loop

    def _submit_unbounded(self, feeds: Mapping[str, Array]) -> Future[dict[str, Array]]:
        return self._requests.submit(self._tensors(feeds), bounded=False)

    @property
    def variable_weights(self) -> list[TensorSpec]:
        """The weights that `update_weights` takes, with their types and shapes."""
        return [TensorSpec(*weight_of(item)) for item in self._job.ready[0].get("variable", [])]

    def update_weights(self, weights: Mapping[str, Array]) -> int:
        """Replaces weights that were named to `start`, all at once on all ranks, between two requests: each
        request sees all old or all new values. Returns how many such updates there were.

        Ranks that are started again get them, too; while they are, this waits. Raises `WeightsError`
        where a name, type or shape is wrong, and what `predict` raises; then nothing has changed.
        """
        from launcher.group.serving.renewal import checked

        self._check_open()
        given = checked(weights, self.variable_weights)
        self._requests.ask(wire.Kind.WEIGHTS, {}, given)
        with self._lock:
            self.weights_version += 1
            return self.weights_version

    def work(self) -> dict[int, WorkReport]:
        """What `said` has; has the ranks say it again, between two requests."""
        found = self.said
        with contextlib.suppress(LaunchError, RankFailedError):
            self._requests.tell(wire.Kind.STATS, {}, self.age)
        return found

    @property
    def said(self) -> dict[int, WorkReport]:
        """What each rank said last of its work, by rank."""
        return cast("dict[int, WorkReport]", dict(self._requests.spent.of_ranks))

    @property
    def run_seconds(self) -> float:
        """What rank 0 spent in running the model so far."""
        return self._requests.spent.run_seconds

    @property
    def communication_seconds(self) -> float:
        """What of it was in collectives."""
        return self._requests.spent.communication_seconds

    @property
    def segment_seconds(self) -> float:
        """What of it ONNX Runtime took, as far as it was for sessions."""
        return self._requests.spent.segment_seconds

    @property
    def spent(self) -> Spent:
        """All of it, and what of the collectives was waiting, and what the choice of tokens took."""
        return replace(self._requests.spent)

    @property
    def session_host(self) -> RanksHost:
        """What sessions and batches of them run on. Raises `ShardrunError` for a model without state."""
        from launcher.group.session import RanksHost

        self._check_open()
        with self._lock:  # two hosts would give two sessions one number
            # Of ranks that are lost: what is asked waits for those that come.
            if self._host is None or self._host.age != self.age or self._requests.down is not None:
                told = self._requests.ask(wire.Kind.SESSION, {"change": "describe"}).fields
                self._host = RanksHost(self, cast("StateReport", told))
        return self._host

    def change_session(self, age: int, fields: Mapping[str, object]) -> None:
        """Tells every rank of a change to a session; no rank answers. For `launcher.group.session`."""
        if self._closer.alive:
            self._requests.tell(wire.Kind.SESSION, fields, age)

    def step_session(
        self, age: int, number: int, tensors: dict[str, Array], ask: Wish | None = None
    ) -> dict[str, Array]:
        """One step of a session. For `launcher.group.session`."""
        self._check_open()
        if ask is None:
            return self._requests.predict(tensors, {"session": number}, age)
        report, more = ask.told()
        return self._requests.predict({**tensors, **more}, {"session": number, "asked": report}, age)

    def run_session(self, age: int, number: int, tensors: dict[str, Array], run: RunReport) -> RanksRun:
        """A step of a session, and more that the ranks make by themselves. For `launcher.group.session`."""
        self._check_open()
        return self._requests.run(tensors, {"session": number, "run": run}, age)

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise LaunchError("This group is closed: start another one.")
        self._job.check_owner()

    def close(self) -> None:
        """Ends every rank; returns when no process is left. Safe to call twice."""
        if self._closer.detach() is not None:
            self._crew.close()
        self.kept = ()

    def __repr__(self) -> str:
        state = "" if self._closer.alive else ", closed"
        ranks = counted(self._job.world_size, "rank")
        return f"<Group of {ranks} by {self._job.launcher_name}: {self._model}{state}>"

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@keeping
def start(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model,
    options: SliceOptions | None = None,
    **named: Unpack[StartArguments],
) -> Group:
    """Starts the ranks of a model and returns when all are ready.

    ``model``: a slice folder, a model file, which is sliced first (into the cache) as ``options`` say, a
    pattern of rank models' files (``rank_{}_model.onnx``), or a model's bytes, `onnx.ModelProto` or
    `onnx_ir.Model`. ``named``: such as ``ranks=2``; `StartArguments` has all of them, with their meanings.

    Raises `ConfigError` and `RankTableError` for arguments that do not fit, what slicing raises,
    `LaunchError` when ranks cannot be started, and `RankFailedError` with the first cause when one fails
    while it loads.
    """
    how = Start.asked("start", StartArguments, options, named)
    how.check_target()
    # What is wrong with them is said before the model is looked at.
    _ = how.seconds, how.table, how.restarts, how.weights_text
    if how.restarts and not is_path(model):
        given = GivenModel(model)
        with _naming_given(given.path):
            group = _started(given.path, how)
        group.given = given  # for ranks that are started later
        return group
    with _as_path(model) as path:
        return _started(path, how)


def _started(path: Path, how: Start) -> Group:
    reference = refer(path)
    reference.check()
    size = count_ranks(reference, how)
    begin = prepared(how, size)
    made = sliced_for(path, size, how) if reference.kind == "file" else path
    if made.is_dir():
        warn_unsplit(made, path)
    words = [how.target, how.precision.to_text() if how.precision else "", how.weights_text]
    while not words[-1]:
        words.pop()
    # Links stay links: the data of a model that is one may lie beside its name.
    program = ["serve", str(made.absolute()), *words]

    def begun(restarts: int) -> StartedJob:
        if not restarts:
            return begin(program)
        return prepared(replace(how, logs=how.logs.of_one(f"restart-{restarts}")), size)(program)

    return Group(begun, how.seconds, made, how.progress, restarts=how.restarts)


@contextlib.contextmanager
def _as_path(model: object) -> Iterator[Path]:
    if is_path(model):
        yield Path(model)
        return
    with GivenModel(model) as path, _naming_given(path):
        yield path


def sliced_for(path: Path, size: int, how: Start) -> Path:
    """What the ranks of a model file run; a file that cannot be run is refused before any of them starts."""
    from launcher.inspection.signature import declared_by

    # Its slices would say which state it has, and only slices are copied to other hosts.
    if size == 1 and not how.placement.stage and not (how.options is not None and how.options.state):
        declared_by(path)
        return path
    from launcher.job import cache

    return cache.sliced(
        path,
        size,
        options=how.options,
        allow_replicated=how.allow_replicated,
        timeout=how.seconds,
        before=lambda: declared_by(path),
    )


def _naming_given(path: Path) -> contextlib.AbstractContextManager[None]:
    """Errors raised inside name the model that was given in memory, and not the file made of it."""
    from ranks.models.imported import naming

    return naming(path, "the given model")
