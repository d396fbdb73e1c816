"""torch beside a package for another device whose driver is missing, as torch_npu is without Ascend's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RANK = """
import os
from ranks import collectives
from ranks.errors import DeviceError
from ranks.identity.identity import Identity
from sharding.importers import torch_import
torch = torch_import.load()
try:
    torch._import_device_backends()  # as "import torch" does at its end, unless told not to
except RuntimeError:
    print("torch alone fails")
print(torch.ones(2).sum().item(), os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"))
try:
    collectives.connect(Identity(rank=0, world_size=2, local_size=2), "hccl", timeout=1.0, device="npu")
except DeviceError as error:
    print(error)
"""
CONVERT = """
import json, os, sys
from launcher.cli import main
code = main(["convert", *json.loads(sys.argv[1])])
print(os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"))
sys.exit(code)
"""
BUILD = """
from sharding.importers.networks.factory import build
found = build("bert")
import torch
given = [torch.ones(1, 3, dtype=torch.int64)] * 2
print(", ".join(item.name for item in found.inputs), list(found.module(*given)[0].shape))
"""
NETWORK = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a torch_npu that fails while torch loads it."""
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
    return tmp_path


def run(folder: Path, program: str, *arguments: str) -> str:
    variables = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ranks_on_other_devices_do_not_need_it(folder: Path) -> None:
    alone, first, second = run(folder, RANK).splitlines()
    assert alone == "torch alone fails", "the package is not what this test is about"
    assert first == "2.0 None"
    assert second == (
        "The hccl collectives need the Ascend driver, CANN and torch_npu, which cannot be loaded: "
        "libhccl.so: cannot open shared object file."
    )


def test_conversion_does_not_need_it(folder: Path) -> None:
    """Nor does a user's network that imports torch before anything of ours does."""
    if importlib.util.find_spec("onnxscript") is None:
        pytest.skip("onnxscript is not installed: torch exports with it")
    (folder / "net.py").write_text(NETWORK)
    network = ["--network", "net:Net", "--input", "x:3", "a.onnx"]
    out = run(folder, CONVERT, json.dumps(network))
    assert "inputs: x; outputs: output\n" in out
    assert out.endswith("outputs: output\nNone\n"), "the user's environment stays"


def test_transformers_does_not_need_it(folder: Path) -> None:
    """Neither while it is imported, nor to build a model, nor when that computes: to export it does that."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 9, **small}
    (folder / "bert").mkdir()
    (folder / "bert" / "config.json").write_text(json.dumps(config))
    assert run(folder, BUILD) == "input_ids, attention_mask [1, 3, 8]\n"
