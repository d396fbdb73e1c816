"""Batch and heads merged into one axis: heads are cut as if they were not, and the answer stays the same."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sharding
from sharding.graph.shape_values import known
from sharding.graph.values import shape_of
from sharding.reading.read import read_model
from sharding.rewrite.merged_axes import _repeated
from tests.sharding import graphs, lockstep

pytestmark = pytest.mark.usefixtures("read_once")

HEADS, SIZE, WIDTH = 8, 4, 32
RANKS = (2, 4, 8)
NUMBERS = {
    "zero": [0],
    "one": [1],
    "minus": [-1],
    "heads_": [HEADS],
    "size_": [SIZE],
    "two": [2],
    "three": [3],
    "first": 0,
    "second": 1,
    "count": HEADS,
    "split": [0, 0, HEADS, SIZE],
    "flat": [0, 0, WIDTH],
}

SHAPES = """
  sh = Shape(x) b0 = Gather<axis = 0>(sh, zero) s0 = Gather<axis = 0>(sh, one) bh = Mul(b0, heads_)
"""
MERGES = {
    # What the merged length is written as, the others, and what computes them.
    "left over": ("minus, s0, size_", "minus, heads_, s0, size_"),
    "computed": ("bh, s0, size_", "b0, heads_, s0, size_"),
    "both": ("bh, minus, size_", "b0, heads_, minus, size_"),
    # As tf2onnx writes an einsum.
    "of a list": (
        "all, minus, size_",
        "most, s0, size_",
        "lead = Concat<axis = 0>(b0, heads_) all = ReduceProd(lead) most = Max(lead, lead)",
    ),
}
ATTENTION = """g (float[BATCH, seq, 32] x) => (float[BATCH, seq, 32] y) {
  SHAPES
  merge = Concat<axis = 0>(MERGE)
  apart = Concat<axis = 0>(APART)
  PROJECTIONS
  kt = Transpose<perm = [0, 2, 1]>(km)
  s = MatMul(qm, kt)
  SCORES
  c = MatMul(p, vm)
  ca = Reshape(c, apart)
  ct = Transpose<perm = [0, 2, 1, 3]>(ca)
  cf = Reshape(ct, flat)
  y = MatMul(cf, wo)
}"""
PROJECTION = """
  N0 = MatMul(x, wN) N1 = Reshape(N0, split) N2 = Transpose<perm = [0, 2, 1, 3]>(N1) Nm = Reshape(N2, merge)
