"""Bodies of requests and answers: what is large holds nobody up, and all of it is bounded."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httptools
import httpx
import numpy as np
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from launcher.serving import bodies, context, server
from launcher.serving.access import ACCESS, Tokens
from launcher.serving.kserve import heads, routes
from launcher.serving.kserve.heads import question_known
from launcher.serving.kserve.tensors import read_question
from launcher.serving.parsing import protocol
from launcher.serving.parsing.pace import LARGE
from launcher.serving.refusals import RefusalError
from tests.launcher.serving.playing import URL, Played, ask, played
from tests.ranks.threads import until

LIVE = "/v2/health/live"


class Wide(Played):
    """Ranks that answer with a million numbers of all sizes."""

    values = np.random.default_rng(0).normal(size=1 << 20).astype(np.float32) * np.float32(10) ** np.arange(
        -20, 12, dtype=np.float32
    ).repeat(1 << 15)

    def predict(self, feeds: Any) -> Any:
        return {"y": self.values}


def test_large_bodies_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read and written in a thread: others are answered meanwhile."""
    begun, go_on, threads_seen = threading.Semaphore(0), threading.Semaphore(0), []

    def slow(work: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*arguments: Any) -> Any:
            threads_seen.append(threading.current_thread().name)
            begun.release()
            assert go_on.acquire(timeout=30)
            return work(*arguments)

        return waiting

    monkeypatch.setattr(routes, "read_question", slow(routes.read_question))
    monkeypatch.setattr(routes, "write_answer", slow(routes.write_answer))
    large = json.dumps(ask(1)).encode() + b" " * LARGE
    with played(Wide) as (found, client, _), ThreadPoolExecutor(1) as threads:
        sent = threads.submit(httpx.post, found.url + URL, content=large, timeout=60)
        for _ in ("read", "written"):
            assert begun.acquire(timeout=30)
            assert client.get(LIVE).status_code == 200 and not sent.done()
            go_on.release()
        answer = sent.result()
        assert answer.status_code == 200
        until(lambda: found.context.held == 0)
    # In JSON, too, each number is the one that the ranks gave.
    assert (np.array(answer.json()["outputs"][0]["data"], np.float32) == Wide.values).all()
    assert len(threads_seen) == 2 and all(name.startswith("shardrun bodies") for name in threads_seen)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["FP32", "INT64", "BOOL", "BYTES"])
def test_long_lists_of_json_are_read_exactly(kind: str, nested: bool) -> None:
    count = 100_001  # not a multiple of anything that is done at once
    random = np.random.default_rng(1)
    values: list[Any] = {
        "FP32": lambda: random.normal(size=count).astype(np.float32).tolist(),
        "INT64": lambda: random.integers(-(2**63), 2**63 - 1, count).tolist(),
        "BOOL": lambda: random.integers(0, 2, count).astype(bool).tolist(),
        "BYTES": lambda: [f"wört {number}" for number in range(count)],
    }[kind]()
    data, shape = ([[one] for one in values], [count, 1]) if nested else (values, [count])
    item = {"name": "a", "shape": shape, "datatype": kind, "data": data}
    found = read_question(json.dumps({"inputs": [item]}).encode(), None, []).feeds["a"]
    assert found.shape == tuple(shape) and found.ravel().tolist() == values


@pytest.mark.parametrize("data", [[5], [-1], [2**63], [0, 1, 2], [True, 3]])
def test_truth_is_nothing_but_true_and_false(data: list[Any]) -> None:
    item = {"name": "a", "shape": [len(data)], "datatype": "BOOL", "data": data}
    with pytest.raises(RefusalError, match="a value is outside 0 to 1"):
        read_question(json.dumps({"inputs": [item]}).encode(), None, [])


