"""Indices beyond their axis: each rank refuses, at one place, what ONNX Runtime refuses for the whole."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import sharding
from sharding.planning.plan import plan_model
from sharding.search.refusals import INDICES
from sharding.slices.manifest import read_manifest
from tests.sharding import graphs, lockstep

ROWS, WIDTH = 12, 7
"""So wide that only the rows can be cut."""


def _refusal(path: Path, feeds: dict[str, Any]) -> str:
    """What plain ONNX Runtime says of these inputs; "" where it answers."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    try:
        session.run(None, feeds)
    except Exception as error:  # ONNX Runtime's derive from nothing else
        return str(error).split("Status Message: ")[-1]
    return ""


GATHERS = {
    "rows": ("Gather(w, ids)", graphs.array(ROWS, WIDTH), "p, q, 7"),
    "columns": ("Gather<axis = 1>(w, ids)", graphs.array(WIDTH, ROWS), "7, p, q"),
    "of three axes": ("Gather<axis = -2>(w, ids)", graphs.array(5, ROWS, WIDTH), "5, p, q, 7"),
}
OUTSIDE = [ROWS, ROWS + 1, 10**6, -ROWS - 1, -2 * ROWS, -(2**31)]


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("case", GATHERS)
def test_a_table_cut_along_what_is_indexed(tmp_path: Path, case: str, opset: int, kind: str) -> None:
    node, table, shape = GATHERS[case]
    text = f"g ({kind}[a, b] ids) => (float[{shape}] y) {{ e = {node} y = Tanh(e) }}"
    header = f'<ir_version: 4, opset_import: ["" : {opset}]>\n'
    path = graphs.save(tmp_path / "model.onnx", header + text, {"w": table})
    for world in (2, 3):
        slices = tmp_path / f"slices_{world}"
        sharding.slice_model(path, world, slices)
        assert read_manifest(slices).weights["w"].placement == f"split:{table.shape.index(ROWS)}"
        right = np.array([[0, 5, ROWS - 1], [-1, -ROWS, 6]], kind)
        lockstep.assert_same(slices, path, {"ids": right})
        for number in OUTSIDE:
            wrong = right.copy()
            wrong[1, 2] = number
            said = _refusal(path, {"ids": wrong})
            assert f"idx={number} " in said
            for rank in range(world):
                assert said == _first_segment_says(slices, rank, {"ids": wrong})


def _first_segment_says(slices: Path, rank: int, feeds: dict[str, Any]) -> str:
    """What the rank's own model says before any collective: of itself, without the other ranks."""
    import onnx

    model = onnx.load(slices / f"rank_{rank}.onnx")
    first = next(node for node in model.graph.node if node.domain == "com.microsoft")
    path = slices.parent / "first.onnx"
    onnx.save(model, path)
    onnx.utils.extract_model(path, path, [value.name for value in model.graph.input], [first.input[0]])
    return _refusal(path, feeds)


