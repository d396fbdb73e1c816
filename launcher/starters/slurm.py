"""The slurm launcher: ranks are tasks of one step of srun, in an allocation around us or one of its own.

srun says only in words how a task ended, and passes the environment on by itself. What is to be secret is on
no command line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.common.mpi_library import PLUGINS
from launcher.errors import ConfigError, LaunchError
from launcher.job.places import allocation
from launcher.job.rank_table import make_rank_table
from launcher.starters import cause, marks, mpirun
from launcher.starters import environment as environments
from launcher.starters.base import Ended, Launcher
from launcher.starters.program import ProgramHandle, listing
from launcher.starters.reach import slurmd, words
from launcher.starters.reach.answering import Answering
from ranks.common import sources
from ranks.common.settings import CHOSEN
from ranks.talk.unix import readable
from sharding.common.limits import shortage
from sharding.common.ranges import parse_ranges

if TYPE_CHECKING:
    from launcher.job.places.allocation import Allocation
    from launcher.job.rank_table import RankTable

log = logging.getLogger(__name__)

_LIST_SECONDS = 20
NOTICE_SECONDS = 10.0
"""How long an allocation may take before it is said what is waited for."""
_HOLD = 'env -0 && printf "\\0\\0" && exec cat'
"""What salloc runs: it says its environment, and keeps the allocation until our end of its input closes."""
_ENDED = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<ranks>[\d,-]+): (?P<how>.+)")
_MISSING = re.compile(r" *(?P<rank>\d+): slurmstepd-\S+: error: execve\(\): (?P<what>.+): (?P<why>[^:]+)$")
_CODE = re.compile(r"Exited with exit code (\d+)")
_NO_PLUGIN = re.compile(r"srun: error: Invalid MPI type '?(\w+)")
_NODE = re.compile(
    r"srun: error: (Node failure on|Task launch for \S+ failed on node) (?P<host>[^\s:]+)(: (?P<why>.+))?"
)


class SlurmLauncher(Launcher):
    """Starts the ranks through srun."""

    name = "slurm"
    over_ssh = False

    def __init__(self) -> None:
        self._granted: Granted | None = None

    def check(self, table: RankTable | None) -> None:
        """Raises `LaunchError` for hosts that Slurm did not give."""
        found = self._allocation()
        if found is None or table is None:
            return
        there = {host for host, _ in found.hosts}
        if foreign := [host for host in table.hosts if host not in there]:
            raise LaunchError(
                f"{found.name} has no host {foreign[0]}: it has {', '.join(sorted(there)[:8])}; use these, "
                "or another launcher."
            )

    def place(self, world_size: int, table: RankTable | None) -> RankTable | None:
        """The nodes of an allocation, one of its own where none is around us; see `Launcher.place`."""
        srun = _program("srun")
        if table is not None:
            return table
        found = allocation.of_slurm(os.environ)
        if found is not None and self.placement.nodes is not None:
            raise ConfigError(
                f"--nodes asks for nodes, but this is {found.name}, which has some: leave out --nodes"
            )
        if self.placement.nodes is not None and self.placement.nodes > world_size:
            raise ConfigError(
                f"--nodes {self.placement.nodes}: more nodes than ranks, of which there are {world_size}"
            )
        if found is None:
            self._granted = Granted(self.placement.nodes, world_size, self.placement.srun_args, srun)
            found = self._allocation()
            assert found is not None
        count = len(found.hosts)
        each = [world_size * (at + 1) // count - world_size * at // count for at in range(count)]
        return make_rank_table([(host, n) for (host, _), n in zip(found.hosts, each, strict=True) if n])

    def release(self) -> None:
        if self._granted is not None:
            self._granted.close()

    def _allocation(self) -> Allocation | None:
        return allocation.of_slurm(self._granted.environment if self._granted is not None else os.environ)

    def on_host(
        self, host: str, module: str, environment: Mapping[str, str]
    ) -> tuple[list[str], Mapping[str, str]]:
        inherited, ours = self._environment({})
        command = [_program("srun"), *([] if self._granted is not None else self.placement.srun_args)]
        # Beside a step that fills the node, too.
        command += [
            "--ntasks=1",
            "--nodes=1",
            f"--nodelist={host}",
            "--overlap",
            "--export=ALL",
            "--mpi=none",
        ]
        command += ["--cpu-bind=none", "--distribution=block", sys.executable, "-m", module]
        return command, {**inherited, **ours}

    def _environment(self, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """What tasks inherit, and what they are told."""
        inherited = environments.clean()
        if self._granted is not None:
            inherited |= {k: v for k, v in self._granted.environment.items() if k.startswith(sources.SLURM)}
        ours = {**environment, **environments.safe_path(inherited)}
        if path := environments.python_path(inherited):
            ours["PYTHONPATH"] = path
        return inherited, ours

    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> SlurmHandle:
        assert table is not None  # `place` made one
        inherited, ours = self._environment(environment)
        chosen = CHOSEN.get(environment) if len(table.hosts) > 1 else "shm"
        plugin = choose_plugin(chosen, _program("srun"))
        if plugin != "none" and (library := mpirun.find().library) is not None:
            ours.setdefault("MPI4PY_LIBMPI", str(library))
        # One line a rank, with its host: the only way to say which rank runs where.
        hosts = "".join(f"{device.host}\n" for device in table.devices)
        found = self._allocation()
        places = dict(found.hosts) if found is not None else {}
        crowded = any(len(devices) > places.get(host, world_size) for host, devices in table.hosts.items())
        command = [
            _program("srun"),
            *_arguments(world_size, len(table.hosts), plugin, crowded, inherited),
        ]
        command += [] if self._granted is not None else self.placement.srun_args
        command += [*environments.boot_command(), *program]
        try:
            with listing(hosts) as (descriptor, path):
                full = {**inherited, **ours, sources.SLURM_HOSTFILE: path}
                return SlurmHandle(command, full, descriptor, self._granted, table)
        except OSError as error:
            if shortage(error):
                raise cause.shortage(error) from None
            raise LaunchError(f"srun cannot be started: {error.strerror or error}.") from None


def _arguments(
    world_size: int, hosts: int, plugin: str, crowded: bool, environ: Mapping[str, str]
) -> list[str]:
    arguments = [f"--ntasks={world_size}", f"--nodes={hosts}", "--distribution=arbitrary"]
    arguments += ["--label", "--kill-on-bad-exit=1", "--input=none", "--export=ALL", f"--mpi={plugin}"]
    # Ranks bind themselves, each to its part of what its host's step has.
    arguments += ["--cpu-bind=none"]
    # srun does not take it from the environment by itself.
    if each := environ.get(sources.SLURM_CPUS_PER_TASK):
        arguments += [f"--cpus-per-task={each}"]
    if crowded:
        arguments += ["--overcommit"]
    return arguments


def choose_plugin(collectives: str, srun: str) -> str:
    """Slurm's plugin by which the ranks' MPI library finds its peers; ``none`` where they need no MPI, or
    where none fits and nobody asked for it. Raises `LaunchError`."""
    if collectives not in {"auto", "mpi"}:
        return "none"
    try:
        library = mpirun.find().library_kind
    except LaunchError as problem:
        if collectives == "mpi":
            raise LaunchError(f"The mpi collectives need an MPI: {problem}") from None
        return "none"
    wanted = PLUGINS[library]
    try:
        answer = subprocess.run(
            [srun, "--mpi=list"], capture_output=True, text=True, errors="replace", timeout=_LIST_SECONDS,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"`srun --mpi=list` does not answer ({error}): see that Slurm works here."
        ) from None
    known = set(re.findall(r"[\w]+", answer.stdout + answer.stderr))
    if wanted in known:
        return wanted
    if collectives == "mpi":
        raise LaunchError(
            f"This Slurm has no MPI plugin {wanted}, by which {library} finds its ranks: install it, or use "
            "the launcher mpirun, or the gloo collectives."
        )
    return "none"


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise LaunchError(
            f"There is no {name} on PATH: install Slurm's programs, load the site's module, or use another "
            "launcher."
        )
    return found


class SlurmHandle(ProgramHandle):
    """A running srun."""

    _missing: frozenset[int] = frozenset()
    """The ranks whose program could not be started: their exit code is the number of that error."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        listed: int,
        granted: Granted | None,
        table: RankTable,
    ) -> None:
        self._granted, self._table = granted, table
        super().__init__("srun", command, environment, kept=(listed,))
        scontrol = shutil.which("scontrol")
        self._answering = Answering(
            lambda hosts: slurmd.places(hosts, scontrol, environment) if scontrol else {}
        )

    def attribute(self, line: str) -> list[tuple[int | None, str]]:
        mark = marks.SRUN.match(line)
        if mark and line.startswith("slurmstepd", mark.end()):  # Slurm's own, in a rank's name
            return [(None, line)]
        return [(int(mark[1]), line[mark.end() :])] if mark else [(None, line)]

    def lost_host(self, here: Collection[int], awaited: Collection[str]) -> str:
        """See `Handle.lost_host`: srun says it when the controller has noticed, maybe minutes later."""
        return self._answering.lost(awaited)

    def heard(self, line: str) -> list[Ended]:
        """Finds in srun's own words which ranks ended first and how; see `Handle.heard`."""
        if (lacks := _MISSING.match(line.rstrip())) is not None:
            rank = int(lacks["rank"])
            self._missing |= {rank}
            return [Ended(rank, None, words.not_started(lacks["what"], lacks["why"]), heard=True)]
        if (plugin := _NO_PLUGIN.search(line)) is not None:  # it is listed, and cannot be loaded
            self.short = (
                f" Slurm does not load its MPI plugin {plugin[1]}: install the library that it needs here "
                "and on the nodes, or use collectives that need no MPI (--collectives gloo)."
            )
        if (lost := _NODE.search(line)) is not None:  # and then it ends the others
            there = (device.rank for device in self._table.devices if device.host == lost["host"])
            return [Ended(rank, None, _node_failed(lost["why"]), heard=True) for rank in there]
        found = _ENDED.search(line)
        code = None if found is None else _code(found["how"])
        if found is None or code is None:
            return []
        ended = parse_ranges(found["ranks"]) or ()
        return [Ended(rank, code, heard=True) for rank in ended if rank not in self._missing]

    def close(self) -> None:
        """Ends what ranks have left running, which Slurm does not where it knows processes by their parents
        and not by cgroups, and gives back an allocation of its own."""
        self._answering.close()
        super().close()
        if self._granted is not None:
            self._granted.close()


