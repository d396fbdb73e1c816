"""Ranks that one program starts and watches: mpirun, srun."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from launcher.starters.base import Ended, Handle, Pipe
from launcher.starters.reach.ways import is_way, marked
from ranks.common import processes
from ranks.common.settings import JOB


@contextlib.contextmanager
def listing(text: str) -> Iterator[tuple[int, str]]:
    """A file without a name, for a program that reads what it is told from one: the descriptor, which the
    program is to get, and the path by which the program finds it."""
    descriptor = os.memfd_create("hosts", 0)
    try:
        os.write(descriptor, text.encode())
        yield descriptor, f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class ProgramHandle(Handle):
    """A running program, whose output is that of all ranks."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, kept: Sequence[int] = ()
    ) -> None:
        """``kept``: descriptors that the program gets too. Raises `OSError` where it cannot be started."""
        super().__init__()
        self._job = f"{JOB.name}={JOB.text(environment)}"
        self._groups: set[int] = set()
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

    def settle(self, ranks: Collection[int]) -> None:
        """See `Handle.settle`. By the ranks' process groups, which may be in sessions of their own, what they
        leave is found."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                self._groups.add(os.getpgid(rank))

    def end_children(self, ranks: Collection[int]) -> None:
        """See `Handle.end_children`; the program would wait for them as long as they hold a rank's output
        open."""
        self._groups.update(ranks)  # of one that had ended before all were there: most lead a group
        end_left(None, self._job, self._groups)

    def close(self) -> None:
        """Ends what ranks of this host have left running, where all ranks are on it."""
        if self._groups:
            end_left(None, self._job, self._groups)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """See `Handle.kill`; ranks that the program leaves behind notice the closed control socket."""
        self._process.kill()


def end_left(session: int | None, mark: str, groups: Collection[int] | None = None) -> None:
    """Ends what is left of a session (None: of any) on this host: children of ranks, which the program does
    not end.

    ``mark``: as in `marked`; what has none got the same number.
    ``groups``: of these process groups only.
    """

    def ours(pid: int, name: bytes, fields: Sequence[bytes]) -> bool:
        if groups is not None and int(fields[2]) not in groups:
            return False
        if (
            session is not None
            and int(fields[3]) != session
            and (groups is not None or not is_way(pid, name))
        ):
            # MPICH's ssh has a session of its own, and would try for long to reach a host that is gone.
            return False
        return marked(pid, mark)

    processes.ask_to_end(lambda: processes.running(ours))
