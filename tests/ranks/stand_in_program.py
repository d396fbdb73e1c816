"""What tests/ranks/sessions/test_stand_in.py runs in a process that sees the stand-in for CUDA: `SCENARIO
FOLDER ...`.

ONNX Runtime's CUDA provider is the real one. torch has no CUDA build here: values that cross a cut are its
tensors in host memory, where the stand-in's device memory is, too.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import ranks
from ranks.errors import ShardrunError
from ranks.identity.identity import identify
from ranks.lite.options.targets import place
from ranks.precision.request import Asked
from ranks.run import executor, group, target
from ranks.run.placement import Placement
from ranks.sessions.session import SessionConfig, create, reason
from ranks.weights.device import cuda_ipc
from sharding.importers import torch_import
from tests.gpu.assigned import RECORD, nodes_of
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.host_torch import Torch
from tests.ranks.rank_models import model, node, save, value

GENERATOR = np.random.default_rng(5)
X = GENERATOR.standard_normal((3, 16)).astype(np.float32)
W = [GENERATOR.standard_normal((16, 16)).astype(np.float32) for _ in range(4)]
CUDA = ("CUDAExecutionProvider", "CPUExecutionProvider")


def use_tensors() -> None:
    """From now on values that cross a cut are torch's tensors in host memory that count as CUDA's."""
    from ranks.sessions.cuda import CudaMemory

    load, fetch = torch_import.load, CudaMemory.fetch
    torch = Torch(load())  # takes a second, and most scenarios do without
    torch_import.load = lambda name="torch": torch if name == "torch" else load(name)
    CudaMemory.fetch = lambda self, buffer: fetch(self, buffer).copy()  # type: ignore[method-assign]


def rank_models(folder: Path) -> list[Path]:
    """A chain of two products with an AllReduce between them, cut in two."""
    nodes = [
        node("MatMul", ["x", "w1"], ["p"]),
        node("AllReduce", ["p"], ["s"]),
        node("MatMul", ["s", "w2"], ["y"]),
    ]
    return save(
        [
            model(nodes, [value("x", ["n", 16])], [value("y", ["n", 16])], {"w1": W[rank], "w2": W[2]})
            for rank in range(2)
        ],
        folder,
    )


RIGHT = (X @ W[0] + X @ W[1]) @ W[2]


def near(found: Any, right: Any) -> bool:
    """Whether an answer is right but for rounding."""
    return bool(np.abs(np.asarray(found) - right).max() <= 1e-4 * np.abs(right).max())


def plain(folder: Path) -> Any:
    """A model on device 1: what its session was told, who took its nodes, and whether its answer is right;
    and whether this process's processors are known to be at rest in it."""
    path = folder / "plain.onnx"
    onnx.save(model([node("MatMul", ["x", "w"], ["y"])], [value("x", [3, 16])], ["y"], {"w": W[0]}), path)
    loaded = executor.load(path, placement=Placement(CUDA, device_id=1), options=executor.LoadOptions(RECORD))
    assert loaded._session is not None
    return {
        "near": near(loaded.run({"x": X})[0], X @ W[0]),
        "on device": loaded.on_device,
        "device": loaded._session.get_provider_options()[CUDA[0]]["device_id"],
        "taken": [list(node[:2]) for node in nodes_of(loaded._session)],
    }


def parts(folder: Path, *, joins: bool = False) -> Any:
    """Two ranks in threads, each with a device as NCCL gives it; the second's variable weight is replaced.
    ``joins``: they join their group when the model turns out to need one."""
    use_tensors()
    paths, own = rank_models(folder), threading.local()
    if joins:
        group.join_for = lambda provider: own.world

    def work(communicator: FakeCommunicator) -> Any:
        communicator.device = types.SimpleNamespace(index=communicator.rank)  # type: ignore[attr-defined]
        own.world = communicator
        loaded = executor.load(
            paths[communicator.rank],
            communicator=None if joins else communicator,
            placement=Placement(CUDA),
            variable_weights=["w2"],
        )
        before = near(loaded.run({"x": X})[0], RIGHT)
        assert loaded.weights is not None and loaded._program is not None
        feeds = loaded.weights.snapshot().feeds.values()
        sessions = [one for one in loaded._program._sessions if one is not None]
        return {
            "near": before,
            "weights": [list(feed._get_c_value().__dlpack_device__()) for feed in feeds],
            "devices": [one.get_provider_options()[CUDA[0]]["device_id"] for one in sessions],
            "streams": [one.get_provider_options()[CUDA[0]]["user_compute_stream"] for one in sessions],
        }

    return on_ranks(2, work)


