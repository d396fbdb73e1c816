"""Reading model files: what is no ONNX model, or has external data out of place, is refused."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharding
from sharding.errors import ModelError, ShardrunError, SliceError
from sharding.graph.values import shape_of
from sharding.onnx_files.protobuf import without_weights
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep


def test_a_missing_file_a_folder_and_an_empty_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no\.onnx does not exist"):
        read_model(tmp_path / "no.onnx")
    with pytest.raises(ModelError, match="is a folder; expected an ONNX file"):
        read_model(tmp_path)
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(ModelError, match=r"empty\.onnx is empty"):
        read_model(tmp_path / "empty.onnx")


@pytest.mark.parametrize(
    "text", [b"PK\x03\x04" + bytes(100), b"hello world\n", b"\x89PNG\r\n\x1a\n", bytes(64)]
)
def test_another_format_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(text)
    with pytest.raises(ModelError, match=r"model\.onnx is not an ONNX"):
        read_model(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = graphs.mlp(tmp_path / "whole.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    for length in range(1, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.onnx"):
            read_model(path)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_flipped_bytes_give_a_plan_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flipped"
    folder.mkdir(exist_ok=True)
    content = bytearray(graphs.mlp(folder / "whole.onnx").read_bytes())
    # Only the structure is interesting: the weights' own bytes are the last part of the file.
    for position in data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    (folder / "flipped.onnx").write_bytes(content)
    try:
        sharding.plan_model(folder / "flipped.onnx", 2)
    except ShardrunError as error:
        assert str(folder / "flipped.onnx") in str(error)


def test_large_weights_are_left_in_the_file(tmp_path: Path) -> None:
    path = graphs.save(
        tmp_path / "model.onnx",
        "g (float[n, 64] x) => (float[n, 64] y) { y = MatMul(x, w) }",
        {"w": graphs.array(64, 64)},
    )
    stripped = without_weights(memoryview(path.read_bytes()))
    assert len(stripped) < 400
    weight = read_model(path).weights["w"]
    assert weight.extent is not None
    np.testing.assert_array_equal(weight.array(), graphs.array(64, 64))


def _with_location(tmp_path: Path, **changes: object) -> Path:
    path = graphs.mlp(tmp_path / "model.onnx", external=True)
    model = onnx.load(path, load_external_data=False)
    tensor = next(item for item in model.graph.initializer if item.name == "w1")
    for entry in tensor.external_data:
        if entry.key in changes:
            entry.value = str(changes[entry.key])
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_is_found_beside_the_model(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", external=True)
    weight = read_model(path).weights["w1"]
    assert weight.extent is not None and weight.extent.path == tmp_path / "model.onnx.data"
    np.testing.assert_array_equal(weight.array(), graphs.mlp_weights()["w1"])


@pytest.mark.parametrize("location", ["/etc/passwd", "../outside.data", "sub/../../outside.data", ""])
def test_a_location_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    with pytest.raises(ModelError, match=r"weight 'w1' lies in .*, which is not a path inside"):
        read_model(_with_location(tmp_path, location=location))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    path = graphs.mlp(inside / "model.onnx", external=True)
    (inside / "model.onnx.data").rename(tmp_path / "outside.data")
    (inside / "model.onnx.data").symlink_to(tmp_path / "outside.data")
    with pytest.raises(ModelError, match="a link that leads out of"):
        read_model(path)


def test_external_data_that_is_missing_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.data, which cannot be read"):
        read_model(_with_location(tmp_path, location="gone.data"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelError, match="which is not a file"):
        read_model(_with_location(tmp_path, location="folder"))


def test_offsets_and_lengths_beyond_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="it is truncated"):
        read_model(_with_location(tmp_path, offset=1 << 40))
    with pytest.raises(ModelError, match="needs 2048 bytes for its type and shape, but its length is 5"):
        read_model(_with_location(tmp_path, length=5))
    for wrong in ("many", "-1", "1e3", "", "9" * 30):
        with pytest.raises(ModelError, match=f"weight 'w1' has the offset '{wrong}'; expected a number"):
            read_model(_with_location(tmp_path, offset=wrong))
    path = graphs.mlp(tmp_path / "model.onnx", external=True)
    os.truncate(tmp_path / "model.onnx.data", 1000)
    with pytest.raises(ModelError, match="which has 1000: it is truncated"):
        read_model(path)


def test_a_value_that_nothing_produces_is_refused(tmp_path: Path) -> None:
    model = onnx.load(graphs.mlp(tmp_path / "model.onnx"))
    model.graph.node[1].input[1] = "ghost"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"reads 'ghost', which nothing produces"):
        read_model(tmp_path / "model.onnx")


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    model = onnx.load(graphs.mlp(tmp_path / "model.onnx"))
    model.graph.node[0].input[0] = "c"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        read_model(tmp_path / "model.onnx")


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    model = onnx.load(graphs.mlp(tmp_path / "model.onnx"))
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "model.onnx")
    order = [node.op_type for node in read_model(tmp_path / "model.onnx").model.graph]
    assert order == ["MatMul", "Add", "Relu", "MatMul", "Add"]


@pytest.mark.parametrize("opset", [12, 18])
def test_shape_arithmetic_with_symbols_gives_the_reshape_its_axes(tmp_path: Path, opset: int) -> None:
    axes = (
        "a1 = Unsqueeze(b, zero) \n c = Concat<axis = 0>(a1, inner)"
        if opset > 12
        else ("a1 = Unsqueeze<axes = [0]>(b) \n c = Concat<axis = 0>(a1, inner)")
    )
    weights = {"inner": np.asarray([-1, 4, 6]), "w": graphs.array(24, 24)}
    weights |= {"zero": np.asarray([0])} if opset > 12 else {}
    path = graphs.save(
        tmp_path / "model.onnx",
        f"""g (float[batch, sequence, 24] x) => (float[p, q, r, s] y) {{
          shape = Shape(x)
          index = Constant<value = int64 {{0}}>()
          b = Gather<axis = 0>(shape, index)
          {axes}
          m = MatMul(x, w)
          r = Reshape(m, c)
          y = Relu(r)
        }}""",
        weights,
        opset=opset,
    )
    source = read_model(path)
    reshape = next(node for node in source.model.graph if node.op_type == "Reshape")
    shape = shape_of(reshape.outputs[0])
    assert shape is not None and (shape[0], shape[2:]) == ("batch", (4, 6))


def test_constant_chains_are_folded_whatever_the_batch(tmp_path: Path) -> None:
    path = graphs.save(
        tmp_path / "model.onnx",
        """g (float[batch, 6, 4] x) => (float[batch, t, u] y) {
          shape = Shape(x)
          two = Constant<value = int64[1] {2}>()
          length = Gather<axis = 0>(shape, two)
          doubled = Mul(length, two)
          minus = Constant<value_ints = [-1]>()
          zero = Constant<value_ints = [0]>()
          target = Concat<axis = 0>(zero, doubled, minus)
          y = Reshape(x, target)
        }""",
        {},
    )
    source = read_model(path)
    assert [node.op_type for node in source.model.graph] == ["Reshape"]
    target = source.model.graph.node(0).inputs[1]
    assert target is not None and target.const_value is not None
    np.testing.assert_array_equal(target.const_value.numpy(), [0, 8, -1])


def test_an_oversized_constant_is_not_folded(tmp_path: Path) -> None:
    path = graphs.save(
        tmp_path / "model.onnx",
        """g (float[1] x) => (float[n] y) {
          size = Constant<value = int64[1] {9000000000000}>()
          zeros = ConstantOfShape(size)
          y = Mul(x, zeros)
        }""",
        {},
    )
    assert "ConstantOfShape" in [node.op_type for node in read_model(path).model.graph]


def test_initializers_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.ir_version = 3
    for item in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(item.name, item.data_type, item.dims))
    onnx.save(model, path)
    assert [value.name for value in read_model(path).model.graph.inputs] == ["x"]
    manifest = sharding.slice_model(path, 2, tmp_path / "out")
    assert [item.name for item in manifest.inputs] == ["x"]
    assert onnx.load(tmp_path / "out/rank_0.onnx").ir_version >= 4


@pytest.mark.parametrize(("version", "inputs"), [(3, ["x"]), (4, ["x", "w1"]), (9, ["x", "w1"])])
def test_some_initializers_listed_as_inputs_have_defaults(
    tmp_path: Path, version: int, inputs: list[str]
) -> None:
    """From IR version 4 on; before, all had to be listed."""
    path = graphs.mlp(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.ir_version = version
    (item,) = (item for item in model.graph.initializer if item.name == "w1")
    model.graph.input.append(onnx.helper.make_tensor_value_info(item.name, item.data_type, item.dims))
    onnx.save(model, path)
    assert [value.name for value in read_model(path).model.graph.inputs] == inputs


@pytest.mark.parametrize("ranks", [0, -1, 1.0, "2", True, None, 10**9])
def test_an_impossible_number_of_ranks_is_refused(tmp_path: Path, ranks: object) -> None:
    with pytest.raises(SliceError, match="must be a whole number from 1 to"):
        sharding.plan_model(graphs.mlp(tmp_path / "model.onnx"), ranks)  # type: ignore[arg-type]


def test_a_model_beyond_two_gigabytes_is_sliced_in_little_memory(tmp_path: Path) -> None:
    """2.15 GB of weights, sparse on disk, cut by a process of bounded memory."""
    axes = (23200, 23200)
    model = onnx.load(graphs.mlp(tmp_path / "model.onnx"))
    graph = onnx.parser.parse_graph("g (float[n, 23200] x) => (float[n, 23200] y) { y = MatMul(x, big) }")
    weight = onnx.TensorProto(name="big", data_type=onnx.TensorProto.FLOAT, dims=axes)
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="big.data")
    graph.initializer.append(weight)
    model.graph.CopyFrom(graph)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    row, column = 23_170, 23_000  # beyond the first 2 GB, of the second rank
    with (tmp_path / "big.data").open("wb") as file:
        file.truncate(axes[0] * axes[1] * 4)
        file.seek((row * axes[1] + column) * 4)
        file.write(np.float32(7).tobytes())
    code = (
        "import sys, sharding; from tests.sharding.lockstep import peak_kilobytes; "
        "manifest = sharding.slice_model(sys.argv[1], 2, sys.argv[2]); "
        "print(manifest.weights['big'].placement, manifest.ranks[0].weight_bytes, peak_kilobytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.onnx"), str(tmp_path / "slices")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    placement, held, kilobytes = done.stdout.split()
    assert (placement, int(held)) == ("split:1", axes[0] * axes[1] * 2)
    assert int(kilobytes) < 500_000
    rank = onnx.load(tmp_path / "slices/rank_1.onnx", load_external_data=False)
    where = {entry.key: entry.value for entry in rank.graph.initializer[0].external_data}
    half, start = axes[1] // 2, int(where.get("offset", 0))
    part = np.memmap(tmp_path / "slices" / where["location"], np.float32, "r", start, (axes[0], half))
    assert part[row, column - half] == 7 and part[row].sum() == 7
    shutil.rmtree(tmp_path / "slices")
    (tmp_path / "big.data").unlink()


def test_a_model_that_no_disk_has_room_for_is_refused_before_it_is_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terabyte of weights in the model's own file, sparse on disk: its hash would take an hour."""
    hashed: list[object] = []
    monkeypatch.setattr("sharding.reading.read.sha256_of", hashed.append)
    path = graphs.vast(tmp_path / "model.onnx", 1 << 19, 1 << 19)
    with pytest.raises(SliceError, match=r"1100 GB are needed, but only .* are free on its disk"):
        sharding.slice_model(path, 2, tmp_path / "slices")
    assert not hashed


