"""What gRPC's clients are told by codes, what is known of a call; and weights that are sent to a model."""

from __future__ import annotations

import io
import zipfile
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("grpc", reason="gRPC's package is not installed")

from launcher.errors import ConfigError, ShardrunError
from launcher.serving.grpc.calls import Conversation, _request_of, code_of
from launcher.serving.refusals import RefusalError
from launcher.serving.upkeep.versions import check_pattern
from launcher.serving.upkeep.weights import holds_weights, of_bytes, of_file
from ranks.common.tensors import TensorSpec


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND"),
        (408, "DEADLINE_EXCEEDED"), (409, "ABORTED"), (413, "RESOURCE_EXHAUSTED"),
        (415, "INVALID_ARGUMENT"), (422, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"), (501, "INTERNAL"), (503, "UNAVAILABLE"), (504, "DEADLINE_EXCEEDED"),
    ],
)  # fmt: skip
def test_codes_of_refusals(status: int, code: str) -> None:
    assert code_of(RefusalError(HTTPStatus(status), "x")).name == code


@pytest.mark.parametrize(
    ("peer", "host", "port"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1", 5000),
        ("ipv6:%5B::1%5D:5000", "::1", 5000),
        ("unix:/a/b", "", 0),
        ("unix:", "", 0),
    ],
)
def test_who_calls(peer: str, host: str, port: int) -> None:
    metadata = [("authorization", "Bearer x"), ("name", "ä€"), ("raw-bin", b"\xff")]
    rpc: Any = SimpleNamespace(peer=lambda: peer, invocation_metadata=lambda: metadata)
    request = _request_of("/s/M", rpc)
    assert request.client is not None and (request.client.host, request.client.port) == (host, port)
    assert request.headers["authorization"] == "Bearer x" and request.headers["name"] == "ä?"
    assert (request.method, request.scope["path"]) == ("POST", "/s/M")
    rpc.invocation_metadata = lambda: None
    assert not _request_of("/s/M", rpc).headers


@pytest.mark.parametrize(("remaining", "left"), [(None, None), (2.5, 2.5), (0.0, 1e-3), (-1.0, 1e-3)])
def test_how_long_a_caller_waits(remaining: float | None, left: float | None) -> None:
    rpc: Any = SimpleNamespace(time_remaining=lambda: remaining)
    unused: Any = None
    assert Conversation(unused, rpc, 1.0).left == left


KNOWN = [
    TensorSpec("w", np.dtype(np.float32), (2, 3)),
    TensorSpec("b", np.dtype(ml_dtypes.bfloat16), (2,)),
    TensorSpec("n", np.dtype(np.int64), ()),
]


def archive(**weights: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **weights)
    return file.getvalue()


def test_weights_of_an_archive() -> None:
    given = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([1, 2]), "n": np.int64(7)}
    data = archive(**given)
    found = of_bytes(data, KNOWN)
    assert holds_weights(data) and {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in given.items()
    }
    assert not holds_weights(b'{"file": "x.npz"}') and not holds_weights(b"")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"w": np.zeros((3, 2), np.float32)}, "the weight 'w': expected"),
        ({"w": np.zeros((2, 3), np.float64)}, "the weight 'w': expected"),
        ({"w": np.zeros((2, 3), np.float16)}, "the weight 'w': expected"),
        ({"n": np.float32(1)}, "the weight 'n': expected"),  # float32 stands for what numpy lacks alone
        ({"b": np.zeros(2, np.float64)}, "the weight 'b': expected"),
        ({"b": np.zeros((2, 1), np.float32)}, "the weight 'b': expected"),
        ({"other": np.zeros(1)}, "the weight 'other' cannot be replaced"),
    ],
)
def test_weights_that_do_not_fit(weights: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusalError, match=message):
        of_bytes(archive(**weights), KNOWN)


def test_archives_that_are_damaged_or_say_a_name_twice() -> None:
    data = archive(n=np.int64(7))
    with pytest.raises(RefusalError, match="the archive cannot be read"):
        of_bytes(data[:-30], KNOWN)
    file, member = io.BytesIO(), io.BytesIO()
    np.save(member, np.int64(7))
    with zipfile.ZipFile(file, "w") as twice:
        for name in ("n.npy", "n"):
            twice.writestr(name, member.getvalue())
    with pytest.raises((RefusalError, ShardrunError), match="'n' stands there twice"):
        of_bytes(file.getvalue(), KNOWN)


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("", 400, "expected the name of a file"),
        ("../w.npz", 400, "expected the name of a file"),
        ("/w.npz", 400, "expected the name of a file"),
        ("w.txt", 400, "expected the name of a file"),
        ("a\nb.npz", 400, "expected the name of a file"),
        (f"{'w' * 252}.npz", 400, "expected the name of a file"),
        (f"{'w' * 251}.npz", 404, "there is no"),
        ("absent.npz", 404, "there is no 'absent.npz' in the folder"),
        ("folder.npz", 404, "there is no"),
        ("out.npz", 404, "there is no"),  # a link that leads out of the folder
    ],
)
def test_files_that_are_no_weights_of_the_folder(
    tmp_path: Path, name: str, status: int, message: str
) -> None:
    folder = tmp_path / "weights"
    (folder / "folder.npz").mkdir(parents=True)
    (tmp_path / "secret.npz").write_bytes(archive(n=np.int64(7)))
    (folder / "out.npz").symlink_to(tmp_path / "secret.npz")
    with pytest.raises(RefusalError, match=message) as caught:
        of_file(folder, name, KNOWN)
    assert caught.value.status == status and str(tmp_path) not in str(caught.value)


def test_a_file_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "w.npz").write_bytes(archive(n=np.int64(7)))
    (tmp_path / "link.npz").symlink_to("w.npz")
    for name in ("w.npz", "link.npz"):
        assert of_file(tmp_path, name, KNOWN)["n"] == 7
    with pytest.raises(RefusalError, match="this server was told no folder"):
        of_file(None, "w.npz", KNOWN)


def test_the_place_of_a_number_in_a_path() -> None:
    check_pattern(Path("a/{}.onnx"))
    for wrong in ("a/b.onnx", "{}/{}.onnx"):
        with pytest.raises(ConfigError, match=r"expected a path with \{\} once"):
            check_pattern(Path(wrong))
