"""This host's name and addresses, and whether a port can be had."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding


def _run(asked: Asked) -> Iterator[Finding]:
    host = os.uname().nodename
    for address in ("127.0.0.1", ""):
        try:
            with socket.socket() as one:
                one.bind((address, 0))
                one.listen(1)
        except OSError as error:
            where = address or "all interfaces"
            yield Finding("fail", f"no port can be had on {where} ({error})", "see `ip addr` and `ss -lt`")
            return
    try:
        found = sorted({str(item[4][0]) for item in socket.getaddrinfo(host, None, socket.AF_INET)})
    except OSError as error:
        yield Finding(
            "warn", f"ports can be had; the name {host} is not known here ({error.strerror or error})",
            "put it into /etc/hosts: MPI and Gloo look for it on several hosts",
        )  # fmt: skip
        return
    if all(address.startswith("127.") for address in found):
        yield Finding(
            "warn" if asked.table is not None else "ok",
            f"ports can be had; {host} is {', '.join(found)} only",
            "Gloo on several hosts takes the name's address: give it the network's, in /etc/hosts",
        )
    else:
        yield Finding("ok", f"ports can be had; {host} is {', '.join(found)}")


CHECK = Check("network", 9, _run)
