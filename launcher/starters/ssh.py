"""The ssh launcher: on each host `launcher.starters.agent`, over the system's ssh, starts that host's ranks.

ssh has the user's keys, known hosts and configuration, and asks nothing. The ranks of this machine get an
agent without ssh.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from launcher.common.lines import StreamName
from launcher.errors import LaunchError
from launcher.job.places.hosts import is_here
from launcher.job.rank_table import make_rank_table
from launcher.starters import cause
from launcher.starters import environment as environments
from launcher.starters.agent import MOST_DATA
from launcher.starters.base import Ended, Handle, Launcher, Pipe
from ranks.common import sources
from sharding.common.limits import shortage

if TYPE_CHECKING:
    from launcher.job.rank_table import Device, RankTable
    from launcher.starters.agent import Asked

_AGENT = "launcher.starters.agent"
_QUIET = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
# A host that is gone is noticed in about the time in which the control channel does.
_ALIVE = ("-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2")
_LONGEST_HEAD = 1 << 16
STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
_KILL_SECONDS = 2.0
WIDTH = 64
"""Hosts to which connections are being made at once: each takes a process, a key exchange and a login."""


class SshLauncher(Launcher):
    """Starts the ranks of each host over one connection."""

    name = "ssh"

    def on_host(self, host: str, module: str, environment: Mapping[str, str]) -> tuple[list[str], None]:
        """See `Launcher.on_host`."""
        return self.reach(host, environments.python_path(environments.clean()), module), None

    def reach(self, host: str, path: str | None, module: str = _AGENT) -> list[str]:
        """What runs a module of ours on a host, with its input and output; ``path``: that of `python_path`.
        Raises `LaunchError`."""
        if is_here(host):
            found = [] if path is None else [f"PYTHONPATH={path}"]
            return ["env", *found, sys.executable, "-m", module]
        return self._far(host, environments.python_there(path, "-m", module))

    def _far(self, host: str, words: list[str]) -> list[str]:
        """The same of another host, by a login shell of any kind."""
        ssh = shutil.which("ssh")
        if ssh is None:
            raise LaunchError(
                f"There is no ssh on PATH, by which to reach {host}: install OpenSSH's client, or use "
                "--launcher mpirun."
            )
        return [ssh, *_QUIET, *_ALIVE, "--", host, shlex.join(["exec", *words])]

    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> AgentsHandle:
        """See `Launcher.start`."""
        table = table or make_rank_table([("localhost", world_size)])
        inherited = environments.clean()
        ours = {**environment, **environments.safe_path(inherited), sources.WORLD_SIZE: str(world_size)}
        path = environments.python_path(inherited)
        if path:
            ours["PYTHONPATH"] = path
        hosts = []
        for host, devices in table.hosts.items():
            asked: Asked = {
                "folder": str(Path.cwd()),
                "environment": ours,
                "ranks": [variables_of(device, len(devices)) for device in devices],
                "program": [*environments.boot_command(), *program],
            }
            connect = partial(_Process, self.name, host, self.reach(host, path))
            hosts.append(Host(host, connect, asked))
        return AgentsHandle(self.name, hosts)


def variables_of(device: Device, local_size: int) -> dict[str, str]:
    """The variables of one rank."""
    return {
        sources.RANK: str(device.rank),
        sources.LOCAL_RANK: str(device.local_rank),
        sources.LOCAL_WORLD_SIZE: str(local_size),
        sources.DEVICE_ID: str(device.device_id),
    }


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


class _Process(Connection):
    """The process that makes it."""

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
    or `LaunchError`."""

    name: str
    connect: Callable[[int], Connection]
    asked: Asked


