"""``shardrun eval`` and ``Model.eval``: numbers of plain ONNX Runtime, data in files, ranks, and refusals."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ranks
from launcher import cli
from ranks.errors import ShardrunError
from ranks.evaluation import compressed
from sharding import slice_model
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import environment, mpirun, save_mlp
from tests.sharding import graphs

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((101, 8)).astype(np.float32)
LABELS = RANDOM.integers(0, 6, 101)
TARGETS = RANDOM.standard_normal((101, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mlp(tmp_path_factory.mktemp("model") / "m.onnx")


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    """Predictions of plain ONNX Runtime, all at once."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "d.npz", x=X, label=LABELS)
    return tmp_path / "d.npz"


def printed(out: str) -> dict[str, float]:
    """The table of metrics."""
    rows = out.split("\n\n", maxsplit=1)[0].splitlines()[2:]
    return {name: float(value) for name, value in (row.split() for row in rows)}


def built(model: Path) -> ranks.Model:
    made = ranks.Model()
    made.build_from_file(str(model), ranks.ModelType.MINDIR)
    return made


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--ranks", "2", "--batch-size", "7"],
        ["--mesh", "data=2", "--batch-size", "4"],
        ["--ranks", "2", "--launcher", "mpirun"],
    ],
)
def test_numbers_are_those_of_plain_onnx_runtime(
    model: Path, data: Path, reference: Any, options: list[str], tmp_path: Path
) -> None:
    done = shardrun(
        *("eval", model, "--data", data, "--metric", "accuracy", "--metric", "top3", "--metric", "loss"),
        *options, "--output", "r.json", cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["samples"] == 101
    found = report["metrics"]
    assert found["accuracy"] == float((reference.argmax(axis=1) == LABELS).mean())
    best = np.argsort(-reference, axis=1)[:, :3]
    assert found["top3"] == float((best == LABELS[:, None]).any(axis=1).mean())
    wide = reference.astype(np.float64)
    nll = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(101), LABELS]
    assert found["loss"] == pytest.approx(nll.mean(), rel=1e-5)
    assert printed(done.stdout) == pytest.approx(found, rel=1e-4)


def test_as_one_rank_of_mpirun(model: Path, data: Path, reference: Any, tmp_path: Path) -> None:
    command = ("eval", model, "--data", data, "--metric")
    done = shardrun(*command, "accuracy", cwd=tmp_path, before=mpirun(2))
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == pytest.approx(
        {"accuracy": (reference.argmax(1) == LABELS).mean()}, rel=1e-4
    )
    done = shardrun(*command, "mse", cwd=tmp_path, before=mpirun(2))
    assert done.returncode == 2
    assert "rank 0 on host" in done.stderr and "samples 0 to 31, metric 'mse': labels of shape" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_form_of_data_gives_the_same(model: Path, reference: Any, tmp_path: Path) -> None:
    want = {
        "mse": pytest.approx(((reference.astype(np.float64) - TARGETS) ** 2).mean(), rel=1e-5),
        "mae": pytest.approx(np.abs(reference.astype(np.float64) - TARGETS).mean(), rel=1e-5),
    }
    np.savez(tmp_path / "plain.npz", x=X, targets=TARGETS)
    np.savez_compressed(tmp_path / "packed.npz", x=X, targets=TARGETS)
    np.savez(tmp_path / "fortran.npz", x=np.asfortranarray(X), targets=np.asfortranarray(TARGETS))
    np.savez(tmp_path / "big_endian.npz", x=X, targets=TARGETS.astype(">f4"))
    np.savez(tmp_path / "other_names.npz", pixels=X, wanted=TARGETS)
    files, parts = tmp_path / "files", tmp_path / "parts"
    files.mkdir()
    parts.mkdir()
    np.save(files / "x.npy", X)
    np.save(files / "targets.npy", np.asfortranarray(TARGETS))
    for number, rows in enumerate([slice(0, 50), slice(50, 50), slice(50, 101)]):
        np.savez(parts / f"part{number}.npz", x=X[rows], targets=TARGETS[rows])
    loaded = built(model)
    for name in ("plain.npz", "packed.npz", "fortran.npz", "big_endian.npz", "files", "parts"):
        assert loaded.eval(str(tmp_path / name), ["mse", "mae"], batch_size=16) == want, name
    assert loaded.eval(tmp_path / "other_names.npz", ["mse", "mae"], label="wanted") == want
    pairs = [(X[:60], TARGETS[:60]), ([X[60:]], TARGETS[60:])]
    assert loaded.eval(pairs, ["mse", "mae"]) == want
    for sink in (True, False):  # of MindSpore's Model.eval
        assert loaded.eval(pairs, ["mse", "mae"], dataset_sink_mode=sink) == want
    with pytest.raises(TypeError, match="dataset_sink_mode must be bool, but got <class 'str'>"):
        loaded.eval(pairs, "mse", dataset_sink_mode="x")  # type: ignore[arg-type]  # what is tested
    for options in ({}, {"dataset_sink_mode": False}):
        with pytest.raises(ValueError, match=r"For Model.eval, the argument 'metrics' can not be None"):
            loaded.eval(pairs, **options)
    assert loaded.eval((({"x": x}, y) for x, y in [(X, TARGETS)]), ("mse", "mae")) == want


