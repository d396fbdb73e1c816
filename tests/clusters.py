"""Two hosts of a cluster on one machine, and Slurm on them: what tests of several hosts run on.

A host is a network of its own with a host name, processes and /dev/shm of its own, and an ssh server: Linux's
namespaces. Files are common to both, as on most clusters; the folder for temporary files is not. This takes
root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = ("sh1", "sh2")
ADDRESSES = {"sh1": "10.78.0.1", "sh2": "10.78.0.2"}
_NETWORK = 24
_SERVERS = ("ip", "setpriv", "unshare", "nsenter", "sshd", "ssh-keygen", "ssh")
_SLURM = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc")
_CONTROLLER_PORT, _NODE_PORT = 18001, 18002
_SECONDS = 30

_SSH_CONFIG = """\
Host *
 User root
 IdentityFile {folder}/id
 IdentitiesOnly yes
 UserKnownHostsFile {folder}/known_hosts
 StrictHostKeyChecking yes
 LogLevel ERROR
"""
_HOST = """\
hostname {name}
mount --bind {ssh}/hosts /etc/hosts
mount -t tmpfs -o size=2g tmpfs /dev/shm
mount --rbind /sys/fs/cgroup {cgroups}
mount -t sysfs sysfs /sys
mount --rbind {cgroups} /sys/fs/cgroup
exec {sshd} -D -e -f /dev/null -p 22 -h {ssh}/hostkey -o ListenAddress={address} \
 -o AuthorizedKeysFile={ssh}/authorized_keys -o StrictModes=no -o UsePAM=no \
 -o PermitRootLogin=prohibit-password \
 -o PasswordAuthentication=no -o PidFile=none -o MaxStartups=100 \
 -o "SetEnv=TMPDIR={temporary} PATH={path}"
"""
SLURM_ON_ONE_MACHINE = """\
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge/socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
"""
"""What every slurm.conf of a cluster on one machine says; ``folder`` holds all that it writes."""
_SLURM_CONF = (
    SLURM_ON_ONE_MACHINE
    + """\
ClusterName=shardrun
AuthType=auth/munge
CredType=cred/munge
KillWait=5
SlurmdTimeout=10
SlurmctldPort={controller}
SlurmctldHost=sh1(10.78.0.1)
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SrunPortRange=18100-18400
NodeName=sh1 NodeAddr=10.78.0.1 Port={node} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=sh2 NodeAddr=10.78.0.2 Port={node} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=sh1,sh2 Default=YES OverSubscribe=YES MaxTime=INFINITE State=UP
"""
)


def missing(slurm: bool = False) -> str:
    """Why no such hosts can be made here; "" where they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "making hosts of namespaces needs root on Linux"
    needed = _SERVERS + (_SLURM if slurm else ())
    lacking = [name for name in needed if shutil.which(name, path=_path()) is None]
    if lacking:
        return f"this machine lacks {', '.join(lacking)}"
    probe = subprocess.run(
        ["unshare", "-n", "-u", "-i", "-m", "-p", "-f", "--mount-proc", "true"],
        capture_output=True,
        check=False,
    )
    return (
        "" if probe.returncode == 0 else f"namespaces are not allowed here ({probe.stderr.decode().strip()})"
    )


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class Hosts:
    """The two hosts; `close` ends whatever runs on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Others may make such hosts at the same time.
        self._networks = {name: f"{name}-{os.getpid()}" for name in (*NAMES, "switch")}
        self._switch = self.switch = self._networks["switch"]
        """The network to which the cables of both lead."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._services: list[subprocess.Popen[bytes]] = []
        self.bin = folder / "bin"
        """A folder for PATH: ``ssh`` with the keys of these hosts, as a user's own configuration would be."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        ssh = self.folder / "ssh"
        for name in ("ssh", "cgroups", "bin"):
            (self.folder / name).mkdir(parents=True)
        for key in ("id", "hostkey"):
            _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ssh / key])
        shutil.copy(ssh / "id.pub", ssh / "authorized_keys")
        key = " ".join((ssh / "hostkey.pub").read_text().split()[:2])
        known = [f"{name},{address} {key}\n" for name, address in ADDRESSES.items()]
        (ssh / "known_hosts").write_text("".join(known))
        hosts = ["127.0.0.1 localhost\n", *(f"{address} {name}\n" for name, address in ADDRESSES.items())]
        (ssh / "hosts").write_text("".join(hosts))
        (ssh / "config").write_text(_SSH_CONFIG.format(folder=ssh))
        program = self.bin / "ssh"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {ssh}/config "$@"\n')
        program.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)
        _run(["ip", "netns", "add", self._switch])
        _run(["ip", "-n", self._switch, "link", "add", "br0", "type", "bridge"])
        _run(["ip", "-n", self._switch, "link", "set", "br0", "up"])
        for name, address in ADDRESSES.items():
            self._add(name, address, ssh)

    def _add(self, name: str, address: str, ssh: Path) -> None:
        network = self._networks[name]
        ends = f"eth0 netns {network} type veth peer name p-{name} netns {self._switch}"
        for words in (
            *(f"netns add {network}", f"link add {ends}"),
            *(f"-n {self._switch} link set p-{name} {state}" for state in ("master br0", "up")),
            f"-n {network} addr add {address}/{_NETWORK} dev eth0",
            *(f"-n {network} link set {link} up" for link in ("eth0", "lo")),
        ):
            _run(["ip", *words.split()])
        (self.folder / f"tmp-{name}").mkdir()
        self._boot(name, address, ssh)

    def _boot(self, name: str, address: str, ssh: Path) -> None:
        network = self._networks[name]
        server = shutil.which("sshd", path=_path())
        # Hosts of one name, of tests that run side by side, must not meet in a common folder: Open MPI's
        # daemons would take each other's files away.
        script = _HOST.format(
            name=name, ssh=ssh, cgroups=self.folder / "cgroups", address=address, sshd=server,
            temporary=self.folder / f"tmp-{name}", path=f"{self.bin}{os.pathsep}{_path()}",
        )  # fmt: skip
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{network}"),
                    *("unshare", "-u", "-i", "-m", "-p", "-f", "--mount-proc", "--kill-child"),
                    *("bash", "-ec", script),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "PATH": _path()},
                start_new_session=True,
            )  # fmt: skip
        _until(lambda: _answers(self, name), f"host {name} does not answer: see {self.folder}/{name}.log")

    def command(self, host: str, command: Sequence[object], **environ: str) -> list[str]:
        """The words that run a command on a host, from this machine."""
        variables = {"TMPDIR": str(self.folder / f"tmp-{host}"), **environ}
        inside = ("-n", "-u", "-i", "-m", "-p", f"--wdns={Path.cwd()}")
        return [
            *("nsenter", "-t", str(self.process(host)), *inside),
            *("env", f"PATH={self.bin}{os.pathsep}{_path()}", *(f"{k}={v}" for k, v in variables.items())),
            *map(str, command),
        ]

    def process(self, host: str) -> int:
        """The first process of a host, by its number on this machine."""
        children = Path(f"/proc/{self._processes[host].pid}/task/{self._processes[host].pid}/children")
        return int(children.read_text().split()[0])

    def processes(self, host: str) -> list[int]:
        """All processes of a host, by their numbers on this machine."""
        place = Path(f"/proc/{self.process(host)}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "ns" / "pid").readlink() == place:
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def serve(self, host: str, command: Sequence[object]) -> None:
        """Starts a server on a host; `close` ends it."""
        with (self.folder / "servers.log").open("ab") as log:
            self._services.append(subprocess.Popen(
                self.command(host, command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            ))  # fmt: skip

    def link(self, host: str, state: str) -> None:
        """Cuts a host's cable (``down``) or joins it again (``up``)."""
        _run(["ip", "-n", self._switch, "link", "set", f"p-{host}", state])

    def kill(self, host: str) -> None:
        """Ends a host at once, with all that runs on it."""
        self._processes[host].kill()  # TERM would leave what `unshare` started alive
        self._processes[host].wait()

    def revive(self, host: str) -> None:
        """Starts a host that was killed, without what ran on it. Its processes get the numbers that those
        before it had: what these left in the folder for temporary files would be taken for their own."""
        shutil.rmtree(self.folder / f"tmp-{host}")
        (self.folder / f"tmp-{host}").mkdir()
        self._boot(host, ADDRESSES[host], self.folder / "ssh")

    def close(self) -> None:
        """Ends the hosts with all that runs on them, and takes their networks away."""
        for process in (*self._services, *self._processes.values()):
            # TERM would leave what `unshare` started alive.
            process.send_signal(signal.SIGKILL)
            process.wait()
        for name in self._networks.values():
            if Path("/run/netns", name).exists():
                _run(["ip", "netns", "del", name])


