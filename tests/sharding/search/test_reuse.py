"""Weights that many steps use: layers that share them, and recurrent cells that an exporter unrolled.

The measure of a plan is an expert's, steered by the names of the weights, by the planner's own estimate; that
of an answer is ONNX Runtime's.
"""

from pathlib import Path

import pytest
import yaml

from sharding.demands.options import SliceOptions
from sharding.planning.plan import Plan, plan_model
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import Array, array

pytestmark = pytest.mark.usefixtures("read_once")

EXPERT = {
    "query*": "column",
    "key*": "column",
    "value*": "column",
    "out*": "row",
    "up*": "column",
    "down*": "row",
}


def layered(path: Path, *, layers: int, kinds: int = 1, transposed: bool = False, width: int = 64) -> Path:
    """Transformer layers over [batch, sequence, width], of which every ``kinds``-th has the same weights."""
    lines, weights = (
        [],
        {"scale": array(1) * 0 + 0.25, "width": _shape(0, 0, width), "heads": _shape(0, 0, 4, -1)},
    )

    def product(x: str, name: str, kind: int, result: str, *shape: int) -> None:
        weight = f"{name}_{kind}"
        weights[weight] = array(*(shape[::-1] if transposed else shape), seed=kind) * 0.1
        if transposed:
            lines.append(f"t_{result} = Transpose<perm = [1, 0]>({weight})")
        lines.append(f"{result} = MatMul({x}, {f't_{result}' if transposed else weight})")

    x = "x"
    for layer in range(layers):
        kind, n = layer % kinds, f"{layer}"
        for name in ("query", "key", "value"):
            product(x, name, kind, f"{name}{n}_flat", width, width)
            lines.append(f"{name}{n}_split = Reshape({name}{n}_flat, heads)")
            lines.append(f"{name}{n}_heads = Transpose<perm = [0, 2, 1, 3]>({name}{n}_split)")
        lines += [
            f"turned{n} = Transpose<perm = [0, 1, 3, 2]>(key{n}_heads)",
            f"scores{n} = MatMul(query{n}_heads, turned{n})",
            f"scaled{n} = Mul(scores{n}, scale)",
            f"soft{n} = Softmax<axis = -1>(scaled{n})",
            f"mixed{n} = MatMul(soft{n}, value{n}_heads)",
            f"back{n} = Transpose<perm = [0, 2, 1, 3]>(mixed{n})",
            f"merged{n} = Reshape(back{n}, width)",
        ]
        product(f"merged{n}", "out", kind, f"attended{n}", width, width)
        lines += [f"sum{n} = Add({x}, attended{n})", f"middle{n} = Tanh(sum{n})"]
        product(f"middle{n}", "up", kind, f"wide{n}", width, 4 * width)
        lines.append(f"active{n} = Relu(wide{n})")
        product(f"active{n}", "down", kind, f"fed{n}", 4 * width, width)
        x = "y" if layer == layers - 1 else f"end{n}"
        lines += [f"total{n} = Add(middle{n}, fed{n})", f"{x} = Tanh(total{n})"]
    shape = f"float[batch, sequence, {width}]"
    return graphs.save(path, f"g ({shape} x) => ({shape} y) {{\n" + "\n".join(lines) + "\n}", weights)


def _shape(*axes: int) -> Array:
    import numpy as np

    return np.asarray(axes, np.int64)


def steered(path: Path, ranks: int) -> Plan:
    """The expert's plan of `layered`."""
    steering = path.with_suffix(".yaml")
    steering.write_text(yaml.safe_dump(EXPERT))
    return plan_model(path, ranks, options=SliceOptions(steering=steering))


@pytest.mark.parametrize(
    ("ranks", "layers", "kinds", "transposed"),
    [
        (2, 15, 1, False),
        (4, 9, 1, True),
        (4, 9, 3, False),
        (2, 6, 3, True),
        (4, 16, 8, False),
    ],
)
def test_layers_that_share_their_weights_have_the_experts_plan(
    tmp_path: Path, ranks: int, layers: int, kinds: int, transposed: bool
) -> None:
    path = layered(tmp_path / "model.onnx", layers=layers, kinds=kinds, transposed=transposed)
    plan, expert = plan_model(path, ranks), steered(path, ranks)
    assert plan.collective_counts() == {"AllReduce": 2 * layers}
    assert plan.seconds() <= expert.seconds() * 1.0001
    assert plan.rank_weight_bytes() <= expert.rank_weight_bytes()
    write_slices(plan, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(2, 5, 64)})


