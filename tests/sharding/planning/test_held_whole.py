"""Weights whose cut would take a collective of their own are held whole: one shared head, latents, masks."""

import re
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest

import sharding
from sharding.planning import held_whole, kept_state
from sharding.slices.placement import Split
from tests.sharding import graphs, lockstep

HEADS, SIZE, WIDTH, LAYERS = 8, 4, 32, 2
NUMBERS = {
    "heads": [0, 0, HEADS, SIZE],
    "flat": [0, 0, WIDTH],
    "one": [1],
    "zeros": [0, 0],
    "last_two": [2, 3],
}

MULTI_QUERY = """
  qN = MatMul(xN, wq_N) qhN = Reshape(qN, heads) qtN = Transpose<perm = [0, 2, 1, 3]>(qhN)
  kN = MatMul(xN, wk_N) kuN = Unsqueeze(kN, one) ktN = Transpose<perm = [0, 1, 3, 2]>(kuN)
  vN = MatMul(xN, wv_N) vuN = Unsqueeze(vN, one)
  sN = MatMul(qtN, ktN) SCORES pN = Softmax<axis = -1>(mN) cN = MatMul(pN, vuN)
  ctN = Transpose<perm = [0, 2, 1, 3]>(cN) cfN = Reshape(ctN, flat) oN = MatMul(cfN, wo_N) OUT = Add(oN, xN)
"""
LATENT = """
  qaN = MatMul(xN, wqa_N) qnN = LayerNormalization(qaN, norm) qN = MatMul(qnN, wq_N)
  laN = MatMul(xN, wla_N) lnN = LayerNormalization(laN, norm) kN = MatMul(lnN, wk_N) vN = MatMul(lnN, wv_N)
  qhN = Reshape(qN, heads) qtN = Transpose<perm = [0, 2, 1, 3]>(qhN)
  khN = Reshape(kN, heads) ktN = Transpose<perm = [0, 2, 3, 1]>(khN)
  vhN = Reshape(vN, heads) vtN = Transpose<perm = [0, 2, 1, 3]>(vhN)
  sN = MatMul(qtN, ktN) SCORES pN = Softmax<axis = -1>(mN) cN = MatMul(pN, vtN)
  ctN = Transpose<perm = [0, 2, 1, 3]>(cN) cfN = Reshape(ctN, flat) oN = MatMul(cfN, wo_N) OUT = Add(oN, xN)
"""
MASKED = "sliceN = Slice(mask, zeros, ends, last_two) mN = Add(sN, sliceN)"
PLAIN = "mN = Identity(sN)"
KEPT = {"multi-query": ("wk", "wv"), "latent": ("wqa", "wla")}


def _model(path: Path, kind: str, scores: str, length: int | None = None) -> Path:
    layer = MULTI_QUERY if kind == "multi-query" else LATENT
    body = "sh = Shape(x) length = Gather<axis = 0>(sh, one) ends = Concat<axis = 0>(length, length)"
    weights = {name: np.asarray(value, np.int64) for name, value in NUMBERS.items()}
    weights |= {"norm": graphs.array(SIZE), "mask": graphs.array(1, 1, 16, 16)}
    weights |= {"unit": np.float32(1), "eights": np.asarray([8, 8])}
    narrow = (WIDTH, SIZE)
    if kind == "multi-query":
        shapes = {"wq": (WIDTH, WIDTH), "wk": narrow, "wv": narrow, "wo": (WIDTH, WIDTH)}
    else:
        shapes = {"wqa": narrow, "wla": narrow, "wo": (WIDTH, WIDTH)}
        shapes |= dict.fromkeys(("wq", "wk", "wv"), (SIZE, WIDTH))
    for number in range(LAYERS):
        own = layer.replace("SCORES", scores).replace("OUT", f"x{number + 1}")
        body += _numbered(own, number)
        for seed, (name, shape) in enumerate(shapes.items()):
            weights[f"{name}_{number}"] = graphs.array(*shape, seed=seed) / 4
    body = body.replace(f"x{LAYERS} =", "y =").replace("x0", "x")
    if "mask" not in body:
        del weights["mask"]
    text = f"g (float[batch, seq, {WIDTH}] x) => (float[batch, seq, {WIDTH}] y) {{ {body} }}"
    return graphs.save(path, text.replace("seq", str(length)) if length else text, weights)


def _numbered(layer: str, number: int) -> str:
    """Every name that ends in N ends in the layer's number."""
    return re.sub(r"\b(\w+?)N\b", rf"\g<1>{number}", layer)


