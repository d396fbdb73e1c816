"""Other names for inputs and outputs: what else has such a name gets another, and answers stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sharding.errors import OptionError
from sharding.importers.value_names import default_outputs, inputs_of, rename_inputs, rename_outputs
from tests.sharding import graphs

TEXT = """g (float[n] x, float[n] y) => (float[n] z, float[n] inner) {
  inner = Neg(x) a = Add(inner, y) z = Mul(a, w)
}"""


def _model() -> onnx.ModelProto:
    return graphs.model(TEXT, {"w": np.float32([3])})


def _answers(model: onnx.ModelProto) -> list[list[float]]:
    onnx.checker.check_model(model)
    session = graphs.session(model)
    feeds = {item.name: np.float32([place + 1]) for place, item in enumerate(session.get_inputs())}
    return [np.asarray(item).tolist() for item in session.run(None, feeds)]


WANTED = [[3.0], [-1.0]]


@pytest.mark.parametrize("names", [["x", "y"], ["y", "x"], ["a", "w"], ["in", "w_inner"], ["a", "a_inner"]])
def test_inputs_have_other_names(names: list[str]) -> None:
    model = _model()
    rename_inputs(model, names)
    assert inputs_of(model) == names and _answers(model) == WANTED


@pytest.mark.parametrize("names", [["z", "inner"], ["inner", "z"], ["a", "w"], ["w_inner", "w"]])
def test_outputs_have_other_names(names: list[str]) -> None:
    model = _model()
    rename_outputs(model, names)
    assert [item.name for item in model.graph.output] == names and _answers(model) == WANTED


def test_outputs_that_are_something_else_too() -> None:
    """An input, a weight, or the same output again."""
    model = _model()
    for name in ("x", "w", "z"):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]))
    model.graph.node.add(op_type="Neg", input=["x"], output=["x_out"])
    rename_outputs(model, ["one", "two", "three", "four", "five"])
    assert inputs_of(model) == ["x", "y"]
    assert _answers(model) == [*WANTED, [1.0], [3.0], [3.0]]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a"], r"the model has 2 inputs \(x, y\); found 1 name"),
        (["a", "b", "c"], "found 3 names"),
        (["a", ""], "each input needs a name of its own"),
        (["a", "a"], "each input needs a name of its own, found a, a"),
        (["a", "z"], "'z' is already the name of another input or output"),
        (["a", "\ud800"], "is no text in UTF-8"),
    ],
)
def test_names_that_inputs_cannot_have(names: list[str], why: str) -> None:
    with pytest.raises(OptionError, match=f"--input-names: .*{why}"):
        rename_inputs(_model(), names)


def test_sparse_weights_and_scales_are_renamed_too() -> None:
    model = _model()
    values = helper.make_tensor("a", TensorProto.FLOAT, [1], [2.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    model.graph.quantization_annotation.add(tensor_name="x")
    rename_inputs(model, ["a", "b"])
    assert model.graph.sparse_initializer[0].values.name == "a_inner"
    assert model.graph.quantization_annotation[0].tensor_name == "a"


def test_names_of_outputs_that_have_none() -> None:
    assert default_outputs(1) == ["output"]
    assert default_outputs(3) == ["output_0", "output_1", "output_2"]
