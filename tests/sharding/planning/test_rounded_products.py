"""Products of few bits that round what they read to 8 bits, as those of most 4-bit language models do.

A number that lies between two such steps goes another way after a change of one unit in its last place, and
all that follows from it too: the parts of a sum in another order are enough. So ranks can agree with the
whole model only as well as it agrees with itself after such a change, unless they add up no parts at all.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sharding
from sharding.demands.options import SliceOptions
from tests.releases import INSTALLED
from tests.sharding import graphs, lockstep
from tests.sharding.planning.test_language_models import FORMS, Array, Builder, Feeds, feeds_of
from tests.turns import in_turns

pytestmark = pytest.mark.usefixtures("read_once")

ROUNDED = ["llama-int4", "llama-int8", "llama-int4-zero-points", "gemma2-int4"]
CHANGES = 3
ROWS, LENGTH, PAST = 8, 24, 8
"""Enough numbers that some of them are rounded another way."""


def _changed(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The model with the first normalization's weights changed by one unit in the last place."""
    for seed in range(CHANGES):
        other = onnx.ModelProto()
        other.CopyFrom(model)
        norm = next(node for node in other.graph.node if node.op_type == "SimplifiedLayerNormalization")
        weight = next(item for item in other.graph.initializer if item.name == norm.input[1])
        values = numpy_helper.to_array(weight)
        upward = np.random.default_rng(seed).random(values.shape) < 0.5
        away = np.nextafter(values, np.where(upward, 2, 0).astype(np.float32))
        weight.CopyFrom(numpy_helper.from_array(away, weight.name))
        yield other


def _errors(found: Feeds, expected: Feeds) -> Array:
    """The largest difference of a logit at each position, over the largest logit of all."""
    scale = np.abs(expected["logits"]).max()
    return np.asarray(np.abs(found["logits"] - expected["logits"]).max(axis=-1) / scale)


@pytest.mark.parametrize(("name", "ranks"), in_turns(ROUNDED, [3, 4, 2]))
def test_ranks_agree_as_well_as_the_model_with_itself(name: str, ranks: int, tmp_path: Path) -> None:
    form = replace(FORMS[name], accuracy=4)
    model, path = Builder(form).model(), tmp_path / "model.onnx"
    onnx.save(model, path)
    feeds = feeds_of(form, ROWS, LENGTH, 0)
    expected = lockstep.reference(path, feeds)
    spread = []
    for other in _changed(model):
        onnx.save(other, tmp_path / "changed.onnx")
        spread.append(_errors(lockstep.reference(tmp_path / "changed.onnx", feeds), expected))
    # Far more than a change of the last place brings where nothing is rounded, and far less than wrong parts.
    largest, mean = max(map(np.max, spread)), max(map(np.mean, spread))
    assert 1e-4 < largest < 0.1
    sharding.slice_model(path, ranks, tmp_path / "slices")
    for outputs in lockstep.run_slices(tmp_path / "slices", feeds):
        errors = _errors(outputs, expected)
        assert errors.max() <= 2 * largest and errors.mean() <= 3 * mean


@pytest.mark.parametrize(
    ("name", "ranks"), [*in_turns(ROUNDED, [2, 3, 4]), ("llama-int4-zero-points", 3), ("gemma2-int4", 3)]
)
def test_whole_sums_round_alike(name: str, ranks: int, tmp_path: Path) -> None:
    """Logits may differ in their last bits: fewer than four columns are computed otherwise than more."""
    form, path = replace(FORMS[name], accuracy=4), tmp_path / "model.onnx"
    onnx.save(Builder(form).model(), path)
    options = SliceOptions(sums="whole")
    manifest = sharding.slice_model(path, ranks, tmp_path / "slices", options=options)
    assert {item.op for item in manifest.collectives} == {"AllGather"}
    whole = sum(weight.bytes for weight in manifest.weights.values())
    assert manifest.ranks[0].weight_bytes < whole * (1 / ranks + 0.1)
    for feeds in (feeds_of(form, ROWS, LENGTH, 0), feeds_of(form, 1, 1, PAST)):
        expected = lockstep.reference(path, feeds)
        for outputs in lockstep.run_slices(tmp_path / "slices", feeds):
            assert _errors(outputs, expected).max() < 1e-6
            for output in expected.keys() - {"logits"}:
                np.testing.assert_array_equal(outputs[output], expected[output], output)


