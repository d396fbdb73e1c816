"""What `shardrun run` prints: a table of the outputs, one JSON document, or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest

from launcher.tasks.outputs import summarize
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import mpirun, save_mlp


@pytest.mark.parametrize(
    ("array", "row"),
    [
        (np.float32([1, -2.5, 1 / 3, 4, 5]), ["[5]", "float32", "1 -2.5 0.33333 4 ...", "-2.5 to 5"]),
        (np.int64([[1, 2]]), ["[1, 2]", "int64", "1 2", "1 to 2"]),
        (np.float32([np.nan, 1, np.inf]), ["[3]", "float32", "nan 1 inf", "1 to 1, 1 NaN, 1 infinite"]),
        (np.float32([np.nan]), ["[1]", "float32", "nan", "1 NaN"]),
        (np.array([True, False]), ["[2]", "bool", "True False", ""]),
        (np.zeros((0, 3), np.float32), ["[0, 3]", "float32", "(empty)", ""]),
        (np.float32(7), ["[]", "float32", "7", "7 to 7"]),
        (np.array(["a\rb", "x" * 99], object), ["[2]", "string", None, ""]),
        (np.array([1, 2], ml_dtypes.bfloat16), ["[2]", "bfloat16", "1 2", "1 to 2"]),
        (np.uint64([2**64 - 1]), ["[1]", "uint64", str(2**64 - 1), f"{2**64 - 1} to {2**64 - 1}"]),
        (np.complex64([1 + 2j]), ["[1]", "complex64", "1+2j", ""]),
        (np.array([b"ab", b"c\xff"]), ["[2]", "string", "'ab' 'c\ufffd'", ""]),
        (np.int8([1, 2, 3, 4]), ["[4]", "int8", "1 2 3 4", "1 to 4"]),
        (np.float16([np.nan, -np.inf, np.inf]), ["[3]", "float16", "nan -inf inf", "1 NaN, 2 infinite"]),
    ],
)  # fmt: skip
def test_a_row(array: Any, row: list[str | None]) -> None:
    (found,) = summarize({"y": array})
    cells = found.row()
    assert cells[0] == "y"
    for cell, want in zip(cells[1:], row, strict=True):
        assert want is None or cell == want
    assert "\r" not in "".join(cells)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["shape"] == list(np.shape(array))
    assert document["bytes"] == np.asarray(array).nbytes


@pytest.mark.parametrize(
    ("array", "first"),
    [
        (np.float32([np.nan, np.inf, -np.inf, 0.5, 7]), ["nan", "inf", "-inf", 0.5]),
        (np.complex64([1 - 2j, complex(0, np.inf)]), [[1, -2], [0, "inf"]]),
        (np.array([b"ab", b"\xff"]), ["ab", "\ufffd"]),
        (np.array(["ab"], object), ["ab"]),
        (np.array([True]), [True]),
    ],
)  # fmt: skip
def test_what_json_has_no_word_for_is_text(array: Any, first: list[object]) -> None:
    (found,) = summarize({"y": array})
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["first"] == first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its slices."""
    place = tmp_path_factory.mktemp("outputs")
    save_mlp(place / "m.onnx")
    assert shardrun("slice", "m.onnx", "--ranks", 2, "--output", "slices", cwd=place).returncode == 0
    return place


@pytest.mark.parametrize("under_mpirun", [False, True])
def test_json(folder: Path, under_mpirun: bool) -> None:
    before = mpirun(2) if under_mpirun else ()
    done = shardrun(
        "run", "slices", "--json", "--verify", "--repeat", 3, "--output", "y.npz", "--dim", "batch=2",
        cwd=folder, before=before,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    want = ort.InferenceSession(str(folder / "m.onnx")).run(None, {"x": np.ones((2, 8), np.float32)})[0]
    (output,) = document["outputs"]
    assert (output["name"], output["dtype"], output["shape"]) == ("y", "float32", [2, 6])
    np.testing.assert_allclose(output["first"], want.reshape(-1)[:4], 1e-4)
    np.testing.assert_allclose([output["min"], output["max"]], [want.min(), want.max()], 1e-4)
    assert (document["ranks"], document["collectives"]) == (2, {"AllReduce": 1})
    assert len(document["seconds"]) == 3
    assert document["written"] == "y.npz"
    assert [(item["output"], item["ok"]) for item in document["verify"]] == [("y", True)]


def test_json_of_a_difference(folder: Path) -> None:
    """The exit code says it, and so does the document."""
    save_mlp(folder / "other.onnx", seed=1)
    done = shardrun("run", "slices", "--json", "--verify", "--against", "other.onnx", cwd=folder)
    assert done.returncode == 3
    assert [item["ok"] for item in json.loads(done.stdout)["verify"]] == [False]
    assert "differs" in done.stderr


@pytest.mark.parametrize("under_mpirun", [False, True])
def test_quiet(folder: Path, under_mpirun: bool) -> None:
    name = f"quiet{under_mpirun}.npz"
    before = mpirun(2) if under_mpirun else ()
    done = shardrun("run", "slices", "--quiet", "--verify", "--output", name, cwd=folder, before=before)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert np.load(folder / name)["y"].shape == (1, 6)


def test_quiet_and_json_exclude_each_other(folder: Path) -> None:
    both = shardrun("run", "slices", "--quiet", "--json", cwd=folder)
    assert both.returncode == 2
    assert "not allowed with" in both.stderr
