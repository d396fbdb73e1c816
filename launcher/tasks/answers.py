"""The file that ``shardrun generate --output`` writes: a line of JSON for each prompt, in their order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from launcher.common.files import check_folder
from launcher.errors import ConfigError
from sharding.common.storage import why_unwritable


def check_answers(path: Path, *, resume: bool) -> None:
    """Raises `ConfigError` where answers cannot be written there, and where there is a file already, unless
    to ``resume``."""
    check_folder("--output", path)
    if os.path.lexists(path) and not resume:
        raise _there(path)


def _there(path: Path) -> ConfigError:
    return ConfigError(
        f"--output {path}: this file is there already: --resume goes on where it ends, or choose another name"
    )


class AnswerFile:
    """Answers, each there whole as soon as it is known. ``before``: how many an earlier run has written."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Opens the file. Raises `ConfigError` where it cannot be written, and where it is there already,
        unless it holds answers and they are to ``resume``."""
        self.path = path
        check_folder("--output", path)
        self.before, self._end = 0, 0
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if resume else os.O_EXCL)
        try:
            self._file: BinaryIO = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
        except FileExistsError:
            raise _there(path) from None
        except OSError as problem:
            raise ConfigError(f"--output {path}: cannot be written: {why_unwritable(problem)}") from None
        self._made = not os.fstat(self._file.fileno()).st_size
        try:
            for _ in self._lines():
                self.before += 1
        except BaseException:
            self._file.close()
            raise

    def _lines(self) -> Iterator[Mapping[str, object]]:
        """The answers that are there. What follows the last whole line is the beginning of one."""
        self._end = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    data = json.loads(line)
                except (ValueError, RecursionError):
                    data = None
                if (
                    not isinstance(data, dict)
                    or "prompt" not in data
                    or not data.keys() & {"completions", "error"}
                ):
                    raise ConfigError(f"--output {self.path}: line {number} is no answer of this command")
                self._end += len(line)
                yield data

    def check(self, shown: Iterator[object]) -> None:
        """Raises `ConfigError` unless the answers that are there are to these prompts, ``before`` of which it
        takes."""
        for number, data in enumerate(self._lines(), 1):
            if data["prompt"] != next(shown, None):
                raise ConfigError(
                    f"--output {self.path}: line {number} answers another prompt: --resume needs the prompts "
                    "of the run that it goes on with"
                )

    def begin(self) -> None:
        """The next answer comes behind the last whole one."""
        self._file.truncate(self._end)
        self._file.seek(self._end)

    def write(self, document: Mapping[str, object]) -> None:
        """Adds an answer. Raises `ConfigError`; the file then ends with the one before."""
        line = memoryview(json.dumps(document).encode() + b"\n")
        size = len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as problem:
            self._file.truncate(self._end)
            raise ConfigError(
                f"--output {self.path}: cannot write an answer: {why_unwritable(problem)}"
            ) from None
        self._end += size

    def close(self) -> None:
        """Closes the file; one without an answer goes."""
        if not self._file.closed:
            self._file.close()
            if not self._end and self._made:
                self.path.unlink(missing_ok=True)

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
