"""The Open Inference Protocol over gRPC, asked by tritonclient; ONNX Runtime is the oracle."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

import launcher
from launcher.generation.model import LanguageModel
from launcher.serving.grpc.schema import HEALTH, METHODS, PARAMETER, SERVICE, classes
from launcher.serving.grpc.tensors import from_contents
from launcher.serving.refusals import RefusalError
from tests.launcher.serving.running import Running
from tests.launcher.serving.test_kserve import feeds
from tests.ranks.threads import until

INFER = f"/{SERVICE}/ModelInfer"


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(server.grpc) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Any:
    """What protoc makes of Triton's description, without a client around it."""
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture(scope="module")
def plain(rows: Path) -> Any:
    return onnxruntime.InferenceSession(rows, providers=["CPUExecutionProvider"])


def inputs(arrays: dict[str, Any]) -> list[Any]:
    made = []
    for name, array in arrays.items():
        made.append(triton.InferInput(name, list(array.shape), "BYTES" if array.dtype == object else "FP32"))
        made[-1].set_data_from_numpy(array)
    return made


def texts_of(array: Any) -> list[str]:
    return [one.decode() if isinstance(one, bytes) else one for one in array]


@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
@pytest.mark.parametrize("count", [1, 5, 0])
def test_answers_are_those_of_onnx_runtime(client: Any, plain: Any, count: int, packed: str | None) -> None:
    arrays = feeds(count)
    wanted = [triton.InferRequestedOutput(name) for name in ("t", "y")]
    found = client.infer(
        "rows", inputs(arrays), outputs=wanted, request_id="seven", compression_algorithm=packed
    )
    expected = dict(zip(("y", "t"), plain.run(["y", "t"], arrays), strict=True))
    np.testing.assert_allclose(found.as_numpy("y"), expected["y"], rtol=1e-6, atol=1e-6)
    assert texts_of(found.as_numpy("t")) == list(expected["t"])
    answer = found.get_response()
    assert (answer.id, answer.model_name, answer.model_version) == ("seven", "rows", "1")
    assert [output.name for output in answer.outputs] == ["t", "y"]


def test_values_are_answered_in_values(stub: Any, plain: Any) -> None:
    arrays = feeds(3)
    asked = service_pb2.ModelInferRequest(model_name="rows")
    x = asked.inputs.add(name="x", datatype="FP32", shape=[3, 8])
    x.contents.fp32_contents.extend(arrays["x"].ravel().tolist())
    s = asked.inputs.add(name="s", datatype="BYTES", shape=[3])
    s.contents.bytes_contents.extend(text.encode() for text in arrays["s"])
    found = stub.ModelInfer(asked)
    y, t = found.outputs
    expected = plain.run(["y", "t"], arrays)
    assert not found.raw_output_contents and list(y.shape) == [3, 16]
    np.testing.assert_allclose(y.contents.fp32_contents, expected[0].ravel(), rtol=1e-6, atol=1e-6)
    assert [text.decode() for text in t.contents.bytes_contents] == list(expected[1])


def test_many_at_once_each_get_their_own_answer(client: Any, plain: Any, server: Running) -> None:
    asked = [feeds(seed % 4, seed) for seed in range(40)]
    before = client.get_inference_statistics("rows").model_stats[0]
    answers: dict[str, Any] = {}

    async def ask() -> None:
        async with triton_aio.InferenceServerClient(server.grpc) as own:
            found = await asyncio.gather(*(own.infer("rows", inputs(arrays)) for arrays in asked))
        answers.update(enumerate(found))

    asyncio.run(ask())
    assert len(answers) == len(asked)
    for number, arrays in enumerate(asked):
        expected = plain.run(["y"], arrays)[0]
        np.testing.assert_allclose(answers[number].as_numpy("y"), expected, rtol=1e-6, atol=1e-6)
    after = client.get_inference_statistics("rows").model_stats[0]
    assert after.inference_count - before.inference_count == len(asked)
    assert after.execution_count - before.execution_count < len(asked), "no two requests were joined"


