"""gRPC's clients that wait too long, go away, ask too much, or have no token; ends of the server; types of
tensors. The ranks are played."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from launcher.errors import ConfigError, LaunchError, RankFailedError
from launcher.group.requests import PredictError
from launcher.serving import server as module
from launcher.serving import tensor_model
from launcher.serving.access import ACCESS, Tokens
from launcher.serving.context import Context
from launcher.serving.grpc.calls import Conversation, UntakenError
from launcher.serving.grpc.schema import HEALTH, SERVICE
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import Repository, State
from launcher.serving.parsing import protocol
from launcher.serving.server import Listening
from launcher.serving.tensor_model import TensorModel
from ranks.common.tensors import TensorSpec
from sharding.common.text import shortened
from tests.launcher.serving.playing import Gate, Played
from tests.launcher.serving.running import Running, running
from tests.launcher.serving.test_tls import sign
from tests.ranks.threads import until

LISTENING = Listening(port=0, grpc_port=0)
INFER = f"/{SERVICE}/ModelInfer"


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks get the next request when they have answered the one before: what waits, waits in the queue."""
    monkeypatch.setattr(tensor_model, "AHEAD", 1)


@contextlib.contextmanager
def behind_grpc(
    open_group: Callable[[], Any],
    *,
    tokens: Tokens | None = None,
    listening: Listening = LISTENING,
    **limits: Any,
) -> Iterator[tuple[Running, TensorModel]]:
    """Played ranks behind a server that has gRPC, too."""
    settled, metrics = ServeLimits(**limits), Metrics()
    model = TensorModel("played", settled, metrics, open_group=open_group)
    how = {"limits": settled, "metrics": metrics, "tokens": tokens or Tokens(), "listening": listening}
    with running(model, **how) as found:
        yield found, model


@contextlib.contextmanager
def served(open_group: Callable[[], Any], **how: Any) -> Iterator[tuple[Running, Any, TensorModel]]:
    """The same, and a client."""
    with behind_grpc(open_group, **how) as (found, model):  # noqa: SIM117
        with triton.InferenceServerClient(found.grpc) as client:
            yield found, client, model


def numbers(*values: float) -> list[Any]:
    x = triton.InferInput("x", [len(values)], "FP32")
    x.set_data_from_numpy(np.array(values, np.float32))
    return [x]


@contextlib.contextmanager
def refused(status: str, said: str | None = None) -> Iterator[None]:
    with pytest.raises(triton.InferenceServerException, match=said) as told:
        yield
    assert told.value.status() == f"StatusCode.{status}"


class Answers:
    """Answers of requests under way at the same time."""

    def __init__(self) -> None:
        self.came: list[tuple[Any, Any]] = []

    def __call__(self, result: Any, error: Any) -> None:
        self.came.append((result, error))


def open_of(found: Running) -> float:
    """Calls under way."""
    return found.context.metrics.under_way


def occupy(found: Running, client: Any, model: TensorModel, gate: Gate, **how: Any) -> int:
    """Asks until the ranks take no more: how many they have."""
    answers, taken = Answers(), 0
    while True:
        call = client.async_infer("played", numbers(0), answers, **how)
        until(lambda: gate.began.is_set() and open_of(found) == taken + 1)  # noqa: B023
        time.sleep(0.2)
        if model.waiting:
            call.cancel()
            until(lambda: model.waiting == 0)
            return taken
        taken += 1


TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64, "BYTES": object,
}  # fmt: skip


class Mirror(Played):
    """Gives what it gets, of any type."""

    def predict(self, feeds: Any) -> Any:
        return dict(feeds)


@pytest.fixture(scope="module")
def mirror() -> Iterator[tuple[Running, Any, TensorModel]]:
    with served(Mirror) as found:
        yield found


