"""A group of ranks that stays up: they load once, then answer as often as asked."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, cast

from launcher.common.interrupts import held_back
from launcher.common.report import warn_unsplit
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.group.model import ReadyModel
from launcher.group.told import spec_of, stats_of
from launcher.group.watch import Job
from launcher.inspection.reference import refer
from launcher.job.start_arguments import (
    Start,
    check_collectives,
    check_count,
    count_ranks,
    rank_environment,
)
from launcher.starters import base
from ranks.cache.locks import Pin, keeping
from ranks.models.imported import naming
from ranks.precision.request import TARGETS
from ranks.talk import wire
from sharding.common.text import counted
from sharding.onnx_files.given import GivenModel, is_path

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from launcher.group.session import RanksHost
    from launcher.job.rank_table import RankTable
    from ranks.common.progress import Progress
    from ranks.precision.request import Asked
    from ranks.talk.reports import StateReport, StatsReport
    from sharding.common.arrays import Array
    from sharding.demands.options import SliceOptions

log = logging.getLogger(__name__)

_FAILED_SECONDS = 2.0  # a group whose ranks do not all fail alike within this time is out of step


class PredictError(ShardrunError):
    """The model could not compute these inputs; the group is still good."""


class Group(ReadyModel):
    """Started ranks of one model. Made by `start`; use it in a ``with``, or call `close`.

    ``inputs``, ``optional_inputs`` (those with a default) and ``outputs`` are the model's `TensorSpec`s;
    ``stats`` has one `RankStats` per rank; ``run_seconds``: what rank 0 spent in running the model so far,
    ``communication_seconds`` what of it in collectives.
    """

    def __init__(self, job: Job, timeout: float, model: Path, progress: Progress | None = None) -> None:
        self.kept: Sequence[Pin] = ()
        self._model, self._job = model, job
        self._lock = threading.Lock()
        self._request = 0
        self._host: RanksHost | None = None
        self._answers = job.answers
        self.communication_seconds = self.run_seconds = 0.0
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
        with self._lock:
            return self._asked(tensors, {})

    @property
    def session_host(self) -> RanksHost:
        """What sessions and batches of them run on. Raises `ShardrunError` for a model without state."""
        from launcher.group.session import RanksHost

        self._check_open()
        with self._lock:  # two hosts would give two sessions one number
            if self._host is None:
                asked = {"change": "describe"}
                self._host = RanksHost(
                    self, cast("StateReport", self._ask(wire.Kind.SESSION, asked, {}).fields)
                )
        return self._host

    def change_session(self, fields: Mapping[str, object]) -> None:
        """Tells every rank of a change to a session; no rank answers. For `launcher.group.session`."""
        if not self._closer.alive:
            return
        with self._lock, held_back():  # all ranks, or none
            for rank in range(self._job.world_size):
                self._job.send(rank, wire.Kind.SESSION, fields)

    def step_session(self, number: int, tensors: dict[str, Array]) -> dict[str, Array]:
        """One step of a session. For `launcher.group.session`."""
        self._check_open()
        with self._lock:
            return self._asked(tensors, {"session": number})

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise LaunchError("This group is closed: start another one.")
        self._job.check_owner()

    def _asked(self, tensors: dict[str, Array], fields: Mapping[str, object]) -> dict[str, Array]:
        result = self._ask(wire.Kind.PREDICT, fields, tensors)
        stats = cast("StatsReport", result.fields["stats"])
        self.communication_seconds = stats["communication_seconds"]
        self.run_seconds += cast("float", result.fields["seconds"])
        return result.tensors

    def _ask(self, kind: wire.Kind, more: Mapping[str, object], tensors: dict[str, Array]) -> wire.Message:
        job, answers = self._job, self._answers
        job.wait_for(lambda: True, None, "")  # raises at once what happened since the last call
        self._settle()
        fields = {**more, "request": self._request + 1}
        try:
            with held_back():  # all ranks get the request, or none
                with job.changed:
                    self._request += 1
                    answers.begin(self._request)
                job.send(0, kind, fields, tensors)
                for rank in range(1, job.world_size):
                    job.send(rank, kind, fields)
            job.wait_for(lambda: answers.came, None, "")
        except KeyboardInterrupt:
            answers.dropped = answers.request == fields["request"]  # else nothing was sent yet
            raise
        except wire.WireError:  # a tensor cannot travel, and nothing was sent
            answers.begin(0)
            raise
        except (RankFailedError, LaunchError):
            raise
        except BaseException:
            # Another signal's handler, maybe in the middle of a message.
            job.fail(LaunchError("This group's last request was interrupted: start another one."))
            raise
        if answers.result is not None:
            return answers.result
        raise self._failed()

    def _settle(self) -> None:
        """Waits until the ranks have answered a request that was interrupted, and drops the answer.

        They cannot be stopped in the middle of a model, and read the inputs of a request where those of the
        next one are written.
        """
        job, answers = self._job, self._answers
        if not answers.dropped:
            return
        job.wait_for(lambda: answers.came, None, "")
        if answers.result is None and not isinstance(error := self._failed(), PredictError):
            raise error
        answers.dropped = False

    def _failed(self) -> ShardrunError:
        """Called when a rank could not compute: if none could, they are still in step and the group is
        good."""
        job, answers = self._job, self._answers
        with job.changed:
            job.changed.wait_for(
                lambda: job.failure is not None or len(answers.failed) == job.world_size, _FAILED_SECONDS
            )
            rank, fields = next(iter(answers.failed.items()))
            text = str(fields.get("message"))
            if len(answers.failed) == job.world_size and job.failure is None:
                return PredictError(text)
            others = job.failure is None
        if others:
            where = f"rank {rank} on host {job.host(rank)}"
            job.abort(
                RankFailedError(
                    f"{where}: {text}\nOther ranks did not fail alike.", rank=rank, host=job.host(rank)
                )
            )
        assert job.failure is not None
        return job.failure

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
    allow_replicated: bool = False,
    options: SliceOptions | None = None,
    environment: Mapping[str, str] | None = None,
    precision: Asked | None = None,
    progress: Progress | None = None,
) -> Group:
    """Starts the ranks of a model and returns when all are ready.

    ``model``: a slice folder, a model file, which is sliced first (into the cache) as ``options`` say, a
    pattern of rank models' files (``rank_{}_model.onnx``), or a model's bytes, `onnx.ModelProto` or
    `onnx_ir.Model`. ``ranks``: how many; a slice folder, the files
    that fit a pattern, a mesh and a rank table say it too. ``threads``: ONNX Runtime threads per rank, by
    default the cores shared among the ranks. ``target``: what the ranks compute on, "cpu", "gpu" or "ascend".
    ``timeout``: seconds that start-up, and later any one collective, may take (default: ``SHARDRUN_TIMEOUT``,
    300). ``environment``: more variables for the ranks. ``precision``: in which types they compute, if not in
    the model's own. ``progress`` is called with how many ranks are ready, and of how many.

    Raises `ConfigError` and `RankTableError` for arguments that do not fit, what slicing raises,
    `LaunchError` when ranks cannot be started, and `RankFailedError` with the first cause when one fails
    while it loads.
    """
    if target not in TARGETS:
        raise ConfigError(f"There is no target {target!r}: expected one of {', '.join(TARGETS)}.")
    check_collectives(collectives, target)
    how = Start(
        ranks=ranks, launcher=launcher, rank_table=rank_table, collectives=collectives, threads=threads,
        target=target, timeout=timeout, allow_replicated=allow_replicated, options=options,
        environment=environment, precision=precision,
    )  # fmt: skip
    _ = how.seconds, how.table  # what is wrong with them is said before the model is looked at
    with _as_path(model) as path:
        return _started(path, how, progress)


def _started(path: Path, how: Start, progress: Progress | None) -> Group:
    reference = refer(path)
    reference.check()
    size = count_ranks(reference, how)
    ready = _ready(how, size)
    made = sliced_for(path, size, how) if reference.kind == "file" else path
    if made.is_dir():
        warn_unsplit(made, path)
    asked = [how.precision.to_text()] if how.precision else []
    # Links stay links: the data of a model that is one may lie beside its name.
    return Group(ready(["serve", str(made.absolute()), how.target, *asked]), how.seconds, made, progress)


def _ready(how: Start, size: int) -> Callable[[Sequence[str]], Job]:
    """What starts ``size`` ranks of a program, when all that can be wrong before is known to be right."""
    launcher = base.choose(how.launcher, how.table, how.collectives)
    variables = rank_environment(how)
    return functools.partial(
        Job, launcher, world_size=size, environment=variables, table=how.table, patience=how.seconds
    )


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


def run_program(
    program: Sequence[str],
    ranks: int | None = None,
    *,
    launcher: str = "auto",
    rank_table: str | os.PathLike[str] | RankTable | None = None,
    collectives: str = "auto",
    threads: int | None = None,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs ``program`` (arguments of `ranks.boot`, such as ``["exec", SCRIPT, ...]``) on every rank to its
    end.

    Raises like `start`, `RankFailedError` when a rank ends with anything but success, and `OSError` where
    some of what the ranks printed could not be written.
    """
    how = Start(
        launcher=launcher, rank_table=rank_table, collectives=collectives, threads=threads, timeout=timeout,
        environment=environment,
    )  # fmt: skip
    size = ranks if ranks is not None else how.table.world_size if how.table is not None else 1
    check_count(size, how.table)
    job = _ready(how, size)(program)
    try:
        job.wait()
    finally:
        job.close()
    if job.lost_output is not None:
        raise job.lost_output
