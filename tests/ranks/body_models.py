"""Models whose weights CUDA's provider reads on the device and in host memory, in bodies and outside; and
what tests/ranks/weights/test_weights_bodies.py runs over the stand-in for CUDA: `owner|attached FOLDER
[HANDLES]`."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

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
LENGTHS = np.array([3, 128, *[1] * 126])
"""Of so many axes that they are a weight to share. CUDA's Reshape reads them in host memory."""


VOCABULARY, PROMPT = 64, 128


class Case(NamedTuple):
    """A model, the bytes of its weights that lie on the GPU for all, and what is said of the others: how many
    of how many weights, how many bytes, and who reads them; ``both``: how many of them are there, too."""

    model: onnx.ModelProto
    there: int
    apart: int
    weights: int
    copied: int
    readers: str
    both: int


def near(out: str, weight: str = "w") -> onnx.NodeProto:
    """A node that CUDA's provider takes."""
    return node("Gemm", ["x", weight], [out], transB=1)


def far(out: str, weight: str = "w") -> onnx.NodeProto:
    """One that it leaves to the CPU."""
    made = node("CDist", ["x", weight], [out], metric="euclidean")
    made.domain = "com.microsoft"
    return made


def reshaped(data: str, lengths: str, out: str) -> onnx.NodeProto:
    return node("Reshape", [data, lengths], [out])


def shaped(out: str) -> list[onnx.NodeProto]:
    """Nodes that CUDA's provider takes, of which one reads a weight in host memory."""
    return [reshaped("x", "lengths", f"{out}_long"), reshaped(f"{out}_long", "short", out)]


def body(nodes: list[onnx.NodeProto], *outs: str, **own: np.ndarray[Any, Any]) -> onnx.GraphProto:
    """A branch with weights of its own."""
    held = [onnx.numpy_helper.from_array(array, name) for name, array in own.items()]
    return onnx.helper.make_graph(nodes, "body", [], [value(out, None) for out in outs], held)


def numbers(out: str) -> onnx.GraphProto:
    """A branch that gives the lengths as numbers."""
    return onnx.helper.make_graph([reshaped("lengths", "flat", out)], "body", [], [value(out, None, 7)])


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


def decoder() -> onnx.GraphProto:
    """The body of a BeamSearch: a decoder whose state is what it has read."""
    make = onnx.helper.make_tensor_value_info
    ids = [make(name, 6, ["b", "s"]) for name in ("input_ids", "position_ids")]
    inputs = [*ids, make("attention_mask", 6, ["b", "t"]), make("past_0", 1, [2, "b", 1, "p", 4])]
    outputs = [make("logits", 1, ["b", "s", VOCABULARY]), make("present_0", 1, [2, "b", 1, "t", 4])]
    nodes = [
        node("Gather", ["table", "input_ids"], ["logits"]),
        node("Gather", ["keys", "input_ids"], ["k"]),
        node("Unsqueeze", ["k", "axes"], ["one"]),
        node("Concat", ["one", "one"], ["both"], axis=0),
        node("Concat", ["past_0", "both"], ["present_0"], axis=3),
    ]
    held = {"table": GENERATOR.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32)}
    held |= {"keys": np.ones((VOCABULARY, 4), np.float32), "axes": np.array([0, 2])}
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in held.items()]
    return onnx.helper.make_graph(nodes, "decoder", inputs, outputs, weights)


def beam() -> tuple[onnx.ModelProto, int, int]:
    """A BeamSearch whose mask is a weight; the bytes of what it reads on a GPU, and of the mask, which CUDA's
    kernel reads in host memory."""
    numbers = {"most": PROMPT + 5, "least": 1, "beams": 2, "texts": 1}
    held: dict[str, Any] = {name: np.array([each], np.int32) for name, each in numbers.items()}
    held |= {"penalty": np.ones(1, np.float32), "mask": np.ones((2, PROMPT), np.int32)}
    held["mask"][1, :9] = 0  # the second text is shorter
    names = ["ids", "most", "least", "beams", "texts", "penalty", "penalty", "", "", "mask"]
    search = node("BeamSearch", names, ["y"], decoder=decoder(), eos_token_id=1, pad_token_id=0)
    search.domain = "com.microsoft"
    made = model([search], [value("ids", [2, PROMPT], 6)], [value("y", ["b", "n", "t"], 6)], held)
    return made, 4 * VOCABULARY * (VOCABULARY + 4), held["mask"].nbytes


