"""Two recurrent operators that read one sequence both ways: a direction for each half of the ranks."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sharding import slice_model
from sharding.reading.read import read_model
from sharding.rewrite.joined_directions import _reversed
from tests.sharding import graphs, lockstep

HIDDEN, INPUTS = 8, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
MORE = {"LSTM": "", "GRU": ", linear_before_reset = 1", "RNN": ', activations = ["ACTIVATION"]'}
LAST = {"LSTM": "l, c", "GRU": "l", "RNN": "l"}
REVERSED = (
    "xr = Slice(x, last, first, zero, back) yb, LASTb = OP<hidden_size = 8MORE>(xr, wb, rb, bb, , hb) "
    "ub = Squeeze(yb, one) vb = Slice(ub, last, first, zero, back)"
)
DIRECTION = (
    'yb, LASTb = OP<hidden_size = 8, direction = "reverse"MORE>(x, wb, rb, bb, , hb) vb = Squeeze(yb, one)'
)
GRAPH = """g (float[time, batch, 6] x, float[1, batch, 8] hf, float[1, batch, 8] hb) => (OUTPUTS) {
  yf, LASTf = OP<hidden_size = 8MORE>(x, wf, rf, bf, , hf) vf = Squeeze(yf, one)
  BACKWARD
  y = Concat<axis = 2>(vf, vb) z = MatMul(y, wo)
  ENDS
}"""
BOTH = "float[time, batch, 5] z, float[n, batch, 8] h"


def _saved(
    folder: Path,
    op: str,
    backward: str,
    ends: str,
    outputs: str = BOTH,
    more: dict[str, graphs.Array] | None = None,
) -> Path:
    text = GRAPH.replace("BACKWARD", backward).replace("ENDS", ends).replace("OUTPUTS", outputs)
    text = text.replace("MORE", MORE[op]).replace("OP<", f"{op}<")
    text = text.replace("ACTIVATION", "Relu", 1).replace("ACTIVATION", "Tanh")
    weights = dict(more or {})
    for number, way in enumerate("fb"):
        text = text.replace(f"LAST{way}", ", ".join(f"{name}{way}" for name in LAST[op].split(", ")))
        wide = GATES[op] * HIDDEN
        weights[f"w{way}"] = graphs.array(1, wide, INPUTS, seed=number) / 3
        weights[f"r{way}"] = graphs.array(1, wide, HIDDEN, seed=number) / 3
        weights[f"b{way}"] = graphs.array(1, 2 * wide, seed=number) / 3
    numbers = {"last": -1, "first": -(2**63), "zero": 0, "one": 1, "back": -1}
    weights |= {name: np.array([number], np.int64) for name, number in numbers.items()}
    return graphs.save(folder / "model.onnx", text, weights | {"wo": graphs.array(2 * HIDDEN, 5)})


def _feeds() -> dict[str, graphs.Array]:
    return {
        "x": graphs.array(5, 3, INPUTS),
        "hf": graphs.array(1, 3, HIDDEN),
        "hb": graphs.array(1, 3, HIDDEN, seed=1),
    }


def _on_two(model: Path, folder: Path) -> list[onnx.NodeProto]:
    return _on_ranks(model, folder, 2)


def _on_ranks(model: Path, folder: Path, ranks: int) -> list[onnx.NodeProto]:
    """The recurrent nodes of the first of so many ranks, which give the whole model's answers."""
    slice_model(model, ranks, folder, allow_replicated=True)
    feeds = _feeds()
    session = graphs.session(model)
    feeds = {item.name: feeds[item.name] for item in session.get_inputs()}
    expected = dict(zip([item.name for item in session.get_outputs()], session.run(None, feeds), strict=True))
    for outputs in lockstep.run_slices(folder, feeds):
        for name, value in expected.items():
            assert lockstep.relative_error(outputs[name], value) < 1e-5, name
    nodes = onnx.load(folder / "rank_0.onnx", load_external_data=False).graph.node
    return [node for node in nodes if node.op_type in GATES]


@pytest.mark.parametrize("backward", [REVERSED, DIRECTION], ids=["reversed", "direction"])
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(
    "ends",
    [
        "h = Concat<axis = 0>(hf, lf, lb)",
        "h = Add(lf, lb)",
        "h0 = Concat<axis = 0>(lf, lb) h = Add(h0, lf)",  # together, and one alone
        "k = ReduceMax<keepdims = 0>(x) c = Cast<to = 9>(k) h = If(c) <then_branch = one () => "
        "(float[n, batch, 8] h1) { h1 = Concat<axis = 0>(lf, lb) }, else_branch = other () => "
        "(float[n, batch, 8] h2) { h2 = Concat<axis = 0>(lb, lf) }>",
    ],
    ids=["together", "apart", "both", "in bodies"],
)
def test_each_rank_holds_one_direction(tmp_path: Path, op: str, backward: str, ends: str) -> None:
    (node,) = _on_two(_saved(tmp_path, op, backward, ends), tmp_path / "slices")
    found = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert found["direction"] == b"forward"
    assert found.get("activations") == ([b"Relu"] if op == "RNN" else None)