def unrolled(path: Path, *, steps: int, width: int, head: int | None = None) -> Path:
    """An LSTM cell, written out step by step for x of [batch, steps, width], and a product after it."""
    weights = {
        "input": array(width, 4 * width) * 0.05,
        "state": array(width, 4 * width) * 0.05,
        "bias": array(4 * width) * 0.05,
        "zero": array(1, width) * 0,
    }
    lines, h, c = [], "zero", "zero"
    for step in range(steps):
        weights[f"number{step}"] = _shape(step).reshape(())
        lines += [
            f"x{step} = Gather<axis = 1>(x, number{step})",
            f"a{step} = MatMul(x{step}, input)",
            f"b{step} = MatMul({h}, state)",
            f"d{step} = Add(a{step}, b{step})",
            f"e{step} = Add(d{step}, bias)",
            f"i{step}, o{step}, f{step}, g{step} = Split<axis = 1, num_outputs = 4>(e{step})",
            f"si{step} = Sigmoid(i{step})",
            f"so{step} = Sigmoid(o{step})",
            f"sf{step} = Sigmoid(f{step})",
            f"tg{step} = Tanh(g{step})",
            f"kept{step} = Mul(sf{step}, {c})",
            f"new{step} = Mul(si{step}, tg{step})",
            f"c{step} = Add(kept{step}, new{step})",
            f"tc{step} = Tanh(c{step})",
            f"h{step} = Mul(so{step}, tc{step})",
        ]
        h, c = f"h{step}", f"c{step}"
    if head is None:
        lines.append(f"y = Identity({h})")
    else:
        weights["head"] = array(width, head) * 0.05
        lines.append(f"y = MatMul({h}, head)")
    text = f"g (float[batch, {steps}, {width}] x) => (float[batch, {head or width}] y) {{\n"
    return graphs.save(path, text + "\n".join(lines) + "\n}", weights)


def _cut(path: Path, ranks: int) -> Plan:
    """The plan with the cell's weights cut by output, whatever it costs."""
    steering = path.with_suffix(".yaml")
    steering.write_text(yaml.safe_dump({"input": "column", "state": "column"}))
    return plan_model(path, ranks, options=SliceOptions(steering=steering))


def test_a_cell_is_held_whole_where_a_collective_a_step_takes_longer_than_it_saves(tmp_path: Path) -> None:
    path = unrolled(tmp_path / "model.onnx", steps=12, width=64, head=256)
    plan, cut = plan_model(path, 2), _cut(path, 2)
    assert set(plan.split_weights) >= {"head"}
    assert not {"input", "state"} & set(plan.split_weights)
    assert sum(plan.collective_counts().values()) <= 1
    assert sum(cut.collective_counts().values()) >= 12
    assert plan.seconds() < cut.seconds()
    write_slices(plan, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(3, 12, 64)})


def test_a_large_cell_is_cut_for_it_saves_more_than_its_collectives_take(tmp_path: Path) -> None:
    path = unrolled(tmp_path / "model.onnx", steps=8, width=1536, head=64)
    plan = plan_model(path, 2)
    assert {"input", "state"} <= set(plan.split_weights)
    assert plan.seconds() <= plan_model(path, 1).seconds()
    assert sum(plan.collective_counts().values()) <= 8 + 2


def test_a_cell_that_is_all_of_a_model_is_cut(tmp_path: Path) -> None:
    """Whoever asks for ranks wants something cut: with nothing else to cut, the cell is."""
    path = unrolled(tmp_path / "model.onnx", steps=12, width=64)
    plan = plan_model(path, 2)
    assert {"input", "state"} & set(plan.split_weights)


def test_a_few_uses_of_a_single_row_are_cut_all_the_same(tmp_path: Path) -> None:
    path = unrolled(tmp_path / "model.onnx", steps=3, width=64, head=256)
    assert {"input", "state"} <= set(plan_model(path, 2).split_weights)


def alternating(path: Path, steps: int, rows: str, kept: str) -> Path:
    """Products with `up` and `down` in turn; one of the two is an output, too."""
    body = "\n".join(
        f"a{n} = MatMul({f'b{n - 1}' if n else 'x'}, up)\nr{n} = Relu(a{n})\nb{n} = MatMul(r{n}, down)"
        for n in range(steps)
    )
    text = f"g (float[{rows}, 64] x) => (float[{rows}, 64] b{steps - 1}, {kept}) {{\n{body}\n}}"
    return graphs.save(path, text, {"up": array(64, 256) * 0.1, "down": array(256, 64) * 0.1})


def test_a_shared_weight_that_is_an_output_too_is_whole_there(tmp_path: Path) -> None:
    path = alternating(tmp_path / "model.onnx", 6, "batch", "float[256, 64] down")
    plan = plan_model(path, 2)
    assert "up" in plan.split_weights
    write_slices(plan, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(3, 64)})


def test_a_shared_weight_that_is_whole_anyway_has_no_say_in_the_others_cuts(tmp_path: Path) -> None:
    """`up` is an output, so each rank holds it whole; `down` is then best cut by rows."""
    path = alternating(tmp_path / "model.onnx", 5, "512", "float[64, 256] up")
    steering = path.with_suffix(".yaml")
    steering.write_text(yaml.safe_dump({"down": "row"}))
    for ranks in (2, 4):
        plan = plan_model(path, ranks)
        expert = plan_model(path, ranks, options=SliceOptions(steering=steering))
        assert set(plan.split_weights) == {"down"}
        assert plan.seconds() <= expert.seconds()
        assert plan.collective_counts() == expert.collective_counts()
