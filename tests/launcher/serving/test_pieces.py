"""Large bodies are read in pieces, between which others are answered; what they say is what Python's own JSON
and Triton's protobuf classes read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import numpy as np
import orjson
import pytest
from tritonclient.grpc import service_pb2

from launcher.serving.bodies import object_of
from launcher.serving.context import _pieces
from launcher.serving.grpc import schema
from launcher.serving.grpc.schema import MESSAGES, SERVICE, parsed
from launcher.serving.kserve.tensors import read_question
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.parsing import runs
from launcher.serving.parsing.pace import LARGE, PIECE
from launcher.serving.refusals import RefusalError
from launcher.serving.server import Listening
from launcher.serving.tensor_model import TensorModel
from sharding.onnx_files.protobuf import field
from tests.launcher.serving.playing import URL, Played, ask
from tests.launcher.serving.running import running

COUNT = 50_003  # not a multiple of anything that is done at once
NUMBERS = np.random.default_rng(0).normal(size=COUNT).astype(np.float32).tolist()
SPACED: list[Any] = [None, (",", ":"), (" ,  ", "  :\n")]


def long_text(data: Any, separators: Any = None, **more: Any) -> bytes:
    item = {"name": "a", "datatype": "FP32", "shape": list(np.shape(data)), "data": data, **more}
    text = json.dumps({"id": 'quotes " and \\', "inputs": [item]}, separators=separators).encode()
    assert len(text) > LARGE
    return text


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were parsed at once, each time."""
    sizes: list[int] = []

    class Spied:
        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(data: bytes) -> Any:
            sizes.append(len(data))
            return orjson.loads(data)

    monkeypatch.setattr(runs, "orjson", Spied)
    return sizes


@pytest.mark.parametrize("separators", SPACED)
def test_a_list_of_numbers(read: list[int], separators: Any) -> None:
    text = long_text(NUMBERS, separators)
    assert read_question(text, None, []).feeds["a"].tolist() == NUMBERS
    assert len(read) > 8 and max(read) <= PIECE + 2
    read.clear()
    assert object_of(text) == json.loads(text)  # also where a list is asked for
    assert len(read) > 8 and max(read) <= PIECE + 2


@pytest.mark.parametrize(
    "shape",
    [(25_001, 2), (2, 25_001), (1, 1, 50_003), (41, 61, 20), (1, 3, 50, 334), (2, 2, 2, 2, 3126)],
)
def test_lists_of_lists(read: list[int], shape: tuple[int, ...]) -> None:
    data = np.resize(np.array(NUMBERS, np.float32), shape)
    found = read_question(long_text(data.tolist()), None, []).feeds["a"]
    assert found.shape == shape and (found == data).all()
    assert len(read) > 8 and max(read) <= PIECE + 2


def test_lists_that_are_laid_out_otherwise_are_read_at_once(read: list[int]) -> None:
    data = np.resize(np.array(NUMBERS, np.float32), (25, 1001, 2))
    item = {"name": "a", "datatype": "FP32", "shape": [25, 1001, 2], "data": data.tolist()}
    found = read_question(json.dumps({"inputs": [item]}, indent=1).encode(), None, []).feeds["a"]
    assert (found == data).all() and max(read) > LARGE


def test_several_lists_and_what_is_between() -> None:
    inputs = [
        {"name": f'{n}"[1,2],\\', "datatype": "INT64", "shape": [COUNT], "data": list(range(n, COUNT + n))}
        for n in range(3)
    ]
    body = {"inputs": inputs, "parameters": {"x": "[" * 50, "y": "\\" * 999}}
    text = b"\xef\xbb\xbf" + json.dumps(body).encode()
    found = read_question(text, None, []).feeds
    assert {name: value.tolist() for name, value in found.items()} == {
        str(one["name"]): one["data"] for one in inputs
    }
    assert object_of(text) == body