def _changed(tmp_path: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    model = onnx.load(graphs.mlp(tmp_path / "model.onnx"))
    change(model)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("opset", ["", "ai.onnx", "both"])
@pytest.mark.parametrize("node", ["", "ai.onnx"])
def test_the_default_domain_has_two_names(tmp_path: Path, opset: str, node: str) -> None:
    def change(model: onnx.ModelProto) -> None:
        for item in model.graph.node:
            item.domain = node
        if opset == "both":
            model.opset_import.insert(0, onnx.helper.make_opsetid("ai.onnx", 7))  # the last one counts
        else:
            model.opset_import[0].domain = opset

    path = _changed(tmp_path, change)
    manifest = sharding.slice_model(path, 2, tmp_path / "slices")
    assert [item.op for item in manifest.collectives] == ["AllReduce"]
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 16)})


def _twice(model: onnx.ModelProto, what: str) -> None:
    values = getattr(model.graph, what)
    values.append(values[0])


def _sparse(model: onnx.ModelProto, places: graphs.Array, *, kind: str = "weight") -> None:
    """Takes w2, of 32 rows of 8, as a sparse tensor of two values."""
    sparse = onnx.SparseTensorProto(dims=[32, 8])
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.float32([1, 2]), "w2"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(places, "places"))
    del model.graph.initializer[2]
    if kind == "weight":
        model.graph.sparse_initializer.append(sparse)
    else:
        node = onnx.helper.make_node("Constant", [], ["w2"], sparse_value=sparse)
        model.graph.node.insert(0, node)