def test_sums_of_integers_are_exact(tmp_path: Path) -> None:
    """They are the same in any order, so that ranks may add up their parts."""
    random = np.random.default_rng(0)
    weights = {name: random.integers(0, 9, (64, 64)).astype(np.uint8) for name in "ab"}
    text = """sums (uint8[1, 64] x) => (int32[1, 64] z) {
      y = MatMulInteger(x, a)
      w = Cast<to = 2>(y)
      z = MatMulInteger(w, b)
    }"""
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    plain = sharding.plan_model(path, 2)
    asked = sharding.plan_model(path, 2, options=SliceOptions(sums="whole"))
    assert "AllReduce" in plain.collective_counts()
    assert asked.collective_counts() == plain.collective_counts()


LARGEST = {"INT4": 8, "UINT8": 256}
FUSED = (1, 31)
"""The ONNX Runtime that is known to fuse all these forms: earlier ones fuse fewer."""


def _dequantized(kind: str, scales: str, product: str, path: Path) -> Path:
    """Two products one after the other with weights of few bits, which QuantizeLinear's inverse widens."""
    random, element = np.random.default_rng(0), getattr(onnx.TensorProto, kind)
    low, high = (0, LARGEST[kind]) if kind.startswith("U") else (-LARGEST[kind], LARGEST[kind])
    nodes, weights = [], []
    for number, (rows, columns) in enumerate([(64, 192), (192, 64)]):
        values = random.integers(low, high, (rows, columns))
        weights.append(onnx.helper.make_tensor(f"w{number}", element, values.shape, values.flatten()))
        lengths = {"all": (), "column": (columns,), "row": (rows,), "block": (rows // 32, columns)}[scales]
        scale = np.asarray((random.random(lengths) + 1) / LARGEST[kind] / 8, np.float32)
        weights.append(numpy_helper.from_array(scale, f"s{number}"))
        attributes = {"all": {}, "column": {"axis": 1}, "row": {"axis": 0}}.get(
            scales, {"axis": 0, "block_size": 32}
        )
        names = [f"w{number}", f"s{number}"]
        nodes.append(onnx.helper.make_node("DequantizeLinear", names, [f"d{number}"], **attributes))
        nodes.append(onnx.helper.make_node(product, [f"x{number}", f"d{number}"], [f"x{number + 1}"]))
    of = onnx.helper.make_tensor_value_info
    inputs, outputs = [of("x0", 1, ["batch", 64])], [of("x2", 1, ["batch", 64])]
    graph = onnx.helper.make_graph(nodes, "dequantized", inputs, outputs, weights)
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
@pytest.mark.parametrize("scales", ["all", "column", "row", "block"])
@pytest.mark.parametrize("kind", LARGEST)
def test_sums_are_whole_where_weights_of_few_bits_are_fused(
    kind: str, scales: str, product: str, tmp_path: Path
) -> None:
    """ONNX Runtime itself says which products round what they read: there `auto` adds up no parts."""
    path = _dequantized(kind, scales, product, tmp_path / "model.onnx")
    feeds = {"x0": graphs.array(5, 64)}
    expected = lockstep.reference(path, feeds)["x2"]
    rounded = np.abs(graphs.session(path, optimized=False).run(None, feeds)[0] - expected).max()
    rounds = bool(rounded > 1e-4 * np.abs(expected).max())
    fused = scales != "row"
    assert rounds == fused if INSTALLED >= FUSED else rounds <= fused
    manifest = sharding.slice_model(path, 2, tmp_path / "slices", options=SliceOptions(sums="auto"))
    assert ("AllReduce" not in {item.op for item in manifest.collectives}) == fused
