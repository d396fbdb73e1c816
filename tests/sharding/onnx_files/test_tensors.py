"""Weights where they lie in a file."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sharding.errors import ModelError
from sharding.onnx_files.tensors import locate


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
