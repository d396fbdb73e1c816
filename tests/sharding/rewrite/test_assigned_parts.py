"""What is assigned to a part of pieces that were joined: the other pieces stay as they are, and where it
begins or ends within one, what is left of it is cut out. ONNX Runtime runs both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sharding.rewrite.simplify import simplify
from tests.sharding import graphs

PIECES = (2, 3, 1)
FEEDS = {f"p{place}": graphs.array(*shape) for place, shape in enumerate([(4, n) for n in PIECES])} | {
    f"r{place}": graphs.array(n, 4, seed=1) for place, n in enumerate(PIECES)
}


def _simplified(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    found = ir.serde.deserialize_model(model)
    simplify(found.graph, 18)
    names = [node.op_type for node in found.graph]
    return ir.serde.serialize_model(found), names


def _model(
    axis: int,
    start: int,
    count: int,
    *,
    join: str = "",
    rows: str = "rows",
    more: str = "",
    length: str = "6",
) -> onnx.ModelProto:
    along = axis % 2
    shape = [4, 6] if along else [6, 4]
    part = [4, count] if along else [count, 4]
    name = "p" if along else "r"
    declared = ", ".join(
        f"float[4, {n}] p{i}" if along else f"float[{n}, 4] r{i}" for i, n in enumerate(PIECES)
    )
    sizes, grid = ", ".join(map(str, shape)), ", ".join(map(str, part))
    join = join or f"Concat<axis = {axis}>({name}0, {name}1, {name}2)"
    text = f"""g ({declared}, float[{grid}] v) => (float[{sizes}] y)
    <float[{sizes}] x, int64[{grid}] e0, int64[{grid}] e1, int64[{grid}, 2] index> {{
      x = {join}
      e0 = Expand(rows, grid) e1 = Expand(columns, grid) f0 = Unsqueeze(e0, end) f1 = Unsqueeze(e1, end)
      index = Concat<axis = -1>(f0, f1) o = ScatterND{more}(x, index, v) y = Identity(o) }}"""
    places = np.arange(start, start + count)
    whole = np.arange(4)
    weights = {
        "rows": (whole if along else places).reshape(-1, 1),
        "columns": places if along else whole,
        "grid": np.asarray(part),
        "end": np.asarray([-1]),
    }
    return graphs.model(text, weights)


def _feeds(model: onnx.ModelProto) -> dict[str, Any]:
    shape = [dim.dim_value for dim in model.graph.input[-1].type.tensor_type.shape.dim]
    known = FEEDS | {"v": graphs.array(*shape, seed=2)}
    return {item.name: known[item.name] for item in model.graph.input}


def _same(model: onnx.ModelProto) -> list[str]:
    """The operators after the rewriting, which changed no answer."""
    changed, names = _simplified(model)
    onnx.checker.check_model(changed)
    feeds = _feeds(model)
    (wanted,) = graphs.session(model).run(None, feeds)
    (found,) = graphs.session(changed).run(None, feeds)
    np.testing.assert_array_equal(found, wanted)
    return names


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("start", "count", "cuts"),
    [
        (0, 2, 0), (2, 3, 0), (5, 1, 0), (2, 4, 0), (0, 5, 0), (0, 6, 0),
        (0, 1, 1), (1, 1, 1), (3, 2, 1), (2, 1, 1), (1, 4, 1), (3, 1, 2), (4, 2, 1),
    ],
)  # fmt: skip
def test_pieces_stay_as_they_are(axis: int, start: int, count: int, cuts: int) -> None:
    names = _same(_model(axis, start, count))
    assert "ScatterND" not in names
    assert names.count("Slice") == cuts


def test_other_joins_are_cut() -> None:
    """Along another axis, or by an axis that is counted from behind."""
    join = (
        "Concat<axis = 0>(h0, h1) t = Concat<axis = 1>(p0, p1, p2) h0 = Slice(t, zero, two, zero) "
        "h1 = Slice(t, two, four, zero)"
    )
    model = _model(1, 2, 3, join=join)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[1:4], nodes[0], *nodes[4:]])
    for name, number in (("zero", 0), ("two", 2), ("four", 4)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
    assert _same(model).count("Slice") == 4
    assert _same(_model(-1, 2, 3)).count("Slice") == 2


def test_what_does_not_stand_for_a_rectangle() -> None:
    assert "ScatterND" in _same(_model(1, 2, 3, more='<reduction = "add">'))
    assert "ScatterND" not in _same(_model(1, 2, 3, more='<reduction = "none">'))
    for kind in ("columns", "rows"):
        for change in ("turned", "below", "gap"):
            model = _model(1, 2, 3)
            (item,) = [item for item in model.graph.initializer if item.name == kind]
            numbers = onnx.numpy_helper.to_array(item)
            changed = {"turned": numbers[::-1], "below": numbers - 6, "gap": numbers - numbers % 2}[change]
            if kind == "rows" and change == "below":
                changed = numbers - 4
            item.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(changed), kind))
            if change != "gap":  # of a place that is there twice, the last one stays, in no certain order
                assert "ScatterND" in _same(model), (kind, change)
            else:
                assert "ScatterND" in _simplified(model)[1]
