"""What a server says of its work: spans by OpenTelemetry's own exporter, the log of requests, metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("prometheus_client", reason="what serving needs is not installed")

from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from launcher.serving.access import ACCESS, Tokens
from launcher.serving.app import application
from launcher.serving.metrics import Metrics
from launcher.serving.seeing.numbers import Rate
from launcher.serving.seeing.traces import Trace, Traces
from tests.launcher.serving.playing import URL, Played, ask, played
from tests.launcher.serving.running import Running
from tests.ranks.threads import until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""As the W3C's recommendation on Trace Context has it: version, trace, parent, sampled."""
ASKED = {"model": "tiny", "prompt": "hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def spans(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An exporter that keeps the spans of the server."""
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="needs opentelemetry-sdk"
    )
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter, provider = memory.InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(server.context, "traces", Traces(provider.get_tracer("test")))
    yield exporter
    provider.shutdown()


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def by_name(exporter: Any, ending: str) -> tuple[Any, dict[str, Any]]:
    """The span of the request whose path ends so, and those below it."""

    def found() -> list[Any]:
        return [one for one in exporter.get_finished_spans() if one.name.endswith(ending)]

    until(found)
    (root,) = found()
    below = [one for one in exporter.get_finished_spans() if one.parent and one.parent is not root.parent]
    return root, {one.name: one for one in below if one.parent.span_id == root.context.span_id}


def rows() -> dict[str, Any]:
    x = {"name": "x", "shape": [2, 8], "datatype": "FP32", "data": [1.0] * 16}
    s = {"name": "s", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
    return {"inputs": [x, s]}


def test_spans_of_tensors(http: httpx.Client, spans: Any) -> None:
    sent = {"traceparent": PARENT, "tracestate": "theirs=1,others=2"}
    answer = http.post("/v2/models/rows/infer", json=rows(), headers=sent)
    assert answer.status_code == 200
    root, below = by_name(spans, "/infer")
    assert root.name == "POST /v2/models/{model}/infer" and root.kind.name == "SERVER"
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]
    assert dict(root.context.trace_state) == {"theirs": "1", "others": "2"}
    said = root.attributes
    assert said["http.response.status_code"] == 200 and said["shardrun.model"] == "rows"
    assert below.keys() == {"queue", "predict"} and below["predict"].attributes["rows"] == 2
    assert root.start_time <= below["queue"].start_time + 1_000_000
    assert below["queue"].end_time == pytest.approx(below["predict"].start_time, abs=1_000_000)
    assert below["predict"].start_time < below["predict"].end_time <= root.end_time + 1_000_000


@pytest.mark.parametrize("stream", [False, True])
def test_spans_of_texts(http: httpx.Client, spans: Any, stream: bool) -> None:
    answer = http.post("/v1/completions", json={**ASKED, "stream": stream}, headers={"traceparent": PARENT})
    assert answer.status_code == 200
    root, below = by_name(spans, "/completions")
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert below.keys() == {"queue", "prompt", "generate"}
    assert root.attributes["shardrun.generated_tokens"] == 5
    assert root.attributes["shardrun.prompt_tokens"] == below["prompt"].attributes["tokens"] > 0
    assert below["prompt"].end_time == pytest.approx(below["generate"].start_time, abs=1_000_000)


@pytest.mark.parametrize("parent", ["", "00-0-0-0", "x" * 5000])
def test_spans_without_a_parent(http: httpx.Client, spans: Any, parent: str) -> None:
    assert http.get("/v2/models/nope", headers={"traceparent": parent}).status_code == 404
    root, below = by_name(spans, "{model}")
    assert root.parent is None and not below and root.attributes["shardrun.model"] == ""


def test_nothing_is_imported_where_the_package_is_not_there() -> None:
    program = """
        import sys
        sys.modules["opentelemetry"] = None  # as where it is not installed
        from launcher.serving import app, server
        from launcher.serving.seeing.traces import traces_here
        trace = traces_here().request("GET", lambda: "/", {"traceparent": "x"})
        print(trace, [name for name, one in sys.modules.items() if "opentelemetry" in name and one])
    """
    lines = "\n".join(line.strip() for line in program.splitlines())
    told = subprocess.run(
        [sys.executable, "-c", lines], check=False, capture_output=True, text=True, timeout=100
    )
    assert told.stdout.strip() == "None []", told.stderr