@pytest.mark.parametrize("path", ["index", "models/played/load", "models/played/weights"])
def test_large_bodies_of_any_route_are_read_in_a_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def spied(data: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return bodies.object_of(data)

    monkeypatch.setattr(context, "object_of", spied)
    admin = Tokens((b"a-token-of-an-admin",), (b"a-token-of-an-admin",))
    with played(Played, tokens=admin) as (_, client, _):
        headers = {"Authorization": "Bearer a-token-of-an-admin"}
        answer = client.post(f"/v2/repository/{path}", json={"more": "x" * (1 << 19)}, headers=headers)
        assert answer.status_code in {200, 400}
    (name,) = threads
    assert name.startswith("shardrun bodies")


class Long(Played):
    """Ranks that answer with 32 MB, more than sockets hold."""

    values = np.zeros(1 << 23, np.float32)

    def predict(self, feeds: Any) -> Any:
        return {"y": self.values}


def test_what_is_under_way_is_counted_until_it_is_taken() -> None:
    size = Long.values.nbytes
    with played(Long, held=size // 2) as (found, client, _):
        binary = {**ask(1), "parameters": {"binary_data_output": True}}
        with client.stream("POST", URL, json=binary) as answer:
            assert answer.status_code == 200
            until(lambda: found.context.held >= size)
            other = httpx.post(found.url + URL, json=binary, timeout=60)
            assert other.status_code == 503 and "retry-after" in other.headers
            assert len(answer.read()) > size
        until(lambda: found.context.held == 0)
        assert client.post(URL, json=binary).status_code == 200


def test_what_follows_a_packed_body_is_not_kept() -> None:
    packed = gzip.compress(json.dumps(ask(1)).encode())

    def pieces() -> Iterator[bytes]:
        yield packed
        for _ in range(1000):
            yield b"x" * 1000

    headers = {"Content-Encoding": "gzip"}
    with played(Played, body=100_000) as (found, client, _):
        assert client.post(URL, content=pieces(), headers=headers).status_code == 400
        assert client.post(URL, content=packed, headers=headers).status_code == 200
        # Packed blocks of nothing may be as many as one likes.
        packing = zlib.compressobj(wbits=31)
        begin = packing.flush(zlib.Z_FULL_FLUSH)
        sent = begin + b"\x00\x00\x00\xff\xff" * 30_000 + packing.flush()
        assert gzip.decompress(sent) == b""
        assert client.post(URL, content=sent, headers=headers).status_code == 413
        assert found.context.held == 0


def binary(*inputs: dict[str, Any], tail: bytes = b"", **more: object) -> tuple[bytes, str]:
    """A body of the binary extension, and its header."""
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + tail, str(len(head))


ONE = {"name": "a", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
TWO = {"name": "b", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}}


@pytest.mark.parametrize(
    "request_",
    [
        binary(ONE, TWO, tail=b"\1\0\0\0\2\0\0\0\1\0", id="5", parameters={"binary_data_output": True}),
        binary(ONE, TWO, tail=b"\1\0\0\0\2\0\0\0\1\2"),
        binary(ONE, tail=b"\1\0\0\0"),
        binary(ONE, tail=bytes(9)),
        binary(ONE, ONE, tail=bytes(16)),
        binary(ONE, {**TWO, "data": [True, False]}, tail=bytes(10)),
        binary(ONE, {**TWO, "parameters": {}, "data": [True, False]}, tail=bytes(8)),
        binary({**ONE, "parameters": {"binary_data_size": -8}}, tail=bytes(8)),
        binary({**ONE, "shape": [3]}, tail=bytes(8)),
        binary({**ONE, "datatype": "BYTES", "shape": [1]}, tail=b"\4\0\0\0abcd"),
        binary(ONE, tail=bytes(8), outputs=[{"name": "y", "parameters": {"binary_data": True}}]),
        binary(ONE, tail=bytes(8), note="x" * 2000),
        (b"{]" + bytes(8), "2"),
        (b"{}", "3"),
    ],
)
def test_a_head_that_came_before_says_the_same(request_: tuple[bytes, str]) -> None:
    def told(known: bool) -> object:
        try:
            found = (question_known(*request_) if known else None) or read_question(*request_, [])
        except RefusalError as error:
            return error.status, str(error)
        feeds = {name: (array.dtype, array.tolist()) for name, array in found.feeds.items()}
        return feeds, found.outputs, found.id, found.binary, found.parameters

    assert told(True) == told(True) == told(True) == told(False)


def test_a_head_is_read_once_from_the_second_time_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that come once, each with an id of its own, are not read here, and take no room from it."""
    read: list[bytes] = []
    monkeypatch.setattr(heads, "object_of", lambda data: read.append(data) or bodies.object_of(data))
    same = {**ONE, "name": "same"}
    assert question_known(*binary(same, tail=bytes(8))) is None and not read
    for number in range(300):
        data, header = binary(same, tail=bytes([number % 7, *bytes(7)]))
        found = question_known(data, header)
        assert found is not None and found.feeds["same"].tolist() == [[number % 7, 0]]
        assert question_known(*binary(same, tail=bytes(8), id=f"number {number}")) is None
    assert len(read) == 1
    assert question_known(b"{}", None) is None


def sent_whole(address: str, *pieces: bytes) -> bytes:
    """What a client gets that sends all it has before it reads, and then until the other side closes."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as made:
        for piece in pieces:
            made.sendall(piece)
        return b"".join(iter(lambda: made.recv(1 << 16), b""))


@pytest.mark.parametrize(
    "how", ["Connection: close\r\nContent-Length: %d", "Transfer-Encoding: chunked\r\nConnection: close"]
)
def test_a_refusal_reaches_who_still_sends(how: str) -> None:
    most = 1 << 17
    body = b"x" * (64 * most)
    with played(Played, body=most) as (found, client, _):
        head = f"POST {URL} HTTP/1.1\r\nHost: a\r\n{how % len(body) if '%' in how else how}\r\n\r\n".encode()
        first = b"%x\r\n" % len(body) if "chunked" in how else b""
        for path in (head, head.replace(b"/infer", b"/nothing")):
            answer = sent_whole(found.address, path, first, body)
            assert b"\r\nconnection: close\r\n" in answer, answer
            assert answer.startswith(b"HTTP/1.1 413 " if path is head else b"HTTP/1.1 404 ")
        old = head.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Connection: close\r\n", b"")
        if not first:
            assert sent_whole(found.address, old, body).startswith(b"HTTP/1.1 413 ")
        assert client.get(LIVE).status_code == 200


def cut_while_it_sends(connection: socket.socket) -> None:
    """That a connection on which byte after byte comes is ended by the server."""
    with pytest.raises(OSError, match=r"reset|pipe"):
        for _ in range(600):
            connection.sendall(b"x")
            time.sleep(0.05)


def test_what_is_read_for_a_refusal_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_LINGER_BYTES", 1 << 20)
    head = f"POST {URL} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {1 << 40}\r\n\r\n"
    with played(Played, body=1) as (found, _, _):
        with pytest.raises(OSError, match=r"reset|pipe"):
            sent_whole(found.address, head.encode(), *(b"x" * (1 << 20) for _ in range(64)))
        monkeypatch.setattr(protocol, "_LINGER_SECONDS", 0.1)
        host, port = found.address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as still:  # which sends nothing more
            still.sendall(head.encode())
            assert b" 413 " in b"".join(iter(lambda: still.recv(1 << 16), b""))
            cut_while_it_sends(still)


def test_a_refused_body_that_does_not_end_on_a_connection_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks nothing: it is read for as long as such a connection stays."""
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.1)
    head = f"POST {URL} HTTP/1.1\r\nHost: a\r\nContent-Length: {1 << 40}\r\n\r\n"
    with played(Played, body=1, idle=1.0) as (found, _, _):
        host, port = found.address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as made:
            made.sendall(head.encode())
            assert b" 413 " in made.recv(1 << 16)
            cut_while_it_sends(made)


def test_a_server_ends_though_clients_have_sent_half_of_what_they_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a head, half of the next one, and bodies that were refused before they came, with and without an
    end of the connection."""
    monkeypatch.setattr(protocol, "_LINGER_SECONDS", 3600.0)
    whole = f"GET {LIVE} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    refused = f"POST {URL} HTTP/1.1\r\nHost: a\r\n%sContent-Length: {1 << 20}\r\n\r\nx"
    with contextlib.ExitStack() as stack:
        found, _, _ = stack.enter_context(played(Played, body=1, drain=3600.0))
        host, port = found.address.split(":")
        asking = [b"GET /v2/hea", whole + b"GET /v2/hea"]
        asking += [(refused % close).encode() for close in ("", "Connection: close\r\n")]
        clients = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in asking
        ]
        for client, sent in zip(clients, asking, strict=True):
            client.sendall(sent)
        told = [client.recv(1 << 16) for client in clients[1:]]
        assert [answer.split(b" ")[1] for answer in told] == [b"200", b"413", b"413"]
        found.stop()  # and has ended


def test_of_many_offers_of_another_protocol_none_is_copied_with_all_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed: list[int] = []

    class Counting(httptools.HttpRequestParser):
        def feed_data(self, data: Any) -> None:
            fed.append(0 if isinstance(data, memoryview) else len(data))
            super().feed_data(data)

    monkeypatch.setattr("httptools.HttpRequestParser", Counting)
    one = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    last = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with played(Played) as (found, _, _):
        answers = sent_whole(found.address, one * 300 + last)
    assert answers.count(b"HTTP/1.1 200 OK") == 301
    assert len(one) * 200 < sum(fed) < len(one) * 300


def test_nothing_private_of_uvicorn_is_replaced() -> None:
    """Another version may not have it."""
    own = {name for name in vars(protocol.Protocol) if name[0] == "_" and not name.startswith("__")}
    assert not own & set(dir(HttpToolsProtocol))


def test_much_in_little_is_bounded_while_it_is_unpacked() -> None:
    headers = {"Content-Encoding": "deflate"}
    most = 4 * LARGE
    with played(Played, body=most) as (found, client, _):
        for size, status in ((most, 200), (most + 1, 413), (100 * most, 413)):
            body = json.dumps(ask(1)).encode()
            sent = zlib.compress(body + b" " * (size - len(body)))
            assert client.post(URL, content=sent, headers=headers).status_code == status
        assert found.context.held == 0


def test_an_address_that_a_client_gives_itself_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    with played(Played) as (_, client, _), caplog.at_level("INFO", ACCESS):
        headers = {"X-Forwarded-For": "9.8.7.6", "X-Forwarded-Proto": "https"}
        assert client.post(URL, json=ask(1), headers=headers).status_code == 200
    logged = [json.loads(one.message) for one in caplog.records if one.name == ACCESS]
    assert [one["client"] for one in logged] == ["127.0.0.1"]
