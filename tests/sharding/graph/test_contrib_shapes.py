"""Shapes of ONNX Runtime's own operators are those that it gives, and no less is known of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.convenience import convert_attributes

from sharding.graph.contrib_shapes import infer
from sharding.onnx_files.kinds import declared_shape
from tests.sharding.proof import MICROSOFT, Case, Const, runnable, whole
from tests.sharding.rule_cases import CASES

BY_OPERATOR: dict[str, list[Case]] = defaultdict(list)
for _case in CASES:
    if _case.domain == MICROSOFT and runnable(_case) and not _case.body:
        BY_OPERATOR[_case.op_type].append(_case)

LONGER = ("GroupQueryAttention",)
"""Of which the run tells how long the caches become."""


def inferred(case: Case, known: str) -> dict[str, onnx.TypeProto] | None:
    """``known``: of the inputs, ``lengths``, the number of ``axes`` alone, or ``types`` alone."""
    values: list[ir.Value | None] = []
    for place, given in enumerate(case.inputs):
        array: Any = given.value if isinstance(given, Const) else given
        value = None if array is None else ir.Value(name=f"x{place}")
        if value is not None:
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            if known != "types":
                value.shape = ir.Shape(list(array.shape) if known == "lengths" else [None] * array.ndim)
        values.append(value)
    attributes = convert_attributes(dict(case.attributes))
    node = ir.Node(case.domain, case.op_type, values, attributes, num_outputs=case.outputs)
    for place, output in enumerate(node.outputs):
        output.name = f"y{place}"
    return infer(node)


@pytest.mark.parametrize("op_type", sorted(BY_OPERATOR))
def test_shapes_are_those_of_a_run(op_type: str) -> None:
    for case in BY_OPERATOR[op_type]:
        results = whole(case)
        for known in ("lengths", "axes", "types"):
            for name, kind in (inferred(case, known) or {}).items():
                if int(name[1:]) in case.unused_outputs or int(name[1:]) >= len(results):
                    continue
                array, shape = results[int(name[1:])], declared_shape(kind)
                assert kind.tensor_type.elem_type == onnx.helper.np_dtype_to_tensor_dtype(array.dtype), case
                if shape is not None:
                    fits = [a in (None, b) for a, b in zip(shape, array.shape, strict=True)]
                    assert all(fits), f"{case}, {name} of {known}: {shape}"
                if known == "lengths":
                    assert shape is not None and (op_type in LONGER or None not in shape), f"{case}, {name}"


def _shapes(op_type: str, *inputs: Any, outputs: int = 3, **attributes: Any) -> list[Any]:
    """What is known of the outputs for inputs of these shapes; None where one is absent."""
    values = [
        None
        if shape is None
        else ir.Value(name=f"x{place}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        for place, shape in enumerate(inputs)
    ]
    node = ir.Node(MICROSOFT, op_type, values, convert_attributes(attributes), num_outputs=outputs)
    for place, output in enumerate(node.outputs):
        output.name = f"y{place}"
    found = infer(node) or {}
    return [declared_shape(found[f"y{place}"]) if f"y{place}" in found else None for place in range(outputs)]


@pytest.mark.parametrize(
    ("query", "key", "value", "wanted"),
    [
        ((2, 5, 4, 3, 8), None, None, [(2, 5, 32), (2, 4, 5, 8), (2, 4, 5, 8)]),
        ((2, 5, 32), (2, 7, 4, 2, 8), None, [(2, 5, 32), (2, 4, 7, 8), (2, 4, 7, 8)]),
        ((2, 5, 32), (2, 7, 32), (2, 7, 64), [(2, 5, 64), (2, 4, 7, 8), (2, 4, 7, 16)]),
        ((2, 5, 32), (2, 4, 7, 8), (2, 4, 7, 16), [(2, 5, 64), (2, 4, 7, 8), (2, 4, 7, 16)]),
        ((2, 5, 32), None, None, [(2, 5, 32), (2, 4, 5, 8), (2, 4, 5, 8)]),
        (("b", "s", 4, 3, None), None, None, [("b", "s", None), ("b", 4, "s", None), ("b", 4, "s", None)]),
        (("b", 5, 32), ("b", "l", 4, 2, None), None, [("b", 5, None), ("b", 4, "l", 8), ("b", 4, "l", None)]),
    ],
)
def test_attention_of_what_is_packed(query: Any, key: Any, value: Any, wanted: Any) -> None:
    assert [tuple(item) for item in _shapes("MultiHeadAttention", query, key, value, num_heads=4)] == wanted


def test_half_of_the_last_axis() -> None:
    for shape, wanted in (((2, 3, 8), (2, 3, 4)), ((2, 3, None), (2, 3, None)), (("n", 6), ("n", 3))):
        (found,) = _shapes("BiasSplitGelu", shape, (8,), outputs=1)
        assert tuple(found) == wanted


def test_products_of_turned_operands() -> None:
    def product(a: Any, b: Any, **more: int) -> Any:
        (found,) = _shapes("FusedMatMul", a, b, outputs=1, **more)
        return None if found is None else tuple(found)

    both = {"transBatchA": 1, "transBatchB": 1}
    assert product((4, 2, 8), (8, 2, 6), **both) == (2, 4, 6)
    assert product((4, 2, 8), (2, 8, 6), transBatchA=1) == (2, 4, 6)
    assert product((2, 8, 4), (2, 6, 8), transA=1, transB=1) == (2, 4, 6)
    assert product((4, 8), (8, 6), **both) is None
    assert product((4, 2, 8), (8, 6), **both) is None
    assert product((8,), (8, 6)) is None
