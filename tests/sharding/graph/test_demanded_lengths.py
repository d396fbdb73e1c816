"""Masks and caches with axes of their own: what later nodes demand says which lengths are equal."""

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as errors

import sharding
from sharding.graph.demanded_lengths import demand
from sharding.graph.symbols import MADE_UP
from sharding.graph.values import shape_of
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep

HEADS, SIZE, WIDTH = 4, 4, 16
NUMBERS = {
    "zero": [0],
    "one": [1],
    "two": [2],
    "minus": [-1],
    "heads_": [HEADS],
    "size_": [SIZE],
    "width_": [WIDTH],
    "split": [0, 0, HEADS, SIZE],
}
PROJECTION = "N0 = MatMul(h, wN) N1 = Reshape(N0, split) N2 = Transpose<perm = [0, 2, 1, 3]>(N1) "
SCORES = """
  k3 = Transpose<perm = [0, 1, 3, 2]>(k2) s = MatMul(q2, k3) a = Add(s, mask)
"""
LENGTHS = "sh = Shape(h) b0 = Gather<axis = 0>(sh, zero) s0 = Gather<axis = 0>(sh, one) bh = Mul(b0, heads_) "
BATCHED = """
  sk = Shape(k2) t0 = Gather<axis = 0>(sk, two) three = Concat<axis = 0>(bh, s0, t0)
  four = Concat<axis = 0>(b0, heads_, s0, t0)
  m = Reshape(a, three) p = Softmax<axis = -1>(m) p4 = Reshape(p, four)
"""
LAST = """
  c = MatMul(p4, v2) ct = Transpose<perm = [0, 2, 1, 3]>(c) flat = Concat<axis = 0>(b0, s0, minus)
  cf = Reshape(ct, flat) y = MatMul(cf, wo)
"""
LEFT_OVER = """
  p4 = Softmax<axis = -1>(a) c = MatMul(p4, v2) sc = Shape(c) cb = Gather<axis = 0>(sc, zero)
  unflat = Concat<axis = 0>(cb, minus, s0, size_) c4 = Reshape(c, unflat)
  ct = Transpose<perm = [0, 2, 1, 3]>(c4) st = Shape(ct) tb = Gather<axis = 0>(st, zero)
  ts = Gather<axis = 0>(st, one) flat = Concat<axis = 0>(tb, ts, minus) cf = Reshape(ct, flat)
  sf = Shape(cf) wf = Gather<axis = 0>(sf, two) rows_ = Concat<axis = 0>(minus, wf)
  rows = Reshape(cf, rows_) g = Gemm(rows, wo) back = Concat<axis = 0>(tb, ts, width_) y = Reshape(g, back)
"""
TWO_LEFT = """
  p4 = Softmax<axis = -1>(a) c = MatMul(p4, v2) sc = Shape(c) cb = Gather<axis = 0>(sc, zero)
  unflat = Concat<axis = 0>(cb, minus, s0, size_) c4 = Reshape(c, unflat)
  ct = Transpose<perm = [0, 2, 1, 3]>(c4) flat = Concat<axis = 0>(b0, s0, width_) cf = Reshape(ct, flat)
  y = MatMul(cf, wo)
"""
GIVEN = "float[batch, seq, 16] x, float[rows, 1, queries, keys] mask"
CACHED = """
  k1t = Transpose<perm = [0, 2, 1, 3]>(k1) k2 = Concat<axis = 2>(past, k1t)
"""
FORMS = {
    "merged for softmax": (GIVEN, "h = Identity(x) QKV " + SCORES + LENGTHS + BATCHED + LAST),
    "what is left are heads": (GIVEN, "h = Identity(x) QKV " + SCORES + LENGTHS + LEFT_OVER),
    "places of their own": (
        GIVEN + ", float[many, long, 16] places",
        "h = Add(x, places) QKV " + SCORES + LENGTHS + LEFT_OVER,
    ),
    "batch and rows at once": (
        GIVEN + ", float[many, long, 16] places",
        "h = Add(x, places) QKV " + SCORES + LENGTHS + TWO_LEFT,
    ),
    "filled with zeros": (
        GIVEN,
        "sx = Shape(x) f = ConstantOfShape(sx) h = Add(x, f) QKV " + SCORES + LENGTHS + BATCHED + LAST,
    ),
}


def _model(path: Path, name: str) -> Path:
    given, body = FORMS[name]
    body = body.replace("QKV", "".join(PROJECTION.replace("N", part) for part in "qkv"))
    weights = {key: np.asarray(value, np.int64) for key, value in NUMBERS.items()}
    weights |= {f"w{part}": graphs.array(WIDTH, WIDTH, seed=i) / 4 for i, part in enumerate("qkvo")}
    return graphs.save(path, f"g ({given}) => (float[a, b, 16] y) {{ {body} }}", weights)


