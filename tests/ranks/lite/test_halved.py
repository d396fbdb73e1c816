"""Which weights are written as float16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ranks.lite.options.halved import halve

WEIGHTS = {
    "one": ([1.0], np.float32, False),
    "two": ([1.0, 2.0], np.float32, True),
    "largest": ([1.0, -65504.0], np.float32, True),
    "beyond": ([1.0, -65505.0], np.float32, False),
    "nan": ([1.0, np.nan], np.float32, False),
    "double": ([1.0, 2.0], np.float64, False),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_which_are_halved(case: str) -> None:
    values, dtype, wanted = WEIGHTS[case]
    graph = onnx.helper.make_graph([], "g", [], [])
    graph.initializer.append(numpy_helper.from_array(np.array(values, dtype), "w"))
    model = onnx.helper.make_model(graph)
    weights = halve(model, Path("m.onnx"), {})
    assert [list(np.frombuffer(b"".join(half.chunks()), np.float16)) for half in weights.values()] == (
        [values] if wanted else []
    )
    assert [tensor.name for tensor in model.graph.initializer] == (["w/float16"] if wanted else ["w"])
