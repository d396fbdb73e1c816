"""What a server tells and takes in numbers: times, priorities, what models have done, tensors as JSON."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="what serving needs is not installed")

from starlette.exceptions import HTTPException
from starlette.requests import Request

from launcher.serving.app import _refused
from launcher.serving.context import CLOSED, Call, Context, _headers, _pieces, _route, json_response
from launcher.serving.kserve import texts
from launcher.serving.kserve.heads import question_known
from launcher.serving.kserve.routes import model_numbers, models_listed, priority_of, seconds_of
from launcher.serving.kserve.tensors import (
    HEADER,
    Question,
    Wanted,
    described,
    json_length,
    question_of,
    read_question,
    type_name,
    wanted_of,
    write_answer,
)
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import _TOGETHER, Counted, Late, Metrics
from launcher.serving.models import Numbers, State
from launcher.serving.page import _shown
from launcher.serving.parsing.pace import LARGE
from launcher.serving.refusals import RefusalError
from launcher.serving.seeing import traces as seen
from ranks.common.tensors import OBJECT, TensorSpec

UNUSED: Any = None
X = TensorSpec("x", np.dtype(np.float32), ("b", 2))


def question(**parameters: object) -> Question:
    return Question({}, (), "", False, parameters)


@pytest.mark.parametrize(
    ("timeout", "left", "seconds"),
    [
        (None, None, None),
        (0, None, None),
        (2_500_000, None, 2.5),
        (None, 3.0, 3.0),
        (1_000_000, 3.0, 1.0),
        (9_000_000, 3.0, 3.0),
    ],
)
def test_how_long_a_request_may_take(timeout: int | None, left: float | None, seconds: float | None) -> None:
    """Triton's time-out is in microseconds."""
    assert seconds_of(question() if timeout is None else question(timeout=timeout), left) == seconds


def test_priorities() -> None:
    assert [priority_of(question(**given)) for given in ({}, {"priority": 0}, {"priority": 7})] == [0, 0, 7]
    for wrong in (-1, 2**64, True, "1"):
        with pytest.raises(RefusalError, match=r"^parameters\.priority: expected"):
            priority_of(question(priority=wrong))


def test_what_a_model_has_done() -> None:
    numbers = Numbers(4, 1, 2, waiting_ns=8_000_000, computing_ns=20_000_000, restarts=3, last=7.5)
    model: Any = SimpleNamespace(name="m", version="2", numbers=numbers)
    told: Any = model_numbers(model)
    assert (told["name"], told["version"], told["last_inference"]) == ("m", "2", 7500)
    assert (told["inference_count"], told["execution_count"]) == (4, 2)
    spent = {name: (one["count"], one["ns"]) for name, one in told["inference_stats"].items()}
    assert spent == {
        "success": (4, 28_000_000), "fail": (1, 0), "queue": (4, 8_000_000),
        "compute_infer": (4, 20_000_000), "compute_input": (4, 0), "compute_output": (4, 0),
    }  # fmt: skip


def test_models_are_listed_with_their_states() -> None:
    models = {
        name: SimpleNamespace(name=name, version="1", state=state)
        for name, state in (("a", State.READY), ("b", State.LOADING), ("c", State.UNLOADED))
    }
    context: Any = SimpleNamespace(repository=SimpleNamespace(models=models))
    assert [(one["name"], one["state"]) for one in models_listed(context, None)] == [  # type: ignore[index]
        ("a", "READY"), ("b", "LOADING"), ("c", "UNAVAILABLE")
    ]  # fmt: skip
    assert [one["name"] for one in models_listed(context, True)] == ["a"]  # type: ignore[index]
    assert len(models_listed(context, False)) == 3


def test_values_are_told_many_at_once_and_each_once() -> None:
    told: list[float] = []
    late = Late(SimpleNamespace(observe=told.append))  # type: ignore[arg-type]
    for number in range(_TOGETHER - 1):
        late.observe(number)
    assert told == []
    late.observe(-1)
    assert told == [*range(_TOGETHER - 1), -1]
    late.tell()
    assert len(told) == _TOGETHER
    counts: list[float] = []
    counted = Counted(SimpleNamespace(inc=counts.append))  # type: ignore[arg-type]
    for _ in range(3):
        counted.inc()
    counted.tell()
    counted.tell()
    assert counts == [3, 0]


