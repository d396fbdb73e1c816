"""The tutorial's program: three processes that exchange ids and the handle by multiprocessing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from tests.end_to_end.processes import run_clean

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[4]
PROGRAM = ROOT / "examples" / "shared_weights.py"


@pytest.mark.parametrize("how", ["its import changed", "as it was"])
def test_the_example(how: str, shared_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(shared_model)]
    if how == "as it was":
        text = PROGRAM.read_text().replace("import ranks as mslite", "import mindspore_lite as mslite")
        assert "ranks" not in text
        program = tmp_path / "program.py"
        program.write_text(text)
        command = [sys.executable, "-m", "launcher.cli", "exec", str(program), str(shared_model)]
    done = run_clean(command, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}, timeout=100)
    assert done.returncode == 0, done.stderr
    session = ort.InferenceSession(str(shared_model), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": np.ones((1, 8), np.float32)})[0].flatten()
    lines = sorted(done.stdout.splitlines())
    assert [line.split(":")[0] for line in lines] == ["client 1", "client 2", "owner"]
    for line in lines:
        found = np.array([float(word) for word in line.rsplit("[", 1)[1].rstrip("]").split()])
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_a_process_that_fails_ends_the_program(tmp_path: Path) -> None:
    broken = tmp_path / "model.onnx"
    broken.write_bytes(b"")
    command = [sys.executable, str(PROGRAM), str(broken)]
    done = run_clean(command, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}, timeout=100)
    assert done.returncode != 0
    assert "is an empty file, not a model" in done.stderr


ROUNDS = 2
"""As in the tutorial, where a second one finds nothing that the first has left."""

# The form of mindspore_lite's tutorial on sharing weights between processes: arrays that the processes see by
# fork, a list of ids in which the owner leaves its own place at 0, and the handle in a signed number.
TUTORIAL = """
import ctypes
import sys
import time
from multiprocessing import Array, Process, Value

import numpy as np
import mindspore_lite as mslite

PROCESSES = 3
done = Array("i", [0] * PROCESSES)
pids = Array("i", [0] * PROCESSES)
handle = Value(ctypes.c_int64, 0)


def build(model, key, value):
    context = mslite.Context()
    context.target = ["ascend"]
    context.ascend.device_id = 0
    options = {"ascend_context": {key: value}}
    model.build_from_file(sys.argv[1], mslite.ModelType.MINDIR, context, config_dict=options)


def work(index):
    model = mslite.Model()
    if index == 0:
        while sum(pid != 0 for pid in pids) != PROCESSES - 1:
            time.sleep(0.001)  # there it spins
        build(model, "shareable_weight_pid_list", str([int(pid) for pid in pids])[1:-1])
        handle.value = int(model.get_model_info("shareable_weight_mem_handle"))
    else:
        pids[index] = int(model.get_model_info("current_pid"))
        while handle.value == 0:
            time.sleep(0.001)
        build(model, "shareable_weight_mem_handle", str(handle.value))
    done[index] = 1
    while sum(done) != PROCESSES:
        time.sleep(0.001)
    inputs = model.get_inputs()
    model.resize(inputs, [[1, 8]])
    inputs[0].set_data_from_numpy(np.ones((1, 8), np.float32))
    output = model.predict(inputs)[0].get_data_to_numpy().flatten()
    values = " ".join(map(str, output))
    print(f"share {index} {handle.value > 0} {values}\\n", end="")  # in one piece


if __name__ == "__main__":
    for round in range(int(sys.argv[2])):
        done[:] = pids[:] = [0] * PROCESSES
        handle.value = 0
        processes = [Process(target=work, args=(index,)) for index in range(PROCESSES)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:  # the others would wait for ever
                for other in processes:
                    other.kill()
                sys.exit(process.exitcode)
"""


def test_the_tutorials_form(shared_model: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TUTORIAL)
    command = [sys.executable, "-m", "launcher.cli", "exec", "--target", "cpu", str(program)]
    command += [str(shared_model), str(ROUNDS)]
    done = run_clean(command, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}, timeout=100)
    assert done.returncode == 0, done.stderr
    session = ort.InferenceSession(str(shared_model), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": np.ones((1, 8), np.float32)})[0].flatten()
    lines = [line.split() for line in done.stdout.splitlines()]
    assert sorted(line[1] for line in lines) == sorted("012" * ROUNDS)
    for line in lines:
        assert line[2] == "True"
        found = np.array([float(word) for word in line[3:]])
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
