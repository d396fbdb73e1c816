"""Plans steered by weight-name patterns: what a pattern matches, what it asks for, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sharding
from sharding.common.documents import DocumentError
from sharding.demands.features import feature_axes
from sharding.demands.options import SliceOptions
from sharding.demands.steering import read_steering
from sharding.errors import SliceError
from sharding.planning.plan import Plan, plan_model
from sharding.reading.read import read_model
from sharding.slices.placement import REPLICATED, Placement, Split
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import array

LAYERS = """g (float[n, 16] x) => (float[n, 16] y) {
  a0 = MatMul(x, "model.layers.0.mlp.up.weight")
  b0 = Add(a0, "model.layers.0.mlp.up.bias")
  r0 = Relu(b0)
  d0 = MatMul(r0, "model.layers.0.mlp.down.weight")
  a1 = MatMul(d0, "model.layers.1.mlp.up.weight")
  b1 = Add(a1, "model.layers.1.mlp.up.bias")
  r1 = Relu(b1)
  d1 = MatMul(r1, "model.layers.1.mlp.down.weight")
  y = Softmax<axis = 1>(d1)
}"""


def layers(path: Path) -> Path:
    """Two layers, whose weights have the names that exporters give."""
    text, weights = LAYERS, {}
    for layer in (0, 1):
        for part, shape in (("up.weight", (16, 32)), ("up.bias", (32,)), ("down.weight", (32, 16))):
            name = f"model.layers.{layer}.mlp.{part}"
            plain = name.replace(".", "_")
            text = text.replace(f'"{name}"', plain)
            weights[plain] = array(*shape, seed=layer)
    graphs.save(path, text, weights)
    model = onnx.load(path)
    names = {plain: f"model.layers.{plain[13]}.mlp.{plain[19:].replace('_', '.')}" for plain in weights}
    for item in model.graph.initializer:
        item.name = names[item.name]
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx.save(model, path)
    return path


def steered(path: Path, data: Any, ranks: int = 2) -> Plan:
    steer = path.with_name("steer.yaml")
    steer.write_text(data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False))
    return plan_model(path, ranks, options=SliceOptions(steering=steer, allow_replicated=True))


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("layers.*.mlp.up", ["0.mlp.up.weight", "1.mlp.up.weight"]),
        ("layers.0.mlp.up.*", ["0.mlp.up.weight", "0.mlp.up.bias"]),
        ("model.layers.1.mlp.down.weight", ["1.mlp.down.weight"]),
        ("mlp.down", ["0.mlp.down.weight", "1.mlp.down.weight"]),
        ("layers.[1-9].*.weight", ["1.mlp.up.weight", "1.mlp.down.weight"]),
        ("up", ["0.mlp.up.weight", "1.mlp.up.weight"]),
        ("model.layers.?.mlp.up.bias", ["0.mlp.up.bias", "1.mlp.up.bias"]),
    ],
)
def test_what_patterns_match(tmp_path: Path, pattern: str, matched: list[str]) -> None:
    plan = steered(layers(tmp_path / "m.onnx"), {pattern: "replicate"})
    for name in matched:
        assert plan.weights[f"model.layers.{name}"] == (REPLICATED,)
    others = [name for name in plan.weights if name.endswith("weight") and name[13:] not in matched]
    assert all(isinstance(plan.weights[name][0], Split) for name in others)


def test_what_was_matched_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = layers(tmp_path / "m.onnx")
    with caplog.at_level(logging.INFO):
        steered(path, "'*.up': column\n'*.down.weight': row\n")
    assert "*.up (column) is for 2 weights: model.layers.0.mlp.up.weight, model.layers.1" in caplog.text


@pytest.mark.parametrize(
    ("asked", "placement"),
    [
        ("column", Split(1)),
        ("row", Split(0)),
        ("replicate", REPLICATED),
        ("split:0", Split(0)),
        ("split: 1", Split(1)),
        ({"split": -1}, Split(1)),
        ({"split": 0, "blocks": 1}, Split(0)),
        ("replicated", REPLICATED),
    ],
)
def test_what_can_be_asked_for(tmp_path: Path, asked: Any, placement: Placement) -> None:
    path = layers(tmp_path / "m.onnx")
    plan = steered(path, {"layers.*.mlp.up": asked})
    for layer in (0, 1):
        assert plan.weights[f"model.layers.{layer}.mlp.up.weight"] == (placement,)
    options = SliceOptions(steering=tmp_path / "steer.yaml")
    sharding.slice_model(path, 2, tmp_path / "slices", options=options)
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(3, 16)})


def test_blocks(tmp_path: Path) -> None:
    text = """g (float[n, 12] x) => (float[n, 16] y) {
      a = MatMul(x, qkv)
      q, k, v = Split<axis = -1, num_outputs = 3>(a)
      s = Mul(q, k)
      y = Add(s, v)
    }"""
    path = graphs.save(tmp_path / "m.onnx", text, {"qkv": array(12, 48)})
    assert steered(path, {"qkv": {"split": 1, "blocks": 3}}).weights["qkv"] == (Split(1, 3),)
    assert steered(path, {"qkv": "split:1/3"}).weights["qkv"] == (Split(1, 3),)
    plain = steered(path, {"qkv": "split:1"})
    assert plain.weights["qkv"] == (Split(1),) and plain.collectives


FEATURES = """g (float[4, 8, 6, 6] x, float[4, 16] v, int64[4] ids) => (r0, r1, r2, r3, r4, r5, r6, r7) {
  r0 = Conv(x, conv)
  r1 = ConvTranspose(x, back)
  r2 = Gemm<transB = 1>(v, gemm)
  r3 = Gemm(v, plain)
  t = Transpose<perm = [1, 0]>(turned)
  r4 = MatMul(v, t)
  r5 = Gather(table, ids)
  c = Cast<to = 1>(left)
  r6 = MatMul(c, v)
  u = Transpose(reversed)
  r7 = MatMul(v, u)
}"""


def test_columns_are_output_features(tmp_path: Path) -> None:
    shapes = {
        "conv": ((10, 8, 1, 1), (0, 1)),
        "back": ((8, 10, 1, 1), (1, 0)),
        "gemm": ((20, 16), (0, 1)),
        "plain": ((16, 20), (1, 0)),
        "turned": ((20, 16), (0, 1)),
        "table": ((30, 12), (1, 0)),
        "left": ((20, 4), (0, 1)),
        "reversed": ((20, 16), (0, 1)),
    }
    text = FEATURES.replace(
        "(r0, r1, r2, r3, r4, r5, r6, r7) {", f"({', '.join(f'float[] r{i}' for i in range(8))}) {{"
    )
    weights = {name: array(*shape) for name, (shape, _) in shapes.items()}
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    onnx.save(model, tmp_path / "m.onnx")
    source = read_model(tmp_path / "m.onnx")
    for name, (_, axes) in shapes.items():
        ((node, index),) = source.model.graph.initializers[name].uses()
        assert feature_axes(node, index) == axes, name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "expected a mapping of weight-name patterns to column, row, "),
        ("- up", 'found ["up"]'),
        ("{}", "found an empty file"),
        ("'': row", "a pattern has 1 to 1000 characters"),
        (f"{'a' * 1001}: row", "a pattern has 1 to 1000 characters"),
        ("up: columns", '"up": expected column, row, replicate, split:AXIS'),
        ("up: true", '"up": expected column, '),
        ("up: partial", '"up": expected column, '),
        ("up: {split: true}", '"up": expected column, '),
        ("up: {split: 0, parts: 2}", '"up": expected column, '),
        ("up: {split: 0, blocks: 0}", '"up": expected column, '),
        ("up: row\nup: row", 'the key "up" is given twice'),
        ("*.up: row", "put text that begins with * or & in quotes"),
        ("up: &a row\ndown: *a", "aliases are not allowed; put text"),
        (
            "layers.*.mlp.upp: row",
            '"layers.*.mlp.upp" matches no weight; the model\'s weights are named like',
        ),
        ("LAYERS.0.mlp.up: row", "matches no weight"),
        ("zzz: row", "are named like 'model.layers.0.mlp.up.weight', 'model.layers.0.mlp.up.bias', 'model."),
        ("ayers.0.mlp.up: row", "matches no weight"),
        (
            "up: row\nlayers.1.mlp.up: column",
            "contradict each other: both match 'model.layers.1.mlp.up.weight'",
        ),
        ("up: split:2", "axis 2 is not one of its 2 axes [16, 32]"),
        ("up: {split: -3}", "axis -3 is not one of its 2 axes"),
        ("up: split:0/3", "axis 0 of length 16 cannot be split on axis 0 in 3 blocks over 2 ranks"),
        ("up.bias: column", "has no meaning there"),
        ("up.bias: column", "weight 'model.layers.0.mlp.up.bias' in the Add that makes 'b0'"),
    ],
)
def test_what_is_refused(tmp_path: Path, data: str, message: str) -> None:
    path = layers(tmp_path / "m.onnx")
    with pytest.raises(DocumentError) as caught:
        steered(path, data)
    assert message in str(caught.value) and str(tmp_path / "steer.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_an_operator_cannot_do_is_said_with_what_it_can(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 8] y) {
      a = MatMul(x, w)
      y, i = TopK<axis = 1>(a, k)
    }""".replace("y, i", "y, i")
    model = graphs.save(tmp_path / "m.onnx", text, {"w": array(16, 32), "k": np.asarray([8])})
    with pytest.raises(SliceError, match=r"weight 'k' in .*: axis 0 of length 1 cannot be split"):
        steered(model, {"k": "split:0"})
    text = """g (float[4, 16] x) => (float[16, 16] y) {
      t = Det(m)
      a = MatMul(w, w)
      y = Mul(a, t)
    }"""
    model = graphs.save(tmp_path / "n.onnx", text, {"m": array(2, 16, 16), "w": array(16, 16)})
    with pytest.raises(
        SliceError, match=r"weight 'm' in the Det that makes 't': it cannot take 'm' split on axis 1"
    ):
        steered(model, {"m": "split:1"})


