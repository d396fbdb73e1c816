"""Packed products whose columns alternate or are cut at computed places: cut as an expert would."""

from pathlib import Path

import numpy as np
import pytest

import sharding
from tests.sharding import graphs, lockstep

RANKS = (2, 4, 8)

ALTERNATING = """g (float[batch, seq, 32] x) => (float[batch, seq, 32] y) {
  u = MatMul(x, w1)
  FORM
  s = Sigmoid(a)
  m = Mul(s, b)
  y = MatMul(m, w2)
}"""
FORMS = {
    "slices": "a = Slice(u, zero, most, two, two) b = Slice(u, one, most, two, two)",
    "to the last of its kind": "a = Slice(u, zero, last, minus, two) b = Slice(u, one, all, minus, two)",
    "split": "p = Reshape(u, pairs) i, j = Split<axis = -1, num_outputs = 2>(p) "
    "a = Reshape(i, single) b = Reshape(j, single)",
    "squeezed": "p = Reshape(u, pairs) i, j = Split<axis = -1, num_outputs = 2>(p) "
    "a = Squeeze(i, minus) b = Squeeze(j, minus)",
    "gathered": "p = Reshape(u, pairs) a = Gather<axis = -1>(p, first) b = Gather<axis = -1>(p, second)",
    "transposed": "p = Reshape(u, pairs) t = Transpose<perm = [3, 0, 1, 2]>(p) "
    "a = Gather<axis = 0>(t, first) b = Gather<axis = 0>(t, second)",
    "halves": "a = Slice(u, zero, half, two, one) b = Slice(u, half, most, two, one)",
}
NUMBERS = {
    "zero": [0],
    "one": [1],
    "two": [2],
    "minus": [-1],
    "most": [2**63 - 1],
    "half": [64],
    "last": [127],
    "all": [128],
    "pairs": [0, 0, 64, 2],
    "single": [0, 0, 64],
    "first": 0,
    "second": 1,
}


def _numbers() -> dict[str, graphs.Array]:
    return {name: np.asarray(value, np.int64) for name, value in NUMBERS.items()}


@pytest.mark.parametrize("form", FORMS)
def test_alternating_columns(tmp_path: Path, form: str) -> None:
    """Gate and up as every second column: pairs stay together on a rank, and one sum remains."""
    weights = {"w1": graphs.array(32, 128), "w2": graphs.array(64, 32)} | _numbers()
    path = graphs.save(tmp_path / "model.onnx", ALTERNATING.replace("FORM", FORMS[form]), weights)
    for ranks in RANKS:
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": 1}
        assert {str(plan.weights[name][0]) for name in ("w1", "w2")} >= {"split:0"}
        assert plan.split_share() == 1 / ranks
    sharding.slice_model(path, 4, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 5, 32)})


@pytest.mark.parametrize(("start", "end"), [(2, 2**63 - 1), (0, 126), (1, 127)])
def test_not_every_pair(tmp_path: Path, start: int, end: int) -> None:
    """Of columns that lack some pairs no rank can take its own; the answer is right all the same."""
    text = """g (float[batch, 32] x) => (float[batch, n] y) {
      u = MatMul(x, w1)
      y = Slice(u, start, end, one, two)
    }"""
    weights = {"w1": graphs.array(32, 128), "start": np.asarray([start]), "end": np.asarray([end])}
    path = graphs.save(tmp_path / "model.onnx", text, weights | _numbers())
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 32)})


HEADS, SIZE = 8, 4
WIDTH = HEADS * SIZE
CHUNKED = """
  l = MatMul(IN, qkv_N)
  shape_N = Shape(l)
  n_N = Gather<axis = 0>(shape_N, last)
  more_N = Add(n_N, two)
  size_N = Div(more_N, three)
  end1_N = Mul(size_N, one)
  end2_N = Mul(size_N, two)
  end3_N = Mul(size_N, three)
  PIECES
  qh_N = Reshape(q_N, heads)
  kh_N = Reshape(k_N, heads)
  vh_N = Reshape(v_N, heads)
  qt_N = Transpose<perm = [0, 2, 1, 3]>(qh_N)
  kt_N = Transpose<perm = [0, 2, 3, 1]>(kh_N)
  vt_N = Transpose<perm = [0, 2, 1, 3]>(vh_N)
  s_N = MatMul(qt_N, kt_N)
  p_N = Softmax<axis = -1>(s_N)
  c_N = MatMul(p_N, vt_N)
  ct_N = Transpose<perm = [0, 2, 1, 3]>(c_N)
  cf_N = Reshape(ct_N, flat)
  OUT = MatMul(cf_N, o_N)
"""
PIECES = {
    "slices": "q_N = Slice(l, zero, end1_N, last) k_N = Slice(l, end1_N, end2_N, last) "
    "v_N = Slice(l, end2_N, end3_N, last)",
    "split": "sizes_N = Concat<axis = 0>(size_N, size_N, size_N) "
    "q_N, k_N, v_N = Split<axis = -1>(l, sizes_N)",
    "half of the rest": "q_N = Slice(l, zero, end1_N, last) r_N = Slice(l, end1_N, most, last) "
    "rs_N = Shape(r_N) rn_N = Gather<axis = 0>(rs_N, last) rh_N = Div(rn_N, two) "
    "k_N = Slice(r_N, zero, rh_N, last) v_N = Slice(r_N, rh_N, most, last)",
}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("rank_known", [True, False], ids=["declared", "undeclared"])
def test_computed_bounds(tmp_path: Path, pieces: str, rank_known: bool) -> None:
    """Queries, keys and values cut where arithmetic on the product's shape says, in the first layer too."""
    layers, body = 3, ""
    for layer in range(layers):
        text = CHUNKED.replace("PIECES", PIECES[pieces]).replace("(l,", "(l_N,").replace("(l)", "(l_N)")
        text = text.replace("  l =", "  l_N =").replace("IN", "x" if layer == 0 else f"y_{layer - 1}")
        body += text.replace("OUT", f"y_{layer}").replace("_N", f"_{layer}")
    result = f"y_{layers - 1}"
    body = body.replace(result, "y")
    whole = "float[batch, seq, 32]" if rank_known else "float[batch, seq, n]"
    text = f"g (float[batch, seq, 32] x) => ({whole} y) {{ {body} }}"
    weights = {"heads": np.asarray([0, 0, HEADS, SIZE]), "flat": np.asarray([0, 0, WIDTH])}
    weights |= {"last": np.asarray([-1]), "three": np.asarray([3])}
    for layer in range(layers):
        weights |= {f"qkv_{layer}": graphs.array(WIDTH, 3 * WIDTH, seed=layer)}
        weights |= {f"o_{layer}": graphs.array(WIDTH, WIDTH, seed=layer)}
    path = graphs.save(tmp_path / "model.onnx", text, _numbers() | weights)
    for ranks in RANKS:
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": layers}
        assert plan.whole == {}
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 5, 32) / 4})
