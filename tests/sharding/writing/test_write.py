"""The slice folder: complete or absent, the same bytes each time, written in little memory."""

import errno
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import sharding
from sharding.demands.options import SliceOptions
from sharding.errors import OutputError, ShardrunError, SliceError
from sharding.onnx_files.external import place_of
from sharding.onnx_files.tensors import cut, locate
from sharding.reading.read import read_model
from sharding.slices import folder
from sharding.slices.manifest import read_manifest, verify_shard
from sharding.slices.mesh import Mesh
from sharding.slices.placement import REPLICATED, Split
from sharding.writing import layout, stream
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep
from tests.turns import in_turns


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_folder_holds_what_its_manifest_says(tmp_path: Path) -> None:
    returned = sharding.slice_model(graphs.mlp(tmp_path / "model.onnx", inner=512), 2, tmp_path / "out")
    assert read_manifest(tmp_path / "out") == returned
    hashes = _hashes(tmp_path / "out")
    named = {item.file: item.sha256 for entry in returned.ranks for item in entry.files}
    assert named == {name: digest for name, digest in hashes.items() if name != "manifest.json"}
    assert sorted(named) == ["rank_0.data", "rank_0.onnx", "rank_1.data", "rank_1.onnx"]
    for rank in range(2):
        verify_shard(tmp_path / "out", returned, rank, 2)
    assert returned.source.sha256 == hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out"]


@pytest.mark.parametrize(("columns", "place"), [(512, 4096), (496, 3072)])
def test_large_parts_start_on_a_page(tmp_path: Path, columns: int, place: int) -> None:
    """From 64 KiB on: a rank that maps one shares no page with its neighbour."""
    text = (
        f"g (float[n, 24] x) => (float[n, {columns}] y) {{ h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }}"
    )
    weights = {"a": graphs.array(24, 64), "b": graphs.array(64, columns)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    sharding.slice_model(path, 2, tmp_path / "out")
    model = onnx.load(tmp_path / "out" / "rank_1.onnx", load_external_data=False)
    found = sorted((place_of(one).offset, place_of(one).length) for one in model.graph.initializer)
    assert found == [(0, 3072), (place, 128 * columns)]
    lockstep.assert_same(tmp_path / "out", path, {"x": graphs.array(2, 24)}, 1e-5)


def test_slicing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    code = "import sys, sharding; sharding.slice_model(sys.argv[1], 2, sys.argv[2])"
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(path), str(tmp_path / seed)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=120, check=True)
    assert _hashes(tmp_path / "1") == _hashes(tmp_path / "2")


def test_an_earlier_slice_is_replaced_whole(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=48)
    sharding.slice_model(path, 4, tmp_path / "out")
    sharding.slice_model(path, 2, tmp_path / "out")
    assert read_manifest(tmp_path / "out").world_size == 2
    assert not list((tmp_path / "out").glob("rank_2*"))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.onnx", "out"]


def test_an_empty_folder_is_used_and_a_link_followed(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    sharding.slice_model(path, 2, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real/manifest.json").exists()


def test_another_folder_or_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx")
    with pytest.raises(SliceError, match=r"model\.onnx is a file"):
        sharding.slice_model(path, 2, path)
    with pytest.raises(SliceError, match="holds other files than a slice"):
        sharding.slice_model(path, 2, tmp_path)
    sharding.slice_model(path, 2, tmp_path / "out")
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(SliceError, match=r"other files than its slice \(notes\.txt\)"):
        sharding.slice_model(path, 2, tmp_path / "out")
    assert (tmp_path / "out/notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx")
    (tmp_path / "file").touch()
    with pytest.raises(SliceError, match="cannot be written"):
        sharding.slice_model(path, 2, tmp_path / "file/out")


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()]
)
def test_a_failure_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    sharding.slice_model(path, 4, tmp_path / "out")
    before = _hashes(tmp_path / "out")

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("sharding.slices.manifest.write_manifest", fail)
    with pytest.raises((ShardrunError, type(error))) as caught:
        sharding.slice_model(path, 2, tmp_path / "out")
    if isinstance(error, OSError):
        assert isinstance(caught.value, SliceError) and "No space left on device" in str(caught.value)
    assert _hashes(tmp_path / "out") == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.onnx", "out"]