"""


def _numbers() -> dict[str, graphs.Array]:
    return {name: np.asarray(value, np.int64) for name, value in NUMBERS.items()}


def _weights() -> dict[str, graphs.Array]:
    return {f"w{name}": graphs.array(WIDTH, WIDTH, seed=i) / 6 for i, name in enumerate("qkvo")}


def _attention(
    path: Path, batch: str, merge: str, scores: str, *, opset: int = 18, **more: graphs.Array
) -> Path:
    text = ATTENTION.replace("PROJECTIONS", "".join(PROJECTION.replace("N", name) for name in "qkv"))
    text = (
        text.replace("SHAPES", SHAPES + "".join(MERGES[merge][2:]))
        .replace("SCORES", scores)
        .replace("BATCH", batch)
    )
    text = text.replace("MERGE", MERGES[merge][0]).replace("APART", MERGES[merge][1])
    return graphs.save(path, text, _weights() | _numbers() | more, opset=opset)


def _expert(path: Path, tmp_path: Path, feeds: dict[str, graphs.Array]) -> None:
    """One sum, queries, keys and values by column, the output by row; every rank answers as the model."""
    for ranks in RANKS:
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": 1}
        assert {name: str(plan.weights[name][0]) for name in ("wq", "wk", "wv", "wo")} == {
            "wq": "split:1",
            "wk": "split:1",
            "wv": "split:1",
            "wo": "split:0",
        }
        assert plan.whole == {}
    sharding.slice_model(path, 4, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, feeds, tolerance=1e-5)


SOFTMAX = "p = Softmax<axis = -1>(s)"


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("batch", ["batch", "3", "16"])
def test_products_of_three_axes(tmp_path: Path, batch: str, merge: str) -> None:
    path = _attention(tmp_path / "model.onnx", batch, merge, SOFTMAX)
    rows = int(batch) if batch.isdecimal() else 2
    _expert(path, tmp_path, {"x": graphs.array(rows, 5, WIDTH)})


MASKED = """g (float[BATCH, seq, 32] x, float[rows, 1, 1, columns] mask) => (float[BATCH, seq, 32] y) {
  sx = Shape(x) both = Add(one, one) ls = Slice(sx, zero, both) heads = Concat<axis = 0>(ls, heads_, size_)
  q0 = MatMul(x, wq) q1 = Reshape(q0, heads)
  k0 = MatMul(x, wk) k1 = Reshape(k0, heads)
  v0 = MatMul(x, wv) v1 = Reshape(v0, heads) v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
  s = Einsum<equation = "aecd,abcd->acbe">(k1, q1) a = Add(s, mask) p = Softmax<axis = -1>(a)
  sp = Shape(p) lead = Slice(sp, zero, two) all = ReduceProd(lead) last = Slice(sp, two, four)
  sv = Shape(v2) leadv = Slice(sv, zero, two) allv = ReduceProd(leadv) lastv = Slice(sv, two, four)
  pshape = Concat<axis = 0>(all, last) pm = Reshape(p, pshape)
  vshape = Concat<axis = 0>(allv, lastv) vm = Reshape(v2, vshape)
  c = MatMul(pm, vm)
  most = Max(lead, leadv) rows0 = Slice(sp, two, three) apart = Concat<axis = 0>(most, rows0, size_)
  ca = Reshape(c, apart) ct = Transpose<perm = [0, 2, 1, 3]>(ca) cf = Reshape(ct, flat)
  y = MatMul(cf, wo)
}"""


@pytest.mark.parametrize("names", ["batch seq rows columns", "unk__1 unk__2 unk__3 unk__4"])
def test_a_mask_whose_lengths_are_its_own(tmp_path: Path, names: str) -> None:
    """Added to scores it leaves lengths that nothing is known of; they are followed all the same. tf2onnx
    names the axes of inputs as inference names such lengths."""
    text = MASKED.replace("BATCH", "batch").replace("mask = ", "mask=")
    for mine, own in zip(["batch", "seq", "rows", "columns"], names.split(), strict=True):
        text = text.replace(f"[{mine},", f"[{own},").replace(f", {mine},", f", {own},")
        text = text.replace(f", {mine}]", f", {own}]")
    numbers = _numbers() | {name: np.array([value]) for name, value in (("three", 3), ("four", 4))}
    numbers["two"] = np.array([2])
    path = graphs.save(tmp_path / "model.onnx", text, _weights() | numbers, opset=18)
    shapes = [shape_of(value) for node in read_model(path).model.graph for value in node.outputs]
    assert all(shape is not None and None not in shape for shape in shapes)
    x = graphs.array(2, 5, WIDTH)
    for rows in (2, 1):
        feeds = {"x": x, "mask": graphs.array(rows, 1, 1, 5)}
        _expert(path, tmp_path / str(rows), feeds)
    shape = sharding.read_manifest(tmp_path / "1" / "slices").inputs[1].shape
    assert list(shape) == [names.split()[2], 1, 1, names.split()[3]]


EMPTY_BATCH, EMPTY_SEQUENCE, BOTH_EMPTY = (0, 5, WIDTH), (2, 0, WIDTH), (0, 0, WIDTH)
EMPTY = {
    # With an axis of length 0, no other length can be worked out.
    "left over": (EMPTY_BATCH, EMPTY_SEQUENCE),
    "computed": (EMPTY_BATCH, EMPTY_SEQUENCE, BOTH_EMPTY),
    "both": (EMPTY_BATCH, EMPTY_SEQUENCE),
}


@pytest.mark.parametrize("merge", EMPTY)
def test_empty_batches_and_sequences(tmp_path: Path, merge: str) -> None:
    """Where a 0 is a length of 0 in the model, and copies none, it is so in the slices."""
    path = _attention(tmp_path / "model.onnx", "batch", merge, SOFTMAX)
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Reshape" and node.input[1] in {"merge", "apart"}:
            node.attribute.append(onnx.helper.make_attribute("allowzero", 1))
    onnx.save(model, path)
    sharding.slice_model(path, 2, tmp_path / "slices")
    assert lockstep.collectives(tmp_path / "slices") == ["AllReduce"]
    for shape in EMPTY[merge]:
        feeds = {"x": np.zeros(shape, np.float32)}
        assert lockstep.reference(path, feeds)["y"].shape == shape
        lockstep.assert_same(tmp_path / "slices", path, feeds)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 5, WIDTH)}, tolerance=1e-5)


@pytest.mark.parametrize("opset", [11, 13])
def test_older_operators(tmp_path: Path, opset: int) -> None:
    scores = "a = Add(s, alibi) p = Softmax<axis = 2>(a)"
    path = _attention(
        tmp_path / "m.onnx", "batch", "left over", scores, opset=opset, alibi=graphs.array(1, 1, 1)
    )
    _expert(path, tmp_path, {"x": graphs.array(2, 5, WIDTH)})


EINSUMS = {
    "each pair": ("nqd,nkd->nqk", "nqk,nkd->nqd"),
    "spaces": ("b i d, b j d -> b i j", "b i j, b j d -> b i d"),
    "ellipsis": ("...qd,...kd->...qk", "...qk,...kd->...qd"),
}


@pytest.mark.parametrize("equations", EINSUMS)
@pytest.mark.parametrize("batch", ["batch", "3"])
def test_products_as_equations(tmp_path: Path, batch: str, equations: str) -> None:
    first, second = EINSUMS[equations]
    text = ATTENTION.replace("PROJECTIONS", "".join(PROJECTION.replace("N", name) for name in "qkv"))
    text = text.replace("SHAPES", SHAPES).replace("SCORES", SOFTMAX).replace("BATCH", batch)
    text = text.replace("MERGE", MERGES["computed"][0]).replace("APART", MERGES["computed"][1])
    text = text.replace("kt = Transpose<perm = [0, 2, 1]>(km)", "")
    text = text.replace("MatMul(qm, kt)", f'Einsum<equation = "{first}">(qm, km)')
    text = text.replace("MatMul(p, vm)", f'Einsum<equation = "{second}">(p, vm)')
    path = graphs.save(tmp_path / "m.onnx", text, _weights() | _numbers())
    _expert(path, tmp_path, {"x": graphs.array(3, 5, WIDTH)})


NORMALIZED = """g (float[batch, seq, 32] x) => (float[batch, seq, 32] y) {
  sh = Shape(x)  b0 = Gather<axis = 0>(sh, zero)  computed = Concat<axis = 0>(b0, left)
  q0 = MatMul(x, wq)  q1 = Reshape(q0, by_head)  q2 = NORM_OF_q1  q3 = Reshape(q2, JOINED)
  k0 = MatMul(x, wk)  k1 = Reshape(k0, by_head)  k2 = NORM_OF_k1  k3 = Reshape(k2, JOINED)
  v0 = MatMul(x, wv)  kv = Mul(k3, v0)  qkv = Mul(q3, kv)  y = MatMul(qkv, wo)
}"""
NORMS = {  # and the opset that has them
    "LayerNormalization<axis = -1>(IN, scale, shift)": 18,
    "RMSNormalization<axis = -1>(IN, scale)": 23,
    "LpNormalization<axis = -1>(IN)": 18,
}


@pytest.mark.parametrize("by_head", [[0, -1, SIZE], [-1, SIZE]])
@pytest.mark.parametrize("norm", NORMS)
def test_normalization_of_each_head(tmp_path: Path, norm: str, by_head: list[int]) -> None:
    """Heads merged with the length: [batch, length * heads, size], then [batch, length, heads * size]."""
    text = NORMALIZED.replace("JOINED", "copied" if len(by_head) == 3 else "computed")
    for name in "qk":
        text = text.replace(f"NORM_OF_{name}1", norm.replace("IN", f"{name}1"))
    numbers = {"by_head": by_head, "copied": [0, -1, WIDTH], "left": [-1, WIDTH], "zero": [0]}
    weights = {"scale": graphs.array(SIZE) + 2, "shift": graphs.array(SIZE, seed=5)} | _weights()
    constants = {name: np.asarray(value, np.int64) for name, value in numbers.items()}
    path = graphs.save(tmp_path / "model.onnx", text, weights | constants, opset=NORMS[norm])
    _expert(path, tmp_path, {"x": graphs.array(3, 5, WIDTH)})
    if norm.startswith("RMS"):  # ONNX Runtime's own name for it, which onnx does not know
        model = onnx.load(path)
        for node in model.graph.node:
            node.op_type = node.op_type.replace("RMSNorm", "SimplifiedLayerNorm")
        onnx.save(model, path)
        _expert(path, tmp_path / "own", {"x": graphs.array(3, 5, WIDTH)})


PACKED = """
  x0 = MatMul(x, wx) x1 = Reshape(x0, thirds) x2 = Transpose<perm = [2, 0, 3, 1, 4]>(x1)
  x3 = Reshape(x2, all) qm = Gather<axis = 0>(x3, zeroth) km = Gather<axis = 0>(x3, first)
  vm = Gather<axis = 0>(x3, second)
