"""Tuples of MindIR: known while converting, with items of a run, and as long as only a run tells. Python
answers."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from tests.sharding.importers.mindir_runs import File, Made, graphs, import_model, run

FLOAT32, INT32 = 43, 34  # of a file, MindSpore's own numbers


def value(found: Any) -> Any:
    """The tuple that a run gives: an output for each item, or one for all."""
    if len(found) == 1 and found[0].ndim == 1:
        return tuple(found[0].tolist())
    return tuple(item.item() for item in found)


def refusal(folder: Path, kind: str, *operands: Any) -> str:
    with pytest.raises(ModelError) as caught:
        run(folder, kind, *operands)
    return str(caught.value)


class Later:
    """A tuple that is a tensor of open length: its items only a run tells."""

    def __init__(self, *items: int) -> None:
        self.items = items


def of_later(folder: Path, kind: str, *operands: Any) -> list[Any]:
    """What a primitive gives; a `Later` is made of an input of open length."""
    file = File()
    given = [item for item in operands if isinstance(item, Later)]
    graph = file.graph("main", *((f"x{place}", "int64", (-1,)) for place in range(len(given))))
    names = iter(range(len(given)))
    taken = [
        graph.prim("TensorToTuple", graph[f"x{next(names)}"]) if isinstance(item, Later)
        else graph.const(item)
        for item in operands
    ]  # fmt: skip
    graph.gives(graph.prim(kind, *taken))
    session = graphs.session(import_model(file.save(folder / "later.mindir")))
    feeds = {f"x{place}": np.array(item.items, np.int64) for place, item in enumerate(given)}
    return [np.asarray(item) for item in session.run(None, feeds)]


def test_floats_in_a_tuple(tmp_path: Path) -> None:
    for dtype, wanted in ((None, np.float32), (FLOAT32, np.float32), (INT32, np.int32)):
        (found,) = run(tmp_path, "TupleToTensor", (1.5, 2.0), dtype)
        assert found.dtype == wanted and found.tolist() == np.array([1.5, 2], wanted).tolist()
    (found,) = run(tmp_path, "TupleToTensor", (1, 2.5))
    assert found.tolist() == [1, 2.5]


def test_lengths(tmp_path: Path) -> None:
    for kind in ("sequence_len", "tuple_len"):
        assert run(tmp_path, kind, (1, 2, 3))[0] == 3
        assert of_later(tmp_path, kind, Later(4, 5))[0] == 2
        assert of_later(tmp_path, kind, Later())[0] == 0


def test_joined(tmp_path: Path) -> None:
    assert value(run(tmp_path, "SequenceAdd", (1, 2), (3,))) == (1, 2, 3)
    assert value(run(tmp_path, "SequenceAdd", (1, np.array(2)), (3,))) == (1, 2, 3)
    assert value(of_later(tmp_path, "SequenceAdd", (1, 2), Later(3))) == (1, 2, 3)
    assert value(of_later(tmp_path, "SequenceAdd", Later(3), (1, 2))) == (3, 1, 2)
    assert value(of_later(tmp_path, "SequenceAdd", Later(3), Later())) == (3,)


@pytest.mark.parametrize("times", [-1, 0, 1, 3])
def test_again_and_again(times: int, tmp_path: Path) -> None:
    if times > 0:
        assert value(run(tmp_path, "SequenceMul", (1, 2), times)) == (1, 2) * times
    assert value(run(tmp_path, "SequenceMul", (1, 2), np.array(times))) == (1, 2) * times
    assert value(of_later(tmp_path, "SequenceMul", Later(1, 2), times)) == (1, 2) * times


def test_as_often_as_a_small_file_can_ask_for(tmp_path: Path) -> None:
    """The importer made it: of 10**10 items it ran out of memory."""
    assert "a tuple of 20000000000 items is too long" in refusal(tmp_path, "SequenceMul", (1, 2), 10**10)
    assert "a tuple of 65538 items is too long" in refusal(tmp_path, "SequenceMul", (1, 2), 32769)
    (found,) = run(tmp_path, "sequence_len", Made("SequenceMul", (1, 2), 32768))
    assert found == 65536


@pytest.mark.parametrize("kind", ["SequenceSlice", "tuple_slice"])
def test_parts(kind: str, tmp_path: Path) -> None:
    items = (10, 11, 12, 13, 14)
    for start, stop, step in product((None, 0, 1, -2), (None, 4, -1, 9), (None, 1, 2)):
        wanted = items[start:stop:step]
        if wanted:
            assert value(run(tmp_path, kind, items, start, stop, step)) == wanted
    for start, stop, step in ((None, None, None), (1, 4, 2), (-2, None, 1), (0, -1, None), (3, 2, 1)):
        assert value(of_later(tmp_path, kind, Later(*items), start, stop, step)) == items[start:stop:step]
    for start in (1, -2):
        assert value(run(tmp_path, kind, items, np.array(start), 5)) == items[start:5]
    assert value(run(tmp_path, kind, items, 1, np.array(3))) == items[1:3]
    assert value(run(tmp_path, kind, items, 1, 3)) == items[1:3]
    for bounds in ((), (1,), (1, 2, 3, 4)):
        why = f"expected a tuple and where its part begins and ends, found {1 + len(bounds)} inputs"
        assert why in refusal(tmp_path, kind, items, *bounds)


@pytest.mark.parametrize("kind", ["tuple_equal", "list_equal", "TupleEqual"])
def test_whether_tuples_are_the_same(kind: str, tmp_path: Path) -> None:
    for x, y in (
        ((1, 2), (1, 2)), ((1, 2), (1, 3)), ((1, 2), (1, 2, 3)), ((1, 2, 3), (1, 2)), ((2, 1), (1, 2)),
    ):  # fmt: skip
        (known,) = run(tmp_path, kind, x, y)
        assert known.dtype == bool and known == (x == y)
        for one, other in ((Later(*x), Later(*y)), (x, Later(*y)), (Later(*x), y)):
            (found,) = of_later(tmp_path, kind, one, other)
            assert found.dtype == bool and found.shape == () and found == (x == y), (x, y)
        items = tuple(np.array(item) for item in x), tuple(np.array(item) for item in y)
        for one, other in (items, (x, items[1]), (items[0], y)):
            (found,) = run(tmp_path, kind, one, other)
            assert found.dtype == bool and found.shape == () and found == (x == y), (x, y)
    assert not run(tmp_path, kind, (1, np.array(5)), (2, np.array(5)))[0]
    assert not of_later(tmp_path, kind, Later(), Later(1))[0]
    assert of_later(tmp_path, kind, Later(), Later())[0]


def test_one_item_of_a_run_is_itself(tmp_path: Path) -> None:
    """The same input in both tuples: nothing is left for the run to compare."""
    file = File()
    graph = file.graph("main", ("x", "int64", ()))
    pairs = [graph.prim("MakeTuple", graph["x"], graph.const(2)) for _ in range(2)]
    graph.gives(graph.prim("tuple_equal", *pairs))
    model = import_model(file.save(tmp_path / "same.mindir"))
    assert not [node for node in model.graph.node if node.op_type == "Equal"]
    assert graphs.session(model).run(None, {"x": np.array(7)})[0]


def test_whether_it_is_in_a_tuple(tmp_path: Path) -> None:
    kind = "InSequence"
    for x, items, wanted in (
        (2, (1, 2), True), (3, (1, 2), False), (2, (1, np.array(2)), True), (1, (1, np.array(2)), True),
        (3, (1, np.array(2)), False), (np.array(2), (1, 2), True), (np.array(3), (1, 2), False),
        (np.array(1), (1, 2), True), (2, (np.array(1), np.array(2), np.array(5)), True),
        (5, (np.array(1), np.array(2), np.array(5)), True), (1, (np.array(1), np.array(2)), True),
        (6, (np.array(1), np.array(2), np.array(5)), False),
    ):  # fmt: skip
        (found,) = run(tmp_path, kind, x, items)
        assert found.dtype == bool and found == wanted, (x, items)
    for x, wanted in ((5, True), (4, False)):
        (found,) = of_later(tmp_path, kind, x, Later(3, 5, 5))
        assert found.dtype == bool and found == wanted
    assert "expected a sequence of numbers or texts" in refusal(tmp_path, kind, 2, 2)