@pytest.mark.parametrize("kind", ["weight", "constant"])
@pytest.mark.parametrize("places", [[1, 13], [[0, 1], [1, 5]]], ids=["linear", "rows"])
def test_sparse_weights_become_dense(tmp_path: Path, kind: str, places: object) -> None:
    path = _changed(tmp_path, lambda model: _sparse(model, np.asarray(places), kind=kind))
    dense = np.zeros((32, 8), np.float32)
    dense[0, 1], dense[1, 5] = 1, 2
    np.testing.assert_array_equal(read_model(path).weights["w2"].array(), dense)
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 16)})


@pytest.mark.parametrize("kind", ["weight", "constant"])
def test_the_bound_of_sparse_weights_is_for_all_together(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(model: onnx.ModelProto) -> None:
        _sparse(model, np.asarray([1, 13]), kind=kind)
        more = onnx.SparseTensorProto(dims=[8])
        more.values.CopyFrom(onnx.numpy_helper.from_array(np.float32([1]), "more"))
        more.indices.CopyFrom(onnx.numpy_helper.from_array(np.asarray([3]), "places"))
        model.graph.sparse_initializer.append(more)

    path = _changed(tmp_path, two)
    monkeypatch.setattr("sharding.onnx_files.sparse.MAX_BYTES", (32 * 8 + 8) * 4)
    assert read_model(path).weights["w2"].shape == (32, 8)
    monkeypatch.setattr("sharding.onnx_files.sparse.MAX_BYTES", (32 * 8 + 8) * 4 - 1)
    with pytest.raises(ModelError, match="as a dense one; at most 1055 are made of all sparse ones"):
        read_model(path)


def _huge_sparse(model: onnx.ModelProto) -> None:
    _sparse(model, np.asarray([0, 9]))
    model.graph.sparse_initializer[0].dims[:] = [1 << 40, 1 << 40]


def _sparse_attribute(model: onnx.ModelProto) -> None:
    _sparse(model, np.asarray([0, 9]), kind="constant")
    model.graph.node[0].op_type = "Thing"
    model.graph.node[0].domain = "somewhere"


def _sparse_strings(model: onnx.ModelProto) -> None:
    _sparse(model, np.asarray([0, 9]))
    values = onnx.numpy_helper.from_array(np.asarray(["a", "b"], object), "w2")
    model.graph.sparse_initializer[0].values.CopyFrom(values)


def _sparse_nonsense(model: onnx.ModelProto) -> None:
    _sparse(model, np.asarray([0, 9]))
    model.graph.sparse_initializer[0].values.raw_data = b"123"


def _undefined(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 0


def _external_strings(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_type, tensor.data_location = onnx.TensorProto.STRING, onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="model.onnx")


def _unmade(model: onnx.ModelProto) -> None:
    model.graph.output.append(model.graph.output[0])
    model.graph.output[-1].name = "nowhere"


BROKEN: list[tuple[str, Callable[[onnx.ModelProto], object], str]] = [
    ("input twice", lambda model: _twice(model, "input"), "it has two inputs named 'x'"),
    ("weight twice", lambda model: _twice(model, "initializer"), "it has two weights named 'w1'"),
    ("output of nothing", _unmade, "nothing produces its output 'nowhere'"),
    ("output twice", lambda model: _twice(model, "output"), "it has two outputs named 'y'"),
    ("place outside", lambda model: _sparse(model, np.asarray([0, 256])), "an index lies outside its shape"),
    ("place before", lambda model: _sparse(model, np.asarray([-1, 2])), "an index lies outside its shape"),
    ("places", lambda model: _sparse(model, np.asarray([1])), "it has 2 values and indices of shape"),
    ("column outside", lambda model: _sparse(model, np.asarray([[0, 8], [1, 1]])), "outside its shape"),
    ("huge sparse weight", _huge_sparse, "as a dense one; at most 268435456 are made"),
    ("sparse strings", _sparse_strings, "its values must be a vector of numbers"),
    ("sparse nonsense", _sparse_nonsense, "'w2' does not hold what its types and shapes say"),
    ("sparse attribute", _sparse_attribute, "node 'Thing' holds a sparse tensor in its attribute"),
    ("no element type", _undefined, "its input 'x' has no element type"),
    ("no type", lambda model: model.graph.input[0].ClearField("type"), "its input 'x' has no element type"),
    ("value twice", lambda model: model.graph.node[1].output.__setitem__(0, "a"), "Output 'a' is redeclared"),
    ("strings elsewhere", _external_strings, "weight 'w1' is of strings, which cannot lie in another file"),
    ("unknown type", lambda model: setattr(model.graph.initializer[0], "data_type", 99), "99 is not a valid"),
]


@pytest.mark.parametrize(
    ("change", "reason"), [item[1:] for item in BROKEN], ids=[item[0] for item in BROKEN]
)
def test_what_onnx_does_not_allow_is_named(
    tmp_path: Path, change: Callable[[onnx.ModelProto], object], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        read_model(_changed(tmp_path, change))


def test_an_output_that_claims_another_rank(tmp_path: Path) -> None:
    """ONNX Runtime warns of it and goes on."""
    text = "g (float[n, 12] x) => (float y) { r = Reshape(x, s) y = MatMul(r, w) }"
    weights = {"s": np.asarray([0, 2, 6]), "w": graphs.array(6, 6)}
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>\n' + text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(item, name) for name, item in weights.items())
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 12)})


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    code = "import sys; from sharding.reading.read import read_model; read_model(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "ModelError" in done.stderr and "is not a file; expected an ONNX file" in done.stderr


