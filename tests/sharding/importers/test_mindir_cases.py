"""Networks that MindSpore exported and ran: the converted models give MindSpore's own answers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sharding import slice_model
from sharding.errors import SliceError
from sharding.importers import OPSETS, import_model
from sharding.importers.write import write_onnx
from sharding.reading.read import read_model
from tests.sharding import graphs
from tests.sharding.lockstep import relative_error, run_slices

DATA = Path(__file__).parents[2] / "data" / "mindir"
SHARDED = "shard_"
FILES = sorted(
    path
    for path in DATA.glob("*/*.mindir")
    if "v0" not in path.name and "aes" not in path.name and not path.parent.name.startswith(SHARDED)
)
Arrays = dict[str, np.ndarray[Any, Any]]


def ids(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def tolerance(path: Path) -> float:
    """What computes in float16 differs by the order of its roundings."""
    return 2e-3 if path.parent.name.startswith("fp16") else 1e-5


def examples(path: Path) -> Iterator[tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]]:
    """Inputs and answers of each example of a case, in order."""
    own = path.parent / "io_v1.npz"
    archive = np.load(own if "v1" in path.name and own.exists() else path.parent / "io.npz")
    for start in sorted({name.split("in_")[0] for name in archive if "in_" in name and "full" not in name}):
        inputs = [name for name in archive if name.startswith(f"{start}in_")]
        outputs = [name for name in archive if name.startswith(f"{start}out_")]
        yield (
            [archive[f"{start}in_{i}"] for i in range(len(inputs))],
            [archive[f"{start}out_{i}"] for i in range(len(outputs))],
        )


def converted(path: Path, folder: Path, opset: int = OPSETS[0]) -> Path:
    """The case as an ONNX file that passes ONNX's own checks."""
    output = folder / "model.onnx"
    write_onnx(import_model(path, opset=opset), path, output)
    if path.parent.name != "dyn_rank":  # the checker does not know that the number of axes may be unknown
        onnx.checker.check_model(str(output), full_check=True)
    return output


def check(path: Path, found: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]]) -> None:
    assert len(found) == len(expected)
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind == "f":
            error = relative_error(got, want)
            assert error <= tolerance(path), f"output {number}: relative error {error}"
        else:
            assert np.array_equal(got, want), f"output {number}"


def check_examples(path: Path, folder: Path) -> None:
    """Plain ONNX Runtime gives the answers of all examples."""
    session = graphs.session(converted(path, folder))
    names = [value.name for value in session.get_inputs()]
    for inputs, expected in examples(path):
        check(path, session.run(None, dict(zip(names, inputs, strict=True))), expected)


