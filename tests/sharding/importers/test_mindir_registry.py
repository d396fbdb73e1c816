"""How conversions of MindIR's primitives are registered: what the registry reads from a function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from sharding.importers import import_model
from sharding.importers.mindir.primitives import load
from sharding.importers.mindir.primitives.base import PRIMITIVES, Node, arguments, primitive, table
from tests.sharding.importers.mindir_files import File


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    load()
    before = dict(PRIMITIVES)
    yield
    PRIMITIVES.clear()
    PRIMITIVES.update(before)


def test_a_row_of_a_table_is_the_first_argument() -> None:
    @table({"OneTest": 1, ("TwoTest", "TwoMoreTest"): 2})
    def convert(row: int, b: object, x: int, *, scale: int = 1) -> int:
        return row * x * scale

    found = [PRIMITIVES[name] for name in ("OneTest", "TwoTest", "TwoMoreTest")]
    assert [item.convert(None, Node("", ""), 3, scale=5) for item in found] == [15, 30, 30]
    assert {(item.operands, item.needed, item.settings) for item in found} == {(1, 1, ("scale",))}


def test_settings_are_the_keyword_only_parameters_in_order() -> None:
    @primitive("SettingsTest")
    def convert(b: object, node: Node, x: Any, bias: Any = None, *, stride: int = 1, pad: int = 0) -> str:
        return f"{node.op_type} {x} {bias} {stride} {pad}"

    known = PRIMITIVES["SettingsTest"]
    assert (known.operands, known.needed, known.settings) == (2, 1, ("stride", "pad"))
    positional, settings = arguments(known, [7, None, 2], {"pad": 4})  # an input, then an attribute
    assert known.convert(None, Node("SettingsTest", ""), *positional, **settings) == "SettingsTest 7 None 2 4"


def test_a_name_is_registered_once() -> None:
    primitive("TwiceTest")(lambda b, x: x)
    with pytest.raises(TypeError, match="the primitive TwiceTest is registered twice"):
        table({"TwiceTest": 0})(lambda row, b, x: x)


def test_a_default_axis_is_counted_from_the_front() -> None:
    """It is not made so, as one that a file gives."""
    axes = {
        (name, item.name): item.default
        for name, known in PRIMITIVES.items()
        for item in inspect.signature(known.function).parameters.values()
        if item.annotation == "Axis" and item.default is not item.empty
    }
    assert len(axes) > 10 and all(default >= 0 for default in axes.values()), axes


@pytest.mark.parametrize(
    ("shape", "given", "attributes", "wanted"),
    [
        ((), (0, -1), {}, (1,)),
        ((), (), {}, (1,)),
        ((2, 3, 4), (), {}, (24,)),
        ((2, 3, 4), (), {"start_dim": 1}, (2, 12)),
        ((2, 3, 4), (-2,), {}, (2, 12)),
        ((2, 3, 4), (0, -2), {}, (6, 4)),
        ((2, 3, 4), (-1,), {}, (2, 3, 4)),
    ],
)
def test_axes_are_flattened_as_numpy_reshapes(
    shape: tuple[int, ...],
    given: tuple[int, ...],
    attributes: dict[str, int],
    wanted: tuple[int, ...],
    tmp_path: Path,
) -> None:
    file = File()
    graph = file.graph("main", ("x", "float32", shape))
    axes = [graph.const(axis) for axis in given]
    graph.gives(graph.prim("FlattenExt", graph["x"], *axes, types=(("float32", wanted),), **attributes))
    model = import_model(file.save(tmp_path / "flat.mindir"))
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_array_equal(found, x.reshape(wanted), strict=True)


@pytest.mark.parametrize("given", [{}, {"k": 2}])
def test_the_smallest_where_a_file_does_not_say_which(given: dict[str, int], tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", "float32", (2, 3)))
    graph.gives(graph.prim("Kthvalue", graph["x"], types=(("float32", [2]), ("int64", [2])), **given))
    session = onnxruntime.InferenceSession(
        import_model(file.save(tmp_path / "least.mindir")).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    x = np.array([[3, 1, 2], [0, 5, 4]], np.float32)
    found = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_array_equal(found[0], np.sort(x)[:, given.get("k", 1) - 1])
