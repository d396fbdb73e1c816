"""A real Slurm of two nodes on this machine, made for tests and removed after them: its daemons run from one
folder, on loopback, on ports of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.clusters import SLURM_ON_ONE_MACHINE
from tests.launcher.processes import wait_until

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = (
    SLURM_ON_ONE_MACHINE
    + """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
KillWait=3
MailProg=/bin/true
NodeName=h1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4 RealMemory=4000
NodeName=h2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4 RealMemory=4000
PartitionName=debug Nodes=h1,h2 Default=YES OverSubscribe=YES
"""
)


def missing() -> str:
    """Why a cluster cannot be made here; "" where it can."""
    if os.geteuid() != 0:
        return "Slurm's daemons start tasks as root only"
    absent = [name for name in DAEMONS if _path(name) is None]
    return f"{', '.join(absent)} is not installed" if absent else ""


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


class Cluster:
    """A running cluster. ``environment`` has the variables with which Slurm's programs find it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": os.environ["PATH"]}
        for name in ("munge", "state", "spool-h1", "spool-h2", "tmp-h1", "tmp-h2"):
            (folder / name).mkdir()
        (folder / "munge").chmod(0o711)
        (folder / "key").write_bytes(os.urandom(64))
        (folder / "key").chmod(0o600)
        names = ("control", "first", "second")
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
        ports = {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}
        for one in sockets:
            one.close()
        host = os.uname().nodename.partition(".")[0]
        text = CONFIGURATION.format(folder=folder, host=host, **ports)
        (folder / "slurm.conf").write_text(text)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        munge = self._folder / "munge"
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={munge / name}" for option, name in files.items()]
        self._start("munged", "--foreground", "--force", f"--key-file={self._folder / 'key'}", *options)
        assert wait_until((munge / "socket").exists, 10), self._said()
        self._start("slurmctld", "-D", "-i")
        for node in ("h1", "h2"):
            self._start("slurmd", "-D", "-N", node)
        assert wait_until(lambda: self._idle() == ["idle", "2"], 30), self._said()

    def _idle(self) -> list[str]:
        return self.ask("sinfo", "-h", "-o", "%t %D").split()

    def _start(self, name: str, *options: str) -> None:
        environment = {**os.environ, **self.environment}
        with (self._folder / "said").open("ab") as said:
            self._processes.append(
                subprocess.Popen(
                    [str(_path(name)), *options], env=environment, stdin=subprocess.DEVNULL, stdout=said,
                    stderr=said, start_new_session=True,
                )
            )  # fmt: skip

    def _said(self) -> str:
        return (self._folder / "said").read_text(errors="replace")[-3000:]

    def ask(self, *command: str) -> str:
        """What one of Slurm's programs prints."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def close(self) -> None:
        """Ends all jobs and daemons."""
        if len(self._processes) > 1:
            self.ask("scancel", "--state=RUNNING", "--user=root")
            self.ask("scancel", "--state=PENDING", "--user=root")
            wait_until(lambda: not self.ask("squeue", "-h"), 10)
        for process in reversed(self._processes):
            process.kill()
            process.wait()
