"""Cores of their own for the ranks of a host, so that two of them never wait for one core of several.

By default a rank gets its share of the cores that this process may use, if each rank of the host can have one
whole core: cores of one NUMA node, as far as that goes. Memory follows: Linux takes it from the node of the
core that writes to it first. A rank that has no cores of its own runs where the system puts it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from ranks.common.settings import BIND, BOUND
from ranks.errors import IdentityError
from ranks.identity.place import Identity
from ranks.identity.told import NOTHING, Told
from sharding.common.ranges import in_ranges, parse_ranges

INTERFACES = {
    "gloo": "GLOO_SOCKET_IFNAME",
    "nccl": "NCCL_SOCKET_IFNAME",
    "hccl": "HCCL_SOCKET_IFNAME",
}
"""Each library's variable for the network interface that it listens on."""
T = TypeVar("T")
Core = frozenset[int]
"""The processors of one core: its hardware threads."""


def bind(identity: Identity, told: Told = NOTHING, root: Path = Path("/")) -> None:
    """Binds this process, rank ``identity`` of a job, to its cores. Raises `IdentityError` where those that
    were asked for are not there."""
    if told.interface:
        for name in INTERFACES.values():
            os.environ.setdefault(name, told.interface)
    asked = BIND.get()
    size = identity.local_size or 1
    if asked == "none" or not hasattr(os, "sched_setaffinity"):
        return
    nodes = nodes_of(os.sched_getaffinity(0), root)
    if told.cores and not asked:
        _bind_to(told.cores, nodes, f"the rank table has the cores {told.cores} for rank {identity.rank}")
        if told.alone:
            os.environ[BOUND.name] = "1"
        return
    if not asked and (size == 1 or sum(map(len, nodes)) < size):
        return
    found = share(nodes, identity.local_rank, size, asked)
    os.sched_setaffinity(0, found)
    lists = asked.split("/")
    if len(nodes) >= size if asked == "numa" else len(lists) == 1 or apart(lists)[identity.local_rank]:
        os.environ[BOUND.name] = "1"


def apart(lists: Sequence[str]) -> list[bool]:
    """Whether the cores in each of these lists, of the ranks of one host, are in no other one; "" stands for
    all cores."""
    found = [frozenset(parse_ranges(text) or ()) for text in lists]
    count = Counter(core for own in found for core in own)
    return [all(found) and all(count[core] == 1 for core in own) for own in found]


def _bind_to(cores: str, nodes: Sequence[Sequence[Core]], why: str) -> None:
    wanted = set(parse_ranges(cores) or ())
    if not wanted:
        raise IdentityError(f"{why}, which are no list of cores such as 0-3: correct the table")
    there = {cpu for node in nodes for core in node for cpu in core}
    if lacking := wanted - there:
        raise IdentityError(
            f"{why}: this process may use the cores {in_ranges(there)}, and not {in_ranges(lacking)}: "
            "correct the table, or give --bind none"
        )
    os.sched_setaffinity(0, wanted)


def share(nodes: Sequence[Sequence[Core]], place: int, size: int, asked: str = "") -> set[int]:
    """The processors of the rank at ``place`` of the ``size`` ranks of a host; ``nodes``: the cores that they
    may use, by NUMA node. Raises `IdentityError`."""
    if asked == "numa":
        at = place * len(nodes) // size if size >= len(nodes) else None
        chosen = [nodes[at]] if at is not None else _part(nodes, place, size)
        return {cpu for node in chosen for core in node for cpu in core}
    if asked not in {"", "cores"}:
        lists = asked.split("/")
        listed = [parse_ranges(text) or [] for text in lists]
        wanted = set(listed[place] if len(lists) > 1 and place < len(lists) else listed[0])
        if len(lists) > 1 and len(lists) != size:
            raise IdentityError(
                f"--bind {asked} has cores for {len(lists)} ranks, but {size} are on this host: give a list "
                "for each"
            )
        lacking = wanted - {cpu for node in nodes for core in node for cpu in core}
        if lacking:
            there = in_ranges(cpu for node in nodes for core in node for cpu in core)
            raise IdentityError(
                f"--bind {asked}: this process may use the cores {there}, and not {in_ranges(lacking)}: "
                "choose among those"
            )
        if len(lists) > 1:
            return wanted
        nodes = [kept for node in nodes if (kept := [core & wanted for core in node if core & wanted])]
    count = sum(map(len, nodes))
    if count < size:
        there = "is 1 core" if count == 1 else f"are {count} cores"
        raise IdentityError(
            f"--bind {asked}: {size} ranks are on this host, but there {there} for them: use fewer ranks "
            "here, or --bind none"
        )
    return {cpu for core in _cores_of(nodes, place, size) for cpu in core}


def _cores_of(nodes: Sequence[Sequence[Core]], place: int, size: int) -> Sequence[Core]:
    each, rest = divmod(size, len(nodes))
    if each and not rest and min(map(len, nodes)) >= each:
        return _part(nodes[place // each], place % each, each)
    return _part([core for node in nodes for core in node], place, size)


def _part(items: Sequence[T], place: int, size: int) -> Sequence[T]:
    """One of ``size`` parts, in order, of about the same length."""
    return items[len(items) * place // size : len(items) * (place + 1) // size]


def nodes_of(cpus: set[int], root: Path = Path("/")) -> list[list[Core]]:
    """The cores among these processors, by NUMA node; one node where the system names none."""
    cores: dict[Core, None] = {}
    for cpu in sorted(cpus):
        text = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings = set(parse_ranges(text) or [cpu]) | {cpu}
        cores[frozenset(siblings & cpus)] = None
    nodes: dict[int, list[Core]] = {}
    where: dict[int, int] = {}
    for folder in sorted(root.glob("sys/devices/system/node/node[0-9]*")):
        number = int(re.sub(r"\D", "", folder.name))
        where |= dict.fromkeys(parse_ranges(_read(folder / "cpulist")) or [], number)
    for core in cores:
        nodes.setdefault(where.get(min(core), 0), []).append(core)
    return [nodes[number] for number in sorted(nodes)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""