def test_a_killed_slicing_leaves_no_output_folder(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    code = (
        "import os, signal, sys, sharding; sharding.slice_model(sys.argv[1], 2, sys.argv[2], "
        "progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "out")]
    assert subprocess.run(command, timeout=120, check=False).returncode == -9
    assert not (tmp_path / "out").exists()
    (left,) = tmp_path.glob(".out-*.partial")
    os.utime(left, (0, 0))
    sharding.slice_model(path, 2, tmp_path / "out")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.onnx", "out"]


def test_a_full_disk_is_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10, "total": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(
        SliceError, match=r"out cannot be written: .* kB are needed, but only 10 B are free on"
    ):
        sharding.slice_model(graphs.mlp(tmp_path / "model.onnx"), 2, tmp_path / "out")


def test_a_file_system_without_a_size_is_not_a_full_disk(tmp_path: Path) -> None:
    model = graphs.mlp(tmp_path / "model.onnx")
    with pytest.raises(OutputError, match=r"/proc/out cannot be written: "):
        sharding.slice_model(model, 2, "/proc/out")


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    manifest = sharding.slice_model(path, 2, tmp_path / "out", progress=lambda *call: calls.append(call))
    files = {item.file: item.bytes for entry in manifest.ranks for item in entry.files}
    written = sum(size for name, size in files.items() if name.endswith(".data"))
    assert calls[-1] == (written, written)
    assert calls == sorted(calls)


def test_metadata_names_and_opsets_are_kept(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.producer_name = "someone"
    model.doc_string = "what it is"
    onnx.helper.set_model_props(model, {"labels": "a,b"})
    onnx.save(model, path)
    sharding.slice_model(path, 2, tmp_path / "out")
    rank = onnx.load(tmp_path / "out/rank_1.onnx")
    assert (rank.producer_name, rank.doc_string, rank.graph.name) == ("someone", "what it is", "mlp")
    props = {item.key: item.value for item in rank.metadata_props}
    assert props.pop("labels") == "a,b"
    layout = json.loads(props.pop("shardrun.layout"))
    assert layout == {"outputs": [["y", 0]], "batch": {"inputs": {}, "outputs": {}}}
    assert props == {
        "shardrun.rank": "1",
        "shardrun.world_size": "2",
        "shardrun.mesh": "data=1,pipeline=1,tensor=2",
        "shardrun.micro_batches": "1",
    }
    assert [item.name for item in rank.graph.input] == ["x"]
    assert [item.name for item in rank.graph.output] == ["y"]
    assert {item.domain: item.version for item in rank.opset_import} == {"": 18, "com.microsoft": 1}


def test_value_info_around_collectives_is_right(tmp_path: Path) -> None:
    """The runtime cuts there and needs type and shape; ONNX's own inference must agree."""
    sharding.slice_model(graphs.mlp(tmp_path / "model.onnx"), 2, tmp_path / "out")
    rank = onnx.load(tmp_path / "out/rank_0.onnx")
    infos = {item.name: item.type.tensor_type for item in [*rank.graph.value_info, *rank.graph.output]}
    node = next(node for node in rank.graph.node if node.op_type == "AllReduce")
    for name in (*node.input, *node.output):
        axes = [axis.dim_param or axis.dim_value for axis in infos[name].shape.dim]
        assert (infos[name].elem_type, axes) == (onnx.TensorProto.FLOAT, ["batch", 8])
    onnx.shape_inference.infer_shapes(rank, check_type=True, strict_mode=False)


def test_a_rank_model_without_collectives_loads_in_plain_onnx_runtime(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    sharding.slice_model(path, 1, tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out/rank_0.onnx")
    whole = onnxruntime.InferenceSession(path)
    x = graphs.array(3, 16)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], whole.run(None, {"x": x})[0])


TYPES = ["float32", "float16", "bfloat16", "int8", "bool", "int4", "uint4", "float8_e4m3fn"]


PLACEMENTS = (
    *(REPLICATED, Split(0), Split(1), Split(2)),
    *(Split(0, 2), Split(1, 3), Split(0, 2, 2), Split(2, 1, 2)),
)
STORED = ((False, 40), (True, 40), (True, 5))
"""Whether it lies in a file of its own; the bytes of a chunk."""


@pytest.mark.parametrize(
    ("dtype", "placement", "external", "chunk"),
    [(dtype, where, *stored) for dtype, where, stored in in_turns(TYPES, PLACEMENTS, STORED)],
    ids=str,
)
def test_a_streamed_part_is_the_cut_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, placement: Any, external: bool, chunk: int
) -> None:
    import onnx_ir as ir

    monkeypatch.setattr(stream, "CHUNK_BYTES", chunk)
    values = np.random.default_rng(1).integers(0, 2, (8, 12, 4))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    whole = values.astype(kind)
    proto = onnx.TensorProto(name="w", dims=whole.shape)
    tensor = ir.Tensor(whole, dtype=ir.DataType.from_numpy(kind), name="w")
    proto.data_type = int(tensor.dtype)
    if external:
        (tmp_path / "w.data").write_bytes(b"12345" + tensor.tobytes())
        proto.data_location = onnx.TensorProto.EXTERNAL
        proto.external_data.add(key="location", value="w.data")
        proto.external_data.add(key="offset", value="5")
    else:
        proto.raw_data = tensor.tobytes()
    weight = locate("w", ir.serde.deserialize_tensor(proto, base_path=str(tmp_path)), tmp_path / "model.onnx")
    other = Split(1) if placement == Split(0, 2) else REPLICATED
    targets = [
        (f"{rank}", layout.part_of("w", where, rank)) for where in (placement, other) for rank in range(4)
    ]
    with ThreadPoolExecutor(1) as hashing, ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as reader:
        files = {f"{rank}": stream.HashedFile(tmp_path / f"{rank}", pool, hashing) for rank in range(4)}
        writer = stream.Writer(files, 4, lambda _: None, reader)
        writer.weight(weight, targets)
        writer.finish()
    for rank in range(4):
        expected = b""
        for where in (placement, other):
            part = ir.Tensor(np.ascontiguousarray(cut(whole, where, rank, 4)), dtype=tensor.dtype)
            expected += bytes(-len(expected) % 64) + part.tobytes()
        files[f"{rank}"].file.close()
        assert (tmp_path / f"{rank}").read_bytes() == expected
        assert files[f"{rank}"].entry().sha256 == hashlib.sha256(expected).hexdigest()
    np.testing.assert_array_equal(weight.array().astype(np.float32), values)


def test_a_full_disk_ends_writing_with_its_error(tmp_path: Path) -> None:
    """The files are written by other threads: their errors count, and nothing waits for ever."""
    source = read_model(graphs.mlp(tmp_path / "model.onnx", inner=512))
    (tmp_path / "0").symlink_to("/dev/full")
    with ThreadPoolExecutor(1) as hashing, ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as reader:
        file = stream.HashedFile(tmp_path / "0", pool, hashing)
        writer = stream.Writer({"0": file}, 2, lambda _: None, reader)
        with pytest.raises(OSError, match="No space left"):
            for weight in source.weights.values():
                writer.weight(weight, [("0", layout.part_of(weight.name, REPLICATED, 0))])
            writer.finish()
        writer.settle()
        file.file.close()


@pytest.mark.parametrize("external", [False, True])
def test_slicing_holds_little_of_the_model_in_memory(tmp_path: Path, external: bool) -> None:
    """201 MB of weights in one file: the process grows by less than a weight, or a rank's part of them."""
    model = onnx.load(graphs.mlp(tmp_path / "model.onnx"))
    graph = onnx.parser.parse_graph(
        "g (float[n, 6144] x) => (float[n, 6144] y) { a = MatMul(x, w1) b = Relu(a) y = MatMul(b, w2) }"
    )
    block = np.ones((6144, 4096), np.float32)
    for name, array in (("w1", block), ("w2", block.T)):
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    model.graph.CopyFrom(graph)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=external, location="model.data")
    del model, graph
    code = (
        "import sys, onnx, onnx_ir, sharding.writing.write, sharding.planning.plan\n"
        "from tests.sharding.lockstep import peak_kilobytes as peak\n"
        "before = peak(); sharding.slice_model(sys.argv[1], 2, sys.argv[2]); print(peak() - before)"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert int(done.stdout) < 96_000  # kilobytes
    assert read_manifest(tmp_path / "out").ranks[0].weight_bytes == block.nbytes


@pytest.mark.parametrize(
    "name", ["a:b.onnx", "back\\slash.onnx", "two\nlines.onnx", os.fsdecode(b"\xff.onnx")]
)
def test_any_name_of_a_model_can_be_sliced(tmp_path: Path, name: str) -> None:
    path = graphs.mlp(tmp_path / "model.onnx").rename(tmp_path / name)
    written = sharding.slice_model(path, 2, tmp_path / "out")
    assert read_manifest(tmp_path / "out") == written
    assert sharding.slice_model(path, 2, tmp_path / "out") == written


def test_what_was_put_into_the_output_meanwhile_is_kept(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    sharding.slice_model(path, 2, tmp_path / "out")
    notes = tmp_path / "out/notes.txt"
    with pytest.raises(SliceError, match=r"other files than its slice \(notes\.txt\)"):
        sharding.slice_model(path, 2, tmp_path / "out", progress=lambda *_: notes.touch())
    assert notes.exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.onnx", "out"]


def test_an_earlier_slice_is_back_where_its_successor_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, rename = tmp_path / "slices", Path.rename
    (output / "inside").mkdir(parents=True)

    def fail(self: Path, target: Path) -> Path:
        if self.name.endswith("new.partial") and target == output:
            raise OSError(errno.EIO, "the disk fails")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    new = tmp_path / "new.partial"
    new.mkdir()
    with pytest.raises(OSError, match="the disk fails"):
        folder._replace(new, output)
    assert (output / "inside").is_dir()
    assert sorted(tmp_path.iterdir()) == [new, output]


def test_slicings_to_one_output_replace_each_other(tmp_path: Path) -> None:
    """Each ends well, and what remains is whole."""
    path = graphs.mlp(tmp_path / "model.onnx", inner=48)
    once = "sharding.slice_model(sys.argv[1], int(sys.argv[2]), sys.argv[3])"
    code = f"import sys, sharding\nfor _ in range(8): {once}"
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(path), str(ranks), str(tmp_path / "out")])
        for ranks in (2, 3)
    ]
    try:
        assert [process.wait(timeout=120) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
            process.wait()
    left = read_manifest(tmp_path / "out")
    for rank in range(left.world_size):
        verify_shard(tmp_path / "out", left, rank, left.world_size)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.onnx", "out"]


def test_a_lock_of_another_program_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_LOCK_SECONDS", 0.05)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        sharding.slice_model(graphs.mlp(tmp_path / "model.onnx"), 2, tmp_path / "out")
    finally:
        os.close(descriptor)
    assert read_manifest(tmp_path / "out").world_size == 2


def test_a_file_system_without_locks_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    with folder.new_folder(tmp_path / "out", 1) as made:
        (made / "x").write_text("here")
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("number", [0, errno.ENOLCK])
def test_a_free_lock_is_asked_for_once(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def flock(descriptor: int, how: int) -> None:
        asked.append(how)
        if number:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(folder, "_LOCK_SECONDS", 0.05)
    folder.check_output(tmp_path / "out")
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB]


def _whole_and_split(path: Path) -> Path:
    """A product whose weight is split, and one whose 7 x 301 elements no 2 ranks can split."""
    text = "g (float[n, 7] x) => (float[n, 512] y) { a = MatMul(x, odd) b = Relu(a) y = MatMul(b, even) }"
    weights = {"odd": graphs.array(7, 301), "even": graphs.array(301, 512)}
    return graphs.save(path, text, weights, external=True)


def test_what_ranks_hold_whole_is_stored_once(tmp_path: Path) -> None:
    path = _whole_and_split(tmp_path / "model.onnx")
    manifest = sharding.slice_model(path, 2, tmp_path / "out")
    assert {name: entry.placement for name, entry in manifest.weights.items()} == {
        "odd": "replicated",
        "even": "split:1",
    }
    for rank, entry in enumerate(manifest.ranks):
        names = [item.file for item in entry.files]
        assert names == [f"rank_{rank}.onnx", f"rank_{rank}.data", "shared.data"]
        assert (tmp_path / f"out/rank_{rank}.data").stat().st_size == 301 * 512 * 4 // 2
    assert (tmp_path / "out/shared.data").stat().st_size == 7 * 301 * 4
    lockstep.assert_same(tmp_path / "out", path, {"x": graphs.array(3, 7)})


@pytest.mark.parametrize("mesh", [Mesh.of(tensor=2), Mesh.of(data=2, tensor=2), Mesh.of(pipeline=2)], ids=str)
def test_ranks_written_one_by_one_are_the_ranks_written_together(tmp_path: Path, mesh: Mesh) -> None:
    path = _whole_and_split(tmp_path / "model.onnx")
    options = SliceOptions(mesh=mesh, micro_batches=1, allow_replicated=True)
    whole = sharding.slice_model(path, mesh.size, tmp_path / "whole", options=options)
    for rank in range(mesh.size):
        alone = sharding.slice_model(path, mesh.size, tmp_path / f"{rank}", options=options, rank=rank)
        assert alone.ranks[rank] == whole.ranks[rank]
        verify_shard(tmp_path / f"{rank}", alone, rank, mesh.size)
        written = {path.name for path in (tmp_path / f"{rank}").iterdir()}
        assert written == {item.file for item in whole.ranks[rank].files} | {"manifest.json"}
        joined = sharding.slice_model(path, mesh.size, tmp_path / "out", options=options, rank=rank)
    assert joined == whole
    assert _hashes(tmp_path / "out") == _hashes(tmp_path / "whole")
    lockstep.assert_same(tmp_path / "out", path, {"x": graphs.array(4, 7)})


def test_files_that_belong_together_take_their_places_together(tmp_path: Path) -> None:
    """Where one cannot be written, all stay as they were, and nothing lies beside them."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"before")

    def fail(target: Any) -> None:
        target.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        folder.replace_files([(one, lambda target: target.write(b"after")), (other, fail)])
    assert one.read_bytes() == b"before" and list(tmp_path.iterdir()) == [one]
    folder.replace_files([(path, lambda target: target.write(b"after")) for path in (one, other)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
    assert one.read_bytes() == other.read_bytes() == b"after"


def test_the_manifest_joins_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads it meanwhile finds all files that it names."""
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    sharding.slice_model(path, 2, tmp_path / "out", rank=0)
    moved: list[str] = []
    move = Path.replace

    def noted(self: Path, target: Path) -> Path:
        if target.parent == tmp_path / "out":
            moved.append(target.name)
        return move(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    sharding.slice_model(path, 2, tmp_path / "out", rank=1)
    assert moved == ["rank_1.data", "rank_1.onnx", "manifest.json"]


@pytest.mark.parametrize(("seconds", "stays"), [(0, True), (3600, False)])
def test_a_folder_that_another_slicing_has_just_made_stays(
    tmp_path: Path, seconds: float, stays: bool
) -> None:
    """Before it is locked it looks like what a killed slicing has left."""
    left = tmp_path / ".out-abcd1234.partial"
    left.mkdir()
    then = left.stat().st_mtime - seconds
    os.utime(left, (then, then))
    with folder.new_folder(tmp_path / "out", 1):
        assert left.exists() is stays


def test_a_rank_alone_names_what_is_missing(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    alone = sharding.slice_model(path, 2, tmp_path / "out", rank=1)
    assert alone.ranks[0].files == () and read_manifest(tmp_path / "out") == alone
    with pytest.raises(ShardrunError, match="holds no shard of rank 0, only of 1"):
        verify_shard(tmp_path / "out", alone, 0, 2)
    with pytest.raises(SliceError, match=r"There is no rank 2: the ranks are 0\.\.1"):
        sharding.slice_model(path, 2, tmp_path / "out", rank=2)


def test_a_rank_of_another_plan_replaces_the_folder(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    sharding.slice_model(path, 4, tmp_path / "out")
    manifest = sharding.slice_model(path, 2, tmp_path / "out", rank=1)
    assert manifest.world_size == 2
    assert sorted(item.name for item in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "rank_1.data",
        "rank_1.onnx",
    ]


def test_ranks_written_at_the_same_time_join(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=64)
    code = "import sys, sharding; sharding.slice_model(sys.argv[1], 4, sys.argv[2], rank=int(sys.argv[3]))"
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "out")]
    running = [subprocess.Popen([*command, str(rank)]) for rank in range(4)]
    try:
        assert [process.wait(timeout=120) for process in running] == [0] * 4
    finally:
        for process in running:
            process.kill()
            process.wait()
    whole = sharding.slice_model(path, 4, tmp_path / "whole")
    assert read_manifest(tmp_path / "out") == whole


def test_a_source_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = _whole_and_split(tmp_path / "model.onnx")
    plan = sharding.plan_model(path, 2)
    os.truncate(tmp_path / "model.onnx.data", 1000)
    with pytest.raises(ShardrunError, match="became shorter while it was read"):
        write_slices(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_little_is_written_without_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same bytes; and what fails is said when it is waited for, as with threads."""
    path = graphs.mlp(tmp_path / "m.onnx", inner=256)
    started: list[str] = []

    def counted(count: int, name: str, **more: Any) -> ThreadPoolExecutor:
        started.append(name)
        return ThreadPoolExecutor(count, name, **more)

    monkeypatch.setattr(stream, "ThreadPoolExecutor", counted)
    sharding.slice_model(path, 2, tmp_path / "at_once")
    assert started == []
    monkeypatch.setattr(stream, "CHUNK_BYTES", 0)
    sharding.slice_model(path, 2, tmp_path / "threads")
    assert {"read", "write", "hash"} == set(started)
    names = sorted(item.name for item in (tmp_path / "threads").iterdir())
    for name in names:
        assert (tmp_path / "at_once" / name).read_bytes() == (tmp_path / "threads" / name).read_bytes()
    assert "manifest.json" in names
    failing = stream.AtOnce().submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result()