def test_external_data_of_nodes_is_found(tmp_path: Path) -> None:
    """In a Constant, in one inside a body, and in one inside a function."""
    text = """<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[n, 16] x, bool flag) => (float[n, 8] y, float[16, 32] w) {
      w = Constant<value = float[1] {0.0}>()
      v = Constant<value = float[1] {0.0}>()
      a = MatMul(x, w)
      b = MatMul(x, v)
      c = Add(a, b)
      d = If (flag) <
        then_branch = t () => (float[n, 8] p) { k = Constant<value = float[1] {0.0}>() p = MatMul(c, k) },
        else_branch = e () => (float[n, 8] q) { k2 = Constant<value = float[1] {0.0}>() q = MatMul(c, k2) }
      >
      z = own.shifted(c)
      y = Add(d, z)
    }
    <domain: "own", opset_import: ["" : 18]>
    shifted (c) => (z) { f = Constant<value = float[1] {0.0}>() z = MatMul(c, f) }"""
    model = onnx.parser.parse_model(text)
    branches = [item.g for item in model.graph.node[5].attribute]
    constants = [*model.graph.node[:2], *(branch.node[0] for branch in branches), model.functions[0].node[0]]
    for number, node in enumerate(constants):
        value = graphs.array(16, 32) if number < 2 else graphs.array(32, 8, seed=number)
        (tmp_path / f"{number}.data").write_bytes(value.tobytes())
        tensor = onnx.TensorProto(data_type=1, dims=value.shape, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=f"{number}.data")
        node.attribute[0].t.CopyFrom(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    sharding.slice_model(path, 2, tmp_path / "slices")
    x, w, v = graphs.array(3, 16), graphs.array(16, 32), graphs.array(16, 32)
    for flag in (True, False):
        expected = x @ (w + v) @ (graphs.array(32, 8, seed=2 if flag else 3) + graphs.array(32, 8, seed=4))
        for outputs in lockstep.run_slices(tmp_path / "slices", {"x": x, "flag": np.asarray(flag)}):
            assert lockstep.relative_error(outputs["y"], expected) <= 1e-4
            np.testing.assert_array_equal(outputs["w"], w)