def parts_that_join(folder: Path) -> Any:
    """As `parts`, without a group beforehand."""
    return parts(folder, joins=True)


def tensorrt(folder: Path) -> Any:
    """What TensorRT and the CUDA provider behind it say that they were told; TensorRT takes no node."""
    use_tensors()
    paths = rank_models(folder)
    context = gpu("tensorrt")
    placed = place(context, Asked("preferred_fp16"), str(folder / "engines"))
    given = ({**placed.options[0], "trt_op_types_to_exclude": "MatMul"}, *placed.options[1:])

    def work(communicator: FakeCommunicator) -> Any:
        communicator.device = types.SimpleNamespace(index=communicator.rank)  # type: ignore[attr-defined]
        loaded = executor.load(
            paths[communicator.rank],
            communicator=communicator,
            placement=replace(placed, options=given),
        )
        assert loaded._program is not None
        told = [one.get_provider_options() for one in loaded._program._sessions if one is not None]
        return {"near": near(loaded.run({"x": X})[0], RIGHT), "told": told}

    return on_ranks(2, work)


def failing(folder: Path) -> Any:
    """What is said of a device that the provider refuses, and of a node for which cuDNN is missing."""
    path, words = folder / "conv.onnx", []
    conv = node("Conv", ["x", "w"], ["y"])
    kernel = {"w": np.ones((1, 1, 3, 3), np.float32)}
    onnx.save(model([conv], [value("x", [1, 1, 5, 5])], [value("y", [1, 1, 3, 3])], kernel), path)
    for device in (5, 0):
        words.append("")
        try:
            loaded = create(path, SessionConfig(providers=CUDA, device_id=device), str(path))
            loaded.run(None, {"x": np.ones((1, 1, 5, 5), np.float32)})
        except Exception as error:
            words[-1] = str(error) if isinstance(error, ShardrunError) else reason(error)
    return words


def short(folder: Path) -> Any:
    """What is said where the device has no room for a weight."""
    path = folder / "large.onnx"
    onnx.save(model([node("MatMul", ["x", "w"], ["y"])], [value("x", [3, 16])], ["y"], {"w": W[0]}), path)
    try:
        executor.load(path, placement=Placement(CUDA))
    except ShardrunError as error:
        return str(error)
    return "there was room"


def rank(folder: Path) -> Any:
    """One rank of a job for the target gpu: its device, its answer, and what was warned of or refused."""
    use_tensors()
    told: Any = {"warned": []}
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told["warned"].append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ranks").addHandler(handler)
    try:
        _, loaded = target.load(folder, identify(), "gpu")
        told["near"] = near(loaded.run({"x": X})[0], X @ W[0] @ W[1])
        sessions = [one for one in loaded._program._sessions if one is not None]
        told["devices"] = [one.get_provider_options()[CUDA[0]]["device_id"] for one in sessions]
    except ShardrunError as error:
        told["error"] = str(error)
    group.leave()
    return told


def script(folder: Path) -> Any:
    """A script that gives each rank the GPU with its rank's number."""
    use_tensors()
    context = gpu()
    context.gpu.device_id = context.gpu.rank_id
    loaded = ranks.Model()
    try:
        loaded.build_from_file(str(folder), ranks.ModelType.MINDIR, context)
    except RuntimeError as error:
        return {"error": str(error)}
    found = near(loaded.predict([X])[0].get_data_to_numpy(), X @ W[0] @ W[1])
    group.leave()
    return {"near": found, "number": context.gpu.device_id}


def hosts(folder: Path) -> Any:
    """A rank of several hosts that joins the group of its GPU, as a script does, and no other; how far it
    comes with a torch that has NCCL by its own account only."""
    use_tensors()
    torch_import.load("torch.distributed").is_nccl_available = lambda: True
    try:
        group.join(device="cuda")
    except ShardrunError as error:
        return [type(error).__name__, str(error)]
    return ["joined", ""]


