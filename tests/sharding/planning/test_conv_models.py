"""Convolutional, recurrent and int8 networks, sliced for 2 and 4 ranks, against ONNX Runtime on the whole.

Each network is exported by torch and quantized by ONNX Runtime's own tools. Sums of int32 are exact, so the
dynamic and the operator form must give ONNX Runtime's result on the whole model, with the last bits of the
floats between as only difference. In the QDQ form ranks share sums of floats that are then quantized: one
may round the other way at the border of two steps (1/255 of the range). ONNX Runtime with and without its
optimizations differs from itself as much (it runs the same products on integers), and with its number of
threads where an operator quantizes parts of the batch apart: the comparison is with one thread, unoptimized.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import sharding
from sharding.planning.plan import plan_model
from tests.sharding import graphs, lockstep

pytest.importorskip("torch", reason="torch exports the models of this test; pip install torch")

from tests.sharding import networks
from tests.turns import in_turns

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("read_once")]

EXACT = 1e-6
QDQ_STEPS = 0.05
"""Rounding borders crossed in several layers: a few steps of 1/255 each."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("networks")


def _model(folder: Path, name: str, form: str = "") -> Path:
    path = folder / f"{name}.onnx"
    if not path.exists():
        networks.export(name, path)
    if not form:
        return path
    quantized = folder / f"{name}_{form}.onnx"
    if not quantized.exists():
        networks.quantize(name, form, path, quantized)
    return quantized


def _check(
    path: Path, ranks: int, name: str, tolerance: float, batches: tuple[int, ...] = (1, 3)
) -> Counter[tuple[str, str]]:
    """Slices and compares; the collectives by operator and element type."""
    folder = path.with_name(f"{path.stem}_{ranks}")
    manifest = sharding.slice_model(path, ranks, folder)
    whole = graphs.session(path, optimized=False)
    for batch in batches:
        feeds = networks.feeds(name, batch, seed=7)
        expected = np.asarray(whole.run(None, feeds)[0])
        assert np.std(expected) > 0.05 * np.abs(expected).max()  # else every comparison would hold
        for outputs in lockstep.run_slices(folder, feeds):
            assert lockstep.relative_error(outputs["y"], expected) <= tolerance
    return Counter((item.op, item.dtype) for item in manifest.collectives)


def _share(path: Path, ranks: int) -> float:
    """The part of all weight bytes that a rank holds."""
    plan = plan_model(path, ranks)
    return plan.rank_weight_bytes() / sum(plan.source.weights[name].nbytes for name in plan.held)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("name", "most"),
    # Two in a bottleneck or an inverted residual at most, one in a pair of convolutions elsewhere.
    [("resnet", 8), ("mobilenet", 8), ("unet", 8)],
)
def test_convolutional_networks(exported: Path, name: str, most: int, ranks: int) -> None:
    path = _model(exported, name)
    assert sum(_check(path, ranks, name, 1e-5).values()) <= most
    assert _share(path, ranks) <= 1 / ranks + 0.03
    assert plan_model(path, ranks).whole == {}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dynamo", [False, True])
def test_recurrent_network(exported: Path, dynamo: bool, ranks: int) -> None:
    """Each direction of a layer lies on half of the ranks; its weights are split no further."""
    path = exported / f"tagger_{dynamo}.onnx"
    if not path.exists():
        networks.export("tagger", path, dynamo=dynamo, opset=18 if dynamo else 17)
    assert sum(_check(path, ranks, "tagger", 1e-5, (2,) if dynamo else (1, 3)).values()) <= 4
    plan = plan_model(path, ranks)
    shapes = {name: plan.source.weights[name].shape for name in plan.weights}
    held = {str(*plan.weights[name]) for name, shape in shapes.items() if len(shape) == 3 and shape[0] == 2}
    assert held == {"split:0" if ranks == 2 else "split:0*2"}
    assert _share(path, ranks) < 0.51


@pytest.mark.parametrize(
    ("name", "form", "ranks"),
    [
        *in_turns(("resnet", "transformer"), ("dynamic", "qdq", "qoperator"), (2, 4)),
        *(("mobilenet", "qdq", 2), ("mobilenet", "qoperator", 4), ("tagger", "dynamic", 4)),
    ],
)
def test_int8_networks(exported: Path, name: str, form: str, ranks: int) -> None:
    path = _model(exported, name, form)
    counts = _check(path, ranks, name, QDQ_STEPS if form == "qdq" and name != "transformer" else EXACT)
    # Norms and biases of a toy are a larger part than of a real model; an LSTM is split by direction alone.
    goal = 0.5 if name == "tagger" else 1 / ranks
    assert _share(path, ranks) <= goal + (0.04 if name == "transformer" else 0.03)
    if name == "transformer":
        # Two sums a layer, of the kind that stays exact; the embedding; a range before each dynamic sum.
        sums = counts["AllReduce", "float32" if form == "qdq" else "int32"]
        assert sums == 4 and sum(counts.values()) == sums + (5 if form == "dynamic" else 1)
    elif form == "qoperator":
        assert {kind for _, kind in counts} <= {"uint8", "int32"}


@pytest.mark.parametrize(
    ("opset", "between"),
    [
        (21, "n = GroupNormalization<num_groups = 12>(c, scale, bias)"),
        (23, "n = GroupNormalization<num_groups = 4>(c, scale, bias)"),
        (13, "n = MeanVarianceNormalization<axes = [0, 2, 3]>(c)"),
        (13, "p = LessOrEqual(c, zero) q = Cast<to = 1>(p) n = Mul(q, q)"),
    ],
)
@pytest.mark.parametrize("batch", ["2", "batch"])
def test_what_follows_a_function_of_the_standard_is_split(
    batch: str, opset: int, between: str, tmp_path: Path
) -> None:
    """onnx does not infer the shapes of nodes that it defines by others: exports of networks with group
    normalization were split up to the first one."""
    text = f"""<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]>
    net (float[{batch}, 4, 6, 6] x) => (float[{batch}, 4, 6, 6] y) {{
      c = com.microsoft.FusedConv<pads = [1, 1, 1, 1], activation = "Relu">(x, w1)
      {between}
      y = Conv<pads = [1, 1, 1, 1]>(n, w2)
    }}"""
    weights = {"w1": graphs.array(24, 4, 3, 3), "w2": graphs.array(4, 24, 3, 3)}
    weights |= {"scale": graphs.array(24), "bias": graphs.array(24, seed=1)} if "scale" in between else {}
    weights |= {"zero": np.zeros((), np.float32)} if "zero" in between else {}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    manifest = sharding.slice_model(path, 2, tmp_path / "slices")
    assert [item.op for item in manifest.collectives] == ["AllReduce"]
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 4, 6, 6)})


def test_group_normalization_of_the_versions_that_onnx_withdrew(tmp_path: Path) -> None:
    """onnx's checker refuses it with a scale per group, and ONNX Runtime runs it."""
    text = """net (float[n, 12, 5] x) => (float[n, 12, 5] y) {
      a = Conv(x, w1) b = GroupNormalization<num_groups = 4>(a, scale, bias) y = Conv(b, w2) }"""
    weights = {"w1": graphs.array(12, 12, 1), "w2": graphs.array(12, 12, 1, seed=1)}
    weights |= {"scale": graphs.array(4), "bias": graphs.array(4, seed=1)}
    path = tmp_path / "model.onnx"
    onnx.save(graphs.model(text, weights, opset=20), path)
    manifest = sharding.slice_model(path, 2, tmp_path / "slices")
    assert [item.op for item in manifest.collectives] == ["AllReduce"]
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 12, 5)})
