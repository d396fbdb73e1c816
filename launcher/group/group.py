"""A group of ranks that stays up: they load once, then answer as often as asked."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, cast

from launcher.common.report import warn_unsplit
from launcher.errors import LaunchError
from launcher.group.model import ReadyModel
from launcher.group.ready import spec_of, stats_of
from launcher.group.requests import Requests
from launcher.group.starting import prepared
from launcher.inspection.reference import refer
from launcher.job.start_arguments import Start, StartArguments, count_ranks
from ranks.cache.locks import Pin, keeping
from ranks.common.elsewhere import ELSEWHERE
from ranks.models.imported import naming
from ranks.talk import wire
from sharding.common.text import counted
from sharding.onnx_files.given import GivenModel, is_path

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    from typing_extensions import Unpack

    from launcher.group.requests import RanksRun
    from launcher.group.session import RanksHost
    from launcher.group.starting import StartedJob
    from launcher.group.watch import Job
    from ranks.common.progress import Progress
    from ranks.state.session import Wish
    from ranks.talk.reports import RunReport, StateReport
    from sharding.common.arrays import Array
    from sharding.demands.options import SliceOptions


class Group(ReadyModel):
    """Started ranks of one model. Made by `start`; use it in a ``with``, or call `close`.

    ``inputs``, ``optional_inputs`` (those with a default) and ``outputs`` are the model's `TensorSpec`s;
    ``stats`` has one `RankStats` per rank.
    """

    def __init__(
        self, job: StartedJob, timeout: float, model: Path, progress: Progress | None = None
    ) -> None:
        self.kept: Sequence[Pin] = ()
        self._model, self._job = model, job
        self._lock = threading.Lock()
        self._requests = Requests(job)
        self._host: RanksHost | None = None
        # Whoever collects a group may hold what its end waits for.
        self._closer = ELSEWHERE.when_gone(self, functools.partial(_end, job))
        atexit.register(job.close)
        try:
            job.wait_for(lambda: self._ready(progress), timeout, "The ranks were not ready")
            self.inputs = [spec_of(item) for item in job.ready[0]["inputs"]]
            self.outputs = [spec_of(item) for item in job.ready[0]["outputs"]]
            self.optional_inputs = [spec_of(item) for item in job.ready[0].get("optional_inputs", [])]
            self.stats = [stats_of(rank, job, job.ready[rank]) for rank in range(job.world_size)]
        except BaseException:
            self.close()
            raise

    def _ready(self, progress: Progress | None) -> bool:
        size = self._job.world_size
        if progress is not None:
            progress(self._job.loaded(), size)
        return len(self._job.ready) == size

    def predict(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name, for one set of inputs, by name. Calls from several threads take turns.

        Raises `ShardrunError` for inputs that do not fit the model (nothing is sent), `PredictError` where
        the model cannot compute them, and `RankFailedError` with the first cause as soon as a rank is lost.
        After a Ctrl-C (`KeyboardInterrupt`) the group is still good: the answer is dropped when it comes, for
        which the next call waits.
        """
        tensors = self._tensors(feeds)
        return self._requests.predict(tensors, {})

    @property
    def run_seconds(self) -> float:
        """What rank 0 spent in running the model so far."""
        return self._requests.run_seconds

    @property
    def communication_seconds(self) -> float:
        """What of it was in collectives."""
        return self._requests.communication_seconds

    @property
    def segment_seconds(self) -> float:
        """What of it ONNX Runtime took, as far as it was for sessions."""
        return self._requests.segment_seconds

    @property
    def session_host(self) -> RanksHost:
        """What sessions and batches of them run on. Raises `ShardrunError` for a model without state."""
        from launcher.group.session import RanksHost

        self._check_open()
        with self._lock:  # two hosts would give two sessions one number
            if self._host is None:
                told = self._requests.ask(wire.Kind.SESSION, {"change": "describe"}).fields
                self._host = RanksHost(self, cast("StateReport", told))
        return self._host

    def change_session(self, fields: Mapping[str, object]) -> None:
        """Tells every rank of a change to a session; no rank answers. For `launcher.group.session`."""
        if self._closer.alive:
            self._requests.tell(wire.Kind.SESSION, fields)

    def step_session(
        self, number: int, tensors: dict[str, Array], ask: Wish | None = None
    ) -> dict[str, Array]:
        """One step of a session. For `launcher.group.session`."""
        self._check_open()
        if ask is None:
            return self._requests.predict(tensors, {"session": number})
        report, more = ask.told()
        return self._requests.predict({**tensors, **more}, {"session": number, "asked": report})

    def run_session(self, number: int, tensors: dict[str, Array], run: RunReport) -> RanksRun:
        """A step of a session, and more that the ranks make by themselves. For `launcher.group.session`."""
        self._check_open()
        return self._requests.run(tensors, {"session": number, "run": run})

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise LaunchError("This group is closed: start another one.")
        self._job.check_owner()

    def close(self) -> None:
        """Ends every rank; returns when no process is left. Safe to call twice."""
        if self._closer.detach() is not None:
            _end(self._job)
        self.kept = ()

    def __repr__(self) -> str:
        state = "" if self._closer.alive else ", closed"
        ranks = counted(self._job.world_size, "rank")
        return f"<Group of {ranks} by {self._job.launcher_name}: {self._model}{state}>"

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(job: Job) -> None:
    job.close()
    atexit.unregister(job.close)


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
    _ = how.seconds, how.table  # what is wrong with them is said before the model is looked at
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
    asked = [how.precision.to_text()] if how.precision else []
    # Links stay links: the data of a model that is one may lie beside its name.
    return Group(begin(["serve", str(made.absolute()), how.target, *asked]), how.seconds, made, how.progress)


@contextlib.contextmanager
def _as_path(model: object) -> Iterator[Path]:
    if is_path(model):
        yield Path(model)
        return
    with GivenModel(model) as path, naming(path, "the given model"):
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