def _answer(found: Callable[[], Any]) -> Any:
    """A model over weights on the GPU, its answer and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = found()
        feeds = [X, np.ones((3, 16), np.int8), np.array(True)]
        answer = made.predict(feeds[: len(made.get_inputs())])[0].get_data_to_numpy()
    return made, answer.tolist(), [str(one.message) for one in caught]


def shared(folder: Path, *, bodies: bool = False) -> Any:
    """The owner of weights on the GPU, one of which is read by a node that CUDA's provider leaves to the CPU,
    and a process that attaches; ``bodies``: that node lies in both branches of an If,
    with one that reads the other weight, which is shared all the same."""
    path = folder / "shared.onnx"
    half, zero = {"one": np.array(0.5, np.float32)}, {"zero": np.array(0, np.int8)}
    w8 = GENERATOR.integers(-100, 100, (16, 1024)).astype(np.int8)
    w = GENERATOR.standard_normal((16, 128)).astype(np.float32)
    on_cpu = node("QLinearMatMul", ["q", "one", "zero", "w8", "one", "zero", "one", "zero"], ["z"])
    inputs = [value("x", [3, 16]), value("q", [3, 16], onnx.TensorProto.INT8)]
    if bodies:
        far = node("CDist", ["p", "w"], ["d"], metric="euclidean")
        far.domain, on_cpu.name = "com.microsoft", "same"  # a name in both branches, as exporters give
        results = [value("z", [3, 1024], onnx.TensorProto.INT8), value("d", [3, 16])]
        branch = onnx.helper.make_graph([on_cpu, far], "branch", [], results)
        on_cpu = node("If", ["c"], ["u", "v"], then_branch=branch, else_branch=branch)
        inputs.append(value("c", [], onnx.TensorProto.BOOL))
    nodes = [node("MatMul", ["x", "w"], ["p"]), on_cpu]
    onnx.save(model(nodes, inputs, ["p", *on_cpu.output], {"w": w, "w8": w8, **half, **zero}), path)
    blocks, allocate = [], cuda_ipc.allocate

    def noted(*given: Any) -> Any:
        blocks.append(allocate(*given))
        return blocks[-1]

    cuda_ipc.allocate = noted
    owner, answer, warned = _answer(lambda: ranks.share_weights(str(path), gpu()))
    command = [sys.executable, "-m", "tests.ranks.stand_in_program", "attached", str(path), str(owner.handle)]
    other = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert other.returncode == 0, other.stderr
    told = json.loads(other.stdout.splitlines()[-1])
    return {
        "near": [near(found, X @ w) for found in (answer, told[0])],
        "warned": [warned, told[1]],
        "blocks": [block.size for block in blocks if block.name in cuda_ipc.OWN.names],
    }


def shared_in_bodies(folder: Path) -> Any:
    """As `shared`, with the node that is left to the CPU in the bodies of another."""
    return shared(folder, bodies=True)


def numbered(folder: Path) -> Any:
    """What processes are told that attach to weights on GPU 0, but count it as 1, for each GPU that they are
    to run on; and whether the owner goes on."""
    path = folder / "numbered.onnx"
    w = GENERATOR.standard_normal((16, 128)).astype(np.float32)
    onnx.save(model([node("MatMul", ["x", "w"], ["y"])], [value("x", [3, 16])], ["y"], {"w": w}), path)
    owner = ranks.share_weights(str(path), gpu())
    told = []
    for number in ("0", "1"):
        command = [sys.executable, "-m", "tests.ranks.stand_in_program", "attached", str(path)]
        other = subprocess.run(
            [*command, str(owner.handle), number],
            env={**os.environ, "FAKE_CUDA_FIRST": "-1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert other.returncode == 0, other.stderr
        answer = json.loads(other.stdout.splitlines()[-1])
        told.append(answer if isinstance(answer, str) else near(answer[0], X @ w))
    return [*told, near(owner.predict([X])[0].get_data_to_numpy(), X @ w)]


def attached(path: Path) -> Any:
    """A process that attaches to the owner's weights on the GPU, with the number of the GPU that it is to run
    on where that is given: its answer and what was warned of, or why it may not."""
    context = gpu()
    context.gpu.device_id = int(sys.argv[4]) if sys.argv[4:] else 0
    try:
        return _answer(lambda: ranks.attach(sys.argv[3], str(path), context))[1:]
    except ShardrunError as error:
        return str(error)


def gpu(provider: str = "") -> ranks.Context:
    """A context with the target gpu."""
    context = ranks.Context()
    context.target = ["gpu"]
    context.gpu.provider = provider
    return context


def main() -> None:
    """Runs the scenario and prints its result as JSON, the last line."""
    name, folder = sys.argv[1:3]
    print(json.dumps(globals()[name](Path(folder))))


if __name__ == "__main__":
    main()
