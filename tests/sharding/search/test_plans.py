"""Plans of transformers are an expert's: two AllReduces a layer, and nothing else in the layers."""

from pathlib import Path

import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.graph.sizes import SYMBOL_LENGTH, Sizes
from sharding.planning import plan as planning
from sharding.planning.plan import Plan
from sharding.reading.read import read_model
from sharding.search.solve import counted_weights
from sharding.search.steps import steps
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep
from tests.sharding.llama import sized

pytestmark = pytest.mark.usefixtures("read_once")


def _shares(plan: Plan, name: str) -> set[str]:
    return {str(where) for where in plan.weights[name]}


@pytest.mark.parametrize("cache", [False, True], ids=["plain", "cache"])
@pytest.mark.parametrize(
    ("ranks", "kv_heads", "kept"), [(2, 2, "split:1"), (4, 2, "split:1*2"), (4, 4, "split:1")]
)
def test_grouped_heads(tmp_path: Path, ranks: int, kv_heads: int, kept: str, cache: bool) -> None:
    """Key/value heads fewer than ranks are held by group, and so is a cache, which no rank ever sends."""
    model = sized(kv_heads=kv_heads, cache=cache)
    path = model.save(tmp_path / "model.onnx")
    plan = sharding.plan_model(path, ranks)
    # Two a layer; one for the embedding and one for the head, which may be sums or parts put together.
    counts = plan.collective_counts()
    assert sum(counts.values()) == 2 * model.layers + 2 and counts["AllReduce"] >= 2 * model.layers
    for layer in range(model.layers):
        assert _shares(plan, f"k_{layer}") == _shares(plan, f"v_{layer}") == {kept}
        assert _shares(plan, f"q_{layer}") == {"split:1"}
        assert _shares(plan, f"o_{layer}") == {"split:0"}
    assert [pair.placement for pair in plan.state] == [kept] * (2 * model.layers if cache else 0)
    assert plan.whole == {}
    total = sum(weight.nbytes for weight in plan.source.weights.values())
    assert plan.rank_weight_bytes() <= (1 / ranks + 0.03) * total
    write_slices(plan, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, model.feeds())


