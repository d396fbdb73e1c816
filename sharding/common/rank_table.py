"""Rank tables: which rank runs on which device of which host.

The format is HCCL's rank table, version 1.0, or 1.2 with super pods (CANN, "HCCL user guide", cluster
information in a rank table file): JSON whose values are all strings. The same tables are read and written as
YAML with plain integers. Keys that are not known here are kept, in their order.

`shardrun` and ranks started by hand read tables here, by the same rules: a table that one of them takes, the
other takes too. ``error`` is the class that the reader raises, with the first problem.
"""

from __future__ import annotations

import copy
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sharding.common import super_pods
from sharding.common.documents import DocumentError, quote, read_document
from sharding.common.ranges import parse_ranges
from sharding.common.text import counted, parse_whole
from sharding.errors import ShardrunError

VERSION = "1.0"
VERSIONS = (VERSION, super_pods.VERSION)
MAX_ID = 2**31 - 1
_Once = TypeVar("_Once", int, str)
_INTERFACE = re.compile(r"[^\s/,\x00-\x1f]{1,15}", re.ASCII)
"""Linux's own bounds of such a name."""


@dataclass(frozen=True)
class Device:
    """Where one rank runs; ``local_rank`` counts the ranks of its host from 0, in rank order."""

    rank: int
    device_id: int
    server_id: str
    host: str
    local_rank: int
    device_ip: str | None = None
    cores: str = ""
    """The processors that the rank is to run on, such as 0-3; "" where the table does not say."""
    interface: str = ""
    """The network interface of its host by which ranks reach other hosts."""


@dataclass(frozen=True)
class RankTable:
    """A checked rank table. ``devices[r]`` is the place of rank r; ``document`` is the file's data, whole."""

    devices: tuple[Device, ...]
    document: dict[str, object] = field(repr=False)
    path: Path | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.devices)

    @property
    def hosts(self) -> dict[str, tuple[Device, ...]]:
        """The ranks of every host, hosts in the order of their first rank."""
        hosts: dict[str, list[Device]] = {}
        for device in self.devices:
            hosts.setdefault(device.host, []).append(device)
        return {host: tuple(devices) for host, devices in hosts.items()}

    def to_json(self) -> str:
        """The table as HCCL reads it: all numbers as strings."""
        return json.dumps(_convert(self.document, str), indent=2, ensure_ascii=False) + "\n"

    def to_yaml(self) -> str:
        """The table as YAML, with plain integers."""
        import yaml

        # PyYAML writes these rare line breaks so that they come back as spaces; escaped, they survive.
        readable = not set(self.to_json()) & set("\x85\u2028\u2029")
        return yaml.safe_dump(_convert(self.document, int), sort_keys=False, allow_unicode=readable)


def load_rank_table(path: str | Path, error: type[ShardrunError] = DocumentError) -> RankTable:
    """Reads and checks a rank table file, JSON or YAML."""
    document, form = read_document(path, "rank table", error)
    return parse_rank_table(document, str(path), error, strings_only=form == "json")


def parse_rank_table(
    document: object,
    name: str = "rank table",
    error: type[ShardrunError] = DocumentError,
    *,
    strings_only: bool = False,
) -> RankTable:
    """Checks a table's data. ``strings_only``: numbers must be strings, as HCCL itself demands of JSON."""
    problems, devices = _check(document, strings_only)
    if problems:
        more = (
            f" (and {len(problems) - 1} more: `shardrun table check` lists all)" if len(problems) > 1 else ""
        )
        raise error(f"{name}: {problems[0]}{more}")
    assert isinstance(document, dict)  # or there were problems
    return RankTable(devices, document, Path(name))


def find_problems(path: str | Path) -> list[str]:
    """Every problem of a rank table file, one sentence each; empty if there is none."""
    try:
        document, form = read_document(path, "rank table")
    except DocumentError as problem:
        return [str(problem)]
    return [f"{path}: {problem}" for problem in _check(document, form == "json")[0]]


def make_rank_table(
    hosts: Sequence[tuple[str, int]], cores: Sequence[str] = (), interface: str = ""
) -> RankTable:
    """A table with ``count`` ranks on each (host, count), devices 0..count-1, ranks in the order given.

    ``cores``: those of the ranks of each host; ``interface``: by which each host reaches the others.
    """
    servers: list[dict[str, object]] = []
    rank = 0
    for host, count in hosts:
        ranks = range(rank, rank + count)
        rank += count
        server: dict[str, object] = {"server_id": host}
        if _is_ip(host):
            server["server_ip"] = host
        if interface:
            server["interface"] = interface
        server["device"] = [
            {"device_id": str(i), "rank_id": str(r), **({"cores": cores[i]} if cores else {})}
            for i, r in enumerate(ranks)
        ]
        servers.append(server)
    document = {
        "version": VERSION,
        "server_count": str(len(servers)),
        "server_list": servers,
        "status": "completed",
    }
    return parse_rank_table(document, "the hosts given")