LIST = json.dumps(NUMBERS)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace(", ", ",, ", 1), "no JSON"),
        (lambda text: text[:-1] + ",]", "no JSON"),
        (lambda text: "[," + text[1:], "no JSON"),
        (lambda text: text + "]", "no JSON"),
        (lambda text: "[" + text, "no JSON"),
        (lambda text: text + text, "no JSON"),
        (lambda text: "1" + text, "no JSON"),
        (lambda text: text[:-1], "no JSON"),
        (lambda text: text[:-1] + ", NaN]", "no JSON"),
        (lambda text: text[:-1] + ", 01]", "no JSON"),
        (lambda text: text + f', "more": {text[:-1]}, 1 2]', "no JSON"),
        (lambda text: text + ', "data": [1]', "found 1 for the shape"),
        (lambda text: text[:-1] + ", [1]]", "lists of different lengths, or of values and lists"),
        (lambda text: text[:-1] + ", [1, [2]]]", "lists of different lengths, or of values and lists"),
        (lambda text: "[[1, 2, 3], " + text + "]", "lists of different lengths"),
        (lambda text: text[:-1] + ", null]", "values are NoneType"),
        (lambda text: text[:-1] + ', "text"]', "values are str"),
        (lambda text: text[:-1] + ", {}]", "values are dict"),
        (lambda text: text.rpartition(", ")[0] + ", 1e39]", "a value is too large"),
        (lambda text: text[:-1] + ", 1]", f"found {COUNT + 1} for the shape [{COUNT}]"),
        (lambda text: text.partition(", ")[2].join(["[", ""]), f"found {COUNT - 1} for the shape [{COUNT}]"),
    ],
)
def test_what_is_wrong_with_long_lists_is_told(change: Callable[[str], str], told: str) -> None:
    text = f'{{"inputs": [{{"name": "a", "datatype": "FP32", "shape": [{COUNT}], "data": {change(LIST)}}}]}}'
    with pytest.raises(RefusalError) as error:
        read_question(text.encode(), None, [])
    assert told in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("text", ['{"a": %s', "{%s: 1}", '{"a": "%s', "%s", '{"a": {%s}}'])
def test_long_lists_where_none_may_be(text: str) -> None:
    with pytest.raises(RefusalError, match="the body"):
        object_of((text % LIST).encode())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('"shape": %s, "data": [1]', r"shape: expected lengths, at most 32, .* found \["),
        ('"shape": [1], "parameters": %s, "data": [1]', "parameters: expected an object, found"),
        ('"shape": [1], "data": [1]}], "outputs": %s, "x": [{"y": 1', r"outputs\[0\]: expected an object"),
    ],
)
def test_lists_where_something_else_is_expected(body: str, told: str) -> None:
    text = f'{{"inputs": [{{"name": "a", "datatype": "FP32", {body % LIST}}}]}}'
    with pytest.raises(RefusalError, match=told):
        read_question(text.encode(), None, [])


def test_spaces_between_long_lists() -> None:
    """However many there are, what follows them is read; only those of JSON are spaces."""
    text = f'{{"inputs": [{{"name": "a", "datatype": "FP32", "shape": [%s], "data": [{LIST}%s{LIST}]}}]}}'
    for space in (" " * 60 + ",", " " * 64 + ",", "\n" * 200 + " , "):
        found = read_question((text % (2 * COUNT, space)).encode(), None, []).feeds["a"]
        assert found.tolist() == 2 * NUMBERS
        with pytest.raises(RefusalError, match=f"found {2 * COUNT} for the shape"):
            read_question((text % (COUNT, space)).encode(), None, [])
    for wrong in (" " * 100, "\x0b,", ", \x0c", " " * 100 + "; ,"):
        with pytest.raises(RefusalError, match="no JSON"):
            read_question((text % (COUNT, wrong)).encode(), None, [])


def test_texts_of_many_quotation_marks_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(runs, "_after_text", lambda data, quote: looked.append(quote))
    body = {"a": '"' * LARGE, "b": [1]}
    assert object_of(json.dumps(body).encode()) == body and not looked


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("FP32", NUMBERS), ("FP64", NUMBERS), ("INT64", [(-3) ** (n % 30) for n in range(200_000)]),
        ("UINT64", [5 ** (n % 27) for n in range(200_000)]),
        ("INT8", [n % 256 - 128 for n in range(200_000)]),
        ("UINT16", [n % 65536 for n in range(200_000)]), ("BOOL", [n % 3 == 0 for n in range(300_000)]),
        ("BYTES", [b"w" * n for n in range(900)]),
    ],
)  # fmt: skip
def test_large_messages_are_those_of_protobuf(kind: str, values: list[Any]) -> None:
    from launcher.serving.grpc.tensors import _FIELDS, read_question

    made = service_pb2.ModelInferRequest(model_name="rows", id="seven")
    made.parameters["priority"].int64_param = 3
    for name in "ab":
        tensor = made.inputs.add(name=name, datatype=kind, shape=[len(values)])
        getattr(tensor.contents, _FIELDS[kind][0]).extend(values)
    made.outputs.add(name="y")
    data = made.SerializeToString()
    assert len(data) > LARGE
    found: Any = parsed(data, "ModelInferRequest")
    assert found.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    for value in read_question(found).feeds.values():
        assert value.tolist() == [one.decode() if isinstance(one, bytes) else one for one in values]


