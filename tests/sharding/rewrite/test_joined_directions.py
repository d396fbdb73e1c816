"""Two recurrent operators that read one sequence both ways: a direction for each half of the ranks."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from sharding import slice_model
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


def _saved(folder: Path, op: str, backward: str, ends: str, outputs: str = BOTH) -> Path:
    text = GRAPH.replace("BACKWARD", backward).replace("ENDS", ends).replace("OUTPUTS", outputs)
    text = text.replace("MORE", MORE[op]).replace("OP<", f"{op}<")
    text = text.replace("ACTIVATION", "Relu", 1).replace("ACTIVATION", "Tanh")
    weights = {}
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
    """The recurrent nodes of the first of two ranks, which give the whole model's answers."""
    slice_model(model, 2, folder)
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
    ],
    ids=["one alone", "waits", "of the batch", "clip", "waits through a body"],
)
def test_what_is_no_layer_of_two_directions_stays(tmp_path: Path, backward: str, ends: str) -> None:
    assert len(_on_two(_saved(tmp_path, "GRU", backward, ends), tmp_path / "slices")) == 2


def test_parameters_of_activations_stay_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an activation has none, it takes a default; in one list it would take the other direction's."""
    monkeypatch.setitem(MORE, "GRU", ', activations = ["LeakyRelu", "LeakyRelu"], activation_alpha = [0.1]')
    model = _saved(tmp_path, "GRU", REVERSED, "h = Identity(lb)")
    assert len(_on_two(model, tmp_path / "slices")) == 2


def test_a_bidirectional_layer_of_mindspore(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "data" / "mindir" / "lstm" / "model.mindir"
    slice_model(model, 2, tmp_path / "slices")
    nodes = onnx.load(tmp_path / "slices" / "rank_0.onnx", load_external_data=False).graph.node
    assert [node.op_type for node in nodes].count("LSTM") == 1