def models() -> dict[str, Case]:
    """By name."""
    inputs = [value("x", [3, 128]), value("c", [], onnx.TensorProto.BOOL), value("short", [2], 7)]
    held = {"w": W, "one": np.array(1), "start": np.zeros((3, 16), np.float32), "lengths": LENGTHS}
    held["several"] = np.zeros((2, 1), np.float32)
    nested = either(body([near("d")], "d"), body([far("e")], "e"), "v")
    flat = reshaped("lengths", "flat", "z")
    long, all_ = LENGTHS.nbytes, BYTES + LENGTHS.nbytes
    one = (BYTES, 1, 1, BYTES, "CDist", 1)
    found: dict[str, tuple[Any, ...]] = {
        "then": ([either(body([near("d")], "d"), body([far("e")], "e"), "y")], *one),
        "else": ([either(body([far("d")], "d"), body([near("e")], "e"), "y")], *one),
        "inside": ([far("z"), either(body([near("d")], "d"), body([near("e")], "e"), "y")], *one),
        "outside": ([near("z"), either(body([far("d")], "d"), body([far("e")], "e"), "y")], *one),
        "beside": ([near("y"), far("z")], *one),
        # Of one body ONNX Runtime itself makes copies for the device, which each process would hold.
        "same": ([either(body([near("d"), far("f")], "d", "f"), body([far("e"), near("g")], "e", "g"),
                         "y", "z")], *one),
        "own": ([either(body([near("d")], "d", w=W * 2), body([far("e")], "e", w=W * 3), "y"), near("z")],
                2 * BYTES, 1, 3, BYTES, "CDist", 0),
        "loop": ([loop(near("v")), far("z")], *one),
        "nested": ([loop(nested)], *one),
        "scan": ([scan(), far("z")], *one),
        "lengths": ([near("y"), *shaped("z")], BYTES, 1, 2, long, "Reshape", 0),
        "lengths and data": ([*shaped("y"), flat], long, 1, 1, long, "Reshape", 1),
        "lengths in a body": ([either(body(shaped("d"), "d"), body([reshaped("x", "short", "e")], "e"), "y"),
                               flat], long, 1, 1, long, "Reshape", 1),
        "data in a body": ([*shaped("y"), either(numbers("d"), numbers("e"), "z")],
                           long, 1, 1, long, "Reshape", 1),
        "both kinds": ([far("y"), *shaped("z")], 0, 2, 2, all_, "CDist, Reshape", 0),
    }  # fmt: skip
    made = {}
    if ort.__version__.startswith("1.23."):
        del found["lengths and data"]  # it refuses weights of a graph itself that two devices read
    for name, (nodes, *told) in found.items():
        outs = ["y", "z"] if any("z" in one.output for one in nodes) else ["y"]
        text = str(nodes)
        weights = {key: array for key, array in held.items() if f'"{key}"' in text}
        given = [each for each in (*inputs, value("flat", [1], 7)) if f'"{each.name}"' in text]
        made[name] = Case(model(nodes, given, outs, weights), *told)
    search, there, mask = beam()
    made["search"] = Case(search, there, 1, 3, mask, "BeamSearch", 0)
    return made


def feeds(path: Path) -> list[list[np.ndarray[Any, Any]]]:
    """What a model is asked, with both conditions."""
    names = [one.name for one in onnx.load(path, load_external_data=False).graph.input]
    given = {"x": X, "short": np.array([3, 128]), "flat": np.array([128])}
    return [[{**given, "c": np.array(c)}[name] for name in names] for c in (True, False)]


def right(path: Path) -> list[Any]:
    """ONNX Runtime's answers on the CPU."""
    plain = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in plain.get_inputs()]
    return [plain.run(None, dict(zip(names, feed, strict=True))) for feed in feeds(path)]


def told(made: Any, path: Path) -> bool:
    """Whether a model answers so; the stand-in for CUDA cannot search."""
    if path.stem == "search":
        return True
    found = [made.predict(feed) for feed in feeds(path)]
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
    for name, case in models().items():
        path = folder / f"{name}.onnx"
        onnx.save(case.model, path, save_as_external_data=True, location=f"{name}.data", size_threshold=2000)
        before = set(cuda_ipc.OWN.names)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kept.append(ranks.share_weights(str(path), gpu()))
        sizes = [block.size for block in blocks if block.name in cuda_ipc.OWN.names - before]
        said = [str(one.message) for one in caught]
        found[name] = {"right": told(kept[-1], path), "bytes": sum(sizes), "said": said}
        found[name]["files"] = sorted({one.name for one in folder.glob("cache/device/*/*")})
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