def values_of(kind: str, shape: tuple[int, ...]) -> Any:
    dtype = np.dtype(TYPES[kind])
    count = int(np.prod(shape))
    if kind == "BYTES":
        return np.array(["ä\0", "", "x" * 70_000, "\n"] * count, object)[:count].reshape(shape)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return np.array([bounds.min, bounds.max, 3, 0] * count, dtype)[:count].reshape(shape)
    if dtype == np.bool_:
        return np.array([True, False, False] * count, bool)[:count].reshape(shape)
    return np.array([-0.0, np.inf, np.nan, 1.5] * count, dtype)[:count].reshape(shape)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (1, 2, 2)])
@pytest.mark.parametrize("kind", TYPES)
def test_all_types_come_back_as_they_went(
    mirror: tuple[Running, Any, TensorModel], kind: str, shape: tuple[int, ...]
) -> None:
    _, client, _ = mirror
    sent = values_of(kind, shape)
    x = triton.InferInput("x", list(shape), kind)
    x.set_data_from_numpy(sent)
    answer = client.infer("played", [x])
    found = answer.as_numpy("x")
    assert answer.get_output("x").datatype == kind
    if kind == "BYTES":
        found = np.array([text.decode() for text in found.ravel()], object).reshape(found.shape)
        np.testing.assert_array_equal(found, sent)
    else:
        assert found.dtype == sent.dtype and found.tobytes() == sent.tobytes() and found.shape == shape