def test_what_follows_the_end_of_a_request_is_told_too() -> None:
    """As where a client went away in the middle of a stream."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs opentelemetry-sdk")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace = Traces(provider.get_tracer("tests")).request("GET", lambda: "/", {})
    assert trace is not None
    trace.span.end()
    trace.passed("generate", 0, 1)
    assert [span.name for span in exporter.get_finished_spans()] == ["GET /", "generate"]


def test_nothing_is_made_where_spans_go_nowhere() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")
    program = """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from launcher.serving.seeing.traces import traces_here
        traces = traces_here()
        print(traces.request("GET", lambda: "/", {}))
        trace.set_tracer_provider(TracerProvider())
        print(traces.request("GET", lambda: "/", {}).span.is_recording())
    """
    lines = "\n".join(line.strip() for line in program.splitlines())
    told = subprocess.run(
        [sys.executable, "-c", lines], check=False, capture_output=True, text=True, timeout=100
    )
    assert told.stdout.split() == ["None", "True"], told.stderr


def test_the_log_of_requests(
    http: httpx.Client, server: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "token-that-nobody-reads"
    monkeypatch.setattr(server.context, "tokens", Tokens((secret.encode(),)))
    headers = {"Authorization": f"Bearer {secret}", "X-Request-Id": "mine-1"}
    with caplog.at_level(logging.INFO, ACCESS):
        assert http.post("/v1/completions", json=ASKED, headers=headers).status_code == 200
        assert (
            http.post("/v1/completions", json={**ASKED, "stream": True}, headers=headers).status_code == 200
        )
        assert http.post("/v2/models/rows/infer", json=rows(), headers=headers).status_code == 200
        assert http.post("/v2/models/rows/infer?key=hidden", json=rows()).status_code == 401
        until(lambda: len(caplog.records) == 4)
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    for line, (model, status, tokens) in zip(
        lines, [("tiny", 200, 5), ("tiny", 200, 5), ("rows", 200, None), ("", 401, None)], strict=True
    ):
        assert (line["model"], line["status"], line.get("generated_tokens")) == (model, status, tokens)
        assert line["seconds"] > 0 and line["client"] and line["method"] == "POST" and line["path"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", line["time"])
        assert ("prompt_tokens" in line) is (tokens is not None)
    assert [line["id"] for line in lines[:3]] == ["mine-1"] * 3
    assert secret not in caplog.text and "hidden" not in caplog.text and "hello" not in caplog.text


def test_metrics_follow_the_conventions(http: httpx.Client) -> None:
    """By Prometheus' own parser: base units, no unit twice, counters that end in total; labels that no client
    can make many."""
    for number in range(5):
        http.get(f"/v2/models/made-up-{number}")
        http.get(f"/nowhere-{number}", headers={"X-Request-Id": f"id-{number}"})
    http.post("/v2/models/rows/infer", json=rows())
    http.post("/v1/completions", json=ASKED)
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    for name, family in families.items():
        assert re.fullmatch(r"shardrun_[a-z_]+[a-z]", name) and family.documentation, name
        assert not re.search(r"_(ms|milliseconds|mb|kb|count|sum)$", name)
        for sample in family.samples:
            assert sample.labels.keys() <= {
                "model", "version", "rank", "in", "protocol", "status", "le"
            }  # fmt: skip
            assert "made-up" not in str(sample.labels) and "nowhere" not in str(sample.labels)
            if family.type == "counter":
                assert sample.name.endswith(("_total", "_created"))
    for name in (
        "requests", "request_seconds", "queue_length", "queue_seconds", "batch_rows", "generated_tokens",
        "generated_tokens_per_second", "rank_seconds", "rank_state_bytes", "rank_memory_bytes",
        "rank_weight_bytes", "restarts", "model_ready", "model_weight_updates",
    ):  # fmt: skip
        assert f"shardrun_{name}" in families, name
    speed = families["shardrun_generated_tokens_per_second"].samples[0]
    assert speed.labels == {"model": "tiny"} and speed.value > 0
    of_texts = {
        sample.labels["rank"]
        for sample in families["shardrun_rank_seconds"].samples
        if sample.labels["model"] == "tiny"
    }
    assert of_texts == {"0", "1"}


def test_state_is_told_while_texts_are_there(http: httpx.Client) -> None:
    """Of beginnings that are kept for other texts, on each rank."""
    answer = http.post("/v1/completions", json={**ASKED, "prompt": "hello " * 10})
    assert answer.status_code == 200, answer.text

    def held() -> list[float]:
        families = text_string_to_metric_families(http.get("/metrics").text)
        (found,) = [family for family in families if family.name == "shardrun_rank_state_bytes"]
        return [one.value for one in found.samples if one.labels["model"] == "tiny"]

    until(lambda: len(held()) == 2 and all(value > 0 for value in held()))


def test_values_of_many_requests_are_told_before_anybody_looks() -> None:
    metrics = Metrics()
    for each in range(300):
        metrics.late(metrics.waited, "some").observe(0.002 if each else 0.7)
    families = text_string_to_metric_families(metrics.text().decode())
    samples = next(one.samples for one in families if one.name == "shardrun_queue_seconds")
    found = {one.labels.get("le", one.name.rpartition("_")[2]): one.value for one in samples}
    assert (found["0.001"], found["0.0025"], found["0.5"], found["1.0"]) == (0, 299, 299, 300)
    assert found["count"] == 300 and found["sum"] == pytest.approx(299 * 0.002 + 0.7)


def test_a_path_finds_its_route_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, matches = list[str](), Route.matches

    def search(route: Route, scope: Any) -> Any:
        searched.append(scope["path"])
        return matches(route, scope)

    monkeypatch.setattr(Route, "matches", search)
    with played(Played) as (_, client, _model):
        wrong = "/v2/models/another/infer"
        answers = [client.post(path, json=ask(1)).status_code for path in (URL, wrong, URL, wrong)]
    assert answers == [200, 404, 200, 404]
    assert searched.count(URL) == searched.count(wrong) == 1


def test_what_a_path_begins_with_is_no_part_of_a_route() -> None:
    """A proxy says so, and a server that this is a part of."""

    async def asked(app: Any) -> list[int]:
        transport = httpx.ASGITransport(app, root_path="/v2")
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return [
                (await client.get(path)).status_code for path in ("/v2/v2/health/live", "/v2/health/live")
            ]

    with played(Played) as (server, _, _model):
        app = application(dataclasses.replace(server.context, metrics=Metrics()))
        assert asyncio.run(asked(app)) == [200, 404]


def test_a_rate_forgets() -> None:
    now = [100.0]
    rate = Rate(lambda: now[0])
    for _ in range(20):
        rate.add()
    assert rate.value() == 20
    now[0] += 5
    rate.add(5)
    assert rate.value() == 5
    now[0] += 7
    assert rate.value() == 0.5
    now[0] += 100
    assert rate.value() == 0


def test_a_scrape_does_not_wait_for_ranks_that_are_at_work() -> None:
    """It shows what they said before."""
    group = Played()
    with played(lambda: group) as (_, client, _):
        assert client.post(URL, json=ask(1)).status_code == 200
        for _ in range(2):
            assert client.get("/metrics").status_code == 200


def test_the_page_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    answer = http.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert not re.findall(r"https?://|\bsrc=|@import|url\(", answer.text)


def test_what_the_page_shows(http: httpx.Client, server: Running) -> None:
    assert http.post("/v1/completions", json=ASKED).status_code == 200
    assert http.post("/v2/models/rows/infer", json=rows()).status_code == 200
    told = http.get("/status").json()
    assert [one["model"] for one in told["latest"][:2]] == ["rows", "tiny"]
    assert told["latest"][1]["generated_tokens"] == 5
    for model in told["models"]:
        assert model["state"] == "READY" and model["version"] == "1" and model["answered"] >= 1
        assert [(rank["rank"], rank["state"]) for rank in model["ranks"]] == [(0, "ready"), (1, "ready")]
        until(
            lambda: all(rank["work"] for one in http.get("/status").json()["models"] for rank in one["ranks"])
        )
    assert told["models"][1]["tokens_per_second"] > 0 and "chat" in told["models"][1]


@pytest.mark.parametrize("sampled", [True, False])
def test_nothing_is_made_below_a_span_that_is_left_out(sampled: bool) -> None:
    """Also where the sampler looks at no parents."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs opentelemetry-sdk")
    from opentelemetry.sdk.trace import sampling
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    made: list[Any] = []

    class Seen(sdk.SpanProcessor):  # type: ignore[misc]
        def on_end(self, span: Any) -> None:
            made.append(span)

    provider = sdk.TracerProvider(sampling.ALWAYS_ON, shutdown_on_exit=False)
    provider.add_span_processor(Seen())
    above = NonRecordingSpan(SpanContext(7, 8, False, TraceFlags(int(sampled))))
    Trace(above, provider.get_tracer("x")).passed("queue", 1000, 3500, rank=2)
    assert len(made) == sampled
    for span in made:
        assert (span.name, span.parent.span_id, span.end_time - span.start_time) == ("queue", 8, 2500)
        assert dict(span.attributes) == {"rank": 2}
