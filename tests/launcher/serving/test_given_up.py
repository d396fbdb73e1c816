"""What is given up in the midst, at any moment: who waits is answered, and nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="what serving needs is not installed")

from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest

from launcher.errors import LaunchError
from launcher.generation.options import GenerateOptions
from launcher.serving import tensor_model
from launcher.serving.context import CLOSED, Frame
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import Repository, State
from launcher.serving.refusals import RefusalError
from launcher.serving.seeing.numbers import RankCollector
from launcher.serving.tensor_model import AHEAD, TensorModel
from launcher.serving.text_model import TextModel, _submitted
from launcher.serving.upkeep.versions import check_alike
from launcher.serving.upkeep.weights import of_file
from ranks.common.tensors import TensorSpec
from tests.launcher.serving.playing import SPEC, URL, Gate, Played, ask, played
from tests.ranks.threads import until

FEEDS = {"x": np.ones(1, np.float32)}
SECONDS = 30


def ran(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, SECONDS))


def made(open_group: Any, name: str = "played", version: str = "1") -> TensorModel:
    return TensorModel(name, ServeLimits(), Metrics(), version=version, open_group=open_group)


def test_a_run_that_has_not_begun_is_answered() -> None:
    """Where the model is unloaded between the sending of a run and the first step of who waits for it."""
    gate = Gate()

    async def work() -> None:
        model = made(gate)
        await model.load()
        asking = asyncio.create_task(model.predict(FEEDS, client=""))
        while not model._runs:
            await asyncio.sleep(0)
        await model.unload()
        with pytest.raises(RefusalError, match="unloaded"):
            await asyncio.wait_for(asking, 5)
        assert not model._runs

    try:
        ran(work())
    finally:
        gate.open.set()


@pytest.mark.parametrize("steps", range(4))
def test_an_unload_whose_client_goes_away_is_done_all_the_same(steps: int) -> None:
    groups: list[Played] = []

    def open_group() -> Played:
        groups.append(Played())
        return groups[-1]

    async def work() -> None:
        model = made(open_group)
        await model.load()
        assert (await model.predict(FEEDS, client=""))["y"] == [2]
        unloading = asyncio.create_task(model.unload())
        for _ in range(steps):
            await asyncio.sleep(0)
        unloading.cancel()
        await asyncio.wait({unloading})
        await model.load()
        assert (await model.predict(FEEDS, client="", seconds=5))["y"] == [2]
        await model.unload()
        assert [group.closed for group in groups] == [1] * len(groups)

    ran(work())


def test_a_text_whose_client_goes_away_while_its_prompt_is_read_ends() -> None:
    began, go_on, cancelled = threading.Event(), threading.Event(), threading.Event()

    def submit(*args: Any, **named: Any) -> Any:
        began.set()
        assert go_on.wait(SECONDS)
        return SimpleNamespace(cancel=cancelled.set, prompt=[1])

    engine = SimpleNamespace(submit=submit, closed=False, busy=False, waiting=0, close=lambda: None)
    language = SimpleNamespace(
        tokenizer=None, groups=[Played()], engine=lambda **named: engine, close=lambda: None
    )

    async def work() -> None:
        model = TextModel("told", ServeLimits(), Metrics(), open_model=lambda: language)  # type: ignore[arg-type,return-value]
        await model.load()
        asking = asyncio.create_task(model.submit("hello", GenerateOptions()))
        assert await asyncio.to_thread(began.wait, SECONDS)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        go_on.set()
        assert await asyncio.to_thread(cancelled.wait, 5)
        await model.unload()

    try:
        ran(work())
    finally:
        go_on.set()


def test_who_unloads_a_model_while_the_server_starts_does_not_end_it() -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow() -> Played:
        began.set()
        assert go_on.wait(SECONDS)
        return Played()

    async def work() -> None:
        first, other = made(slow, "first"), made(Played, "other")
        repository = Repository({"first": first, "other": other})
        loading = asyncio.create_task(repository.load_all())
        assert await asyncio.to_thread(began.wait, SECONDS)
        unloading = asyncio.create_task(repository.unload("first"))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(loading, unloading)
        assert (first.state, other.state) == (State.UNLOADED, State.READY)
        await repository.close()

    ran(work())


def test_a_version_that_comes_while_the_server_starts_is_the_only_one() -> None:
    began, go_on, groups = threading.Event(), threading.Event(), list[Played]()

    def slow() -> Played:
        began.set()
        assert go_on.wait(SECONDS)
        return Played()

    def counted() -> Played:
        groups.append(Played())
        return groups[-1]

    async def work() -> None:
        first, other = made(slow, "first"), made(counted, "other")
        versions = {"other": lambda version: made(counted, "other", version)}
        repository = Repository({"first": first, "other": other}, versions=versions)
        loading = asyncio.create_task(repository.load_all())
        assert await asyncio.to_thread(began.wait, SECONDS)
        await repository.replace("other", "2", lambda found, before: None)
        go_on.set()
        await loading
        assert repository.models["other"].version == "2" and other.state is State.UNLOADED
        assert len(groups) == 1
        await repository.close()
        assert groups[0].closed == 1

    ran(work())


def test_a_start_that_fails_is_told() -> None:
    def broken() -> Played:
        raise LaunchError("no ranks")

    with pytest.raises(LaunchError, match="no ranks"):
        ran(Repository({"played": made(broken)}).load_all())


def test_other_versions_are_looked_for_beside_what_is_asked() -> None:
    """Reading a model takes a while: whoever makes one does not keep the loop."""
    threads: list[threading.Thread] = []

    def make(version: str) -> TensorModel:
        threads.append(threading.current_thread())
        time.sleep(0.05)
        return made(Played, version=version)

    async def work() -> None:
        repository = Repository({"played": made(Played)}, versions={"played": make})
        await repository.load_all()
        switching = asyncio.create_task(repository.replace("played", "2", lambda found, before: None))
        while not threads:
            await asyncio.sleep(0)
        for change in (repository.replace("played", "3", lambda *both: None), repository.unload("played")):
            with pytest.raises(RefusalError, match="is being loaded"):
                await change
        await switching
        assert repository.models["played"].version == "2" and threads != [threading.current_thread()]
        await repository.replace("played", "3", lambda found, before: None)
        await repository.close()

    ran(work())


def test_one_version_twice_is_told_once() -> None:
    """One that ends slowly and is there anew: Prometheus takes no series twice."""
    models = [made(Played), made(Played), made(Played, version="2")]
    registry = CollectorRegistry()
    registry.register(RankCollector(lambda: models))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines)) and sum("model_ready" in line for line in lines) == 2


@pytest.mark.parametrize("name", ["é" * 200 + ".npz", "w" * 251 + ".npz", "\N{GRINNING FACE}" * 70 + ".npz"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusalError, match=r"file: (expected the name|there is no)"):
        of_file(tmp_path, name, [])


@pytest.mark.parametrize("length", ["9" * 5000, "1" * 30, "²", "-1", "1.5", ""])
def test_lengths_of_heads_that_are_none(length: str) -> None:
    with played(Played) as (_found, client, _model):
        headers = {"Inference-Header-Content-Length": length.encode()}
        answer = client.post(URL, json=ask(1), headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 400 and "header-content-length" in answer.json()["error"]


def test_large_answers_of_all_protocols_are_counted() -> None:
    from starlette.requests import Request
    from starlette.responses import Response

    from launcher.serving.context import Context, Frame

    held: list[int] = []
    body = b"x" * (1 << 20)

    async def work() -> None:
        context = Context(Repository({}), ServeLimits(), Metrics())
        frame = Frame(context, "openai", lambda refusal: {"error": str(refusal)})

        async def handler(call: Any) -> Response:
            return Response(body)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        app = await frame(handler)(Request(scope))

        async def send(message: Any) -> None:
            held.append(context.held)

        await app(scope, lambda: asyncio.sleep(0), send)  # type: ignore[arg-type]
        assert context.held == 0

    ran(work())
    assert held and set(held) == {len(body)}


@pytest.mark.parametrize("name", ["a?b", "a#b", "a/b", "a"])
def test_spans_have_no_names_that_clients_wrote(name: str) -> None:
    from starlette.requests import Request

    from launcher.serving.context import Context, Frame

    routes: list[str] = []
    traces = SimpleNamespace(request=lambda method, route_of, headers: routes.append(route_of()))
    context = Context(Repository({}), ServeLimits(), Metrics(), traces=traces)  # type: ignore[arg-type]
    scope = {
        "type": "http", "method": "GET", "path": f"/v1/models/{name}", "headers": [], "query_string": b"",
        "path_params": {"model": name},
    }  # fmt: skip
    Frame(context, "openai", lambda refusal: {"error": str(refusal)}).begun(Request(scope))
    assert routes == ["/v1/models/{model}"]


def test_versions_that_need_more_are_refused() -> None:
    """What could be left out of the version before cannot be needed, and embeddings cannot go."""
    other = TensorSpec("z", SPEC.dtype, SPEC.shape)

    def played_with(version: str, **own: Any) -> TensorModel:
        return made(lambda: Played(**own), version=version)

    async def work() -> None:
        before = played_with("1", optional_inputs=[other])
        embeds = dataclasses.replace(
            before, encoder=SimpleNamespace(proved=lambda predict: SimpleNamespace())
        )
        for old, inputs, said in (
            (before, [SPEC, other], "needs the input 'z'"), (embeds, [SPEC], "embeddings of texts"),
        ):  # fmt: skip
            more = [] if other in inputs else [other]
            found = played_with("2", inputs=inputs, optional_inputs=more)
            await asyncio.gather(found.load(), old.load())
            with pytest.raises(RefusalError, match=said):
                check_alike(found, old)
            check_alike(old, old)
            await asyncio.gather(found.unload(), old.unload())

    ran(work())


def test_names_that_nobody_checks_give_no_more_turns() -> None:
    """Without tokens a client is its address, whatever it calls itself each time."""
    gate = Gate()
    with played(gate) as (found, _, model), ThreadPoolExecutor(8) as threads:

        def send(number: float, address: str) -> None:
            before = model.waiting
            transport = httpx.HTTPTransport(local_address=address)
            headers = {"Authorization": f"Bearer somebody-else-{number}"}

            def one() -> int:
                with httpx.Client(transport=transport, timeout=60) as client:
                    return client.post(found.url + URL, json=ask(number), headers=headers).status_code

            sent.append(threads.submit(one))
            until(lambda: model.waiting == before + 1 or len(model._runs) == number)

        sent: list[Future[int]] = []
        for number in (1, 2, 3, 4, 5):
            send(number, "127.0.0.1")
        send(10, "127.0.0.2")
        gate.open.set()
        assert [one.result() for one in sent] == [200] * 6
    assert gate.seen == [1, 2, 3, 10, 4, 5]


def test_more_runs_are_on_their_way_where_many_in_a_row_came_back_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()

    async def most_under_way(model: TensorModel) -> int:
        gate.open.clear()
        asking = [asyncio.create_task(model.predict(FEEDS, client="")) for _ in range(AHEAD + 4)]
        while len(model._runs) + model.waiting < len(asking):
            await asyncio.sleep(0)
        found = len(model._runs)
        gate.open.set()
        await asyncio.gather(*asking)
        return found

    async def work() -> list[int]:
        model = made(gate)
        await model.load()
        found = [await most_under_way(model)]
        for soon in (10**18, 0):
            monkeypatch.setattr(tensor_model, "_QUICK_NS", soon)
            for _ in range(tensor_model._STEADY):
                await model.predict(FEEDS, client="")
            found.append(await most_under_way(model))
        await model.unload()
        return found

    try:
        monkeypatch.setattr(tensor_model, "_QUICK_NS", 0)
        assert ran(work()) == [AHEAD, AHEAD + tensor_model._MORE, AHEAD]
    finally:
        gate.open.set()


@dataclasses.dataclass
class Clocked(Played):
    """Ranks that compute one request after the other, by a clock of their own."""

    takes: int = 0
    """Nanoseconds of one run."""
    now: int = 0
    on_their_way: list[asyncio.Future[Any]] = dataclasses.field(default_factory=list)

    def _submit_fitting(self, feeds: Any) -> asyncio.Future[Any]:
        self.on_their_way.append(asyncio.get_running_loop().create_future())
        return self.on_their_way[-1]

    submit_async = _submit_fitting

    async def runs(self, count: int) -> set[int]:
        """Computes so many; how many were on their way, each time that one was ready."""
        found = set()
        for _ in range(count):
            for _ in range(20):  # of the loop, until all who ask have asked
                await asyncio.sleep(0)
            found.add(len(self.on_their_way))
            self.now += self.takes
            self.on_their_way.pop(0).set_result({"y": FEEDS["x"]})
        return found


def test_a_model_at_the_edge_does_not_change_how_many_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Clocked()
    clock = SimpleNamespace(monotonic_ns=lambda: ranks.now, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(tensor_model, "time", clock)
    more = AHEAD + tensor_model._MORE
    edge = tensor_model._QUICK_NS / more

    async def work() -> list[set[int]]:
        model = made(lambda: ranks)
        await model.load()

        async def client() -> None:
            while True:
                await model.predict(FEEDS, client="")

        clients = [asyncio.create_task(client()) for _ in range(more + 4)]
        found = []
        for takes in (3, 1.9, 1.1, 0.9, 0.1, 1.9, 3, 1.1):
            ranks.takes = int(takes * edge)
            await ranks.runs(tensor_model._STEADY + 2 * more)
            found.append(await ranks.runs(100))
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await model.unload()
        return found

    few = {AHEAD}
    assert ran(work()) == [few, few, few, {more}, {more}, {more}, few, few]


def test_what_waits_for_a_version_is_told_while_another_ends() -> None:
    gate = Gate()

    async def work() -> None:
        metrics = Metrics()
        models = [
            TensorModel("played", ServeLimits(), metrics, version=version, open_group=gate)
            for version in ("2", "1")
        ]
        metrics.watch(lambda: models)
        await asyncio.gather(*(model.load() for model in models))
        asking = [asyncio.create_task(models[0].predict(FEEDS, client="")) for _ in range(AHEAD + 3)]
        while models[0].waiting != 3:
            await asyncio.sleep(0)
        await models[1].unload()
        assert b'shardrun_queue_length{model="played"} 3.0' in metrics.text()
        gate.open.set()
        await asyncio.gather(*asking)
        assert b'shardrun_queue_length{model="played"} 0.0' in metrics.text()
        await models[0].unload()

    try:
        ran(work())
    finally:
        gate.open.set()


def test_a_text_that_begins_when_nobody_waits_for_it_ends() -> None:
    """It was handed in by a thread, which nobody can call back."""
    ended: list[str] = []
    go = threading.Event()

    def submit(fails: bool) -> Any:
        assert go.wait(SECONDS)
        if fails:
            raise LaunchError("no ranks")
        return SimpleNamespace(cancel=lambda: ended.append("ended"))

    async def work(fails: bool) -> None:
        go.clear()
        waiting = asyncio.create_task(_submitted(lambda: submit(fails)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if ended:
                break

    ran(work(fails=False))
    assert ended == ["ended"]
    go.set()
    kept = ran(_submitted(lambda: submit(fails=False)))
    assert kept is not None and ended == ["ended"]
    with pytest.raises(LaunchError, match="no ranks"):
        ran(_submitted(lambda: submit(fails=True)))


@pytest.mark.parametrize(
    ("sent", "status"),
    [([], CLOSED), ([True], CLOSED), ([True, False], 200), ([False], 200), ([None], 200)],
    ids=str,
)
def test_an_answer_that_did_not_go_out_whole_counts_as_closed(
    sent: list[bool | None], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sent``: whether more is to come after each piece of it; None: nothing is said of that."""
    told: list[int] = []
    frame: Any = Frame.__new__(Frame)
    monkeypatch.setattr(Frame, "ended", lambda frame, call, status: told.append(status))
    went: list[Any] = []

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        for more in sent:
            told_more = {} if more is None else {"more_body": more}
            await send({"type": "http.response.body", "body": b"x", **told_more})
        if not sent or sent[-1]:
            raise ConnectionError

    async def send(message: Any) -> None:
        went.append(message["body"])

    response = type("Response", (), {"status_code": 200, "__call__": staticmethod(respond)})()
    with contextlib.suppress(ConnectionError):
        ran(frame._followed(None, response)({}, None, send))
    assert told == [status] and went == [b"x"] * len(sent)
