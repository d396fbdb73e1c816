"""Places of indices, and what is changed in place, of MindIR: the forms that networks seldom have. Numpy
answers."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from sharding.importers.mindir.primitives.indexing import END
from sharding.importers.mindir.primitives.tuple_index import ELLIPSIS, NONE, SLICE, TENSOR
from tests.sharding.importers.mindir_runs import Declared, open_axes, open_lengths, run

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ROW = np.arange(6, dtype=np.float32)


def numbers(found: list[Any]) -> tuple[int, ...]:
    return tuple(int(np.asarray(item).reshape(())) for item in found)


@pytest.mark.parametrize("missing", list(product((0, 1), repeat=3)))
def test_bounds_that_are_left_out(missing: tuple[int, int, int], tmp_path: Path) -> None:
    for start, stop, step in ((1, 5, 2), (4, 1, -1), (-2, -5, -1)):
        found = numbers(run(tmp_path, "NormalizeSlice", ROW, start, stop, step, init_by_none=missing))
        given = [None if out else item for out, item in zip(missing, (start, stop, step), strict=True)]
        assert ROW[slice(*found)].tolist() == ROW[slice(*given)].tolist()
        if not missing[0]:
            assert found[0] == start
        if not missing[1]:
            assert found[1] == stop
        assert found[2] == (1 if missing[2] else step)
        if missing[0]:
            assert found[0] == (-1 if found[2] < 0 else 0)
        if missing[1]:
            assert found[1] == (-END if found[2] < 0 else END)


@pytest.mark.parametrize("given", [ROW, open_lengths(ROW)], ids=["known", "open"])
def test_places_of_a_slice(given: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tuple_index_types": (SLICE,), "tuple_index_axis": 0}
    for missing, bounds in (
        ((0, 0, 0), (1, 5, 2)), ((0, 0, 0), (-4, -1, 1)), ((0, 0, 0), (-9, 9, 1)), ((1, 0, 0), (0, 4, 1)),
        ((0, 1, 0), (2, 0, 3)), ((1, 1, 1), (0, 0, 0)), ((1, 1, 0), (0, 0, -1)), ((0, 1, 0), (3, 0, -2)),
        ((1, 0, 0), (0, 2, -1)), ((0, 0, 0), (6, 6, 1)), ((0, 0, 0), (0, 6, 1)),
        ((0, 1, 0), (9, 0, -1)), ((0, 0, 0), (9, -9, -1)), ((0, 0, 0), (5, -9, -2)), ((0, 0, 0), (0, -7, -1)),
        ((0, 0, 0), (6, 1, -1)), ((1, 0, 0), (0, -6, -1)), ((0, 0, 0), (-9, -9, -1)), ((0, 0, 0), (3, 0, -1)),
    ):  # fmt: skip
        wanted = [None if out else item for out, item in zip(missing, bounds, strict=True)]
        in_a_run = [np.array(item) for item in bounds[:2]]
        for first, last in (bounds[:2], in_a_run):
            found = run(
                tmp_path, "SliceToIndices", given, first, last, bounds[2], init_by_none=missing, **settings
            )
            assert found[0].tolist() == np.arange(6)[slice(*wanted)].tolist(), (missing, bounds)


@pytest.mark.parametrize(
    ("kinds", "place", "count", "wanted"),
    [
        ((NONE, SLICE), 0, 1, 0), ((SLICE, NONE), 1, 1, 1), ((ELLIPSIS, NONE), 1, 1, 3),
        ((ELLIPSIS, NONE, SLICE), 1, 1, 2), ((NONE, ELLIPSIS, NONE), 2, 2, 4),
        ((NONE, ELLIPSIS, NONE), 0, 2, 0),
    ],
)  # fmt: skip
def test_where_a_new_axis_goes(
    kinds: tuple[int, ...], place: int, count: int, wanted: int, tmp_path: Path
) -> None:
    settings = {"tuple_index_types": kinds, "tuple_index_axis": place, "expand_dims_cnt": count}
    assert numbers(run(tmp_path, "NormalizeDimIndex", X, **settings)) == (wanted,)
    (found,) = numbers(run(tmp_path, "NormalizeDimIndex", open_axes(X), **settings))
    assert found % (X.ndim + count) == wanted
    if count > 1:
        assert found == wanted


def entry(folder: Path, x: Any, index: Any, kind: str, place: int = 0, kinds: Any = None) -> list[int]:
    settings = {"origin_index_type": kind, "tuple_index_axis": place}
    settings["tuple_index_types"] = kinds or (SLICE,) * place + (TENSOR,)
    (found,) = run(folder, "NormalizeTupleIndex", x, index, **settings)
    return found.reshape(-1).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("given", [X, open_lengths(X)], ids=["known", "open"])
def test_entries_of_an_index(given: Any, tmp_path: Path) -> None:
    assert entry(tmp_path, given, -1, "int_index", 1) == [2]
    assert entry(tmp_path, given, 1, "int_index", 1) == [1]
    assert entry(tmp_path, given, np.array(-2), "int_index", 2) == [2]
    assert entry(tmp_path, given, (0, -1), "tensor_index_sequence_index", 1) == [0, 2]
    assert entry(tmp_path, given, (1, 0, 1, 1), "bool_sequence_index", 2) == [0, 2, 3]
    assert entry(tmp_path, given, None, "none_index", 1) == [0, 1, 2]
    for place, wanted in ((0, [0, 1, 2]), (1, [0, 1, 2, 3]), (2, [1])):
        kinds = (SLICE, ELLIPSIS)
        assert entry(tmp_path, given, 0, "ellipsis_index", place, kinds) == wanted
    with pytest.raises(ModelError, match="an entry of the kind 'float_index' has no conversion"):
        entry(tmp_path, given, 0, "float_index")


@pytest.mark.parametrize("given", [X, open_lengths(X)], ids=["known", "open"])
def test_what_is_changed_in_place(given: Any, tmp_path: Path) -> None:
    def changed(kind: str, *more: Any) -> Any:
        (found,) = run(tmp_path, kind, given, *more)
        return found

    np.testing.assert_array_equal(changed("InplaceZero"), np.zeros_like(X))
    np.testing.assert_array_equal(changed("InplaceFillScalar", 2.5), np.full_like(X, 2.5))
    np.testing.assert_array_equal(changed("InplaceFillTensor", np.float32(7)), np.full_like(X, 7))
    np.testing.assert_array_equal(changed("Assign", X + 1), X + 1)
    np.testing.assert_array_equal(
        changed("InplaceCopy", X[0, :1] + 1), np.broadcast_to(X[0, :1] + 1, X.shape)
    )
    whole = X.copy()
    whole[[1]] = 9
    rows = np.full((1, 3, 4), 9, np.int32)
    np.testing.assert_array_equal(changed("ScatterUpdate", np.array([1]), rows), whole)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="value must be a number that is known before a run"):
        run(tmp_path, "InplaceFillScalar", X, "text")
    with pytest.raises(ModelError, match="it changes what is no tensor"):
        run(tmp_path, "InplaceZero", 5)
    with pytest.raises(ModelError, match="begin, end and strides must have the same length"):
        run(tmp_path, "TensorCopySlices", X, X, (0, 0), (1,), (1, 1))
    with pytest.raises(ModelError, match="it does not say what the entries of its index are"):
        run(tmp_path, "NormalizeDimIndex", X, tuple_index_types=1.5)


@pytest.mark.parametrize(
    "bounds", [((0,), (1,), (1,)), ((1, 0), (2, 3), (1, 2)), ((0, 1, 1), (2, 3, 4), (1, 1, 2))]
)
def test_a_part_that_is_another(bounds: Any, tmp_path: Path) -> None:
    places = tuple(slice(*item) for item in zip(*bounds, strict=True))
    wanted = X.copy()
    wanted[places] = -X[places]
    for given in (X, Declared(X, (-1, 3, 4))):
        (found,) = run(tmp_path, "TensorCopySlices", given, -X[places], *bounds)
        np.testing.assert_array_equal(found, wanted)
