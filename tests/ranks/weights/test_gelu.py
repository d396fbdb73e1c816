"""The Gelu that torch exports becomes one node of ONNX Runtime, with the same answers, or nothing does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ranks.sessions.session import SessionConfig, create
from ranks.weights.prepared.gelu import fuse_gelu
from ranks.weights.prepared.store import Store
from tests.sharding import graphs

X = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32) * 3
GELU = """
<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
gelu (float[n, 256] x) => (float[n, 256] y) {
  p = MatMul(x, w)
  scaled = Div(p, root)
  erf = Erf(scaled)
  added = Add(erf, one)
  halved = Mul(half, added)
  gelu = Mul(p, halved)
  y = MatMul(gelu, w)
}
"""


def model(change: Callable[[onnx.GraphProto], object] = lambda _: None) -> onnx.ModelProto:
    """x W, its Gelu as torch.onnx.export(dynamo=True) writes it, and a product after it."""
    held = {"root": math.sqrt(2), "one": 1.0, "half": 0.5}
    weights = {name: np.array(value, np.float32) for name, value in held.items()}
    weights["w"] = np.random.default_rng(2).standard_normal((256, 256)).astype(np.float32) / 16
    made = graphs.model(GELU, weights)
    change(made.graph)
    onnx.checker.check_model(made)
    return made


def answers(made: onnx.ModelProto) -> list[np.ndarray]:
    return list(graphs.session(made, optimized=False).run(None, {"x": X}))


def multiplied(graph: onnx.GraphProto) -> None:
    """By 1 / sqrt(2) instead of divided, and each pair of inputs the other way round."""
    graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(math.sqrt(0.5), np.float32), "root"))
    graph.node[1].op_type = "Mul"
    for node in graph.node[1:2] + graph.node[3:6]:
        node.input[:] = reversed(node.input)


@pytest.mark.parametrize("change", [lambda _: None, multiplied], ids=["divided", "multiplied"])
def test_fused(change: Callable[[onnx.GraphProto], object]) -> None:
    made = model(change)
    expected = answers(made)
    assert fuse_gelu(made) == 1
    assert [node.op_type for node in made.graph.node] == ["MatMul", "Gelu", "MatMul"]
    onnx.checker.check_model(made)
    assert np.abs(answers(made)[0] - expected[0]).max() <= 1e-6 * np.abs(expected[0]).max()


def constant(name: str, value: np.ndarray) -> Callable[[onnx.GraphProto], object]:
    def change(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(numpy_helper.from_array(value, name))

    return change


def also(name: str) -> Callable[[onnx.GraphProto], object]:
    """A value in between is an output as well."""
    return lambda graph: graph.output.append(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 256])
    )


def in_branch(graph: onnx.GraphProto) -> None:
    """A value in between is used in a subgraph."""
    branch = onnx.parser.parse_graph("b () => (float[n, 256] b) { b = Neg(added) }")
    graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    graph.node.append(helper.make_node("If", ["yes"], ["c"], then_branch=branch, else_branch=branch))
    also("c")(graph)


def used_twice(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Neg", ["erf"], ["n2"]))
    also("n2")(graph)


def another_factor(graph: onnx.GraphProto) -> None:
    graph.node[5].input[0] = "x"


@pytest.mark.parametrize(
    "change",
    [
        constant("half", np.array(0.25, np.float32)),
        constant("one", np.array(2, np.float32)),
        constant("root", np.array(1.5, np.float32)),
        constant("half", np.full((1, 256), 0.5, np.float32)),
        also("halved"),
        also("scaled"),
        in_branch,
        used_twice,
        another_factor,
    ],
)
def test_what_only_looks_like_it(change: Callable[[onnx.GraphProto], object]) -> None:
    made = model(change)
    expected, nodes = answers(made), list(made.graph.node)
    assert fuse_gelu(made) == 0
    assert list(made.graph.node) == nodes
    assert all(np.array_equal(one, other) for one, other in zip(answers(made), expected, strict=True))


def test_in_prepared_weights(tmp_path: Path) -> None:
    """Also where all of it goes through ONNX Runtime's own passes before."""
    made, store = model(), Store(tmp_path / "weights", None)
    session = create(made.SerializeToString(), SessionConfig(threads=1, store=store), "it")
    (key,) = store.opened
    prepared = onnx.load(str(tmp_path / "weights" / f"{key}.onnx"), load_external_data=False)
    assert [node.op_type for node in prepared.graph.node] == ["MatMul", "Gelu", "MatMul"]
    expected = answers(made)[0]
    assert np.abs(session.run(None, {"x": X})[0] - expected).max() <= 1e-5 * np.abs(expected).max()
