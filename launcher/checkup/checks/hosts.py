"""The hosts of a rank table: whether ssh reaches them without a question, their clocks, whether they have the
same versions, and what they lack."""

from __future__ import annotations

import functools
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

from launcher.checkup import far
from launcher.checkup.base import Asked, Check, Finding
from launcher.common.programs import ask, last_line
from launcher.job.places.hosts import is_here
from launcher.starters.environment import clean, python_path, python_there

if TYPE_CHECKING:
    from launcher.checkup.far import Far

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
    ours = far.here()["versions"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for found in pool.map(functools.partial(_look, ours), hosts):
            yield from found


def _look(ours: Mapping[str, str], host: str) -> list[Finding]:
    python = shlex.join(python_there(python_path(clean()), "-m", far.__name__))
    there = f"date +%s.%N; uname -n; {python}"
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}")
    began = time.time()
    try:
        done = ask("ssh", *options, "--", host, there)
    except FileNotFoundError:
        return [Finding("fail", f"{host}: there is no ssh here", "install an ssh client")]
    except OSError as error:
        return [Finding("fail", f"{host}: {error}", f"see that `ssh {host}` connects without a question")]
    middle = (began + time.time()) / 2
    lines = done.stdout.splitlines()
    if len(lines) < 2:
        advice = f"see that `ssh {host}` connects without a question: keys, known_hosts, and sshd there"
        return [Finding("fail", f"{host}: {last_line(done)}", advice)]
    said = _read(lines[-1])
    if said is None:
        return [
            Finding(
                "fail", f"{host} ({lines[1]}): {sys.executable} there has no shardrun ({last_line(done)})",
                "install shardrun at the same place on every host, or share the file system",
            )
        ]  # fmt: skip
    return [
        _judge(host, lines, middle, (time.time() - began) / 2),
        *_of_versions(host, ours, said["versions"]),
        *(
            Finding("fail" if level == "fail" else "warn", f"{host}: {title}: {what}", advice)
            for title, level, what, advice in said["problems"]
        ),
    ]


def _read(line: str) -> Far | None:
    """What a host said of itself; None where that is something else."""
    try:
        found = json.loads(line)
        versions = {str(name): str(text) for name, text in found["versions"].items()}
        problems = [
            tuple(map(str, (title, level, what, advice))) for title, level, what, advice in found["problems"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return {"versions": versions, "problems": cast("list[tuple[str, str, str, str]]", problems)}


def _of_versions(host: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[Finding]:
    other = [
        f"{name} {theirs.get(name, 'none')} (here {ours.get(name, 'none')})"
        for name in dict.fromkeys((*ours, *theirs))
        if theirs.get(name) != ours.get(name)
    ]
    if other:
        advice = "install the same versions on every host"
        yield Finding("warn", f"{host}: other versions there: {', '.join(other)}", advice)


def _judge(host: str, lines: list[str], middle: float, unsure: float) -> Finding:
    """``middle``: when the host was asked, by the clock here, give or take ``unsure`` seconds."""
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
