"""``shardrun convert`` with files that are none: one sentence, and nothing is left or replaced."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from launcher.cli import main
from sharding.importers import write
from sharding.importers.checkpoints import rename
from tests.sharding import graphs

W = np.arange(12, dtype=np.float32).reshape(4, 3)
Convert = Callable[..., str]


def save_model(path: Path, dtype: int = TensorProto.FLOAT, name: str = "w") -> None:
    """y = x w."""
    weight = W.astype(helper.tensor_dtype_to_np_dtype(dtype))
    kind = TensorProto.DataType.Name(dtype).lower()
    text = f"m ({kind}[n, 4] x) => ({kind}[n, 3] y) {{ y = MatMul(x, {name}) }}"
    graphs.save(path, text, {name: weight})


def save_weights(path: Path, **arrays: Any) -> None:
    """A .safetensors file."""
    header, body = {}, b""
    names = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "float16": "F16"}
    for name, array in arrays.items():
        data = array.tobytes()
        header[name] = {
            "dtype": names[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "m.onnx")
    save_weights(tmp_path / "w.safetensors", w=W + 1)
    return tmp_path


@pytest.fixture
def refused(here: Path, capfd: pytest.CaptureFixture[str]) -> Convert:
    """Runs the command, which must refuse in one line and leave all files as they were; the line."""

    def state() -> dict[Path, tuple[int, int]]:
        return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in here.rglob("*")}

    def run(*arguments: object) -> str:
        before = state()
        code = main(["convert", *map(str, arguments)])
        out, err = capfd.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
        assert state() == before
        return err

    return run


def test_pipes_and_devices_are_not_waited_for(here: Path, refused: Convert) -> None:
    os.mkfifo("pipe")
    index = {"weight_map": {"w": "pipe"}}
    Path("i.index.json").write_text(json.dumps(index))
    for weights in ("pipe", "i.index.json", "/dev/zero"):
        assert "is not a file" in refused("--weights", weights, "m.onnx", "out.onnx")
    assert "found a folder, device or pipe" in refused(
        "--weights", "w.safetensors", "m.onnx", "out.onnx", "--verify", "pipe"
    )
    (here / "folder").mkdir()
    os.mkfifo(here / "folder" / "config.json")
    save_weights(here / "folder" / "model.safetensors", w=W)
    assert "is not a file" in refused("--network", "folder", "out.onnx")


@pytest.mark.parametrize("make", [os.mkfifo, lambda name: Path(name).symlink_to("/dev/null")])
def test_a_device_is_not_replaced_by_a_file(refused: Convert, make: Callable[[str], None]) -> None:
    make("out.onnx")
    assert "is a device or pipe" in refused("--weights", "w.safetensors", "m.onnx", "out.onnx")


def test_the_file_of_many_weights_replaces_nobody_elses(
    here: Path, refused: Convert, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "INLINE_MOST", 16)
    (here / "out.onnx.data").write_text("notes")
    common = ("m.onnx", "out.onnx")
    assert "is there already, and no out.onnx" in refused("--weights", "w.safetensors", *common)
    (here / "w.safetensors").replace(here / "out.onnx.data")
    save_model(here / "out.onnx")
    text = refused("--weights", "out.onnx.data", *common)
    assert "would replace out.onnx.data, which it is made of" in text
    # An earlier result is replaced.
    save_weights(here / "w.safetensors", w=W + 1)
    assert main(["convert", "--weights", "w.safetensors", *common]) == 0
    assert (onnx.load(here / "out.onnx").graph.initializer[0].raw_data) == (W + 1).tobytes()


def test_a_model_and_its_weights_are_replaced_together(
    here: Path, refused: Convert, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model cannot be written, the earlier model keeps the weights that it had."""
    monkeypatch.setattr(write, "INLINE_MOST", 16)
    assert main(["convert", "--weights", "w.safetensors", "m.onnx", "out.onnx"]) == 0
    capfd.readouterr()
    save_weights(here / "w.safetensors", w=W + 2)

    def full(file: Any, model: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_write_message", full)
    text = refused("--weights", "w.safetensors", "m.onnx", "out.onnx")
    assert "out.onnx cannot be written: No space left on device" in text
    assert onnx.load(here / "out.onnx").graph.initializer[0].raw_data == (W + 1).tobytes()


@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
def test_numbers_too_large_for_the_models_type(here: Path, refused: Convert, kind: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    model = "m.onnx" if kind == "float64" else "half.onnx"
    save_model(here / "half.onnx", TensorProto.FLOAT16)
    large = W.astype(dtype)
    large[1, 1] = 3e38 if kind == "bfloat16" else 1e300
    save_weights(here / "large.safetensors", w=large)
    text = refused("--weights", "large.safetensors", model, "out.onnx")
    assert "The weight 'w' has the value" in text and f"the file has it as {kind}" in text
    # What is infinite in the file stays so.
    large[1, 1] = np.inf
    save_weights(here / "large.safetensors", w=large)
    assert main(["convert", "--weights", "large.safetensors", model, "out.onnx"]) == 0


def test_patterns_that_take_for_ever(here: Path, refused: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rename, "MOST_SECONDS", 0.2)
    save_weights(here / "w.safetensors", **{"w": W, "a" * 60 + "!": W})
    text = refused("--weights", "w.safetensors", "--rename", "(a+)+$=x", "m.onnx", "out.onnx")
    assert "the patterns took more than 0.2 seconds" in text


def test_names_that_no_stream_can_write(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_weights(here / "w.safetensors", **{"w": W, "\ud800\u202e\u2028\n\x1b[31m": W})
    code = main(["convert", "--weights", "w.safetensors", "--allow-unexpected", "m.onnx", "out.onnx"])
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    assert "1 weight unexpected in the checkpoint: \\ud800\\u202e\\u2028\\n\\x1b[31m\n" in out


def test_names_that_an_index_has_twice(here: Path, refused: Convert) -> None:
    Path("i.index.json").write_text('{"weight_map": {"w": "other.safetensors", "w": "w.safetensors"}}')
    assert "a name stands there twice" in refused("--weights", "i.index.json", "m.onnx", "out.onnx")


def test_archives_of_others_are_no_checkpoints(here: Path, refused: Convert) -> None:
    np.savez("a.npz", w=W)
    assert "is no checkpoint that can be read" in refused("--weights", "a.npz", "m.onnx", "out.onnx")


def test_answers_that_do_not_fit_are_told_before_anything_is_written(here: Path, refused: Convert) -> None:
    x, y = np.ones((2, 4), np.float32), np.ones((2, 3), np.float32)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": x}, "there is neither 'y' nor 'out_0'"),
        ({"y": y}, "there is neither 'x' nor 'in_0'"),
        (
            {"x": x.astype(np.float64), "y": y},
            "expected float32 [n, 4] for the input 'x', found float64 [2, 4]",
        ),
        ({"x": x[0], "y": y}, "expected float32 [n, 4] for the input 'x', found float32 [4]"),
        ({"x": y, "y": y}, "expected float32 [n, 4] for the input 'x', found float32 [2, 3]"),
        ({"x": np.array(["a"]), "y": y}, "expected float32 [n, 4] for the input 'x', found <U1 [1]"),
        ({"x": np.array([{}], object), "y": y}, "an array in it holds Python objects"),
    ]
    for arrays, message in cases:
        np.savez("io.npz", **arrays)
        text = refused("--weights", "w.safetensors", "m.onnx", "out.onnx", "--verify", "io.npz")
        assert f"--verify io.npz: {message}" in text


def test_an_archive_larger_than_memory(here: Path, refused: Convert) -> None:
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", b"")
    data = bytearray(Path("bomb.npz").read_bytes())
    at = data.index(b"PK\x01\x02") + 24  # the uncompressed size in the list of contents
    data[at : at + 4] = struct.pack("<I", 0xFFFFFFF0)
    Path("bomb.npz").write_bytes(data)
    from ranks.evaluation import compressed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compressed, "free_memory", lambda: 1 << 30)
        text = refused("--weights", "w.safetensors", "m.onnx", "out.onnx", "--verify", "bomb.npz")
    assert "bomb.npz: 4.29 GB are to be read into memory, of which 1.07 GB are free" in text


def test_byte_order_and_types_that_npy_cannot_name(here: Path) -> None:
    """Big-endian arrays are what they say, and float32 stands for bfloat16."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez("io.npz", x=x.astype(">f4"), y=(x @ (W + 1)).astype(np.float32))
    common = ["convert", "--weights", "w.safetensors"]
    assert main([*common, "m.onnx", "out.onnx", "--verify", "io.npz"]) == 0
    save_model(here / "b.onnx", TensorProto.BFLOAT16)
    graph = onnx.load(here / "b.onnx")
    del graph.graph.node[:]
    graph.graph.node.extend(
        [
            helper.make_node("Cast", ["x"], ["xf"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["w"], ["wf"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["xf", "wf"], ["yf"]),
            helper.make_node("Cast", ["yf"], ["y"], to=TensorProto.BFLOAT16),
        ]
    )
    onnx.save(graph, here / "b.onnx")
    np.savez("io.npz", x=x, y=(x @ (W + 1)).astype(np.float32))
    assert main([*common, "b.onnx", "out.onnx", "--verify", "io.npz"]) == 0


def test_weights_that_are_one_in_the_network_and_differ_in_the_file(
    here: Path, refused: Convert, capfd: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tests.sharding.torch_nets import Tied

    state = {name: tensor.clone() for name, tensor in Tied().state_dict().items()}
    torch.save(state, "same.pt")
    state["head.weight"] += 1
    torch.save(state, "other.pt")
    network = ("--network", "tests.sharding.torch_nets:Tied", "--weights")
    inputs = ("--input", "ids:batch,length:int64", "--input", "scale:", "out.onnx")
    text = refused(*network, "other.pt", *inputs)
    assert "different values for embed.weight and head.weight, which are one tensor" in text
    rest = ("--rename", r"^head\.=unused.", "--allow-unexpected")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: torch exports with it")
    assert main(["convert", *network, "same.pt", *inputs]) == 0
    assert main(["convert", *network, "other.pt", *rest, *inputs]) == 0


def test_what_torch_refuses_is_told_without_its_advice(here: Path, refused: Convert) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import pickle

    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {here / 'ran'}",)

    torch.save(torch.nn.Linear(2, 2), "whole.pt")
    torch.save({"w": Hostile()}, "system.pt")
    Path("plain.pt").write_bytes(pickle.dumps({"w": Hostile()}, protocol=4))
    for file, reason in (
        ("whole.pt", "(Unsupported global: GLOBAL torch.nn.modules.linear.Linear)"),
        ("system.pt", "(Trying to load unsupported GLOBAL posix.system)"),
        ("plain.pt", "Unsupported"),
    ):
        text = refused("--weights", file, "m.onnx", "out.onnx")
        assert reason in text and "weights_only" not in text and len(text) < 400
    assert not (here / "ran").exists()


def test_names_that_are_no_text(here: Path, refused: Convert) -> None:
    text = refused("m.onnx", "out.onnx", "--output-names", os.fsdecode(b"a\xff"))
    assert "--output-names: 'a\\udcff' is no text in UTF-8" in text
    assert "has 1 output (y); found 2 names" in refused("m.onnx", "out.onnx", "--output-names", "a,b")


def test_names_with_control_characters_are_shown_escaped(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "m.onnx", "o\x1b[31m.onnx", "--output-names", "a\nb"]) == 0
    out = capfd.readouterr().out
    assert "wrote o\\x1b[31m.onnx (" in out and out.endswith("inputs: x; outputs: a\\nb\n")


def test_inputs_that_the_network_cannot_take(here: Path, refused: Convert) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: torch exports with it")
    network = ("--network", "tests.sharding.torch_nets:LeNet5", "out.onnx", "--input")
    assert "does not fit into memory" in refused(*network, "x:2147483647,100000,32,32")
    # torch exports a convolution of whole numbers, which ONNX does not have.
    assert "unsupported type: tensor(int64)" in refused(*network, "x:1,1,32,32:int64")
    np.savez("x.npz", x=np.array(["text"]))
    assert "holds <U4; expected numbers" in refused(*network, "x.npz")
    np.savez("x.npz", x=np.ones((2, 1, 32, 32), ">f4"))
    assert main(["convert", *network, "x.npz"]) == 0


def test_configurations_of_transformers(here: Path, refused: Convert) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: torch exports with it")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes["vocab_size"] = 50
    model = transformers.BertModel(transformers.BertConfig(**sizes))
    torch.save({**model.state_dict(), "more": torch.ones(1)}, "w.pt")
    Path("hf").mkdir()
    config = Path("hf/config.json")
    # No architecture is named: that of the model type, which has all weights but one.
    config.write_text(json.dumps({"model_type": "bert", **sizes}))
    said = refused("--network", "hf", "--weights", "w.pt", "out.onnx")
    assert "1 unexpected: more" in said and "missing" not in said
    for change, message in (
        ({"architectures": ["os"]}, "names the architecture 'os'"),
        ({"hidden_size": 10**12}, "transformers cannot build the model"),
        ({"hidden_size": "wide"}, "transformers cannot build the model"),
        (
            {"model_type": "none", "auto_map": {"AutoConfig": "code.py"}},
            "transformers cannot build the model",
        ),
    ):
        config.write_text(json.dumps({"model_type": "bert", **sizes, **change}))
        assert message in refused("--network", "hf", "--weights", "w.pt", "out.onnx")
