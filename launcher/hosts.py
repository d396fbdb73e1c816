"""Whether a rank table's hosts are this machine."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.rank_table import RankTable


def remote_hosts(table: RankTable | None) -> list[str]:
    """The hosts of a table, if any of them is another machine; none if all ranks are to run here.

    Several names are several machines, even where one of them cannot be found yet. A single name that
    cannot be found is a mere label (rank tables often have such server ids) for this machine.
    """
    if table is None:
        return []
    hosts = list(table.hosts)
    return hosts if len(hosts) > 1 or not _is_here(hosts[0]) else []


def _is_here(host: str) -> bool:
    if host in {"localhost", os.uname().nodename}:
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return True
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(address)  # only an address of this machine can be bound
                return True
            except OSError:
                continue
    return False
