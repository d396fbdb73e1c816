"""Ranks that one program starts and watches: mpirun, srun."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence

from launcher.starters.base import Ended, Handle, Pipe


class ProgramHandle(Handle):
    """A running program, whose output is that of all ranks."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, kept: Sequence[int] = ()
    ) -> None:
        """``kept``: descriptors that the program gets too. Raises `OSError` where it cannot be started."""
        super().__init__()
        # A session of its own: a Ctrl-C in the terminal reaches the launcher, which ends the program in its
        # own order.
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=kept,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.pipes = [
            Pipe(os.dup(self._process.stdout.fileno()), None, "stdout"),
            Pipe(os.dup(self._process.stderr.fileno()), None, "stderr"),
        ]
        self._process.stdout.close()
        self._process.stderr.close()
        threading.Thread(target=self._wait, name=f"shardrun {name}", daemon=True).start()

    def _wait(self) -> None:
        code = self._process.wait()
        for ended in self._said_by(code):
            self._ended.put(ended)
        self._ended.put(Ended(None, code))
        self._ended.put(None)

    def _said_by(self, code: int) -> Iterable[Ended]:
        """What the program's own exit code says of ranks."""
        return ()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """See `Handle.kill`; ranks that the program leaves behind notice the closed control socket."""
        self._process.kill()
