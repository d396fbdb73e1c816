"""The ports at which ranks find one another and their launcher."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from launcher.errors import ConfigError, LaunchError
from launcher.job import ports
from sharding.common.bounds import MAX_PORT


def test_a_free_port_is_one_that_can_be_had_on_every_interface() -> None:
    def can_be_had(port: int) -> bool:
        with socket.socket() as sock:
            try:
                sock.bind(("", port))
            except OSError:  # another program was faster
                return False
            return True

    assert any(can_be_had(ports.free_port()) for _ in range(5))


@pytest.mark.parametrize("text", ["0", str(MAX_PORT + 1), "-1", "", "x", "1.5", "²"])
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(ConfigError, match=f"MASTER_PORT must be a port from 1 to {MAX_PORT}, but is"):
        ports.check_port(text, "127.0.0.1")


def test_ports_that_are_taken_and_that_are_not() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"^Port {port} of 127\.0\.0\.1 \(MASTER_PORT\) is taken"):
            ports.check_port(str(port), "127.0.0.1")
        # Of another host nothing is known here.
        assert ports.check_port(str(port), "192.0.2.1") == port


def test_a_port_of_the_job_before_is_free() -> None:
    """Its connections may linger for a minute."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            accepted.close()  # first: it is this end that lingers
            assert client.recv(1) == b""
    assert ports.check_port(str(port), "127.0.0.1") == port
    assert ports.check_port(str(MAX_PORT), "192.0.2.1") == MAX_PORT


class Routed(socket.socket):
    """A socket whose ways to other hosts begin at the addresses of a table."""

    ways: ClassVar[dict[str, str]] = {}
    asked: ClassVar[list[str]] = []
    place = ""

    def connect(self, address: Any) -> None:
        self.place = address[0]
        self.asked.append(self.place)
        if not self.ways[self.place]:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    def getsockname(self) -> Any:
        return (self.ways[self.place], 1) if self.place else super().getsockname()


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], list[str]]:
    """Sets the table; gives the hosts to which ways are asked for from then on."""

    def made(ways: dict[str, str]) -> list[str]:
        monkeypatch.setattr(Routed, "ways", ways)
        monkeypatch.setattr(Routed, "asked", [])
        monkeypatch.setattr(ports, "socket", SimpleNamespace(**{**vars(socket), "socket": Routed}))
        return Routed.asked

    return made


@pytest.mark.parametrize(
    ("hosts", "asked"),
    [
        (["127.0.0.9", "127.0.0.8"], ["127.0.0.9", "127.0.0.8"]),
        (["127.0.0.9", "192.0.2.1", "192.0.2.2"], ["127.0.0.9", "192.0.2.1"]),
        (["192.0.2.1", "127.0.0.9"], ["192.0.2.1"]),
        ([], []),
    ],
)
def test_the_way_to_the_first_host_that_is_another_one_counts(
    route: Callable[[dict[str, str]], list[str]], hosts: list[str], asked: list[str]
) -> None:
    # 0.0.0.0 stands for an address of this machine that others reach.
    ways = {"127.0.0.9": "127.0.0.1", "127.0.0.8": "127.0.0.2", "192.0.2.1": "0.0.0.0", "192.0.2.2": ""}
    found = route(ways)
    sock, address = ports.listen_tcp(hosts)
    with sock:
        host = ways[asked[-1]] if asked else "127.0.0.1"
        assert found == asked and address == f"tcp:{host}:{sock.getsockname()[1]}"
        # It listens there already.
        socket.create_connection((host.replace("0.0.0.0", "127.0.0.1"), sock.getsockname()[1])).close()


def test_hosts_to_which_no_way_leads(route: Callable[[dict[str, str]], list[str]]) -> None:
    route({"192.0.2.1": ""})
    with pytest.raises(LaunchError, match=r"^There is no route to host '192\.0\.2\.1' \(Network is unreach"):
        ports.listen_tcp(["192.0.2.1"])


def test_an_address_at_which_nobody_can_listen(route: Callable[[dict[str, str]], list[str]]) -> None:
    route({"192.0.2.1": "192.0.2.7"})
    with pytest.raises(
        LaunchError, match=r"^The control socket cannot listen on 192\.0\.2\.7: Cannot assign"
    ):
        ports.listen_tcp(["192.0.2.1"])


def test_addresses_of_ipv6_stand_in_brackets() -> None:
    try:
        sock, address = ports.listen_tcp(["::1"])
    except LaunchError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with sock:
        assert address == f"tcp:[::1]:{sock.getsockname()[1]}"
