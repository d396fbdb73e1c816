"""The version stands in one place: the installed package's data, or else the project's file."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

import launcher
from sharding import slice_model
from sharding.common.version import version
from sharding.slices.manifest import read_manifest
from tests.sharding import graphs

ROOT = Path(__file__).parents[3]


def test_a_source_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    written = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert written is not None

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert version.__wrapped__() == written[1]


def test_slices_say_which_version_made_them(tmp_path: Path) -> None:
    assert launcher.__version__ == version()
    graphs.save(tmp_path / "m.onnx", "m (float[2] x) => (float[2] y) { y = Relu(x) }", {})
    slice_model(tmp_path / "m.onnx", 1, tmp_path / "slices")
    assert read_manifest(tmp_path / "slices").created_by == f"shardrun {version()}"