class Slurm:
    """A Slurm cluster of the two hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.folder = hosts.folder / "slurm"
        for name in ("munge", "state", *(f"{kind}-{host}" for kind in ("spool", "tmp") for host in NAMES)):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        munge = self.folder / "munge"
        munge.chmod(0o711)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o600)
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(
            _SLURM_CONF.format(folder=self.folder, controller=_CONTROLLER_PORT, node=_NODE_PORT)
        )
        first = NAMES[0]
        hosts.serve(first, [
            *("munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key"),
            *(f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
        ])  # fmt: skip
        _until((munge / "socket").exists, f"munged does not start: see {munge}/log")
        hosts.serve(first, ["slurmctld", "-D", "-f", self.configuration])
        for host in NAMES:
            self.serve(host)
        _until(self._idle, f"the nodes of Slurm are not idle: see {self.folder}/slurmctld.log")

    def serve(self, host: str) -> None:
        """Makes a host a node, which has to be done again where it was killed."""
        self.hosts.serve(host, ["slurmd", "-D", "-N", host, "-f", self.configuration])

    def _idle(self) -> bool:
        asked = self.hosts.command(NAMES[0], ["sinfo", "-h", "-N", "-o", "%T"], **self.environment)
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        return done.stdout.split() == ["idle"] * len(NAMES)

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's programs are told."""
        return {"SLURM_CONF": str(self.configuration)}

    def cancel(self) -> None:
        """Ends all jobs, as those that a test leaves that has failed."""
        _run(self.hosts.command(NAMES[0], ["scancel", "--user=root"], **self.environment))

    def idle(self) -> None:
        """Waits until nothing runs on the nodes any more."""
        _until(self._idle, "the nodes of Slurm are not idle")


def _answers(hosts: Hosts, name: str) -> bool:
    try:
        asked = hosts.command(name, ["ssh", "-o", "ConnectTimeout=1", name, "true"])
    except (OSError, IndexError):
        return False
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _run(command: Sequence[object]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": _path()})  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, command))}: {done.stderr.strip()}")


def _until(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(what)
        time.sleep(0.05)


@contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    """The two hosts, as long as the context lasts."""
    made = Hosts(folder)
    try:
        yield made
    finally:
        made.close()