FIELDS = {
    "BOOL": "bool_contents", "BYTES": "bytes_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
    "INT64": "int64_contents", "UINT64": "uint64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FIELDS)
def test_values_of_all_types_come_back_as_they_went(
    mirror: tuple[Running, Any, TensorModel], kind: str
) -> None:
    found, _, _ = mirror
    sent = values_of(kind, (1, 2, 2)).ravel().tolist()
    asked = service_pb2.ModelInferRequest(model_name="played")
    x = asked.inputs.add(name="x", datatype=kind, shape=[1, 2, 2])
    field = getattr(x.contents, FIELDS[kind])
    field.extend(text.encode() for text in sent) if kind == "BYTES" else field.extend(sent)
    with grpc.insecure_channel(found.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        output = stub.ModelInfer(asked).outputs[0]
        assert output.contents == x.contents and list(output.shape) == [1, 2, 2]
        if kind in {"INT8", "UINT8", "INT16", "UINT16"}:
            field[0] = 1 << 20
            with pytest.raises(grpc.RpcError) as told:
                stub.ModelInfer(asked)
            assert "is outside" in told.value.details()
        if kind != "BYTES":
            asked.outputs.add(name="x")
            x.ClearField("contents")
            x.shape[:] = [1, 0]
            empty = stub.ModelInfer(asked).outputs[0]
            assert list(empty.shape) == [1, 0] and not empty.contents.ByteSize()


def test_deadlines_and_time_outs_leave_the_queue() -> None:
    gate, answers = Gate(), Answers()
    with served(gate) as (found, client, model):
        taken = occupy(found, client, model, gate)
        with refused("DEADLINE_EXCEEDED"):
            client.infer("played", numbers(2), client_timeout=0.3)
        until(lambda: model.waiting == 0)
        with refused("DEADLINE_EXCEEDED", "did not answer within 0.2 s"):
            client.infer("played", numbers(3), timeout=200_000)
        under_way = client.async_infer("played", numbers(4), answers)
        until(lambda: model.waiting == 1)
        under_way.cancel()
        until(lambda: model.waiting == 0)
        gate.open.set()
        assert client.infer("played", numbers(5)).as_numpy("y").tolist() == [10]
        until(lambda: len(answers.came) == 1)
    assert gate.seen == [*[0] * taken, 5]


def test_more_than_may_wait_are_refused_at_once_and_may_come_again() -> None:
    gate, answers = Gate(), Answers()
    with served(gate, queue=2) as (found, client, model):
        occupy(found, client, model, gate)
        for number in (1, 2):
            client.async_infer("played", numbers(number), answers)
        until(lambda: model.waiting == 2)
        asked = service_pb2.ModelInferRequest(model_name="played")
        asked.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(9)
        with grpc.insecure_channel(found.grpc) as channel, pytest.raises(grpc.RpcError) as told:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked)
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing = dict(told.value.trailing_metadata())
        assert int(trailing["retry-after"]) >= 1 and int(trailing["grpc-retry-pushback-ms"]) >= 1000
        gate.open.set()
        until(lambda: len(answers.came) == 2)
    assert all(error is None for _, error in answers.came)


def test_ranks_that_died_are_unavailable_and_not_described() -> None:
    def act(values: list[float]) -> None:
        raise RankFailedError("rank 1 on host a was killed by SIGKILL.", rank=1)

    with served(lambda: Played(act)) as (_, client, _):
        with refused("UNAVAILABLE", "ended before they answered"):
            client.infer("played", numbers(1))
        assert client.is_server_live()


def test_errors_that_nobody_foresaw_are_told_without_their_text(caplog: pytest.LogCaptureFixture) -> None:
    def act(values: list[float]) -> None:
        raise RuntimeError("secret of /home/me/models/x.onnx")

    with served(lambda: Played(act)) as (_, client, _), refused("INTERNAL", "its log says why"):
        client.infer("played", numbers(1))
    assert "secret" in caplog.text


def test_tokens_and_turns() -> None:
    gate, answers = Gate(), Answers()
    with served(gate, tokens=Tokens((b"token-of-a", b"token-of-b"))) as (found, client, model):

        def send(token: str, number: float, **more: Any) -> None:
            before = model.waiting
            headers = {"authorization": f"Bearer {token}"}
            client.async_infer("played", numbers(number), answers, headers=headers, **more)
            until(lambda: model.waiting == before + 1)

        taken = occupy(found, client, model, gate, headers={"authorization": "Bearer token-of-a"})
        for number in (1, 2, 3):
            send("token-of-a", number, priority=1)
        send("token-of-b", 10, priority=1)
        send("token-of-a", 5)
        assert client.is_server_live() and client.is_server_ready()
        with grpc.insecure_channel(found.grpc) as channel:
            assert channel.unary_unary(f"/{HEALTH}/Check")(b"") == b"\x08\x01"
        for headers in ({}, {"authorization": "Bearer token-of-c"}, {"authorization": "token-of-a"}):
            with refused("UNAUTHENTICATED", "a token is needed"):
                client.infer("played", numbers(1), headers=headers)
            with refused("UNAUTHENTICATED"):
                client.get_model_repository_index(headers=headers)
        client.start_stream(answers)  # without a token
        until(lambda: len(answers.came) == 1)
        assert answers.came.pop()[1].status() == "StatusCode.UNAUTHENTICATED"
        client.stop_stream()
        gate.open.set()
        until(lambda: len(answers.came) == 5)
    assert gate.seen == [*[0] * taken, 5, 1, 10, 2, 3] and all(error is None for _, error in answers.came)


def test_a_token_is_looked_at_before_a_message_is_read() -> None:
    never = threading.Event()

    def messages() -> Iterator[bytes]:
        never.wait(60)
        yield b""

    with served(Played, tokens=Tokens((b"token-of-a",))) as (found, _, _):
        channel = grpc.insecure_channel(found.grpc)
        with channel, pytest.raises(grpc.RpcError) as told:
            channel.stream_unary(INFER)(messages(), timeout=30)
        assert told.value.code() is grpc.StatusCode.UNAUTHENTICATED
        never.set()


def test_metrics_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, ACCESS), served(Played) as (found, client, _):
        client.infer("played", numbers(1), headers={"x-request-id": "mine"})
        with refused("NOT_FOUND"):
            client.infer("nope", numbers(1))
        text = httpx.get(f"{found.url}/metrics").text
        assert 'shardrun_requests_total{model="played",protocol="grpc",status="200"} 1.0' in text
        assert 'shardrun_requests_total{model="",protocol="grpc",status="404"} 1.0' in text
        assert 'shardrun_request_seconds_count{model="played",protocol="grpc"} 1.0' in text
        latest = httpx.get(f"{found.url}/status").json()["latest"]
        assert [(one["path"], one["status"]) for one in latest] == [(INFER, 404), (INFER, 200)]
        until(lambda: found.context.held == 0)
    lines = [json.loads(record.message) for record in caplog.records if record.name == ACCESS]
    assert [(one["path"], one["status"], one["client"]) for one in lines[:2]] == [
        (INFER, 200, "127.0.0.1"), (INFER, 404, "127.0.0.1"),
    ]  # fmt: skip
    assert lines[0]["id"] == "mine" and lines[0]["model"] == "played"


