"""What scripts import of `sharding`, from the package itself or from the modules whose names they know."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import sharding
from tests.sharding.graphs import mlp


def test_all_that_the_package_offers_is_there() -> None:
    assert set(sharding.__all__) <= set(dir(sharding))
    assert all(getattr(sharding, name).__name__ == name for name in sharding.__all__)
    with pytest.raises(AttributeError, match="module 'sharding' has no attribute 'SliceOption'"):
        _ = sharding.SliceOption  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["plan", "options", "manifest"])
def test_modules_that_scripts_name(module: str) -> None:
    known = importlib.import_module(f"sharding.{module}")
    for name in known.__all__:
        assert getattr(known, name) is getattr(sharding, name)


def test_slicing_as_a_script_does_it(tmp_path: Path) -> None:
    whole = mlp(tmp_path / "m.onnx")
    program = """
import sys
from sharding import Mesh, SliceOptions, read_manifest, slice_model
from sharding.options import SliceOptions as Same
from sharding.plan import plan_model
assert Same is SliceOptions
model, folder = sys.argv[1:]
options = SliceOptions(mesh=Mesh.of(tensor=2))
print(plan_model(model, 2, options=options).mesh == slice_model(model, 2, folder, options=options).mesh)
print(len(read_manifest(folder).ranks))
"""
    command = [sys.executable, "-c", program, str(whole), str(tmp_path / "slices")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n2\n"), done.stderr
