"""torch beside a package for another device whose driver is missing, as torch_npu is without Ascend's."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os
from ranks import collectives
from ranks.collectives import torch_import
from ranks.errors import DeviceError
from ranks.identity import Identity
torch = torch_import.load()
print(torch.ones(2).sum().item(), os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"))
try:
    collectives.connect(Identity(rank=0, world_size=2, local_size=2), "hccl", timeout=1.0, device="npu")
except DeviceError as error:
    print(error)
"""


def test_ranks_on_other_devices_do_not_need_it(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if importlib.util.find_spec("torch_npu") is not None:
        pytest.skip("the real torch_npu is installed")
    (tmp_path / "torch_npu.py").write_text(
        "raise ImportError('libhccl.so: cannot open shared object file')\n"
    )
    about = tmp_path / "torch_npu-2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    variables = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "2.0 None"
    assert second == (
        "The hccl collectives need the Ascend driver, CANN and torch_npu, which cannot be loaded: "
        "libhccl.so: cannot open shared object file."
    )
