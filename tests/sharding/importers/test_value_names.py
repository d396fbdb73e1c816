"""Other names for inputs and outputs: everything that names a value goes on naming the same one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sharding.errors import ModelError, OptionError
from sharding.importers import onnx_file
from sharding.importers.mapped import mapped
from sharding.importers.value_names import default_outputs, inputs_of, rename_inputs, rename_outputs
from tests.sharding import graphs

X = np.float32([1, -2, 3])


def _run(model: onnx.ModelProto, **feeds: object) -> dict[str, list[float]]:
    onnx.checker.check_model(model)
    session = graphs.session(model)
    names = [item.name for item in session.get_outputs()]
    found = session.run(None, feeds)
    return {name: np.asarray(item).tolist() for name, item in zip(names, found, strict=True)}


def test_an_output_that_is_an_input_or_a_weight() -> None:
    text = "g (float[3] x) => (float[3] x, float[3] w, float[3] y) { x_out = Neg(x) y = Add(x_out, w) }"
    model = graphs.model(text, {"w": np.float32([5, 6, 7])})
    rename_outputs(model, ["a", "b", "c"])
    assert _run(model, x=X) == {"a": [1, -2, 3], "b": [5, 6, 7], "c": [4, 8, 4]}
    assert [item.name for item in model.graph.input] == ["x"]


def test_an_output_that_is_there_twice() -> None:
    model = graphs.model("g (float[3] x) => (float[3] y, float[3] y) { y = Neg(x) }", {})
    rename_outputs(model, ["a", "b"])
    assert _run(model, x=X) == {"a": [-1, 2, -3], "b": [-1, 2, -3]}


def test_names_that_values_inside_have() -> None:
    text = "g (float[3] x) => (float[3] y) { a = Neg(x) a_inner = Abs(a) y = Add(a, a_inner) }"
    model = graphs.model(text, {})
    rename_inputs(model, ["a"])
    rename_outputs(model, ["a_inner"])
    assert _run(model, a=X) == {"a_inner": [0, 4, 0]}


def test_two_names_change_places() -> None:
    text = "g (float[3] x, float[3] y) => (float[3] u, float[3] v) { u = Sub(x, y) v = Neg(x) }"
    model = graphs.model(text, {})
    rename_inputs(model, ["y", "x"])
    rename_outputs(model, ["v", "u"])
    assert _run(model, y=X, x=X * 0) == {"v": [1, -2, 3], "u": [-1, 2, -3]}


def test_names_in_annotations_and_sparse_weights() -> None:
    text = "g (float[3] x) => (float[3] y) { a = Neg(x) y = Add(a, s) }"
    model = graphs.model(text, {})
    values = numpy_helper.from_array(np.float32([4]), "s")
    places = numpy_helper.from_array(np.array([1]), "")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    for name in ("x", "y", "a"):
        note = model.graph.quantization_annotation.add(tensor_name=name)
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="a")
    rename_inputs(model, ["a"])
    rename_outputs(model, ["s"])
    notes = [(item.tensor_name, item.quant_parameter_tensor_names[0].value)
             for item in model.graph.quantization_annotation]  # fmt: skip
    assert notes == [("a", "a_inner"), ("s", "a_inner"), ("a_inner", "a_inner")]
    assert model.graph.sparse_initializer[0].values.name == "s_inner"
    assert list(model.graph.node[1].input) == ["a_inner", "s_inner"]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a"], "--output-names: the model has 2 outputs (y, z); found 1 name."),
        (["a", "b", "c"], "--output-names: the model has 2 outputs (y, z); found 3 names."),
        (["a", "a"], "--output-names: each output needs a name of its own, found a, a."),
        (["a", ""], "--output-names: each output needs a name of its own, found a, ."),
        (["a", "\udcff"], "is no text in UTF-8, as names must be."),
        (["a", "x"], "--output-names: 'x' is already the name of another input or output."),
    ],
)
def test_names_that_cannot_be_given(names: list[str], why: str) -> None:
    model = graphs.model("g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x) z = Abs(x) }", {})
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(OptionError) as caught:
        rename_outputs(model, names)
    assert why in str(caught.value)
    assert model.SerializeToString(deterministic=True) == before


def test_names_of_what_has_none() -> None:
    assert default_outputs(1) == ["output"]
    assert default_outputs(3) == ["output_0", "output_1", "output_2"]
    model = graphs.model("g (float[3] x, float[3] w) => (float[3] y) { y = Add(x, w) }", {"w": X})
    assert inputs_of(model) == ["x"]


BODY = """g (float[3] x, bool c) => (float[3] y)
{ y = If(c) <then_branch = t () => (float[3] a) { a = Add(x, w) },
             else_branch = e () => (float[3] b) { b = Sub(x, w) }> }"""


def test_weights_of_a_body_come_into_the_message(tmp_path: Path) -> None:
    """They lie in a file; those of the model itself stay there, and are said to lie where they do."""
    model = graphs.model(BODY, {"w": np.float32([10, 20, 30])})
    then = model.graph.node[0].attribute[0].g
    then.initializer.append(numpy_helper.from_array(np.float32([1, 2, 3]), "v"))
    then.node[0].input[1] = "v"
    data = b"----" + np.float32([1, 2, 3]).tobytes() + np.float32([10, 20, 30]).tobytes()
    (tmp_path / "data").write_bytes(data)
    for tensor, offset in ((then.initializer[0], 4), (model.graph.initializer[0], 16)):
        tensor.ClearField("raw_data")
        tensor.data_location = tensor.EXTERNAL
        for key, value in (("location", "data"), ("offset", str(offset)), ("length", "12")):
            tensor.external_data.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    found = onnx_file.read(path)
    inner = found.graph.node[0].attribute[0].g.initializer[0]
    assert numpy_helper.to_array(inner).tolist() == [1, 2, 3]
    assert not inner.external_data and inner.data_location == inner.DEFAULT
    outer = {entry.key: entry.value for entry in found.graph.initializer[0].external_data}
    assert outer == {"location": "data", "offset": "16", "length": "12"}


def test_what_is_no_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content, why in (
        (b"", "is empty; expected an ONNX model"),
        (b"\x00\x01\x02nothing", "is not an ONNX"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "it has no graph with an output"),
        (
            helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString(),
            "it has no graph with an output",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError) as caught:
            onnx_file.read(path)
        assert why in str(caught.value)


def test_a_file_that_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for where, why in ((path, "does not exist"), (tmp_path, "is not a file; expected a model.")):
        with pytest.raises(ModelError) as caught:
            mapped(where, "a model")
        assert why in str(caught.value) and "expected a model." in str(caught.value)
    path.write_bytes(b"abc")
    assert bytes(mapped(path, "a model")) == b"abc"
    with pytest.raises(ModelError, match="cannot be read: File name too long"):
        mapped(tmp_path / ("x" * 300), "a model")


@pytest.mark.parametrize(
    ("kind", "shape", "found"),
    [
        (onnx.TensorProto.FLOAT, (2, 3), ("float32", True)),
        (onnx.TensorProto.FLOAT, (1, 1), ("float32", False)),
        (onnx.TensorProto.FLOAT, (), ("float32", False)),
        (onnx.TensorProto.FLOAT, (0, 3), ("float32", False)),
        (onnx.TensorProto.BFLOAT16, (2,), ("bfloat16", True)),
        (onnx.TensorProto.FLOAT8E4M3FN, (2,), ("float8_e4m3fn", True)),
        (onnx.TensorProto.INT64, (2, 3), ("int64", False)),
        (onnx.TensorProto.UINT16, (2, 3), ("uint16", False)),
        (onnx.TensorProto.BOOL, (2, 3), ("bool", False)),
        (onnx.TensorProto.STRING, (2,), None),
        (onnx.TensorProto.INT4, (2,), None),
        (onnx.TensorProto.UINT4, (2,), None),
        (onnx.TensorProto.FLOAT4E2M1, (2,), None),
        (99, (2,), None),
    ],
)
def test_weights_that_a_checkpoint_may_replace(
    kind: int, shape: tuple[int, ...], found: tuple[str, bool] | None
) -> None:
    target = onnx_file._target(onnx.TensorProto(name="w", data_type=kind, dims=shape))
    assert (None if target is None else (target.dtype.name, target.needed)) == found
    assert target is None or target.shape == shape
