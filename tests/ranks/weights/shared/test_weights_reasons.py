"""Why weights cannot be shared, or a model not be loaded: the reason is named."""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from ranks.common import waiting
from ranks.errors import ModelError, WeightsError
from ranks.models import model_file
from ranks.run import executor
from ranks.sessions.session import SessionConfig, create
from ranks.weights.prepared import store as stores
from ranks.weights.prepared.store import Store, default_store
from ranks.weights.shared import client, handle
from tests.ranks.weights.test_store import X, made, mlp, plain, same, save
from tests.ranks.weights_worker import INPUT, oracle
from tests.sharding import graphs
from tests.sharding.graphs import vast

pytestmark = pytest.mark.usefixtures("single")


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        ranks.share_weights(str(path))
    return str(caught.value)


def test_a_limit_that_is_too_small(cache: Path, shared_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", "100B")
    found = refusal(shared_model)
    assert f"cannot be kept in {cache}/weights (" in found
    assert re.search(r"\(they have \d+ bytes, and the cache may take 100 \(SHARDRUN_CACHE_LIMIT\)\)", found)


def test_what_was_kept_under_a_larger_limit_is_used(
    shared_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ranks.share_weights(str(shared_model)) as shared:
        first = shared.handle
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", "100B")
    with ranks.share_weights(str(shared_model)) as shared:
        assert shared.handle and shared.handle != first


def test_what_another_model_has_kept_opens_no_door(
    shared_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To hash a model takes long: only one that may be there is looked for."""
    with ranks.share_weights(str(shared_model)):
        pass
    other = tmp_path / f"other {shared_model.name}"
    other.write_bytes(shared_model.read_bytes())
    for path in shared_model.parent.glob("*.data"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", "100B")
    monkeypatch.setattr(stores, "key_of", failing(AssertionError("it was hashed")))
    assert "the cache may take 100 (SHARDRUN_CACHE_LIMIT)" in refusal(other)


def test_an_entry_that_is_far_smaller_than_its_model_is_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime leaves out what nothing uses."""
    text = "g (float[2, 3] x) => (float[2, 3] y) { z = MatMul(x, unused) y = Relu(x) }"
    weights = {"unused": np.ones((3, 9999), np.float32)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    for limit in ("1GB", "100B"):
        monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", limit)
        with ranks.share_weights(str(path)) as shared:
            assert shared.handle


def test_a_model_that_protobuf_does_not_read_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to be truncated."""
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", "100B")
    path = vast(tmp_path / "model.onnx", 1 << 15, 1 << 14)
    for build in (executor.load, model_file.read):
        with pytest.raises(ModelError, match=r"has 2\.15 GB, and protobuf reads no file of 2 GiB or more"):
            build(path)  # type: ignore[operator]


def test_a_damaged_lock(cache: Path, shared_model: Path) -> None:
    store = default_store()
    assert store is not None
    for number in range(256):
        (cache / "weights" / "locks" / f"{number:02x}").mkdir()
    with ranks.share_weights(str(shared_model)) as shared:  # they are moved aside
        assert shared.handle


def test_a_full_disk(cache: Path, tmp_path: Path) -> None:
    """As far as a process can make one: files of more than 300 KB cannot be written."""
    path = save(mlp(), tmp_path / "m.onnx")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        found = refusal(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the disk may be full" not in found and f"{cache}/weights (" in found
    assert "(File too large" in found or "(only part of the " in found or "(ONNX Runtime" in found, found


@pytest.mark.parametrize("error", [WeightsError("the graph is odd."), OSError(28, "No space left on device")])
def test_what_preparing_says(
    cache: Path, shared_model: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "prepare", failing(error))
    words = "the graph is odd" if isinstance(error, WeightsError) else "No space left on device"
    for _ in range(2):  # the second time it is remembered, or tried again
        assert f"({words}): correct that, or set SHARDRUN_CACHE to another folder." in refusal(shared_model)


# Paths that are not UTF-8.


def test_a_cache_folder_of_another_encoding(
    tmp_path: Path, shared_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    monkeypatch.setenv("SHARDRUN_CACHE", str(folder))
    monkeypatch.setenv("SHARDRUN_WEIGHTS", "on")
    assert default_store() is None
    model = executor.load(shared_model)
    np.testing.assert_allclose(model.run({"x": INPUT})[0], oracle(shared_model), rtol=1e-4)
    direct = Store(folder / "weights")
    same(direct, save(mlp(), tmp_path / "m.onnx"), X)
    assert direct.opened == ()
    found = refusal(shared_model)
    assert "ONNX Runtime takes only paths in UTF-8" in found and r"\xff/weights'" in found
    assert not (folder / "weights" / "work").exists()


def test_a_model_of_another_encoding(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    (tmp_path / "made").mkdir()
    save(mlp(), tmp_path / "made" / "m.onnx", external=True)
    (tmp_path / "made").rename(folder)  # onnx cannot write there
    path = folder / "m.onnx"
    store = default_store()
    assert store is not None
    for kept in (None, store):
        with pytest.raises(
            ModelError, match=r"takes only paths in UTF-8, but it lies at b'.*\\xff/m.onnx': "
        ):
            create(path, SessionConfig(threads=1, store=kept), "it")
        with pytest.raises(ModelError, match=r"takes only paths in UTF-8, but it lies at b'.*\\xff': "):
            create(path.read_bytes(), SessionConfig(threads=1, store=kept, folder=folder), "it")
    with pytest.raises(RuntimeError) as caught:
        ranks.Model().build_from_file(str(path), ranks.ModelType.ONNX)
    assert "ONNX Runtime takes only paths in UTF-8" in str(caught.value)
    assert str(caught.value).isascii() and "InferenceSession" not in str(caught.value)
    link = tmp_path / "link"
    link.symlink_to(folder)  # nothing was remembered against the model
    session = create(link / "m.onnx", SessionConfig(threads=1, store=store), "it")
    assert len(made(store)) == len(store.opened) == 1
    assert np.allclose(session.run(None, X)[0], plain(link / "m.onnx", X)[0], atol=1e-4)


def test_a_long_wait_for_an_owner_is_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "NOTICE_SECONDS", 0.05)
    address = handle.address(f"late {os.getpid()}")
    with pytest.raises(WeightsError, match=r"nobody shared weights under .* within 0\.3 s"):
        client.connect(address, 0.3)
    assert [text.partition(" under")[0] for text in caplog.messages] == ["waiting for who shares weights"]
    caplog.clear()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as owner:
        owner.bind(address.socket_name)
        owner.listen()
        with pytest.raises(WeightsError, match=r"did not answer within 0\.3 s: it may still be building"):
            client.connect(address, 0.3)
    (text,) = caplog.messages
    assert text.startswith(f"waiting for process {os.getpid()} (")
    assert text.endswith(", at most 0.3 s: it shares the weights and does not answer yet")
