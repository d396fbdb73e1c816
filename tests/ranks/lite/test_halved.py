"""Which weights are written as float16."""

from __future__ import annotations

from collections.abc import Iterator
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


def test_a_weight_is_widened_before_it_is_used(tmp_path: Path) -> None:
    """From the file that it lies in, too, or as another way says that it is held."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["w", "w/float16"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in ("w", "x")],
        [],
    )
    values = np.array([[1, 2, 3], [4, 5, 70000]], np.float32)
    (tmp_path / "data").write_bytes(values.tobytes())
    for name, row in (("w", 0), ("large", 1), ("held", 0)):
        tensor = numpy_helper.from_array(values[row], name)
        tensor.ClearField("raw_data")
        tensor.data_location = tensor.EXTERNAL
        for key, value in (("location", "data"), ("offset", str(12 * row)), ("length", "12")):
            tensor.external_data.add(key=key, value=value)
        graph.initializer.append(tensor)

    class Held:
        nbytes = 12

        def chunks(self) -> Iterator[bytes]:
            yield values[0, :2].tobytes()
            yield values[0, 2:].tobytes()

    model = onnx.helper.make_model(graph)
    found = halve(model, tmp_path / "m.onnx", {"held": Held(), "other": Held()})
    assert found.keys() == {"other", "w/float16_1", "held/float16"}
    for name in ("w/float16_1", "held/float16"):
        assert np.frombuffer(b"".join(found[name].chunks()), np.float16).tolist() == [1, 2, 3]
        assert found[name].nbytes == 6
    graph = model.graph
    assert [value.name for value in graph.input] == ["x"]
    assert [(node.op_type, *node.input, *node.output) for node in graph.node] == [
        ("Cast", "w/float16_1", "w"), ("Cast", "held/float16", "held"), ("Add", "w", "w/float16", "y"),
    ]  # fmt: skip
    assert {node.attribute[0].i for node in graph.node[:2]} == {onnx.TensorProto.FLOAT}
    told = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in graph.initializer}
    assert told == {"w/float16_1": (10, [3]), "large": (1, [3]), "held/float16": (10, [3])}
