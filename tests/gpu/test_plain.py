"""A model in one process on CUDA, against ONNX Runtime on the CPU: ONNX Runtime and the device alone."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from ranks.devices.providers import CPU, CUDA
from ranks.errors import DeviceError
from ranks.run import executor
from ranks.run.placement import Placement
from tests.gpu.near import assert_near, assert_ran_on_cuda, profiled
from tests.ranks.rank_models import joined, save
from tests.ranks.run.test_executor import mlp, rows

PROVIDERS = (CUDA, CPU)


def test_a_plain_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled(monkeypatch, tmp_path)
    (path,) = save([joined([mlp(0, 1)])], tmp_path)
    loaded = executor.load(path, placement=Placement(PROVIDERS))
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    for feed in rows(1, 5, 5, 0):
        assert_near(loaded.run(feed), session.run(None, feed))
    assert loaded._session is not None
    assert_ran_on_cuda(loaded._session)


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    (path,) = save([joined([mlp(0, 1)])], tmp_path)
    with pytest.raises(
        DeviceError, match=r"CUDA device 99 cannot be used: this process sees \d+ CUDA device"
    ):
        executor.load(path, placement=Placement(PROVIDERS, device_id=99))
