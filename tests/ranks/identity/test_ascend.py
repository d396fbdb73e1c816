"""Ascend with its real packages, up to the driver. They exclude the usual ONNX Runtime: run this with

pip install 'numpy<2' onnxruntime-cann torch-npu (and the torch of its version), in an environment of its own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import ranks
from ranks import collectives
from ranks.errors import DeviceError
from ranks.identity.place import Identity
from tests.ranks import api_models
from tests.sharding import graphs

ROOT = Path(__file__).parents[3]


def has_driver() -> bool:
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        return False
    return True


needs_cann = pytest.mark.skipif(
    "CANNExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="this ONNX Runtime is not the package onnxruntime-cann",
)
needs_npu = pytest.mark.skipif(
    importlib.util.find_spec("torch_npu") is None, reason="torch-npu is not installed"
)
without_driver = pytest.mark.skipif(has_driver(), reason="this machine has the Ascend driver")


def relu(path: Path) -> Path:
    return graphs.save(path, "g (float[2] x) => (float[2] y) { y = Relu(x) }", {}, opset=17)


@needs_cann
@without_driver
def test_the_target_says_that_the_driver_is_missing(tmp_path: Path) -> None:
    context = ranks.Context()
    context.target = ["ascend"]
    context.ascend.precision_mode = "preferred_optimal"
    with pytest.raises(
        DeviceError, match=r"Ascend \(CANN\) device 0 .* driver is missing \(libascendcl\.so: .*install the"
    ):
        ranks.Model().build_from_file(str(relu(tmp_path / "m.onnx")), ranks.ModelType.MINDIR, context)


@needs_cann
def test_the_cpu_stands_in_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_TARGET", "cpu")
    context = ranks.Context()
    context.target = ["ascend"]
    model = ranks.Model()
    model.build_from_file(str(relu(tmp_path / "m.onnx")), ranks.ModelType.MINDIR, context)
    (output,) = model.predict([np.array([-1, 2], np.float32)])
    assert output.get_data_to_numpy().tolist() == [0, 2]


@needs_npu
@without_driver
def test_hccl_says_what_is_missing() -> None:
    words = r"hccl collectives need the Ascend driver, CANN and torch_npu, .*\.so"
    with pytest.raises(DeviceError, match=words):
        collectives.connect(Identity(rank=0, world_size=2, local_size=2), "hccl", timeout=1.0, device="npu")


@needs_npu
@without_driver
def test_ranks_on_the_cpu_run_beside_torch_npu(tmp_path: Path) -> None:
    model = api_models.linear(tmp_path / "m.onnx")
    options = ["--ranks", "2", "--collectives", "gloo", "--verify"]
    command = [sys.executable, "-m", "launcher.cli", "run", str(model), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
