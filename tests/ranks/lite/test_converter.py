"""`Converter` as scripts for mindspore_lite use it: the file that it writes runs, and gives what plain ONNX
Runtime gives on the source, or what MindSpore answered. The messages are mindspore_lite 2.0.0's."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

import ranks
from ranks import Converter, DataType, FmkType, Format, Model, ModelType, Tensor, compat
from ranks.errors import ShardrunError
from tests.launcher.cli_tools import save_mlp
from tests.sharding import graphs

pytestmark = pytest.mark.usefixtures("single")
DATA = Path(__file__).parents[2] / "data" / "mindir"
X = np.random.default_rng(3).standard_normal((4, 8), np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))


def answers(path: Path, *inputs: Any) -> list[Any]:
    """By the model as a script loads it."""
    model = Model()
    model.build_from_file(str(path), ModelType.MINDIR)
    return [item.get_data_to_numpy() for item in model.predict([Tensor(array) for array in inputs])]


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def plain(path: Path, x: Any = X) -> Any:
    return ort.InferenceSession(str(path)).run(None, {"x": x})[0]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("name", ["out", "out.onnx", "out.mindir"])
def test_an_onnx_file(name: str, external: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The suffix is appended whatever the name is, as by mindspore_lite; a second time replaces the file."""
    source = save_mlp(tmp_path / "m.onnx", external=external)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for _ in range(2):
        Converter().convert(FmkType.ONNX, str(source), str(tmp_path / name))
        assert capsys.readouterr().out == "CONVERT RESULT SUCCESS:0\n"
    np.testing.assert_allclose(
        answers(tmp_path / f"{name}.mindir", X)[0], plain(source), rtol=1e-5, atol=1e-5
    )
    assert {path: path.read_bytes() for path in before} == before
    written = {path.name for path in tmp_path.iterdir() if path.name != "cache"}
    assert written == {*(path.name for path in before), f"{name}.mindir"}


