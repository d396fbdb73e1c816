"""``shardrun run --inputs --outputs``: many files through one group, a few ahead of the one written."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from launcher.common.report import human_bytes, human_seconds, progress, say
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.group.requests import PredictError
from launcher.job.model import Opened, opened, world_size
from launcher.tasks import results
from launcher.tasks.listing import Item, Listing, listed
from launcher.tasks.loading import lead, start_group
from launcher.tasks.pace import Pace
from launcher.tasks.run import Show, check_job
from ranks.talk import area
from sharding.common.text import counted, one_line

if TYPE_CHECKING:
    from launcher.group.led import LedModel
    from launcher.group.serving.crew import State
    from launcher.job.job import Job
    from ranks.identity.place import Identity
    from sharding.common.arrays import Array

    Arrays = dict[str, Array]

AHEAD_BYTES = 256 << 20
"""Of inputs that are read before the outputs of the first are written, where they are several."""
_FATAL = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.EACCES,
    errno.EPERM,
}
"""What prevents writing any file, not only the one."""


class Asks(Protocol):
    """A model that is asked without waiting: a group."""

    @property
    def state(self) -> State: ...

    def submit(self, feeds: Arrays) -> Future[Arrays]: ...


@dataclass
class Asked:
    """A file whose outputs are being computed."""

    item: Item
    mark: bytes
    bytes: int
    future: Future[Arrays]


class Batch:
    """The run of all files. ``skipped``: with how many something was wrong."""

    def __init__(self, job: Job, made: Opened, listing: Listing, pace: Pace) -> None:
        from launcher.job.inputs import make_inputs

        manifest = made.manifest
        self._job, self._listing, self.pace = job, listing, pace
        self.skipped = 0
        self._error: ShardrunError | None = None
        everything = (*manifest.inputs, *manifest.optional_inputs)
        self._fixed: Arrays = {}
        if job.inputs:
            arrays, ones = make_inputs(
                manifest.inputs, job.inputs, dims=job.dims, optional=manifest.optional_inputs
            )
            self._fixed = {name: array for name, array in arrays.items() if name not in ones}
        self._wanted = [spec for spec in manifest.inputs if spec.name not in self._fixed]
        names = {spec.name for spec in self._wanted}
        self._optional = [spec for spec in everything if spec.name not in names]
        files = [text.partition("=")[2] or text for text in job.inputs]
        model = f"{manifest.source.sha256} {manifest.source.file} {job.precision_mode} {job.execution_plan}"
        self._marks = results.Marks(model, [file for file in files if os.path.exists(file)])  # noqa: PTH110

    def run(self, asks: Asks) -> None:
        """Runs all. Raises what ends the run, when all that was asked before is written."""
        asked: deque[Asked] = deque()
        self._asks = asks
        try:
            for item in self._left():
                while asked and self._is_full(asked):
                    self._take(asked.popleft())
                if self._error is not None:
                    break
                found = self._ask(item)
                if found is not None:
                    asked.append(found)
            while asked:
                self._take(asked.popleft())
        finally:
            for one in asked:
                one.future.cancel()
        if self._error is not None:
            raise self._error

    def _is_full(self, asked: deque[Asked]) -> bool:
        return len(asked) >= area.SLOTS or sum(one.bytes for one in asked) >= AHEAD_BYTES

    def _left(self) -> Iterator[Item]:
        for item in self._listing:
            if self._error is not None:
                return
            yield item

    def _ask(self, item: Item) -> Asked | None:
        """Asks for a file's outputs, unless they are there, or something is wrong with it."""
        try:
            mark = self._marks.of(item.path)
            if self._job.resume:
                state = results.state(item.target, mark)
                if state == "done":
                    self.pace.step(before=True)
                    return None
                if state == "strange":
                    raise ConfigError(
                        f"{item.path}: {item.target} is there already, and is no result of this command: "
                        "move it away"
                    )
            feeds = self._read(item.path)
            return Asked(item, mark, sum(array.nbytes for array in feeds.values()), self._asks.submit(feeds))
        except OSError as problem:
            self._wrong(item, ConfigError(f"{item.path}: cannot be read: {problem.strerror or problem}"))
        except (LaunchError, RankFailedError):
            raise
        except ShardrunError as error:
            self._wrong(item, error)
        return None

    def _read(self, path: str) -> Arrays:
        from launcher.job.inputs import make_inputs

        arrays, ones = make_inputs(
            self._wanted, [_source(path)], dims=self._job.dims, optional=self._optional
        )
        if ones:
            raise ConfigError(
                f"{path}: expected arrays for all inputs, found none for {', '.join(ones)}; an array for "
                "all files comes by --input"
            )
        return {**self._fixed, **arrays}

    def _take(self, asked: Asked) -> None:
        """Writes a file's outputs when they have come."""
        try:
            outputs = asked.future.result()
        except (LaunchError, RankFailedError) as error:
            # Where ranks were started again, they have died beside this file twice.
            if self._asks.state in {"failed", "closed"}:
                raise
            self._wrong(asked.item, error)
            return
        except ShardrunError as error:
            self._wrong(asked.item, error)
            return
        try:
            results.save(asked.item.target, outputs, asked.mark)
        except (ConfigError, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(error, ConfigError):
                reason = error.strerror or error
                error = ConfigError(f"{asked.item.target}: cannot write the outputs: {reason}")
            if isinstance(cause, OSError) and cause.errno in _FATAL:
                raise error from None
            self._wrong(asked.item, error)
            return
        self.pace.step()

    def _wrong(self, item: Item, error: ShardrunError) -> None:
        """Something is wrong with one file: it is the end, or said and skipped."""
        text = str(error).removeprefix(f"--input {_source(item.path)}: ")
        if not text.startswith(f"{item.path}: "):
            text = f"{item.path}: {text}"
        if not self._job.keep_going:
            if self._error is None:
                self._error = ConfigError(text) if isinstance(error, ConfigError) else PredictError(text)
            return
        self.skipped += 1
        print(f"shardrun: skipped: {one_line(text)}", file=sys.stderr, flush=True)


def _source(path: str) -> str:
    """What `make_inputs` is given: no part of it can be taken for an input's name."""
    return path if path.startswith(("/", "./")) else f"./{path}"


class InTurn:
    """A model that computes what it is asked before it gives the future."""

    def __init__(self, model: LedModel) -> None:
        self._model = model

    @property
    def state(self) -> State:
        """Nobody starts its ranks again."""
        return "failed" if self._model.ended else "ready"

    def submit(self, feeds: Arrays) -> Future[Arrays]:
        future: Future[Arrays] = Future()
        try:
            future.set_result(self._model.predict(feeds))
        except ShardrunError as error:
            future.set_exception(error)
        return future


def files_group(job: Job, show: Show) -> None:
    """Starts a group and runs all files through it."""
    assert job.outputs is not None
    listing = listed(job.files, job.outputs, resume=job.resume)
    with opened(job, world_size(job), check=lambda found: check_job(job, found)) as model:
        size = human_bytes(sum(rank.weight_bytes for rank in model.manifest.ranks))
        with progress(f"loading {size} of weights: ranks ready", counted=True) as update:
            group = start_group(job, model, update)
        with group:
            _run(job, model, listing, group, show, lambda: group.restarts)


def files_rank(job: Job, identity: Identity, show: Show) -> None:
    """The same as one rank that something else started: rank 0 reads and writes."""
    assert job.outputs is not None
    listing = listed(job.files, job.outputs, resume=job.resume) if identity.rank == 0 else None
    with opened(job, identity.world_size, identity.rank) as made:

        def work(models: Sequence[LedModel]) -> None:
            assert listing is not None
            _run(job, made, listing, InTurn(models[0]), show, lambda: 0)

        lead(job, [made], identity, work, "run the files")


def _run(  # noqa: PLR0917 - what both ways have
    job: Job, made: Opened, listing: Listing, asks: Asks, show: Show, restarts: Callable[[], int]
) -> None:
    pace = Pace("files", len(listing), quiet=show == "nothing")
    batch = Batch(job, made, listing, pace)
    try:
        with pace.shown():
            batch.run(asks)
    except BaseException:
        print(f"shardrun: {_summary(batch, job)}; --resume goes on", file=sys.stderr, flush=True)
        raise
    if show == "table":
        say(f"{_summary(batch, job)}; wrote {job.outputs}")
    elif show == "json":
        document = {
            "files": len(listing), "done": pace.done, "before": pace.before, "skipped": batch.skipped,
            "seconds": pace.seconds, "ranks": made.ranks, "restarts": restarts(), "written": str(job.outputs),
        }  # fmt: skip
        print(json.dumps(document, indent=1), flush=True)
    if batch.skipped:
        raise ConfigError(f"{counted(batch.skipped, 'input')} of {len(listing)} skipped, as said above")


def _summary(batch: Batch, job: Job) -> str:
    """One line: what was done."""
    pace = batch.pace
    parts = [f"{pace.done} of {pace.total} files are done"]
    if pace.before:
        parts.append(f"{pace.before} of them before")
    if batch.skipped:
        parts.append(f"{batch.skipped} skipped")
    parts.append(human_seconds(pace.seconds))
    if pace.done > pace.before:
        parts.append(f"{pace.rate:.3g} files/s")
    return ", ".join(parts)