class Checker:
    """Notes what is wrong with a table."""

    def __init__(self, strings_only: bool) -> None:
        self.problems: list[str] = []
        self.strings_only = strings_only

    def fail(self, path: str, expected: str, found: str) -> None:
        self.problems.append(f"{path}: expected {expected}, found {found}")

    def get(
        self,
        holder: dict[str, object],
        key: str,
        path: str,
        expected: str,
        fits: Callable[[object], object],
        *,
        kind: str = "",
    ) -> object:
        """A value that must be there and fit, or None; ``kind``: what is expected besides, of one that is."""
        if key in holder and fits(holder[key]):
            return holder[key]
        found = quote(holder[key]) if key in holder else "nothing"
        self.fail(f"{path}.{key}", expected + kind * (key in holder), found)
        return None

    def once(
        self, seen: dict[_Once, str], value: _Once, path: str, expected: str, *, shown: object = None
    ) -> None:
        """Notes a value that was there before; ``seen``: where each was first."""
        if value in seen:
            self.fail(path, expected, f"{quote(value if shown is None else shown)}, also at {seen[value]}")
        seen.setdefault(value, path)

    def number(self, holder: dict[str, object], key: str, path: str, largest: int = MAX_ID) -> int | None:
        def read(value: object) -> int | None:
            return _as_number(value, self.strings_only, largest)

        expected = 'a number as a string, such as "0"' if self.strings_only else "a number, such as 0"
        return read(self.get(holder, key, path, expected, lambda value: read(value) is not None))

    def text(self, holder: dict[str, object], key: str, path: str) -> None:
        if key in holder and not isinstance(holder[key], str):
            self.fail(f"{path}.{key}", "text", quote(holder[key]))

    def matching(
        self, holder: dict[str, object], key: str, path: str, fits: Callable[[str], object], expected: str
    ) -> str:
        """A text that is there or not, and then ``fits``; "" without it."""
        value = holder.get(key, "")
        if isinstance(value, int) and not isinstance(value, bool) and not self.strings_only:
            value = str(value)  # YAML reads one processor as a number
        if not isinstance(value, str) or not (key not in holder or fits(value)):
            self.fail(f"{path}.{key}", expected, quote(value))
            return ""
        return value

    def items(
        self, holder: dict[str, object], key: str, path: str, what: str
    ) -> list[dict[str, object]] | None:
        expected = f"a list of {what}, at least one"
        value = self.get(holder, key, path, expected, lambda found: isinstance(found, list) and found)
        if not isinstance(value, list):
            return None
        good = True
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                self.fail(f"{path}.{key}[{index}]", "an object", quote(item))
                good = False
        return value if good else None


def _check(document: object, strings_only: bool) -> tuple[list[str], tuple[Device, ...]]:
    check = Checker(strings_only)
    if not isinstance(document, dict):
        check.fail("$", "an object with version, server_count, server_list and status", quote(document))
        return check.problems, ()
    if "group_list" in document or "server_group_list" in document:
        old = "group_list" if "group_list" in document else "server_group_list"
        check.fail(f"$.{old}", 'a rank table of version "1.0" with a server_list',
                   f"the grouped format ({old}); write it anew with `shardrun table make`")  # fmt: skip
        return check.problems, ()
    known = " or ".join(f'"{one}"' for one in VERSIONS)
    version = check.get(document, "version", "$", known, lambda found: _version(found, strings_only))
    ready = " (a table in any other state is not ready)"
    check.get(document, "status", "$", '"completed"', lambda found: found == "completed", kind=ready)
    count = check.number(document, "server_count", "$")
    servers = check.items(document, "server_list", "$", "servers")
    if servers is None:
        return check.problems, ()
    if count is not None and count != len(servers):
        check.fail(
            "$.server_count", f"{len(servers)}, the length of server_list", quote(document["server_count"])
        )
    if _version(version, strings_only) == super_pods.VERSION:
        super_pods.check_devices(check, servers)
        super_pods.check_pods(check, document, servers)
    return check.problems, _check_servers(check, servers)


