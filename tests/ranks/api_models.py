"""Small models for the tests of the inference API."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.ranks import rank_models
from tests.ranks.rank_models import value

Shape = Sequence[int | str | None]


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
    weights: dict[str, NDArray[np.generic]] | None = None,
    element: int = TensorProto.FLOAT,
) -> Path:
    """Writes a model whose inputs and outputs all have one element type."""
    ends = ([value(name, shape, element) for name, shape in side.items()] for side in (inputs, outputs))
    model = rank_models.model(nodes, *ends, weights)
    helper.set_model_props(model, {"author": "tests"})
    path.write_bytes(model.SerializeToString())
    return path


def add_one(path: Path, shape: Shape = (2, 3), element: int = TensorProto.FLOAT) -> Path:
    """y = x + 1, for any shape: the graph needs no dimension fixed."""
    one = np.ones((), helper.tensor_dtype_to_np_dtype(element))
    node = helper.make_node("Add", ["x", "one"], ["y"])
    return save(path, [node], {"x": shape}, {"y": shape}, {"one": one}, element)


def flatten(path: Path) -> Path:
    """y = reshape(x, [6]), x of shape [2, 3]: the graph needs six elements."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    return save(path, [node], {"x": [2, 3]}, {"y": [6]}, {"shape": np.array([6], np.int64)})


def linear(path: Path, batch: int | str = "batch", width: int = 16) -> Path:
    """y = relu(x @ w1) @ w2, x of shape [batch, 8]."""
    return save(path, _nodes("h"), {"x": [batch, 8]}, {"y": [batch, 4]}, _weights(width))


def linear_ranks(folder: Path, batch: int | str = "batch") -> list[Path]:
    """`linear` cut by hand for two ranks: w1 by columns, w2 by rows, then an AllReduce."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = _weights(16)
    nodes = _nodes("h", partial="partial")
    nodes.append(helper.make_node("AllReduce", ["partial"], ["y"], domain="com.microsoft"))
    paths = []
    for rank in range(2):
        part = {
            "w1": np.ascontiguousarray(np.split(whole["w1"], 2, axis=1)[rank]),
            "w2": np.ascontiguousarray(np.split(whole["w2"], 2, axis=0)[rank]),
        }
        path = folder / f"part_{rank}.onnx"
        paths.append(save(path, nodes, {"x": [batch, 8]}, {"y": [batch, 4]}, part))
    return paths


def _nodes(hidden: str, partial: str = "y") -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", ["x", "w1"], [hidden]),
        helper.make_node("Relu", [hidden], ["relu"]),
        helper.make_node("MatMul", ["relu", "w2"], [partial]),
    ]


def _weights(width: int) -> dict[str, NDArray[np.generic]]:
    random = np.random.default_rng(5)
    return {
        "w1": random.standard_normal((8, width)).astype(np.float32),
        "w2": random.standard_normal((width, 4)).astype(np.float32),
    }
