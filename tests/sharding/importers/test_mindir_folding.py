"""What is computed while a MindIR file is converted, and how operands are told from settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.importers import import_model
from sharding.importers.mindir.folding import FOLDED, is_small, may_fold
from sharding.importers.mindir.onnx_types import described
from sharding.importers.mindir.primitives.base import Primitive, Value, arguments
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File

Array = np.ndarray[Any, Any]
FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.zeros(FOLDED, np.int64), True),
        (np.zeros(FOLDED + 1, np.int64), False),
        (np.zeros(2, np.uint8), True),
        (np.zeros(2, bool), True),
        (np.zeros(2, np.float32), False),
        (np.zeros(1, np.float32), True),
        (np.zeros((), np.float16), True),
        (np.zeros((0, 3), np.float32), True),
        (np.zeros(1, np.complex64), False),
    ],
)
def test_weights_keep_their_names(array: Array, wanted: bool) -> None:
    """Whole numbers are of shapes, if they are few; one number of any kind is no weight."""
    assert may_fold(array) is wanted


def _of(shape: tuple[int | None, ...] | None, constant: Array | None = None) -> Value:
    return Value("v", INT if constant is None else constant.dtype, shape, constant)


KNOWN = _of((2,), np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("kind", "values", "results", "wanted"),
    [
        ("Add", [KNOWN, KNOWN], [_of((2,))], True),
        ("Slice", [KNOWN, None, KNOWN], [_of((2,))], True),
        ("Add", [KNOWN, _of((2,))], [_of((2,))], False),
        ("Add", [KNOWN, _of((2,), np.zeros(2, np.float32))], [_of((2,))], False),
        ("MatMul", [KNOWN, KNOWN], [_of(())], False),
        ("Range", [KNOWN], [_of(None)], False),
        ("Range", [KNOWN], [_of((None,))], False),
        ("Range", [KNOWN], [_of((3, None))], False),
        ("Expand", [KNOWN], [_of((FOLDED // 64, 64))], True),
        ("Expand", [KNOWN], [_of((FOLDED // 64, 65))], False),
        ("Expand", [KNOWN], [_of((2,)), _of((FOLDED + 1,))], False),
        ("Expand", [KNOWN], [_of((2,)), _of((0, FOLDED + 1))], True),
    ],
)
def test_small_work_on_constants(
    kind: str, values: list[Value | None], results: list[Value], wanted: bool
) -> None:
    assert is_small(kind, values, results) is wanted


@pytest.mark.parametrize(
    ("shape", "wanted"), [(None, "int64[?]"), ((), "int64[]"), ((2, None, 3), "int64[2,?,3]")]
)
def test_types_as_errors_show_them(shape: tuple[int | None, ...] | None, wanted: str) -> None:
    assert described(_of(shape)) == wanted


def test_settings_follow_the_last_operand_that_holds_a_tensor() -> None:
    """Of any number of operands; one of several tensors may hold numbers too."""
    known = Primitive("Any", lambda: None, "", False, None, 0, ("axis", "mode"))
    x, mixed = _of((2,)), (1, _of((2,)))
    for operands, tensors in [
        ([x, mixed, 3], 2), ([x, mixed], 2), ([x, (1, 2), 3], 1), ([x, ((1,), mixed)], 2), ([7, 8], 1),
        ([7, 8, 9], 1), ([7, 8, 9, 10], 2),
    ]:  # fmt: skip
        positional, settings = arguments(known, operands, {"mode": "given", "more": 1})
        assert positional == operands[:tensors]
        rest = operands[tensors:]
        assert settings == {"mode": "given"} | dict(zip(("axis", "mode"), rest, strict=False))


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ALL = (0, 99)


@pytest.mark.parametrize(
    ("bounds", "masks", "wanted"),
    [
        ([ALL, ALL, ALL], {"new_axis_mask": 0b011}, X[None, None]),
        ([ALL, ALL, ALL], {"new_axis_mask": 0b101}, X[None, :, None]),
        ([(1, 2), ALL, (1, 3)], {"shrink_axis_mask": 1, "new_axis_mask": 2}, X[1, None, 1:3]),
        ([ALL, (1, 2), ALL], {"shrink_axis_mask": 2, "new_axis_mask": 4}, X[:, 1, None]),
        (
            [ALL, (1, 2), ALL],
            {"ellipsis_mask": 1, "shrink_axis_mask": 2, "new_axis_mask": 4},
            X[..., 1, None],
        ),
        ([(1, 2), (0, 1), (2, 3)], {"ellipsis_mask": 2, "shrink_axis_mask": 5}, X[1, ..., 2]),
        ([(1, 1), (2, 2)], {"begin_mask": 1, "end_mask": 2}, X[:1, 2:]),
        ([(1, 2)], {}, X[1:2]),
    ],
)
def test_python_slices(
    bounds: list[tuple[int, int]], masks: dict[str, int], wanted: Array, tmp_path: Path
) -> None:
    file = File()
    graph = file.graph("main", ("x", "float32", X.shape))
    starts, ends = zip(*bounds, strict=True)
    operands = [graph.const(item) for item in (starts, ends, (1,) * len(bounds))]
    graph.gives(graph.prim("StridedSlice", graph["x"], *operands, **masks))
    session = graphs.session(import_model(file.save(tmp_path / "slice.mindir")))
    (found,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(np.asarray(found), wanted)
    assert np.asarray(found).shape == wanted.shape


@pytest.mark.parametrize("count", [1, 2, 3])
def test_outputs_are_numbered_where_there_are_several(count: int, tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", "float32", (2,)))
    found = [graph.prim("Neg", graph["x"]) for _ in range(count)]
    graph.gives(found[0] if count == 1 else graph.prim("MakeTuple", *found))
    model = import_model(file.save(tmp_path / "outputs.mindir"))
    names = [item.name for item in model.graph.output]
    assert names == (["output"] if count == 1 else [f"output_{number}" for number in range(count)])


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("known", [True, False])
def test_moments_of_each_instance_and_channel(shape: tuple[int, ...], known: bool, tmp_path: Path) -> None:
    """Also where the file does not say how many axes there are."""
    x = np.random.default_rng(2).normal(1, 2, shape).astype(np.float32)
    ones = np.ones(3, np.float32)
    file = File()
    graph = file.graph("main", ("x", "float32", shape if known else (-2,)))
    operands = [graph.weight("gamma", ones * 2), graph.weight("beta", ones)]
    made = graph.prim("InstanceNorm", graph["x"], *operands, epsilon=1e-5)
    items = [graph.prim("TupleGetItem", made, graph.const(place)) for place in range(3)]
    graph.gives(graph.prim("MakeTuple", *items))
    session = graphs.session(import_model(file.save(tmp_path / "norm.mindir")))
    found, mean, variance = (np.asarray(item) for item in session.run(None, {"x": x}))
    axes = tuple(range(2, x.ndim))
    np.testing.assert_allclose(mean, x.mean(axes).reshape(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, x.var(axes).reshape(-1), rtol=1e-4, atol=1e-5)
    wanted = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5) * 2 + 1
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
