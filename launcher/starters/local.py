"""The local launcher: ranks on this host as multiprocessing children (start method spawn)."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util  # its own exit handler must be registered before ours, so that ours runs first
import os
import signal
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, cast

from launcher.errors import LaunchError
from launcher.job.places.hosts import remote_hosts
from launcher.starters import cause
from launcher.starters import environment as environments
from launcher.starters.base import Ended, Handle, Launcher, Pipe
from ranks import boot
from ranks.common import forks, sources
from ranks.common.processes import KILL_SECONDS, LOOK_SECONDS, Groups
from sharding.common.limits import shortage

if TYPE_CHECKING:
    from launcher.job.rank_table import RankTable

_main_lock = threading.Lock()


class LocalLauncher(Launcher):
    """Starts every rank as a spawned child of this process."""

    name = "local"

    def check(self, table: RankTable | None) -> None:
        """Raises `LaunchError` for a table with another host than this one."""
        hosts = remote_hosts(table)
        if hosts:
            raise LaunchError(
                "The local launcher starts ranks on this host only, but the rank table has "
                f"{', '.join(hosts)}: use --launcher mpirun."
            )

    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> LocalHandle:
        shared = {**environments.clean(), **environment, sources.WORLD_SIZE: str(world_size)}
        shared[sources.LOCAL_WORLD_SIZE] = str(world_size)
        path = environments.python_path(shared)
        if path:
            shared["PYTHONPATH"] = path
        ranks = [
            {**shared, sources.RANK: str(rank), sources.LOCAL_RANK: str(rank)} for rank in range(world_size)
        ]
        if table is not None:
            for rank, variables in enumerate(ranks):
                variables[sources.DEVICE_ID] = str(table.devices[rank].device_id)
        return LocalHandle(program, ranks)


class LocalHandle(Handle):
    """The spawned children."""

    def __init__(self, program: Sequence[str], environments_: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self._processes: list[SpawnProcess] = []
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._owner = os.getpid()
        arguments = (list(program), environments_)
        # The kernel kills a child with PR_SET_PDEATHSIG when the thread that made it ends, not the process:
        # so one thread makes them and lives as long as they do.
        self._keeper = threading.Thread(target=self._keep, args=arguments, name="shardrun ranks", daemon=True)
        self._keeper.start()
        try:
            self._started.wait()
        except BaseException:  # Ctrl-C between two ranks
            self.kill()
            raise
        if isinstance(self._error, AssertionError) and multiprocessing.current_process().daemon:
            raise LaunchError(
                "A daemonic process of multiprocessing (a worker of its Pool is one) may have no children, "
                "so the local launcher cannot start ranks in it: use the launcher mpirun, or another process."
            )
        if self._error is not None:
            self.kill()
            if isinstance(self._error, Exception) and shortage(self._error):
                raise cause.shortage(self._error) from None
            raise LaunchError(f"The ranks could not be started: {self._error}.") from self._error
        RUNNING.include(self)

    def _keep(self, program: list[str], ranks: Sequence[Mapping[str, str]]) -> None:
        # Children inherit the mask, so a Ctrl-C while they start does not end them with a traceback; see
        # ranks.boot.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for rank, variables in enumerate(ranks):
                self._spawn(rank, program, variables)
        except (OSError, ValueError, AssertionError, RuntimeError) as error:
            self._error = error
        finally:
            self._started.set()
        processes = list(self._processes)
        running = {_end_of(process): rank for rank, process in enumerate(processes)}
        left = Groups()
        while running or left:
            for end in wait(list(running), LOOK_SECONDS if left else None):
                rank = running.pop(cast(int, end))
                process = processes[rank]
                if end != process.sentinel:
                    os.close(cast(int, end))
                left.end(cast(int, process.pid), process.join)
                self._ended.put(Ended(rank, process.exitcode))
            left.look(alone=not running)
        self._ended.put(None)

    def _spawn(self, rank: int, program: list[str], variables: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        readers, writers = zip(*(context.Pipe(duplex=False) for _ in range(2)), strict=True)
        try:
            process = context.Process(
                target=boot.spawned,
                name=f"rank {rank}",
                args=(program, dict(variables), os.getpid(), *writers),
            )
            with _without_main():
                process.start()
        finally:
            for writer in writers:
                writer.close()
        self._processes.append(process)
        self.pipes.append(Pipe(os.dup(readers[0].fileno()), rank, "stdout"))
        self.pipes.append(Pipe(os.dup(readers[1].fileno()), rank, "stderr"))
        for reader in readers:
            reader.close()

    def forget(self) -> None:
        """In a forked child: its exit must not end the parent's ranks."""
        self._owner = -1
        for process in self._processes:
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]  # its exit handler joins them

    def terminate(self) -> None:
        for process in self._own():
            process.terminate()

    def kill(self) -> None:
        for process in self._own():
            process.kill()

    def join(self) -> None:
        """Waits until ranks that were killed have ended, with all that they have left running."""
        if self._owner == os.getpid():
            self._keeper.join(KILL_SECONDS)

    def close(self) -> None:
        """Closes the pipes by which multiprocessing notices the children's ends, which it would leave to the
        collector of cycles."""
        own, self._processes = self._own(), []
        for process in own:
            with contextlib.suppress(ValueError):  # it still runs
                process.close()

    def _own(self) -> list[SpawnProcess]:
        return self._processes if self._owner == os.getpid() else []


def _end_of(process: SpawnProcess) -> int:
    """A descriptor that becomes readable when the process ends.

    Its own sentinel does so only when every child that it forked has ended too.
    """
    try:
        return os.pidfd_open(cast(int, process.pid))
    except (OSError, AttributeError):  # Linux before 5.3
        return process.sentinel


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hides the user's main module while a child is started.

    multiprocessing would run the user's script once more in every child, to find functions of it there.
    Ranks need nothing of it, and a script without ``if __name__ == "__main__"`` would start ranks of its
    own.
    """
    with _main_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


class Running:
    """The local ranks that end with this process. One per process."""

    def __init__(self) -> None:
        self._handles: weakref.WeakSet[LocalHandle] = weakref.WeakSet()
        # multiprocessing's exit handler would wait for children that wait for us.
        atexit.register(self._end)

    def include(self, handle: LocalHandle) -> None:
        """A forked child ends none of them."""
        self._handles.add(handle)
        forks.in_child(handle, LocalHandle.forget)

    def _end(self) -> None:
        handles = list(self._handles)
        for handle in handles:
            handle.kill()
        for handle in handles:
            handle.join()


RUNNING = Running()
