"""Addresses of hosts that are not there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import islice

import pytest

# Of RFC 5737: nobody's, but some machines give them to themselves.
_DOCUMENTATION = ("192.0.2", "198.51.100", "203.0.113")


def not_ours(count: int) -> list[str]:
    """So many addresses that this machine does not have, and that nobody else should."""
    return list(islice(_free(), count))


def _free() -> Iterator[str]:
    for network in _DOCUMENTATION:
        for number in range(1, 255):
            address = f"{network}.{number}"
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                try:
                    probe.bind((address, 0))
                except OSError:
                    yield address


def need_route(address: str) -> None:
    """Skips the test on a machine with no network but its own: ranks on other hosts are refused there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # UDP: sends nothing, only asks for the route
        except OSError as error:
            pytest.skip(f"this machine has no route to other hosts ({error.strerror})")