def test_large_messages_of_bytes_and_of_numbers_in_fields_of_their_own() -> None:
    made = service_pb2.ModelInferRequest(model_name="rows")
    made.raw_input_contents.extend([b"x" * LARGE, b"", b"y" * (LARGE + 1)])
    data = made.SerializeToString()
    found: Any = parsed(data, "ModelInferRequest")
    assert list(found.raw_input_contents) == list(made.raw_input_contents)
    alone = b"\x18\x05" * LARGE  # the field 3, int64_contents, each time
    found = parsed(field(5, field(5, alone)), "ModelInferRequest")
    numbers = found.inputs[0].contents.int64_contents
    assert len(numbers) == LARGE and set(numbers) == {5}
    assert MESSAGES["InferTensorContents"]["int64_contents"] == (3, "int64*")


@pytest.mark.parametrize("data", [b"\xff" * LARGE, b"2\x80\x80\x40" + b"\xff" * (1 << 20)])
def test_large_messages_that_are_none(data: bytes) -> None:
    with pytest.raises(RefusalError, match="no ModelInferRequest of protobuf"):
        parsed(data, "ModelInferRequest")


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
def test_others_are_answered_between_two_pieces(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, seen = threading.Semaphore(0), threading.Event(), list[str]()

    def breathe() -> None:
        seen.append(threading.current_thread().name)
        begun.release()
        assert go_on.wait(30)

    monkeypatch.setattr(runs if protocol == "http" else schema, "breathe", breathe)
    limits, metrics = ServeLimits(body=16 << 20), Metrics()
    model = TensorModel("played", limits, metrics, open_group=Played)
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[4 * COUNT])
    tensor.contents.fp32_contents.extend(4 * NUMBERS)
    message = service_pb2.ModelInferRequest(model_name="played", inputs=[tensor])
    body = ask(1)
    body["inputs"][0] |= {"shape": [4 * COUNT], "data": 4 * NUMBERS}
    listening = Listening(port=0, grpc_port=0)
    with (
        running(model, limits=limits, metrics=metrics, listening=listening) as server,
        grpc.insecure_channel(server.grpc, [("grpc.max_receive_message_length", -1)]) as channel,
        ThreadPoolExecutor(1) as threads,
    ):

        def large() -> Any:
            if protocol == "http":
                answer = httpx.post(server.url + URL, json=body, timeout=60)
                return answer.json()["outputs"][0]["data"]
            if protocol == "grpc":
                data = channel.unary_unary(f"/{SERVICE}/ModelInfer")(message.SerializeToString(), timeout=60)
                found = service_pb2.ModelInferResponse.FromString(data)
            else:
                call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
                (data,) = call(iter([message.SerializeToString()]), timeout=60)
                found = service_pb2.ModelStreamInferResponse.FromString(data).infer_response
            return found.outputs[0].contents.fp32_contents

        answer = threads.submit(large)
        assert begun.acquire(timeout=30)
        small = httpx.post(server.url + URL, json=ask(3), timeout=60)
        assert small.json()["outputs"][0]["data"] == [6] and not answer.done()
        go_on.set()
        found = np.array(answer.result(60), np.float32)
        assert (found == 2 * np.array(4 * NUMBERS, np.float32)).all()
    assert len(seen) > 4 and all(name.startswith("shardrun bodies") for name in seen)


@pytest.mark.parametrize("shape", [(9, 2000), (3, 3, 2000), (20_000,)], ids=str)
def test_lists_in_lists_stay_what_they_are(shape: tuple[int, ...]) -> None:
    """Whoever asks for lists gets them, of whatever depth."""
    data = orjson.dumps({"a": np.arange(np.prod(shape)).reshape(shape).tolist(), "b": [1, [2]]})
    assert len(data) > PIECE
    assert runs.parsed(data, lists=True) == (orjson.loads(data), [])


def test_a_large_answer_goes_in_pieces() -> None:
    """The next one goes when the client has taken the one before; no byte is lost or sent twice."""
    for size, count in ((0, 1), (1, 1), (LARGE, 1), (LARGE + 1, 2), (3 * LARGE, 3), (3 * LARGE + 5, 4)):
        data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
        found = list(_pieces({"type": "http.response.body", "body": data, "more_body": False}))
        assert b"".join(piece["body"] for piece in found) == data and len(found) == count
        assert [piece["more_body"] for piece in found] == [True] * (count - 1) + [False]
        assert max(len(piece["body"]) for piece in found) <= LARGE