"""


@pytest.mark.parametrize("batch", ["batch", "3"])
def test_queries_keys_and_values_in_front_of_the_merged_axis(tmp_path: Path, batch: str) -> None:
    """[3, batch * heads, length, size], of which each third is taken."""
    text = ATTENTION.replace(
        "PROJECTIONS",
        "three_ = Constant<value_ints = [3]>() all = Concat<axis = 0>(three_, bh, s0, size_)" + PACKED,
    )
    text = text.replace("SHAPES", SHAPES).replace("SCORES", SOFTMAX).replace("BATCH", batch)
    text = text.replace("MERGE", MERGES["computed"][0]).replace("APART", MERGES["computed"][1])
    numbers = {"thirds": np.asarray([0, 0, 3, HEADS, SIZE]), "zeroth": np.asarray(0), "second": np.asarray(2)}
    weights = {"wx": graphs.array(WIDTH, 3 * WIDTH) / 6, "wo": graphs.array(WIDTH, WIDTH, seed=3) / 6}
    path = graphs.save(tmp_path / "m.onnx", text, weights | _numbers() | numbers)
    for ranks in RANKS:
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": 1}
        assert [str(plan.weights[name][0]) for name in ("wx", "wo")] == ["split:1/3", "split:0"]
    sharding.slice_model(path, 4, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 5, WIDTH)}, tolerance=1e-5)


GROUPED = """
  G0 = MatMul(x, wG) G1 = Reshape(G0, groups) G2 = Transpose<perm = [0, 2, 1, 3]>(G1) G3 = Unsqueeze(G2, two)
  G4 = Expand(G3, twice) G5 = Reshape(G4, heads) Gm = Reshape(G5, merge)
