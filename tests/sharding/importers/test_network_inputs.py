"""The inputs that a network is exported with, as options and example arrays give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sharding.errors import OptionError
from sharding.importers.networks.inputs import (
    DTYPES,
    Input,
    example_lengths,
    from_arrays,
    name_axes,
    parse_dynamic,
    parse_input,
    with_dynamic,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x:", Input("x", ())),
        ("x::int64", Input("x", (), "int64")),
        ("x:0", Input("x", (0,))),
        ("x:batch,3,2147483647:bool", Input("x", ("batch", 3, 2147483647), "bool")),
        ("layer.0_x:s0.a,_b", Input("layer.0_x", ("s0.a", "_b"))),
    ],
)
def test_an_input_is_a_name_lengths_and_a_type(text: str, wanted: Input) -> None:
    assert parse_input(text) == wanted


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_type_is_taken(dtype: str) -> None:
    assert parse_input(f"x:1:{dtype}").dtype == dtype


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "such as x:batch,3,224,224:float32."),
        ("x:1:float32:", "such as x:batch,3,224,224:float32."),
        (":1", "such as x:batch,3,224,224:float32."),
        ("0x:1", "such as x:batch,3,224,224:float32."),
        ("x:-1", "'-1' is neither a length nor a name."),
        ("x:2147483648", "'2147483648' is neither a length nor a name."),
        ("x:1,,2", "'' is neither a length nor a name."),
        ("x:1:", "the type '' is none of float32, float16, "),
        ("x:1:float8", "the type 'float8' is none of float32, float16, "),
    ],
)
def test_what_is_no_input_is_refused(text: str, why: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_input(text)
    assert f"--input {text!r}: expected NAME:SHAPE[:DTYPE]" in str(caught.value) and why in str(caught.value)


def test_open_axes_are_read() -> None:
    found = parse_dynamic(["x:0=batch,1=length", "y:99=n", "x:3=m"])
    assert found == {"x": {0: "batch", 1: "length", 3: "m"}, "y": {99: "n"}}


@pytest.mark.parametrize("text", ["x", "x:", "x:0", "x:0=", ":0=n", "x:n=0", "x:-1=n", "x:100=n", "x:0=n,"])
def test_what_is_no_open_axis_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="expected NAME:AXIS=SYMBOL"):
        parse_dynamic([text])


def test_axes_are_opened() -> None:
    inputs = [Input("x", (2, 3), "int64"), Input("y", (2,))]
    assert with_dynamic(inputs, {"x": {0: "n", 1: "m"}}) == [Input("x", ("n", "m"), "int64"), inputs[1]]
    with pytest.raises(OptionError, match=r"--dynamic x:2=n: it has 2 axes\."):
        with_dynamic(inputs, {"x": {2: "n"}})
    with pytest.raises(OptionError, match=r"--dynamic z: there is no such input \(the inputs: x, y\)"):
        with_dynamic(inputs, {"z": {0: "n"}})


def test_open_axes_get_lengths_of_their_own() -> None:
    """As given, that of the first example, or the least that no other has, from 2 on."""
    example = np.zeros((7, 3, 9), np.float32)
    inputs = [
        Input("x", ("n", 3, "m"), "float32", example),
        Input("y", ("n", "k", "j"), "float32", np.zeros((8, 2, 4), np.float32)),
        Input("z", ("i", "h", 5)),
    ]
    assert example_lengths(inputs, {"m": 11}) == {"n": 7, "m": 11, "k": 2, "j": 4, "i": 3, "h": 5}
    with pytest.raises(OptionError, match="--dim w: no input has an open axis"):
        example_lengths(inputs, {"w": 3})
    assert example_lengths([Input("x", ("n",))], {"n": 2}) == {"n": 2}
    for length in (0, 1):
        with pytest.raises(OptionError, match=f"'n' has length {length} in the example"):
            example_lengths([Input("x", ("n",))], {"n": length})


def test_inputs_of_an_archive_are_found_by_name_or_place() -> None:
    arrays = {"b": np.ones((2, 3), ">i4"), "in_2": np.ones(4, bool), "in_1": np.ones(9), "rest": np.ones(1)}
    found = from_arrays(arrays, ["a", "b", "c"])
    assert [(item.name, item.shape, item.dtype) for item in found] == [
        ("b", (2, 3), "int32"), ("c", (4,), "bool")
    ]  # fmt: skip
    assert found[0].array is arrays["b"] and found[1].array is arrays["in_2"]
    for refused in (np.ones(2, complex), np.array(["a"]), np.zeros(2, "M8[s]")):
        with pytest.raises(OptionError, match=r"The array for the input 'a' holds .*; expected numbers"):
            from_arrays({"a": refused}, ["a"])


def _lengths(value: Any) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_axes_have_the_names_that_were_given() -> None:
    """Everywhere, also in sums and products; names that are parts of others are none of theirs."""

    def value(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    graph = onnx.helper.make_graph(
        [], "g",
        [value("x", ["s1", 3, "s7"]), value("y", ["s7", 2])],
        [value("z", ["s1 + s7", "2*s1", "s17"])],
        value_info=[value("v", ["s7"])],
    )  # fmt: skip
    model = onnx.helper.make_model(graph)
    name_axes(model, [Input("x", ("batch", "three", "length")), Input("y", ("other", 2))])
    assert [_lengths(item) for item in model.graph.input] == [["batch", 3, "length"], ["length", 2]]
    assert _lengths(model.graph.output[0]) == ["batch + length", "2*batch", "s17"]
    assert _lengths(model.graph.value_info[0]) == ["length"]
