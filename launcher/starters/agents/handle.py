"""The agents of a job, and the ranks behind them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence

from launcher.common.lines import StreamName
from launcher.errors import LaunchError
from launcher.starters import cause
from launcher.starters.agents.connection import Connection, Host
from launcher.starters.agents.fan_out import FanOut
from launcher.starters.agents.relay import MOST_DATA
from launcher.starters.agents.tree import Branch
from launcher.starters.base import Ended, Handle, Pipe
from ranks.common import sources
from sharding.common.limits import shortage

_LONGEST_HEAD = 1 << 16
_KILL_SECONDS = 2.0
STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


class AgentsHandle(Handle):
    """The agents, and the ranks behind them. In which order agents are begun, `FanOut` knows."""

    def __init__(self, name: str, hosts: Sequence[Host]) -> None:
        super().__init__()
        self._name = name
        self._agents: list[Agent] = []
        self._left = len(hosts)
        self._lock = threading.Lock()
        try:
            for host in hosts:
                agent = Agent(name, host, self._ended.put, self._started, self._done)
                self._agents.append(agent)
                self.pipes += agent.pipes
            self._fan_out = FanOut(self._agents)
            self._fan_out.begin()
        except BaseException as error:
            self.kill()
            for agent in self._agents:
                agent.forget()
            if not isinstance(error, OSError | RuntimeError):
                raise
            if shortage(error):
                raise cause.shortage(error) from None
            raise LaunchError(f"{name} cannot be started: {error}.") from None

    def _started(self, agent: Agent) -> None:
        self._fan_out.started(agent)

    def _done(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._ended.put(None)

    def terminate(self) -> None:
        for agent in self._agents:
            agent.tell(b"TERM\n")

    def kill(self) -> None:
        for agent in self._agents:
            agent.hang_up()
        deadline = time.monotonic() + _KILL_SECONDS
        for agent in self._agents:
            agent.kill(deadline)

    def cut_off(self, rank: int) -> None:
        """See `Handle.cut_off`: the agent there will not end when it is told to."""
        for agent in self._agents:
            agent.cut_off(rank)

    def close(self) -> None:
        """Ends what is left of the connections."""
        self.kill()


class Agent:
    """One host's agent, and its end of what that host's ranks print.

    ``branch``: by which others may be reached, once it has started its ranks; None where none are to be.
    """

    def __init__(
        self,
        name: str,
        host: Host,
        ended: Callable[[Ended], None],
        started: Callable[[Agent], None],
        done: Callable[[], None],
    ) -> None:
        """``started``: it has, or never will; ``done``: nothing more comes of it."""
        self.host, self._name, self._title = host, name, f"shardrun {name} {host.name}"
        self.branch: Branch | None = None
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

    def begin(self, connect: Callable[[int], Connection] | None = None) -> None:
        """Connects, by default as its host says, asks the agent, and listens to it. Raises `LaunchError`,
        `OSError`, and `RuntimeError` where no thread can be had."""
        direct = connect is None
        with self._lock:
            if self._hung_up:
                raise LaunchError("it was told to end before")
            self._connection = (connect or self.host.connect)(self._writers[-1, "stderr"])
            self._close({-1})
        # In a thread of its own: a host that does not answer keeps nobody from starting the others.
        first = json.dumps(self.host.asked).encode() + b"\n"
        try:
            threading.Thread(target=self.tell, args=(first,), name=self._title, daemon=True).start()
            threading.Thread(
                target=self._read, args=(self._connection, direct), name=self._title, daemon=True
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
        self._started(self)
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

    def cut_off(self, rank: int) -> None:
        """Ends the connection at once, where it is the one to this rank."""
        if rank in self._ranks:
            self.kill(0.0)

    def _read(self, connection: Connection, direct: bool) -> None:
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
                if "from" in fields and self.branch is not None:
                    self.branch.take(fields, data)
                elif "stream" in fields:
                    _write(self._writers[rank, fields["stream"]], data)
                elif rank in self._ranks and type(code := fields["code"]) is int:
                    self._ranks.discard(rank)
                    self._close({rank})
                    self._report(Ended(rank, code))
                if "started" in fields and not started:
                    started = True
                    if direct and self.host.beyond:
                        self.branch = Branch(self._name, self.host.name, self.tell)
                    self._started(self)
                problem = problem or str(fields.get("problem", ""))
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
                continue  # what a login shell prints before
        code = connection.wait()
        connection.stdout.close()
        lost = sorted(self._ranks)
        self._close(self._ranks)
        if not started:
            self._started(self)
        if lost and not started:
            # The launching program's own failure: nothing of this host's ranks is there.
            self._report(Ended(None, code or 1, problem))
        for rank in lost if started else ():
            self._report(Ended(rank, None, connection.lost(code)))
        if self.branch is not None:  # after its own ranks, of which one is the cause
            self.branch.end()
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
