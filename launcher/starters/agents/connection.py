"""What a way to an agent is, whichever program makes it."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

from launcher.starters import cause

if TYPE_CHECKING:
    from launcher.starters.agent import Asked


class Connection(ABC):
    """A way to one agent: its input and output, with the parts of `subprocess.Popen` that are needed."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    @abstractmethod
    def wait(self, timeout: float | None = None) -> int:
        """How it ended; raises `subprocess.TimeoutExpired`."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it."""

    @abstractmethod
    def lost(self, code: int) -> str:
        """Why ranks are gone, where it ended with this before it said how they did."""


class Process(Connection):
    """The process that makes it, such as ssh."""

    def __init__(self, by: str, host: str, command: Sequence[str], errors: int) -> None:
        self._by, self._host = by, host
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.stdin, self.stdout = self._process.stdin, self._process.stdout

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()

    def lost(self, code: int) -> str:
        return f"the {self._by} connection to {self._host} {'ended' if code == 255 else cause.how(code)}"


class Host(NamedTuple):
    """An agent to be: ``connect`` opens the way to it, and is given where its own words go. Raises `OSError`
    or `LaunchError`. ``beyond``: the words by which another such host reaches it; none where that is not to
    be tried."""

    name: str
    connect: Callable[[int], Connection]
    asked: Asked
    beyond: Sequence[str] = ()