def test_metrics_have_their_labels() -> None:
    metrics = Metrics()
    metrics.under_way = 5
    metrics.token("m")
    metrics.counted(metrics.requests, "m", "p", "200").inc()
    metrics.counted(metrics.requests, "m", "p", "200").inc()
    metrics.late(metrics.between, "m").observe(0.5)
    text = metrics.text().decode()
    for line in (
        "shardrun_requests_open 5.0",
        'shardrun_generated_tokens_total{model="m"} 1.0',
        'shardrun_requests_total{model="m",protocol="p",status="200"} 2.0',
        'shardrun_token_seconds_sum{model="m"} 0.5',
    ):
        assert f"{line}\n" in text
    assert 'shardrun_generated_tokens_per_second{model="m"}' in text
    assert metrics.speed("m") > 0 and metrics.speed("other") == 0


def test_the_page_shows_means() -> None:
    from launcher.serving.tensor_model import TensorModel

    groups = [SimpleNamespace(weights_version=2, said={1: "w"}, state="ready", stats=[
        SimpleNamespace(rank=rank, host="h", weight_bytes=3, segments=1, collectives=2) for rank in range(2)
    ])]  # fmt: skip

    class Model(TensorModel):
        state = State.LOADING  # type: ignore[assignment]
        waiting = 4  # type: ignore[assignment]
        groups = ()  # type: ignore[assignment]

        def __init__(self) -> None:
            self.name, self.version = "m", "1"
            self.numbers = Numbers(4, 1, 2, waiting_ns=8_000_000, computing_ns=20_000_000, restarts=3)

        def look(self) -> None:
            pass

    model = Model()
    Model.groups = groups  # type: ignore[assignment]
    found = _shown(model, 0.0)
    assert (found["computing_ms"], found["waiting_ms"]) == (5.0, 2.0)
    names = ("answered", "failed", "restarts", "updates", "waiting", "state", "kind")
    assert [found[name] for name in names] == [4, 1, 3, 2, 4, "LOADING", "tensors"]
    assert [(rank["rank"], rank["work"]) for rank in found["ranks"]] == [(0, None), (1, "w")]  # type: ignore[index, union-attr]
    model.numbers = Numbers()
    assert "computing_ms" not in _shown(model, 0.0)


@pytest.mark.parametrize(
    ("header", "size", "length"),
    [
        (None, 9, 9),
        ("9", 9, 9),
        ("0", 9, 0),
        ("10", 9, None),
        ("-1", 9, None),
        ("1" * 21, 9, None),
        ("²", 9, None),
    ],
)
def test_how_much_of_a_body_is_json(header: str | None, size: int, length: int | None) -> None:
    assert json_length(header, size) == length


def body(**more: Any) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", **more}]}).encode()


def test_tensors_as_json_and_as_bytes() -> None:
    plain = read_question(body(data=[1, 2.5]), None, [X])
    assert plain.feeds["x"].tolist() == [[1.0, 2.5]] and plain.feeds["x"].dtype == np.float32
    assert (plain.outputs, plain.id, plain.binary) == ([], "", False)
    head = body(parameters={"binary_data_size": 8})
    raw = np.array([3, 4], "<f4").tobytes()
    for _ in range(3):  # its head is read once from the second time on
        known = question_known(head + raw, str(len(head)))
    assert known is not None and known.feeds["x"].tolist() == [[3.0, 4.0]]
    found = read_question(head + raw, str(len(head)), [X])
    assert found.feeds["x"].tolist() == [[3.0, 4.0]]
    for rest, message in ((raw + b"x", "1 bytes more"), (raw[:4], "at most the 4 bytes left, found 8")):
        assert question_known(head + rest, str(len(head))) is None
        with pytest.raises(RefusalError, match=message):
            read_question(head + rest, str(len(head)), [X])
    both = body(data=[1, 2], parameters={"binary_data_size": 8})
    with pytest.raises(RefusalError, match="data: it excludes parameters"):
        read_question(both + raw, str(len(both)), [X])
    axes = json.dumps(
        {"inputs": [{"name": "x", "shape": [1] * 32, "datatype": "BOOL", "data": [1]}]}
    ).encode()
    assert read_question(axes, None, [X]).feeds["x"].shape == (1,) * 32


