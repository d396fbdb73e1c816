"""Rank tables as `shardrun` reads them: `sharding.common.rank_table`, with the launcher's error."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import cast

from launcher.errors import RankTableError
from sharding.common import rank_table, super_pods
from sharding.common.rank_table import Device, RankTable, find_problems, make_rank_table

__all__ = [
    "Device",
    "RankTable",
    "find_problems",
    "load_rank_table",
    "make_rank_table",
    "merge_rank_tables",
    "with_places",
]


def load_rank_table(path: str | Path) -> RankTable:
    """Reads and checks a rank table file, JSON or YAML; raises `RankTableError` with the first problem."""
    return rank_table.load_rank_table(path, RankTableError)


def with_places(table: RankTable, cores: Sequence[str], interface: str) -> RankTable:
    """The table of one host with the cores of its ranks, in their order, and its network interface. Raises
    `RankTableError` for what is none of these."""
    document = deepcopy(table.document)
    for server in cast("list[dict[str, object]]", document["server_list"]):
        if interface:
            server["interface"] = interface
        devices = cast("list[dict[str, object]]", server["device"])
        for device, there in zip(devices, cores, strict=False):
            device["cores"] = there
    return rank_table.parse_rank_table(document, "the table", RankTableError)


def merge_rank_tables(tables: Sequence[RankTable]) -> RankTable:
    """One table of the servers of several, in this order; ranks are numbered anew, within each table in their
    order. Raises `RankTableError` for tables that do not go together."""
    whole = deepcopy(tables[0].document)
    servers: list[dict[str, object]] = []
    pods: dict[str, list[dict[str, object]]] = {}
    owners: dict[object, Path | None] = {}
    first = 0
    for table in tables:
        document = deepcopy(table.document)
        if str(document["version"]) != str(whole["version"]):
            raise RankTableError(
                f"{table.path}: this rank table is of version {document['version']}, but {tables[0].path} of "
                f"{whole['version']}: expected tables of one version"
            )
        for server in cast("list[dict[str, object]]", document["server_list"]):
            for device in cast("list[dict[str, object]]", server["device"]):
                device["rank_id"] = str(int(cast("str", device["rank_id"])) + first)
            name = server["server_id"]
            if name in owners:
                raise RankTableError(
                    f"{table.path}: the server {name!r} is also in {owners[name]}: expected tables of "
                    "different servers"
                )
            owners[name] = table.path
            servers.append(server)
        for pod, members in super_pods.pods_of(document).items():
            pods.setdefault(pod, []).extend(members)
        first += table.world_size
    whole["server_list"], whole["server_count"] = servers, str(len(servers))
    if pods:
        whole[super_pods.KEY] = [{"super_pod_id": name, "server_list": found} for name, found in pods.items()]
    return rank_table.parse_rank_table(whole, "the tables together", RankTableError)