@pytest.mark.parametrize("scores", [PLAIN, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("kind", KEPT)
def test_one_sum_a_layer(tmp_path: Path, kind: str, scores: str) -> None:
    path = _model(tmp_path / "model.onnx", kind, scores)
    for ranks in (2, 4, 8):
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": LAYERS}
        for number in range(LAYERS):
            assert all(str(plan.weights[f"{name}_{number}"][0]) == "replicated" for name in KEPT[kind])
            assert str(plan.weights[f"wq_{number}"][0]) == "split:1"
            assert str(plan.weights[f"wo_{number}"][0]) == "split:0"
    sharding.slice_model(path, 4, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 5, WIDTH)}, tolerance=1e-5)


PACKED_CACHE = """
  pN = MatMul(xN, wp_N) bN = Add(pN, bias) uN = Unsqueeze(bN, one) qN, kN, vN = Split<axis = -1>(uN, sizes)
  qhN = Reshape(qN, own) qtN = Transpose<perm = [0, 2, 1, 3]>(qhN)
  kcN = Concat<axis = 2>(pk_N, kN) vcN = Concat<axis = 2>(pv_N, vN) ktN = Transpose<perm = [0, 1, 3, 2]>(kcN)
  sN = MatMul(qtN, ktN) mN = Softmax<axis = -1>(sN) cN = MatMul(mN, vcN)
  ctN = Transpose<perm = [0, 2, 1, 3]>(cN) cfN = Reshape(ctN, flat) oN = MatMul(cfN, wo_N) OUT = Add(oN, xN)
"""


def test_one_head_that_is_given_back(tmp_path: Path) -> None:
    """Keys and values kept for the next token are outputs, whole; equal biases of layers are one weight."""
    names = [f"{kind}_{number}" for number in range(LAYERS) for kind in ("k", "v")]
    body = "sh = Shape(x) rows = Slice(sh, zero, two) hs = Constant<value_ints = [8, 4]>() "
    body += "own = Concat<axis = 0>(rows, hs) "
    weights = {name: np.asarray(value, np.int64) for name, value in NUMBERS.items()}
    weights |= {"zero": np.asarray([0]), "two": np.asarray([2]), "sizes": np.asarray([WIDTH, SIZE, SIZE])}
    weights |= {"bias": graphs.array(WIDTH + 2 * SIZE)}
    for number in range(LAYERS):
        body += _numbered(PACKED_CACHE.replace("OUT", f"x{number + 1}"), number)
        weights[f"wp_{number}"] = graphs.array(WIDTH, WIDTH + 2 * SIZE, seed=number) / 4
        weights[f"wo_{number}"] = graphs.array(WIDTH, WIDTH, seed=number) / 4
    body = body.replace(f"x{LAYERS} =", "y =").replace("x0", "x")
    given = ", ".join(f"float[batch, 1, past, 4] p{name}" for name in names)
    back = ", ".join(f"float[batch, 1, total, 4] {name[0]}c{name[2:]}" for name in names)
    text = f"g (float[batch, seq, {WIDTH}] x, {given}) => (float[batch, seq, {WIDTH}] y, {back}) {{ {body} }}"
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    feeds = {"x": graphs.array(2, 3, WIDTH)} | {
        f"p{name}": graphs.array(2, 1, 5, SIZE, seed=i) for i, name in enumerate(names)
    }
    for ranks in (2, 4):
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": LAYERS}
        whole = {name for name, where in plan.weights.items() if str(where[0]) == "replicated"}
        keys = {f"wp_{number}/columns_{start}" for number in range(LAYERS) for start in (WIDTH, WIDTH + SIZE)}
        assert keys <= whole
        sharding.slice_model(path, ranks, tmp_path / f"{ranks}")
        lockstep.assert_same(tmp_path / f"{ranks}", path, feeds, tolerance=1e-5)


FIXED = {
    "added": "mN = Add(sN, mask)",
    "scaled": "rN = Sub(unit, mask) tN = Mul(rN, unit) mN = Add(sN, tN)",
    "cut": "tN = Slice(mask, zeros, eights, last_two) mN = Add(sN, tN)",
}


@pytest.mark.parametrize("form", FIXED)
@pytest.mark.parametrize("kind", KEPT)
def test_a_mask_for_a_fixed_length(tmp_path: Path, kind: str, form: str) -> None:
    """Larger than any weight, it could be cut by queries, and then all else would be exchanged for it."""
    path = _model(tmp_path / "model.onnx", kind, FIXED[form], length=8 if form == "cut" else 16)
    for ranks in (2, 4, 8):
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": LAYERS}
        assert str(plan.weights["mask"][0]) == "replicated"
    sharding.slice_model(path, 2, tmp_path / "slices")
    feeds = {"x": graphs.array(2, 8 if form == "cut" else 16, WIDTH)}
    lockstep.assert_same(tmp_path / "slices", path, feeds, tolerance=1e-5)