def _version(value: object, strings_only: bool) -> str | None:
    """One of `VERSIONS`; YAML reads an unquoted 1.0 as a number."""
    text = str(value) if isinstance(value, float) and not strings_only else value
    return next((one for one in VERSIONS if text == one), None)


def _check_servers(check: Checker, servers: list[dict[str, object]]) -> tuple[Device, ...]:
    found: list[Device] = []
    total = 0  # devices, those with a mistake too
    rank_paths: dict[int, str] = {}
    server_paths: dict[str, str] = {}
    host_paths: dict[str, str] = {}
    for index, server in enumerate(servers):
        path = f"$.server_list[{index}]"
        name = check.get(server, "server_id", path, "the server's name or address", is_host, kind=" as text")
        if isinstance(name, str):
            check.once(server_paths, name, f"{path}.server_id", "a server named once")
        for key in ("server_ip", "host_ip", "host_nic_ip"):
            check.text(server, key, path)
        interface = check.matching(
            server, "interface", path, _INTERFACE.fullmatch, 'a network interface, such as "eth0"'
        )
        said = "server_ip" if "server_ip" in server else "host_ip"  # that of version 1.2
        address = server.get(said)
        if isinstance(address, str) and not _is_ip(address):
            check.fail(f"{path}.{said}", "an IP address", quote(address))
        host = address if isinstance(address, str) else str(name)
        if host in host_paths and isinstance(address, str):
            check.fail(f"{path}.{said}", "an address used once", f"{quote(host)}, also at {host_paths[host]}")
        host_paths.setdefault(host, path)
        device_paths: dict[int, str] = {}
        for number, device in enumerate(check.items(server, "device", path, "devices") or ()):
            total += 1
            place = f"{path}.device[{number}]"
            device_id = check.number(device, "device_id", place)
            rank = check.number(device, "rank_id", place)
            device_ip = device.get("device_ip")
            if device_ip is not None and not (
                isinstance(device_ip, str) and (_is_ip(device_ip) or not device_ip)
            ):
                check.fail(f"{place}.device_ip", "an IP address", quote(device_ip))
            cores = check.matching(
                device, "cores", place, parse_ranges, 'processors such as "0-3,8", the lower number first'
            )
            known_ip = device_ip if isinstance(device_ip, str) and device_ip else None
            for key, value, seen, expected in (
                ("device_id", device_id, device_paths, "a device used once on its server"),
                ("rank_id", rank, rank_paths, "a rank used once"),
            ):
                if value is not None:
                    check.once(seen, value, f"{place}.{key}", expected, shown=device[key])
            if device_id is not None and rank is not None:
                found.append(Device(rank, device_id, str(name), host, 0, known_ip, cores, interface))
    for rank, place in rank_paths.items():
        if rank >= total:
            check.fail(
                place, f"a rank from 0 to {total - 1} (the table has {counted(total, 'device')})", str(rank)
            )
    if check.problems:
        return ()
    local: Counter[str] = Counter()
    devices = []
    for one in sorted(found, key=lambda one: one.rank):
        devices.append(replace(one, local_rank=local[one.host]))
        local[one.host] += 1
    return tuple(devices)


def _as_number(value: object, strings_only: bool, largest: int = MAX_ID) -> int | None:
    if isinstance(value, str):
        number = parse_whole(value, 0, largest)
        return number if str(number) == value else None
    if strings_only or isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= largest else None


def is_host(value: object) -> bool:
    """Whether a text can name a host: it ends up on command lines of mpirun and ssh, where a leading hyphen
    would be an option, and in lists of hosts."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= 255
        and value.isprintable()
        and not value.startswith("-")
        and not set(value) & set(" ,=/")
    )


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_NUMBERS = {"device_id", "rank_id"}


def _convert(document: dict[str, object], kind: type[int] | type[str]) -> dict[str, object]:
    """A copy of the document with the numbers of known keys as ``kind``."""
    result = copy.deepcopy(document)
    servers, count = result["server_list"], result["server_count"]
    assert isinstance(servers, list) and isinstance(count, int | str)  # it was checked
    result["version"] = str(result["version"])
    numbers = _NUMBERS | ({"super_device_id"} if result["version"] == super_pods.VERSION else set())
    result["server_count"] = kind(count)
    for server in servers:
        if "interface" in server:  # YAML reads some texts as numbers
            server["interface"] = str(server["interface"])
        for device in server["device"]:
            if "cores" in device:
                device["cores"] = str(device["cores"])
            for key in numbers & device.keys():
                device[key] = kind(device[key])
    return result
