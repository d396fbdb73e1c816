"""All queries of one key/value head as rows of one product: [batch, length * heads, size]."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sharding
from tests.sharding import graphs, lockstep

HEADS, SIZE, WIDTH = 8, 4, 32
TEXT = """g (float[BATCH, new, 32] x, float[BATCH, past, 8] before, bool[BATCH, 1, new, all] mask)
  => (float[BATCH, new, 32] y, float[BATCH, all, 8] after) {
  projected = MatMul(x, wz)
  q, kv = Split <axis = -1> (projected, queries_first)
  after = Concat <axis = 1> (before, kv)
  k, v = Split <axis = -1> (after, halves)
  kt = Transpose <perm = [0, 2, 1]> (k)
  shape = Shape(q)
  rows0 = Slice(shape, zero, one)
  length = Slice(shape, one, two)
  many = Mul(length, heads)
  by_row = Concat <axis = 0> (rows0, many, size)
  flat = Reshape(q, by_row)
  scores = MatMul(flat, kt)
  SCALED
  total = Shape <start = 2> (kt)
  by_head = Concat <axis = 0> (rows0, length, heads, total)
  apart = Reshape(scaled, by_head)
  at_heads = Transpose <perm = [0, 2, 1, 3]> (mask)
  masked = Where(at_heads, apart, low)
  weights = Softmax <axis = -1> (masked)
  together = Concat <axis = 0> (rows0, many, total)
  rows = Reshape(weights, together)
  mixed = MatMul(rows, v)
  result = Reshape(mixed, shape)
  y = MatMul(result, wo)
}"""
"""StarCoder's attention as older releases of transformers write it."""


@pytest.mark.parametrize("batch", ["batch", "2"])
@pytest.mark.parametrize("scaled", ["scaled = Mul(scores, factor)", "scaled = Identity(scores)"])
def test_heads_are_cut(tmp_path: Path, batch: str, scaled: str) -> None:
    """Each rank has some heads and the one of keys and values; one sum is needed."""
    numbers = {
        "queries_first": [WIDTH, 2 * SIZE], "halves": [SIZE, SIZE], "zero": [0], "one": [1], "two": [2],
        "heads": [HEADS], "size": [SIZE],
    }  # fmt: skip
    weights = {name: np.array(value, np.int64) for name, value in numbers.items()}
    weights |= {"wz": graphs.array(WIDTH, WIDTH + 2 * SIZE), "wo": graphs.array(WIDTH, WIDTH)}
    weights |= {"factor": np.array(0.5, np.float32), "low": np.array(-1e4, np.float32)}
    path = graphs.save(
        tmp_path / "model.onnx", TEXT.replace("BATCH", batch).replace("SCALED", scaled), weights
    )
    feeds = {
        "x": graphs.array(2, 5, WIDTH, seed=1),
        "before": graphs.array(2, 3, 2 * SIZE, seed=2),
        "mask": np.tril(np.ones((2, 1, 5, 8), bool), 3),
    }
    expected = graphs.session(path).run(["y", "after"], feeds)
    for ranks in (2, 4, 8):
        manifest = sharding.slice_model(path, ranks, tmp_path / str(ranks))
        assert [(item.op, item.tensor) for item in manifest.collectives] == [("AllReduce", "y")]
        for found in lockstep.run_slices(tmp_path / str(ranks), feeds):
            for name, right in zip(("y", "after"), expected, strict=True):
                np.testing.assert_allclose(found[name], right, rtol=0, atol=1e-5 * np.abs(right).max())
