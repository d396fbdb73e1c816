"""Models that change while they are served: new weights and new versions, by their admin alone."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest

pytest.importorskip("prometheus_client", reason="what serving needs is not installed")

from launcher.errors import ConfigError
from launcher.serving.access import Role, Tokens, read_tokens
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.opening import offers, repository_of, variable_names, weight_folders
from launcher.serving.refusals import RefusalError
from launcher.serving.upkeep.versions import FIRST, version_of
from launcher.serving.upkeep.weights import of_file
from ranks.common.tensors import TensorSpec
from tests.launcher.generation import tiny
from tests.launcher.group.test_new_weights import ROWS, WIDE, X, save, some
from tests.launcher.serving.playing import ranks_here
from tests.launcher.serving.running import Running, running
from tests.ranks.threads import until

pytestmark = pytest.mark.timeout(240)
ADMIN, USER = b"token-of-the-admin", b"token-of-a-user"
TOKENS = Tokens((ADMIN, USER), (ADMIN,))
WEIGHTS = "/v2/repository/models/model/weights"


def safetensors(weights: dict[str, Any]) -> bytes:
    """As the format is described: a length, a JSON header, the tensors."""
    header, data = {}, b""
    for name, value in weights.items():
        kind = {"float32": "F32", "float64": "F64"}[value.dtype.name]
        header[name] = {
            "dtype": kind, "shape": list(value.shape), "data_offsets": [len(data), len(data) + value.nbytes]
        }  # fmt: skip
        data += value.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def npz(weights: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **weights)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three versions of a model, one that is asked otherwise, one that is damaged; and new weights."""
    folder = tmp_path_factory.mktemp("upkeep")
    for version in (1, 2, 3):
        save(folder / f"{version}.onnx", **some(version))
    other = some(1)
    save(folder / "4.onnx", other["first"], np.ones((WIDE, 1), np.float32), other["bias"])
    (folder / "5.onnx").write_bytes(b"no model")
    (folder / "weights").mkdir()
    (folder / "weights" / "new.npz").write_bytes(npz(some(8)))
    (folder / "weights" / "new.safetensors").write_bytes(safetensors(some(9)))
    (folder / "secret.npz").write_bytes(npz(some(1)))
    (folder / "weights" / "link.npz").symlink_to(folder / "secret.npz")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Running]:
    limits, metrics = ServeLimits(), Metrics()
    offered = offers(
        {
            "model": folder / "1.onnx", "ranks": 2, "launcher": "local", "threads": 1,
            "restart": "on-failure",
            "variable_weights": ["first", "se*", "bias"], "weights_from": folder / "weights",
            "versions": folder / "{}.onnx",
        },
        None, "model",
    )  # fmt: skip
    repository = repository_of(offered, limits, metrics)
    more = {"tokens": TOKENS, "folders": weight_folders(offered), "repository": repository}
    with running(limits=limits, metrics=metrics, **more) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {ADMIN.decode()}"}
    with httpx.Client(base_url=server.url, timeout=60, headers=headers) as client:
        yield client


def infer(client: httpx.Client, version: str = "") -> tuple[Any, str]:
    """What the model answers to `X`, and its version."""
    x = {"name": "x", "shape": list(X.shape), "datatype": "FP32", "data": X.ravel().tolist()}
    path = f"/v2/models/model{f'/versions/{version}' if version else ''}/infer"
    answer = client.post(path, json={"inputs": [x]})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return np.array(found["outputs"][0]["data"], np.float32).reshape(-1, ROWS), found["model_version"]


def plain(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]


def alike(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-4))


def test_new_weights(client: httpx.Client, server: Running, folder: Path, tmp_path: Path) -> None:
    assert alike(infer(client)[0], plain(folder / "1.onnx"))
    told = client.get(WEIGHTS).json()
    assert told["updates"] == 0 and [one["name"] for one in told["weights"]] == ["first", "second", "bias"]
    expected = some(1)
    for number, (seed, given) in enumerate(
        [
            (6, {"content": npz(some(6))}), (7, {"content": safetensors(some(7))}),
            (8, {"json": {"file": "new.npz"}}), (9, {"json": {"file": "new.safetensors"}}),
            (0, {"content": npz({"bias": some(10)["bias"]})}),
        ],
        1,
    ):  # fmt: skip
        expected = some(seed) if seed else {**expected, "bias": some(10)["bias"]}
        answer = client.post(WEIGHTS, **given)
        assert answer.status_code == 200, answer.text
        assert answer.json()["updates"] == number
        assert alike(infer(client)[0], plain(save(tmp_path / "m.onnx", **expected)))
    text = client.get("/metrics").text
    assert 'shardrun_model_weight_updates{model="model",version="1"} 5.0' in text
    # And ranks that come later have them, too.
    os.kill(server.context.repository.models["model"].groups[0].stats[1].pid, signal.SIGKILL)
    until(lambda: server.context.repository.models["model"].groups[0].age == 1)
    assert alike(infer(client)[0], plain(tmp_path / "m.onnx"))


