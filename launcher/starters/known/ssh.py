"""The system's ssh: one connection a host, and no MPI."""

from __future__ import annotations

from launcher.starters.base import Launcher, Starter


def _make() -> Launcher:
    from launcher.starters.ssh import SshLauncher

    return SshLauncher()


STARTER = Starter(_make, order=4, meaning="the system's ssh to each host, without MPI")
