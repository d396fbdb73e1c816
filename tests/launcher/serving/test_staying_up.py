"""Ranks that die, clients that go away, floods: with ranks that the tests play, so that each moment can be
chosen, and once with real ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import launcher
from launcher.errors import LaunchError, RankFailedError
from launcher.serving import models
from launcher.serving.access import Tokens
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import State
from launcher.serving.opening import offers
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel
from tests.launcher.serving.playing import URL, Gate, Played, ask, played, until
from tests.launcher.serving.running import running


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_BACK_OFF", 0.01)


class Deaths:
    """Ranks that die when they are asked for 13, ``times`` times; starting fails ``failing`` times."""

    def __init__(self, times: int, failing: int = 0) -> None:
        self.times, self.failing, self.starts = times, failing, 0
        self.groups: list[Played] = []

    def __call__(self) -> Played:
        self.starts += 1
        if self.starts > 1 and self.failing:
            self.failing -= 1
            raise LaunchError("no room")
        self.groups.append(Played(self._act))
        return self.groups[-1]

    def _act(self, numbers: list[float]) -> None:
        if 13 in numbers and self.times:
            self.times -= 1
            raise RankFailedError("rank 1 on host a was killed by SIGKILL.", rank=1)


@pytest.mark.parametrize("failing", [0, 2])
def test_what_was_not_answered_is_computed_once_more(soon: None, failing: int) -> None:
    ranks = Deaths(1, failing)
    with played(ranks, again=True) as (_, client, model):
        assert client.post(URL, json=ask(13)).json()["outputs"][0]["data"] == [26]
        assert client.post(URL, json=ask(3)).status_code == 200
        assert model.numbers.restarts == 1 + failing and ranks.starts == 2 + failing
        assert 'shardrun_restarts_total{model="played"}' in client.get("/metrics").text
    assert [group.closed for group in ranks.groups] == [1, 1]


def test_a_request_that_kills_ranks_is_not_repeated_for_ever(soon: None) -> None:
    with played(Deaths(2), again=True) as (_, client, model):
        answer = client.post(URL, json=ask(13))
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
        assert "killed" not in answer.text
        until(lambda: model.state is State.READY)
        assert client.post(URL, json=ask(3)).status_code == 200
        assert model.numbers.restarts == 2


def test_ranks_that_die_too_often_stay_down(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MOST_RESTARTS", 2)
    with played(Deaths(99), again=True) as (_, client, model):
        for _ in range(2):
            until(lambda: model.state is not State.LOADING)
            assert client.post(URL, json=ask(13)).status_code == 503
        until(lambda: model.state is State.FAILED)
        answer = client.post(URL, json=ask(3))
        assert (
            answer.status_code == 503 and "has failed" in answer.text and "retry-after" not in answer.headers
        )
        assert client.get("/v2/health/ready").status_code == 503
        assert client.get("/v2/health/live").status_code == 200


def test_without_restart_the_model_stays_down() -> None:
    with played(Deaths(1)) as (_, client, model):
        assert client.post(URL, json=ask(13)).status_code == 503
        assert client.post(URL, json=ask(3)).status_code == 503 and model.state is State.FAILED


def test_more_than_may_wait_are_refused_at_once() -> None:
    gate = Gate()
    with played(gate, queue=3) as (found, client, model), ThreadPoolExecutor(8) as threads:
        first = threads.submit(httpx.post, found.url + URL, json=ask(0), timeout=60)
        assert gate.began.wait(30)
        others = [threads.submit(httpx.post, found.url + URL, json=ask(i), timeout=60) for i in (1, 2, 3)]
        until(lambda: model.waiting == 3)
        answer = client.post(URL, json=ask(9))
        assert answer.status_code == 429 and "retry-after" in answer.headers
        assert client.get("/v2/health/live").status_code == 200
        gate.open.set()
        assert [one.result().status_code for one in (first, *others)] == [200] * 4


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
        send("token-of-a", 0)
        assert gate.began.wait(30)
        for number in (1, 2, 3):
            send("token-of-a", number, priority=1)
        send("token-of-b", 10, priority=1)
        send("token-of-a", 5)
        assert client.post(URL, json=ask(9)).status_code == 401
        assert (
            client.post(URL, json=ask(9), headers={"Authorization": "Bearer token-of-c"}).status_code == 401
        )
        gate.open.set()
        assert [one.result().status_code for one in waiting] == [200] * 6
    assert gate.seen == [0, 5, 1, 10, 2, 3]


def test_who_goes_away_or_waits_too_long_is_not_computed() -> None:
    gate = Gate()
    with played(gate) as (found, client, _), ThreadPoolExecutor(4) as threads:
        first = threads.submit(httpx.post, found.url + URL, json=ask(0), timeout=60)
        assert gate.began.wait(30)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(found.url + URL, json=ask(1), timeout=0.5)
        answer = client.post(URL, json=ask(2, timeout=200_000))
        assert answer.status_code == 504 and "did not answer within 0.2 s" in answer.text
        gate.open.set()
        assert first.result().status_code == 200
        assert client.post(URL, json=ask(3)).status_code == 200
    assert gate.seen == [0, 3]


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


def test_real_ranks_come_back(rows: Path, soon: None) -> None:
    limits, metrics = ServeLimits(), Metrics()
    model = TensorModel(
        "rows", limits, metrics, True,
        open_group=lambda: launcher.start(rows, ranks=2, launcher="local", threads=1),
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
    assert model.numbers.restarts == 2 and model.numbers.failed == 0


def test_ranks_of_texts_come_back(texts: Path, soon: None) -> None:
    limits, metrics = ServeLimits(), Metrics()
    model = TextModel(
        "tiny", limits, metrics, True,
        open_model=lambda: launcher.load_language_model(texts, ranks=2, launcher="local", threads=1),
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


@pytest.mark.parametrize("again", [True, False])
def test_deaths_are_noted_while_nobody_asks(soon: None, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_LOOK_SECONDS", 0.01)
    groups: list[Played] = []

    def open_group() -> Played:
        groups.append(Played())
        return groups[-1]

    with played(open_group, again=again) as (_, client, model):
        groups[0].state = "failed"
        wanted = State.READY if again else State.FAILED
        until(lambda: model.state is wanted and model.numbers.restarts == int(again))
        until(lambda: groups[0].closed == 1)
        assert client.get("/v2/health/ready").status_code == (200 if again else 503)
        assert len(groups) == 1 + again


def test_real_deaths_are_noted_while_nobody_asks(texts: Path, rows: Path, soon: None) -> None:
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
