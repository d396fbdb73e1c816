"""Numbers and tuples of MindIR: the same answers whether they are known before a run or only in it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.importers import import_model
from sharding.importers.mindir.primitives import load
from sharding.importers.mindir.primitives.base import PRIMITIVES, RefusedError, Value
from sharding.importers.mindir.primitives.operands import Builder
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File

Array = np.ndarray[Any, Any]
load()


def in_a_run(folder: Path, kind: str, *operands: Any, **settings: Any) -> Any:
    """What a primitive gives: arrays are fed, tuples of them are tuples, all else stands in the file."""
    given: list[Array] = []
    file = File()
    for item in operands:
        given += [
            one for one in (item if isinstance(item, tuple) else (item,)) if isinstance(one, np.ndarray)
        ]
    graph = file.graph("main", *((f"x{i}", item.dtype.name, item.shape) for i, item in enumerate(given)))
    names = iter([graph[f"x{i}"] for i in range(len(given))])

    def put(item: Any) -> str:
        if isinstance(item, np.ndarray):
            return next(names)
        if isinstance(item, tuple) and any(isinstance(one, np.ndarray) for one in item):
            return graph.prim("MakeTuple", *[put(one) for one in item])
        return graph.const(item)

    graph.gives(graph.prim(kind, *[put(item) for item in operands], **settings))
    session = graphs.session(import_model(file.save(folder / "scalar.mindir")))
    found = session.run(None, {f"x{i}": item for i, item in enumerate(given)})
    return [np.asarray(item) for item in found] if len(found) > 1 else np.asarray(found[0])


def before(kind: str, *operands: Any, **settings: Any) -> Any:
    """What a primitive gives of what is known while converting."""
    return PRIMITIVES[kind].function(Builder(18), *operands, **settings)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "ScalarAdd": operator.add, "ScalarSub": operator.sub, "ScalarMul": operator.mul,
    "ScalarGt": operator.gt, "ScalarGe": operator.ge, "ScalarLt": operator.lt, "ScalarLe": operator.le,
    "ScalarEq": operator.eq, "ScalarNe": operator.ne, "ScalarMax": max, "ScalarMin": min,
    "ScalarPow": operator.pow, "ScalarDiv": operator.truediv, "ScalarMod": operator.mod,
    "ScalarFloordiv": operator.floordiv,
}  # fmt: skip
PAIRS = [(7, 2), (2, 7), (3, 3), (7.5, 2.0), (7.5, 2), (7, 2.5), (1.5, 1.5)]
SIGNED = [(-7, 2), (7, -2), (-7, -2), (-7.5, 2.0), (7.5, -2.0), (6, -2)]


def _as_fed(number: Any) -> Array:
    return np.asarray(number, np.float32 if isinstance(number, float) else np.int64)


@pytest.mark.parametrize("kind", BINARY)
def test_two_numbers(kind: str, tmp_path: Path) -> None:
    for x, y in [*PAIRS, *(SIGNED if kind != "ScalarPow" else [(-2, 3), (-1.5, 2)])]:
        wanted = BINARY[kind](x, y)
        known = before(kind, x, y)
        assert known == wanted and type(known) is type(wanted)
        for one, other in ((_as_fed(x), _as_fed(y)), (_as_fed(x), y), (x, _as_fed(y))):
            found = in_a_run(tmp_path, kind, one, other)
            assert found.reshape(-1).tolist() == [pytest.approx(wanted)], (one, other)
            if isinstance(x, int) and isinstance(y, int) and kind != "ScalarDiv":
                assert found.dtype.kind in "ib"


@pytest.mark.parametrize(
    ("kind", "x", "y", "why"),
    [
        ("ScalarPow", 2, 64, "beyond 64-bit"),
        ("ScalarPow", 2, 63, "beyond 64-bit"),
        ("ScalarPow", -8.0, 0.5, "no real number"),
        ("ScalarMul", 1 << 40, 1 << 23, "beyond 64-bit"),
        ("ScalarSub", -(1 << 62), 1, "beyond 64-bit"),
    ],
)
def test_numbers_that_there_are_not(kind: str, x: float, y: float, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        before(kind, x, y)


def test_the_largest_numbers_that_there_are() -> None:
    assert before("ScalarPow", 2, 62) == before("ScalarMul", 1 << 40, 1 << 22) == 1 << 62
    assert before("ScalarPow", 1, 1000) == 1 and before("ScalarPow", -1, 1001) == -1


@pytest.mark.parametrize("x", [True, False])
@pytest.mark.parametrize("y", [True, False])
def test_truths(x: bool, y: bool, tmp_path: Path) -> None:
    for kind, wanted in (("BoolAnd", x and y), ("BoolOr", x or y), ("BoolEq", x == y)):
        assert before(kind, x, y) is wanted
        assert before(kind, int(x) * 3, y) is wanted
        for one, other in (
            (np.array(x), np.array(y)), (np.array(x), y), (x, np.array(y)),
            (np.array(int(x) * 2), np.array(y)),
        ):  # fmt: skip
            assert in_a_run(tmp_path, kind, one, other).tolist() is wanted
    assert before("bool_not", x) is (not x)
    assert in_a_run(tmp_path, "bool_not", np.array(x)).tolist() is (not x)


def test_one_number(tmp_path: Path) -> None:
    assert before("ScalarUsub", 3) == -3 and before("ScalarUadd", 3) == 3
    assert in_a_run(tmp_path, "ScalarUsub", np.array(3)) == -3
    assert in_a_run(tmp_path, "ScalarUadd", np.array(3)) == 3
    assert in_a_run(tmp_path, "ScalarLog", np.array(2.5, np.float32)) == pytest.approx(math.log(2.5))
    assert in_a_run(tmp_path, "ScalarLog", np.array(3)) == pytest.approx(math.log(3))


@pytest.mark.parametrize(
    ("kind", "x", "dtype", "wanted"),
    [
        ("ScalarCast", 2.75, "int64", 2),
        ("ScalarCast", 2.75, "float32", 2.75),
        ("ScalarCast", 3, "float32", 3.0),
        ("ScalarCast", 3, "bool", True),
        ("ScalarCast", 0.0, "bool", False),
        ("ScalarBool", 2, None, True),
        ("ScalarBool", 0, None, False),
    ],
)
def test_numbers_of_another_type(kind: str, x: Any, dtype: str | None, wanted: Any, tmp_path: Path) -> None:
    more: dict[str, Any] = {} if dtype is None else {"dtype": np.dtype(dtype)}
    node: Any = type("Node", (), {"op_type": kind})
    found = PRIMITIVES[kind].function(Builder(18), node, x, **more)
    assert found == wanted and type(found) is type(wanted)


def test_a_number_keeps_its_type_where_none_is_named(tmp_path: Path) -> None:
    node: Any = type("Node", (), {"op_type": "TensorToScalar"})
    assert PRIMITIVES["TensorToScalar"].function(Builder(18), node, 2.5) == 2.5
    found = in_a_run(tmp_path, "TensorToScalar", np.array([7]))
    assert found.shape == () and found == 7
    assert in_a_run(tmp_path, "ScalarBool", np.array([7])).tolist() is True


@pytest.mark.parametrize(("kind", "wanted"), [("SequenceMax", 9), ("SequenceMin", -4)])
def test_extremes_of_tuples(kind: str, wanted: int, tmp_path: Path) -> None:
    node: Any = type("Node", (), {"op_type": kind})
    assert PRIMITIVES[kind].function(Builder(18), node, (3, -4, 9, 0)) == wanted
    found = in_a_run(tmp_path, kind, (np.array(3), -4, np.array(9)))
    assert found == wanted


def test_tuples_become_tensors(tmp_path: Path) -> None:
    b = Builder(18)
    convert = PRIMITIVES["TupleToTensor"].function
    for items, dtype, wanted in [
        ((1, 2), None, np.int64([1, 2])),
        ((1, 2.5), None, np.float32([1, 2.5])),
        ((1, 2.5), np.dtype(np.float16), np.float16([1, 2.5])),
        ((1, 2), np.dtype(np.float32), np.float32([1, 2])),
        ((), None, np.int64([])),
    ]:  # fmt: skip
        found = convert(b, items, dtype=dtype)
        assert isinstance(found, Value) and found.constant is not None
        assert found.constant.dtype == wanted.dtype and found.constant.tolist() == wanted.tolist()
    with pytest.raises(RefusedError, match="numbers that are known and such that are not"):
        convert(b, (1.5, Value("x", np.dtype(np.float32), ())))
    assert in_a_run(tmp_path, "TupleToTensor", (np.array(3), 4)).tolist() == [3, 4]


def test_tensors_become_tuples() -> None:
    b = Builder(18)
    convert = PRIMITIVES["TensorToTuple"].function
    assert convert(b, b.const([3, 4], np.int64)) == (3, 4)
    for length, several in ((2, True), (64, True), (65, False), (None, False)):
        found = convert(b, Value("x", np.dtype(np.int64), (length,)))
        assert isinstance(found, tuple) is several
        assert len(found) == length if several else found.sequence


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ((1, 3), (20, 30)),
        ((1, None), (20, 30, 40)),
        ((None, 2), (10, 20)),
        ((3, 0, -2), (40, 20)),
        ((0, 4, 3), (10, 40)),
    ],
)
def test_parts_of_tuples(bounds: tuple[Any, ...], wanted: tuple[int, ...]) -> None:
    assert before("SequenceSlice", (10, 20, 30, 40), *bounds) == wanted


def test_tuples() -> None:
    assert before("sequence_len", (1, 2, 3)) == 3
    assert before("SequenceAdd", (1, 2), (3,)) == (1, 2, 3)
    assert before("SequenceMul", (1, 2), 2) == (1, 2, 1, 2)
    for bounds in ((1,), (1, 2, 3, 4)):
        with pytest.raises(RefusedError, match=f"found {1 + len(bounds)} inputs"):
            before("SequenceSlice", (1, 2), *bounds)
    for other, same in (((1, 2), True), ((1, 3), False), ((1,), False), ((1, 2, 3), False)):
        assert before("tuple_equal", (1, 2), other) is same
    assert before("make_range", 4) == (0, 1, 2, 3) and before("make_range", 5, 1, -2) == (5, 3)


@pytest.mark.parametrize(
    ("x", "y", "same"),
    [
        (None, None, True),
        (None, 0, False),
        (True, True, True),
        (True, 1, False),
        ("a", "a", True),
        ("a", "b", False),
    ],
)
def test_whether_two_are_one(x: Any, y: Any, same: bool) -> None:
    for kind in ("is_", "is_not"):
        node: Any = type("Node", (), {"op_type": kind})
        function = PRIMITIVES[kind].function
        assert function(Builder(18), node, x, y) is (same if kind == "is_" else not same)
        tensor = Value("x", np.dtype(np.int64), ())
        assert function(Builder(18), node, x, tensor) is (kind == "is_not")
        with pytest.raises(RefusedError, match="whether two tensors are one"):
            function(Builder(18), node, tensor, (tensor,))