"""


@pytest.mark.parametrize("batch", ["batch", "3"])
def test_heads_of_groups_merged_twice(tmp_path: Path, batch: str) -> None:
    """Groups and their repeats are merged into heads, then heads and rows: the heads are cut."""
    made = (
        "heads = Concat<axis = 0>(b0, heads_, s0, size_) twice = Concat<axis = 0>(one, one, two, one, one) "
    )
    made += PROJECTION.replace("N", "q") + "".join(GROUPED.replace("G", name) for name in "kv")
    text = ATTENTION.replace("PROJECTIONS", made)
    text = text.replace("SHAPES", SHAPES).replace("SCORES", SOFTMAX).replace("BATCH", batch)
    text = text.replace("MERGE", MERGES["computed"][0]).replace("APART", MERGES["computed"][1])
    weights = _weights() | {f"w{n}": graphs.array(WIDTH, WIDTH // 2, seed=5) / 6 for n in "kv"}
    numbers = {"groups": np.asarray([0, 0, HEADS // 2, SIZE])}
    path = graphs.save(tmp_path / "m.onnx", text, weights | _numbers() | numbers)
    for ranks in RANKS[:2]:
        assert sharding.plan_model(path, ranks).collective_counts() == {"AllReduce": 1}
    sharding.slice_model(path, 4, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 5, WIDTH)}, tolerance=1e-5)


SCORES = {
    # A mask for all heads of a row, added with the axes apart for a moment.
    "mask": "sa = Reshape(s, square) m = Add(sa, mask) n = Softmax<axis = -1>(m) p = Reshape(n, together) "
    "| keys = ReduceMean<keepdims = 0>(x, two) mask = Unsqueeze(keys, one_two) "
    "square = Concat<axis = 0>(b0, heads_, s0, s0) together = Concat<axis = 0>(bh, s0, s0)",
    # A mask for the longest sequence, cut at run time, added with the axes apart for a moment.
    "mask cut": "sa = Reshape(s, square) m = Add(sa, mask) n = Softmax<axis = -1>(m) "
    "p = Reshape(n, together) | ends = Concat<axis = 0>(s0, s0) mask = Slice(longest, zeros, ends, last_two) "
    "square = Concat<axis = 0>(b0, heads_, s0, s0) together = Concat<axis = 0>(bh, s0, s0)",
    "mask chosen": "sa = Reshape(s, square) e = Less(mask, limit) m = Where(e, limit, sa) "
    "n = Softmax<axis = -1>(m) p = Reshape(n, together) "
    "| ends = Concat<axis = 0>(s0, s0) mask = Slice(longest, zeros, ends, last_two) "
    "square = Concat<axis = 0>(b0, heads_, s0, s0) together = Concat<axis = 0>(bh, s0, s0)",
    # One slope for each head, repeated for each row.
    "slopes repeated": "m = Add(s, slopes_of_rows) p = Softmax<axis = -1>(m) "
    "| times = Concat<axis = 0>(b0, one, one) slopes_of_rows = Tile(slopes, times)",
    # The same by broadcasting and a Reshape.
    "slopes expanded": "m = Add(s, slopes_of_rows) p = Softmax<axis = -1>(m) "
    "| every = Concat<axis = 0>(b0, heads_, one, one) e = Expand(slopes, every) "
    "flat_slopes = Concat<axis = 0>(bh, one, one) slopes_of_rows = Reshape(e, flat_slopes)",
    # A scale, a bias and a choice that have no batch.
    "broadcast": "m = Mul(s, scale) f = Greater(m, limit) t = Where(f, limit, m) "
    "w = Cast<to = 1>(t) p = Softmax<axis = -1>(w)",
    # The shape of a merged value is asked for.
    "measured": "d = Shape(s) n = Slice(d, two, three) l = Cast<to = 1>(n) r = Sqrt(l) m = Div(s, r) "
    "p = Softmax<axis = -1>(m)",
    # A product with keys of positions, looked up for each pair.
    "positions": "rows_of = Concat<axis = 0>(b0, one, one) "
    "r = MatMul(table, wr) rs = Reshape(r, position_heads) rt = Transpose<perm = [1, 2, 0]>(rs) "
    "rr = Tile(rt, rows_of) sp = MatMul(qm, rr) wide = Concat<axis = 0>(bh, s0, s0) "
    "i = Expand(pairs, wide) g = GatherElements<axis = -1>(sp, i) m = Add(s, g) p = Softmax<axis = -1>(m)",
}


@pytest.mark.parametrize("scores", SCORES)
def test_what_happens_to_scores(tmp_path: Path, scores: str) -> None:
    after, _, before = SCORES[scores].partition("|")
    more = {
        "one_two": np.asarray([1, 2]),
        "slopes": graphs.array(HEADS, 1, 1),
        "scale": graphs.array(1, 1, 1),
    }
    more |= {
        "limit": np.float32(0.5),
        "longest": graphs.array(1, 1, 7, 7),
        "zeros": np.asarray([0, 0]),
        "last_two": np.asarray([2, 3]),
        "table": graphs.array(6, WIDTH),
        "wr": graphs.array(WIDTH, WIDTH, seed=7),
    }
    more |= {"position_heads": np.asarray([6, HEADS, SIZE])}
    more |= {"pairs": np.random.default_rng(1).integers(0, 6, (1, 5, 5))}
    path = _attention(tmp_path / "model.onnx", "batch", "computed", before + after, **more)
    _expert(path, tmp_path, {"x": graphs.array(2, 5, WIDTH)})


def test_lengths_that_the_file_writes_as_products(tmp_path: Path) -> None:
    """torch declares ``8*batch``: the same length as the product that inference finds."""
    after, _, before = SCORES["positions"].partition("|")
    more = {"table": graphs.array(6, WIDTH), "wr": graphs.array(WIDTH, WIDTH, seed=7)}
    more |= {"position_heads": np.asarray([6, HEADS, SIZE])}
    more |= {"pairs": np.random.default_rng(1).integers(0, 6, (1, 5, 5))}
    path = _attention(tmp_path / "model.onnx", "batch", "computed", before + after, **more)
    model = onnx.load(path)
    model.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, kind, ["8*batch", 5, 5])
        for name, kind in (("i", 7), ("g", 1), ("m", 1), ("p", 1))
    )
    onnx.save(model, path)
    _expert(path, tmp_path, {"x": graphs.array(2, 5, WIDTH)})


SEQUENCE_FIRST = """g (float[seq, BATCH, 32] x) => (float[seq, BATCH, 32] y) {
  sh = Shape(x) s0 = Gather<axis = 0>(sh, zero) b0 = Gather<axis = 0>(sh, one) bh = Mul(b0, heads_)
  rows = Concat<axis = 0>(s0, bh, size_)
  q0 = MatMul(x, wq) q1 = Reshape(q0, rows) qm = Transpose<perm = [1, 0, 2]>(q1)
  k0 = MatMul(x, wk) k1 = Reshape(k0, rows) kt = Transpose<perm = [1, 2, 0]>(k1)
  v0 = MatMul(x, wv) v1 = Reshape(v0, rows) vm = Transpose<perm = [1, 0, 2]>(v1)
  s = MatMul(qm, kt)
  p = Softmax<axis = -1>(s)
  c = MatMul(p, vm)
  ct = Transpose<perm = [1, 0, 2]>(c)
  tokens = Mul(s0, b0) pair = Concat<axis = 0>(tokens, width)
  cf = Reshape(ct, pair)
  o = Gemm<transB = 1>(cf, wo, bias)
  back = Concat<axis = 0>(s0, b0, width)
  y = Reshape(o, back)
}"""


@pytest.mark.parametrize("batch", ["batch", "3"])
def test_sequence_first(tmp_path: Path, batch: str) -> None:
    """As torch.nn.MultiheadAttention is exported."""
    weights = _weights() | _numbers() | {"width": np.asarray([WIDTH]), "bias": graphs.array(WIDTH)}
    path = graphs.save(tmp_path / "m.onnx", SEQUENCE_FIRST.replace("BATCH", batch), weights)
    for ranks in RANKS:
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": 1}
        assert {str(plan.weights[name][0]) for name in ("wq", "wk", "wv", "wo")} == {"split:1"}
    sharding.slice_model(path, 4, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(5, 3, WIDTH)}, tolerance=1e-5)


HEADS_FIRST = PROJECTION.replace("[0, 2, 1, 3]", "[2, 0, 1, 3]")


def test_heads_before_the_batch(tmp_path: Path) -> None:
    """The known length of the two may be the outer one."""
    text = ATTENTION.replace("PROJECTIONS", "".join(HEADS_FIRST.replace("N", name) for name in "qkv"))
    text = text.replace("SHAPES", SHAPES).replace("SCORES", SOFTMAX).replace("BATCH", "batch")
    text = text.replace("MERGE", "bh, s0, size_").replace("APART", "heads_, b0, s0, size_")
    text = text.replace("ct = Transpose<perm = [0, 2, 1, 3]>", "ct = Transpose<perm = [1, 2, 0, 3]>")
    path = graphs.save(tmp_path / "m.onnx", text, _weights() | _numbers())
    _expert(path, tmp_path, {"x": graphs.array(3, 5, WIDTH)})


OPERATORS = {
    "Transpose": "r = Transpose<perm = [0, 2, 1]>(m)",
    "unary": "a = Neg(m) b = Tanh(a) c = Cast<to = 1>(b) d = Identity(c) r = Clip(d, low, high)",
    "binary": "a = Add(m, row) b = Sub(two_axes, a) r = Div(b, wide)",
    "own": "a = Mul(m, m) n = Neg(m) e = Greater(a, n) r = Where(e, a, n)",
    "sum": "r = Sum(m, m, row)",
    "softmax": "a = Softmax<axis = 1>(m) r = LogSoftmax<axis = -1>(a)",
    "norm": "r = LayerNormalization<axis = -1>(m, scale, scale)",
    "reduced": "a = ReduceMean<keepdims = 1>(m, last_axes) b = ReduceMax<keepdims = 0>(m, middle) "
    "c = Unsqueeze(b, middle) d = Mul(a, c) r = Add(d, m)",
    "squeezed": "a = ReduceSum<keepdims = 1>(m, last_axes) b = Squeeze(a, last_axes) "
    "c = Unsqueeze(b, last_axes) r = Add(c, m)",
    "axis in front": "a = Unsqueeze(m, zero) b = Transpose<perm = [1, 0, 2, 3]>(a) r = Squeeze(b, one)",
    "pieces": "a, b = Split<axis = 2, num_outputs = 2>(m) r = Concat<axis = -1>(b, a)",
    "slice": "a = Slice(m, zero, two, last_axes) b = Slice(m, two, four, last_axes) "
    "r = Concat<axis = 2>(b, a)",
    "expand": "a = ReduceSum<keepdims = 1>(m, last_axes) e = Shape(m) b = Expand(a, e) r = Add(b, m)",
    "product": "a = MatMul(m, square) t = Transpose<perm = [0, 2, 1]>(a) s = MatMul(m, t) r = MatMul(s, m)",
    "product with all": "a = MatMul(m, one_matrix) r = Relu(a)",
    "positions": "r = GatherElements<axis = 2>(m, taken)",
    "taken": "a = Gather<axis = -1>(m, three_of_four) b = Gather<axis = 2>(m, second) "
    "c = Unsqueeze(b, middle) d = Transpose<perm = [0, 2, 1]>(c) "
    "e = ReduceSum<keepdims = 1>(a, last_axes) r = Add(e, d)",
    "taken in front": "a = Unsqueeze(m, zero) b = Concat<axis = 0>(a, a, a) c = Gather<axis = 0>(b, pair) "
    "d = Transpose<perm = [2, 3, 0, 1, 4]>(c) e = ReduceSum<keepdims = 1>(d, last_axes) "
    "f = ReduceMean<keepdims = 0>(e, two_three) r = Add(f, m)",
    "equation": 'a = Einsum<equation = "bij,bkj->bik">(m, m) c = Einsum<equation = "bik,bkj->bij">(a, m) '
    'b = Einsum<equation = "bij,jk->bik">(c, square) '
    "r = Add(b, m)",
}
MERGED = """g (float[batch, 8, seq, 4] x) => (y) {
  sh = Shape(x) b0 = Gather<axis = 0>(sh, zero) s0 = Gather<axis = 0>(sh, two) bh = Mul(b0, heads_)
  merge = Concat<axis = 0>(bh, s0, size_)
  m = Reshape(x, merge)
  BODY
  rs = Shape(r) tail = Slice(rs, one, three)
  apart = Concat<axis = 0>(b0, heads_, tail)
  z = Reshape(r, apart)
  y = Mul(z, w)
}"""


@pytest.mark.parametrize("fixed", [False, True], ids=["open", "fixed"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_with_the_axes_apart(tmp_path: Path, operator: str, fixed: bool) -> None:
    """Every operator in between is written for the axes apart, and computes the same."""
    text = MERGED.replace("BODY", OPERATORS[operator])
    text = text.replace("[batch, 8, seq, 4]", "[3, 8, 5, 4]") if fixed else text
    result = "batch, 8, a, b" if not fixed else "3, 8, a, b"
    text = text.replace("(y)", f"(float[{result}] y)")
    more: dict[str, graphs.Array] = {"row": graphs.array(5, 4), "two_axes": graphs.array(1, 5, 1)}
    more |= {"wide": graphs.array(1, 1, 4), "scale": graphs.array(4), "square": graphs.array(4, 4)}
    more |= {"one_matrix": graphs.array(1, 4, 4), "low": np.float32(-1), "high": np.float32(1)}
    more |= {"last_axes": np.asarray([-1]), "middle": np.asarray([1]), "four": np.asarray([4])}
    more |= {
        "three_of_four": np.asarray([3, 0, 2]),
        "pair": np.asarray([[2, 0]]),
        "two_three": np.asarray([2, 3]),
    }
    more |= {"w": graphs.array(1, 8, 1, 1), "taken": np.random.default_rng(0).integers(0, 4, (24, 5, 2))}
    if operator == "positions" and not fixed:  # nothing says that there is an index for each row and head
        text = text.replace(
            "r = Gather", "i0 = Concat<axis = 0>(bh, s0, two) i = Expand(one_index, i0) r = Gather"
        )
        text, more["one_index"] = text.replace("taken", "i"), np.asarray([[[3], [1], [0], [2], [1]]])
    path = graphs.save(tmp_path / "model.onnx", text, _numbers() | more)
    merged = {24, "8·batch"}
    assert not any(merged.intersection(shape) for shape in _float_shapes(path))
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 8, 5, 4)}, tolerance=1e-5)


def _float_shapes(path: Path) -> list[tuple[int | str | None, ...]]:
    values = [value for node in read_model(path).model.graph for value in node.outputs]
    return [shape_of(v) or () for v in values if v.dtype is not None and v.dtype.name == "FLOAT"]


@pytest.mark.parametrize(
    ("source", "times", "axis"),
    [
        (["n", 4, 5], [1, 3, 1], 1),
        (["n", 4, 5], [1, "m", 1], 1),
        (["n", 1, 5], [1, 3, 1], None),  # nothing is merged with an axis of length 1
        (["n", 4, 5], [3, 1, 1], None),
        (["n", 4, 5], [1, 3, 3], None),
        (["n", 4, 5], [1, 1, 1], None),
        (["n", 4, 5], [1, None, 1], None),
        (["n", 4, 5], [1, 3], None),
        (["n", 4, 5], None, None),
    ],
)
def test_an_axis_that_is_repeated(source: list[Any], times: list[Any] | None, axis: int | None) -> None:
    found = _repeated(source, None if times is None else known(times))
    assert (None if found is None else (found.axis, found.outer, found.inner)) == (
        None if axis is None or times is None else (axis, times[axis], source[axis])
    )
