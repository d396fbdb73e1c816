"""Primitives of MindIR that move elements: inputs of known, of open, and of any number of axes alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from sharding.importers import import_model
from sharding.importers.mindir.primitives import load
from sharding.importers.mindir.primitives.base import PRIMITIVES, RefusedError, Value
from sharding.importers.mindir.primitives.operands import Builder
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File

Array = np.ndarray[Any, Any]
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
FORMS = ("known", "open", "any")
"""What the file says of the inputs' shapes."""
load()


def run(
    folder: Path, kind: str, *operands: Any, form: str = "known", types: Any = (), **settings: Any
) -> Any:
    """What a primitive gives of arrays, which are fed, and of values that the file holds."""
    fed = [item for item in operands if isinstance(item, np.ndarray)]
    file = File()
    dims = {
        "known": lambda item: item.shape, "open": lambda item: (-1,) * item.ndim, "any": lambda item: (-2,)
    }[form]  # fmt: skip
    graph = file.graph("main", *((f"x{i}", item.dtype.name, dims(item)) for i, item in enumerate(fed)))
    names = iter([graph[f"x{i}"] for i in range(len(fed))])
    given = [next(names) if isinstance(item, np.ndarray) else graph.const(item) for item in operands]
    found = graph.prim(kind, *given, types=types, **settings)
    if len(types) > 1:
        items = [graph.prim("TupleGetItem", found, graph.const(place)) for place in range(len(types))]
        found = graph.prim("MakeTuple", *items)
    graph.gives(found)
    session = graphs.session(import_model(file.save(folder / "axes.mindir")))
    made = session.run(None, {f"x{i}": item for i, item in enumerate(fed)})
    return [np.asarray(item) for item in made] if len(types) > 1 else np.asarray(made[0])


def same(found: Array, wanted: Array) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (-1, 0), (1, -2), (-3, -1)])
def test_two_axes_change_places(axes: tuple[int, int], form: str, tmp_path: Path) -> None:
    same(run(tmp_path, "TransposeExtView", X, *axes, form=form), X.swapaxes(*axes))


@pytest.mark.parametrize("form", FORMS)
def test_axes_in_another_order(form: str, tmp_path: Path) -> None:
    same(run(tmp_path, "TExt", X, form=form), X.T)
    same(run(tmp_path, "Transpose", X, (2, 0, 1), form=form), X.transpose(2, 0, 1))
    if form != "any":
        same(run(tmp_path, "Transpose", X, (2, 0, -2), form=form), X.transpose(2, 0, 1))