def test_what_is_under_way_is_answered_before_the_end() -> None:
    gate, answers = Gate(), Answers()
    with contextlib.ExitStack() as clients:
        with behind_grpc(gate) as (found, _):
            client = clients.enter_context(triton.InferenceServerClient(found.grpc))
            idle = clients.enter_context(triton.InferenceServerClient(found.grpc))
            of_idle = Answers()
            idle.start_stream(of_idle)
            client.start_stream(answers)
            for number in (4, 5):
                client.async_stream_infer("played", numbers(number))
            other = Answers()
            idle.async_infer("played", numbers(6), other)
            assert gate.began.wait(30)
            until(lambda: open_of(found) >= 5)
            threading.Timer(0.5, gate.open.set).start()
        until(lambda: len(answers.came) == 3 and len(other.came) == 1 and len(of_idle.came) == 1)
        assert [result.as_numpy("y").tolist() for result, _ in answers.came[:2]] == [[8], [10]]
        assert other.came[0][0].as_numpy("y").tolist() == [12]
        for error in (answers.came[2][1], of_idle.came[0][1]):
            assert error.status() == "StatusCode.UNAVAILABLE"


def test_what_takes_longer_than_the_end_may_is_ended() -> None:
    gate, answers = Gate(), Answers()
    with contextlib.ExitStack() as clients:
        with behind_grpc(gate, drain=0.5) as (found, _):
            client = clients.enter_context(triton.InferenceServerClient(found.grpc))
            client.async_infer("played", numbers(4), answers)
            assert gate.began.wait(30)
            threading.Timer(3, gate.open.set).start()
        until(lambda: answers.came)
        assert answers.came[0][1] is not None


def test_a_stream_has_few_under_way_and_ends_with_its_client() -> None:
    gate, answers = Gate(), Answers()
    with served(gate) as (found, client, model):
        client.start_stream(answers)
        for number in range(100):
            client.async_stream_infer("played", numbers(number))
        assert gate.began.wait(30)
        until(lambda: open_of(found) == 1 + 32)  # the stream, and of its requests those that are read
        assert httpx.get(f"{found.url}/v2/health/live").status_code == 200
        assert open_of(found) == 1 + 32
        client.stop_stream(cancel_requests=True)
        until(lambda: model.waiting == 0)
        gate.open.set()
        until(lambda: open_of(found) == 0)
        assert found.context.held == 0


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def field(name: bytes, value: bytes) -> bytes:
    """A header of HTTP/2 as it is."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


HEAD = b"\x83\x86" + field(b":path", INFER.encode()) + field(b":authority", b"a") + field(b"te", b"trailers")
HEAD += field(b"content-type", b"application/grpc")
BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)


def connected(found: Running, data: bytes) -> socket.socket:
    host, port = found.grpc.split(":")
    made = socket.create_connection((host, int(port)))
    made.settimeout(30)
    made.sendall(data)
    return made


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the other side has closed it."""
    parts = []
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_slow_silent_and_busy_clients_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SLOW_SECONDS", 0.5)

    class Large(Played):
        def predict(self, feeds: Any) -> Any:
            return {"y": np.zeros(int(feeds["x"][0]), np.float32)}

    asked = service_pb2.ModelInferRequest(model_name="played")
    asked.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(2_000_000)
    data = asked.SerializeToString()
    message = b"\0" + struct.pack(">I", len(data)) + data
    with served(Large, idle=1.0, seconds=1.0) as (found, client, _), contextlib.ExitStack() as stack:
        slow, silent, nothing, takes = (
            stack.enter_context(connected(found, sent))
            for sent in (
                BEGIN + frame(1, 4, 1, HEAD) + frame(0, 0, 1, b"\0\0\0\1\0abc"),  # 256 bytes are to come
                BEGIN,
                b"",
                BEGIN + frame(1, 4, 1, HEAD) + frame(0, 1, 1, message),
            )
        )
        until(lambda: sorted(one["status"] for one in found.context.latest) == [408, 408])
        assert found.context.held >= 8_000_000  # gRPC holds what nobody has taken
        takes.close()
        until(lambda: found.context.held == 0)
        for one in (slow, silent, nothing):
            until_closed(one)
        flood = stack.enter_context(connected(found, BEGIN))
        with contextlib.suppress(OSError):
            for _ in range(50):
                flood.sendall(frame(6, 0, 0, b"12345678"))
        assert b"too_many_pings" in until_closed(flood)
        client.infer("played", numbers(3))


