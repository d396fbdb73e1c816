"""Models whose weights are read in bodies and outside, by nodes that CUDA's provider takes and by some that
it leaves to the CPU; and what tests/ranks/weights/test_weights_bodies.py runs over the stand-in for CUDA:
`owner|attached FOLDER [HANDLES]`."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import ranks
from ranks.sessions import session
from ranks.weights.device import cuda_ipc
from tests.ranks.rank_models import model, node, value
from tests.ranks.stand_in_program import gpu

GENERATOR = np.random.default_rng(5)
X = GENERATOR.standard_normal((3, 128)).astype(np.float32)
W = GENERATOR.standard_normal((16, 128)).astype(np.float32)
BYTES = W.nbytes


def near(out: str, weight: str = "w") -> onnx.NodeProto:
    """A node that CUDA's provider takes."""
    return node("Gemm", ["x", weight], [out], transB=1)


def far(out: str, weight: str = "w") -> onnx.NodeProto:
    """One that it leaves to the CPU."""
    made = node("CDist", ["x", weight], [out], metric="euclidean")
    made.domain = "com.microsoft"
    return made


def body(nodes: list[onnx.NodeProto], *outs: str, **own: np.ndarray[Any, Any]) -> onnx.GraphProto:
    """A branch with weights of its own."""
    held = [onnx.numpy_helper.from_array(array, name) for name, array in own.items()]
    return onnx.helper.make_graph(nodes, "body", [], [value(out, [3, 16]) for out in outs], held)


def either(then: onnx.GraphProto, other: onnx.GraphProto, *outs: str) -> onnx.NodeProto:
    return node("If", ["c"], outs, then_branch=then, else_branch=other)


def loop(inner: onnx.NodeProto) -> onnx.NodeProto:
    """A Loop of one turn, with a node that gives "v" in its body."""
    turn, go = value("i", [], 7), value("go", [], onnx.TensorProto.BOOL)
    on = value("on", [], onnx.TensorProto.BOOL)
    made = onnx.helper.make_graph(
        [node("Identity", ["go"], ["on"]), inner], "body", [turn, go, value("b", [3, 16])],
        [on, value("v", [3, 16])],
    )  # fmt: skip
    return node("Loop", ["one", "", "start"], ["y"], body=made)


def scan() -> onnx.NodeProto:
    made = onnx.helper.make_graph([near("v")], "body", [value("a", [1])], [value("v", [3, 16])])
    return node("Scan", ["several"], ["y"], body=made, num_scan_inputs=1)


def models() -> dict[str, tuple[onnx.ModelProto, int]]:
    """By name, and how many weights (of `BYTES`) lie on the GPU for all."""
    inputs = [value("x", [3, 128]), value("c", [], onnx.TensorProto.BOOL)]
    held = {"w": W, "one": np.array(1), "start": np.zeros((3, 16), np.float32)}
    held["several"] = np.zeros((2, 1), np.float32)
    nested = either(body([near("d")], "d"), body([far("e")], "e"), "v")
    found = {
        "then": ([either(body([near("d")], "d"), body([far("e")], "e"), "y")], 1),
        "else": ([either(body([far("d")], "d"), body([near("e")], "e"), "y")], 1),
        "inside": ([far("z"), either(body([near("d")], "d"), body([near("e")], "e"), "y")], 1),
        "outside": ([near("z"), either(body([far("d")], "d"), body([far("e")], "e"), "y")], 1),
        # Of one body ONNX Runtime itself makes copies for the device, which each process would hold.
        "same": ([either(body([near("d"), far("f")], "d", "f"), body([far("e"), near("g")], "e", "g"),
                         "y", "z")], 2),
        "own": ([either(body([near("d")], "d", w=W * 2), body([far("e")], "e", w=W * 3), "y"), near("z")], 2),
        "loop": ([loop(near("v")), far("z")], 1),
        "nested": ([loop(nested)], 1),
        "scan": ([scan(), far("z")], 1),
    }  # fmt: skip
    made = {}
    for name, (nodes, count) in found.items():
        outs = ["y", "z"] if any("z" in one.output for one in nodes) else ["y"]
        read = {name for one in nodes for name in one.input}
        weights = {key: array for key, array in held.items() if key == "w" or key in read}
        made[name] = model(nodes, inputs, outs, weights), count
    return made


def right(path: Path) -> list[Any]:
    """ONNX Runtime's answers on the CPU, for both conditions."""
    plain = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [plain.run(None, {"x": X, "c": np.array(c)}) for c in (True, False)]


def told(made: Any, path: Path) -> bool:
    """Whether a model answers so."""
    found = [made.predict([X, np.array(c)]) for c in (True, False)]
    wanted = [array for one in right(path) for array in one]
    pairs = zip(wanted, [tensor.get_data_to_numpy() for one in found for tensor in one], strict=True)
    return all(np.abs(a - b).max() <= 1e-4 * np.abs(a).max() for a, b in pairs)


def owner(folder: Path) -> Any:
    """What each model's owner shares and says, and what a process that attaches to all of them finds."""
    found, handles, kept, blocks, allocate = {}, {}, [], [], cuda_ipc.allocate

    def noted(*given: Any) -> Any:
        blocks.append(allocate(*given))
        return blocks[-1]

    cuda_ipc.allocate = noted
    for name, (made, _) in models().items():
        path = folder / f"{name}.onnx"
        onnx.save(made, path)
        before = set(cuda_ipc.OWN.names)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kept.append(ranks.share_weights(str(path), gpu()))
        sizes = [block.size for block in blocks if block.name in cuda_ipc.OWN.names - before]
        said = [str(one.message) for one in caught]
        found[name] = {"right": told(kept[-1], path), "bytes": sum(sizes), "said": said}
        handles[name] = str(kept[-1].handle)
    command = [sys.executable, "-m", "tests.ranks.body_models", "attached", str(folder), json.dumps(handles)]
    other = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert other.returncode == 0, other.stderr
    # What ONNX Runtime itself says of weights that it was given and wants elsewhere.
    refused = [line for line in other.stderr.splitlines() if "Cannot use user supplied init" in line]
    return found, json.loads(other.stdout.splitlines()[-1]), refused


def attached(folder: Path) -> Any:
    """Whether each model is right over the owner's weights."""
    options_for = session.options_for

    def loud(config: Any) -> Any:
        options = options_for(config)
        options.log_severity_level = 2
        return options

    session.options_for = loud
    return {
        name: told(ranks.attach(handle, str(folder / f"{name}.onnx"), gpu()), folder / f"{name}.onnx")
        for name, handle in json.loads(sys.argv[3]).items()
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