@pytest.mark.parametrize("strategy", ["tensor", "pipeline"])
def test_a_plan_leaves_what_was_read_as_it_was(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` plans one model for many meshes, and tests read a file once for several plans (`read_once`)."""
    import onnx_ir as ir

    source = read_model(sized(kv_heads=2, cache=True).save(tmp_path / "model.onnx"))
    before = ir.serde.serialize_model(source.model).SerializeToString(deterministic=True)
    weights = dict(source.weights)
    monkeypatch.setattr(planning, "read_model", lambda *_: source)
    sharding.slice_model(source.path, 4, tmp_path / "slices", options=SliceOptions(strategy=strategy))
    assert ir.serde.serialize_model(source.model).SerializeToString(deterministic=True) == before
    assert source.weights == weights


def test_one_head_for_all_is_whole_or_summed(tmp_path: Path) -> None:
    model = sized(kv_heads=1)
    path = model.save(tmp_path / "model.onnx")
    plan = sharding.plan_model(path, 4)
    assert not any("*" in share for name in ("k_0", "v_0") for share in _shares(plan, name))
    write_slices(plan, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, model.feeds())


def test_repeated_layers_get_the_same_answer(tmp_path: Path) -> None:
    layers = 24
    plan = sharding.plan_model(sized(layers=layers).save(tmp_path / "model.onnx"), 4)
    kinds = ("norm1", "norm2", "q", "k", "v", "o", "gate", "up", "down")
    for kind in kinds:
        held = [
            _shares(plan, f"{kind}_{layer}")
            for layer in range(1, layers)
            if f"{kind}_{layer}" in plan.weights
        ]
        assert len(held) == layers - 1
        assert all(share == held[0] for share in held), kind
    assert len(plan.collectives) == 2 * layers + 2


@pytest.mark.parametrize(
    ("symbol", "length"),
    [
        ("seq", SYMBOL_LENGTH),
        (None, SYMBOL_LENGTH),
        ("past + seq", 2 * SYMBOL_LENGTH),
        ("(((height - 1)//32)) + 1", (SYMBOL_LENGTH - 1) // 32 + 1),
        ("2*s0*s1", SYMBOL_LENGTH**2),
        ("s0 - s1", 1),
        # What is no formula, or no length, or a trap.
        *((text, SYMBOL_LENGTH) for text in ("1//0", "f(x)", "9**9**9**9", "(" * 99, "s0 +", "s0 or 1", "")),
    ],
)
def test_lengths_of_symbols(symbol: str | None, length: int) -> None:
    assert Sizes().length(symbol) == length


def test_small_weights_are_no_reason_for_a_collective(tmp_path: Path) -> None:
    """A router of 0.5 % is whole; of equal weights that are together too large, all count."""
    body = "a = MatMul(x, w1) b = Relu(a) y = MatMul(b, w2) {more}"
    text = "g (float[n, 16] x) => (float[n, 4] y{out}) {{ " + body + " }}"
    weights = {"w1": graphs.array(16, 800), "w2": graphs.array(800, 4), "r0": graphs.array(16, 4)}
    one = graphs.save(
        tmp_path / "one.onnx",
        text.format(out=", float[n, 4] z0", more="p0 = MatMul(x, r0) z0 = Softmax(p0)"),
        weights,
    )
    plan = sharding.plan_model(one, 2)
    assert counted_weights(plan.source) == {"w1", "w2"}
    assert plan.collective_counts() == {"AllReduce": 1}
    weights |= {f"r{i}": graphs.array(16, 4, seed=i) for i in range(1, 5)}
    many = graphs.save(
        tmp_path / "many.onnx",
        text.format(
            out="".join(f", float[n, 4] z{i}" for i in range(5)),
            more=" ".join(f"p{i} = MatMul(x, r{i}) z{i} = Softmax(p{i})" for i in range(5)),
        ),
        weights,
    )
    assert counted_weights(sharding.plan_model(many, 2).source) == set(weights)


@pytest.mark.parametrize("ranks", [2, 3])
def test_gated_columns_that_are_joined_with_others(ranks: int, tmp_path: Path) -> None:
    """A parallel block: 24 columns of attention stand beside 48 gated ones, so these are two blocks, and gate
    and values are four."""
    text = """block (float[batch, 24] x) => (float[batch, 24] y) {
      sizes = Constant<value_ints = [24, 96]>()
      p = MatMul(x, w1)
      a, g = Split<axis = 1>(p, sizes)
      halves = Constant<value_ints = [48, 48]>()
      gate, up = Split<axis = 1>(g, halves)
      s = Sigmoid(gate)
      u = Mul(s, up)
      t = Tanh(a)
      j = Concat<axis = 1>(t, u)
      y = MatMul(j, w2)
    }"""
    weights = {"w1": graphs.array(24, 120), "w2": graphs.array(72, 24)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    manifest = sharding.slice_model(path, ranks, tmp_path / "slices")
    assert [item.op for item in manifest.collectives] == ["AllReduce"]
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 24)})


@pytest.mark.parametrize("between", ["Cast<to = 1>", "Dropout"])
def test_what_copies_a_branch_leaves_one_sum_for_both(between: str, tmp_path: Path) -> None:
    """Exports of mixtures of experts cast the experts' sum to the type that it has."""
    text = f"""g (float[n, 16] x) => (float[n, 16] y) {{
      a = MatMul(x, w1) b = Relu(a) c = MatMul(b, w2) d = {between}(c)
      e = MatMul(x, w3) f = Relu(e) g = MatMul(f, w4) s = Add(d, g) y = Relu(s) }}"""
    weights = {name: graphs.array(16, 64) for name in ("w1", "w3")}
    weights |= {name: graphs.array(64, 16, seed=1) for name in ("w2", "w4")}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    manifest = sharding.slice_model(path, 2, tmp_path / "slices")
    assert [item.op for item in manifest.collectives] == ["AllReduce"]
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 16)})


@pytest.mark.parametrize(("domain", "name"), [("", "MatMul"), ("own", "MatMul"), ("", "Own")])
def test_a_function_named_like_an_operator_is_not_taken_for_it(
    tmp_path: Path, domain: str, name: str
) -> None:
    """Nobody knows what it computes: it stays whole."""
    import onnx_ir as ir

    source = read_model(graphs.mlp(tmp_path / "model.onnx"))
    function = ir.Function(domain, name, graph=ir.Graph([], [], nodes=[]), attributes=[])
    source.model.functions[function.identifier()] = function
    products = [step for step in steps(source, 2) if step.node.op_type == "MatMul"]
    assert len(products) == 2
    assert all((len(step.options) == 1) == ((domain, name) == ("", "MatMul")) for step in products)
