"""Clients of one server, for benchmarks/serving.py and benchmarks/soak.py: all of them in one process.

    python benchmarks/serving_load.py

Each line on standard input is a load, as JSON; each is answered with one line of JSON. ``kind`` "whole":
each of so many ``clients`` sends the same request (``head`` and the file ``body``) to ``port`` again as
soon as it has its answer, for so many ``seconds``. All connections are in one thread, without any HTTP
library, whose 0.1 to 1 ms a request would be measured as the server's; given are all waits. "remote": the
same over gRPC, ``body`` being the message. "stream": each client asks once for a text that comes in
server-sent events; given are the waits for the first event and between two, and the tokens of all.
"""

from __future__ import annotations

import http.client
import itertools
import json
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 120.0
"""How long an answer may take."""
_END = b"\r\n\r\n"


class Broken(Exception):  # noqa: N818 - it ends the measurement
    """An answer that is none."""


@dataclass
class Connection:
    """A client that has one request under way."""

    port: int
    began: float = 0.0
    sock: socket.socket = field(init=False)
    _left: memoryview = field(default_factory=lambda: memoryview(b""))
    _came: bytearray = field(default_factory=bytearray)
    _whole: int = 0

    def __post_init__(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)

    def ask(self, request: bytes) -> None:
        """Sends as much of a request as there is room for."""
        self.began, self._left = time.perf_counter(), memoryview(request)
        self._came.clear()
        self._whole = 0
        self.push()

    def push(self) -> bool:
        """Sends more of it; whether all of it is sent."""
        try:
            while self._left:
                self._left = self._left[self.sock.send(self._left) :]
        except BlockingIOError:
            return False
        return True

    @property
    def sending(self) -> bool:
        """Whether a part of the request is still here."""
        return bool(self._left)

    def pull(self) -> bytes | None:
        """Takes what has come: the whole answer, or None where more is to come. Raises `Broken`."""
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return None
        if not data:
            raise Broken(f"the server closed a connection after {bytes(self._came[:300])!r}")
        self._came += data
        if not self._whole:
            end = self._came.find(_END)
            if end < 0:
                return None
            head = bytes(self._came[:end]).lower()
            _, found, rest = head.partition(b"\r\ncontent-length:")
            if not found:
                raise Broken(f"an answer without length: {head[:300]!r}")
            self._whole = end + len(_END) + int(rest.split(b"\r\n")[0])
        return bytes(self._came) if len(self._came) >= self._whole else None


def status_of(answer: bytes) -> int:
    """The status of a whole answer."""
    return int(answer[9:12])


def body_of(answer: bytes) -> bytes:
    """Its body."""
    return answer.partition(_END)[2]


def drive(
    connections: list[Connection],
    request: Callable[[Connection], bytes | None],
    answered: Callable[[Connection, bytes], None],
) -> None:
    """Has each connection ask what ``request`` gives for it, until that is None. Raises `Broken`, and what
    ``answered`` raises."""
    with selectors.DefaultSelector() as selector:
        busy = 0
        for one in connections:
            selector.register(one.sock, selectors.EVENT_READ, one)

        def next_of(one: Connection) -> bool:
            data = request(one)
            if data is None:
                return False
            one.ask(data)
            if one.sending:
                selector.modify(one.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
            return True

        busy = sum(map(next_of, connections))
        while busy:
            ready = selector.select(SECONDS)
            if not ready:
                raise Broken(f"{busy} requests had no answer within {SECONDS:g} s")
            for key, events in ready:
                one: Connection = key.data
                if events & selectors.EVENT_WRITE and one.push():
                    selector.modify(one.sock, selectors.EVENT_READ, one)
                if events & selectors.EVENT_READ and (answer := one.pull()) is not None:
                    answered(one, answer)
                    busy -= not next_of(one)


def whole(port: int, head: str, body: bytes, clients: int, seconds: float) -> dict[str, Any]:
    """A load of requests that are answered at once."""
    request = head.encode() + body
    waits: list[float] = []
    first: list[bytes] = []
    connections = [Connection(port) for _ in range(clients)]

    def answered(one: Connection, answer: bytes) -> None:
        waits.append((time.perf_counter() - one.began) * 1e3)
        if answer[9:12] != b"200":
            raise Broken(f"an answer is {answer[:600]!r}")
        if not first:
            first.append(answer)

    began = time.perf_counter()
    until = began + seconds
    try:
        drive(connections, lambda one: request if time.perf_counter() < until else None, answered)
    finally:
        for one in connections:
            one.sock.close()
    return {
        "waits": waits, "seconds": time.perf_counter() - began, "head": first[0].partition(_END)[0].decode(),
    }  # fmt: skip


def remote(port: int, method: str, body: bytes, clients: int, seconds: float) -> dict[str, Any]:
    """A load of calls over gRPC: a thread and a channel for each client, and messages as bytes. grpcio's own
    share, of a tenth of a millisecond and more, is measured with them."""
    import grpc

    waits: list[float] = []
    failed: list[str] = []
    begin = threading.Barrier(clients + 1)

    def client() -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            call = channel.unary_unary(method)
            begin.wait()
            try:
                while (start := time.perf_counter()) < until[0]:
                    call(body, timeout=SECONDS)
                    waits.append((time.perf_counter() - start) * 1e3)
            except grpc.RpcError as error:
                failed.append(str(error))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    until = [time.perf_counter() + seconds]
    begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    if failed:
        raise Broken(failed[0])
    return {"waits": waits, "seconds": time.perf_counter() - began}


def stream(port: int, path: str, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """A load of texts, one for each client, all at once."""
    found: list[dict[str, Any]] = []
    failed: list[str] = []
    begin = threading.Barrier(len(bodies) + 1)

    def client(body: dict[str, Any]) -> None:
        begin.wait()
        try:
            found.append(text(port, path, body))
        except Exception as error:
            failed.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=client, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    if failed:
        raise Broken(failed[0])
    return {
        "first": [one["first"] for one in found],
        "gaps": [gap for one in found for gap in one["gaps"]],
        "tokens": sum(one["tokens"] for one in found),
        "seconds": time.perf_counter() - began,
    }


def text(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One text: ms to its first event and between events, and its tokens as the server counts them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    times, tokens = [], 0
    began = time.perf_counter()
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Broken(f"status {answer.status}: {answer.read(600)!r}")
        while line := answer.readline():
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise Broken(str(event["error"]))
            if any(choice.get("text") for choice in event["choices"]):
                times.append(time.perf_counter())
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    finally:
        connection.close()
    if not times or not tokens:
        raise Broken("a text without tokens")
    gaps = [(late - early) * 1e3 for early, late in itertools.pairwise(times)]
    return {"first": (times[0] - began) * 1e3, "gaps": gaps, "tokens": tokens}


def main() -> None:
    """Answers until its input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        kind = asked.pop("kind")
        try:
            if kind in {"whole", "remote"}:
                load = whole if kind == "whole" else remote
                found = load(**{**asked, "body": Path(asked["body"]).read_bytes()})
            else:
                found = stream(**asked)
        except (Broken, OSError) as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