def test_there_are_cases_of_both_versions() -> None:
    assert len(FILES) >= 24
    assert sum("v1" in path.name for path in FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_plain_onnx_runtime_gives_the_answers(tmp_path: Path, path: Path) -> None:
    check_examples(path, tmp_path)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_two_ranks_give_the_answers(tmp_path: Path, path: Path) -> None:
    """Sliced from the MindIR file itself, whose weights are never copied to an ONNX file."""
    manifest = slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    names = [entry.name for entry in manifest.inputs]
    for inputs, expected in examples(path):
        for outputs in run_slices(tmp_path / "slices", dict(zip(names, inputs, strict=True))):
            check(path, [outputs[entry.name] for entry in manifest.outputs], expected)


@pytest.mark.parametrize("case", ["mlp", "gpt_s", "resnet_s", "unet_s"])
def test_weights_are_split(tmp_path: Path, case: str) -> None:
    manifest = slice_model(DATA / case / "model.mindir", 2, tmp_path / "slices")
    assert any(weight.placement != "replicated" for weight in manifest.weights.values())
    whole = sum(weight.bytes for weight in manifest.weights.values())
    assert max(rank.weight_bytes for rank in manifest.ranks) < 0.8 * whole


@pytest.mark.parametrize("opset", [OPSETS[-1]])
@pytest.mark.parametrize("path", [path for path in FILES if path.name == "model.mindir"], ids=ids)
def test_the_newest_opset_gives_the_same_answers(tmp_path: Path, path: Path, opset: int) -> None:
    session = graphs.session(converted(path, tmp_path, opset))
    names = [value.name for value in session.get_inputs()]
    inputs, expected = next(examples(path))
    check(path, session.run(None, dict(zip(names, inputs, strict=True))), expected)


def test_names_and_open_lengths_are_kept() -> None:
    model = import_model(DATA / "dyn_batch_mlp" / "model.mindir")
    (value,) = model.graph.input
    assert value.name == "x"
    assert [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim] == ["x_0", 16]
    held = {tensor.name for tensor in model.graph.initializer}
    assert {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"} <= held
    properties = {item.key: item.value for item in model.metadata_props}
    assert properties == {
        "shardrun.source": "model.mindir",
        "shardrun.source.format": "MindIR 3",
        "shardrun.source.producer": "MindSpore 2.10.0",
    }
    outputs = import_model(DATA / "multi_out" / "model.mindir").graph.output
    assert [item.name for item in outputs] == [f"output_{number}" for number in range(len(outputs))]


def test_control_flow_becomes_if_and_loop() -> None:
    for name in ("model.mindir", "model_v1.mindir"):
        graph = import_model(DATA / "ctrl_flow" / name).graph
        kinds = [node.op_type for node in graph.node]
        assert {"If", "Loop"} <= set(kinds)
        # What the loop's header decides on and its body computes is inside of it; weights are outside.
        assert "fc1.weight" in {tensor.name for tensor in graph.initializer}


def test_large_weights_stay_in_the_file(tmp_path: Path) -> None:
    path = DATA / "gpt_s" / "model.mindir"
    model = import_model(path)
    outside = [tensor for tensor in model.graph.initializer if tensor.data_location == tensor.EXTERNAL]
    assert outside and all(not tensor.raw_data for tensor in outside)
    source = read_model(path)
    extents = [weight.extent for weight in source.weights.values() if weight.extent is not None]
    assert extents and {extent.path for extent in extents} == {path}


def test_many_weights_go_to_a_file_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "gpt_s" / "model.mindir"
    monkeypatch.setattr("sharding.importers.write.INLINE_MOST", 1000)
    seen: list[tuple[int, int]] = []
    files = write_onnx(import_model(path), path, tmp_path / "m.onnx", lambda *done: seen.append(done))
    assert [file.name for file in files] == ["m.onnx", "m.onnx.data"]
    assert seen[-1][0] == seen[-1][1] <= files[1].stat().st_size
    session = graphs.session(files[0])
    inputs, expected = next(examples(path))
    names = [value.name for value in session.get_inputs()]
    check(path, session.run(None, dict(zip(names, inputs, strict=True))), expected)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_collectives_of_the_file_are_collective_nodes() -> None:
    for case, kind in (("shard_mlp_allreduce", "AllReduce"), ("shard_col_allgather", "AllGather")):
        model = import_model(DATA / case / "rank_0" / "model.mindir")
        own = [node for node in model.graph.node if node.domain == "com.microsoft"]
        assert [node.op_type for node in own] == [kind]
    assert {item.domain for item in model.opset_import} == {"", "com.microsoft"}
    with pytest.raises(SliceError, match="one rank's part already"):
        slice_model(DATA / "shard_mlp_allreduce" / "rank_0" / "model.mindir", 2, Path("unused"))


def test_the_table_of_primitives_is_the_present_one() -> None:
    """`python scripts/mindir_table.py` writes it."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, root / "scripts" / "mindir_table.py", "--check"], cwd=root, timeout=120, check=False
    )
    assert done.returncode == 0, "docs/mindir.md is not up to date: run scripts/mindir_table.py"
