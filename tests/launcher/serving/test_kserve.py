"""The Open Inference Protocol, asked by tritonclient and by plain HTTP; ONNX Runtime is the oracle."""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton

from launcher.inspection import signature
from launcher.serving.kserve.tensors import read_question
from tests.launcher.serving.running import Running
from tests.ranks.threads import until

URL = "/v2/models/rows/infer"


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address, concurrency=8) as client:
        yield client


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def plain(rows: Path) -> Any:
    return onnxruntime.InferenceSession(rows, providers=["CPUExecutionProvider"])


def feeds(count: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    words = np.array(["", "ä\n", "wörter", "x" * 300], object)
    return {"x": random.normal(size=(count, 8)).astype(np.float32), "s": words[random.integers(0, 4, count)]}


def inputs(arrays: dict[str, Any], *, binary: bool) -> list[Any]:
    made = []
    for name, array in arrays.items():
        kind = "BYTES" if array.dtype == object else "FP32"
        made.append(triton.InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made


def body(**more: Any) -> dict[str, Any]:
    x = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0.5] * 8}
    return {"inputs": [x, {"name": "s", "shape": [1], "datatype": "BYTES", "data": ["a"]}], **more}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("count", [1, 5, 0])
def test_answers_are_those_of_onnx_runtime(client: Any, plain: Any, binary: bool, count: int) -> None:
    arrays = feeds(count)
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("t", "y")]
    found = client.infer("rows", inputs(arrays, binary=binary), outputs=wanted, request_id="seven")
    expected = dict(zip(("y", "t"), plain.run(["y", "t"], arrays), strict=True))
    np.testing.assert_allclose(found.as_numpy("y"), expected["y"], rtol=1e-6, atol=1e-6)
    texts = [one.decode() if isinstance(one, bytes) else one for one in found.as_numpy("t")]
    assert texts == list(expected["t"])
    assert found.get_response()["id"] == "seven" and found.get_response()["model_name"] == "rows"


def test_many_at_once_each_get_their_own_answer(client: Any, plain: Any, server: Running) -> None:
    asked = [feeds(seed % 4, seed) for seed in range(40)]
    waiting = [client.async_infer("rows", inputs(arrays, binary=True)) for arrays in asked]
    for arrays, answer in zip(asked, waiting, strict=True):
        expected = plain.run(["y"], arrays)[0]
        np.testing.assert_allclose(answer.get_result().as_numpy("y"), expected, rtol=1e-6, atol=1e-6)
    text = server.context.metrics.text().decode()
    runs = float(text.split('shardrun_batch_rows_count{model="rows"}')[1].split()[0])
    stats = client.get_inference_statistics("rows")["model_stats"][0]
    assert runs == stats["execution_count"] < stats["inference_count"], "no two requests were joined"


