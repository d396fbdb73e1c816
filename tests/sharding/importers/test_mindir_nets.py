"""Varied networks that MindSpore exported and ran (`scripts/mindir_nets.py`), whole and on two ranks."""

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sharding import slice_model
from sharding.importers import import_model
from sharding.importers.write import write_onnx
from tests.sharding import graphs
from tests.sharding.lockstep import relative_error, run_slices

ARCHIVE = Path(__file__).parents[2] / "data" / "mindir" / "nets_v3.zip"
MODELS = [name for name in zipfile.ZipFile(ARCHIVE).namelist() if name.endswith(".mindir")]
NAMES = sorted(name.removesuffix(".mindir") for name in MODELS)
RANK_UNKNOWN = {"dyn_variance"}
"""Where the branches of an `If` differ in rank; ONNX's checker does not know that this may be."""
Array = np.ndarray[Any, Any]


@pytest.fixture
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return Path(archive.extract(f"{request.param}.mindir", tmp_path))


def examples(name: str) -> Iterator[tuple[list[Array], list[Array]]]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        data = dict(np.load(io.BytesIO(archive.read(f"{name}.npz"))))
    for start in sorted({key.partition("_")[0] for key in data}):
        yield tuple(  # type: ignore[misc]
            [data[f"{start}_{kind}_{i}"] for i in range(sum(f"{start}_{kind}_" in key for key in data))]
            for kind in ("in", "out")
        )


def check(found: list[Array], expected: list[Array]) -> None:
    assert len(found) == len(expected)
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        assert got.dtype == want.dtype and got.shape == want.shape, f"output {number}"
        if want.dtype.kind == "f" and want.size:
            assert relative_error(got, want) <= 1e-5, f"output {number}"
        else:
            assert np.array_equal(got, want), f"output {number}"


@pytest.mark.parametrize("file", NAMES, indirect=True)
def test_plain_onnx_runtime_and_two_ranks_give_the_answers(file: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    write_onnx(import_model(file), file, model)
    if file.stem not in RANK_UNKNOWN:
        onnx.checker.check_model(str(model), full_check=True)
    session = graphs.session(model)
    manifest = slice_model(file, 2, tmp_path / "slices", allow_replicated=True)
    names = [entry.name for entry in manifest.inputs]
    assert names == [value.name for value in session.get_inputs()]
    for inputs, expected in examples(file.stem):
        feeds = dict(zip(names, inputs, strict=True))
        check(session.run(None, feeds), expected)
        for outputs in run_slices(tmp_path / "slices", feeds):
            check([outputs[entry.name] for entry in manifest.outputs], expected)


@pytest.mark.parametrize("file", ["loops_in_loop", "breaks_and_continues"], indirect=True)
def test_what_follows_branches_is_written_once(file: Path) -> None:
    """As many nodes as the network has in its text, not as many as there are ways through it."""
    text = str(import_model(file))
    assert len(re.findall(r"op_type:", text)) < 2_000
