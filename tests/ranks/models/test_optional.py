"""Initializers that are inputs too: which need not be fed, and which are weights that nobody feeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ranks.errors import ModelError
from ranks.models import optional


def model(inputs: str, held: str, *, version: int = 8, made_here: bool = False) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array([ord(name), 0], np.float32), name) for name in held],
    )
    made = helper.make_model(graph, ir_version=version)
    if made_here:
        made.metadata_props.add(key="shardrun.rank", value="0")
    return made


@pytest.mark.parametrize(
    ("given", "defaults", "inputs", "held"),
    [
        (model("axb", "awb"), "ab", "xab", "w"),
        (model("xa", "wa"), "a", "xa", "w"),
        (model("ax", "a"), "", "ax", "a"),  # all are listed: these are weights
        (model("ax", "a", made_here=True), "a", "xa", ""),
        (model("x", "w"), "", "x", "w"),
        (model("x", ""), "", "x", ""),
        (model("axb", "awb", version=3), "", "axb", "awb"),
        (model("axb", "awb", version=4), "ab", "xab", "w"),
    ],
)
def test_which_inputs_need_not_be_fed(given: Any, defaults: str, inputs: str, held: str) -> None:
    """They come last, and are no weights any more."""
    found = optional.take(given, Path("m.onnx"))
    assert {name: value.tolist() for name, value in found.items()} == {
        name: [ord(name), 0] for name in defaults
    }
    assert [value.name for value in given.graph.input] == list(inputs)
    assert [tensor.name for tensor in given.graph.initializer] == list(held)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (TensorProto.BFLOAT16, [1.5, -2.0]),
        (TensorProto.FLOAT16, [1.5, -2.0]),
        (TensorProto.INT64, [3, -4]),
        (TensorProto.FLOAT8E4M3FN, [1.5, -2.0]),
    ],
)
def test_defaults_of_other_types(kind: int, numbers: list[float]) -> None:
    """Whether a release of onnx gives their bits or their values."""
    given = model("xa", "w")
    given.graph.initializer.append(helper.make_tensor("a", kind, [2], numbers))
    found = optional.take(given, Path("m.onnx"))["a"]
    assert found.dtype == optional.element_dtype(kind)
    assert found.astype(np.float64).tolist() == numbers


def test_a_default_that_cannot_be_read() -> None:
    given = model("xa", "wa")
    given.graph.initializer[1].raw_data = b"abc"
    with pytest.raises(ModelError, match=r"^m\.onnx: the default of input 'a' cannot be read: "):
        optional.take(given, Path("m.onnx"))
