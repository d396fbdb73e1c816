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
