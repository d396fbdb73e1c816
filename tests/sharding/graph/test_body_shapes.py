"""Shapes of what control flow gives: layers after it are cut as those before it."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sharding
from sharding.graph import body_shapes
from sharding.graph.values import shape_of
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep

WIDTH = 8
Axes = list[str | int | None]


def _model(path: Path, body: str, shape: Axes, weights: dict[str, Any], then: str = "") -> Path:
    """A Loop over x, then two products that want to be cut by columns and by rows."""
    branches = ",".join(f"{side}_branch = {then.replace('OUT', side)}" for side in ("then", "else"))
    axes = ", ".join(map(str, shape))
    flag = ", bool flag" if then else ""
    text = f"""g (float[{axes}] x, int64 times{flag}) => (float[] y, float[] stacked) {{
      l, stacked = Loop (times, , x) <body = {body}>
      {f"c = If (flag) <{branches}>" if then else ""}
      a = MatMul({"c" if then else "l"}, w1)
      r = Relu(a)
      y = MatMul(r, w2)
    }}"""
    weights = {**weights, "w1": graphs.array(WIDTH, 16), "w2": graphs.array(16, WIDTH, seed=1)}
    onnx.save(graphs.model(text, weights, opset=17), path)
    return path


def _shapes(path: Path) -> dict[str | None, Any]:
    return {value.name: shape_of(value) for node in read_model(path).model.graph for value in node.outputs}


def _body(text: str, declared: str = "[]") -> str:
    kind = f"float{declared}"
    return f"""body (int64 i, bool go, {kind} state) => (bool more, {kind} next, {kind} row) {{
      more = Identity(go) {text} }}"""


KEPT: dict[str, tuple[str, Axes, tuple[str | int | None, ...]]] = {
    "kept": ("m = MatMul(state, w) next = Tanh(m) row = Neg(m)", ["b", "s", WIDTH], ("b", "s", WIDTH)),
    "with what lies outside": ("next = Add(state, x) row = Identity(next)", ["b", WIDTH], ("b", WIDTH)),
    "an axis grows": (
        "next = Concat<axis = 1>(state, one) row = ReduceSum<keepdims = 0>(next)",
        [2, "s", WIDTH],
        (2, None, WIDTH),
    ),
    "axes change places": (
        "next = Transpose<perm = [1, 0, 2]>(state) row = ReduceSum<keepdims = 0>(next)",
        ["b", "s", WIDTH],
        (None, None, WIDTH),
    ),
}
WEIGHTS = {"w": graphs.array(WIDTH, WIDTH, seed=3) / 4, "one": np.ones((2, 1, WIDTH), np.float32)}


@pytest.mark.parametrize("case", KEPT)
def test_layers_after_a_loop_are_cut(tmp_path: Path, case: str) -> None:
    text, shape, expected = KEPT[case]
    path = _model(tmp_path / "model.onnx", _body(text), list(shape), WEIGHTS)
    found = _shapes(path)["l"]
    assert found is not None and len(found) == len(expected)
    for here, axis in zip(found, expected, strict=True):
        assert here == axis or (axis is None and str(here).startswith("unk__"))
    sharding.slice_model(path, 2, tmp_path / "slices")
    assert lockstep.collectives(tmp_path / "slices") == ["AllReduce"]
    lengths = {"b": 3, "s": 5}
    x = graphs.array(*(lengths[axis] if isinstance(axis, str) else axis or 1 for axis in shape))
    for times in (1, 2, 3):
        lockstep.assert_same(tmp_path / "slices", path, {"x": x, "times": np.array(times)})


def test_a_loop_that_adds_axes_stays_open(tmp_path: Path) -> None:
    text = "next = Unsqueeze(state, zero) row = ReduceSum<keepdims = 0>(next)"
    path = _model(tmp_path / "model.onnx", _body(text), ["b", WIDTH], {"zero": np.array([0])})
    assert _shapes(path)["l"] is None
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    for times in (1, 3):
        feeds = {"x": graphs.array(2, WIDTH), "times": np.array(times)}
        lockstep.assert_same(tmp_path / "slices", path, feeds)


def test_a_branch_after_a_loop(tmp_path: Path) -> None:
    """Of the Loop nothing is known when onnx's inference comes to the If."""
    then = "branch () => (float[] OUT) { OUT = Neg(l) }"
    path = _model(tmp_path / "model.onnx", _body(KEPT["kept"][0]), ["b", "s", WIDTH], WEIGHTS, then)
    assert _shapes(path)["c"] == ("b", "s", WIDTH)
    assert _shapes(path)["stacked"][1:] == ("b", "s", WIDTH)
    sharding.slice_model(path, 2, tmp_path / "slices")
    assert lockstep.collectives(tmp_path / "slices") == ["AllReduce"]


def test_what_a_body_declares_is_not_believed(tmp_path: Path) -> None:
    body = _body("next = Concat<axis = 1>(state, one) row = ReduceSum<keepdims = 0>(next)", "[n, 7, m]")
    path = _model(tmp_path / "model.onnx", body, [2, "s", WIDTH], WEIGHTS)
    found = _shapes(path)["l"]
    assert found[0] == 2 and found[1] not in {7, "s"} and found[2] == WIDTH