def test_models_that_fix_their_batch(tmp_path: Path, reference: Any, model: Path, data: Path) -> None:
    fixed = onnx.load(model)
    for value in (fixed.graph.input[0], fixed.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 16
    onnx.save(fixed, tmp_path / "fixed.onnx")
    want = float((reference.argmax(axis=1) == LABELS).mean())
    assert built(tmp_path / "fixed.onnx").eval(data, "accuracy") == {"accuracy": want}
    with pytest.raises(RuntimeError, match="fixes its batch to 16 samples, but a batch of 4 is asked for"):
        built(tmp_path / "fixed.onnx").eval(data, "accuracy", batch_size=4)


def test_label_is_found_or_named(model: Path, tmp_path: Path, reference: Any) -> None:
    want = {"accuracy": float((reference.argmax(axis=1) == LABELS).mean())}
    np.savez(tmp_path / "d.npz", x=X, y=LABELS, weights=TARGETS, ids=LABELS)
    with pytest.warns(UserWarning, match="the data's 'weights', 'ids' went unused"):
        assert built(model).eval(tmp_path / "d.npz", "accuracy") == want
    np.savez(tmp_path / "d.npz", a=X, b=LABELS)
    assert built(model).eval(tmp_path / "d.npz", "accuracy", label="b") == want
    assert built(model).eval(tmp_path / "d.npz", "accuracy", rename={"x": "a"}) == want


def test_other_outputs_and_nan(tmp_path: Path) -> None:
    text = "m (float[n, 3] x) => (float[n, 3] root, float[n, 3] same) { root = Sqrt(x) same = Identity(x) }"
    loaded = built(graphs.save(tmp_path / "m.onnx", text, {}))
    values = np.array([[1, 4, 9], [-1, 0, 4], [0, 1, 0]], np.float32)
    pairs = [(values, np.array([2, 2, 1]))]
    with pytest.warns(UserWarning, match="1 of 3 samples have NaN in their prediction"):
        assert loaded.eval(pairs, ["accuracy"]) == {"accuracy": pytest.approx(2 / 3)}
    assert loaded.eval(pairs, ["accuracy"], prediction="same") == {"accuracy": 1.0}
    with pytest.raises(RuntimeError, match="has no output 'other': it has 'root', 'same'"):
        loaded.eval(pairs, ["accuracy"], prediction="other")


def np_bytes(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"which array holds the labels\? It has 'x', and the model's inputs are 'x'"),
        ({"x": X, "a": LABELS, "b": LABELS}, "which array holds the labels"),
        ({"label": LABELS}, "has no array for the model's input 'x': it has 'label'"),
        ({"a": X, "b": X, "y": LABELS}, "has no array for the model's input 'x'"),
        (
            {"x": X.astype(np.float64), "y": LABELS},
            "array 'x', for the input 'x': expected float32, found float64",
        ),
        ({"x": X[:, :5], "y": LABELS}, r"expected the shape \[samples, 8\], found \[101, 5\]"),
        ({"x": X[0], "y": LABELS}, r"expected the shape \[samples, 8\], found \[8\]"),
        ({"x": X, "y": LABELS[:100]}, r"different numbers of samples \(their first axis\): 'x' 101, 'y' 100"),
        ({"x": X, "y": np.int64(3)}, "is one number: expected a label for each sample"),
        ({"x": X[:0], "y": LABELS[:0]}, "has no samples"),
        ({"x": X, "y": LABELS + 5}, "samples 0 to 31, metric 'accuracy': a label is 10"),
        ({"x": X, "y": np.array([None] * 101)}, "holds Python objects, which are never unpickled"),
    ],
)
def test_arrays_that_do_not_fit(model: Path, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(RuntimeError, match=message) as caught:
        built(model).eval(tmp_path / "d.npz", "accuracy")
    assert isinstance(caught.value, ShardrunError)


def test_damaged_files(model: Path, data: Path, tmp_path: Path) -> None:
    loaded = built(model)
    whole = data.read_bytes()
    for cut in (0, 10, 500, len(whole) - 40):
        (tmp_path / "cut.npz").write_bytes(whole[:cut])
        with pytest.raises(RuntimeError, match=r"cut\.npz: cannot be read"):
            loaded.eval(tmp_path / "cut.npz", "accuracy")
    packed = tmp_path / "packed.npz"
    np.savez_compressed(packed, x=X, label=LABELS)
    broken = bytearray(packed.read_bytes())
    broken[len(broken) // 2] ^= 0xFF
    packed.write_bytes(broken)
    with pytest.raises(RuntimeError, match=r"packed\.npz: array '.*': cannot be read"):
        loaded.eval(packed, "accuracy")
    head = b"\x93NUMPY\x01\x00"
    for text, message in (
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (101, 8)}", "ends early"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000, 8)}", "different numbers"),
        (b"{'descr': '<f4', 'fortran_order': False}", "cannot be read"),
        (b"\xff" * 30, "cannot be read"),
    ):
        header = head + len(text).to_bytes(2, "little") + text
        label = np_bytes(LABELS)
        archive(tmp_path / "d.npz", x=header + b"\0" * 64, label=label)
        with pytest.raises(RuntimeError, match=message):
            loaded.eval(tmp_path / "d.npz", "accuracy")