def test_an_input_that_there_is_none_of_has_no_file_read(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be read in the loop that answers everybody."""
    read: list[Path] = []
    monkeypatch.setattr(signature, "names_of_weights", lambda path: read.append(path) or {"w"})
    other = {"name": "w", "shape": [1, 8], "datatype": "FP32", "data": [0.5] * 8}
    for _ in range(2):
        answer = http.post(URL, json={"inputs": [*body()["inputs"], other]})
        assert answer.status_code == 400 and "no input 'w'" in answer.json()["error"]
    assert not read


def test_metrics_say_what_each_rank_has_spent(client: Any, http: httpx.Client) -> None:
    def told() -> dict[str, float]:
        lines = http.get("/metrics").text.splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}

    before = told()
    client.infer("rows", inputs(feeds(2), binary=True))
    spent = [
        f'shardrun_rank_seconds_total{{in="{kind}",model="rows",rank="{rank}",version="1"}}'
        for kind in ("compute", "communication")
        for rank in (0, 1)
    ]
    after: dict[str, float] = {}

    def all_said() -> bool:  # a busy rank says it at a later time
        after.update(told())
        return all(after[name] > before[name] for name in spent)

    until(all_said)
    for rank in (0, 1):
        for kind in ("compute", "communication", "wait"):
            name = f'shardrun_rank_seconds_total{{in="{kind}",model="rows",rank="{rank}",version="1"}}'
            assert after[name] >= before[name] >= 0
        own = f'{{model="rows",rank="{rank}",version="1"}}'
        assert after[f"shardrun_rank_memory_bytes{own}"] > 1e7
        assert after[f"shardrun_rank_weight_bytes{own}"] > 0
        assert after[f"shardrun_rank_state_bytes{own}"] == 0
    assert after['shardrun_model_ready{model="rows",version="1"}'] == 1
    assert after['shardrun_queue_seconds_count{model="rows"}'] > 0


def test_what_a_server_says_of_itself(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("rows")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    found = client.get_model_metadata("rows")
    assert [(one["name"], one["datatype"], one["shape"]) for one in found["inputs"]] == [
        ("x", "FP32", [-1, 8]), ("s", "BYTES", [-1]),
    ]  # fmt: skip
    assert {one["name"]: one["state"] for one in client.get_model_repository_index()}["rows"] == "READY"
    assert client.get_model_config("rows")["input"][0]["data_type"] == "TYPE_FP32"


def test_unloaded_models_say_so_and_come_back(client: Any) -> None:
    client.unload_model("rows")
    assert not client.is_model_ready("rows")
    with pytest.raises(triton.InferenceServerException, match="'rows' is not loaded"):
        client.infer("rows", inputs(feeds(1), binary=True))
    client.load_model("rows")
    assert client.infer("rows", inputs(feeds(2), binary=True)).as_numpy("y").shape == (2, 16)


X = {"name": "x", "shape": [1, 8], "datatype": "FP32"}
WRONG: list[tuple[Any, int, str]] = [
    (b"", 400, "no JSON"),
    (b"[]", 400, "expected a JSON object, found []"),
    (b'{"inputs": NaN}', 400, "NaN is no number of JSON"),
    (b"[" * 100_000, 400, "no JSON"),
    (b'{"inputs": 3}', 400, "inputs: expected a list, found 3"),
    (b'{"inputs": [4]}', 400, "inputs[0]: expected an object, found 4"),
    ({"inputs": [{"name": "x", "shape": [1, -8], "datatype": "FP32", "data": []}]}, 400, "expected lengths"),
    ({"inputs": [{"name": "x", "shape": [True], "datatype": "FP32", "data": [1]}]}, 400, "expected lengths"),
    ({"inputs": [{"name": "x", "shape": [1 << 60], "datatype": "FP32", "data": [1]}]}, 400, "into memory"),
    ({"inputs": [{**X, "shape": [1] * 33, "data": [1]}]}, 400, "at most 32"),
    ({"inputs": [{**X, "shape": [0, 1 << 40, 1 << 40], "data": []}]}, 400, "into memory"),
    ({"inputs": [{**X, "shape": [10**4000] * 9, "data": []}]}, 400, "into memory"),
    ({"inputs": [{**X, "shape": [10**4000] * 99, "data": []}]}, 400, "no JSON"),
    ({"inputs": [{**X, "data": ["x" * 10_000] + [0.5] * 20_000}]}, 400, "values are str"),
    ({"inputs": [{**X, "data": [[[0.5] * 8], 3]}]}, 400, "of values and lists"),
    ({"inputs": [{**X, "data": [1e39] * 8}]}, 400, "too large"),
    ({"inputs": [{**X, "datatype": "FP16", "data": [70000] * 8}]}, 400, "too large"),
    ({"inputs": [{**X, "datatype": "BF16", "data": [1e39] * 8}]}, 400, "too large"),
    ({"inputs": [{**X, "datatype": "FP64", "data": [10**400] * 8}]}, 400, "too large"),
    (b'{"inputs": [1e999]}', 400, "expected an object"),
    (b'{"inputs": [{"name": "\\ud800"}]}', 400, "no JSON"),
    (b'{"inputs": "\xed\xa0\x80"}', 400, "no JSON"),
    (b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}", 400, "expected an object, found [[[["),
    ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP31", "data": [1]}]}, 400, "expected one of BOOL"),
    ({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1]}]}, 400, "expected 2 values"),
    ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": ["1"]}]}, 400, "values of FP32"),
    ({"inputs": [{"name": "x", "shape": [1], "datatype": "UINT8", "data": [300]}]}, 400, "outside 0 to 255"),
    ({"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1.5]}]}, 400, "values are float"),
    ({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [[1], [1, 2]]}]}, 400, "2 values"),
    ({"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": [1]}]}, 400, "no text"),
    ({"inputs": []}, 400, "'x'"),
    (body(inputs=[*body()["inputs"], body()["inputs"][0]]), 400, "is given twice"),
    (body(inputs=[{**body()["inputs"][0], "shape": [8]}, body()["inputs"][1]]), 400, "'x'"),
    (body(inputs=[{**body()["inputs"][0], "name": "X"}, body()["inputs"][1]]), 400, "'x'"),
    (body(outputs=[{"name": "z"}]), 400, "there is no output"),
    (body(outputs=[{"name": "y", "parameters": {"classification": 3}}]), 400, "classification"),
    (body(outputs=[{"name": "y"}, {"name": "y"}]), 400, "asked for twice"),
    (body(parameters={"priority": -1}), 400, "priority: expected 0 to"),
    (body(parameters={"timeout": 10**400}), 400, "timeout: expected 0 to"),
    (b'{"inputs": [1e999]}' + b" " * (256 << 10), 400, "no JSON"),
    (body(parameters={"timeout": 10**18}), 400, "timeout: expected 0 to"),
    (body(parameters={"timeout": 10**30}), 400, "timeout: expected a whole number"),
    (body(parameters={"timeout": -5}), 400, "timeout: expected 0 to"),
    (body(parameters={"priority": "high"}), 400, "priority: expected a whole number"),
    (
        {"inputs": [{**X, "parameters": {"binary_data_size": 99}}]},
        400,
        "expected at most the 0 bytes left, found 99",
    ),
    (
        {"inputs": [{**X, "parameters": {"shared_memory_region": "a"}}]},
        400,
        "has no shared memory",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "status", "said"), WRONG)
def test_wrong_requests_get_one_sentence(http: httpx.Client, sent: Any, status: int, said: str) -> None:
    data = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    answer = http.post(URL, content=data)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"] and "\n" not in answer.json()["error"]
    assert http.post(URL, json=body()).status_code == 200


@pytest.mark.parametrize(
    ("header", "rest", "said"),
    [
        ("9999999", b"", "expected the bytes of JSON"), ("-1", b"", "expected the bytes of JSON"),
        ("x", b"", "expected the bytes of JSON"), (None, b"more", "no JSON"),
        ("whole", b"more", "4 bytes more"),
    ],
)  # fmt: skip
def test_wrong_binary_bodies(http: httpx.Client, header: str | None, rest: bytes, said: str) -> None:
    data = json.dumps(body()).encode()
    length = str(len(data)) if header == "whole" else header
    more = {} if length is None else {"Inference-Header-Content-Length": length}
    answer = http.post(URL, content=data + rest, headers=more)
    assert answer.status_code == 400 and said in answer.json()["error"], answer.text


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_packed_requests(client: Any, plain: Any, how: str) -> None:
    arrays = feeds(3)
    found = client.infer("rows", inputs(arrays, binary=True), request_compression_algorithm=how)
    np.testing.assert_allclose(found.as_numpy("y"), plain.run(["y"], arrays)[0], rtol=1e-6, atol=1e-6)


def test_wrong_packing(http: httpx.Client, server: Running) -> None:
    packed, most = gzip.compress(json.dumps(body()).encode()), server.context.limits.body
    for data, encoding, status in (
        (packed[:-9], "gzip", 400),
        (packed + b"x", "gzip", 400),
        (b"{}", "deflate", 400),
        (packed, "br", 415),
        (gzip.compress(b" " * (most + 1)), "gzip", 413),
        (gzip.compress(b" " * most), "gzip", 400),
    ):
        answer = http.post(URL, content=data, headers={"Content-Encoding": encoding})
        assert (answer.status_code, "\n" in answer.json()["error"]) == (status, False), answer.text


def test_values_of_json_are_exact() -> None:
    for kind, values in {
        "UINT64": [2**63, 1, 2**64 - 1], "INT64": [-(2**63), 2**63 - 1], "FP64": [1e308, -0.0, 2**60],
        "BF16": [1.5, -2], "BOOL": [True, False], "BYTES": ["", "x"],
    }.items():  # fmt: skip
        item = {"name": "a", "shape": [1, len(values)], "datatype": kind, "data": [values]}
        question = read_question(json.dumps({"inputs": [item]}).encode(), None, [])
        assert question.feeds["a"].shape == (1, len(values))
        assert question.feeds["a"][0].tolist() == values


def test_what_is_said_of_a_request_is_short_however_much_it_says(http: httpx.Client) -> None:
    inputs = [{"name": f"n{at}", "datatype": "FP32", "shape": [0], "data": []} for at in range(2000)]
    answer = http.post("/v2/models/rows/infer", json={"inputs": inputs})
    assert answer.status_code == 400 and "'x' is missing" in answer.json()["error"]
    assert len(answer.json()["error"]) <= 600


QUESTION = b'{"inputs": [%s, %s]}' % (
    b'{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1, 1, 1, 1, 1, 1, 1, 1]}',
    b'{"name": "s", "datatype": "BYTES", "shape": [1], "data": ["a"]}',
)
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"


@pytest.mark.parametrize(
    ("offers", "pieces"),
    [
        ([OFFER], 1),
        ([OFFER], 7),  # neither head nor body comes at once
        ([OFFER, b"X: y", OFFER], 1),
        ([b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a", b"X: y"], 1),
        ([OFFER] * 30, 1),
        ([OFFER + b"\r\nTransfer-Encoding: chunked", b"X: y"], 3),
    ],
)
def test_an_offer_of_another_protocol_leaves_the_request_as_it_is(
    server: Running, offers: list[bytes], pieces: int
) -> None:
    # curl --http2 and Java's client make it with their first request, body and all.
    data = b""
    for offer in offers:
        chunked = b"chunked" in offer
        length = b"" if chunked else b"Content-Length: %d\r\n" % len(QUESTION)
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(QUESTION), QUESTION) if chunked else QUESTION
        data += b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: a\r\n%s%s\r\n\r\n%s" % (length, offer, body)
    data += b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as made:
        for at in range(pieces):
            made.sendall(data[len(data) * at // pieces : len(data) * (at + 1) // pieces])
            time.sleep(0.05)
        answers = b"".join(iter(lambda: made.recv(1 << 16), b""))
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answers)
    assert statuses == [b"200"] * (len(offers) + 1), answers[:300]
    assert answers.count(b'"name":"y"') == len(offers) and answers.endswith(b'{"live": true}')


def test_pages_of_other_sites_may_not_ask(http: httpx.Client) -> None:
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert http.post("/v2/repository/models/rows/unload", headers=cross).status_code == 403
    assert http.post(URL, json=body(), headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert http.get("/", headers=cross).status_code == 200


def test_bodies_beyond_the_limit(http: httpx.Client, server: Running) -> None:
    size = server.context.limits.body + 1
    assert http.post(URL, content=b"x" * size).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(size // 1000 + 1):
            yield b"x" * 1000

    assert http.post(URL, content=pieces()).status_code == 413


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/nope", 404),
        ("/v2/models/rows/versions/9", 404),
        ("/v2/models/tiny/infer", 405),
        ("/x", 404),
    ],
)
def test_what_is_not_there(http: httpx.Client, path: str, status: int) -> None:
    answer = http.get(path)
    assert answer.status_code == status and answer.json()["error"]


def test_no_path_is_told(http: httpx.Client, rows: Path) -> None:
    for sent in (body(inputs=[]), body(outputs=[{"name": "q"}])):
        assert str(rows.parent) not in http.post(URL, json=sent).text
