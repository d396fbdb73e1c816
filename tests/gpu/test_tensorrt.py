"""TensorRT, and the engines that it keeps, against ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

import ranks
from ranks.devices import devices
from ranks.devices.providers import TENSORRT
from ranks.errors import DeviceError
from tests.gpu.near import assert_near
from tests.ranks.rank_models import joined, save
from tests.ranks.run.test_executor import mlp, rows


def test_tensorrt(tmp_path: Path) -> None:
    try:
        devices.require(TENSORRT)
    except DeviceError as error:
        pytest.skip(f"no TensorRT: {error}")
    (path,) = save([joined([mlp(0, 1)])], tmp_path)
    context = ranks.Context()
    context.target = ["gpu"]
    context.gpu.provider = "tensorrt"
    settings = {"ms_cache": {"serialize_path": str(tmp_path / "engines")}}
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = rows(2)[0]
    for _ in range(2):  # the second time from the engine that the first has kept
        model = ranks.Model()
        model.build_from_file(str(path), ranks.ModelType.ONNX, context, config_dict=settings)
        found = [tensor.get_data_to_numpy() for tensor in model.predict(list(feed.values()))]
        assert_near(found, session.run(None, feed))
        assert list((tmp_path / "engines").glob("*/*.engine"))
