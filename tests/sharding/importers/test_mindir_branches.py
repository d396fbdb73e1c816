"""Branches of MindIR that give what ONNX's cannot, and such as give the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from sharding.importers import import_model
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File, Graph
from tests.sharding.importers.mindir_runs import open_axes, open_lengths, run

X = np.float32([1, -2, 3])
Side = Callable[[Graph], str]


def branches(then: Side, other: Side, *, item: int | None = None) -> File:
    """One of two graphs by a condition of the run; ``item``: of the tuple that they give."""
    file = File()
    main = file.graph("main", ("x", "float32", (3,)), ("c", "bool", ()))
    found = main.switch(main["c"], main.partial("then", main["x"]), main.partial("other", main["x"]))
    if item is not None:
        found = main.prim("TupleGetItem", found, main.const(item))
    main.gives(found)
    for name, side in (("then", then), ("other", other)):
        graph = file.graph(name, ("x", "float32", (3,)))
        graph.gives(side(graph))
    return file


def both(folder: Path, file: File) -> list[Any]:
    session = graphs.session(import_model(file.save(folder / "branches.mindir")))
    names = {item.name for item in session.get_inputs()}
    given: dict[str, Any] = {"x": X}
    feeds = [given | {"c": np.array(truth)} for truth in (True, False)]
    feeds = [{name: item for name, item in feed.items() if name in names} for feed in feeds]
    return [session.run(None, feed)[0].tolist() for feed in feeds]


def pair(*kinds: str) -> Side:
    return lambda graph: graph.prim("MakeTuple", *[graph.prim(kind, graph["x"]) for kind in kinds])


def same(graph: Graph) -> str:
    return graph["x"]


def test_tuples_of_branches(tmp_path: Path) -> None:
    turned = branches(pair("Neg", "Abs"), pair("Abs", "Neg"), item=1)
    assert both(tmp_path, turned) == [[1, 2, 3], [-1, 2, -3]]
    assert both(tmp_path, branches(same, lambda g: g.prim("Neg", g["x"]))) == [[1, -2, 3], [-1, 2, -3]]
    assert both(tmp_path, branches(same, same)) == [[1, -2, 3]] * 2
    numbers = branches(lambda g: g.const(2), lambda g: g.const(5))
    assert both(tmp_path, numbers) == [2, 5]


@pytest.mark.parametrize(
    ("then", "other", "why"),
    [
        (
            pair("Neg"),
            pair("Neg", "Abs"),
            "has branches that give tuples of 1 and 2",
        ),
        (same, lambda g: g.prim("Cast", g["x"], g.const(34)), "has branches that give float32 and int32"),
        (same, lambda g: g.const("text"), "has branches that give Value and str: ONNX needs two tensors"),
        (lambda g: g.const("a"), same, "has branches that give str and Value: ONNX needs two tensors"),
        (same, pair("Neg"), "has branches that give Value and tuple: ONNX needs two tensors"),
    ],
)
def test_branches_that_do_not_meet(then: Side, other: Side, why: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        import_model(branches(then, other).save(tmp_path / "branches.mindir"))
    assert why in str(caught.value)


def test_numbers_and_truths_in_one_type(tmp_path: Path) -> None:
    """A whole number beside truths is one of 64 bits; a fraction beside whole numbers is one of 32."""
    truths = np.array([True, False])
    for operands, dtype, wanted in (
        ((truths, 2), "int64", [3, 2]),
        ((2, truths), "int64", [3, 2]),
        ((truths, 0.5), "float32", [1.5, 0.5]),
        ((np.int32([1, 2]), 0.5), "float32", [1.5, 2.5]),
        ((np.int32([1, 2]), 2), "int32", [3, 4]),
        ((np.float16([1, 2]), 0.5), "float16", [1.5, 2.5]),
        ((np.int64([1, 2]), np.float16([0.5, 1])), "float16", [1.5, 3]),
        ((np.int32([1, 2]), np.int64([3, 4])), "int64", [4, 6]),
        ((np.float32([1, 2]), np.float64([3, 4])), "float64", [4, 6]),
    ):
        (found,) = run(tmp_path, "Add", *operands)
        assert found.dtype == dtype and found.tolist() == wanted, operands


TABLE = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


GIVEN = {"known": TABLE, "lengths": open_lengths(TABLE), "axes": open_axes(TABLE)}


@pytest.mark.parametrize("name", GIVEN)
def test_sums_along_axes(name: str, tmp_path: Path) -> None:
    given = GIVEN[name]
    for axes, keep in (
        ((), False),
        ((0,), False),
        ((-1,), True),
        ((0, 1), True),
        ((1, 0), False),
        (1, False),
    ):
        (found,) = run(tmp_path, "ReduceSum", given, axes, keep)
        chosen = None if axes == () else axes
        np.testing.assert_allclose(found, TABLE.sum(chosen, keepdims=keep))  # type: ignore[arg-type]


def test_axes_that_a_run_tells(tmp_path: Path) -> None:
    """Of any number of axes; else the shape of the result would not be known."""
    (found,) = run(tmp_path, "ReduceSum", GIVEN["axes"], np.array([1]), False)
    np.testing.assert_allclose(found, TABLE.sum(1))
    for name in ("known", "lengths"):
        with pytest.raises(ModelError, match="axis must be integers that are known before a run"):
            run(tmp_path, "ReduceSum", GIVEN[name], np.array([1]), False)


def test_sums_of_a_number(tmp_path: Path) -> None:
    for axes in ((), (0,), (-1,), 0):
        (found,) = run(tmp_path, "ReduceSum", np.float32(3), axes, False)
        assert found.shape == () and found == 3
    (found,) = run(tmp_path, "ReduceMean", np.float32(3), 0, True)
    assert found.shape == () and found == 3
