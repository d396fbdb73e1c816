"""A node of constants is computed while slicing only where ONNX Runtime gives the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sharding.graph.fold import evaluate
from tests.sharding import graphs

I64, I32, F32 = np.int64, np.int32, np.float32
Array = np.ndarray[Any, Any]


def folded(op_type: str, *inputs: Any, opset: int = 18, **attributes: Any) -> Array | None:
    """What is computed while slicing; if anything is, then a run gives just that."""
    arrays = [None if item is None else np.asarray(item) for item in inputs]
    names = ["" if item is None else f"i{place}" for place, item in enumerate(arrays)]
    node = onnx.helper.make_node(op_type, names, ["y"], **attributes)
    held = [
        onnx.numpy_helper.from_array(item, name)
        for name, item in zip(names, arrays, strict=True)
        if item is not None
    ]
    output = onnx.helper.make_empty_tensor_value_info("y")
    if op_type == "OneHot":  # of which ONNX does not find the shape
        output = onnx.helper.make_tensor_value_info(
            "y", onnx.helper.np_dtype_to_tensor_dtype(arrays[2].dtype), [2, 3]
        )
    graph = onnx.helper.make_graph([node], "g", [], [output], held)
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    (made,) = ir.serde.deserialize_model(inferred).graph
    found = evaluate(made, opset)
    if found is None:
        return None
    (wanted,) = graphs.session(model, optimized=False).run(None, {})
    answer = found.numpy()
    assert isinstance(wanted, np.ndarray)
    assert answer.dtype == wanted.dtype and answer.shape == wanted.shape
    np.testing.assert_array_equal(answer, wanted)
    return answer


LARGE = 1 << 53
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], bool]] = [
    ("Pow", (I64([2, 3]), I64([3, 2])), {}, True),
    ("Pow", (I64([2, 3]), I64([-1, 2])), {}, False),
    ("Pow", (I64([2, 3]), F32([0.5, 2])), {}, False),
    ("Pow", (I64([2, 3]), I64([70, 2])), {}, False),
    ("Mod", (I64([7, -7]), I64([3, 3])), {}, True),
    ("Mod", (I64([7, -7]), I64([3, 3])), {"fmod": 1}, True),
    ("Mod", (I64([LARGE + 1, -7]), I64([3, 3])), {"fmod": 1}, False),
    ("Mod", (I64([7, -7]), I64([LARGE + 1, 3])), {"fmod": 1}, False),
    ("ReduceProd", (I64([3, 4, 5]),), {}, True),
    ("ReduceProd", (I64([1 << 40, 1 << 40]),), {}, False),
    ("ReduceProd", (I64([1 << 40, 1 << 40, 0]),), {}, False),
    ("ReduceSum", (I64([3, -4, 5]),), {}, True),
    ("ReduceSum", (I64([LARGE, 1]),), {}, False),
    ("ReduceMax", (F32([1, 5, 2]),), {}, True),
    ("ReduceMax", (F32([1, np.nan, 2]),), {}, False),
    ("ReduceMin", (F32([np.nan, 1]),), {}, False),
    ("ReduceMin", (I64([3, -4]),), {}, True),
    ("Max", (I64([1, 9]), I64([3, 4])), {}, True),
    ("Min", (I64([1, LARGE * 4]), I64([3, 4])), {}, False),
    ("Max", (I64([1, -LARGE * 16]), I64([3, 4])), {}, False),
    ("OneHot", (I64([0, 2]), I64(3), I64([0, 1])), {}, True),
    ("OneHot", (I64([-3, 2]), I64(3), I64([0, 1])), {}, True),
    ("OneHot", (I64([0, 3]), I64(3), I64([0, 1])), {}, False),
    ("OneHot", (I64([-4, 2]), I64(3), I64([0, 1])), {}, False),
    ("OneHot", (F32([0, 2]), I64([3]), F32([0, 1])), {}, False),
    ("OneHot", (I64([0, 2]), F32([3]), F32([0, 1])), {}, False),
    ("Slice", (I64([1, 2, 3, 4]), I64([1]), I64([3])), {}, True),
    ("Slice", (I64([1, 2, 3, 4]), I64([3]), I64([0]), I64([0]), I64([-1])), {}, True),
    ("Slice", (I64([1, 2, 3, 4]), I64([-4]), I64([-9]), I64([0]), I64([-1])), {}, True),
    ("Slice", (I64([1, 2, 3, 4]), I64([-5]), I64([-9]), I64([0]), I64([-1])), {}, False),
    ("Slice", (I64([1, 2, 3, 4]), I64([3]), I64([2**63 - 1]), I64([0]), I64([-1])), {}, False),
    ("Slice", (I64([1, 2, 3, 4]), I64([3]), I64([0]), None, I64([-1])), {}, False),
    ("Slice", (I64([1, 2, 3, 4]), I64([-9]), I64([3]), I64([0]), I64([2])), {}, True),
    ("Softmax", (F32([[1, 2], [3, 4]]),), {"opset": 11, "axis": 0}, False),
    ("Unsqueeze", (I64([1, 2]),), {"opset": 11, "axes": [0, 2]}, True),
    ("Unsqueeze", (I64([1, 2]),), {"opset": 11, "axes": [2, 0]}, False),
    ("Unsqueeze", (I64([1, 2]),), {"opset": 11, "axes": [0, -1]}, False),
    ("Unsqueeze", (I64([1, 2]), I64([-1])), {}, True),
    ("GatherElements", (I64([4, 5, 6]), I64([2, 0])), {}, True),
    ("Gather", (I64([4, 5, 6]), I64([2, -1])), {}, True),
    ("Cast", (I64([1, 0, 300]),), {"to": 9}, True),
    ("Cast", (I64([1, 2]),), {"to": 8}, False),
    ("Range", (I64(1), I64(9), I64(3)), {}, True),
    ("Range", (I64(9), I64(1), I64(-3)), {}, True),
    ("Range", (F32(1), F32(2), F32(0.1)), {}, False),
    ("Div", (I64([7, -7]), I64([2, 2])), {}, True),
    ("Concat", (I64([7]), I64([2, 2])), {"axis": 0}, True),
    ("Where", (np.array([True, False]), I64([1, 2]), I64([3, 4])), {}, True),
    ("Gather", (I64([4, 5, 6]), I64([3])), {}, False),
    ("Reshape", (I64([4, 5, 6]), I64([2, 2])), {}, False),
    ("RandomNormal", (), {"shape": [2]}, False),
]


@pytest.mark.parametrize("place", range(len(CASES)), ids=[f"{item[0]}-{n}" for n, item in enumerate(CASES)])
def test_what_is_computed(place: int) -> None:
    op_type, inputs, more, wanted = CASES[place]
    assert (folded(op_type, *inputs, **more) is not None) is wanted