def test_outputs_that_are_asked_for() -> None:
    asked = question_of(
        {
            "inputs": [], "id": "7", "parameters": {"binary_data_output": True},
            "outputs": [{"name": "a"}, {"name": "b", "parameters": {"binary_data": False}}],
        },
        UNUSED,
    )  # fmt: skip
    assert asked.outputs == [Wanted("a", True), Wanted("b", False)] and (asked.id, asked.binary) == (
        "7",
        True,
    )
    outputs = {"b": np.zeros(1), "a": np.zeros(2), "c": np.zeros(3)}
    assert [one.name for one, _ in wanted_of(asked, outputs)] == ["a", "b"]
    every = wanted_of(Question({}, (), "", True, {}), outputs)
    assert [(one.name, one.binary) for one, _ in every] == [("b", True), ("a", True), ("c", True)]
    with pytest.raises(RefusalError, match='no output "a": there is b'):
        wanted_of(asked, {"b": np.zeros(1)})


def test_an_answer_and_the_bytes_behind_it() -> None:
    outputs = {"y": np.array([[1.5]], np.float32), "t": np.array(["ä", "b"], OBJECT)}
    data, length = write_answer("m", "3", Question({}, [Wanted("y", False)], "", False, {}), outputs)
    assert length is None and json.loads(data) == {
        "model_name": "m", "model_version": "3",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [1.5]}],
    }  # fmt: skip
    asked = Question({}, [Wanted("t", True), Wanted("y", True)], "9", False, {})
    data, length = write_answer("m", "3", asked, outputs)
    assert length is not None and json.loads(data[:length])["id"] == "9"
    sizes = [one["parameters"]["binary_data_size"] for one in json.loads(data[:length])["outputs"]]
    assert sizes == [11, 4] and data[length:] == b"\2\0\0\0\xc3\xa4\1\0\0\0b" + np.float32(1.5).tobytes()


def test_how_specs_are_told() -> None:
    assert described(X) == {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    spec = TensorSpec("t", OBJECT, (), open_rank=True)
    assert described(spec) == {"name": "t", "datatype": "BYTES", "shape": [-1]}
    assert [type_name(np.dtype(name)) for name in ("bool", "uint8", "float16", "complex64", "U3", "S2")] == [
        "BOOL", "UINT8", "FP16", "COMPLEX64", "BYTES", "BYTES"
    ]  # fmt: skip


def flag(value: bool) -> Any:
    return np.array([value])


def text(value: str) -> Any:
    return np.array([value], OBJECT)


MODEL: Any = SimpleNamespace(
    limits=ServeLimits(), ready=SimpleNamespace(model=SimpleNamespace(manner=SimpleNamespace(defaults=None)))
)


@pytest.mark.parametrize(
    ("more", "stream", "before", "tokens"),
    [
        ({}, False, "hi", 256),
        ({texts.WITHOUT: flag(True)}, False, "", 256),
        ({texts.WITHOUT: flag(False)}, False, "hi", 256),
        ({texts.STREAM: flag(True)}, True, "", 256),
        ({texts.STREAM: flag(False)}, False, "hi", 256),
        ({texts.SAMPLING: text('{"max_tokens": "7", "stop": "7"}')}, False, "hi", 7),
    ],
)
def test_texts_as_tensors(more: dict[str, Any], stream: bool, before: str, tokens: int) -> None:
    found = texts.asked(MODEL, {texts.PROMPT: text("hi"), **more})
    assert (found.prompt, found.stream, found.before) == ("hi", stream, before)
    assert found.options.max_new_tokens == tokens
    assert found.options.stop == (("7",) if texts.SAMPLING in more else ())  # a text stays one


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({texts.STREAM: flag(True), texts.WITHOUT: flag(False)}, "a stream holds what is new alone"),
        ({texts.STREAM: flag(True), texts.SAMPLING: text('{"n": 2}')}, "n: expected 1 for a stream, found 2"),
        ({texts.SAMPLING: text('{"echo": true}')}, r"sampling_parameters\.echo: this is not for models"),
    ],
)
def test_texts_as_tensors_that_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusalError, match=message):
        texts.asked(MODEL, {texts.PROMPT: text("hi"), **more})


