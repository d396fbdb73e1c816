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
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from launcher.errors import LaunchError
from launcher.job.hosts import is_here
from launcher.job.rank_table import make_rank_table
from launcher.starters import cause
from launcher.starters import environment as environments
from launcher.starters.base import Ended, Handle, Launcher, Pipe, StreamName
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
    ) -> SshHandle:
        """See `Launcher.start`."""
        table = table or make_rank_table([("localhost", world_size)])
        inherited = environments.clean()
        ours = {**environment, **environments.safe_path(inherited), sources.WORLD_SIZE: str(world_size)}
        path = environments.python_path(inherited)
        if path:
            ours["PYTHONPATH"] = path
        hosts = []
        for host, devices in table.hosts.items():
            ranks = [_variables(device, len(devices)) for device in devices]
            asked: Asked = {
                "folder": str(Path.cwd()),
                "environment": ours,
                "ranks": ranks,
                "program": [*environments.boot_command(), *program],
            }
            hosts.append((host, self.reach(host, path), asked))
        return SshHandle(hosts, self.name)


def _variables(device: Device, local_size: int) -> dict[str, str]:
    return {
        sources.RANK: str(device.rank),
        sources.LOCAL_RANK: str(device.local_rank),
        sources.LOCAL_WORLD_SIZE: str(local_size),
        sources.DEVICE_ID: str(device.device_id),
    }


class SshHandle(Handle):
    """The connections, and the ranks behind them."""

    def __init__(self, hosts: Sequence[tuple[str, list[str], Asked]], by: str) -> None:
        """``by``: the name of what makes the connections."""
        super().__init__()
        self._agents: list[_Agent] = []
        self._left = len(hosts)
        self._lock = threading.Lock()
        try:
            for host, command, asked in hosts:
                agent = _Agent(host, command, asked, self._ended.put, self._done, by=by)
                self._agents.append(agent)
                self.pipes += agent.pipes
                agent.begin(asked)
        except (OSError, RuntimeError) as error:
            self.kill()
            for pipe in self.pipes:
                os.close(pipe.descriptor)
            if shortage(error):
                raise cause.shortage(error) from None
            raise LaunchError(f"{by} cannot be started: {error}.") from None

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
        host: str,
        command: Sequence[str],
        asked: Asked,
        ended: Callable[[Ended], None],
        done: Callable[[], None],
        *,
        by: str,
    ) -> None:
        self._host, self._by = host, by
        self._report, self._done = ended, done
        self._ranks = {int(variables[sources.RANK]) for variables in asked["ranks"]}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.pipes: list[Pipe] = []
        self._writers: dict[tuple[int, str], int] = {}
        try:
            self.pipes.append(Pipe(os.dup(self._process.stderr.fileno()), None, "stderr"))
            for rank in sorted(self._ranks):
                for name in STREAMS:
                    reader, self._writers[rank, name] = os.pipe()
                    self.pipes.append(Pipe(reader, rank, name))
        except OSError:  # no descriptors are left
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._close(self._ranks)
            for pipe in self.pipes:
                os.close(pipe.descriptor)
            raise
        finally:
            self._process.stderr.close()

    def begin(self, asked: Asked) -> None:
        """Asks the agent, and listens to it. Raises `RuntimeError` where no thread can be had."""
        name = f"shardrun ssh {self._host}"
        stream = self._process.stdout
        threading.Thread(target=self._read, args=(stream,), name=name, daemon=True).start()
        # In a thread of its own: a host that does not answer keeps nobody from starting the others.
        first = json.dumps(asked).encode() + b"\n"
        threading.Thread(target=self.tell, args=(first,), name=name, daemon=True).start()

    def tell(self, words: bytes) -> None:
        """Sends to the agent, if it is there."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(words)
            self._process.stdin.flush()

    def hang_up(self) -> None:
        """Closes the agent's input, at which it kills its ranks."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()

    def kill(self, deadline: float) -> None:
        """Kills ssh, where hanging up has been of no use until then."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self, stream: BinaryIO) -> None:
        started = False
        problem = ""
        while head := stream.readline(_LONGEST_HEAD):
            try:
                fields = json.loads(head)
                data = stream.read(fields.get("bytes", 0))
                rank = fields.get("rank")
                if "stream" in fields:
                    _write(self._writers[rank, fields["stream"]], data)
                elif rank in self._ranks:
                    self._ranks.discard(rank)
                    self._close({rank})
                    self._report(Ended(rank, fields["code"]))
                started = started or "started" in fields
                problem = problem or str(fields.get("problem", ""))
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # what a login shell prints before
        code = self._process.wait()
        stream.close()
        lost = sorted(self._ranks)
        self._close(self._ranks)
        if lost and not started:
            # The launching program's own failure: nothing of this host's ranks is there.
            self._report(Ended(None, code or 1, problem))
        for rank in lost if started else ():
            how = "ended" if code == 255 else cause.how(code)
            self._report(Ended(rank, None, f"the {self._by} connection to {self._host} {how}"))
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