def test_a_file_that_is_not_there_or_too_large(tmp_path: Path) -> None:
    path = tmp_path / "steer.yaml"
    with pytest.raises(DocumentError, match="cannot read this steering file"):
        read_steering(path)
    path.write_bytes(b"#" * (5 << 20))
    with pytest.raises(DocumentError, match="has at most"):
        read_steering(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DocumentError, match="is UTF-8 text"):
        read_steering(path)
    path.write_text("\n".join(f"p{number}: row" for number in range(10_001)))
    with pytest.raises(DocumentError, match="at most 10000 patterns"):
        read_steering(path)


VALUE = st.sampled_from(["column", "row", "replicate", "split:0", "split:1/2", {"split": 1}]) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PATTERN = st.sampled_from(["up", "*", "*.down", "layers.0.*", "[", "**", "a]["]) | st.text(max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.dictionaries(PATTERN, VALUE, max_size=4) | st.text(max_size=60))
def test_any_file_steers_or_is_refused(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = layers(folder / "m.onnx")
    try:
        steered(path, data)
    except SliceError as error:
        assert "\n" not in str(error)
        return
    sharding.slice_model(
        path,
        2,
        folder / "slices",
        options=SliceOptions(steering=folder / "steer.yaml", allow_replicated=True),
    )
    lockstep.assert_same(folder / "slices", path, {"x": array(2, 16)})


@pytest.mark.parametrize(
    ("op", "domain", "index", "attributes", "axes"),
    [
        ("MatMul", "", 0, {}, (0, 1)),
        ("MatMul", "", 1, {}, (1, 0)),
        ("FusedMatMul", "com.microsoft", 1, {"transB": 1}, (0, 1)),
        ("FusedMatMul", "com.microsoft", 1, {"transA": 1}, (1, 0)),
        ("FusedMatMul", "com.microsoft", 0, {"transA": 1}, (1, 0)),
        ("FusedMatMul", "com.microsoft", 0, {"transB": 1}, (0, 1)),
        ("FusedMatMul", "com.microsoft", 1, {"transBatchB": 1}, None),
        ("FusedMatMul", "com.microsoft", 1, {"transBatchA": 1}, (1, 0)),
        ("FusedMatMul", "com.microsoft", 0, {"transBatchA": 1}, None),
        ("Gemm", "", 0, {"transA": 1}, (1, 0)),
        ("Gemm", "", 0, {"transB": 1}, (0, 1)),
        ("Gemm", "", 2, {}, None),
        ("MatMulNBits", "com.microsoft", 1, {}, (0, 1)),
        ("QLinearMatMul", "", 3, {}, (1, 0)),
        ("QLinearMatMul", "", 1, {}, None),
        ("Gather", "", 0, {"axis": -1}, (0, 1)),
        ("Gather", "", 1, {}, None),
        ("Relu", "", 0, {}, None),
    ],
)
def test_features_of_each_factor(
    op: str, domain: str, index: int, attributes: dict[str, int], axes: tuple[int, int] | None
) -> None:
    values = [ir.Value(name=f"x{place}", shape=ir.Shape([6, 6])) for place in range(8)]
    given = [ir.AttrInt64(name, number) for name, number in attributes.items()]
    assert feature_axes(ir.Node(domain, op, values, given), index) == axes


@pytest.mark.parametrize(("index", "axes"), [(0, (0, 1)), (1, None), (2, None)])
def test_features_of_what_is_made_of_the_first_input_alone(index: int, axes: tuple[int, int] | None) -> None:
    """A scale or a zero point of a weight has none of its axes."""
    values = [ir.Value(name=f"x{place}", shape=ir.Shape([6, 6])) for place in range(3)]
    first = ir.Node("", "DequantizeLinear", values)
    first.outputs[0].shape = ir.Shape([6, 6])
    turned = ir.Node("", "Transpose", first.outputs)
    turned.outputs[0].shape = ir.Shape([6, 6])
    ir.Node("", "MatMul", [ir.Value(name="x"), turned.outputs[0]])
    assert feature_axes(first, index) == axes
