"""Weights of a checkpoint put into a graph or a transformers model, and cells: what fits, what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx
import pytest

from sharding.errors import ModelError, OptionError
from sharding.importers.checkpoints.base import Checkpoint, Entry
from sharding.importers.networks import cells, pretrained
from sharding.importers.networks.factory import Network
from sharding.importers.networks.inputs import Input
from sharding.importers.onnx_file import put_weights, read
from tests.sharding.importers.mindir_files import File

Array = np.ndarray[Any, Any]


def _checkpoint(**arrays: Array) -> Checkpoint:
    entries = {
        name: Entry(name, array.dtype, array.shape, (memoryview(array.tobytes()),))
        for name, array in arrays.items()
    }
    return Checkpoint(Path("weights.ckpt"), "numbers", entries)


def _model(**tensors: tuple[int, list[int]]) -> onnx.ModelProto:
    made = []
    for name, (kind, dims) in tensors.items():
        tensor = onnx.TensorProto(name=name, data_type=kind, dims=dims)
        made.append(tensor)
    graph = onnx.helper.make_graph([], "g", [], [], made)
    return onnx.helper.make_model(graph)


W = np.ones((2, 3), np.float32)
KINDS = onnx.TensorProto


@pytest.mark.parametrize(
    ("kind", "dims", "needed"),
    [
        (KINDS.FLOAT, [2, 3], True),
        (KINDS.FLOAT16, [2], True),
        (KINDS.DOUBLE, [2], True),
        (KINDS.BFLOAT16, [2], True),
        (KINDS.FLOAT8E4M3FN, [2], True),
        (KINDS.FLOAT, [1], False),
        (KINDS.FLOAT, [], False),
        (KINDS.FLOAT, [0, 4], False),
        (KINDS.BFLOAT16, [1, 1], False),
        (KINDS.INT64, [2], False),
        (KINDS.BOOL, [2], False),
        (KINDS.INT4, [2], False),
        (KINDS.FLOAT4E2M1, [2], False),
        (KINDS.STRING, [2], False),
    ],
)
def test_floats_of_a_graph_must_be_given(kind: int, dims: list[int], needed: bool) -> None:
    """Other numbers are mostly constants of it, and so is one alone."""
    model = _model(w=(KINDS.FLOAT, [2, 3]), other=(kind, dims))
    if needed:
        with pytest.raises(ModelError, match=r"weights.ckpt does not fit the network: 1 missing: other \("):
            put_weights(model, _checkpoint(w=W), [])
    found, replaced = put_weights(model, _checkpoint(w=W), [], allow_missing=True)
    assert list(found.found) == list(replaced) == ["w"]
    assert found.missing == (["other"] if needed else [])


def test_given_weights_are_declared_and_the_rest_stays() -> None:
    model = _model(w=(KINDS.BFLOAT16, [2, 3]), kept=(KINDS.INT64, [1]))
    model.graph.initializer[0].raw_data = bytes(12)
    model.graph.initializer[1].raw_data = b"\7" * 8
    found, replaced = put_weights(model, _checkpoint(w=W), [])
    w, kept = model.graph.initializer
    assert w.data_location == w.EXTERNAL and not w.raw_data and len(w.external_data) == 1
    assert kept.data_location == kept.DEFAULT and kept.raw_data == b"\7" * 8
    assert found.converted == ["w from float32 to bfloat16"]
    assert replaced["w"].nbytes == 12
    assert b"".join(replaced["w"].chunks()) == W.astype(ml_dtypes.bfloat16).tobytes()


class _Pretrained:
    """As transformers' classes are: gives what the loader said."""

    config = "the configuration"
    said: ClassVar[dict[str, Any]] = {}
    asked: ClassVar[dict[str, Any]] = {}

    @classmethod
    def from_pretrained(cls, path: None, **options: Any) -> tuple[_Pretrained, dict[str, Any]]:
        cls.asked = options
        return cls(), cls.said


def _said(**more: Any) -> dict[str, Any]:
    return {"unexpected_keys": [], "missing_keys": [], "mismatched_keys": []} | more