EMBEDDING = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
g (int32[a, b] ids, int32[a, b] kinds, int32[a, b] places) => (float[a, b, 6] y) {
  e, m = com.microsoft.EmbedLayerNormalization(ids, kinds, w, p, t, gamma, beta, , places)
  y = MatMul(e, v)
}
"""


@pytest.mark.parametrize("columns", [8, 7])
def test_fused_embeddings(tmp_path: Path, columns: int) -> None:
    """They refuse negative numbers too; cut along the columns, and by rows."""
    weights = {
        name: graphs.array(rows, columns, seed=rows) for name, rows in {"w": ROWS, "p": 10, "t": 2}.items()
    }
    weights |= {"gamma": graphs.array(columns), "beta": graphs.array(columns), "v": graphs.array(columns, 6)}
    path = graphs.save(tmp_path / "model.onnx", EMBEDDING, weights)
    sharding.slice_model(path, 2, tmp_path / "slices")
    right = {
        "ids": np.array([[0, 5], [11, 7]], np.int32),
        "kinds": np.array([[0, 1], [1, 0]], np.int32),
        "places": np.array([[9, 3], [0, 1]], np.int32),
    }
    lockstep.assert_same(tmp_path / "slices", path, right)
    for name, numbers in {"ids": (ROWS, -1, -13), "kinds": (2, -1), "places": (10, -1)}.items():
        for number in numbers:
            wrong = {key: array.copy() for key, array in right.items()}
            wrong[name][1, 0] = number
            assert _refusal(path, wrong)
            for rank in range(2):
                assert _first_segment_says(tmp_path / "slices", rank, wrong)


INDEXED = {
    "Gather": "(int64[4, 8] i) => (float[4, 8, 7] y) { e = Gather(w, i) y = Tanh(e) }",
    "GatherElements": """(int64[12, 8] i) => (float[12, 8] y) {
        e = GatherElements<axis = 1>(w8, i) y = Tanh(e) }""",
    "GatherND": "(int64[4, 8, 1] i) => (float[4, 8, 7] y) { e = GatherND(w, i) y = Tanh(e) }",
    "ScatterElements": """(int64[12, 8] i, float[12, 8] u) => (float[12, 8] y) {
        e = ScatterElements<axis = 1>(w8, i, u) y = Tanh(e) }""",
    "ScatterND": "(int64[4, 1] i, float[4, 8] u) => (float[12, 8] y) { e = ScatterND(w8, i, u) y = Tanh(e) }",
}


@pytest.mark.parametrize("case", INDEXED)
def test_indices_that_are_fed_stay_whole(tmp_path: Path, case: str) -> None:
    """Cut, a rank would refuse its part alone; where they are known to be right they may be cut."""
    tables = {"w": graphs.array(ROWS, WIDTH), "w8": graphs.array(ROWS, 8)}
    used = {name: table for name, table in tables.items() if f"({name}," in INDEXED[case]}
    path = graphs.save(tmp_path / "model.onnx", "g " + INDEXED[case], used)
    plan = plan_model(path, 2, allow_replicated=True)
    for step in plan.steps:
        if step.node.op_type == case:
            assert all(str(option.inputs[1]) == "replicated" for option in step.options)
            assert len(step.options) > 1 or case == "ScatterElements"
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    feeds = {}
    for value in plan.source.model.graph.inputs:
        assert value.shape is not None and value.name is not None
        shape = value.shape.numpy()
        high = 8 if "Elements" in case else ROWS
        numbers = np.random.default_rng(0).integers(-high, high, shape)
        feeds[value.name] = numbers if value.name == "i" else graphs.array(*shape)
    if case == "ScatterND":
        feeds["i"] = np.array([[1], [-1], [5], [0]])
    if case == "ScatterElements":
        feeds["i"] = np.tile(np.arange(8), (12, 1))
    lockstep.assert_same(tmp_path / "slices", path, feeds)


MADE = """(float[batch, 8, 6, 9] x, int64[1, 6, 5] fed) => (float[batch, 8, 6, 5] y) {
    sh = Shape(x) b0 = Gather<axis = 0>(sh, zero) bh = Mul(b0, eight) MADE
    g = GatherElements<axis = 3>(x, i) y = Mul(g, w) }"""
EXPAND = "wide = Concat<axis = 0>(b0, eight, six, five) i = Expand({}, wide)"
ALIKE = {
    "a constant": EXPAND.format("taken"),
    "moved": "t = Transpose<perm = [0, 1, 3, 2]>(turned) c = Concat<axis = 2>(t, t) "
    "s, o = Split<axis = 2, num_outputs = 2>(c) " + EXPAND.format("s"),
    "clipped": "c = Clip(fed8, low, high) u = Unsqueeze(c, zero) " + EXPAND.format("u"),
    "divided": "c = Mod(fed8, nine) u = Unsqueeze(c, zero) " + EXPAND.format("u"),
    "repeated": EXPAND.format("fed"),
    "repeated with the batch": "flat = Concat<axis = 0>(bh, six, five) f = Expand(fed, flat) "
    "apart = Concat<axis = 0>(b0, eight, six, five) c = Cast<to = 6>(f) i = Reshape(c, apart)",
}
APART = {
    "fed": "u = Unsqueeze(fed8, zero) " + EXPAND.format("u"),
    "clipped too wide": "c = Clip(fed8, low, nine) u = Unsqueeze(c, zero) " + EXPAND.format("u"),
    "divided by more": "c = Mod(fed8, ten) u = Unsqueeze(c, zero) " + EXPAND.format("u"),
    "a greatest value": "a, b = TopK(fed8, five) u = Unsqueeze(a, zero) " + EXPAND.format("u"),
}


def _heads(tmp_path: Path, made: str) -> tuple[Path, dict[str, Any]]:
    """A model that looks up 5 of 9 elements in each of 8 heads, and inputs for it."""
    fed = "8" if "fed8" in made else "1"
    text = MADE.replace("MADE", made.replace("fed8", "fed")).replace("int64[1,", f"int64[{fed},")
    rng = np.random.default_rng(0)
    numbers = {"zero": 0, "five": 5, "six": 6, "eight": 8}
    more: dict[str, Any] = {name: np.asarray([number]) for name, number in numbers.items()}
    more |= {"low": np.asarray(-9), "high": np.asarray(8), "nine": np.asarray(9), "ten": np.asarray(10)}
    more |= {"taken": rng.integers(0, 9, (1, 8, 6, 5)), "turned": rng.integers(-9, 9, (1, 8, 5, 6))}
    more = {name: array for name, array in more.items() if re.search(rf"\b{name}\b", text)}
    path = graphs.save(tmp_path / "model.onnx", "g " + text, more | {"w": graphs.array(1, 8, 1, 1)})
    return path, {"x": graphs.array(2, 8, 6, 9), "fed": rng.integers(0, 8, (int(fed), 6, 5))}


def _cut_indices(path: Path) -> list[str]:
    """How the options of the lookup have the indices, other than whole."""
    (step,) = [
        item
        for item in plan_model(path, 2, allow_replicated=True).steps
        if item.node.op_type == "GatherElements"
    ]
    return [str(option.inputs[1]) for option in step.options if str(option.inputs[1]) != "replicated"]


@pytest.mark.parametrize("case", ALIKE)
def test_indices_known_to_be_right_or_alike_may_be_cut(tmp_path: Path, case: str) -> None:
    """Heads that look up the same places: nothing is exchanged for them."""
    path, feeds = _heads(tmp_path, ALIKE[case])
    assert "split:1" in _cut_indices(path)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, feeds)


@pytest.mark.parametrize("case", APART)
def test_indices_that_one_rank_alone_may_refuse_stay_whole(tmp_path: Path, case: str) -> None:
    path, feeds = _heads(tmp_path, APART[case])
    assert _cut_indices(path) == []
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, feeds)


def test_a_region_names_its_image(tmp_path: Path) -> None:
    """ONNX Runtime checks the numbers of the images, and not where in them the regions lie."""
    text = """g (float[2, 1, 4, 4] x, float[r, 4] w, int64[r] n) => (float[r, 1, 1, 1] y) {
      y = RoiAlign(x, w, n) }"""
    path = graphs.save(tmp_path / "m.onnx", text, {})
    feeds = {"x": graphs.array(2, 1, 4, 4), "w": np.float32([[0, 0, 99, 99]]), "n": np.asarray([1])}
    assert not _refusal(path, feeds)
    assert _refusal(path, {**feeds, "n": np.asarray([2])})
    assert INDICES["", "RoiAlign"] == (2,)
