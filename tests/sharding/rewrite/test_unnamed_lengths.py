"""Lengths that have no name (of keys and one learned one) beside those that are known: each is followed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sharding
from sharding.graph.values import shape_of
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep

HEADS, SIZE, WIDTH = 8, 4, 32
TEXT = """g (float[seq, batch, 32] x) => (float[seq, batch, 32] y) {
  q = MatMul(x, wq)
  k0 = MatMul(x, wk)
  v0 = MatMul(x, wv)
  from_x = Shape(x)
  rows = Gather(from_x, one)
  rows1 = Unsqueeze(rows, zero1)
  repeats = Concat <axis = 0> (one1, rows1, one1)
  kb = Tile(bk, repeats)
  vb = Tile(bv, repeats)
  k = Concat <axis = 0> (k0, kb)
  v = Concat <axis = 0> (v0, vb)
  many = Mul(rows, heads)
  many1 = Unsqueeze(many, zero1)
  MERGED
  qm = Reshape(q, minus_rows)
  km = Reshape(k, merged)
  vm = Reshape(v, merged)
  qt = Transpose <perm = [1, 0, 2]> (qm)
  kt = Transpose <perm = [1, 2, 0]> (km)
  vt = Transpose <perm = [1, 0, 2]> (vm)
  s = MatMul(qt, kt)
  p = Softmax <axis = -1> (s)
  c = MatMul(p, vt)
  ct = Transpose <perm = [1, 0, 2]> (c)
  cf = Reshape(ct, from_x)
  y = MatMul(cf, wo)
}"""
"""torch's nn.MultiheadAttention with ``add_bias_kv``, as its older exporter writes it."""
MERGED = {
    "by a scalar": "sk = Shape(k) length = Gather(sk, zero) l1 = Unsqueeze(length, zero1)",
    "by a slice": "sk = Shape(k) l1 = Slice(sk, zero1, one1)",
    "by arithmetic": "sk = Shape(k) i = Slice(sk, zero1, one1) f = Cast <to = 1> (i) l1 = Cast <to = 7> (f)",
}


@pytest.mark.parametrize("way", MERGED)
def test_heads_behind_a_length_without_a_name(tmp_path: Path, way: str) -> None:
    merged = f"{MERGED[way]} merged = Concat <axis = 0> (l1, many1, size1)"
    merged += " lq = Slice(from_x, zero1, one1) minus_rows = Concat <axis = 0> (lq, many1, size1)"
    numbers = {"zero": 0, "one": 1, "heads": HEADS, "zero1": [0], "one1": [1], "size1": [SIZE]}
    weights = {name: np.array(value, np.int64) for name, value in numbers.items()}
    weights |= {f"w{name}": graphs.array(WIDTH, WIDTH, seed=i) / 6 for i, name in enumerate("qkvo")}
    weights |= {f"b{name}": graphs.array(1, 1, WIDTH, seed=i) for i, name in enumerate("kv")}
    path = graphs.save(tmp_path / "model.onnx", TEXT.replace("MERGED", merged), weights)
    plan = sharding.plan_model(path, 4)
    assert plan.collective_counts() == {"AllReduce": 1}
    sharding.slice_model(path, 4, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(5, 3, WIDTH)}, tolerance=1e-5)


def test_one_unknown_number_leaves_the_others_known(tmp_path: Path) -> None:
    text = """g (float[n, 12] x, int64[1] count) => (float[a, b, c] y) {
      sh = Shape(x) rows = Gather(sh, zero) rows1 = Unsqueeze(rows, zero1)
      target = Concat <axis = 0> (count, rows1, four) y = Reshape(x, target)
    }"""
    numbers = {"zero": 0, "zero1": [0], "four": [4]}
    path = graphs.save(
        tmp_path / "model.onnx", text, {name: np.array(value, np.int64) for name, value in numbers.items()}
    )
    (output,) = read_model(path).model.graph.outputs
    assert (shape_of(output) or ())[1:] == ("n", 4)