def _node_failed(why: str | None) -> str:
    if why is None:
        return "Slurm says that its node has failed: that host is down, or the network to it is cut"
    return f"Slurm cannot start it there ({why.strip()}): see that this host and its slurmd answer"


def _code(how: str) -> int | None:
    if (exited := _CODE.match(how)) is not None:
        code = int(exited[1])
        return code if code < 128 else 128 - code
    said = how.removesuffix(" (core dumped)").strip()
    known = {signal.strsignal(number): number for number in signal.Signals}
    return -known[said] if said in known else None


class Granted:
    """An allocation that was asked for, held by a salloc that ends with this process."""

    def __init__(self, nodes: int | None, ranks: int, more: Sequence[str], srun: str) -> None:
        """Waits until Slurm grants it; raises `LaunchError` where it does not."""
        command = [_program("salloc"), "--quiet", f"--ntasks={ranks}"]
        command += [f"--nodes={nodes}"] if nodes is not None else []
        command += [*more, "sh", "-c", _HOLD]
        self.environment: dict[str, str] = {}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=environments.clean(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            if shortage(error):
                raise cause.shortage(error) from None
            raise LaunchError(f"salloc cannot be started: {error.strerror or error}.") from None
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        said, told = b"", False
        while not said.endswith(b"\0\0\0"):
            stream = self._process.stdout.fileno()
            if not told and not readable(stream, NOTICE_SECONDS):
                told = True
                log.warning("waiting for Slurm to give nodes; Ctrl-C gives up")
            part = os.read(stream, 1 << 16)
            if not part:
                problem = self._process.stderr.read().decode(errors="replace").strip()
                lines = [
                    line.removeprefix("salloc: ").removeprefix("error: ") for line in problem.splitlines()
                ]
                raise LaunchError(
                    f"Slurm gives no nodes for these ranks: {'; '.join(lines) or 'salloc ended'}."
                )
            said += part
        for item in said.decode(errors="surrogateescape").split("\0"):
            name, equals, value = item.partition("=")
            if equals:
                self.environment[name] = value

    def close(self) -> None:
        """Gives it back. Safe to call twice."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_LIST_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
