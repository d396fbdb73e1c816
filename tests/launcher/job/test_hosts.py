"""Which hosts are this machine, and which are reached over ssh."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from launcher.job.places.hosts import is_here, over_ssh, remote_hosts, unknown_host
from sharding.common.rank_table import RankTable, make_rank_table, parse_rank_table

HERE = os.uname().nodename
ADDRESSES = {"by-another-name": "127.0.0.1", "far": "192.0.2.1"}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names as a resolver would know them, which reads a mere number as an address of this machine."""

    def found(host: str, port: int, *, type: int) -> list[Any]:
        address = "127.0.0.1" if host.isdecimal() else ADDRESSES.get(host, host)
        if not address.replace(".", "").isdecimal():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET, type, 0, "", ("192.0.2.9", port)),  # one of several addresses is enough
            (socket.AF_INET, type, 0, "", (address, port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def labelled(name: str, address: str) -> RankTable:
    """A table of one server, whose label is no address."""
    return parse_rank_table(
        {
            "version": "1.0",
            "server_count": "1",
            "server_list": [
                {"server_id": name, "server_ip": address, "device": [{"device_id": "0", "rank_id": "0"}]}
            ],
            "status": "completed",
        },
        "a table",
    )


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        (HERE, True),
        ("127.0.0.1", True),
        ("by-another-name", True),
        ("far", False),
        ("192.0.2.1", False),
        ("nobody-knows", False),
        ("1", False),
    ],
)
def test_what_is_this_machine(host: str, here: bool) -> None:
    assert is_here(host) is here


def test_a_host_by_its_name_needs_no_ssh() -> None:
    assert over_ssh(["localhost", HERE, "127.0.0.1", "far"]) == ["127.0.0.1", "far"]


@pytest.mark.parametrize(
    ("hosts", "remote", "unknown"),
    [
        (["far"], ["far"], None),
        (["by-another-name"], [], None),
        (["nobody-knows"], [], "nobody-knows"),
        (["0"], [], None),  # it only counts servers
        (["by-another-name", "far"], ["by-another-name", "far"], None),
        (["nobody-knows", "nor-this"], ["nobody-knows", "nor-this"], None),
    ],
)
def test_where_ranks_of_a_table_are(hosts: list[str], remote: list[str], unknown: str | None) -> None:
    table = make_rank_table([(host, 1) for host in hosts])
    assert remote_hosts(table) == remote
    assert unknown_host(table) == unknown


def test_without_a_table_all_is_here() -> None:
    assert remote_hosts(None) == [] and unknown_host(None) is None


def test_a_label_of_this_machine_is_enough() -> None:
    """In a container the address may be that of the machine around it."""
    assert remote_hosts(labelled(HERE, "192.0.2.1")) == []
    assert remote_hosts(labelled("a-label", "192.0.2.1")) == ["192.0.2.1"]
    assert remote_hosts(labelled("a-label", "127.0.0.1")) == []