def test_pipes_arrays_that_are_there_twice_and_more_than_fits_into_memory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = built(model)
    folder = tmp_path / "parts"
    folder.mkdir()
    np.savez(folder / "a.npz", x=X, label=LABELS)
    for name in ("b.npz", "b.npy"):
        os.mkfifo(folder / name)
        with pytest.raises(RuntimeError, match=f"{name} is no file that can be read"):
            loaded.eval(folder, "accuracy")
        (folder / name).unlink()
    with pytest.raises(RuntimeError, match="a device or pipe; expected"):
        loaded.eval("/dev/zero", "accuracy")
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the name that is there already
        for name, array in (("x", X), ("label", LABELS), ("label", LABELS)):
            made.writestr(f"{name}.npy", np_bytes(array))
    with pytest.raises(RuntimeError, match="array 'label' is there twice"):
        loaded.eval(tmp_path / "d.npz", "accuracy")
    monkeypatch.setattr(compressed, "free_memory", lambda: 1 << 30)
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (101, 1000000000)}"
    label = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    archive(tmp_path / "d.npz", x=np_bytes(X), label=label)
    with pytest.raises(RuntimeError, match="array 'label': 128 GB are to be read into memory"):
        loaded.eval(tmp_path / "d.npz", "mse")


def test_a_sequence_is_no_prediction(tmp_path: Path) -> None:
    text = "m (float[n, 8] x) => (seq(float[]) parts) { parts = SplitToSequence <axis = 0> (x) }"
    path = graphs.save(tmp_path / "s.onnx", text, {})
    np.savez(tmp_path / "d.npz", x=X, label=LABELS)
    with pytest.raises(RuntimeError, match="the output 'parts' is a sequence or a map"):
        built(path).eval(tmp_path / "d.npz", "accuracy")
    done = shardrun("eval", path, "--data", tmp_path / "d.npz", "--metric", "accuracy", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "'parts'" in done.stderr and "ranks take and give tensors only" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "no.npz", "--metric", "mse"], "--data: no.npz: no such file or folder"),
        (["--data", "empty", "--metric", "mse"], "empty holds neither .npz nor .npy files"),
        (["--data", "both", "--metric", "mse"], "both holds .npz and .npy files"),
        (["--data", "both/x.npy", "--metric", "mse"], "is one array: expected an .npz file"),
        (["--data", "d.npz", "--metric", "ms"], "--metric: there is no metric 'ms'"),
        (
            ["--data", "d.npz", "--metric", "mse", "--batch-size", "0"],
            "--batch-size: expected a whole number",
        ),
        (["--data", "d.npz", "--metric", "mse", "--rename", "x"], "--rename x: expected INPUT=ARRAY"),
        (["--data", "d.npz", "--metric", "mse", "--rename", "z=x"], "the model has no input 'z'"),
        (["--data", "d.npz", "--metric", "mse", "--rename", "x=z"], "has no array 'z'"),
        (["--data", "d.npz", "--metric", "mse", "--label", "z"], "has no array 'z' to take labels from"),
        (["--data", "d.npz", "--metric", "mse", "--ignore-label", "x"], "expected a whole number"),
        (["--data", "d.npz", "--metric", "mse", "--output", "d.npz"], "no report that could be replaced"),
        (["--data", "d.npz"], "the following arguments are required: --metric"),
        (["--data", "d.npz", "--metric", "accuracy", "--prediction", "z"], "the model has no output 'z'"),
    ],
)
def test_wrong_options(
    model: Path, tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", x=X, label=LABELS)
    Path("empty").mkdir()
    Path("both").mkdir()
    np.save("both/x.npy", X)
    np.savez("both/d.npz", x=X)
    try:
        code = cli.main(["eval", str(model), *arguments])
    except SystemExit as leaving:
        code = int(str(leaving.code))
    assert code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_wrong_arguments(model: Path, data: Path) -> None:
    with pytest.raises(RuntimeError, match="eval failed! Error is the model is not built"):
        ranks.Model().eval(data, "accuracy")
    loaded = built(model)
    for wrong in ([3], [(X,)], 3):
        with pytest.raises(TypeError, match="data must"):
            loaded.eval(wrong, "accuracy")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="batch_size is of data in files"):
        loaded.eval([(X, LABELS)], "accuracy", batch_size=3)
    with pytest.raises(RuntimeError, match="the data have no samples"):
        loaded.eval([], "accuracy")
    with pytest.raises(RuntimeError, match="item 0 of the data has 2 inputs, but the model has 1"):
        loaded.eval([([X, X], LABELS)], "accuracy")
    with pytest.raises(RuntimeError, match="The model has no input"):
        loaded.eval([({"x": X, "z": X}, LABELS)], "accuracy")


