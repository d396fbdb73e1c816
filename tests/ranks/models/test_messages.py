"""What a model's message says of its inputs, and of the ranks that it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ranks.models import optional
from ranks.models.model_file import of_any_rank
from ranks.models.part import is_part
from ranks.run.assembly import _spec

FILE = Path("m.onnx")
HELD = {"w": np.array([1.5], np.float32), "v": np.array([2.0], np.float32)}


def message(*inputs: str, ir: int = 8, **told: str) -> onnx.ModelProto:
    """y = Add(x, w) * v, with these inputs and metadata."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in inputs]
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Mul", ["s", "v"], ["y"])]
    held = [numpy_helper.from_array(array, name) for name, array in HELD.items()]
    made = helper.make_model(helper.make_graph(nodes, "g", values, [], held), ir_version=ir)
    helper.set_model_props(made, told)
    return made


def taken(model: onnx.ModelProto) -> tuple[dict[str, list[float]], list[str], list[str]]:
    """The defaults, and the names of inputs and weights that are left."""
    found = optional.take(model, FILE)
    graph = model.graph
    return (
        {name: array.tolist() for name, array in found.items()},
        [value.name for value in graph.input],
        [tensor.name for tensor in graph.initializer],
    )


def test_inputs_with_defaults_are_fed_like_others() -> None:
    assert taken(message("w", "x")) == ({"w": [1.5]}, ["x", "w"], ["v"])
    assert taken(message("x")) == ({}, ["x"], ["w", "v"])


def test_where_all_weights_are_listed_they_are_weights() -> None:
    """In a rank model of ours they are defaults: it lists no others."""
    assert taken(message("w", "x", "v")) == ({}, ["w", "x", "v"], ["w", "v"])
    ours = message("w", "x", "v", **{"name": "it", optional.RANK_KEY: "0"})
    assert taken(ours) == ({"w": [1.5], "v": [2.0]}, ["x", "w", "v"], [])
    assert taken(message("w", "x", ir=3)) == ({}, ["w", "x"], ["w", "v"])


@pytest.mark.parametrize(
    ("told", "part"),
    [
        ({}, False),
        ({"shardrun.mesh": "tensor=1"}, False),
        ({"shardrun.mesh": "data=2,tensor=1"}, True),
        ({"shardrun.mesh": "tensor=1", "shardrun.micro_batches": "1"}, False),
        ({"shardrun.micro_batches": "4"}, True),
        ({"shardrun.mesh": "nonsense"}, True),  # whoever reads it says what is wrong
    ],
)
def test_whether_it_takes_several_ranks_or_runs(told: dict[str, str], part: bool) -> None:
    assert is_part(message("x", **told)) is part


def test_inputs_of_any_number_of_axes() -> None:
    model = message("x", "z", "t")
    model.graph.input[1].type.tensor_type.ClearField("shape")
    model.graph.input[2].type.CopyFrom(helper.make_sequence_type_proto(model.graph.input[0].type))
    assert of_any_rank(model) == {"z"}


def test_what_is_known_of_an_input_of_any_number_of_axes() -> None:
    value = message("x").graph.input[0].type
    known = _spec("x", value)
    assert (known.shape, known.is_tensor, known.open_rank) == (("n",), True, False)
    value.tensor_type.ClearField("shape")
    open_ = _spec("x", value)
    assert (open_.shape, open_.is_tensor, open_.open_rank) == ((), True, True)
    several = _spec("x", helper.make_sequence_type_proto(value))
    assert (several.shape, several.is_tensor, several.open_rank) == ((), False, False)
