"""On which addresses processes wait for connections, as the kernel tells it (proc(5), /proc/net/tcp)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

_LISTENS = "0A"  # TCP_LISTEN


def listening() -> dict[int, tuple[str, int]]:
    """Address and port of every TCP socket of this host that takes connections, by its inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    address, _, port = fields[1].partition(":")
                    found[int(fields[9])] = (_address(address), int(port, 16))
    return found


def outside_loopback(pids: Iterable[int]) -> list[str]:
    """What these processes have open to other hosts, as text."""
    sockets = listening()
    found = []
    for pid in pids:
        for inode in _sockets(pid) & sockets.keys():
            address, port = sockets[inode]
            if not ipaddress.ip_address(address).is_loopback:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
                found.append(f"{address}:{port} of {pid} ({command})")
    return found


def _sockets(pid: int) -> set[int]:
    inodes = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - only the names
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
                if target.startswith("socket:["):
                    inodes.add(int(target[8:-1]))
    return inodes


def _address(text: str) -> str:
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
