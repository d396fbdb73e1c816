"""Several processes with one copy of a model's weights on one GPU, against ONNX Runtime on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ranks.devices.cuda_driver import CudaError, Driver
from ranks.errors import WeightsError
from ranks.sessions.session import SessionConfig
from ranks.weights.device import cuda_ipc
from ranks.weights.device.device_model import export_device_weights
from tests import models
from tests.gpu.near import assert_near
from tests.sharding import graphs

ROOT = Path(__file__).parents[2]
WIDTH, LAYERS = 2048, 16
WEIGHTS = LAYERS * WIDTH * WIDTH * 4  # 256 MiB
CONFIG = SessionConfig(threads=1, providers=("CUDAExecutionProvider", "CPUExecutionProvider"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A model whose weights no allocator's slack hides, a feed, and the right answer."""
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(1)
    shape = (WIDTH, WIDTH)
    weights = {f"w{n}": random.standard_normal(shape).astype(np.float32) / WIDTH**0.5 for n in range(LAYERS)}
    names = ["x", *(f"v{n + 1}" for n in range(LAYERS))]
    products = " ".join(f"{names[n + 1]} = MatMul({names[n]}, w{n})" for n in range(LAYERS))
    text = f"layers (float[n, {WIDTH}] x) => (float[n, {WIDTH}] {names[-1]}) {{ {products} }}"
    path = graphs.save(folder / "large.onnx", text, weights, opset=17)
    x = random.standard_normal((2, WIDTH)).astype(np.float32)
    np.save(folder / "x.npy", x)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return path, folder / "x.npy", session.run(None, {"x": x})[0]


class Worker:
    """A process of shared_program.py."""

    def __init__(self, mode: str, path: Path, feed: Path) -> None:
        self.handle = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.shared_program", mode, str(path), str(feed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if mode == "owner":
            self.send(str(os.getpid()))  # this test's other processes may attach

    def send(self, line: str = "") -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def told(self) -> Any:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def run(self) -> Any:
        self.send()
        return np.array(self.told(), np.float32)


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Worker]]:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.process.kill()
        worker.process.communicate(timeout=60)


def test_processes_have_one_copy_on_the_device(
    large: tuple[Path, Path, Any], workers: list[Worker], record_property: Any
) -> None:
    path, feed, right = large
    workers.append(Worker("alone", path, feed))
    alone = workers[0].told()
    workers[0].process.kill()
    workers[0].process.wait(60)
    workers.append(Worker("owner", path, feed))
    owner = workers[1].told()
    attached = []
    for _ in range(3):  # in turn: free memory is the whole device's
        workers.append(Worker(owner["handle"], path, feed))
        attached.append(workers[-1].told())
    taken = {"alone": alone["taken"], "owner": owner["taken"], "attached": [a["taken"] for a in attached]}
    record_property("bytes taken", json.dumps(taken))
    print(f"bytes on the device: {taken}; the weights are {WEIGHTS}")
    for told in (alone, owner, *attached):
        assert_near(np.array(told["result"], np.float32), right)
    assert alone["taken"] >= WEIGHTS
    assert WEIGHTS <= owner["taken"] < 1.5 * WEIGHTS
    assert max(told["taken"] for told in attached) < 0.25 * WEIGHTS
    workers[1].process.send_signal(signal.SIGKILL)
    workers[1].process.wait(60)
    driver = Driver()
    if not driver.exports_descriptors(0):
        pytest.skip(
            "this GPU shares no memory by descriptors: what becomes of it without its owner is undefined"
        )
    for worker in workers[2:]:
        assert_near(worker.run(), right)


def test_the_memory_is_free_once_all_are_gone(large: tuple[Path, Path, Any], workers: list[Worker]) -> None:
    path, feed, right = large
    driver = Driver()
    with driver.on(0):
        before = driver.free_bytes(0)
    workers.append(Worker("owner", path, feed))
    workers.append(Worker(workers[0].told()["handle"], path, feed))
    assert_near(np.array(workers[1].told()["result"], np.float32), right)
    for worker in workers:
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait(60)
    deadline = time.monotonic() + 30  # the driver cleans up behind a dead process
    while driver.free_bytes(0) < before - WEIGHTS // 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert driver.free_bytes(0) >= before - WEIGHTS // 4


def test_an_encoder_over_shared_memory(tmp_path: Path) -> None:
    """A whole transformer: its graph as ONNX Runtime optimised it for CUDA loads again, and answers right."""
    for needed in ("transformers", "onnxscript"):
        pytest.importorskip(needed, reason=f"{needed} is not installed, with which the encoder is exported")
    model = models.get("minilm")
    weights = export_device_weights(model.path, CONFIG, tmp_path / "device")
    assert weights.bytes > 0.8 * sum(file.stat().st_size for file in model.path.parent.iterdir())
    session = weights.session(CONFIG, "minilm")
    plain = ort.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    for feed in model.feeds:
        for ours, theirs in zip(session.run(None, feed), plain.run(None, feed), strict=True):
            assert_near(np.asarray(ours), np.asarray(theirs))
    del session
    weights.close()


def test_the_session_uses_the_block_in_place(large: tuple[Path, Path, Any], tmp_path: Path) -> None:
    path, feed, right = large
    driver = Driver()
    weights = export_device_weights(path, CONFIG, tmp_path / "device", driver)
    session = weights.session(CONFIG, "the model")
    x = {"x": np.load(feed)}
    assert_near(np.asarray(session.run(None, x)[0]), right)
    block = weights._block
    if block.kind == "descriptor":
        with driver.on(0):
            driver.access(0, block.address, block._mapped, 3)
    zeros = np.zeros(WIDTH * WIDTH, np.float32)
    block.write(weights.description["tensors"][-1]["offset"], zeros.ctypes.data, zeros.nbytes)
    assert not np.asarray(session.run(None, x)[0]).any()
    del session
    weights.close()


def test_a_block_takes_and_gives_back_memory() -> None:
    driver = Driver()
    with driver.on(0):
        pass
    before = driver.free_bytes(0)
    block = cuda_ipc.allocate(driver, 0, WEIGHTS)
    assert before - driver.free_bytes(0) >= WEIGHTS
    data = np.arange(1000, dtype=np.uint8)
    block.write(4096, data.ctypes.data, data.nbytes)
    block.seal()
    assert block.read(4096, 1000) == data.tobytes()
    print(f"kind {block.kind}, read-only {block.read_only}")
    with pytest.raises(WeightsError, match="owns that GPU memory itself"):
        cuda_ipc.attach(driver, *block.export())
    block.close()
    assert driver.free_bytes(0) >= before - (1 << 20)


def test_more_memory_than_the_device_has() -> None:
    with pytest.raises(CudaError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        cuda_ipc.allocate(Driver(), 0, 1 << 41)
