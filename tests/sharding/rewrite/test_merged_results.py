"""What is merged and given apart at once, by the model itself: the answer has the name that it had."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import sharding
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep

GRAPH = """g (float[batch, seq, 32] x) => (float[batch, 8, seq, 4] y{more}) {{
  sh = Shape(x) b0 = Gather<axis = 0>(sh, zero) s0 = Gather<axis = 0>(sh, one) bh = Mul(b0, heads)
  merge = Concat<axis = 0>(bh, s0, size) apart = Concat<axis = 0>(b0, heads, s0, size)
  q0 = MatMul(x, wq) q1 = Reshape(q0, split) q2 = Transpose<perm = [0, 2, 1, 3]>(q1) qm = Reshape(q2, merge)
  k0 = MatMul(x, wk) k1 = Reshape(k0, split) k2 = Transpose<perm = [0, 2, 1, 3]>(k1) km = Reshape(k2, merge)
  kt = Transpose<perm = [0, 2, 1]>(km) s = MatMul(qm, kt) p = Softmax<axis = -1>(s) c = MatMul(p, km)
  y = Reshape(c, apart) {uses}
}}"""
NUMBERS = {"zero": [0], "one": [1], "heads": [8], "size": [4], "split": [0, 0, 8, 4], "last": [0, 0, 2, 2]}


def _saved(path: Path, more: str = "", uses: str = "") -> Path:
    weights = {name: np.asarray(item) for name, item in NUMBERS.items()}
    weights |= {f"w{name}": graphs.array(32, 32, seed=place) / 6 for place, name in enumerate("qk")}
    return graphs.save(path, GRAPH.format(more=more, uses=uses), weights)


@pytest.mark.parametrize(
    ("more", "uses"),
    [
        ("", ""),
        (", float[batch, 8, seq, 4] z", "z = Neg(y)"),
        (", float[all, seq, 4] z", "z = Relu(c)"),
        (", float[all, seq, 2, 2] z", "z = Reshape(c, last)"),
        (", int64[3] z", "z = Shape(c)"),
        (", int64[2] z", "z0 = Shape<start = 0, end = 2>(c) z = Mul(z0, one)"),
        (", float[batch, 8, seq, 4] z", "a = Reshape(c, apart) z = Neg(a)"),
    ],
)
def test_heads_that_are_given(tmp_path: Path, more: str, uses: str) -> None:
    path = _saved(tmp_path / "model.onnx", more, uses)
    feeds = {"x": graphs.array(2, 5, 32)}
    found = graphs.session(ir.to_proto(read_model(path).model)) if not more else None
    if found is not None:
        (wanted,) = graphs.session(path).run(None, feeds)
        (answer,) = found.run(None, feeds)
        np.testing.assert_allclose(answer, wanted, rtol=1e-5, atol=1e-6)
        assert [item.name for item in found.get_outputs()] == ["y"]
    for ranks in (2, 4):
        sharding.slice_model(path, ranks, tmp_path / f"{ranks}")
        lockstep.assert_same(tmp_path / f"{ranks}", path, feeds, tolerance=1e-5)
