"""Where ranks of several hosts meet: as MASTER_ADDR and MASTER_PORT say, or else Slurm, of a step."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping

from ranks.common import sources
from ranks.identity import nodes
from ranks.identity.identity import in_slurm_step
from ranks.identity.place import Identity

FIRST_PORT, PORTS = 20000, 10000
"""Below those that the system gives away by itself. A job of Slurm takes the one of its number."""
_SECONDS = 10.0
_ADDRESS = re.compile(r"(?:^| )NodeAddr=(\S+)")


def meeting_place(identity: Identity, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The address of rank 0's host and the port there, as text; "" for what nothing says.

    A task of ``srun`` whose environment does not say it finds it by the nodes of its step, of which the first
    one has task 0.
    """
    address, port = (environ.get(name, "").strip() for name in (sources.MASTER_ADDR, sources.MASTER_PORT))
    if (address and port) or not _is_task(identity, environ):
        return address, port
    return address or _address(environ), port or _port(environ)


def _is_task(identity: Identity, environ: Mapping[str, str]) -> bool:
    """Whether this rank is the task of its number of an ``srun`` whose first task is on its first node."""
    if not in_slurm_step(environ) or environ.get(sources.SLURM_PROCID, "").strip() != str(identity.rank):
        return False
    return not in_parts(environ) and not environ.get(sources.SLURM_DISTRIBUTION, "").startswith("arbitrary")


def in_parts(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is in a job of Slurm's that has several components."""
    return environ.get(sources.SLURM_HET_SIZE, "") not in {"", "0", "1"}


def _port(environ: Mapping[str, str]) -> str:
    """One for each step, as far as there are enough."""
    step = environ.get(sources.SLURM_STEP_ID) or environ.get(sources.SLURM_STEPID) or ""
    job = environ.get(sources.SLURM_JOB_ID, "")
    if not (job.isdecimal() and step.isdecimal() and job.isascii() and step.isascii()):
        return ""
    return str(FIRST_PORT + (int(job) + int(step)) % PORTS)


def _address(environ: Mapping[str, str]) -> str:
    """That of the step's first node: its name, where it can be found, or else what Slurm itself uses."""
    first = _first(environ.get(sources.SLURM_STEP_NODELIST, ""))
    if not first:
        return ""
    if _is_found(first):
        return first
    if told := _told(first):
        return told
    # The node where srun was called; in a job's script that is the job's first one.
    of_job = environ.get(sources.SLURM_JOB_NODELIST) or environ.get(sources.SLURM_NODELIST) or ""
    return environ.get(sources.SLURM_LAUNCH_NODE_IPADDR, "") if _first(of_job) == first else ""


def _first(text: str) -> str:
    try:
        return next(nodes.expand(text), "")
    except ValueError:
        return ""


def _is_found(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def _told(node: str) -> str:
    """The address of a node as Slurm's controller says it."""
    if (program := shutil.which("scontrol")) is None:
        return ""
    try:
        done = subprocess.run(
            [program, "-o", "show", "node", node],
            capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    found = _ADDRESS.search(done.stdout)
    return found[1] if found is not None and _is_found(found[1]) else ""