def _feeds(name: str, batch: int, length: int, mask: tuple[int, ...]) -> dict[str, graphs.Array]:
    feeds = {"x": graphs.array(batch, length, WIDTH), "mask": graphs.array(*mask, seed=3)}
    return feeds | ({"places": graphs.array(1, length, WIDTH)} if "places" in FORMS[name][0] else {})


@pytest.mark.parametrize("name", FORMS)
def test_heads_are_cut(tmp_path: Path, name: str) -> None:
    """One sum, and the answers of the model for each mask that it takes; others are refused."""
    path = _model(tmp_path / "model.onnx", name)
    for ranks in (2, 4):
        assert sharding.plan_model(path, ranks).collective_counts() == {"AllReduce": 1}
        folder = tmp_path / f"slices_{ranks}"
        sharding.slice_model(path, ranks, folder)
        for batch, length, mask in ((2, 5, (2, 1, 5, 5)), (3, 4, (1, 1, 1, 4)), (1, 1, (1, 1, 1, 1))):
            lockstep.assert_same(folder, path, _feeds(name, batch, length, mask), tolerance=1e-5)
    wrong = _feeds(name, 2, 1, (2, 1, 3, 1))  # three rows of one: no weight takes so many columns
    for run in (lockstep.reference, lambda _, given: lockstep.run_slices(tmp_path / "slices_2", given)):
        with pytest.raises((errors.Fail, errors.InvalidArgument, errors.RuntimeException)):
            run(path, wrong)


CACHE = """
g (float[batch, seq, 16] x, float[others, 4, past, 4] past) => (float[a, 4, b, 4] k, float[c, d, 16] y) {
  h = Identity(x) QKV
  LENGTHS
  k = Concat<axis = 2>(past, k2)
  sk = Shape(k) t0 = Gather<axis = 0>(sk, two)
  km3 = Concat<axis = 0>(bh, minus, size_) km = Reshape(k, km3) kt = Transpose<perm = [0, 2, 1]>(km)
  qm = Reshape(q2, km3) s = MatMul(qm, kt) p = Softmax<axis = -1>(s) c = MatMul(p, km)
  four = Concat<axis = 0>(b0, heads_, s0, size_) c4 = Reshape(c, four)
  ct = Transpose<perm = [0, 2, 1, 3]>(c4) flat = Concat<axis = 0>(b0, s0, minus) cf = Reshape(ct, flat)
  y = MatMul(cf, wo)
}"""


def test_what_is_joined_to_a_cache(tmp_path: Path) -> None:
    """The batch of a cache is that of what is joined to it, or else the cache is empty."""
    text = CACHE.replace("QKV", "".join(PROJECTION.replace("N", part) for part in "qk"))
    weights = {key: np.asarray(value, np.int64) for key, value in NUMBERS.items()}
    weights |= {f"w{part}": graphs.array(WIDTH, WIDTH, seed=i) / 4 for i, part in enumerate("qko")}
    path = graphs.save(tmp_path / "model.onnx", text.replace("LENGTHS", LENGTHS), weights)
    (key,) = (value for value in read_model(path).model.graph.outputs if value.name == "k")
    assert (shape_of(key) or ())[0] == "batch"
    for ranks in (2, 4):
        assert sharding.plan_model(path, ranks).collective_counts() == {"AllReduce": 1}
        sharding.slice_model(path, ranks, tmp_path / f"slices_{ranks}")
        for batch, length, past in ((2, 3, (2, 4, 5, 4)), (2, 3, (2, 4, 0, 4)), (1, 1, (1, 4, 2, 4))):
            feeds = {"x": graphs.array(batch, length, WIDTH), "past": graphs.array(*past)}
            lockstep.assert_same(tmp_path / f"slices_{ranks}", path, feeds, tolerance=1e-5)


@pytest.mark.parametrize("branches", [False, True])
def test_nothing_is_demanded_where_bodies_are_left(branches: bool) -> None:
    """Their shapes may have the same made-up names, and mean other lengths."""
    import onnx_ir as ir

    choice = (
        "z = If (yes) <then_branch = t () => (float[n, 16] u) { u = Identity(x) },"
        " else_branch = e () => (float[n, 16] v) { v = Neg(x) }>"
    )
    made = graphs.model(
        f"""g (float[n, 16] x, float[n, {MADE_UP}2] m, bool yes) => (float[a, 8] y, float[c, d] z)
        <float[n, {MADE_UP}2] r> {{
          r = Add(x, m)
          y = MatMul(r, w)
          {choice if branches else "z = Identity(x)"}
        }}""",
        {"w": graphs.array(16, 8)},
    )
    graph = ir.serde.deserialize_model(made).graph
    graph[-1].outputs[0].shape = None  # nothing is said of a value of which nothing is known
    changed = {value.name for value in demand(graph)}
    assert changed == (set() if branches else {"r"})
    assert (shape_of(graph[0].outputs[0]) or ())[1] == (f"{MADE_UP}2" if branches else 16)
