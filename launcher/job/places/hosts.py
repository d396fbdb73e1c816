"""Whether a rank table's hosts are this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.job.rank_table import RankTable


def remote_hosts(table: RankTable | None) -> list[str]:
    """The hosts of a table, if any of them is another machine; none if all ranks are to run here.

    Several names are several machines, even where one of them cannot be found yet. A single name that
    cannot be found is a mere label (rank tables often have such server ids) for this machine.
    """
    if table is None:
        return []
    hosts = list(table.hosts)
    return hosts if len(hosts) > 1 or _is_here(table) is False else []


def over_ssh(hosts: Sequence[str]) -> list[str]:
    """The hosts of ranks that are reached over ssh: all except this machine, by its name."""
    return [host for host in hosts if host not in {"localhost", os.uname().nodename}]


def unknown_host(table: RankTable | None) -> str | None:
    """The name of a table's only host where it says nothing of a machine, and is taken for this one."""
    if table is None or len(table.hosts) > 1:
        return None
    host = table.devices[0].host
    return host if _is_here(table) is None and not _is_number(host) else None


def is_here(host: str) -> bool:
    """Whether a host's name or address is known to be this machine's."""
    return _is_local(host) is True


def _is_here(table: RankTable) -> bool | None:
    """Whether the table's only host is this machine; None where its name says nothing."""
    device = table.devices[0]
    # The address may be that of the machine around a container, whose name is the id.
    answers = [_is_local(device.host), _is_local(device.server_id)]
    return True if True in answers else answers[0]


def _is_local(host: str) -> bool | None:
    if host in {"localhost", os.uname().nodename}:
        return True
    if _is_number(host):
        return None
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(address)  # only an address of this machine can be bound
                return True
            except OSError:
                continue
    return False


def _is_number(host: str) -> bool:
    """Whether a server id only counts servers; a resolver would read 1 as the address 0.0.0.1."""
    return host.isdecimal()
