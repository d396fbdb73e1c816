"""The Open Inference Protocol over gRPC, asked by tritonclient; ONNX Runtime is the oracle."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from launcher.serving.grpc import messages
from launcher.serving.grpc.schema import HEALTH, MESSAGES, METHODS, PARAMETER, SERVICE, classes
from tests.launcher.serving.running import Running
from tests.launcher.serving.test_kserve import feeds


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


def test_types_have_the_fields_of_the_messages() -> None:
    python = {"string": "str", "bytes": "bytes", "bool": "bool", "float": "float", "double": "float"}
    tree = ast.parse(Path(messages.__file__).read_text())
    typed = {
        node.name: {
            item.target.id: ast.unparse(item.annotation)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    wanted: dict[str, dict[str, str]] = {}
    for name in typed:
        wanted[name] = {}
        for field, (_, said) in MESSAGES[name].items():
            kind = said.rstrip("*{}")
            single = kind if kind in MESSAGES else python.get(kind, "int")
            many = "Composite" if kind in MESSAGES else "Scalar"
            form = {"*": f"Repeated{many}FieldContainer[{single}]", "}": f"MessageMap[{single}]"}
            wanted[name][field] = form.get(said[-1], single)
    assert typed == wanted and PARAMETER in str(service_pb2.InferParameter.DESCRIPTOR.oneofs_by_name)
