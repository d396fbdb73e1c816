"""ONNX's messages without the package `onnx`: they are its own, whoever is imported first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from sharding.onnx_files import messages
from sharding.onnx_files.made_messages import message_classes

ROOT = Path(__file__).parents[3]
BEFORE_ONNX = """
import sys
from sharding.onnx_files import messages
assert "onnx" not in sys.modules and "onnx.onnx_ml_pb2" not in sys.modules
model = messages.ModelProto(ir_version=8)
model.graph.node.add(op_type="Relu").attribute.add(name="a", type=messages.AttributeProto.INT, i=3)
import onnx, onnx.helper, onnx.onnx_ml_pb2
for name in messages.__all__:
    if name.endswith("Proto"):
        assert getattr(messages, name) is getattr(onnx, name) is getattr(onnx.onnx_ml_pb2, name), name
assert isinstance(model, onnx.ModelProto) and isinstance(onnx.ModelProto(), messages.ModelProto)
node = onnx.helper.make_node("Relu", ["x"], ["y"])
model.graph.node.append(node)
again = onnx.load_from_string(model.SerializeToString())
assert again == model and [item.op_type for item in again.graph.node] == ["Relu", "Relu"]
print(type(model).__module__)
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_messages_are_those_of_onnx_imported_later(implementation: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEFORE_ONNX],
        cwd=ROOT,
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "onnx.onnx_ml_pb2\n", "")


def test_messages_are_those_of_onnx_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert messages._messages() is onnx
    monkeypatch.delitem(sys.modules, "onnx")
    monkeypatch.setattr(messages, "_generated", lambda: None)  # as of a release without such a module
    monkeypatch.setattr(messages.importlib, "import_module", lambda name: name)
    assert messages._messages() == "onnx"


@pytest.mark.parametrize("shape", [(), (1,), (0, None, "n", 2**40), [None], ["batch", 3]], ids=str)
def test_types_of_tensors_are_those_that_onnx_makes(shape: tuple[int | str | None, ...]) -> None:
    expected = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT16, shape)
    made = messages.tensor_type(onnx.TensorProto.FLOAT16, shape)
    assert made.SerializeToString() == expected.SerializeToString()
    assert made.tensor_type.HasField("shape")


def test_files_are_read_as_onnx_reads_them(tmp_path: Path) -> None:
    model = onnx.ModelProto(ir_version=9, producer_name="somebody")
    model.graph.node.add(op_type="Relu", input=["x"], output=["y"])
    for name in ("m.onnx", "m.pb", "m", "m.ONNX"):
        (tmp_path / name).write_bytes(model.SerializeToString())
        assert messages.read_message(tmp_path / name) == model
    text = tmp_path / "m.textproto"
    text.write_text(text_format.MessageToString(model))
    assert messages.read_message(text) == model == onnx.load(text)
    for damaged in (model.SerializeToString()[:-1], b"\x08"):
        (tmp_path / "m.onnx").write_bytes(damaged)
        with pytest.raises(DecodeError):
            messages.read_message(tmp_path / "m.onnx")


def test_made_classes_lie_in_a_pool_of_their_own() -> None:
    """Another library in the process may have messages of the same names and other fields."""
    ours: Any = message_classes("of_two", {"A": {"x": (1, "int64")}})["A"]
    theirs: Any = message_classes("of_two", {"A": {"y": (2, "string")}})["A"]
    assert ours(x=3).SerializeToString() == b"\x08\x03"
    assert theirs(y="z").SerializeToString() == b"\x12\x01z"