def test_who_may_change_a_model(client: httpx.Client, server: Running, folder: Path) -> None:
    before = infer(client)[0]
    paths = (WEIGHTS, "/v2/repository/models/model/versions/2/load")
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer wrong-token"}, 401),
        ({"Authorization": f"Bearer {USER.decode()}"}, 403),
        ({"Authorization": f"Basic {ADMIN.decode()}"}, 401),
    ):
        for path in (*paths, "/v2/repository/models/model/unload", "/v2/repository/models/model/load"):
            answer = httpx.post(server.url + path, headers=headers, content=npz(some(2)))
            assert answer.status_code == status, (path, headers, answer.text)
    assert np.array_equal(infer(client)[0], before)
    # A user may ask.
    headers = {"Authorization": f"Bearer {USER.decode()}"}
    assert httpx.get(f"{server.url}/v2/models/model", headers=headers).status_code == 200
    # Without any token nobody may change anything.
    server.context.tokens = Tokens()
    for path in paths:
        answer = httpx.post(server.url + path, content=npz(some(2)))
        assert answer.status_code == 403 and "--token-file" in answer.text
    assert httpx.post(f"{server.url}/v2/repository/models/model/load").status_code == 200


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("first.npy", b"\0" * (50 << 20))
    return file.getvalue()


def lying() -> bytes:
    """An archive whose header says more than there is."""
    file, inner = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(
        inner, {"descr": "<f4", "fortran_order": False, "shape": (ROWS, WIDE)}
    )
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("first.npy", inner.getvalue() + b"12")
    return file.getvalue()


def pickled() -> bytes:
    return npz({"first": np.array([{"a": 1}], dtype=object)})


def test_what_is_refused_changes_nothing(client: httpx.Client, folder: Path) -> None:
    before, whole = infer(client)[0], some(2)
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"content": npz({**whole, "frist": whole["first"]})}, 400, "frist"),
        ({"content": npz({**whole, "first": whole["second"]})}, 400, "first"),
        ({"content": npz({**whole, "bias": whole["bias"].astype(np.float64)})}, 400, "float32"),
        ({"content": safetensors({**whole, "bias": whole["bias"].astype(np.float64)})}, 400, "float32"),
        ({"content": safetensors({**whole, "bias": whole["bias"][:3]})}, 400, "shape"),
        ({"content": safetensors(whole)[:-5]}, 400, "truncated"),
        ({"content": npz(whole)[:-40]}, 400, "archive"),
        ({"content": bomb()}, 400, "archive"), ({"content": lying()}, 400, "first"),
        ({"content": pickled()}, 400, "first"), ({"content": b""}, 400, ""),
        ({"content": b"no weights"}, 400, ""), ({"json": {}}, 400, "file"),
        ({"json": {"file": 5}}, 400, "file"), ({"json": {"file": "new.npz", "url": "http://a"}}, 400, "url"),
        *(
            ({"json": {"file": name}}, status, "file")
            for name, status in (
                ("../secret.npz", 400), (str(folder / "secret.npz"), 400), ("..", 400), ("", 400),
                ("no.npz", 404), ("link.npz", 404), ("new.pt", 400),
                ("a\0b.npz", 400), ("w" * 300 + ".npz", 400),
            )
        ),
    ]  # fmt: skip
    for given, status, said in cases:
        answer = client.post(WEIGHTS, **given)
        assert answer.status_code == status and said in answer.text, (str(given)[:80], answer.text)
        assert str(folder) not in answer.text or str(folder) in str(given)
    assert client.post("/v2/repository/models/no/weights", content=npz(whole)).status_code == 404
    assert np.array_equal(infer(client)[0], before)