MEMORY = """
import sys
import ranks
def most():  # of this program: what getrusage says begins with the most of who started it
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
model = ranks.Model()
model.build_from_file(sys.argv[1], ranks.ModelType.MINDIR)
model.eval(sys.argv[2], "mse", batch_size=64)
before = most()
print(model.eval(sys.argv[3], "mse", batch_size=64)["mse"], most() - before)
"""


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_data_are_not_held_in_memory(tmp_path: Path, save: Any) -> None:
    rows = 60_000
    graphs.save(tmp_path / "m.onnx", "m (float[n, 256] x) => (float[n, 256] y) { y = Relu(x) }", {})
    part = np.ones((64, 256), np.float32)
    np.savez(tmp_path / "small.npz", x=part, label=part)
    save(tmp_path / "large.npz", x=np.ones((rows, 256), np.float32), label=np.zeros((rows, 256), np.int8))
    script = [sys.executable, "-c", MEMORY, "m.onnx", "small.npz", "large.npz"]
    done = subprocess.run(
        script, cwd=tmp_path, env=environment(PYTHONPATH=str(Path(cli.__file__).parents[1])),
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    value, grown = done.stdout.split()
    assert float(value) == 1
    size = rows * 256 * 5 // 1024
    assert int(grown) < size / 8, f"{grown} kB more for data of {size} kB"


SLOW = """
import sys, time, numpy as np
import ranks
model = ranks.Model()
model.build_from_file(sys.argv[1], ranks.ModelType.MINDIR)
def data():
    for _ in range(8):
        time.sleep(0.3)
        yield np.zeros((2, 8), np.float32), np.zeros(2, np.int64)
print(model.eval(data(), "accuracy"))
"""


def test_a_bar_shows_on_a_terminal_only(model: Path, tmp_path: Path) -> None:
    variables = environment(PYTHONPATH=str(Path(cli.__file__).parents[1]), TERM="xterm", COLUMNS="100")
    script = [sys.executable, "-c", SLOW, str(model)]
    ours, theirs = pty.openpty()
    options: dict[str, Any] = {"cwd": tmp_path, "env": variables, "stdout": subprocess.PIPE}
    with subprocess.Popen(script, stderr=theirs, **options) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    os.close(ours)
    assert "evaluating" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert out.startswith(b"{'accuracy': ")
    done = subprocess.run(script, cwd=tmp_path, env=variables, capture_output=True, timeout=60, check=True)
    assert done.stderr == b""


@pytest.mark.parametrize(
    "texts", [np.array(["ab", "c", "ab"]), np.array([b"ab", b"c", b"ab"])], ids=["characters", "bytes"]
)
def test_text_as_characters_or_bytes(tmp_path: Path, texts: Any) -> None:
    """Each text has its number; one that ran into its neighbour would have -7."""
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 2]>
    g (string[n] s) => (float[n, 1] y) {
      f = ai.onnx.ml.LabelEncoder<
        keys_strings = ["ab", "c"], values_floats = [1.0, 2.0], default_float = -7.0
      >(s)
      y = Unsqueeze(f, axis)
    }"""
    graphs.save(tmp_path / "m.onnx", text, {"axis": np.array([1])})
    labels = np.array([[1.0], [2.0], [1.0]], np.float32)
    np.savez(tmp_path / "d.npz", s=texts, label=labels)
    model = built(tmp_path / "m.onnx")
    assert model.eval(str(tmp_path / "d.npz"), ["mse"]) == {"mse": 0.0}
    assert model.eval([(texts, labels)], ["mse"]) == {"mse": 0.0}


def test_lengths_to_plan_for(model: Path, data: Path, reference: Any, tmp_path: Path) -> None:
    """What the plan counts on changes no metric; a length that the model lacks is named, sliced or not."""
    done = shardrun(
        "eval",
        model,
        "--data",
        data,
        "--metric",
        "accuracy",
        "--ranks",
        "2",
        "--dim",
        "batch=64",
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert printed(done.stdout)["accuracy"] == pytest.approx(
        float((reference.argmax(axis=1) == LABELS).mean())
    )
    slice_model(model, 2, tmp_path / "slices")
    for what in ([model], [model, "--ranks", "2"], [tmp_path / "slices"]):
        wrong = shardrun(
            "eval", *what, "--data", data, "--metric", "accuracy", "--dim", "bacth=64", cwd=tmp_path
        )
        assert wrong.returncode == 2
        assert "--dim bacth=64: the model has no such symbolic dimension (it has: batch)" in wrong.stderr
        assert "did you mean 'batch'?" in wrong.stderr
