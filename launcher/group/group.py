"""A group of ranks that stays up: they load once, then answer as often as asked."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, cast

from launcher.common.logs import Logs
from launcher.common.report import warn_unsplit
from launcher.errors import ConfigError, LaunchError
from launcher.group.model import ReadyModel
from launcher.group.requests import Requests
from launcher.group.starting import prepared
from launcher.group.told import spec_of, stats_of
from launcher.inspection.reference import refer
from launcher.job.places.placement import Placement
from launcher.job.start_arguments import Start, check_collectives, count_ranks
from ranks.cache.locks import Pin, keeping
from ranks.models.imported import naming
from ranks.precision.request import TARGETS
from ranks.talk import wire
from sharding.common.text import counted
from sharding.onnx_files.given import GivenModel, is_path

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from launcher.group.requests import Run
    from launcher.group.session import RanksHost
    from launcher.group.watch import Job
    from launcher.job.rank_table import RankTable
    from ranks.common.progress import Progress
    from ranks.precision.request import Asked
    from ranks.talk.reports import RunReport, StateReport
    from sharding.common.arrays import Array
    from sharding.demands.options import SliceOptions


class Group(ReadyModel):
    """Started ranks of one model. Made by `start`; use it in a ``with``, or call `close`.

    ``inputs``, ``optional_inputs`` (those with a default) and ``outputs`` are the model's `TensorSpec`s;
    ``stats`` has one `RankStats` per rank.
    """

    def __init__(self, job: Job, timeout: float, model: Path, progress: Progress | None = None) -> None:
        self.kept: Sequence[Pin] = ()
        self._model, self._job = model, job
        self._lock = threading.Lock()
        self._requests = Requests(job)
        self._host: RanksHost | None = None
        self._closer = weakref.finalize(self, job.close)  # also at interpreter exit
        try:
            job.wait_for(lambda: self._ready(progress), timeout, "The ranks were not ready")
            self.inputs = [spec_of(item) for item in job.ready[0]["inputs"]]
            self.outputs = [spec_of(item) for item in job.ready[0]["outputs"]]
            self.optional_inputs = [spec_of(item) for item in job.ready[0].get("optional_inputs", [])]
            self.stats = [stats_of(rank, job, job.ready[rank]) for rank in range(job.world_size)]
        except BaseException:
            self._closer()
            raise

    def _ready(self, progress: Progress | None) -> bool:
        done, size = len(self._job.ready), self._job.world_size
        if progress is not None:
            progress(done, size)
        return done == size

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

    def step_session(self, number: int, tensors: dict[str, Array]) -> dict[str, Array]:
        """One step of a session. For `launcher.group.session`."""
        self._check_open()
        return self._requests.predict(tensors, {"session": number})

    def run_session(self, number: int, tensors: dict[str, Array], run: RunReport) -> Run:
        """A step of a session, and more that the ranks make by themselves. For `launcher.group.session`."""
        self._check_open()
        return self._requests.run(tensors, {"session": number, "run": run})

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise LaunchError("This group is closed: start another one.")
        self._job.check_owner()

    def close(self) -> None:
        """Ends every rank; returns when no process is left. Safe to call twice."""
        self._closer()
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


@keeping
def start(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model,
    *,
    ranks: int | None = None,
    launcher: str = "auto",
    rank_table: str | os.PathLike[str] | RankTable | None = None,
    collectives: str = "auto",
    threads: int | None = None,
    target: str = "cpu",
    timeout: float | None = None,
    hang_timeout: float | None = None,
    allow_replicated: bool = False,
    options: SliceOptions | None = None,
    environment: Mapping[str, str] | None = None,
    precision: Asked | None = None,
    placement: Placement | None = None,
    logs: Logs | None = None,
    progress: Progress | None = None,
) -> Group:
    """Starts the ranks of a model and returns when all are ready.

    ``model``: a slice folder, a model file, which is sliced first (into the cache) as ``options`` say, a
    pattern of rank models' files (``rank_{}_model.onnx``), or a model's bytes, `onnx.ModelProto` or
    `onnx_ir.Model`. ``ranks``: how many; a slice folder, the files
    that fit a pattern, a mesh and a rank table say it too. ``threads``: ONNX Runtime threads per rank, by
    default the cores shared among the ranks. ``target``: what the ranks compute on, "cpu", "gpu" or "ascend".
    ``timeout``: seconds that start-up, and later any one collective, may take (default: ``SHARDRUN_TIMEOUT``,
    300), ``hang_timeout`` those for which a rank that is waited for may be stopped or give no sign of life
    (60). ``environment``: more variables for the ranks. ``precision``: in which types they compute, if not in
    the model's own. ``placement``: on which hosts and cores they run, if not on this host or on those of the
    allocation that a batch system gave. ``logs``: where the lines go that they print. ``progress`` is called
    with how many ranks are ready, and of how many.

    Raises `ConfigError` and `RankTableError` for arguments that do not fit, what slicing raises,
    `LaunchError` when ranks cannot be started, and `RankFailedError` with the first cause when one fails
    while it loads.
    """
    if target not in TARGETS:
        raise ConfigError(f"There is no target {target!r}: expected one of {', '.join(TARGETS)}.")
    check_collectives(collectives, target)
    how = Start(
        ranks=ranks, launcher=launcher, rank_table=rank_table, collectives=collectives, threads=threads,
        target=target, timeout=timeout, hang_timeout=hang_timeout, allow_replicated=allow_replicated,
        options=options, environment=environment, precision=precision, placement=placement or Placement(),
        logs=logs or Logs(),
    )  # fmt: skip
    _ = how.seconds, how.table  # what is wrong with them is said before the model is looked at
    with _as_path(model) as path:
        return _started(path, how, progress)


def _started(path: Path, how: Start, progress: Progress | None) -> Group:
    reference = refer(path)
    reference.check()
    size = count_ranks(reference, how)
    begin = prepared(how, size)
    made = sliced_for(path, size, how) if reference.kind == "file" else path
    if made.is_dir():
        warn_unsplit(made, path)
    asked = [how.precision.to_text()] if how.precision else []
    # Links stay links: the data of a model that is one may lie beside its name.
    return Group(begin(["serve", str(made.absolute()), how.target, *asked]), how.seconds, made, progress)


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

    if size == 1 and not (how.options is not None and how.options.state):  # which its slices would say
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