def test_another_version(client: httpx.Client, server: Running, folder: Path) -> None:
    """It is loaded beside the one that answers, then switched; one of them answers who asks meanwhile."""
    load = "/v2/repository/models/model/versions/{}/load".format
    expected = {str(version): plain(folder / f"{version}.onnx") for version in (1, 2, 3)}
    seen: list[tuple[bool, str]] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60, headers=client.headers) as own:
            while not ended.is_set():
                found, version = infer(own)
                seen.append((alike(found, expected[version]), version))

    before, thread = ranks_here(), threading.Thread(target=ask)
    thread.start()
    try:
        assert client.post(load(2)).json() == {"name": "model", "version": "2"}
        assert infer(client)[1] == "2" and infer(client, "2")[1] == "2"
        assert client.get("/v2/models/model/versions/1").status_code == 404
        for version, status, said in (
            ("4", 409, "not asked in the same way"), ("5", 503, "could not be loaded"),
            ("6", 404, "no version"),
            ("0", 400, "version"), ("-1", 400, "version"), ("1e3", 400, "version"),
        ):  # fmt: skip
            answer = client.post(load(version))
            assert answer.status_code == status and said in answer.text and str(folder) not in answer.text
        assert infer(client)[1] == "2"
        assert client.post(load(3)).status_code == 200 and client.post(load(3)).status_code == 200
        until(lambda: seen[-1][1] == "3")
    finally:
        ended.set()
        thread.join(60)
    assert all(right for right, _ in seen) and {"1", "3"} <= {version for _, version in seen}
    until(lambda: len(ranks_here()) == 2 and not ranks_here() & before)
    index = client.post("/v2/repository/index").json()
    assert [(one["name"], one["version"], one["state"]) for one in index] == [("model", "3", "READY")]


def test_the_server_ends_in_the_midst_of_it(server: Running, client: httpx.Client) -> None:
    """Of a version that loads, and of ranks that start again: none stays."""
    repository, before = server.context.repository, ranks_here()
    model = repository.models["model"]
    loading = threading.Thread(
        target=lambda: httpx.post(
            f"{server.url}/v2/repository/models/model/versions/2/load", headers=client.headers, timeout=60
        )
    )
    loading.start()
    until(lambda: repository._beside)
    answer = client.post("/v2/repository/models/model/unload")
    assert answer.status_code == 409 and "being loaded" in answer.text
    assert client.post("/v2/repository/models/model/versions/3/load").status_code == 409
    os.kill(model.groups[0].stats[0].pid, signal.SIGKILL)
    until(lambda: len(ranks_here() - before) > 0 or not repository._beside)
    server.stop()
    loading.join(60)
    assert not loading.is_alive()
    until(lambda: not ranks_here())


def test_unloading_in_the_midst_of_an_update(server: Running, client: httpx.Client) -> None:
    """Of ranks that stand still: the update ends with them."""
    (group,) = server.context.repository.models["model"].groups
    os.kill(group.stats[1].pid, signal.SIGSTOP)
    answers: list[int] = []
    update = threading.Thread(
        target=lambda: answers.append(client.post(WEIGHTS, content=npz(some(2))).status_code)
    )
    update.start()
    until(lambda: len(group._requests._flight) == 1)
    with httpx.Client(base_url=server.url, timeout=60, headers=client.headers) as other:
        assert other.post(WEIGHTS, content=npz(some(2))).status_code == 409
        assert other.post("/v2/repository/models/model/unload").status_code == 200
    update.join(60)
    assert answers == [503] and not ranks_here()
    assert client.post(WEIGHTS, content=npz(some(2))).status_code == 503
    assert client.post("/v2/repository/models/model/load").status_code == 200
    assert client.post(WEIGHTS, content=npz(some(2))).status_code == 200


def test_wrong_configuration(folder: Path, texts: Path) -> None:
    limits, metrics = ServeLimits(), Metrics()

    def serve(**options: Any) -> None:
        offered = offers({"model": folder / "1.onnx", "ranks": 1, **options}, None, None)
        weight_folders(offered)
        repository_of(offered, limits, metrics)

    for options, said in (
        ({"versions": Path("no-place.onnx")}, "expected a path with {} once"),
        ({"weights_from": folder / "nowhere"}, "expected a folder"),
        ({"variable_weights": ["x*"]}, "fits none of the 3 weights"),
        ({"model": texts, "variable_weights": ["a"]}, "is for models of tensors"),
    ):
        with pytest.raises(ConfigError, match=said):
            serve(**options)
    (offer,) = offers({"model": folder / "1.onnx", "ranks": 1}, None, None)
    assert variable_names(offer.job, ["*s*", "first"]) == ["first", "second", "bias"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_token_file_that_others_may_touch(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("first-token\n")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"others may read it \(mode {mode:o}\)"):
        read_tokens(path)


def test_roles_of_a_token_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"

    def read(text: str) -> Tokens:
        path.write_text(text)
        path.chmod(0o600)
        return read_tokens(path)

    found = read("# who may ask\nfirst-token\nsecond-token user\n\nthird-token  admin\n")
    assert found == Tokens((b"first-token", b"second-token", b"third-token"), (b"third-token",))
    for text in ("a-secret-token root\n", "a-secret-token admin user\n", "a-secret-token Admin\n"):
        with pytest.raises(ConfigError, match="expected TOKEN, TOKEN user or TOKEN admin") as caught:
            read(text)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="at least 8 characters, found a token of 5"):
        read("admin\n")