def test_a_narrow_weight_that_costs_nothing_is_cut(tmp_path: Path) -> None:
    """From many to few and back: the first by column, the second by row, as ever."""
    text = """g (float[batch, 64] x) => (float[batch, 64] y) {
      a = MatMul(x, w1) b = Relu(a) y = MatMul(b, w2)
    }"""
    weights = {"w1": graphs.array(64, 16), "w2": graphs.array(16, 64)}
    plan = sharding.plan_model(graphs.save(tmp_path / "m.onnx", text, weights), 4)
    assert plan.collective_counts() == {"AllReduce": 1}
    assert plan.whole_weights == ()


def test_nothing_is_tried_that_cannot_save_an_exchange(tmp_path: Path) -> None:
    """The second product of a feed-forward is narrow and summed, but what it reads is in parts: with its
    weight whole these would be gathered, so that one search finds the plan."""
    up, down = graphs.array(WIDTH, 4 * WIDTH), graphs.array(4 * WIDTH, WIDTH)
    others = {"w0": graphs.array(WIDTH, 16 * WIDTH), "w1": graphs.array(16 * WIDTH, WIDTH)}
    text = """
    g (float[batch, 32] x) => (float[batch, 32] y) {
      a = MatMul(x, up) b = Relu(a) c = MatMul(b, down) d = MatMul(c, w0) e = Relu(d) y = MatMul(e, w1)
    }
    """
    path = graphs.save(tmp_path / "model.onnx", text, {"up": up, "down": down, **others})
    with mock.patch.object(held_whole, "solve_with_state", wraps=held_whole.solve_with_state) as tried:
        sharding.slice_model(path, 2, tmp_path / "slices")
    assert tried.call_count == 0
    assert lockstep.collectives(tmp_path / "slices") == ["AllReduce", "AllReduce"]
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, WIDTH)})


def test_weights_that_may_be_whole_may_be_so_with_state_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second search has what the first one has."""
    asked: list[dict[str, object]] = []
    held = {"past": Split(1)}

    def solve(*_: object, **options: object) -> list[int]:
        asked.append(options)
        return [len(asked)]

    monkeypatch.setattr(kept_state, "solve", solve)
    monkeypatch.setattr(kept_state, "settle", lambda source, graph, found, world: found)
    monkeypatch.setattr(kept_state, "wishes", lambda *_: held)
    monkeypatch.setattr(kept_state, "place", lambda *_: held)
    monkeypatch.setattr(kept_state, "count_collectives", lambda source, graph, found, world: 9 - found[0])
    assert kept_state.solve_with_state(mock.Mock(), [], 2, whole={"mask"}) == [2]
    assert asked == [{"whole": {"mask"}}, {"whole": {"mask"}, "held": held}]
    # Where that saves nothing, the state stays as it lies; where this saves nothing either, all as it was.
    lies = {"past": Split(0)}
    monkeypatch.setattr(kept_state, "place", lambda *_: lies)
    for worth, found in ((lambda number: number != 3, 3), (lambda number: True, 1)):
        asked.clear()
        monkeypatch.setattr(kept_state, "count_collectives", lambda s, g, choices, w, m=worth: m(choices[0]))
        assert kept_state.solve_with_state(mock.Mock(), [], 2, whole=()) == [found]
        assert [one.get("held") for one in asked] == [None, held, lies]


@pytest.mark.parametrize("turned", [0, 1])
def test_a_narrow_weight_may_lie_turned(tmp_path: Path, turned: int) -> None:
    """The one head of keys and of values, [columns, rows], is known as narrow as the same the other way."""
    layers, weights, body = 1, {name: np.asarray(value, np.int64) for name, value in NUMBERS.items()}, ""
    for name in ("k", "v"):
        weights[f"w{name}_0"] = graphs.array(*((SIZE, WIDTH) if turned else (WIDTH, SIZE))) / 4
    weights |= {"wq_0": graphs.array(WIDTH, WIDTH) / 4, "wo_0": graphs.array(WIDTH, WIDTH, seed=3) / 4}
    body = _numbered(MULTI_QUERY.replace("SCORES", PLAIN).replace("OUT", "y"), 0).replace("x0", "x")
    for name in ("k", "v"):
        plain, fused = f"MatMul(x, w{name}_0)", f"com.microsoft.FusedMatMul<transB = {turned}>(x, w{name}_0)"
        body = body.replace(plain, fused)
    text = f"g (float[batch, seq, {WIDTH}] x) => (float[batch, seq, {WIDTH}] y) {{ {body} }}"
    onnx.save(graphs.model(text, weights), tmp_path / "model.onnx")
    plan = sharding.plan_model(tmp_path / "model.onnx", 4)
    assert plan.collective_counts() == {"AllReduce": layers}
    assert {name for name, where in plan.weights.items() if str(where[0]) == "replicated"} == {"wk_0", "wv_0"}