def test_the_last_states_alone_are_enough(tmp_path: Path) -> None:
    model = _saved(tmp_path, "LSTM", REVERSED, "h = Concat<axis = 0>(lf, lb)", "float[n, batch, 8] h")
    assert len(_on_two(model, tmp_path / "slices")) == 1


@pytest.mark.parametrize(
    ("backward", "ends"),
    [
        (REVERSED, "h0 = ReduceSum(vf, zero) h = Add(lf, h0)"),  # the states of one are read alone
        (REVERSED.replace(", hb)", ", lf)"), "h = Identity(lb)"),  # the backward one waits for the other
        (REVERSED.replace("ub, last, first, zero", "ub, last, first, one"), "h = Identity(lb)"),  # the batch
        (REVERSED.replace("8MORE", "8, clip = 0.1MORE"), "h = Identity(lb)"),
        (  # it waits for the other through a body
            "k = ReduceMax<keepdims = 0>(x) c = Cast<to = 9>(k) s = If(c) <then_branch = one () => "
            "(float[1, batch, 8] h1) { h1 = Neg(lf) }, else_branch = other () => "
            "(float[1, batch, 8] h2) { h2 = Identity(lf) }>" + REVERSED.replace(", hb)", ", s)"),
            "h = Identity(lb)",
        ),
        ("w2 = Add(wb, wb) " + REVERSED.replace("wb", "w2"), "h = Identity(lb)"),
        (REVERSED, "h0 = ReduceSum(yb, zero) h = Squeeze(h0, zero) h1 = Identity(lb)"),
    ],
    ids=["one alone", "waits", "of the batch", "clip", "waits through a body", "computed", "whole"],
)
def test_what_is_no_layer_of_two_directions_stays(tmp_path: Path, backward: str, ends: str) -> None:
    assert len(_on_two(_saved(tmp_path, "GRU", backward, ends), tmp_path / "slices")) == 2


def test_weights_that_are_cut_out_of_others(tmp_path: Path) -> None:
    """The places where they are cut are what many weights may use."""
    cut = "w2 = Slice(wide, zero, wider, one) r2 = Transpose<perm = [0, 2, 1]>(turned) "
    wide = graphs.array(1, 30, INPUTS, seed=1) / 3
    turned = graphs.array(1, HIDDEN, 24, seed=1) / 3
    more = {"wide": wide, "turned": turned, "wider": np.array([24], np.int64)}
    backward = cut + REVERSED.replace("wb", "w2").replace("rb", "r2")
    model = _saved(tmp_path, "GRU", backward, "h = Identity(lb)", more=more)
    assert len(_on_two(model, tmp_path / "slices")) == 1


def test_parameters_of_activations_stay_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an activation has none, it takes a default; in one list it would take the other direction's."""
    monkeypatch.setitem(MORE, "GRU", ', activations = ["LeakyRelu", "LeakyRelu"], activation_alpha = [0.1]')
    model = _saved(tmp_path, "GRU", REVERSED, "h = Identity(lb)")
    assert len(_on_two(model, tmp_path / "slices")) == 2