def test_nothing_is_written_after_an_answer_that_is_not_taken() -> None:
    class Untaking:
        written = 0

        async def write(self, data: bytes) -> None:
            self.written += 1
            await asyncio.sleep(60)

    async def ask() -> int:
        conversation = Conversation(cast(Any, None), cast(Any, rpc := Untaking()), 0.01)
        for _ in range(2):
            with pytest.raises(UntakenError, match="not taken within"):
                await conversation.tell(service_pb2.ServerLiveResponse(live=True))
        assert conversation.untaken is not None
        conversation.untaken[0].cancel()
        return rpc.written

    assert asyncio.run(ask()) == 1


def test_more_connections_than_there_may_be() -> None:
    with served(Played, connections=3) as (found, _, _), contextlib.ExitStack() as stack:
        many = [stack.enter_context(connected(found, BEGIN)) for _ in range(8)]
        kept = 0
        for one in many:
            with contextlib.suppress(OSError):
                kept += bool(one.recv(1))
        assert 1 <= kept <= 3


def test_bodies_under_way_are_bounded() -> None:
    gate, answers = Gate(), Answers()
    with served(gate, held=10_000) as (found, client, _):
        for number in (1, 2):
            client.async_infer("played", numbers(*[number] * 1000), answers)
            until(lambda: open_of(found) == number)  # noqa: B023
        with refused("UNAVAILABLE", "under way already: ask again later"):
            client.infer("played", numbers(*[3] * 1000))
        gate.open.set()
        until(lambda: len(answers.came) == 2)
        assert client.infer("played", numbers(*[3] * 1000)).as_numpy("y").shape == (1000,)


class OfInts(Played):
    """Ranks that take whole numbers, and give what they get."""

    def __init__(self, gate: threading.Event, began: threading.Event) -> None:
        spec = TensorSpec("x", np.dtype(np.int64), ("n",))
        super().__init__(inputs=[spec], outputs=[spec])
        self.gate, self.began = gate, began

    def predict(self, feeds: Any) -> Any:
        self.began.set()
        assert self.gate.wait(30)
        return dict(feeds)