@pytest.mark.parametrize("perm", [(0, 0, 1), (0, 1, 1)])
def test_what_is_no_order_of_axes(perm: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no order of axes"):
        run(tmp_path, "Transpose", X, perm)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_new_axis(axis: int, form: str, tmp_path: Path) -> None:
    same(run(tmp_path, "ExpandDims", X, axis, form=form), np.expand_dims(X, axis))
    if form == "known":
        same(run(tmp_path, "ExpandDims", X, np.array(axis)), np.expand_dims(X, axis))


@pytest.mark.parametrize(
    ("shape", "axis", "wanted"),
    [
        ((2, 1, 3, 1), (), (2, 3)),
        ((2, 1, 3, 1), (1,), (2, 3, 1)),
        ((2, 1, 3, 1), (-1,), (2, 1, 3)),
        ((1, 1), (), ()),
    ],
)
@pytest.mark.parametrize("form", ["known", "any"])
def test_axes_of_one_place_go(
    shape: tuple[int, ...], axis: tuple[int, ...], wanted: tuple[int, ...], form: str, tmp_path: Path
) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if axis and form == "any":
        return
    same(run(tmp_path, "Squeeze", x, form=form, axis=axis), x.reshape(wanted))


def test_axes_of_one_place_where_the_file_says_what_is_left(tmp_path: Path) -> None:
    """Of [open, 1, 3], by the number of axes of the result, for a length that is not known may be 1."""
    b, squeeze = Builder(18), PRIMITIVES["Squeeze"].function
    x = Value("x", np.dtype(np.float32), (None, 1, 3))
    node: Any = type("Node", (), {"attributes": {}, "result": Value("y", x.dtype, (None, 3))})
    found = squeeze(b, node, x)
    assert found.shape == (None, 3)
    node.result = Value("y", x.dtype, (3,))
    with pytest.raises(RefusedError, match="it is not known whether their length is 1"):
        squeeze(b, node, x)


@pytest.mark.parametrize(
    ("shifts", "dims"),
    [
        ((1,), None),
        ((-5,), None),
        ((25,), None),
        ((-49,), None),
        ((24,), None),
        ((1,), (0,)),
        ((2, -1), (1, 2)),
        ((4,), (-1,)),
        ((5, -7), (1, 0)),
    ],
)
@pytest.mark.parametrize("form", ["known", "open"])
def test_places_around_the_end(shifts: tuple[int, ...], dims: Any, form: str, tmp_path: Path) -> None:
    """Also farther than there are places, and where there are none."""
    more = {} if dims is None else {"dims": dims}
    wanted = np.roll(X, shifts if dims is not None else shifts[0], dims)
    same(run(tmp_path, "Roll", X, form=form, shifts=shifts, **more), wanted)
    none = X[:0] if dims is None else X[:, :, :0]
    same(run(tmp_path, "Roll", none, form=form, shifts=shifts, **more), none)


@pytest.mark.parametrize("shape", [(1, 8, 2, 3), (4, 2, 3), (2, 2, 12, 1, 2)])
@pytest.mark.parametrize("form", ["known", "open"])
def test_channels_become_places(shape: tuple[int, ...], form: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    wanted = torch.nn.functional.pixel_shuffle(torch.from_numpy(x), 2).numpy()
    same(run(tmp_path, "PixelShuffle", x, form=form, upscale_factor=2), wanted)


def _index(folder: Path, *indices: Array) -> Any:
    file = File()
    given = [X, *indices]
    graph = file.graph("main", *((f"x{i}", item.dtype.name, item.shape) for i, item in enumerate(given)))
    chosen = graph.prim("MakeTuple", *[graph[f"x{i}"] for i in range(1, len(given))])
    graph.gives(graph.prim("Index", graph["x0"], chosen))
    session = graphs.session(import_model(file.save(folder / "index.mindir")))
    return np.asarray(session.run(None, {f"x{i}": item for i, item in enumerate(given)})[0])


@pytest.mark.parametrize(
    "indices",
    [
        [np.array([1, 0, 1])],
        [np.array([[1], [0]]), np.array([2, 0, 1])],
        [np.array([1, -1]), np.array([[-1], [0], [1]]), np.array([3, -4])],
        [np.array([True, False])],
        [np.arange(6).reshape(2, 3) % 2 == 0],
        [np.array(1), np.array([True, False, True])],
        [np.array([0, 1, 1], np.int32), np.array([2, 1, 0])],
    ],
)
def test_elements_by_tensors_of_places(indices: list[Array], tmp_path: Path) -> None:
    """One for each of the first axes; a mask stands for as many as it has."""
    same(_index(tmp_path, *indices), X[tuple(indices)])


@pytest.mark.parametrize("order", [(2, 0, 1), (0,), (3, 2, 1, 0)])
def test_the_order_that_undoes_another(order: tuple[int, ...]) -> None:
    b = Builder(18)
    wanted = tuple(np.argsort(order).tolist())
    invert = PRIMITIVES["InvertPermutation"].function
    assert invert(b, order) == wanted
    found = invert(b, b.const(list(order), np.int64))
    assert tuple(found.constant.tolist()) == wanted
    with pytest.raises(RefusedError, match="is no order"):
        invert(b, (*order, order[0]))


@pytest.mark.parametrize("right", [False, True])
def test_places_in_an_unsorted_line(right: bool, tmp_path: Path) -> None:
    line = np.float32([[5, 1, 3, 1], [2, 8, 4, 6]])
    sorter = np.argsort(line, axis=-1, kind="stable")
    wanted_of = np.float32([[1, 4, 9], [2, 5, 0]])
    wanted = np.stack([
        np.searchsorted(row[order], values, "right" if right else "left")
        for row, order, values in zip(line, sorter, wanted_of, strict=True)
    ])  # fmt: skip
    found = run(tmp_path, "SearchSorted", line, wanted_of, sorter, right=right, types=(("int64", (2, 3)),))
    same(found, wanted)


@pytest.mark.parametrize("kind", ["SortExt", "Kthvalue", "MedianDim"])
def test_what_is_in_order_of_one_number(kind: str, tmp_path: Path) -> None:
    one, more = np.array(2.5, np.float32), {"k": 1} if kind == "Kthvalue" else {}
    types = (("float32", ()), ("int64", ()))
    values, places = run(tmp_path, kind, one, types=types, **more)
    assert (values.shape, values.tolist(), places.shape, places.tolist()) == ((), 2.5, (), 0)
