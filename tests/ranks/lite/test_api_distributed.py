"""The inference API on two ranks: the tutorial programs as a user starts them, slices, and new shapes."""

import json
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from shlex import join

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import sharding
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import Mesh
from tests.launcher.cli_tools import mpirun, run
from tests.ranks import api_models

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
EXEC = [sys.executable, "-m", "launcher.cli", "exec", "--target", "cpu"]


@dataclass(frozen=True)
class Sliced:
    """A model, and rank models made of it by hand and by `sharding`."""

    whole: Path
    by_hand: str
    """Path of the rank models, with {} for the rank."""
    folder: Path


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Sliced:
    return make(tmp_path_factory.mktemp("fixed"), 3)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Sliced:
    return make(tmp_path_factory.mktemp("open"), "batch")


def make(folder: Path, batch: int | str) -> Sliced:
    api_models.linear_ranks(folder / "hand", batch)
    big = api_models.linear(folder / "big.onnx", batch, width=512)
    sharding.slice_model(big, 2, folder / "slices")
    return Sliced(
        api_models.linear(folder / "whole.onnx", batch),
        str(folder / "hand" / "part_{}.onnx"),
        folder / "slices",
    )


def oracle(path: Path, array: NDArray[np.float32]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": array})[0])


def printed_values(line: str) -> NDArray[np.float64]:
    assert line.startswith("output data is: ")
    return np.array([float(word) for word in line.split(":")[1].split()])


def check_tutorial_output(output: str, whole: Path) -> None:
    """Both ranks print the tensor's name and sizes and its first ten values, which are the whole model's."""
    lines = output.splitlines()
    assert lines.count("tensor's name is:y data size is:48 tensor elements num is:12") == 2
    expected = oracle(whole, np.ones((3, 8), np.float32)).flatten()[:10]
    values = [printed_values(line) for line in lines if line.startswith("output data")]
    assert len(values) == 2
    for found in values:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_tutorial_started_by_mpirun(fixed: Sliced, tmp_path: Path) -> None:
    """Of files that were sliced; of those by hand the others are started."""
    whole, path = fixed.folder.parent / "big.onnx", str(fixed.folder / "rank_{}.onnx")
    done = run([*mpirun(2), *EXEC, EXAMPLES / "distributed_mpirun.py", "--model_path", path], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank id")) == [
        "rank id: 0, group size: 2",
        "rank id: 1, group size: 2",
    ]
    check_tutorial_output(done.stdout, whole)
    assert done.stderr.count("target 'gpu' runs on the CPU") == 2  # once a rank


def test_tutorial_started_by_shardrun(fixed: Sliced, tmp_path: Path) -> None:
    command = [*EXEC, "--ranks", "2", "--launcher", "local", EXAMPLES / "distributed_mpirun.py"]
    done = run([*command, "--model_path", fixed.by_hand], tmp_path)
    assert done.returncode == 0, done.stderr
    check_tutorial_output("\n".join(line.split("] ")[-1] for line in done.stdout.splitlines()), fixed.whole)


def test_tutorial_on_slices_of_a_batch(tmp_path: Path) -> None:
    """Rows of the batch instead of parts of weights, here one row for two ranks; the program is the same."""
    whole = api_models.linear(tmp_path / "big.onnx", "batch", width=512)
    options = SliceOptions(mesh=Mesh.of(data=2))
    sharding.slice_model(whole, 2, tmp_path / "slices", options=options)
    command = [*EXEC, "--ranks", "2", "--launcher", "local", EXAMPLES / "distributed_mpirun.py"]
    done = run([*command, "--model_path", tmp_path / "slices"], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.split("] ")[-1] for line in done.stdout.splitlines()]
    values = [printed_values(line) for line in lines if line.startswith("output data")]
    assert len(values) == 2, done.stdout
    for found in values:
        np.testing.assert_allclose(found, oracle(whole, np.ones((1, 8), np.float32)).flatten(), rtol=1e-4)


def by_hand(paths: list[str], config_file: Path) -> list[str]:
    """Two commands of a shell, as the Ascend tutorial gives them."""
    commands = [
        join(
            map(
                str,
                [
                    *EXEC,
                    EXAMPLES / "distributed_rank_table.py",
                    "--model_path",
                    path,
                    "--device_id",
                    rank,
                    "--rank_id",
                    rank,
                    "--config_file",
                    config_file,
                ],
            )
        )
        for rank, path in enumerate(paths)
    ]
    return ["bash", "-c", f"{commands[0]} & {commands[1]}; code=$?; wait $! && exit $code"]


def test_slice_folder_by_two_commands(fixed: Sliced, tmp_path: Path) -> None:
    done = run(by_hand([str(fixed.folder)] * 2, EXAMPLES / "config_file.ini"), tmp_path)
    assert done.returncode == 0, done.stderr
    check_tutorial_output(done.stdout, fixed.folder.parent / "big.onnx")
    assert done.stderr.count("target 'ascend' runs on the CPU") == 2


def test_shard_of_another_rank_is_refused(fixed: Sliced, tmp_path: Path) -> None:
    paths = [str(fixed.folder / f"rank_{1 - rank}.onnx") for rank in range(2)]
    done = run(by_hand(paths, EXAMPLES / "config_file.ini"), tmp_path)
    assert done.returncode != 0
    assert "is the shard of rank 1, but this process is rank 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_resize_on_ranks(fixed: Sliced, opened: Sliced, tmp_path: Path) -> None:
    """Open and fixed dimensions of a rank model change like those of a whole one, on all ranks together."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import json, sys
            import mindspore_lite as mslite
            import numpy as np

            rank = mslite.Context().gpu.rank_id
            for path in sys.argv[1:]:
                model = mslite.Model()
                model.build_from_file(path.format(rank), mslite.ModelType.MINDIR)
                inputs = model.get_inputs()
                for batch in (5, 3, 5):
                    model.resize(inputs, [[batch, 8]])
                    data = np.random.default_rng(batch).standard_normal((batch, 8)).astype(np.float32)
                    inputs[0].set_data_from_numpy(data)
                    (output,) = model.predict(inputs)
                    if rank == 0:
                        print(json.dumps(output.get_data_to_numpy().tolist()))
                try:
                    model.resize(inputs, [[2, 9]])
                except RuntimeError as error:
                    assert "the graph does not allow the shapes 'x' [2, 9]" in str(error), error
                else:
                    raise AssertionError("resized against a weight")
                (output,) = model.predict(inputs)
                assert output.shape == [5, 4]
            """
        )
    )
    command = [*EXEC, "--ranks", "2", "--launcher", "local", script]
    command += [path for sliced in (fixed, opened) for path in (sliced.by_hand, sliced.folder)]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    results = [
        np.array(json.loads(line[line.index("[[") :])) for line in done.stdout.splitlines() if "[[" in line
    ]
    assert len(results) == 12
    for index, found in enumerate(results):
        rows = (5, 3, 5)[index % 3]
        data = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        model = tmp_path / "m.onnx"
        api_models.linear(model, width=16 if index % 6 < 3 else 512)
        np.testing.assert_allclose(found, oracle(model, data), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["single_card.py", "single_card_legacy.py"])
