"""Each primitive of MindIR against MindSpore's own answer: networks of one primitive, that MindSpore exported
and ran (``scripts/mindir_cases.py`` made the archives). Where MindSpore has no CPU kernel, torch answers."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.mindir_table import ARCHIVES, checked
from sharding.importers import import_model
from sharding.importers.mindir import primitives
from sharding.importers.mindir.primitives.base import PRIMITIVES
from tests.sharding import graphs
from tests.sharding.importers.mindir_answers import archive, assert_same, of_torch

Arrays = dict[str, np.ndarray[Any, Any]]


def cases() -> Iterator[Any]:
    for path in ARCHIVES:
        for name in sorted(archive(path).namelist()):
            if name.endswith(".mindir"):
                yield pytest.param(path, name.removesuffix(".mindir"), id=f"{path.stem}-{name[:-7]}")


def load(opened: zipfile.ZipFile, name: str, folder: Path) -> tuple[Path, Arrays]:
    """The case's file, written into the folder, and its arrays."""
    path = folder / f"{name}.mindir"
    path.write_bytes(opened.read(f"{name}.mindir"))
    return path, dict(np.load(io.BytesIO(opened.read(f"{name}.npz"))))


def check(path: Path, arrays: Arrays) -> None:
    """The converted model gives MindSpore's answers."""
    session = graphs.session(import_model(path))
    inputs = {item.name: arrays[f"in_{place}"] for place, item in enumerate(session.get_inputs())}
    found = session.run(None, inputs)
    wanted = [arrays[f"out_{place}"] for place in range(sum(name.startswith("out_") for name in arrays))]
    if not wanted:
        pytest.importorskip(
            "torch", reason="torch, which answers for kernels that MindSpore's CPU lacks, is missing"
        )
        from tests.sharding.importers.mindir_references import REFERENCES

        wanted = of_torch(REFERENCES[path.stem], list(inputs.values()))
    assert_same(found, wanted)


@pytest.mark.parametrize(("path", "name"), list(cases()))
def test_answers_are_those_of_mindspore(path: Path, name: str, tmp_path: Path) -> None:
    check(*load(archive(path), name, tmp_path))


def test_at_least_150_primitives_are_checked() -> None:
    primitives.load()
    assert len(checked() & set(PRIMITIVES)) >= 150


@pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is None, reason="mindspore, which exports new networks, is missing"
)
def test_networks_exported_now(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "scripts" / "mindir_cases.py"
    names = ["Conv2D_same_2_1", "LayerNorm", "LSTM_op", "GeLU", "StridedSlice_masks", "Gather_axis", "TopK"]
    made = tmp_path / "new.zip"
    subprocess.run([sys.executable, str(script), str(made), *names], check=True, timeout=600)
    with zipfile.ZipFile(made) as opened:
        for name in names:
            check(*load(opened, name, tmp_path))
