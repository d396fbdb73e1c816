"""What tests/ranks/sessions/test_counted_cuda.py runs in a process that sees the stand-in for CUDA and counts
calls of it: `SCENARIO FOLDER COUNTER`."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ranks.errors import ModelError
from ranks.run import executor
from ranks.run.placement import Placement
from ranks.sessions import arena
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.host_torch import STREAM
from tests.ranks.rank_models import model, node, save, value
from tests.ranks.stand_in_program import CUDA, RIGHT, W, X, near, rank_models, use_tensors

KINDS = [
    *("wait for stream", "wait for device", "allocate", "copy of 24"),
    *("make graph", "launch graph"),
]
counter = ctypes.CDLL(sys.argv[3])
counter.counted.restype = ctypes.c_long


def counts(call: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What ``call`` gives, and which calls it took, as far as they are counted."""
    before = [counter.counted(kind.encode()) for kind in KINDS]
    found = call()
    after = [counter.counted(kind.encode()) for kind in KINDS]
    rows = zip(KINDS, before, after, strict=True)
    return found, {kind: now - then for kind, then, now in rows if now > then}


def bound(folder: Path) -> Any:
    """Whether ONNX Runtime reads a value on the host when a session runs, or when it is bound."""
    path = folder / "plain.onnx"
    onnx.save(model([node("MatMul", ["x", "w"], ["y"])], [value("x", [3, 16])], ["y"], {"w": W[0]}), path)
    session = ort.InferenceSession(path, providers=[(CUDA[0], {"user_compute_stream": str(STREAM)}), CUDA[1]])
    binding, x, y = session.io_binding(), X.copy(), np.zeros((3, 16), np.float32)
    binding.bind_input("x", "cpu", 0, 1, [3, 16], x.ctypes.data)
    binding.bind_output("y", "cpu", 0, 1, [3, 16], y.ctypes.data)
    x *= 2
    session.run_with_iobinding(binding)
    stale = near(y, X @ W[0])
    binding.bind_input("x", "cpu", 0, 1, [3, 16], x.ctypes.data)
    session.run_with_iobinding(binding)
    return [stale, near(y, 2 * X @ W[0])]


def _shares(options: ort.SessionOptions) -> bool:
    """Whether a session takes what it computes in from the process's arena, and weights from elsewhere."""
    try:
        return all(options.get_session_config_entry(key) == "1" for key in arena.WORKSPACE_ONLY)
    except RuntimeError:  # it was not told of one of them
        return False


def cut(folder: Path) -> Any:
    """A model of two sessions with a collective between them, run four times."""
    use_tensors()
    whole, _ = rank_models(folder)

    def work(world: FakeCommunicator) -> Any:
        loaded = executor.load(whole, communicator=world, placement=Placement(CUDA))
        runs = []
        for _ in range(4):
            (y,), calls = counts(lambda: loaded.run({"x": X}))
            runs.append([near(y, X @ W[0] @ W[2]), calls])
        assert loaded._program is not None
        there = [one for one in loaded._program._sessions if one is not None]
        told = [one.get_provider_options()[CUDA[0]]["arena_extend_strategy"] for one in there]
        return runs, told, [_shares(one.get_session_options()) for one in there]

    return on_ranks(1, work)[0]


def cut_fails(folder: Path) -> Any:
    """What is said in the run that would be captured."""
    use_tensors()
    whole, _ = rank_models(folder)

    def work(world: FakeCommunicator) -> str:
        loaded = executor.load(whole, communicator=world, placement=Placement(CUDA))
        loaded.run({"x": X})
        try:
            loaded.run({"x": X})
        except ModelError as error:
            return str(error)
        return "it ran"

    return on_ranks(1, work)[0]


def shared(folder: Path) -> Any:
    """The most memory that each of two ranks on one device is told to take."""
    use_tensors()
    paths = rank_models(folder)

    def work(world: FakeCommunicator) -> Any:
        loaded = executor.load(paths[world.rank], communicator=world, placement=Placement(CUDA))
        assert loaded._program is not None and near(loaded.run({"x": X})[0], RIGHT)
        told = [one.get_provider_options()[CUDA[0]] for one in loaded._program._sessions if one is not None]
        return [one["gpu_mem_limit"] for one in told]

    return on_ranks(2, work)


def host(folder: Path) -> Any:
    """A model with three indices that stay on the host, run four times: copies of 24 bytes in each."""
    use_tensors()
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("Gather", ["b", "k"], ["y"], axis=0),
    ]
    (path,) = save([model(nodes, [value("x", [3, 16]), value("k", [3], 7)], ["y"], {"w": W[0]})], folder)

    def work(world: FakeCommunicator) -> Any:
        loaded = executor.load(path, communicator=world, placement=Placement(CUDA))
        feeds = {"x": X, "k": np.array([2, 0, 1])}
        return [counts(lambda: loaded.run(feeds))[1].get("copy of 24", 0) for _ in range(4)]

    return on_ranks(1, work)[0]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