@pytest.mark.parametrize("streamed", [False, True])
def test_values_are_counted_as_the_tensors_that_they_become(streamed: bool) -> None:
    """A number of one byte in a message takes eight in memory, and in an answer of raw bytes."""
    count = 100_000
    sent = service_pb2.ModelInferRequest(model_name="played")
    sent.inputs.add(name="x", datatype="INT64", shape=[count]).contents.int64_contents.extend([1] * count)
    gate, began = threading.Event(), threading.Event()
    with served(lambda: OfInts(gate, began), held=4 * count) as (found, _, _):  # noqa: SIM117
        with grpc.insecure_channel(found.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            if streamed:
                answers = stub.ModelStreamInfer(iter([sent]), timeout=60)
            else:
                answer = stub.ModelInfer.future(sent, timeout=60)
            assert began.wait(30)
            assert found.context.held >= 8 * count
            with pytest.raises(grpc.RpcError) as told:
                stub.ModelInfer(sent, timeout=60)
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE
            gate.set()
            whole = next(answers).infer_response if streamed else answer.result()
            assert list(whole.outputs[0].contents.int64_contents) == [1] * count
            until(lambda: found.context.held == 0)


def test_who_may_load_and_unload() -> None:
    """Where tokens have roles, an admin; what the server tells of its models, everybody with a token."""
    admin, user = ({"authorization": f"Bearer token-of-the-{name}"} for name in ("admin", "user"))
    known = (b"token-of-the-admin", b"token-of-the-user")
    with served(Played, tokens=Tokens(known, known[:1])) as (found, client, model):
        for change in (client.unload_model, client.load_model):
            with refused("PERMISSION_DENIED", "the token of an admin"):
                change("played", headers=user)
            with refused("UNAUTHENTICATED", "a token is needed"):
                change("played")
        with grpc.insecure_channel(found.grpc) as channel:
            # KServe's clients name the model in the other field.
            unload = channel.unary_unary(f"/{SERVICE}/RepositoryModelUnload")
            with pytest.raises(grpc.RpcError) as told:
                unload(b"\x0a\x06played", metadata=tuple(user.items()), timeout=30)
        assert told.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert model.state is State.READY
        assert client.infer("played", numbers(2), headers=user).as_numpy("y").tolist() == [4]
        [listed] = client.get_model_repository_index(headers=user).models
        assert listed.state == "READY"
        client.unload_model("played", headers=admin)
        with refused("UNAVAILABLE"):
            client.infer("played", numbers(2), headers=user)
        client.load_model("played", headers=admin)
        assert client.is_model_ready("played", headers=user)
    with served(Played, tokens=Tokens(known)) as (_, client, model):  # without roles
        client.unload_model("played", headers=user)
        assert model.state is State.UNLOADED
        client.load_model("played", headers=user)


def test_a_model_whose_next_version_is_being_loaded_is_not_unloaded() -> None:
    begun, go_on = threading.Event(), threading.Event()
    limits, metrics = ServeLimits(), Metrics()

    def made(version: str) -> TensorModel:
        def open_group() -> Any:
            if version != "1":
                begun.set()
                assert go_on.wait(30)
            return Played()

        return TensorModel("played", limits, metrics, version=version, open_group=open_group)

    repository = Repository({"played": made("1")}, versions={"played": made})
    how: Any = {"limits": limits, "metrics": metrics, "repository": repository, "listening": LISTENING}
    headers = {"Authorization": "Bearer token-of-the-admin"}
    with running(tokens=Tokens(known := (b"token-of-the-admin",), known), **how) as found:  # noqa: SIM117
        with triton.InferenceServerClient(found.grpc) as client, ThreadPoolExecutor(1) as thread:
            path = f"{found.url}/v2/repository/models/played/versions/2/load"
            loading = thread.submit(httpx.post, path, headers=headers, timeout=60)
            try:
                assert begun.wait(30)
                with refused("ABORTED", "version 2 of 'played' is being loaded"):
                    client.unload_model("played", headers={"authorization": headers["Authorization"]})
            finally:
                go_on.set()
            assert loading.result().status_code == 200
            metadata = client.get_model_metadata(
                "played", "2", headers={"authorization": headers["Authorization"]}
            )
            assert list(metadata.versions) == ["2"]


def test_many_clients_of_asyncio() -> None:
    async def ask(address: str) -> list[list[float]]:
        async def one(number: int) -> list[float]:
            async with triton_aio.InferenceServerClient(address) as client:
                found = await client.infer("played", numbers(number))
                return list(found.as_numpy("y"))

        return await asyncio.gather(*map(one, range(20)))

    with served(Played) as (found, _, _):
        assert asyncio.run(ask(found.grpc)) == [[2 * number] for number in range(20)]


def test_streams_of_asyncio() -> None:
    async def ask(address: str) -> list[list[float]]:
        async with triton_aio.InferenceServerClient(address) as client:

            async def requests() -> Any:
                for number in range(5):
                    yield {"model_name": "played", "inputs": numbers(number)}

            return [
                list(result.as_numpy("y"))
                async for result, error in client.stream_infer(requests())
                if not error
            ]

    with served(Played) as (found, _, _):
        assert asyncio.run(ask(found.grpc)) == [[2 * number] for number in range(5)]


def test_only_clients_whose_certificates_are_signed(tmp_path: Path) -> None:
    authority = sign(tmp_path, "authority")
    sign(tmp_path, "other")
    own, friend = sign(tmp_path, "own", "authority"), sign(tmp_path, "friend", "authority")
    stranger = sign(tmp_path, "stranger", "other")
    listening = Listening(
        port=0, grpc_port=0, certificate=own.certificate, key=own.key, clients=authority.certificate
    )

    def answer(address: str, client: Any) -> list[float]:
        how = {"ssl": True, "root_certificates": str(authority.certificate)}
        if client is not None:
            how |= {"private_key": str(client.key), "certificate_chain": str(client.certificate)}
        with triton.InferenceServerClient(address, **how) as made:
            return list(made.infer("played", numbers(4), client_timeout=30).as_numpy("y"))

    with behind_grpc(Played, listening=listening) as (found, _):
        assert answer(found.grpc, friend) == [8]
        for wrong in (None, stranger):
            with refused("UNAVAILABLE"):
                answer(found.grpc, wrong)
        with (
            triton.InferenceServerClient(found.grpc) as plain,
            pytest.raises(triton.InferenceServerException),
        ):
            plain.infer("played", numbers(4), client_timeout=30)
        assert answer(found.grpc, friend) == [8]


def test_ports_that_are_taken_are_said_before_ranks_start() -> None:
    started: list[Played] = []

    def open_group() -> Played:
        started.append(Played())
        return started[-1]

    with served(Played) as (found, client, _):
        taken = int(found.grpc.rpartition(":")[2])
        limits, metrics = ServeLimits(), Metrics()
        model = TensorModel("other", limits, metrics, open_group=open_group)  # type: ignore[arg-type]
        with ThreadPoolExecutor(1) as threads:
            context = Context(Repository({"other": model}), limits, metrics)
            failed = threads.submit(
                module.serve, context, Listening(port=0, grpc_port=taken), lambda url: None
            ).exception(60)
        assert isinstance(failed, LaunchError) and f"--grpc-port {taken}: this address" in str(failed)
        assert not started and client.infer("played", numbers(1)).as_numpy("y").tolist() == [2]
    with pytest.raises(ConfigError, match="expected two ports, found 9000 for both"):
        Listening(port=9000, grpc_port=9000).check()


def test_all_of_ipv4_is_not_all_of_ipv6() -> None:
    with served(Played, listening=Listening(host="0.0.0.0", port=0, grpc_port=0)) as (found, client, _):
        assert client.infer("played", numbers(1)).as_numpy("y").tolist() == [2]
        port = int(found.grpc.rpartition(":")[2])
        if not Path("/proc/net/tcp6").exists():
            pytest.skip("this machine has no IPv6")
        listens = [line.split()[1] for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
        assert not [address for address in listens if int(address.rpartition(":")[2], 16) == port]


@pytest.mark.parametrize("text", ["𝛼" * 5000, "100 % ä"])
def test_words_of_errors_arrive(text: str) -> None:
    def act(values: list[float]) -> None:
        raise PredictError(text)

    with served(lambda: Played(act)) as (_, client, _):
        with pytest.raises(triton.InferenceServerException) as told:
            client.infer("played", numbers(1))
        assert told.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert told.value.message() == shortened(text, 600)


@pytest.mark.parametrize("name", ["ä", "a\nb", "x" * 100_000, "../../etc/passwd", "rows/versions/1"])
def test_names_that_are_none(mirror: tuple[Running, Any, TensorModel], name: str) -> None:
    _, client, _ = mirror
    with refused("NOT_FOUND", "there is no model .* here: there is played"):
        client.infer(name, numbers(1))
    with refused("NOT_FOUND"):
        client.get_model_metadata(name)