def test_what_a_server_says_of_itself(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("rows")
    assert client.get_server_metadata().name == "shardrun"
    found = client.get_model_metadata("rows")
    assert [(one.name, one.datatype, list(one.shape)) for one in found.inputs] == [
        ("x", "FP32", [-1, 8]), ("s", "BYTES", [-1]),
    ]  # fmt: skip
    assert list(found.versions) == ["1"] and client.is_model_ready("rows", "1")
    config = client.get_model_config("rows", as_json=True)["config"]
    assert [one["data_type"] for one in config["input"]] == ["TYPE_FP32", "TYPE_STRING"]
    listed = {one.name: one.state for one in client.get_model_repository_index().models}
    assert listed == {"rows": "READY", "tiny": "READY"}
    assert {one.name for one in client.get_inference_statistics().model_stats} == {"rows", "tiny"}


def test_health(channel: grpc.Channel) -> None:
    check = channel.unary_unary(
        f"/{HEALTH}/Check",
        request_serializer=lambda name: b"\n" + bytes([len(name)]) + name if name else b"",
        response_deserializer=bytes,
    )
    for name in (b"", SERVICE.encode(), b"rows"):
        assert check(name) == b"\x08\x01"  # field 1: SERVING
    with pytest.raises(grpc.RpcError) as told:
        check(b"nope")
    assert told.value.code() is grpc.StatusCode.NOT_FOUND


def test_unloaded_models_say_so_and_come_back(client: Any) -> None:
    client.unload_model("rows")
    assert not client.is_model_ready("rows") and client.is_server_ready()
    with pytest.raises(triton.InferenceServerException, match="'rows' is not loaded") as told:
        client.infer("rows", inputs(feeds(1)))
    assert told.value.status() == "StatusCode.UNAVAILABLE"
    client.load_model("rows")
    assert client.infer("rows", inputs(feeds(2))).as_numpy("y").shape == (2, 16)
    with pytest.raises(triton.InferenceServerException, match="leave out") as told:
        client.load_model("rows", config="{}")
    assert told.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_kserve_names_models_to_load_in_another_field(channel: grpc.Channel) -> None:
    for method, loaded in (("RepositoryModelUnload", b""), ("RepositoryModelLoad", b"\x10\x01")):
        call = channel.unary_unary(f"/{SERVICE}/{method}")
        assert call(b"\n\x04rows") == b"\n\x04rows" + loaded


def fields_of(descriptor: Any) -> dict[int, Any]:
    """Name, kind and what is inside of each field, by its number."""
    found = {}
    for field in descriptor.fields:
        inner = None if field.message_type is None else fields_of(field.message_type)
        choice = None if field.containing_oneof is None else field.containing_oneof.name
        # Enumerations are numbers on the wire.
        kind = field.TYPE_INT32 if field.type == field.TYPE_ENUM else field.type
        found[field.number] = (field.name, kind, field.is_repeated, choice, inner)
    return found


def within(own: Any, theirs: Any) -> bool:
    """Whether all of our fields are theirs; Triton has more."""
    return all(
        number in theirs
        and field[:4] == theirs[number][:4]
        and (field[4] is None or within(field[4], theirs[number][4]))
        for number, field in own.items()
    )


@pytest.mark.parametrize("method", METHODS)
def test_messages_are_those_of_triton(method: str) -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[method]
    assert theirs.full_name == f"{SERVICE}.{method}"
    request, answer = METHODS[method]
    assert within(fields_of(classes()[request].DESCRIPTOR), fields_of(theirs.input_type))
    if answer != "RepositoryModelResponse":  # KServe's, where Triton has no fields
        assert within(fields_of(classes()[answer].DESCRIPTOR), fields_of(theirs.output_type))
    # What one of them leaves out must not be what clients send.
    if request != "Empty":
        assert fields_of(classes()[request].DESCRIPTOR).keys() == fields_of(theirs.input_type).keys()


def test_parameters_lie_where_clients_look_for_them() -> None:
    assert PARAMETER in str(service_pb2.InferParameter.DESCRIPTOR.oneofs_by_name)


def asked(**more: Any) -> Any:
    """A request with typed values, as `wrong_requests` bend it."""
    made = service_pb2.ModelInferRequest(model_name="rows", **more)
    made.inputs.add(name="x", datatype="FP32", shape=[1, 8]).contents.fp32_contents.extend([0.5] * 8)
    made.inputs.add(name="s", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a")
    return made


def bent(change: str) -> Any:
    made = asked()
    exec(change, {"made": made, "x": made.inputs[0], "s": made.inputs[1]})
    return made


WRONG = [
    ("made.model_name = 'nope'", "NOT_FOUND", "there is no model 'nope' here"),
    ("made.model_version = '9'", "NOT_FOUND", "has no version '9'"),
    ("x.shape[:] = [-1, 8]", "INVALID_ARGUMENT", "expected lengths"),
    ("x.shape[:] = [1 << 60]", "INVALID_ARGUMENT", "into memory"),
    ("x.shape[:] = [1 << 40, 1 << 40]", "INVALID_ARGUMENT", "into memory"),
    ("x.shape[:] = [1] * 33", "INVALID_ARGUMENT", "at most 32"),
    ("x.shape[:] = [2, 8]", "INVALID_ARGUMENT", "expected 16 values for the shape [2, 8], found 8"),
    ("x.shape[:] = [8]", "INVALID_ARGUMENT", "'x'"),
    ("x.datatype = 'FP31'", "INVALID_ARGUMENT", "expected one of BOOL"),
    ("x.datatype = ''", "INVALID_ARGUMENT", "expected one of BOOL"),
    ("x.datatype = 'FP64'", "INVALID_ARGUMENT", "in fp64_contents, found fp32_contents"),
    ("x.datatype = 'FP16'", "INVALID_ARGUMENT", "send raw_input_contents"),
    ("x.contents.int_contents.append(3)", "INVALID_ARGUMENT", "in fp32_contents, found int_contents"),
    ("s.contents.bytes_contents[0] = b'\\xff'", "INVALID_ARGUMENT", "expected texts in UTF-8"),
    ("s.name = 'x'", "INVALID_ARGUMENT", "is given twice"),
    ("s.name = ''", "INVALID_ARGUMENT", "'s' is missing"),
    ("del made.inputs[1]", "INVALID_ARGUMENT", "'s' is missing"),
    ("del made.inputs[:]", "INVALID_ARGUMENT", "'x' is missing"),
    ("made.inputs.add(name='z', datatype='FP32', shape=[0])", "INVALID_ARGUMENT", "no input 'z'"),
    ("made.raw_input_contents.append(b'')", "INVALID_ARGUMENT", "each of the 2 inputs, found 1"),
    ("made.raw_input_contents.extend([b''] * 2)", "INVALID_ARGUMENT", "excludes raw_input_contents"),
    ("made.outputs.add(name='z')", "INVALID_ARGUMENT", "there is no output"),
    ("[made.outputs.add(name='y') for _ in range(2)]", "INVALID_ARGUMENT", "asked for twice"),
    (
        "made.outputs.add(name='y').parameters['classification'].int64_param = 3",
        "INVALID_ARGUMENT",
        "gives tensors alone",
    ),
    (
        "made.outputs.add(name='y').parameters['shared_memory_region'].string_param = 'a'",
        "INVALID_ARGUMENT",
        "no shared memory",
    ),
    ("x.parameters['shared_memory_region'].string_param = 'a'", "INVALID_ARGUMENT", "no shared memory"),
    ("made.parameters['priority'].int64_param = -1", "INVALID_ARGUMENT", "priority: expected 0 to"),
    ("made.parameters['priority'].uint64_param = 1 << 63", "INVALID_ARGUMENT", "priority: expected 0 to"),
    ("made.parameters['priority'].string_param = 'high'", "INVALID_ARGUMENT", "expected a whole number"),
    ("made.parameters['timeout'].double_param = 0.5", "INVALID_ARGUMENT", "expected a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "status", "said"), WRONG)
def test_wrong_requests_get_one_sentence(stub: Any, rows: Path, change: str, status: str, said: str) -> None:
    with pytest.raises(grpc.RpcError) as told:
        stub.ModelInfer(bent(change), timeout=30)
    details = told.value.details()
    assert (told.value.code().name, said in details, "\n" in details) == (status, True, False), details
    assert str(rows.parent) not in details
    assert len(stub.ModelInfer(asked(), timeout=30).outputs) == 2


@pytest.mark.parametrize(
    "data", [b"\xff" * 9, b"\n\x05ab", b"\n\x02\xff\xff", b"*\xff\xff\xff\xff\x0f", b"\x0b" * 200]
)
def test_what_is_no_message(channel: grpc.Channel, data: bytes) -> None:
    with pytest.raises(grpc.RpcError) as told:
        channel.unary_unary(INFER)(data, timeout=30)
    assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert told.value.details() == "the message is no ModelInferRequest of protobuf"


@pytest.mark.parametrize(
    "data", [b"*\0" * 100_000, b"2\0" * 100_000, b":\0" * 9000, b"*\x02*\0" * 50_000, b'"\0' * 9000]
)
def test_messages_of_many_small_fields(channel: grpc.Channel, data: bytes) -> None:
    with pytest.raises(grpc.RpcError) as told:
        channel.unary_unary(INFER)(data, timeout=30)
    assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 8192 fields" in told.value.details()


def test_messages_that_are_nearly_right(channel: grpc.Channel, stub: Any) -> None:
    """Whatever bytes are sent, a client is told what is wrong with them, and the server goes on."""
    random, right = np.random.default_rng(3), asked().SerializeToString()
    waiting = []
    for _ in range(300):
        data = bytearray(right)
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(len(data)))
            if random.random() < 0.5:
                data[at] = int(random.integers(256))
            else:
                data[at : at + 1] = random.bytes(int(random.integers(4)))
        waiting.append(channel.unary_unary(INFER).future(bytes(data), timeout=60))
    found = {one.code() for one in waiting}
    codes = grpc.StatusCode
    assert codes.INVALID_ARGUMENT in found
    assert found <= {codes.OK, codes.INVALID_ARGUMENT, codes.NOT_FOUND}
    assert len(stub.ModelInfer(asked(), timeout=30).outputs) == 2


def test_parameters_that_say_nothing_to_a_model(client: Any) -> None:
    found = client.infer(
        "rows", inputs(feeds(1)), sequence_id=7, sequence_start=True, sequence_end=True, priority=2,
        timeout=30_000_000, parameters={"a": "text", "b": 0.5, "c": True, "d": 1}, client_timeout=30,
    )  # fmt: skip
    assert found.as_numpy("y").shape == (1, 16)


def test_methods_that_there_are_not(client: Any) -> None:
    with pytest.raises(triton.InferenceServerException) as told:
        client.get_system_shared_memory_status()
    assert told.value.status() == "StatusCode.UNIMPLEMENTED"


def test_messages_beyond_the_limit(client: Any, server: Running, caplog: pytest.LogCaptureFixture) -> None:
    rows_ = server.context.limits.body // 32 + 1
    arrays = {"x": np.zeros((rows_, 8), np.float32), "s": np.full(rows_, "", object)}
    for packed in (None, "gzip"):
        with pytest.raises(triton.InferenceServerException) as told:
            client.infer("rows", inputs(arrays), compression_algorithm=packed)
        assert told.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert "larger than max" in told.value.message()
    assert client.infer("rows", inputs(feeds(1))).as_numpy("y").shape == (1, 16)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


class Stream:
    """A stream of tritonclient, whose answers are read one after another."""

    def __init__(self, client: Any) -> None:
        self._client, self._came = client, queue.Queue[tuple[Any, Any]]()
        client.start_stream(lambda result, error: self._came.put((result, error)))

    def next(self) -> tuple[Any, Any]:
        return self._came.get(timeout=60)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream()


@pytest.fixture
def stream(server: Running) -> Iterator[tuple[Any, Stream]]:
    with triton.InferenceServerClient(server.grpc) as own, Stream(own) as stream:
        yield own, stream


def test_answers_of_a_stream_come_in_order(stream: tuple[Any, Stream], plain: Any) -> None:
    own, answers = stream
    asked_for = [feeds(seed % 5, seed) for seed in range(80)]
    for number, arrays in enumerate(asked_for):
        name = "rows" if number != 7 else "nope"
        own.async_stream_infer(name, inputs(arrays), request_id=str(number))
    for number, arrays in enumerate(asked_for):
        result, error = answers.next()
        if number == 7:
            assert result is None and "there is no model 'nope' here" in error.message()
            continue
        assert error is None and result.get_response().id == str(number)
        assert result.get_response().parameters["triton_final_response"].bool_param
        expected = plain.run(["y"], arrays)[0]
        np.testing.assert_allclose(result.as_numpy("y"), expected, rtol=1e-6, atol=1e-6)


def test_ranks_stay_for_each_question_of_a_stream(
    stream: tuple[Any, Stream], server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those that end when nobody needs them would, in the middle of it."""
    model = server.context.repository.get("rows", "")
    used, seen = type(model).used, []

    def noted(self: Any) -> Any:
        seen.append(self)
        return used(self)

    monkeypatch.setattr(type(model), "used", noted)
    own, answers = stream
    for number in range(3):
        own.async_stream_infer("rows", inputs(feeds(2)), request_id=str(number))
    assert [answers.next()[1] for _ in range(3)] == [None] * 3
    assert seen == [model] * 3
    until(lambda: model.under_way == 0)


@pytest.fixture(scope="module")
def model(texts: Path) -> Iterator[LanguageModel]:
    with launcher.load_language_model(texts, ranks=1) as model:
        yield model


def prompt(text: str, **more: Any) -> list[Any]:
    made = [triton.InferInput("text_input", [1], "BYTES")]
    made[-1].set_data_from_numpy(np.array([text], object))
    for name, value in more.items():
        kind = "BOOL" if isinstance(value, bool) else "BYTES"
        made.append(triton.InferInput(name, [1], kind))
        made[-1].set_data_from_numpy(np.array([value], bool if kind == "BOOL" else object))
    return made


SAMPLING = json.dumps({"temperature": "0", "max_tokens": "12"})  # that backend's clients send texts


def test_texts(client: Any, server: Running, model: LanguageModel) -> None:
    expected = model.generate("hello world", max_new_tokens=12, temperature=0).finish()[0].text
    found = client.infer("tiny", prompt("hello world", sampling_parameters=SAMPLING))
    assert texts_of(found.as_numpy("text_output")) == [f"hello world{expected}"]
    without = prompt("hello world", sampling_parameters=SAMPLING, exclude_input_in_output=True)
    assert texts_of(client.infer("tiny", without).as_numpy("text_output")) == [expected]
    assert next(one.name for one in client.get_model_metadata("tiny").inputs) == "text_input"
    two = prompt("hello world", sampling_parameters='{"n": 2, "seed": 3, "max_tokens": 5, "user": "42"}')
    assert client.infer("tiny", two).as_numpy("text_output").shape == (2,)
    sampling = {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": [SAMPLING]}
    text = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hello world"]}
    over_http = httpx.post(
        f"{server.url}/v2/models/tiny/infer", json={"inputs": [text, sampling]}, timeout=60
    ).json()
    assert over_http["outputs"][0]["data"] == [f"hello world{expected}"]


def test_texts_come_piece_by_piece(stream: tuple[Any, Stream], model: LanguageModel, plain: Any) -> None:
    own, answers = stream
    expected = model.generate("hello world", max_new_tokens=12, temperature=0).finish()[0].text
    sent = prompt("hello world", stream=True, sampling_parameters=SAMPLING)
    own.async_stream_infer("tiny", sent, request_id="a", enable_empty_final_response=True)
    own.async_stream_infer("rows", inputs(feeds(2)), request_id="b")
    pieces, others = [], 0
    while True:
        result, error = answers.next()
        assert error is None
        answer = result.get_response()
        if answer.id == "b":
            others += 1
            continue
        pieces += texts_of(result.as_numpy("text_output"))
        if answer.parameters["triton_final_response"].bool_param:
            break
    assert "".join(pieces) == expected and len(pieces) > 2
    assert answer.parameters["finish_reason"].string_param == "length"
    assert others or answers.next()[0].get_response().id == "b"


def test_a_text_ends_with_its_time(stream: tuple[Any, Stream], server: Running) -> None:
    own, answers = stream
    sampling = json.dumps({"max_tokens": 64, "ignore_eos": True})
    sent = prompt("hello", stream=True, sampling_parameters=sampling)
    numbers = server.context.repository.models["tiny"].numbers
    before = numbers.succeeded
    own.async_stream_infer("tiny", sent, request_id="late", timeout=1)
    while (answer := answers.next())[1] is None:
        assert not answer[0].get_response().parameters["triton_final_response"].bool_param
    assert "the model 'tiny' did not answer within 1e-06 s" in answer[1].message()
    own.async_stream_infer("tiny", sent, request_id="early", timeout=60_000_000)
    while not (answer := answers.next()[0].get_response()).parameters["triton_final_response"].bool_param:
        assert answer.id == "early"
    until(lambda: numbers.succeeded == before + 1)


def test_a_text_ends_with_its_client(server: Running) -> None:
    open_before = server.context.metrics.under_way
    sampling = json.dumps({"max_tokens": 64, "ignore_eos": True})
    tiny = server.context.repository.models["tiny"]
    before = tiny.numbers.succeeded
    with triton.InferenceServerClient(server.grpc) as own:
        stream = Stream(own)
        for _ in range(8):
            own.async_stream_infer("tiny", prompt("hello", stream=True, sampling_parameters=sampling))
        assert stream.next()[1] is None
        own.stop_stream(cancel_requests=True)
    until(lambda: server.context.metrics.under_way <= open_before)
    assert tiny.numbers.succeeded - before < 8, "all texts were written to their ends"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"sampling_parameters": "[]"}, "expected a JSON object"),
        ({"sampling_parameters": '{"max_tokens": 1000}'}, "max_tokens: expected 1 to 64"),
        ({"sampling_parameters": '{"logprobs": 3}'}, "not for models of tensors"),
        ({"sampling_parameters": '{"priority": 3}'}, "priority: this is not for models of tensors"),
        ({"sampling_parameters": '{"model": "rows"}'}, "model: this is not for models of tensors"),
        (
            {"sampling_parameters": json.dumps({"temperature": "[" * 100_000})},
            "temperature: expected a number",
        ),
        ({"sampling_parameters": json.dumps({"temperature": "NaN"})}, "not beyond all bounds"),
        ({"stream": True}, "by gRPC's ModelStreamInfer"),
        ({"stream": "yes"}, "'stream' must have dtype bool"),
        ({"image": "x"}, "no input 'image'"),
    ],
)
def test_wrong_requests_for_texts(client: Any, sent: dict[str, Any], said: str) -> None:
    with pytest.raises(triton.InferenceServerException) as told:
        client.infer("tiny", prompt("hello", **sent))
    assert told.value.status() == "StatusCode.INVALID_ARGUMENT" and said in told.value.message()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"exclude_input_in_output": False}, "a stream holds what is new alone"),
        ({"sampling_parameters": '{"n": 2}'}, "expected 1 for a stream"),
    ],
)
def test_wrong_streams_of_texts(stream: tuple[Any, Stream], sent: dict[str, Any], said: str) -> None:
    own, answers = stream
    own.async_stream_infer("tiny", prompt("hello", stream=True, **sent))
    assert said in answers.next()[1].message()


@pytest.mark.parametrize(
    ("dtype", "field", "least", "most"),
    [
        (np.int8, "int_contents", -128, 127),
        (np.int16, "int_contents", -32768, 32767),
        (np.uint8, "uint_contents", 0, 255),
    ],
)
def test_values_outside_their_type_do_not_wrap_around(dtype: Any, field: str, least: int, most: int) -> None:
    def read(*values: int) -> list[int]:
        contents: Any = classes()["InferTensorContents"]()
        getattr(contents, field).extend(values)
        found: list[int] = from_contents(contents, np.dtype(dtype), [len(values)]).tolist()
        return found

    assert read(least, most) == [least, most]
    for wrong in (least - 1, most + 1):
        if field == "int_contents" or wrong > 0:
            with pytest.raises(RefusalError, match=f"outside {least} to {most}"):
                read(0, wrong)
