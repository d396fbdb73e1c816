"""The comparison with plain ONNX Runtime: honest about NaN, infinities, zeros, types and shapes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from launcher.errors import ConfigError, VerifyError
from launcher.job.verify import (
    Comparison,
    check,
    compare,
    compare_outputs,
    find_source,
    read_signature,
    run_reference,
    tolerance_for,
)
from sharding.slices.manifest import sha256_of
from tests.sharding import graphs

NAN, INF = float("nan"), float("inf")


def error(got: list[float], want: list[float], dtype: str = "float32") -> float:
    return compare("y", np.array(got, dtype), np.array(want, dtype), 1e-4).error


def test_relative_to_the_largest_reference() -> None:
    assert error([1, 2, 3.0003], [1, 2, 3]) == pytest.approx(1e-4, rel=1e-2)
    assert error([1e-3, 100], [0, 100]) == pytest.approx(1e-5, rel=1e-3)
    assert error([], []) == 0
    assert error([0, 0], [0, 0]) == 0
    assert error([1e-9, 0], [0, 0]) == INF


def test_nan_and_infinity() -> None:
    assert error([NAN, INF, -INF, 1], [NAN, INF, -INF, 1]) == 0
    for got, want in (([NAN], [1]), ([1], [NAN]), ([INF], [-INF]), ([INF], [1]), ([NAN], [INF])):
        result = compare("y", np.array(got, np.float32), np.array(want, np.float32), 1e-4)
        assert result.error == INF and not result.good
        assert "1 elements are NaN or infinite in one of the two only" in result.note
    same = compare("y", np.array([NAN, 2], np.float32), np.array([NAN, 1], np.float32), 1e-4)
    assert same.error == 1 and "1 of 2 elements are NaN or infinite in both" in same.note


def test_an_error_that_is_no_number_is_not_good() -> None:
    assert Comparison("y", 1e-4, 1e-4).good
    assert not Comparison("y", 2e-4, 1e-4).good
    assert not Comparison("y", NAN, 1e-4).good


def test_other_shape_type_and_integers() -> None:
    assert compare("y", np.ones((2, 1), np.float32), np.ones(2, np.float32), 1).note.startswith(
        "expected float32"
    )
    assert compare("y", np.ones(2, np.float64), np.ones(2, np.float32), 1).error == INF
    big = np.array([2**62, 5])
    assert compare("y", big, big, 0).good
    assert compare("y", big + np.array([1, 0]), big, 1e-4).note == "1 elements differ"
    assert not compare("y", big + np.array([1, 0]), big, 1e-4).good
    assert compare("y", np.array([True]), np.array([True]), 0).good


def test_tolerance_follows_the_coarsest_type() -> None:
    assert tolerance_for(["float32"]) == 1e-4
    assert tolerance_for(["float32", "float16"]) == 2e-2
    assert tolerance_for(["float32", "tf32"]) == 1e-2
    assert tolerance_for(["int64"]) == 0
    half = {"y": np.array([1.01], np.float32), "ids": np.array([2])}
    whole = {"y": np.array([1.0], np.float32), "ids": np.array([1])}
    results = {c.name: c for c in compare_outputs(half, whole, ["float16", "int64"])}
    assert results["y"].good and results["y"].tolerance == 2e-2
    assert not results["ids"].good
    with pytest.raises(VerifyError, match=r"model.onnx in plain ONNX Runtime: ids: relative error inf"):
        check(list(results.values()), Path("model.onnx"))
    assert [c.note for c in compare_outputs({}, {"y": np.ones(1)})] == ["this output is missing"]
    bf16 = np.array([1, 2], ml_dtypes.bfloat16)
    assert compare_outputs({"y": bf16}, {"y": bf16})[0].good


def save(path: Path, kind: int, op: str = "Add") -> Path:
    element = TensorProto.DataType.Name(kind).lower()
    inputs = "x, x" if op == "Add" else "x"
    return graphs.save(path, f"m ({element}[n] x) => ({element}[n] y) {{ y = {op}({inputs}) }}", {})


def test_reference(tmp_path: Path) -> None:
    x = np.array([1, 2.5], np.float32)
    outputs = run_reference(save(tmp_path / "m.onnx", TensorProto.FLOAT), {"x": x}, 1)
    np.testing.assert_array_equal(outputs["y"], 2 * x)
    half = run_reference(save(tmp_path / "m.onnx", TensorProto.FLOAT16), {"x": x.astype(np.float16)})
    assert half["y"].dtype == np.float16 and half["y"].tolist() == [2, 5]


def test_reference_of_bfloat16(tmp_path: Path) -> None:
    # Identity is among the few operators that ONNX Runtime has for bfloat16 on CPUs.
    x = np.array([1, 2.5], ml_dtypes.bfloat16)
    y = run_reference(save(tmp_path / "m.onnx", TensorProto.BFLOAT16, "Identity"), {"x": x})["y"]
    assert y.dtype == ml_dtypes.bfloat16 and y.tolist() == [1, 2.5]


def test_reference_that_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    for path in (tmp_path / "bad.onnx", tmp_path / "absent.onnx"):
        with pytest.raises(ConfigError, match="plain ONNX Runtime cannot run") as caught:
            run_reference(path, {})
        assert "\n" not in str(caught.value)


def test_source_of_a_slice_folder(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", TensorProto.FLOAT)
    folder = tmp_path / "slices"
    folder.mkdir()
    size, digest = model.stat().st_size, sha256_of(model)
    assert find_source(folder, "m.onnx", size, digest, None) == model
    assert find_source(folder, "m.onnx", size, digest, Path("other.onnx")) == Path("other.onnx")
    with pytest.raises(ConfigError, match=r"m\.onnx has changed since .* with --against"):
        find_source(folder, "m.onnx", size, "0" * 64, None)
    with pytest.raises(ConfigError, match=r"neither in that folder nor beside it; give it with --against"):
        find_source(folder, "other.onnx", size, digest, None)


@pytest.mark.parametrize("quantized", [False, True])
def test_the_reference_is_right_where_an_optimizer_is_not(tmp_path: Path, quantized: bool) -> None:
    """Zeros before a MaxPool, which ONNX Runtime's Pad_Fusion would make minus infinity: also in a quantized
    model, for which the other optimizers are on."""
    text = """g (float[1, 1, 3, 3] x) => (float[1, 1, 3, 3] y, uint8[1, 1, 3, 3] q) {
      p = Pad(x, pads) y = MaxPool<kernel_shape = [3, 3]>(p) q = QuantizeLinear(x, scale)
    }"""
    if not quantized:
        text = text.replace("QuantizeLinear(x, scale)", "Cast<to = 2>(x)")
    weights = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "scale": np.float32(1)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    found = run_reference(path, {"x": -np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)})
    assert found["y"].tolist() == [[[[0, 0, 0], [0, -1, 0], [0, 0, 0]]]]


def test_the_reference_takes_text(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "model.onnx", "g (string[n] s) => (string[n] t) { t = Identity(s) }", {})
    found = run_reference(path, {"s": np.array(["a", "naïve"], object)})
    assert found["t"].tolist() == ["a", "naïve"]


def test_a_model_to_compare_with_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for data in (b"\x08\x09\xff", b"\xff" * 99, b""):
        path.write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            read_signature(path)
        assert str(caught.value) == f"--verify: cannot read {path}: it is not an ONNX model, or cut short"
    with pytest.raises(ConfigError, match=r"^--verify: cannot read .*absent: No such file or directory$"):
        read_signature(tmp_path / "absent")