def test_a_transformers_model_is_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    first = _Pretrained()
    network = Network(first, "transformers", "a model", [])
    monkeypatch.setattr(_Pretrained, "said", _said(unexpected_keys={"b"}, missing_keys={"z", "a"}))
    checkpoint = _checkpoint(w=W, b=W[0])
    found = pretrained.load(network, checkpoint, [], allow_missing=True, allow_unexpected=True)
    assert found.found == {"w": checkpoint.entries["w"]}
    assert (found.missing, found.unexpected, found.misshaped) == (["a", "z"], ["b"], [])
    assert network.module is not first and isinstance(network.module, _Pretrained)
    assert _Pretrained.asked["config"] == "the configuration"
    assert set(_Pretrained.asked["state_dict"]) == {"w", "b"}
    assert torch.equal(_Pretrained.asked["state_dict"]["w"], torch.ones(2, 3))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (_said(unexpected_keys=["b"]), "1 unexpected: b"),
        (_said(missing_keys=["z"]), "1 missing: z"),
        (
            _said(mismatched_keys=[("w", (2, 3), (4,))]),
            r"1 of another shape or type: w \(expected \[4\], found \[2, 3\]\)",
        ),
        ({}, "cannot be loaded by transformers"),
    ],
)
def test_what_does_not_fit_a_transformers_model_leaves_it(
    said: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")

    def load(cls: type, *_: Any, **options: Any) -> tuple[Any, Any]:
        if not said:
            raise OSError("no such thing")
        return cls(), said

    monkeypatch.setattr(_Pretrained, "from_pretrained", classmethod(load))
    first = _Pretrained()
    network = Network(first, "transformers", "a model", [])
    with pytest.raises(ModelError, match=f"weights.ckpt .*{why}"):
        pretrained.load(network, _checkpoint(w=W, b=W), [])
    assert network.module is first


class _MindSpore:
    """What of MindSpore exports a cell; the file is always the same."""

    float32, bool_ = "float32", "bool_"

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.fails = False

    def Tensor(self, *values: Any, **options: Any) -> Any:
        self.tensors.append(options or values[0])
        return self.tensors[-1]

    def export(self, cell: Any, *tensors: Any, file_name: str, file_format: str) -> None:
        if self.fails:
            raise ValueError("not today")
        assert list(tensors) == self.tensors and file_format == "MINDIR"
        file = File()
        graph = file.graph("main", ("x", "float32", (-1, 3)), ("flag", "bool", (2,)))
        graph.gives(graph.prim("Neg", graph["x"]))
        file.save(Path(file_name))


class _Cell:
    trained = True

    def set_train(self, mode: bool) -> None:
        self.trained = mode

    def construct(self, x: Any, flag: Any) -> None: ...


def test_a_cell_is_exported_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mindspore, cell = _MindSpore(), _Cell()
    monkeypatch.setattr(cells, "need", lambda *_: mindspore)
    inputs = [Input("flag", (2,), "bool"), Input("x", ("rows", 3))]
    model, path = cells.export_cell(cell, inputs, tmp_path, 18, "a cell")
    assert path == tmp_path / "network.mindir" and path.exists()
    assert not cell.trained
    assert mindspore.tensors[0] == {"shape": [None, 3], "dtype": "float32"}
    assert mindspore.tensors[1].dtype == bool and mindspore.tensors[1].shape == (2,)
    dims = [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    assert dims[1] == 3 and [item.name for item in model.graph.input] == ["x", "flag"]
    with pytest.raises(OptionError, match="a cell: give its inputs with --input"):
        cells.export_cell(cell, [], tmp_path, 18, "a cell")
    mindspore.fails = True
    with pytest.raises(ModelError, match=r"a cell cannot be exported by MindSpore: .*not today"):
        cells.export_cell(cell, inputs, tmp_path, 18, "a cell")


def _saved(path: Path, model: onnx.ModelProto) -> Path:
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", KINDS.FLOAT, [1]))
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_beside_a_graph_are_located(tmp_path: Path) -> None:
    """Those of the model by offset and length; those inside of nodes come into the message."""
    (tmp_path / "w.data").write_bytes(b"skip" + W.tobytes() + np.float32([7, 8]).tobytes())
    model = _model(w=(KINDS.FLOAT, [2, 3]))
    outer = model.graph.initializer[0]
    inner = onnx.TensorProto(name="c", data_type=KINDS.FLOAT, dims=[2])
    for tensor, entries in (
        (outer, {"location": "w.data", "offset": "4"}),
        (inner, {"location": "w.data", "offset": "28", "length": "8"}),
    ):
        tensor.data_location = tensor.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["y"], value=inner))
    found = read(_saved(tmp_path / "m.onnx", model))
    place = {entry.key: entry.value for entry in found.graph.initializer[0].external_data}
    assert place == {"location": "w.data", "offset": "4", "length": "24"}
    held = found.graph.node[0].attribute[0].t
    assert held.data_location == held.DEFAULT and not held.external_data
    assert onnx.numpy_helper.to_array(held).tolist() == [7, 8]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"location": "gone.data"}, "gone.data"),
        ({"location": "w.data", "offset": "x"}, "weight 'w' cannot be read|not a number"),
        ({"location": "../w.data"}, "not a path inside"),
        ({}, "w"),
    ],
)
def test_weights_that_are_not_where_a_graph_says(entries: dict[str, str], why: str, tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(24))
    model = _model(w=(KINDS.FLOAT, [2, 3]))
    tensor = model.graph.initializer[0]
    tensor.data_location = tensor.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    with pytest.raises(ModelError, match=why):
        read(_saved(tmp_path / "m.onnx", model))


def test_what_is_no_graph(tmp_path: Path) -> None:
    for data in (b"", onnx.ModelProto(ir_version=9).SerializeToString(), _model().SerializeToString(), b"no"):
        (tmp_path / "m.onnx").write_bytes(data)
        with pytest.raises(ModelError, match=r"m\.onnx.*(not an ONNX (model|file)|is empty)"):
            read(tmp_path / "m.onnx")
