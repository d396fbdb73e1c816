"""Models that are loaded, unloaded and started again while requests wait: each request gets its answer, and
no ranks stay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import launcher
from launcher.errors import ConfigError, LaunchError
from launcher.generation.options import GenerateOptions
from launcher.serving import server
from launcher.serving.access import Tokens
from launcher.serving.batching import Batching
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import State
from launcher.serving.parsing import protocol
from launcher.serving.parsing.pace import LARGE
from launcher.serving.parsing.protocol import Joined
from launcher.serving.tensor_model import AHEAD, TensorModel
from launcher.serving.text_model import Speaking, TextModel
from ranks.common.tensors import TensorSpec
from tests.launcher.serving.playing import URL, Gate, Played, ask, played, ranks_here
from tests.launcher.serving.running import running
from tests.ranks.threads import until

UNLOAD, LOAD = (f"/v2/repository/models/played/{what}" for what in ("unload", "load"))


@pytest.mark.parametrize("rows", [1, 4])
def test_unloading_answers_who_waits(rows: int) -> None:
    """Of those that wait for others to join, that are computed, and that wait."""
    gate = Gate()
    batching = Batching(rows, 20.0)
    with played(gate, batching=batching) as (found, client, model), ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(httpx.post, found.url + URL, json=ask(i), timeout=15) for i in range(3)]
        if rows == 1:
            assert gate.began.wait(30)
            until(lambda: model.waiting == 3 - AHEAD)
        else:
            until(lambda: model._worker is not None and model.metrics.under_way == 3)
        assert client.post(UNLOAD).status_code == 200
        answers = [one.result() for one in sent]
        assert [(one.status_code, "loaded" in one.text) for one in answers] == [(503, True)] * 3
        gate.open.set()
        assert client.post(LOAD).status_code == 200
        if rows == 1:
            assert client.post(URL, json=ask(3)).json()["outputs"][0]["data"] == [6]


def test_unloading_while_ranks_load_ends_that() -> None:
    may_start, groups, first = threading.Event(), list[Played](), [True]

    def open_group() -> Played:
        if not first:
            assert may_start.wait(30)
        first.clear()
        groups.append(Played())
        return groups[-1]

    with played(open_group) as (found, client, model), ThreadPoolExecutor(2) as threads:
        assert client.post(UNLOAD).status_code == 200
        loading = threads.submit(httpx.post, found.url + LOAD, timeout=30)
        until(lambda: model.state is State.LOADING)
        assert client.post(URL, json=ask(1)).status_code == 503
        unloading = threads.submit(httpx.post, found.url + UNLOAD, timeout=30)
        until(model.stopping.is_set)
        may_start.set()
        assert unloading.result().status_code == 200 and loading.result().status_code == 503
        assert model.state is State.UNLOADED
    assert [group.closed for group in groups] == [1, 1]


def test_unloading_while_ranks_are_started_again_leaves_none(rows: Path) -> None:
    """In the pause before a start, and in the midst of one."""
    before = ranks_here()
    for pause in (30.0, 0.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("launcher.group.serving.crew.pause", lambda number, pause=pause: pause)
            model = TensorModel(
                "rows", ServeLimits(), Metrics(),
                open_group=lambda: launcher.start(
                    rows, ranks=2, launcher="local", threads=1, restart="on-failure"
                ),
            )  # fmt: skip
            with running(model) as found, httpx.Client(base_url=found.url, timeout=60) as client:
                (group,) = model.groups
                os.kill(group.stats[1].pid, signal.SIGKILL)
                until(lambda model=model: model.state is State.LOADING)
                assert client.post("/v2/repository/models/rows/unload").status_code == 200
                assert model.state is State.UNLOADED and group.state == "closed"
        until(lambda: ranks_here() <= before)


def test_what_a_cancelled_start_has_started_ends() -> None:
    began, may_start, groups = threading.Event(), threading.Event(), []

    def open_group() -> Played:
        began.set()
        assert may_start.wait(30)
        groups.append(Played())
        return groups[-1]

    async def work() -> None:
        model = TensorModel("played", ServeLimits(), Metrics(), open_group=open_group)
        loading = asyncio.create_task(model.load())
        await asyncio.to_thread(began.wait, 30)
        loading.cancel()
        asyncio.get_running_loop().call_later(0.1, may_start.set)
        await asyncio.wait({loading})
        assert loading.cancelled() and model.state is State.UNLOADED

    asyncio.run(work())
    assert [group.closed for group in groups] == [1]


def test_ranks_of_a_model_whose_requests_cannot_be_joined_end() -> None:
    group = Played(outputs=[TensorSpec("y", np.dtype(np.float32), (1,))])
    model = TensorModel(
        "played", ServeLimits(), Metrics(), open_group=lambda: group, batching=Batching(rows=2)
    )
    with pytest.raises(ConfigError, match="cannot be joined"):
        asyncio.run(model.load())
    assert group.closed == 1


class Whole(Played):
    """Ranks whose output has one row, whatever comes in."""

    def predict(self, feeds: Any) -> Any:
        return {"y": feeds["x"].sum(keepdims=True)}


def test_answers_that_cannot_be_split_are_computed_apart() -> None:
    with played(Whole, batching=Batching(4, 5.0)) as (found, _, _), ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(httpx.post, found.url + URL, json=ask(i), timeout=30) for i in range(4)]
        assert [one.result().json()["outputs"][0]["data"] for one in sent] == [[0], [1], [2], [3]]


def test_who_is_gone_keeps_no_place() -> None:
    gate = Gate()
    with played(gate, queue=2) as (found, client, model), ThreadPoolExecutor(2) as threads:
        first = threads.submit(httpx.post, found.url + URL, json=ask(0), timeout=60)
        assert gate.began.wait(30)
        for number in (1, 2):
            assert client.post(URL, json=ask(number, timeout=50_000)).status_code == 504
        assert model.waiting == 0
        later = threads.submit(httpx.post, found.url + URL, json=ask(3), timeout=60)
        until(lambda: model.waiting == 1)
        gate.open.set()
        assert [first.result().status_code, later.result().status_code] == [200, 200]


def test_models_that_cannot_be_loaded_say_so() -> None:
    starts = iter([Played(), None])

    def open_group() -> Played:
        if (group := next(starts)) is None:
            raise LaunchError("rank 1 of /srv/models/x.onnx did not start")
        return group

    with played(open_group) as (_, client, _):
        assert client.post(UNLOAD).status_code == 200
        answer = client.post(LOAD)
        assert answer.status_code == 503 and "could not be loaded" in answer.text and "srv" not in answer.text


def test_one_connection_is_enough_for_one_client() -> None:
    with played(Played, connections=1) as (_, client, _):
        assert client.post(URL, json=ask(1)).status_code == 200
        with httpx.Client(base_url=client.base_url) as second:
            assert second.get("/v2/health/live").status_code == 503


def test_connections_that_stop_after_a_request_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.1)
    with played(Played, idle=1.0) as (found, _, _):
        host, port = found.address.split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.settimeout(30)
            slow.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
            told = b""
            while not told.endswith(b"}"):
                told += slow.recv(1000)
            time.sleep(0.1)  # by now the server waits for the next request
            slow.sendall(b"GET / HTTP/1.1\r\nHo")
            with pytest.raises(ConnectionResetError):
                while slow.recv(1000):
                    pass
                raise ConnectionResetError


class Long(Played):
    """Ranks that answer with 32 MB."""

    def predict(self, feeds: Any) -> Any:
        return {"y": np.zeros(1 << 23, np.float32)}


def test_who_takes_nothing_of_an_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SLOW_SECONDS", 1.0)
    sent = json.dumps({**ask(1), "parameters": {"binary_data_output": True}}).encode()
    with played(Long) as (found, _, model):
        host, port = found.address.split(":")
        with socket.create_connection((host, int(port))) as stuck:
            stuck.settimeout(30)
            head = f"POST {URL} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(sent)}\r\n\r\n"
            stuck.sendall(head.encode() + sent)
            until(lambda: model.numbers.succeeded == 1)
            time.sleep(4)
            taken = 0
            with contextlib.suppress(ConnectionResetError):
                while piece := stuck.recv(1 << 20):
                    taken += len(piece)
            assert taken < 1 << 25
        until(lambda: found.context.held == 0)


def test_bodies_under_way_are_bounded_together() -> None:
    gate, size = Gate(), len(json.dumps(ask(1)).encode())
    with played(gate, held=2 * size + 5) as (found, client, _), ThreadPoolExecutor(2) as threads:
        sent = []
        for number in (1, 2):
            sent.append(threads.submit(client.post, URL, content=json.dumps(ask(number)).encode()))
            until(lambda: found.context.held == len(sent) * size)
        answer = client.post(URL, content=json.dumps(ask(3)).encode())
        assert answer.status_code == 503 and "retry-after" in answer.headers
        gate.open.set()
        assert [one.result().status_code for one in sent] == [200, 200]
        assert client.post(URL, content=json.dumps(ask(3)).encode() + b" " * 3 * size).status_code == 200
        assert found.context.held == 0


def test_numbers_in_text_are_counted_as_the_tensors_that_they_become() -> None:
    """A number of two bytes takes four in memory."""
    count, gate = 100_000, Gate()
    x = {"name": "x", "shape": [count], "datatype": "FP32", "data": [1] * count}
    body = json.dumps({"inputs": [x]}, separators=(",", ":")).encode()
    with played(gate, held=3 * count) as (found, client, _), ThreadPoolExecutor(1) as threads:
        sent = threads.submit(client.post, URL, content=body)
        assert gate.began.wait(30)
        assert len(body) < 3 * count < 4 * count <= found.context.held
        assert client.post(URL, content=json.dumps(ask(2)).encode()).status_code == 503
        gate.open.set()
        assert sent.result().json()["outputs"][0]["data"] == [2.0] * count
        until(lambda: found.context.held == 0)


@pytest.mark.parametrize("piece", [b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
def test_heads_without_end_are_cut_off(piece: bytes) -> None:
    with played(Played) as (found, client, _):
        host, port = found.address.split(":")
        with socket.create_connection((host, int(port))) as endless:
            endless.settimeout(30)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                endless.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: ")
                for _ in range(100_000):
                    endless.sendall(piece)
        assert client.post(URL, json=ask(1)).status_code == 200


def test_tokens_of_any_letters() -> None:
    token = "schlüssel-1".encode()
    with played(Played, tokens=Tokens((token,))) as (_, client, _):
        answers = [
            client.post(URL, json=ask(1), headers={b"Authorization": scheme + value})
            for scheme, value in ((b"Bearer ", token), (b"bearer  ", token), (b"Bearer ", token[:-1]))
        ]
        assert [one.status_code for one in answers] == [200, 200, 401]


class _Broken:
    closed = False

    def submit(self, *args: object, **more: object) -> None:
        self.closed = True
        raise MemoryError

    waiting, busy, groups = 0, False, ()

    def close(self) -> None:
        pass


def test_an_engine_that_failed_gives_way_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    engines: list[Any] = []

    class Texts(TextModel):
        def _start(self) -> Speaking:
            opened.append(_Broken())
            return Speaking(opened[-1], opened[-1])

    async def work() -> None:
        model = Texts("t", ServeLimits(), Metrics(), open_model=lambda: opened[-1])
        monkeypatch.setattr(model, "_engine", lambda broken: engines.append(_Broken()) or engines[-1])
        monkeypatch.setattr(model, "_stop", lambda ready: None)
        await model.load()
        with pytest.raises(MemoryError):
            await model.submit("x", GenerateOptions())
        assert model.state is State.READY and len(engines) == len(opened) == 1
        await model.unload()

    asyncio.run(asyncio.wait_for(work(), 30))


def test_heads_wait_for_their_bodies_alone() -> None:
    """Both are one packet; a head without a body goes at once, and before the connection closes."""

    class Noting:
        def __init__(self) -> None:
            self.sent: list[bytes] = []
            self.closed = 0

        def write(self, data: bytes) -> None:
            self.sent.append(data)

        def is_closing(self) -> bool:
            return self.closed > 0

        def close(self) -> None:
            self.closed += 1

    head, large = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n", b"x" * LARGE

    async def written(*pieces: bytes, close: bool = False) -> Noting:
        transport: Any = Noting()
        joined = Joined(transport)
        for piece in pieces:
            joined.write(piece)
        if close:
            joined.close()
        await asyncio.sleep(0)
        assert joined.is_closing() == close
        return transport

    for pieces, sent in (
        ((head, b"body"), [head + b"body"]), ((head,), [head]), ((head, b""), [head]),
        ((head, memoryview(large), memoryview(b"y")), [head, large, b"y"]),
        ((head, memoryview(b"y")), [head + b"y"]),
        ((head, large), [head, large]), ((b"1\r\n", b"2"), [b"1\r\n", b"2"]),
        ((head, head, b"body"), [head + head + b"body"]),
    ):  # fmt: skip
        assert asyncio.run(written(*pieces)).sent == sent
    assert asyncio.run(written(head, close=True)).sent == [head]