@pytest.mark.parametrize(
    ("tokens", "given", "refused"),
    [
        (Tokens(), None, {Role.CHANGES: 403}),
        (Tokens((USER,)), USER, {Role.CHANGES: 403}),
        (Tokens((USER,)), None, {Role.USER: 401, Role.LOADS: 401, Role.CHANGES: 401}),
        (TOKENS, USER, {Role.LOADS: 403, Role.CHANGES: 403}),
        (TOKENS, ADMIN, {}),
    ],
)
def test_what_a_token_may_do(tokens: Tokens, given: bytes | None, refused: dict[Role, int]) -> None:
    header = None if given is None else f"Bearer {given.decode()}"
    for role in Role:
        try:
            tokens.check(header, role)
            status = None
        except RefusalError as error:
            status = int(error.status)
        assert status == refused.get(role), role


@pytest.mark.parametrize("folder", ["plain", "c++ (x86) [new]", "a.b"])
def test_the_version_that_a_path_is(folder: str) -> None:
    """Whatever characters the other parts of the path have."""
    pattern = Path("/models", folder, "{}.onnx")
    for name, version in (("12.onnx", "12"), ("0.onnx", FIRST), ("12_onnx", FIRST), ("1.2.onnx", FIRST)):
        assert version_of(Path("/models", folder, name), pattern) == version
    assert version_of(Path("/models", folder.replace(".", "_"), "12.onnx"), pattern) == (
        FIRST if "." in folder else "12"
    )


def test_another_version_of_a_language_model(tmp_path: Path) -> None:
    """A text that grows is one of the version that began it, to its end; the next is one of the other."""
    plains = {}
    for version in ("1", "2"):
        tiny.save_folder(tmp_path / version, int(version))
        plains[version] = tiny.Plain(tmp_path / version / "model.onnx")
    limits, metrics = ServeLimits(), Metrics()
    offered = offers(
        {
            "model": tmp_path / "1", "ranks": 1, "launcher": "local", "threads": 1,
            "versions": tmp_path / "{}",
        },
        None, "llama",
    )  # fmt: skip
    repository = repository_of(offered, limits, metrics)
    headers = {"Authorization": f"Bearer {ADMIN.decode()}"}
    asked = {"model": "llama", "prompt": [5, 6, 7], "temperature": 0, "ignore_eos": True, "max_tokens": 80}
    with (
        running(limits=limits, metrics=metrics, tokens=TOKENS, repository=repository) as found,
        httpx.Client(base_url=found.url, timeout=60, headers=headers) as client,
    ):
        tokenizer = repository.models["llama"].ready.model.tokenizer  # type: ignore[attr-defined]

        def text(version: str) -> str:
            return str(tokenizer.text(plains[version].greedy(asked["prompt"], 80)))

        answer = client.post("/v2/repository/models/llama/weights", content=npz(some(1)))
        assert answer.status_code == 409 and "load another version" in answer.text
        (before,) = repository.models["llama"].groups
        with client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as stream:
            lines = stream.iter_lines()
            told = [next(lines)]
            answer = httpx.post(
                f"{found.url}/v2/repository/models/llama/versions/2/load", headers=headers, timeout=60
            )
            assert answer.status_code == 200, answer.text
            told += lines
        pieces = [json.loads(line[6:]) for line in told if line.startswith("data: {")]
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == text("1")
        assert client.post("/v1/completions", json=asked).json()["choices"][0]["text"] == text("2")
        until(lambda: before.state == "closed")


SHORTENED = """
import os, sys
from pathlib import Path
import numpy as np
from launcher.group.serving.renewal import checked
from launcher.serving.upkeep.weights import of_file
from ranks.common.tensors import TensorSpec
from sharding.importers.checkpoints import safetensors
folder = Path(sys.argv[1])
known = [TensorSpec("w", np.dtype(np.float32), (1 << 16,))]
parse = safetensors.parse

def shortened(data, path):
    found = parse(data, path)
    os.truncate(folder / "w.safetensors", 0)
    return found

safetensors.parse = shortened
found = of_file(folder, "w.safetensors", known)
print(float(checked(found, known)["w"].sum()))
"""


def test_a_file_that_is_shortened_while_it_is_read_does_not_kill_the_server(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(safetensors({"w": np.ones(1 << 16, np.float32)}))
    ended = subprocess.run(
        [sys.executable, "-c", SHORTENED, str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "65536.0\n"), ended.stderr


def test_files_of_more_than_all_weights_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "w.safetensors").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RefusalError, match="at most the 16777280 bytes"):
        of_file(tmp_path, "w.safetensors", [TensorSpec("w", np.dtype(np.float32), (16,))])
