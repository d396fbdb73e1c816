"""The hosts of a rank table: whether ssh reaches them without a question, and their clocks."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from launcher.checkup.base import Asked, Check, Finding
from launcher.common.programs import ask, last_line
from launcher.job.places.hosts import is_here
from launcher.starters.environment import clean, python_path, python_there

CONNECT_SECONDS = 5
_APART = 2.0
"""Seconds between two clocks from which on files seem older or newer than they are."""
_AT_ONCE = 16


def _run(asked: Asked) -> Iterator[Finding]:
    if asked.table is None:
        return
    hosts = [host for host in asked.table.hosts if not is_here(host)]
    if not hosts:
        yield Finding("ok", "the rank table has this machine only")
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(_look, hosts)


def _look(host: str) -> Finding:
    python = shlex.join(python_there(python_path(clean()), "-c", "import ranks.boot"))
    there = f"date +%s.%N; uname -n; {python} && echo shardrun"
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}")
    began = time.time()
    try:
        done = ask("ssh", *options, "--", host, there)
    except FileNotFoundError:
        return Finding("fail", f"{host}: there is no ssh here", "install an ssh client")
    except OSError as error:
        return Finding("fail", f"{host}: {error}", f"see that `ssh {host}` connects without a question")
    middle = (began + time.time()) / 2
    lines = done.stdout.splitlines()
    if len(lines) < 2:
        advice = f"see that `ssh {host}` connects without a question: keys, known_hosts, and sshd there"
        return Finding("fail", f"{host}: {last_line(done)}", advice)
    return _judge(host, done, lines, middle, (time.time() - began) / 2)


def _judge(
    host: str, done: subprocess.CompletedProcess[str], lines: list[str], middle: float, unsure: float
) -> Finding:
    """``middle``: when the host was asked, by the clock here, give or take ``unsure`` seconds."""
    if lines[-1] != "shardrun":
        return Finding(
            "fail", f"{host} ({lines[1]}): {sys.executable} there has no shardrun ({last_line(done)})",
            "install shardrun at the same place on every host, or share the file system",
        )  # fmt: skip
    try:
        apart = float(lines[0]) - middle
    except ValueError:
        return Finding(
            "warn", f"{host} ({lines[1]}): its clock cannot be read", "see that `date` works there"
        )
    way = "ahead" if apart > 0 else "behind"
    found = f"{host} ({lines[1]}): ssh connects, its clock is {abs(apart):.1f} s {way}"
    if abs(apart) > _APART + unsure:
        return Finding("warn", found, "let both follow a time server (chrony, ntpd)")
    return Finding("ok", f"{host} ({lines[1]}): ssh connects, and the clocks agree")


CHECK = Check("hosts", 10, _run)
