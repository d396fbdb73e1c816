"""The ssh launcher: on each host `launcher.starters.agent`, over the system's ssh, starts that host's ranks.

ssh has the user's keys, known hosts and configuration, and asks nothing. The ranks of this machine get an
agent without ssh. Of very many hosts the first ones reach the others (`launcher.starters.agents.fan_out`).
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import LaunchError
from launcher.job.places.hosts import is_here
from launcher.job.rank_table import make_rank_table
from launcher.starters import environment as environments
from launcher.starters.agents.connection import Host, Process
from launcher.starters.agents.handle import AgentsHandle
from launcher.starters.base import Launcher
from launcher.starters.reach import patience
from ranks.common import sources

if TYPE_CHECKING:
    from launcher.job.rank_table import Device, RankTable
    from launcher.starters.agent import Asked

_AGENT = "launcher.starters.agent"
_QUIET = ("-T", "-o", "BatchMode=yes")


class SshLauncher(Launcher):
    """Starts the ranks of each host over one connection."""

    name = "ssh"
    _limits: Mapping[str, Sequence[str]] = {}
    """When ssh gives up on each host, as far as that was asked for already."""

    def on_host(self, host: str, module: str, environment: Mapping[str, str]) -> tuple[list[str], None]:
        return self.reach(host, environments.python_path(environments.clean()), module), None

    def reach(self, host: str, path: str | None, module: str = _AGENT) -> list[str]:
        """What runs a module of ours on a host, with its input and output; ``path``: that of `python_path`.
        Raises `LaunchError`."""
        if is_here(host):
            return _near(path, module)
        return self._far(host, environments.python_there(path, "-m", module))

    def _far(self, host: str, words: list[str]) -> list[str]:
        """The same of another host, by a login shell of any kind."""
        ssh = shutil.which("ssh")
        if ssh is None:
            raise LaunchError(
                f"There is no ssh on PATH, by which to reach {host}: install OpenSSH's client, or use "
                "--launcher mpirun."
            )
        known = self._limits if host in self._limits else patience.options([host], [ssh, *_QUIET])
        return [ssh, *_QUIET, *known[host], "--", host, shlex.join(["exec", *words])]

    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> AgentsHandle:
        table = table or make_rank_table([("localhost", world_size)])
        inherited = environments.clean()
        ours = {**environment, **environments.safe_path(inherited), sources.WORLD_SIZE: str(world_size)}
        path = environments.python_path(inherited)
        if path:
            ours["PYTHONPATH"] = path
        there = environments.python_there(path, "-m", _AGENT)
        hosts = []
        if ssh := shutil.which("ssh"):
            far = [host for host in table.hosts if not is_here(host)]
            self._limits = patience.options(far, [ssh, *_QUIET])
        for host, devices in table.hosts.items():
            asked: Asked = {
                "folder": str(Path.cwd()),
                "environment": ours,
                "ranks": [variables_of(device, len(devices)) for device in devices],
                "program": [*environments.boot_command(), *program],
            }
            here = is_here(host)
            command = _near(path, _AGENT) if here else self._far(host, there)
            beyond = ["ssh", *command[1:]] if self.over_ssh and not here else []
            hosts.append(Host(host, partial(Process, self.name, host, command), asked, beyond))
        return AgentsHandle(self.name, hosts)


def _near(path: str | None, module: str) -> list[str]:
    """What runs a module of ours on this machine."""
    found = [] if path is None else [f"PYTHONPATH={path}"]
    return ["env", *found, sys.executable, "-m", module]


def variables_of(device: Device, local_size: int) -> dict[str, str]:
    """The variables of one rank."""
    return {
        sources.RANK: str(device.rank),
        sources.LOCAL_RANK: str(device.local_rank),
        sources.LOCAL_WORLD_SIZE: str(local_size),
        sources.DEVICE_ID: str(device.device_id),
    }