def test_single_card_programs(name: str, fixed: Sliced, tmp_path: Path) -> None:
    np.ones((3, 8), np.float32).tofile(tmp_path / "input.bin")
    arguments = ["--model_path", fixed.whole, "--target", "gpu"]
    if name == "single_card_legacy.py":
        arguments = [fixed.whole, tmp_path / "input.bin"]
    done = run([*EXEC, EXAMPLES / name, *arguments], tmp_path)
    assert done.returncode == 0, done.stderr
    heading, values = done.stdout.splitlines()
    assert heading.startswith("tensor name is:y tensor size is:48 ")
    assert heading.endswith("elements num is:12")
    expected = oracle(fixed.whole, np.ones((3, 8), np.float32)).flatten()
    np.testing.assert_allclose(printed_values(values), expected, rtol=1e-5)


def test_program_takes_an_open_dimension(tmp_path: Path) -> None:
    model = api_models.linear(tmp_path / "open.onnx")
    done = run([*EXEC, EXAMPLES / "single_card.py", "--model_path", model], tmp_path)
    assert done.returncode == 0, done.stderr
    expected = oracle(model, np.ones((1, 8), np.float32)).flatten()
    np.testing.assert_allclose(printed_values(done.stdout.splitlines()[1]), expected, rtol=1e-5)


@pytest.mark.parametrize("tutorial", ["mpirun", "rank table"])
def test_tutorials_take_open_dimensions(tutorial: str, opened: Sliced, tmp_path: Path) -> None:
    paths = [opened.by_hand.format(rank) for rank in range(2)]
    command = by_hand(paths, EXAMPLES / "config_file.ini")
    if tutorial == "mpirun":
        program = EXAMPLES / "distributed_mpirun.py"
        command = [*map(str, [*EXEC, "--ranks", "2", program]), "--model_path", opened.by_hand]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    expected = oracle(opened.whole, np.ones((1, 8), np.float32)).flatten()
    lines = [line.split("] ")[-1] for line in done.stdout.splitlines()]
    values = [printed_values(line) for line in lines if line.startswith("output data")]
    assert len(values) == 2
    for found in values:
        np.testing.assert_allclose(found, expected[:10], rtol=1e-4, atol=1e-5)


def test_the_legacy_program_says_how_it_is_used(tmp_path: Path) -> None:
    done = run([*EXEC, EXAMPLES / "single_card_legacy.py"], tmp_path)
    assert done.returncode == 1
    assert done.stderr == "usage: shardrun exec examples/single_card_legacy.py MODEL.onnx INPUT.bin\n"