def request(path: str = "/", **scope: Any) -> Request:
    return Request(
        {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", **scope}
    )


def test_what_is_not_possible_at_a_path_says_what_is() -> None:
    found = asyncio.run(_refused(request(), HTTPException(405, headers={"Allow": "POST"})))
    assert found.status_code == 405 and found.headers["allow"] == "POST"
    assert json.loads(found.body) == {"error": "GET is not possible at this path"}
    found = asyncio.run(_refused(request(), HTTPException(404)))
    assert json.loads(found.body) == {"error": "there is nothing at this path"}


def test_heads_of_requests() -> None:
    """Of a name that comes twice the first counts."""
    given = [(b"a", b"1"), (b"b", "ä".encode("latin-1")), (b"a", b"2")]
    assert _headers(request(headers=given)) == {"a": "1", "b": "ä"}


@pytest.mark.parametrize(
    ("path", "names", "route"),
    [
        ("/v2/models/bert/infer", {"model": "bert"}, "/v2/models/{model}/infer"),
        ("/v2/models/m/infer", {"model": "m"}, "/v2/models/{model}/infer"),
        ("/v2/models/v2/infer", {"model": "v2"}, "/v2/models/{model}/infer"),
        ("/v2/models/infer/infer", {"model": "infer"}, "/v2/models/{model}/infer"),
        ("/v2/models/m/versions/1", {"model": "m", "version": "1"}, "/v2/models/{model}/versions/{version}"),
        (
            "/v2/repository/models/re/versions/2/load",
            {"model": "re", "version": "2"},
            "/v2/repository/models/{model}/versions/{version}/load",
        ),
        ("/v2/health/live", {}, "/v2/health/live"),
    ],
)
def test_a_route_has_no_names_of_models(path: str, names: dict[str, str], route: str) -> None:
    assert _route(request(path, path_params=names)) == route


@pytest.mark.parametrize("size", [0, 1, LARGE, LARGE + 1, 2 * LARGE, 2 * LARGE + 1])
def test_large_answers_go_in_pieces(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    message = {"type": "http.response.body", "body": data[:size], "more_body": False}
    found = list(_pieces(message))
    assert b"".join(one["body"] for one in found) == data[:size]
    assert all(len(one["body"]) <= LARGE for one in found)
    assert [one["more_body"] for one in found] == [True] * (len(found) - 1) + [False]
    assert len(found) == max(1, -(-size // LARGE))


def context(**limits: Any) -> Context:
    return Context(UNUSED, ServeLimits(**limits), Metrics())


def test_bodies_under_way_are_bounded_together() -> None:
    own = context(held=100)
    one, two = (Call(own, UNUSED, str(number), "c") for number in range(2))
    one.hold(150)  # the only one may be larger
    one.hold(50)
    with pytest.raises(RefusalError, match="bodies of 100 bytes are under way already") as caught:
        two.hold(1)
    assert caught.value.status == HTTPStatus.SERVICE_UNAVAILABLE and caught.value.retry
    assert own.held == 200
    one.release()
    one.release()
    two.hold(100)
    assert own.held == 100
    with pytest.raises(RefusalError):
        one.hold(1)
    two.release()
    assert own.held == 0


def test_what_comes_of_a_body_is_counted_where_it_is_large() -> None:
    own = context()
    call = Call(own, UNUSED, "1", "c")
    call.hold(10)
    for size, held in ((LARGE, 10), (LARGE + 1, LARGE + 1), (5, LARGE + 1)):
        call.grow(size)
        assert own.held == held


def test_all_that_a_request_has_begun_ends_with_it() -> None:
    call = Call(context(), UNUSED, "1", "c")
    ended: list[int] = []

    def fails() -> None:
        raise KeyError

    call.closing += [lambda: ended.append(1), fails, lambda: ended.append(2)]
    with pytest.raises(KeyError):
        call.release()
    assert ended == [2, 1] and not call.closing


def test_json_that_no_stream_can_write() -> None:
    found = json_response({"a": "\ud800ä"}, 201, {"x-y": "z"})
    assert found.body == '{"a": "?ä"}'.encode() and found.status_code == 201
    assert found.headers["x-y"] == "z" and found.headers["content-type"] == "application/json"
    with pytest.raises(ValueError, match="Out of range"):
        json_response([float("nan")])
    assert CLOSED == 499 and HEADER == "inference-header-content-length"


@pytest.mark.parametrize(
    ("name", "value", "exported"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1", 1),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:1", 1),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "", 0),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://localhost:1", 0),
    ],
)
def test_spans_are_sent_where_a_collector_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, exported: int
) -> None:
    pytest.importorskip("opentelemetry.trace", reason="the package of spans is not installed")
    begun: list[None] = []
    monkeypatch.setattr(seen, "_export", lambda: begun.append(None))
    for other in (*seen._ENDPOINTS, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    seen.traces_here()
    assert len(begun) == exported
