"""What a job prints, while it prints it: from the files of its log, or from a program that shows it."""

from __future__ import annotations

import codecs
import glob
import os
import queue
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

from ranks.common.sources import alone

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 20
_LAST_SECONDS = 10.0
"""How long what a program wrote before it ended may take to be read."""


class Tail(ABC):
    """The lines of a job as they come."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What has come since the last call, without line ends."""

    def rest(self) -> list[str]:
        """What is left when the job has ended: an unfinished line too."""
        return self.lines()

    def close(self) -> None:  # noqa: B027 - files are open for a moment only
        """Ends what was started."""


Show = Callable[[str], "str | None"]
"""Makes of a line what is shown of it; None where that is nothing."""


class FileTail(Tail):
    """One or several files that grow, found by a pattern of `glob`.

    ``shows`` gives what makes of the lines of a file what is shown.
    """

    def __init__(self, pattern: str, shows: Callable[[Path], Show]) -> None:
        self._pattern, self._shows = pattern, shows
        self._files: dict[Path, tuple[_File, Show]] = {}

    @property
    def found(self) -> bool:
        """Whether a file is there."""
        return bool(self._files)

    def lines(self) -> list[str]:
        for name in sorted(glob.glob(self._pattern)):  # noqa: PTH207 - the folder's name is escaped
            if (path := Path(name)) not in self._files:
                self._files[path] = _File(path), self._shows(path)
        return _shown((file.read(), show) for file, show in self._files.values())

    def rest(self) -> list[str]:
        found = self.lines()
        return found + _shown((file.end(), show) for file, show in self._files.values())


def _shown(parts: Iterable[tuple[list[str], Show]]) -> list[str]:
    return [text for lines, show in parts for line in lines if (text := show(line)) is not None]


class _File:
    def __init__(self, path: Path) -> None:
        self._path, self._place, self._rest = path, 0, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> list[str]:
        found: list[str] = []
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._place:  # a requeued job begins its log anew
                    self._place, self._rest = 0, ""
                file.seek(self._place)
                while data := file.read(_CHUNK):
                    self._place += len(data)
                    *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
                    found += whole
                    if len(self._rest) > _LONGEST_LINE:
                        found += self.end()
        except OSError:  # not there yet, or not to be seen for a moment
            return found
        return found

    def end(self) -> list[str]:
        rest, self._rest = self._rest, ""
        return [rest] if rest else []


class ProgramTail(Tail):
    """What a program prints that shows a log; started again where it ended before the job did."""

    def __init__(self, command: Sequence[str], show: Show) -> None:
        self._command, self._show = list(command), show
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._came = False

    def lines(self) -> list[str]:
        if self._process is None:
            self._start()
        elif self._process.poll() is not None and not self._came:
            self._reader.join(_LAST_SECONDS)
            if self._queue.empty():  # else it has shown all that there is
                self._start()
        found = []
        while not self._queue.empty():
            found.append(self._queue.get())
            self._came = True
        return _shown([(found, self._show)])

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, errors="replace", env=alone(), start_new_session=True,
            )  # fmt: skip
        except OSError:
            return
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="shardrun log", daemon=True
        )
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._queue.put(line.rstrip("\n"))

    def rest(self) -> list[str]:
        if self._process is not None:
            self._reader.join(_LAST_SECONDS)
        return self.lines() if self._came or not self._queue.empty() else []

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join(_LAST_SECONDS)