def _nested(text: str, depth: int, state: str = "state") -> str:
    """The text of a body in which ``text`` stands, so deep in loops, and carries on ``state``."""
    if depth == 0:
        return text
    inner = f"s{depth}"
    return f"""next = Loop (times, , {state}) <body = b{depth} (int64 i{depth}, bool g{depth}, float[] {
        inner
    })
      => (bool m{depth}, float[] n{depth}) {{ m{depth} = Identity(g{depth}) {
        _nested(text, depth - 1, inner).replace("next", f"n{depth}", 1).replace("STATE", inner)
    } }}>"""


@pytest.mark.parametrize(("depth", "known"), [(1, True), (3, True), (9, False)])
def test_loops_in_loops(tmp_path: Path, depth: int, known: bool) -> None:
    """What an inner loop carries is known as what the outer one does; not any deeper than it pays."""
    text = _nested("next = Tanh(STATE)", depth) + " row = Neg(next)"
    path = _model(tmp_path / "model.onnx", _body(text), ["b", WIDTH], WEIGHTS)
    assert _shapes(path)["l"] == (("b", WIDTH) if known else None)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    for times in (1, 2):
        feeds = {"x": graphs.array(3, WIDTH), "times": np.array(times)}
        lockstep.assert_same(tmp_path / "slices", path, feeds)


def test_an_inner_loop_that_grows(tmp_path: Path) -> None:
    text = _nested("next = Concat<axis = 1>(STATE, one)", 1) + " row = ReduceSum<keepdims = 0>(next)"
    path = _model(tmp_path / "model.onnx", _body(text), [2, "s", WIDTH], WEIGHTS)
    first, grown, last = _shapes(path)["l"]
    assert (first, last) == (2, WIDTH) and grown != "s"
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    feeds = {"x": graphs.array(2, 3, WIDTH), "times": np.array(2)}
    lockstep.assert_same(tmp_path / "slices", path, feeds)


def test_a_loop_in_a_branch_in_a_loop(tmp_path: Path) -> None:
    inner = _nested("next = Tanh(STATE)", 1).replace("next", "there", 1)
    text = f"""next = If (go) <
      then_branch = t () => (float[] there) {{ {inner} }},
      else_branch = e () => (float[] here) {{ here = Neg(state) }}
    > row = Neg(next)"""
    path = _model(tmp_path / "model.onnx", _body(text), ["b", WIDTH], WEIGHTS)
    assert _shapes(path)["l"] == ("b", WIDTH)
    sharding.slice_model(path, 2, tmp_path / "slices")
    assert lockstep.collectives(tmp_path / "slices") == ["AllReduce"]
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, WIDTH), "times": np.array(2)})


def _turns(before: str, name: str) -> str:
    """A Loop, of which onnx's inference says nothing."""
    return f"""Loop (times, , {before}) <body = b{name} (int64 i{name}, bool g{name}, float[] s{name}) =>
      (bool m{name}, float[] n{name}) {{ m{name} = Identity(g{name}) n{name} = Tanh(s{name}) }}>"""


def _choice(then: str, other: str, name: str) -> str:
    return f"""If (go) <then_branch = t{name} () => (float[] p{name}) {{ p{name} = {then} }},
      else_branch = e{name} () => (float[] q{name}) {{ q{name} = Neg({other}) }}>"""


def _chain(length: int) -> str:
    """A body with so many Ifs, each behind the other."""
    names = ["state", *(f"a{number}" for number in range(1, length)), "next"]
    return " ".join(
        f"{after} = {_choice(_turns(before, str(number)), before, str(number))}"
        for number, (before, after) in enumerate(itertools.pairwise(names))
    )


def test_each_branch_of_many_in_a_row_is_gone_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    inferred = body_shapes._Question._inferred

    def counted(self: Any, *args: Any) -> Any:
        asked.append(1)
        return inferred(self, *args)

    monkeypatch.setattr(body_shapes._Question, "_inferred", counted)
    counts = []
    for length in (4, 8, 12):
        asked.clear()
        path = _model(
            tmp_path / f"{length}.onnx", _body(f"{_chain(length)} row = Neg(next)"), ["b", WIDTH], WEIGHTS
        )
        assert _shapes(path)["l"] == ("b", WIDTH)
        counts.append(len(asked))
    assert counts[2] - counts[1] == counts[1] - counts[0]


def test_branches_count_once_each_in_depth(tmp_path: Path) -> None:
    text = _turns("state", "")
    for number in range(3):
        text = _choice(text, "state", str(number))
    path = _model(tmp_path / "model.onnx", _body(f"next = {text} row = Neg(next)"), ["b", WIDTH], WEIGHTS)
    assert _shapes(path)["l"] == ("b", WIDTH)


def test_a_body_that_cannot_be_gone_through_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("no such branches")

    monkeypatch.setattr(body_shapes._Question, "_branches", refuse)
    text = f"next = Tanh(state) {_chain(1).replace('next', 'other')} row = Neg(other)"
    path = _model(tmp_path / "model.onnx", _body(text), ["b", WIDTH], WEIGHTS)
    assert _shapes(path)["l"] == ("b", WIDTH)


def test_outputs_without_a_name_hide_no_others(tmp_path: Path) -> None:
    """The second and third of these are of no use to anyone."""
    norm = "next, , , row = com.microsoft.SkipLayerNormalization(state, state, gamma)"
    path = _model(tmp_path / "model.onnx", _body(norm), ["b", "s", WIDTH], {"gamma": graphs.array(WIDTH)})
    shapes = _shapes(path)
    assert shapes["l"] == ("b", "s", WIDTH)
    assert shapes["stacked"] == (None, "b", "s", WIDTH)
