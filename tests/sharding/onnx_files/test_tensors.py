"""Weights where they lie in a file."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sharding.errors import ModelError
from sharding.onnx_files.tensors import Extent, WeightTensor, cut, dtype_name, locate
from sharding.slices.placement import REPLICATED, Placement, Split


@pytest.mark.parametrize(("kind", "size"), [(onnx.TensorProto.FLOAT, 4096), (onnx.TensorProto.UINT4, 512)])
def test_a_file_that_became_shorter_is_named(kind: int, size: int, tmp_path: Path) -> None:
    data = tmp_path / "w.data"
    data.write_bytes(bytes(size))
    proto = onnx.TensorProto(name="w", dims=[32, 32], data_type=kind)
    proto.data_location = onnx.TensorProto.EXTERNAL
    proto.external_data.add(key="location", value="w.data")
    weight = locate("w", ir.serde.deserialize_tensor(proto, base_path=str(tmp_path)), tmp_path / "model.onnx")
    assert not np.asarray(weight.array()).any()
    data.write_bytes(bytes(100))
    with pytest.raises(ModelError, match=r"w\.data changed while it was read: it is shorter than before"):
        weight.array()


def external(folder: Path, dims: list[int], **told: str) -> ir.TensorProtocol:
    proto = onnx.TensorProto(name="w", dims=dims, data_type=onnx.TensorProto.FLOAT)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "w.data", **told}.items():
        proto.external_data.add(key=key, value=value)
    return ir.serde.deserialize_tensor(proto, base_path=str(folder))


@pytest.mark.parametrize(
    ("dims", "told", "extent"),
    [
        ([2, 3], {}, (0, 24)),
        ([2, 3], {"offset": "16"}, (16, 24)),
        ([2, 3], {"offset": "16", "length": "24"}, (16, 24)),
        ([10], {}, (0, 40)),
        ([0], {"offset": "40"}, (40, 0)),
    ],
)
def test_where_a_weight_lies(
    tmp_path: Path, dims: list[int], told: dict[str, str], extent: tuple[int, int]
) -> None:
    numbers = np.arange(10, dtype=np.float32)
    (tmp_path / "w.data").write_bytes(numbers.tobytes())
    found = locate("w", external(tmp_path, dims, **told), tmp_path / "m.onnx")
    assert found.extent == Extent(tmp_path / "w.data", *extent)
    first = extent[0] // 4
    assert found.array().tolist() == numbers[first : first + extent[1] // 4].reshape(dims).tolist()
    assert (found.shape, found.dtype, found.nbytes) == (tuple(dims), "float32", extent[1])


@pytest.mark.parametrize(
    ("dims", "told", "message"),
    [
        ([2, 3], {"offset": "17"}, r"lies at bytes 17\.\.41 of .*w\.data, which has 40: it is truncated"),
        ([11], {}, r"lies at bytes 0\.\.44 of"),
        ([2, 3], {"length": "20"}, "needs 24 bytes for its type and shape, but its length is 20"),
        ([2, 3], {"length": "28"}, "needs 24 bytes for its type and shape, but its length is 28"),
        ([2, -3], {}, r"has the impossible shape \[2, -3\]"),
        ([2, 3], {"location": "gone"}, "gone, which cannot be read .No such file"),
        ([2, 3], {"location": "../w.data"}, "w"),
    ],
)
def test_where_no_weight_can_lie(tmp_path: Path, dims: list[int], told: dict[str, str], message: str) -> None:
    (tmp_path / "w.data").write_bytes(bytes(40))
    with pytest.raises(ModelError, match=rf"m\.onnx: weight 'w' .*{message}"):
        locate("w", external(tmp_path, dims, **told), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "placement", [Split(0), Split(1), Split(1, 2), Split(1, 3, 2), Split(0, 1, 4), REPLICATED]
)
def test_parts_of_a_weight(placement: Placement) -> None:
    """As they are described: a rank holds its part of each block, in order."""
    whole = np.arange(4 * 24).reshape(4, 24)
    for rank in range(4):
        found = cut(whole, placement, rank, 4)
        if not isinstance(placement, Split):
            assert found is whole
            continue
        parts = 4 // placement.copies
        blocks = np.split(whole, placement.blocks, placement.axis)
        own = [np.split(block, parts, placement.axis)[rank // placement.copies] for block in blocks]
        assert found.tolist() == np.concatenate(own, placement.axis).tolist()


TYPES = [
    (ir.DataType.FLOAT, "float32", False), (ir.DataType.DOUBLE, "float64", False),
    (ir.DataType.BOOL, "bool", True), (ir.DataType.UINT4, "uint4", True),
    (ir.DataType.INT64, "int64", True), (ir.DataType.BFLOAT16, "bfloat16", False),
    (ir.DataType.FLOAT8E4M3FN, "float8e4m3fn", False), (None, "unknown", None),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "name", "integer"), TYPES)
def test_names_of_types(dtype: ir.DataType | None, name: str, integer: bool | None) -> None:
    assert dtype_name(dtype) == name
    if dtype is not None:
        weight = WeightTensor("w", ir.Tensor(np.zeros(2, dtype.numpy()), dtype=dtype), None)
        assert weight.is_integer == integer and not weight.is_text
