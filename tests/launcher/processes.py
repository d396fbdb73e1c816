"""Scripts in processes of their own, watched from outside: what is left when they end, and how soon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.copies import Copies, Copy
from tests.left_behind import holding, in_shared_memory, left_in_shared_memory
from tests.rank_copies import RANKS

ROOT = Path(__file__).resolve().parents[2]
MARK = "TEST_MARK"
LIMIT = 5.0  # seconds within which everything must have ended
START_LIMIT = 120.0


def marked(mark: str) -> dict[int, str]:
    """The living processes that inherited a mark, and their command lines."""
    return holding(f"{MARK}={mark}")


def wait_until(condition: Callable[[], Any], seconds: float) -> bool:
    """Whether ``condition`` comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


class Script:
    """A running script. Lines of JSON that it prints are its messages."""

    def __init__(
        self,
        code: str,
        folder: Path,
        arguments: Sequence[str],
        environment: dict[str, str],
        copies: Copies | None,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = folder / f"tmp-{self.mark}"
        self.temporary.mkdir()
        self._memory_before = in_shared_memory()
        path = folder / "script.py"
        path.write_text(textwrap.dedent(code))
        variables = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        variables |= environment
        self._output, self._errors = (folder / f"{kind}-{self.mark}" for kind in ("output", "errors"))
        self.process: Copy | subprocess.Popen[bytes]
        if copies is not None:
            for file in (self._output, self._errors):
                file.touch()  # the copy opens them when it has begun
            self.process = copies.start(
                [path, *arguments], variables, output=self._output, errors=self._errors, leave=True
            )
            return
        with self._output.open("w") as output, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(path), *arguments], env=variables, stdin=subprocess.DEVNULL,
                stdout=output, stderr=errors, start_new_session=True,
            )  # fmt: skip

    def lines(self) -> list[str]:
        """What it has printed."""
        return self._output.read_text().splitlines(keepends=True)

    def errors(self) -> str:
        """What it has written to its standard error."""
        return self._errors.read_text()

    def message(self) -> Any:
        """The script's first line of JSON."""
        assert wait_until(lambda: self.lines() or self._ended(0.0), START_LIMIT)
        lines = self.lines()
        assert lines, f"the script ended with {self.process.returncode}: {self.errors()}"
        assert wait_until(lambda: self.lines()[0].endswith("\n"), LIMIT)
        return json.loads(self.lines()[0])

    def _ended(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def signal_group(self, number: int) -> None:
        """What a terminal does on Ctrl-C: the signal goes to every process of the foreground group."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Ends the script and all that it has started."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def end(self, within: float = LIMIT) -> tuple[int, str, str]:
        """Exit code, standard output and standard error.

        Fails unless the script and everything that it started end within so many seconds from now, and leave
        nothing in the temporary folder or in shared memory.
        """
        began = time.monotonic()
        try:
            code = self.process.wait(within)
            left = within - (time.monotonic() - began)
            wait_until(lambda: not marked(self.mark), left)
            assert not marked(self.mark), marked(self.mark)
        finally:
            self.kill()
        left_behind = [path.name for path in self.temporary.rglob("*")]
        assert not left_behind, left_behind
        left = left_in_shared_memory(self._memory_before)
        assert wait_until(lambda: not left_in_shared_memory(self._memory_before), 10), left
        return code, "".join(self.lines()), self.errors()


class Runner:
    """Starts scripts in a folder: as copies of the process that ``copies`` gives, or, where the ranks of the
    test are new processes, as new ones too."""

    def __init__(self, folder: Path, copies: Callable[[], Copies] | None = None) -> None:
        self._folder, self._copies = folder, copies
        self._begun: list[Script] = []

    def __call__(self, code: str, *arguments: str, **environment: str) -> Script:
        """Starts a script with these arguments and additional environment variables."""
        copies = None if self._copies is None or not RANKS.wanted else self._copies()
        self._begun.append(Script(code, self._folder, arguments, environment, copies))
        return self._begun[-1]

    def close(self) -> None:
        """Ends the scripts of a test that failed before it saw their end."""
        for script in self._begun:
            if script.process.returncode is None:
                script.kill()
