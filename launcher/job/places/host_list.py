"""Hosts with the number of ranks that each may have, as ``HOST:N,...`` or as the hostfile of an MPI."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from launcher.errors import ConfigError
from sharding.common.bounds import MAX_RANKS
from sharding.common.text import parse_whole, shortened

Host: TypeAlias = tuple[str, "int | None"]
"""A host's name and the ranks that it may have; None where nothing says."""

_SLOTS = re.compile(r"(?:slots|max_slots|max-slots|cpus)\s*=\s*(\S*)", re.ASCII | re.IGNORECASE)
_FORMS = "HOST, HOST:N or HOST slots=N"
_MOST_BYTES = 16 << 20


def parse_hosts(text: str, where: str = "--hosts") -> tuple[Host, ...]:
    """Hosts and rank counts of ``HOST:N,...``; IPv6 addresses stand in brackets. Raises `ConfigError`."""
    hosts = [_host(part.strip(), where, text) for part in text.split(",")]
    return _checked(hosts, f"{where}: ")


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a hostfile: one a line, as Open MPI, MPICH, Intel MPI and batch systems write them. A host
    that stands on several lines has as many ranks. Raises `ConfigError`."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ConfigError(f"hostfile {path}: not a file; expected lines of {_FORMS}")
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as problem:
        raise ConfigError(f"hostfile {path}: {problem.strerror}") from None
    except ValueError:  # a NUL in the name
        raise ConfigError(f"{str(path)!r} is not a file name; expected a hostfile") from None
    found: dict[str, int | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        name, *more = said.split(maxsplit=1)
        host, slots = _host(name, f"hostfile {path}, line {number}", name)
        if more:
            slots = _slots(more[0], path, number)
        if host in found:
            slots = (found[host] or 1) + (slots or 1)
        found[host] = slots
    if not found:
        raise ConfigError(f"hostfile {path}: expected lines of {_FORMS}, found none")
    return _checked(found.items(), f"hostfile {path}: ")


def parse_count(text: str, what: str) -> int:
    """A number of ranks from the command line or a file. Raises `ConfigError`."""
    count = parse_whole(text, 1, MAX_RANKS)
    if count is None:
        raise ConfigError(
            f"{what}: expected a number of ranks from 1 to {MAX_RANKS}, found {shortened(text, 80)!r}"
        )
    return count


def _slots(text: str, path: Path, number: int) -> int:
    where = f"hostfile {path}, line {number}"
    found = _SLOTS.search(text)
    if found is None:
        raise ConfigError(f"{where}: expected {_FORMS}, found {shortened(text, 80)!r} after the host")
    return parse_count(found[1], where)


def _host(item: str, where: str, text: str) -> Host:
    from sharding.common.rank_table import is_host

    host, count = item, None
    if item.startswith("["):
        host, bracket, rest = item[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"{where}: expected [ADDRESS]:N, found {item!r}")
        count = rest[1:] if rest else None
    elif item.count(":") == 1:
        host, count = item.split(":")
    elif item.count(":") > 1:
        raise ConfigError(f"{where}: put the IPv6 address in brackets, as [::1]:2, found {item!r}")
    if not is_host(host):
        raise ConfigError(f"{where}: expected HOST:N,HOST:N,..., found {shortened(text, 80)!r}")
    return host, None if count is None else parse_count(count, f"{where}: {host}")


def _checked(hosts: Iterable[Host], before: str) -> tuple[Host, ...]:
    listed = tuple(hosts)
    counts = Counter(host for host, _ in listed)
    twice = next((host for host, count in counts.items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"{before}expected each host once, found {twice} twice: give it as {twice}:N")
    total = sum(count or 1 for _, count in listed)
    if total > MAX_RANKS:
        raise ConfigError(f"{before}expected at most {MAX_RANKS} ranks in all, found {total}")
    return listed
