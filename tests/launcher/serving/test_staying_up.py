"""Ranks that die, clients that go away, floods: with ranks that the tests play, so that each moment can be
chosen, and once with real ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import launcher
from launcher.errors import RankFailedError
from launcher.serving import models
from launcher.serving.access import Tokens
from launcher.serving.batching import Batching
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import State
from launcher.serving.opening import offers
from launcher.serving.tensor_model import AHEAD, TensorModel
from launcher.serving.text_model import TextModel
from tests.launcher.serving.playing import URL, Gate, Played, ask, played
from tests.launcher.serving.running import Running, running
from tests.ranks.threads import until


class Restarting:
    """Ranks that a group starts again: lost until they ``come``. Asked for 13 they are lost for good."""

    def __init__(self) -> None:
        self.group = Played(self._act)

    def __call__(self) -> Played:
        return self.group

    def _act(self, numbers: list[float]) -> None:
        if 13 in numbers:
            self.group.state = "failed"
            raise RankFailedError("rank 1 on host a was killed by SIGKILL.", rank=1)

    def come(self) -> None:
        self.group.restarts += 1
        self.group.state = "ready"


def test_while_ranks_are_started_again() -> None:
    """What has been taken waits for them; who comes is told when to ask again."""
    gate = Gate()
    with played(gate) as (found, client, model), ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(httpx.post, found.url + URL, json=ask(i), timeout=60) for i in range(6)]
        assert gate.began.wait(30)
        until(lambda: model.waiting == 4)
        (group,) = model.groups
        group.state = "restarting"
        gate.open.set()
        until(lambda: sum(one.done() for one in sent) == 2)
        answer = client.post(URL, json=ask(9))
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
        assert "is loading" in answer.text and model.state is State.LOADING
        assert client.get("/v2/health/ready").status_code == 503
        assert client.get("/v2/health/live").status_code == 200
        assert 'shardrun_model_ready{model="played",version="1"} 0.0' in client.get("/metrics").text
        assert model.waiting == 3 and not all(one.done() for one in sent)
        group.state, group.restarts = "ready", 2
        assert [one.result().status_code for one in sent] == [200] * 6
        assert client.get("/v2/health/ready").status_code == 200
        assert 'shardrun_restarts_total{model="played"} 2.0' in client.get("/metrics").text


def test_ranks_that_do_not_come_again() -> None:
    ranks = Restarting()
    with played(ranks) as (_, client, model):
        answer = client.post(URL, json=ask(13))
        assert answer.status_code == 503 and "killed" not in answer.text
        assert int(answer.headers["retry-after"]) >= 1
        answer = client.post(URL, json=ask(3))
        assert answer.status_code == 503 and "has failed" in answer.text
        assert "retry-after" not in answer.headers and model.state is State.FAILED
        assert client.get("/v2/health/ready").status_code == 503
        until(lambda: ranks.group.closed == 1)


def test_ranks_that_are_lost_beside_joined_requests() -> None:
    """Each of these is computed once more, alone: what kills ranks takes no other with it."""
    deaths: list[list[float]] = []

    def act(numbers: list[float]) -> None:
        if 13 in numbers:
            deaths.append(numbers)
            raise RankFailedError("rank 1 on host a was killed by SIGKILL.", rank=1)

    batching = Batching(4, 20.0)
    with played(lambda: Played(act), batching=batching) as (found, _, _), ThreadPoolExecutor(4) as threads:
        numbers = (1, 13, 2, 3)
        sent = [threads.submit(httpx.post, found.url + URL, json=ask(i), timeout=60) for i in numbers]
        answers = [one.result() for one in sent]
        assert [one.status_code for one in answers] == [200, 503, 200, 200]
        assert len(deaths) == 2 and deaths[1] == [13]


def test_more_than_may_wait_are_refused_at_once() -> None:
    gate = Gate()
    with played(gate, queue=3) as (found, client, model), ThreadPoolExecutor(8) as threads:
        first = threads.submit(httpx.post, found.url + URL, json=ask(0), timeout=60)
        assert gate.began.wait(30)
        others = [
            threads.submit(httpx.post, found.url + URL, json=ask(i), timeout=60) for i in range(1, 3 + AHEAD)
        ]
        until(lambda: model.waiting == 3)
        answer = client.post(URL, json=ask(9))
        assert answer.status_code == 429 and "retry-after" in answer.headers
        assert client.get("/v2/health/live").status_code == 200
        gate.open.set()
        assert [one.result().status_code for one in (first, *others)] == [200] * (3 + AHEAD)


def test_clients_take_turns_and_priorities_go_first() -> None:
    gate = Gate()
    tokens = Tokens((b"token-of-a", b"token-of-b"))
    with played(gate, tokens=tokens) as (found, client, model), ThreadPoolExecutor(16) as threads:

        def send(token: str, number: float, **parameters: int) -> None:
            before = model.waiting
            headers = {"Authorization": f"Bearer {token}"}
            waiting.append(
                threads.submit(
                    httpx.post, found.url + URL, json=ask(number, **parameters), headers=headers, timeout=60
                )
            )
            until(lambda: model.waiting == before + 1 or not gate.began.wait(0.01) or number == 0)

        waiting: list[Any] = []
        own = {"Authorization": "Bearer token-of-a"}
        send("token-of-a", 0)
        assert gate.began.wait(30)
        waiting.append(threads.submit(client.post, URL, json=ask(0.5), headers=own))  # lies ready already
        until(lambda: len(model._runs) == AHEAD)
        for number in (1, 2, 3):
            send("token-of-a", number, priority=1)
        send("token-of-b", 10, priority=1)
        send("token-of-a", 5)
        assert client.post(URL, json=ask(9)).status_code == 401
        assert (
            client.post(URL, json=ask(9), headers={"Authorization": "Bearer token-of-c"}).status_code == 401
        )
        gate.open.set()
        assert [one.result().status_code for one in waiting] == [200] * 7
    assert gate.seen == [0, 0.5, 5, 1, 10, 2, 3]


def test_who_goes_away_or_waits_too_long_is_not_computed() -> None:
    gate = Gate()
    with played(gate) as (found, client, model), ThreadPoolExecutor(4) as threads:
        first = threads.submit(httpx.post, found.url + URL, json=ask(0), timeout=60)
        assert gate.began.wait(30)
        second = threads.submit(httpx.post, found.url + URL, json=ask(0.5), timeout=60)
        until(lambda: len(model._runs) == AHEAD)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(found.url + URL, json=ask(1), timeout=0.5)
        answer = client.post(URL, json=ask(2, timeout=200_000))
        assert answer.status_code == 504 and "did not answer within 0.2 s" in answer.text
        gate.open.set()
        assert first.result().status_code == second.result().status_code == 200
        assert client.post(URL, json=ask(3)).status_code == 200
    assert gate.seen == [0, 0.5, 3]


def test_what_is_under_way_is_answered_before_the_end() -> None:
    gate = Gate()
    with ThreadPoolExecutor(2) as threads:
        with played(gate) as (found, _, _):
            first = threads.submit(httpx.post, found.url + URL, json=ask(4), timeout=60)
            assert gate.began.wait(30)
            threading.Timer(0.5, gate.open.set).start()
        assert first.result().json()["outputs"][0]["data"] == [8]


def test_silent_connections_and_slow_bodies_are_dropped() -> None:
    from launcher.serving import server as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LOOK_SECONDS", 0.1)
        with played(Played, idle=1.0, seconds=1.0) as (found, client, _):
            host, port = found.address.split(":")
            with socket.create_connection((host, int(port))) as silent:
                silent.settimeout(30)
                assert silent.recv(1) == b""
            with socket.create_connection((host, int(port))) as slow:
                slow.settimeout(30)
                slow.sendall(f"POST {URL} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
                assert b" 408 " in slow.recv(100)
            assert client.post(URL, json=ask(1)).status_code == 200


def test_errors_that_nobody_foresaw_are_told_without_their_text(caplog: pytest.LogCaptureFixture) -> None:
    def act(numbers: list[float]) -> None:
        raise RuntimeError("secret of /home/me/models/x.onnx")

    with played(lambda: Played(act)) as (_, client, _):
        answer = client.post(URL, json=ask(1))
        assert answer.status_code == 500 and "secret" not in answer.text
    assert "secret" in caplog.text


def test_real_ranks_come_back(rows: Path) -> None:
    limits, metrics = ServeLimits(), Metrics()
    model = TensorModel(
        "rows", limits, metrics,
        open_group=lambda: launcher.start(
            rows, ranks=2, launcher="local", threads=1, restart="on-failure"
        ),
    )  # fmt: skip
    body = {
        "inputs": [
            {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1.0] * 8},
            {"name": "s", "shape": [1], "datatype": "BYTES", "data": ["a"]},
        ]
    }
    with running(model, limits=limits, metrics=metrics) as found, httpx.Client(timeout=60) as client:
        url = f"{found.url}/v2/models/rows/infer"
        expected = client.post(url, json=body).json()
        for rank in (0, 1):
            os.kill(model.ready.stats[rank].pid, signal.SIGKILL)
            assert client.post(url, json=body).json() == expected
            until(lambda: model.state is State.READY)
        until(lambda: model.numbers.restarts == 2)
    assert model.numbers.failed == 0


def test_ranks_of_texts_come_back(texts: Path) -> None:
    limits, metrics = ServeLimits(), Metrics()
    model = TextModel(
        "tiny", limits, metrics,
        open_model=lambda: launcher.load_language_model(
            texts, ranks=2, launcher="local", threads=1, restart="on-failure"
        ),
    )  # fmt: skip
    ask_for: dict[str, Any] = {"model": "tiny", "prompt": "hello", "max_tokens": 20, "temperature": 0}
    before = {child.pid for child in psutil.Process().children()}
    with running(model, limits=limits, metrics=metrics) as found, httpx.Client(timeout=60) as client:
        ranks = [child.pid for child in psutil.Process().children() if child.pid not in before]
        url = f"{found.url}/v1/completions"
        expected = client.post(url, json=ask_for).json()["choices"]
        long = {**ask_for, "prompt": ["hello"] * 40, "max_tokens": 80, "stream": True, "ignore_eos": True}
        with client.stream("POST", url, json=long) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: {")
            os.kill(ranks[-1], signal.SIGKILL)
            told = [line for line in lines if line.startswith("data: ")]
        error = json.loads(told[-1].removeprefix("data: "))["error"]
        assert error["type"] == "server_error" and "killed" not in error["message"]
        until(lambda: model.state is State.READY and model.numbers.restarts == 1)
        assert client.post(url, json=ask_for).json()["choices"] == expected


def test_deaths_are_noted_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_LOOK_SECONDS", 0.01)
    group = Played()
    with played(lambda: group) as (_, client, model):
        group.state = "failed"
        until(lambda: group.closed == 1)
        assert client.get("/v2/health/ready").status_code == 503 and model.state is State.FAILED


def test_real_deaths_are_noted_while_nobody_asks(texts: Path, rows: Path) -> None:
    metrics = Metrics()
    found = [
        offer.made(ServeLimits(), metrics)
        for path in (texts, rows)
        for offer in offers({"model": path, "ranks": 1, "restart": "on-failure:2"}, None, None)
    ]
    before = {child.pid for child in psutil.Process().children()}
    with running(*found, metrics=metrics):
        for child in psutil.Process().children():
            if child.pid not in before and "rank" in " ".join(child.cmdline()):
                child.kill()
        until(lambda: all(model.numbers.restarts == 1 and model.state is State.READY for model in found))


@pytest.fixture(scope="module")
def lasting_texts(texts: Path) -> Iterator[tuple[TextModel, Running, httpx.Client]]:
    """A language model on one rank that is started again."""
    limits, metrics = ServeLimits(), Metrics()
    model = TextModel(
        "tiny", limits, metrics,
        open_model=lambda: launcher.load_language_model(
            texts, ranks=1, launcher="local", threads=1, restart="on-failure"
        ),
    )  # fmt: skip
    with running(model, limits=limits, metrics=metrics) as found, httpx.Client(timeout=60) as client:
        yield model, found, client


ASKED: dict[str, Any] = {
    "model": "tiny", "prompt": "hello", "max_tokens": 20, "temperature": 0, "ignore_eos": True
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_texts_that_have_not_begun_are_begun_again(
    lasting_texts: tuple[TextModel, Running, httpx.Client], stream: bool
) -> None:
    model, found, client = lasting_texts
    url = f"{found.url}/v1/completions"
    expected = client.post(url, json=ASKED).json()["choices"][0]["text"]
    before = model.numbers.restarts
    (group,) = model.groups
    os.kill(group.stats[0].pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(httpx.post, url, json={**ASKED, "stream": stream}, timeout=60)
        until(lambda: model.busy and group._requests._flight)
        os.kill(group.stats[0].pid, signal.SIGKILL)
        answer = sent.result()
    assert answer.status_code == 200
    if stream:
        pieces = [
            json.loads(line.removeprefix("data: "))
            for line in answer.text.splitlines()
            if line.startswith("data: {")
        ]
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == expected
    else:
        assert answer.json()["choices"][0]["text"] == expected
    until(lambda: model.numbers.restarts == before + 1)


def test_texts_are_unloaded_while_their_ranks_are_started_again(
    lasting_texts: tuple[TextModel, Running, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for these ranks, such as an engine with a new text, waits no longer."""
    monkeypatch.setattr("launcher.group.serving.crew.pause", lambda number: 60.0)
    model, found, client = lasting_texts
    (group,) = model.groups
    repository = f"{found.url}/v2/repository/models/tiny"
    os.kill(group.stats[0].pid, signal.SIGKILL)
    until(lambda: model.state is State.LOADING)
    answer = client.post(f"{found.url}/v1/completions", json={**ASKED, "prompt": ["hello"]}, timeout=0.5)
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert client.post(f"{repository}/unload").status_code == 200
    assert model.state is State.UNLOADED and group.state == "closed"
    assert client.post(f"{repository}/load").status_code == 200
    assert client.post(f"{found.url}/v1/completions", json=ASKED).status_code == 200