class AgentsHandle(Handle):
    """The agents, and the ranks behind them.

    At most `WIDTH` connections are being made at once: the first at once, each other one when an agent has
    started, or its connection has ended.
    """

    def __init__(self, name: str, hosts: Sequence[Host]) -> None:
        super().__init__()
        self._name = name
        self._agents: list[_Agent] = []
        self._left = len(hosts)
        self._lock = threading.Lock()
        self._free = threading.Semaphore(WIDTH)
        try:
            for host in hosts:
                agent = _Agent(name, host, self._ended.put, self._free.release, self._done)
                self._agents.append(agent)
                self.pipes += agent.pipes
            for agent in self._agents[:WIDTH]:
                self._free.acquire()
                agent.begin()
            if self._agents[WIDTH:]:
                threading.Thread(target=self._begin_more, name=f"shardrun {name}", daemon=True).start()
        except BaseException as error:
            self.kill()
            for agent in self._agents:
                agent.forget()
            if not isinstance(error, OSError | RuntimeError):
                raise
            if shortage(error):
                raise cause.shortage(error) from None
            raise LaunchError(f"{name} cannot be started: {error}.") from None

    def _begin_more(self) -> None:
        for agent in self._agents[WIDTH:]:
            self._free.acquire()
            try:
                agent.begin()
            except (OSError, RuntimeError, LaunchError) as error:
                agent.fail(str(error))

    def _done(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._ended.put(None)

    def terminate(self) -> None:
        """See `Handle.terminate`."""
        for agent in self._agents:
            agent.tell(b"TERM\n")

    def kill(self) -> None:
        """See `Handle.kill`."""
        for agent in self._agents:
            agent.hang_up()
        deadline = time.monotonic() + _KILL_SECONDS
        for agent in self._agents:
            agent.kill(deadline)

    def close(self) -> None:
        """Ends what is left of the connections."""
        self.kill()


class _Agent:
    """One host's agent, and its end of what that host's ranks print."""

    def __init__(
        self,
        name: str,
        host: Host,
        ended: Callable[[Ended], None],
        started: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        """``started``: it has, or never will; ``done``: nothing more comes of it."""
        self._host, self._title = host, f"shardrun {name} {host.name}"
        self._report, self._started, self._done = ended, started, done
        self._ranks = {int(variables[sources.RANK]) for variables in host.asked["ranks"]}
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._hung_up = False
        self.pipes: list[Pipe] = []
        self._writers: dict[tuple[int, str], int] = {}
        try:
            self._add(None, "stderr", (-1, "stderr"))
            for rank in sorted(self._ranks):
                for stream in STREAMS:
                    self._add(rank, stream, (rank, stream))
        except OSError:  # no descriptors are left
            self.forget()
            raise

    def _add(self, rank: int | None, name: StreamName, key: tuple[int, str]) -> None:
        reader, self._writers[key] = os.pipe()
        self.pipes.append(Pipe(reader, rank, name))

    def forget(self) -> None:
        """Closes the pipes, where nobody is to read them."""
        if self._connection is None:
            self._close({-1, *self._ranks})
        for pipe in self.pipes:
            os.close(pipe.descriptor)

    def begin(self) -> None:
        """Connects, asks the agent, and listens to it. Raises `LaunchError`, `OSError`, and `RuntimeError`
        where no thread can be had."""
        with self._lock:
            if self._hung_up:
                raise LaunchError("it was told to end before")
            self._connection = self._host.connect(self._writers[-1, "stderr"])
            self._close({-1})
        # In a thread of its own: a host that does not answer keeps nobody from starting the others.
        first = json.dumps(self._host.asked).encode() + b"\n"
        try:
            threading.Thread(target=self.tell, args=(first,), name=self._title, daemon=True).start()
            threading.Thread(
                target=self._read, args=(self._connection,), name=self._title, daemon=True
            ).start()
        except RuntimeError:  # nobody listens to it
            lost, self._connection = self._connection, None
            lost.kill()
            lost.wait()
            for stream in (lost.stdin, lost.stdout):
                with contextlib.suppress(OSError):
                    stream.close()
            raise

    def fail(self, problem: str) -> None:
        """It could not be begun, or was told to end before."""
        self._close({-1, *self._ranks})
        if not self._hung_up:
            self._report(Ended(None, 1, problem))
        self._started()
        self._done()

    def tell(self, words: bytes) -> None:
        """Sends to the agent, if it is there."""
        if self._connection is not None:
            with contextlib.suppress(OSError, ValueError):
                self._connection.stdin.write(words)
                self._connection.stdin.flush()

    def hang_up(self) -> None:
        """Closes the agent's input, at which it kills its ranks; it is not begun any more."""
        with self._lock:
            self._hung_up = True
        if self._connection is not None:
            with contextlib.suppress(OSError, ValueError):
                self._connection.stdin.close()

    def kill(self, deadline: float) -> None:
        """Kills the connection, where hanging up has been of no use until then."""
        if self._connection is not None:
            try:
                self._connection.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._connection.kill()

    def _read(self, connection: Connection) -> None:
        started = False
        problem = ""
        while head := connection.stdout.readline(_LONGEST_HEAD):
            try:
                fields = json.loads(head)
                size = fields.get("bytes", 0)
                if not 0 <= size <= MOST_DATA:
                    continue
                data = connection.stdout.read(size)
                rank = fields.get("rank")
                if "stream" in fields:
                    _write(self._writers[rank, fields["stream"]], data)
                elif rank in self._ranks:
                    self._ranks.discard(rank)
                    self._close({rank})
                    self._report(Ended(rank, fields["code"]))
                if "started" in fields and not started:
                    started = True
                    self._started()
                problem = problem or str(fields.get("problem", ""))
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
                continue  # what a login shell prints before
        code = connection.wait()
        connection.stdout.close()
        lost = sorted(self._ranks)
        self._close(self._ranks)
        if not started:
            self._started()
        if lost and not started:
            # The launching program's own failure: nothing of this host's ranks is there.
            self._report(Ended(None, code or 1, problem))
        for rank in lost if started else ():
            self._report(Ended(rank, None, connection.lost(code)))
        self._done()

    def _close(self, ranks: Collection[int]) -> None:
        for key in [key for key in self._writers if key[0] in ranks]:
            os.close(self._writers.pop(key))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError:
            return