def test_a_bidirectional_layer_of_mindspore(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "data" / "mindir" / "lstm" / "model.mindir"
    slice_model(model, 2, tmp_path / "slices")
    nodes = onnx.load(tmp_path / "slices" / "rank_0.onnx", load_external_data=False).graph.node
    (node,) = (node for node in nodes if node.op_type == "LSTM")
    found = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert found["direction"] == b"forward"


@pytest.mark.parametrize(
    ("bounds", "all_of_it"), [((-1, -6), True), ((4, -6), True), ((-1, 0), False), ((3, -6), False)]
)
def test_a_slice_that_stops_short_is_no_reversal(bounds: tuple[int, int], all_of_it: bool) -> None:
    text = "g (float[5, batch] x) => (float[n, batch] y) { y = Slice(x, a, b, zero, back) }"
    numbers = {"a": bounds[0], "b": bounds[1], "zero": 0, "back": -1}
    weights = {name: np.array([number], np.int64) for name, number in numbers.items()}
    graph = ir.serde.deserialize_model(graphs.model(text, weights)).graph
    assert (_reversed(graph.outputs[0]) is graph.inputs[0]) == all_of_it


@pytest.mark.parametrize(("place", "number"), [("zero", [1]), ("back", [-2]), ("back", [1]), ("a", [-2, -1])])
def test_a_slice_of_another_kind_is_no_reversal(place: str, number: list[int]) -> None:
    text = "g (float[5, batch] x) => (float[n, batch] y) { y = Slice(x, a, b, zero, back) }"
    numbers = {"a": [-1], "b": [-6], "zero": [0], "back": [-1]} | {place: number}
    weights = {name: np.array(item, np.int64) for name, item in numbers.items()}
    graph = ir.serde.deserialize_model(graphs.model(text, weights)).graph
    assert _reversed(graph.outputs[0]) is None


def _directions(nodes: list[onnx.NodeProto]) -> list[object]:
    found = ([item for item in node.attribute if item.name == "direction"] for node in nodes)
    return [onnx.helper.get_attribute_value(items[0]) if items else b"forward" for items in found]


def test_three_ranks_hold_the_layer_whole(tmp_path: Path) -> None:
    model = _saved(tmp_path, "GRU", REVERSED, "h = Concat<axis = 0>(lf, lb)")
    assert _directions(_on_ranks(model, tmp_path / "slices", 3)) == [b"bidirectional"]


@pytest.mark.parametrize("backward", [REVERSED, DIRECTION], ids=["reversed", "direction"])
def test_last_states_that_the_model_returns(tmp_path: Path, backward: str) -> None:
    ends = "h = Concat<axis = 0>(lf, lb)"
    outputs = f"{BOTH}, float[1, batch, 8] lf, float[1, batch, 8] lb"
    model = _saved(tmp_path, "GRU", backward, ends, outputs)
    assert _directions(_on_two(model, tmp_path / "slices")) == [b"forward"]


@pytest.mark.parametrize(
    ("backward", "alone"), [(REVERSED, "ub"), (REVERSED, "vb"), (DIRECTION, "vb"), (DIRECTION, "vf")]
)
def test_states_that_the_model_returns_stay(tmp_path: Path, backward: str, alone: str) -> None:
    model = _saved(tmp_path, "GRU", backward, "h = Identity(lb)", f"{BOTH}, float[time, batch, 8] {alone}")
    assert len(_on_two(model, tmp_path / "slices")) == 2
    assert b"bidirectional" not in _directions(_read(model))


def _read(model: Path) -> list[onnx.NodeProto]:
    """The recurrent nodes as planning sees them."""
    nodes = read_model(model).model.graph
    return [ir.serde.serialize_node(node) for node in nodes if node.op_type in GATES]


def test_an_input_that_is_left_out_at_the_end(tmp_path: Path) -> None:
    model = _saved(tmp_path, "LSTM", REVERSED.replace(", hb)", ", hb, , )"), "h = Identity(lb)")
    assert _directions(_on_two(model, tmp_path / "slices")) == [b"forward"]


SECOND = (
    "yf2, lf2 = GRU<hidden_size = 8>(y, wf2, rf) vf2 = Squeeze(yf2, one) "
    "yr = Slice(y, last, first, zero, back) yb2, lb2 = GRU<hidden_size = 8>(yr, wb2, rb) "
    "ub2 = Squeeze(yb2, one) vb2 = Slice(ub2, last, first, zero, back) "
    "y2 = Concat<axis = 2>(vf2, vb2) h = ReduceSum<keepdims = 0>(y2, two)"
)


def _stacked(folder: Path, second: str) -> Path:
    more = {f"w{way}2": graphs.array(1, 24, 2 * HIDDEN, seed=number) / 4 for number, way in enumerate("fb")}
    more |= {f"r{way}2": graphs.array(1, 24, HIDDEN, seed=number) / 4 for number, way in enumerate("fb")}
    return _saved(folder, "GRU", REVERSED, second, more=more | {"two": np.array([2], np.int64)})


def test_two_layers(tmp_path: Path) -> None:
    second = SECOND.replace("rf)", "rf2)").replace("rb)", "rb2)")
    model = _stacked(tmp_path, second)
    assert _directions(_on_two(model, tmp_path / "slices")) == [b"forward"] * 2


def test_weights_of_two_pairs_are_kept_once(tmp_path: Path) -> None:
    manifest = slice_model(_stacked(tmp_path, SECOND), 2, tmp_path / "slices")
    assert not [
        name for name in manifest.weights if name.startswith(("rf", "rb")) and name not in ("rf", "rb")
    ]
    assert len(_on_two(tmp_path / "model.onnx", tmp_path / "again")) == 4


def test_a_sequence_in_numbers_that_two_branches_read(tmp_path: Path) -> None:
    """One operator stands in each branch: they are never computed both."""
    text = """g (float[1, 3, 32] h0, float[3] k) => (float[1, 3, 32] z) {
      s = ReduceMax<keepdims = 0>(k) c = Greater(s, half) z = If(c) <
        then_branch = one () => (float[1, 3, 32] z1) { yf, z1 = GRU<hidden_size = 32>(x, wf, rf, , , h0) },
        else_branch = other () => (float[1, 3, 32] z2) {
          yb, z2 = GRU<hidden_size = 32, direction = "reverse">(x, wb, rb, , , h0)
        }
      >
    }"""
    weights = {f"w{way}": graphs.array(1, 96, INPUTS, seed=seed) / 3 for seed, way in enumerate("fb")}
    weights |= {f"r{way}": graphs.array(1, 96, 32, seed=seed) / 3 for seed, way in enumerate("fb")}
    weights |= {"x": graphs.array(5, 3, INPUTS), "half": np.array(0.5, np.float32)}
    model = graphs.save(tmp_path / "model.onnx", text, weights)
    slice_model(model, 2, tmp_path / "slices", allow_replicated=True)
    assert sorted(map(str, _directions(_read(model)))) == ["b'forward'", "b'reverse'"]
    for level in (0.0, 1.0):
        feeds = {"h0": graphs.array(1, 3, 32), "k": np.full(3, level, np.float32)}
        lockstep.assert_same(tmp_path / "slices", model, feeds)
