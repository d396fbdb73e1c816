"""Scripts in processes of their own, watched from outside: what is left when they end, and how soon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.left_behind import holding, in_shared_memory, left_in_shared_memory

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
        self, code: str, folder: Path, arguments: Sequence[str], environment: dict[str, str]
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = folder / f"tmp-{self.mark}"
        self.temporary.mkdir()
        self._memory_before = in_shared_memory()
        path = folder / "script.py"
        path.write_text(textwrap.dedent(code))
        variables = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        self.process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            env={**variables, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=lambda s=stream, k=kept: k.extend(iter(s.readline, "")), daemon=True)
            for stream, kept in ((self.process.stdout, self._lines), (self.process.stderr, self._errors))
        ]
        for reader in self._readers:
            reader.start()

    def message(self) -> Any:
        """The script's first line of JSON."""
        assert wait_until(lambda: self._lines or self.process.poll() is not None, START_LIMIT)
        assert self._lines, f"the script ended with {self.process.returncode}: {''.join(self._errors)}"
        return json.loads(self._lines[0])

    def signal_group(self, number: int) -> None:
        """What a terminal does on Ctrl-C: the signal goes to every process of the foreground group."""
        os.killpg(self.process.pid, number)

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
            for pid in marked(self.mark):
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            for reader in self._readers:
                reader.join(5)
        left_behind = [path.name for path in self.temporary.rglob("*")]
        assert not left_behind, left_behind
        left = left_in_shared_memory(self._memory_before)
        assert wait_until(lambda: not left_in_shared_memory(self._memory_before), 10), left
        return code, "".join(self._lines), "".join(self._errors)


class Runner:
    """Starts scripts in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, code: str, *arguments: str, **environment: str) -> Script:
        """Starts a script with these arguments and additional environment variables."""
        return Script(code, self._folder, arguments, environment)
