"""The folder of a job's logs: a file for each rank, what the job is, and its plan."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from launcher.common.lines import Shown
from launcher.common.logs import without_secrets, words_without_secrets

if TYPE_CHECKING:
    from launcher.common.lines import StreamName
    from launcher.common.logs import Logs
    from launcher.group.watch import Job
    from launcher.job.rank_table import RankTable

log = logging.getLogger(__name__)

ROTATED_BYTES = 64 << 20
"""A rank's file is renamed when it has so many bytes; with the one before it is all that is kept."""


@dataclass(eq=False, repr=False)
class _File:
    stream: BinaryIO
    begun: StreamName | None = None
    """The stream whose line has no end yet."""


class LogFiles:
    """The files of a log folder, each opened when its first line comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[int | None, _File] = {}
        self._warned = False

    def write(self, rank: int | None, name: StreamName, text: str) -> OSError | None:
        """Writes a line, or a part of one, of a rank or of the program that started them; gives the error
        that prevented it."""
        data = text.encode("utf-8", "surrogateescape")
        try:
            file = self._file(rank, len(data))
            if file.begun not in {None, name}:
                data = b"\n" + data
            file.begun = None if data.endswith(b"\n") else name
            file.stream.write(data)
            file.stream.flush()
        except OSError as error:
            return self._of(rank, error)
        return None

    def _of(self, rank: int | None, error: OSError) -> OSError:
        """The same error with the file's name: what fails once it is open has none. Warns of the first: a job
        that serves may go on for long, and one whose ranks end well says nothing of it later."""
        if not self._warned:
            self._warned = True
            log.warning(
                "%s cannot be written (%s): the job's logs are not whole", self._path(rank), error.strerror
            )
        return OSError(error.errno, error.strerror, str(self._path(rank)))

    def _file(self, rank: int | None, more: int) -> _File:
        """The file for so many bytes more. Raises `OSError`."""
        file, path = self._open.get(rank), self._path(rank)
        if file is not None and (size := file.stream.tell()) > 0 and size + more > ROTATED_BYTES:
            # Forgotten first: where it cannot be renamed, the next line opens it again.
            del self._open[rank]
            file.stream.close()
            path.replace(path.with_name(f"{path.name}.1"))
            file = None
        if file is None:
            file = self._open[rank] = _File(path.open("ab"))
        return file

    def describe(
        self, job: Job, program: Sequence[str], environment: Mapping[str, str], table: RankTable | None
    ) -> None:
        """Writes ``job.json``, what the job is, and ``plan.json``, the manifest of the slices that it serves.
        Raises `OSError`, also where another job has begun to write there."""
        here = os.uname().nodename
        told = {
            "job": job.name,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": words_without_secrets(sys.argv),
            "launcher": job.launcher_name,
            "hosts": [device.host for device in table.devices] if table else [here] * job.world_size,
            "program": words_without_secrets(program),
            "python": sys.version.split()[0],
            "versions": versions(),
            "environment": without_secrets({**os.environ, **environment}),
        }
        # Whoever may not look at a process's environment may not read it here.
        place = os.open(self._folder / "job.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(place, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor
            stream.write(json.dumps(told, indent=1) + "\n")
        for rank in range(job.world_size):
            self._path(rank).touch(exist_ok=False)
        if program[0] == "serve" and (manifest := Path(program[1], "manifest.json")).is_file():
            (self._folder / "plan.json").write_bytes(manifest.read_bytes())

    def _path(self, rank: int | None) -> Path:
        return self._folder / ("launcher.log" if rank is None else f"rank_{rank}.log")

    def close(self) -> OSError | None:
        """Closes the files; gives the error that prevented the end of one. That one was removed is no error,
        for what removes it may have kept it, but is told."""
        lost = None
        for rank, file in self._open.items():
            try:
                if not os.fstat(file.stream.fileno()).st_nlink:
                    log.warning("%s was removed while the job wrote to it", self._path(rank))
                if file.begun is not None:
                    file.stream.write(b"\n")
                file.stream.close()
            except OSError as error:
                lost = self._of(rank, error)
        self._open.clear()
        return lost


def opened(
    logs: Logs | None,
    job: Job,
    program: Sequence[str],
    environment: Mapping[str, str],
    table: RankTable | None,
) -> tuple[Shown, LogFiles | None]:
    """How lines of a job's ranks are shown, and the files into which they go. Raises `ConfigError` where
    those cannot be written, and changes none of another job."""
    if logs is None:
        return Shown(job.world_size, job.host), None
    shown = Shown(job.world_size, job.host, logs.tee, as_json=logs.log_json)
    if logs.log_dir is None:
        return shown, None
    files = LogFiles(logs.log_dir)
    try:
        files.describe(job, program, environment, table)
    except OSError as problem:
        raise logs.unwritable(problem) from None
    return shown, files


def versions() -> dict[str, str]:
    """Those of this project and of what it computes and talks with, as far as they are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("shardrun", "onnxruntime", "onnxruntime-gpu", "onnx", "numpy", "torch", "mpi4py"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
