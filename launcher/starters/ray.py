"""The ray launcher: each rank belongs to an actor of a Ray cluster, which finds room for it.

An actor runs `launcher.starters.agent` for its rank, so a rank is a process of its own: its output, exit code
and signals are its own, not those of Ray's worker. When the actor ends, so does its rank, since the agent's
input does. Ray is the channel to the agents: nothing listens for them.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from launcher.errors import LaunchError
from launcher.starters import environment as environments
from launcher.starters.agents.connection import Connection, Host
from launcher.starters.agents.handle import AgentsHandle
from launcher.starters.base import Launcher
from launcher.starters.ray_cluster import Cluster, Room, plain
from launcher.starters.ssh import variables_of
from ranks.common import sources

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from launcher.job.rank_table import RankTable
    from launcher.starters.agent import Asked


class RayLauncher(Launcher):
    """Starts each rank in an actor."""

    name = "ray"
    over_ssh = False

    def __init__(self) -> None:
        self._room: Room | None = None

    def place(self, world_size: int, table: RankTable | None) -> RankTable:
        """Where Ray finds room for the ranks; see `Launcher.place`."""
        cluster = Cluster(self.placement.ray_address, world_size * self.cores)
        try:
            self._room = Room(cluster, self.cores, self.gpus, world_size, table)
        except BaseException:
            cluster.close()
            raise
        return table or self._room.table

    def release(self) -> None:
        if self._room is not None:
            self._room.close()

    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> RayHandle:
        assert table is not None and self._room is not None  # `place` made them
        path = environments.python_path({})
        ours = {**environment, **environments.safe_path({}), sources.WORLD_SIZE: str(world_size)}
        ours |= {"PYTHONPATH": path} if path else {}
        command = ["env", *environments.python_there(path, "-m", "launcher.starters.agent")[1:]]
        hosts = []
        for devices in table.hosts.values():
            for device in devices:
                variables = variables_of(device, len(devices))
                if self.gpus:
                    variables[sources.DEVICE_ID] = "0"  # the actor sees its own devices only
                asked: Asked = {
                    "folder": str(Path.cwd()),
                    "environment": ours,
                    "ranks": [variables],
                    "program": [*environments.boot_command(), *program],
                }
                connect = partial(_Remote, self._room, device.rank, command)
                hosts.append(Host(device.host, connect, asked))
        return RayHandle(hosts, self._room)


class RayHandle(AgentsHandle):
    """The actors, in the room that Ray gave them."""

    report_seconds = 8.0  # a node that is gone is found out by several signs

    def __init__(self, hosts: Sequence[Host], room: Room) -> None:
        self._room = room
        super().__init__("ray", hosts)

    def close(self) -> None:
        """Ends the actors, and gives their room back."""
        super().close()
        self._room.close()


class _Remote(Connection):
    """The way to the agent of an actor."""

    def __init__(self, room: Room, rank: int, command: Sequence[str], errors: int) -> None:
        self._ray = room.cluster.ray
        try:
            self._actor = room.actor(rank, command)
        except Exception as problem:  # of many kinds, Ray's own and others
            raise LaunchError(
                f"Ray starts no actor for rank {rank}: {plain(str(problem))[:300].rstrip('.')}."
            ) from None
        self._errors = os.dup(errors)
        self._ended = threading.Event()
        self._code = 1
        self._why = "its Ray actor has ended"
        self.stdin = cast("IO[bytes]", _Input(self._actor))
        self.stdout: IO[bytes] = io.BufferedReader(_Output(self))

    def take(self) -> bytes:
        """The next part of the agent's output; nothing at its end."""
        out = b""
        while not out and not self._ended.is_set():
            try:
                parts = self._ray.get(self._actor.take.remote())
            except Exception as problem:  # the actor, its node or our connection to the cluster is gone
                self._why = why_gone(str(problem))
                self._end(1, f"{self._why[:1].upper()}{self._why[1:]}.\n".encode())
                break
            for name, data in parts:
                if name == "end":
                    self._end(data)
                elif name == "stderr":
                    self._say(data)
                else:
                    out += data
        return out

    def _say(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._errors, data)

    def _end(self, code: int, words: bytes = b"") -> None:
        self._say(words)
        self._code = code
        os.close(self._errors)
        self._ended.set()

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("an agent", timeout or 0)
        return self._code

    def kill(self) -> None:
        with contextlib.suppress(Exception):  # it is gone, or the cluster is
            self._ray.kill(self._actor)

    def lost(self, code: int) -> str:
        return self._why


def why_gone(said: str) -> str:
    """Why an actor is gone, from the words of Ray's error."""
    text = plain(said)
    if "its node has died" in text or "node died" in text.lower():
        return "its Ray node has died"
    if "is unavailable" in text:
        return "its Ray actor, or the Ray node that this was on, is gone"
    if "ray.kill" in text:
        return "its Ray actor was killed by ray.kill"
    _, found, detail = text.partition("Worker exit detail: ")
    if found:
        return f"its Ray actor has died ({detail.partition(' Some common')[0].rstrip('.')})"
    return f"its Ray actor has died ({text[:200].rstrip('.')})"


class _Input(io.RawIOBase):
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def writable(self) -> bool:
        return True

    def write(self, words: Any) -> int:
        try:
            self._actor.tell.remote(bytes(words))
        except Exception as problem:  # Ray has many
            raise OSError(str(problem)) from None
        return len(words)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with contextlib.suppress(Exception):  # it is gone
                self._actor.hang_up.remote()


class _Output(io.RawIOBase):
    def __init__(self, remote: _Remote) -> None:
        self._remote = remote
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._rest:
            self._rest = memoryview(self._remote.take())
        view = memoryview(buffer).cast("B")
        part = self._rest[: len(view)]
        view[: len(part)] = part
        self._rest = self._rest[len(part) :]
        return len(part)