@pytest.mark.parametrize("file", ["mlp/model.mindir", "mlp/model_v1.mindir", "mlp_split/model_graph.mindir"])
@pytest.mark.parametrize("kind", [FmkType.MINDIR, FmkType.ONNX])
def test_a_network_of_mindspore(file: str, kind: FmkType, tmp_path: Path) -> None:
    """Its content says what it is."""
    Converter().convert(kind, str(DATA / file), str(tmp_path / "out"))
    io = np.load((DATA / file).with_name("io.npz"))
    found = answers(tmp_path / "out.mindir", io["in_0"])[0]
    np.testing.assert_allclose(found, io["out_0"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["GCM", "CBC"])
def test_an_encrypted_network(mode: str, tmp_path: Path) -> None:
    from tests.launcher.job.test_encrypted import KEY

    pytest.importorskip("cryptography", reason="the package that decrypts is missing")
    source = DATA / "mlp_encrypted" / f"model_aes_{mode.lower()}.mindir"
    converter = Converter()
    converter.decrypt_key, converter.decrypt_mode = KEY.hex(), f"AES-{mode}"
    converter.convert(FmkType.MINDIR, str(source), str(tmp_path / "out"))
    io = np.load(source.with_name("io.npz"))
    np.testing.assert_allclose(
        answers(tmp_path / "out.mindir", io["in_0"])[0], io["out_0"], rtol=1e-4, atol=1e-5
    )
    for key, text in (("abc", "in hexadecimal digits"), ("00" * 16, "key"), ("", "is encrypted")):
        converter.decrypt_key = key
        with pytest.raises(RuntimeError, match=text):
            converter.convert(FmkType.MINDIR, str(source), str(tmp_path / "other"))
    assert not (tmp_path / "other.mindir").exists()


def test_a_program_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch, whose program is converted, is missing")
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    torch.export.save(torch.export.export(network, (torch.from_numpy(X),)), str(tmp_path / "n.pt2"))
    Converter().convert(FmkType.PYTORCH, str(tmp_path / "n.pt2"), str(tmp_path / "out"))
    wanted = network(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(answers(tmp_path / "out.mindir", X)[0], wanted, rtol=1e-4, atol=1e-5)
    torch.save(network.state_dict(), tmp_path / "n.pth")
    with pytest.raises(RuntimeError, match=r"n\.pth is no exported program: .*`shardrun convert --network"):
        Converter().convert(FmkType.PYTORCH, str(tmp_path / "n.pth"), str(tmp_path / "other"))


@pytest.mark.parametrize("external", [False, True])
def test_half_weights(external: bool, tmp_path: Path) -> None:
    """Weights rounded to float16, all else in float32; one with a number beyond float16 stays."""
    source = save_mlp(tmp_path / "m.onnx", external=external, width=2048)
    converter = Converter()
    converter.weight_fp16 = True
    converter.convert(FmkType.ONNX, str(source), str(tmp_path / "half"))
    rounded = onnx.load(source)
    for tensor in rounded.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    wanted = ort.InferenceSession(rounded.SerializeToString()).run(None, {"x": X})[0]
    found = answers(tmp_path / "half.mindir", X)[0]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    Converter().convert(FmkType.ONNX, str(source), str(tmp_path / "whole"))
    sizes = [(tmp_path / f"{name}.mindir").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.52 * sizes[1]
    big = onnx.load(source)
    big.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((8, 2048), 1e6, np.float32), "w0"))
    onnx.save(big, tmp_path / "big.onnx")
    converter.convert(FmkType.ONNX, str(tmp_path / "big.onnx"), str(tmp_path / "big"))
    kinds = {item.name: item.data_type for item in onnx.load(tmp_path / "big.mindir").graph.initializer}
    assert kinds == {
        "w0": TensorProto.FLOAT,
        "b0/float16": TensorProto.FLOAT16,
        "w1/float16": TensorProto.FLOAT16,
    }


def test_half_weights_of_a_network_of_mindspore(tmp_path: Path) -> None:
    converter = Converter()
    converter.weight_fp16 = True
    converter.convert(FmkType.MINDIR, str(DATA / "mlp_split" / "model_graph.mindir"), str(tmp_path / "out"))
    io = np.load(DATA / "mlp_split" / "io.npz")
    found = answers(tmp_path / "out.mindir", io["in_0"])[0]
    assert np.abs(found - io["out_0"]).max() < 5e-3 * np.abs(io["out_0"]).max()
    assert not np.array_equal(found, io["out_0"])


def test_fixed_lengths_and_an_inference_at_the_end(tmp_path: Path) -> None:
    source = save_mlp(tmp_path / "m.onnx")
    converter = Converter()
    converter.input_shape, converter.infer = {"x": [4, 8]}, True
    converter.convert(FmkType.ONNX, str(source), str(tmp_path / "out"))
    model = Model()
    model.build_from_file(str(tmp_path / "out.mindir"), ModelType.MINDIR)
    assert [item.shape for item in model.get_inputs()] == [[4, 8]]
    np.testing.assert_allclose(answers(tmp_path / "out.mindir", X)[0], plain(source), rtol=1e-5, atol=1e-5)
    for shape, text in (
        ({"z": [4, 8]}, "has no input 'z' to resize; it has 'x'"),
        ({"x": [8]}, "has 2 axes"),
    ):
        converter.input_shape = shape
        with pytest.raises(RuntimeError, match=text):
            converter.convert(FmkType.ONNX, str(source), str(tmp_path / "other"))
    assert not (tmp_path / "other.mindir").exists()


def test_an_inference_that_fails(tmp_path: Path) -> None:
    text = "m (float[n, 3] x) => (float[k] y) { y = Reshape(x, to) }"
    graphs.save(tmp_path / "m.onnx", text, {"to": np.array([7])})
    converter = Converter()
    converter.infer = True
    with pytest.raises(RuntimeError, match=r"^Converter model failed! model_file is .*m\.onnx, error is "):
        converter.convert(FmkType.ONNX, str(tmp_path / "m.onnx"), str(tmp_path / "out"))


def _wrong(name: str, value: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        converter = Converter()
        setattr(converter, name, value)
        converter.convert(FmkType.ONNX, str(save_mlp(path / "m.onnx")), str(path / "out"))

    return change


def _of(kind: FmkType) -> Callable[[Path], None]:
    return lambda path: Converter().convert(kind, str(save_mlp(path / "m.onnx")), str(path / "out"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_of(FmkType.TF), "TensorFlow models are not converted: export the model as ONNX"),
        (_of(FmkType.CAFFE), "Caffe models are not converted"),
        (_of(FmkType.TFLITE), "TensorFlow Lite models are not converted"),
        (_wrong("save_type", ModelType.MINDIR_LITE), "no .ms files of MindSpore Lite are written"),
        (_wrong("enable_encryption", True), "models are not encrypted when they are written"),
    ],
)
def test_what_is_not_done_here(change: Callable[[Path], None], text: str, tmp_path: Path) -> None:
    with pytest.raises(
        ShardrunError, match=rf"^Converter model failed! model_file is .*m\.onnx, error is {text}"
    ):
        change(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx"}


def test_files_that_are_in_the_way(tmp_path: Path) -> None:
    source = save_mlp(tmp_path / "m.mindir")
    with pytest.raises(RuntimeError, match="is the model itself: choose another output_file"):
        Converter().convert(FmkType.ONNX, str(source), str(tmp_path / "m"))
    shutil.copy(DATA / "mlp" / "model.mindir", tmp_path / "mine.mindir")
    (tmp_path / "folder.mindir").mkdir()
    (tmp_path / "notes.mindir").write_text("my notes")
    before = (tmp_path / "mine.mindir").read_bytes()
    for name in ("mine", "folder", "notes"):
        with pytest.raises(RuntimeError, match=rf"{name}\.mindir is there already, .* or remove it"):
            Converter().convert(FmkType.ONNX, str(source), str(tmp_path / name))
    assert (tmp_path / "mine.mindir").read_bytes() == before
    assert (tmp_path / "notes.mindir").read_text() == "my notes"
    with pytest.raises(RuntimeError, match=r"there is no folder .*nowhere to write out\.mindir into"):
        Converter().convert(FmkType.ONNX, str(source), str(tmp_path / "nowhere" / "out"))
    (tmp_path / "empty.mindir").touch()
    Converter().convert(FmkType.ONNX, str(source), str(tmp_path / "empty"))
    assert (tmp_path / "empty.mindir").stat().st_size
    (tmp_path / "text.onnx").write_text("no model")
    for wrong in ("text.onnx", "folder.mindir"):
        with pytest.raises(RuntimeError, match=r"^Converter model failed! model_file is "):
            Converter().convert(FmkType.ONNX, str(tmp_path / wrong), str(tmp_path / "out"))
    assert not (tmp_path / "out.mindir").exists()


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    source = save_mlp(tmp_path / "m.onnx")
    (tmp_path / "c.ini").write_text("[common_quant_param]\nquant_type=WEIGHT_QUANT\n")
    converter = Converter()
    converter.set_config_info("common_quant_param", {"quant_type": "WEIGHT_QUANT"})
    converter.input_data_type = DataType.INT8
    with pytest.warns(UserWarning, match="no effect") as caught:
        converter.convert(
            FmkType.ONNX, str(source), str(tmp_path / "out"), str(source), str(tmp_path / "c.ini")
        )
    said = " ".join(str(item.message) for item in caught)
    for part in ("input_data_type INT8", "weight_file", "c.ini", "nothing is quantized"):
        assert part in said
    assert {Path(item.filename).name for item in caught} == {"test_converter.py"}
    quiet = Converter()
    quiet.input_format, quiet.optimize = Format.NCHW, "none"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet.convert(FmkType.ONNX, str(source), str(tmp_path / "out"))
    np.testing.assert_allclose(answers(tmp_path / "out.mindir", X)[0], plain(source), rtol=1e-5, atol=1e-5)


def test_a_script_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As mindspore_lite's documentation has it, with nothing changed but names of files."""
    save_mlp(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", X)
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import mindspore_lite as mslite
from mindspore_lite.converter import Converter, FmkType
import numpy as np
converter = mslite.Converter()
converter.save_type = mslite.ModelType.MINDIR
converter.optimize = "general"
converter.convert(fmk_type=mslite.FmkType.ONNX, model_file="{tmp_path}/m.onnx", output_file="{tmp_path}/m",
                  weight_file="", config_file="")
assert Converter is mslite.Converter and FmkType is mslite.FmkType
context = mslite.Context()
context.target = ["cpu"]
model = mslite.Model()
model.build_from_file("{tmp_path}/m.mindir", mslite.ModelType.MINDIR, context)
inputs = model.get_inputs()
model.resize(inputs, [[4, 8]])
inputs[0].set_data_from_numpy(np.load("{tmp_path}/x.npy"))
np.save("{tmp_path}/y.npy", model.predict(inputs)[0].get_data_to_numpy())
"""
    )
    try:
        compat.run_script(script)
    finally:
        compat.uninstall()
    assert "CONVERT RESULT SUCCESS:0" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), plain(tmp_path / "m.onnx"), rtol=1e-5, atol=1e-5)
    assert "mindspore_lite.converter" not in sys.modules
    assert ranks.converter.Converter is Converter
