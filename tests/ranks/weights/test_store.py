"""Prepared weights: results as of a plain session, one copy in memory, no harm by crashes and damage."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ranks.cache import durable, locks, regular_files, weight_entries, weight_entry
from ranks.cache.limit import limit_of
from ranks.errors import ModelError, ShardrunError, WeightsError
from ranks.sessions.session import SessionConfig, create
from ranks.weights.prepared import keys, prepare
from ranks.weights.prepared.store import Store, default_store
from sharding.slices.manifest import sha256_of
from tests.ranks import rank_models
from tests.ranks.rank_models import value
from tests.sharding import graphs

ROOT = Path(__file__).parents[3]
CONFIG = SessionConfig(threads=1)
SIZE = 256


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    made = default_store()
    assert made is not None
    return made


@functools.cache
def weight(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    made = (np.random.default_rng(seed).standard_normal(shape) / 16).astype(np.float32)
    made.setflags(write=False)
    return made


def mlp(seeds: tuple[int, ...] = (1, 2), size: int = SIZE) -> onnx.ModelProto:
    """Products with square weights, one after the other."""
    nodes, name = [], "x"
    for index, _ in enumerate(seeds):
        nodes.append(helper.make_node("MatMul", [name, f"w{index}"], [f"p{index}"]))
        nodes.append(helper.make_node("Tanh", [f"p{index}"], [f"y{index}"]))
        name = f"y{index}"
    weights = {f"w{i}": weight(seed, size, size) for i, seed in enumerate(seeds)}
    return rank_models.model(nodes, [value("x", ["n", size])], [value(name, ["n", size])], weights)


def save(model: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    if external:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def plain(model: Path | bytes, feeds: dict[str, Any]) -> list[Any]:
    return list(graphs.session(model).run(None, feeds))


def same(store: Store, model: Path | bytes, feeds: dict[str, Any], config: SessionConfig = CONFIG) -> None:
    """A prepared session, made and found again, gives what plain ONNX Runtime gives."""
    expected = plain(model, feeds)
    for _ in range(2):
        session = create(model, replace(config, store=store), "the model")
        for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
            if theirs.dtype.kind == "f":
                assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
            else:
                assert np.array_equal(ours, theirs)


def made(store: Store) -> list[str]:
    return sorted(entry.key for entry in weight_entries.listing(store.folder) if not entry.refused)


X = {"x": weight(9, 3, SIZE)}


# what is prepared


@pytest.mark.parametrize("external", [False, True])
def test_a_prepared_model_gives_what_the_plain_one_gives(
    store: Store, tmp_path: Path, external: bool
) -> None:
    model = save(mlp(), tmp_path / "m.onnx", external=external)
    same(store, model, X)
    assert len(made(store)) == 1 and store.opened == tuple(made(store))
    assert store.key(model, CONFIG) == store.opened[0]
    files = [path for path in store.folder.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files if path.parent.name == "locks"} == {0o600}
    # What processes have mapped is not to be written to, by accident either.
    assert {path.stat().st_mode & 0o777 for path in files if path.parent.name != "locks"} == {0o400}
    assert not list((store.folder / "work").iterdir())


def test_inputs_outputs_and_metadata_stay(store: Store, tmp_path: Path) -> None:
    proto = mlp()
    helper.set_model_props(proto, {"author": "me"})
    # An initializer that is also an input is a default that the caller may replace.
    proto.graph.input.append(helper.make_tensor_value_info("w1", TensorProto.FLOAT, [SIZE, SIZE]))
    model = save(proto, tmp_path / "m.onnx")
    session = create(model, replace(CONFIG, store=store), "it")
    theirs = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for ours, them in (
        (session.get_inputs(), theirs.get_inputs()),
        (session.get_outputs(), theirs.get_outputs()),
        (session.get_overridable_initializers(), theirs.get_overridable_initializers()),
    ):
        assert [(i.name, i.shape, i.type) for i in ours] == [(i.name, i.shape, i.type) for i in them]
    assert session.get_modelmeta().custom_metadata_map == {"author": "me"}
    other = {**X, "w1": weight(5, SIZE, SIZE)}
    assert np.allclose(session.run(None, other)[0], theirs.run(None, other)[0], atol=1e-5)


def test_equal_weights_of_different_models_are_one_file(store: Store, tmp_path: Path) -> None:
    create(save(mlp((1, 2)), tmp_path / "a.onnx"), replace(CONFIG, store=store), "a")
    blobs = {path.name for path in (store.folder / "blobs").iterdir()}
    create(save(mlp((2, 3)), tmp_path / "b.onnx"), replace(CONFIG, store=store), "b")
    create(mlp((1, 3, 2)).SerializeToString(), replace(CONFIG, store=store), "c")
    assert len(blobs) == 2
    assert len({path.name for path in (store.folder / "blobs").iterdir()} - blobs) == 1
    assert len(made(store)) == 3


def conditional() -> onnx.ModelProto:
    """Products in the branches of an If, one of them with a weight of the outer graph."""
    text = """conditional (float[n, 256] x, bool c) => (float[n, 256] y) {
      y = If (c) <
        then_branch = then () => (float[n, 256] then_y) { then_y = MatMul(x, inner) },
        else_branch = else () => (float[n, 256] else_y) { else_y = MatMul(x, outer) }
      >
    }"""
    model = graphs.model(text, {"outer": weight(4, SIZE, SIZE)}, opset=17)
    then = model.graph.node[0].attribute[0].g
    then.initializer.append(numpy_helper.from_array(weight(3, SIZE, SIZE), "inner"))
    return model


@pytest.mark.parametrize("branch", [True, False])
def test_weights_in_branches(store: Store, branch: bool) -> None:
    same(store, conditional().SerializeToString(), {**X, "c": np.array(branch)})
    assert len(made(store)) == 1


def test_strings_sparse_and_folded_weights(store: Store) -> None:
    """None of these is a plain block of bytes that stays as it is."""
    names = numpy_helper.from_array(np.array([f"label {i}" for i in range(3000)], dtype=object), "names")
    values = numpy_helper.from_array(weight(7, 2000), "sparse")
    indices = numpy_helper.from_array(np.arange(0, 4000, 2, dtype=np.int64), "sparse_indices")
    text = """mixed (float[n, 256] x, int64[k] i) => (string[k] label, float[k] number, float[n, 256] y) {
      label = Gather(names, i)
      number = Gather(sparse, i)
      turned = Transpose(w)
      small = Mul(turned, half)
      y = MatMul(x, small)
    }"""
    held = {"w": weight(8, SIZE, SIZE), "half": np.array(0.5, np.float32)}
    model = graphs.model(text, held, opset=17)
    model.graph.initializer.append(names)
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4000]))
    same(store, model.SerializeToString(), {**X, "i": np.array([0, 7, 2998])})
    assert len(made(store)) == 1


def test_a_model_without_large_weights(store: Store) -> None:
    same(store, mlp(size=4).SerializeToString(), {"x": weight(9, 3, 4)})
    assert not list((store.folder / "blobs").iterdir())


def test_a_bad_model_is_refused_as_without_a_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not onnx")
    lost = save(mlp(), tmp_path / "lost.onnx", external=True)
    (tmp_path / "lost.onnx.data").unlink()
    for model in (tmp_path / "bad.onnx", tmp_path / "absent.onnx", lost, b"not onnx"):
        with pytest.raises(ModelError) as ours:
            create(model, replace(CONFIG, store=store), "it")
        with pytest.raises(ModelError) as theirs:
            create(model, CONFIG, "it")
        assert str(ours.value) == str(theirs.value)
    assert made(store) == []


# keys


def test_what_changes_a_key(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(mlp(), tmp_path / "m.onnx", external=True)
    key = store.key(model, CONFIG)
    assert store.key(model, replace(CONFIG, threads=2, many=True)) == key
    found = {
        key,
        store.key(model, replace(CONFIG, entries={"optimization.enable_cast_chain_elimination": "1"})),
    }
    with monkeypatch.context() as patched:
        patched.setattr(keys, "cpu_features", lambda: "another")
        found.add(store.key(model, CONFIG))
    with monkeypatch.context() as patched:
        patched.setattr(ort, "__version__", "9.9.9")
        found.add(store.key(model, CONFIG))
    data = tmp_path / "m.onnx.data"
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    found.add(store.key(model, CONFIG))
    assert len(found) == 5
    part = model.read_bytes()
    inside = replace(CONFIG, folder=tmp_path)
    first = store.key(part, inside)
    assert store.key(part, replace(inside, hashes={"m.onnx.data": "0" * 64})) != first
    content[0] ^= 2
    data.write_bytes(content)
    assert store.key(part, inside) != first
    data.unlink()
    with pytest.raises(ModelError, match=r"m\.onnx\.data cannot be read: No such file"):
        store.key(part, inside)
    with pytest.raises(ModelError):
        store.key(part[:100], inside)


# processes

WORKER = """
import os, sys
from dataclasses import replace
from pathlib import Path
import numpy as np, onnx  # which preparing imports
from ranks.sessions.session import SessionConfig, create
from ranks.weights.prepared.store import default_store
def private():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss_Anon"):
            return int(line.split()[1])
before = private()
store = default_store() if sys.argv[2] == "store" else None
session = create(Path(sys.argv[1]), SessionConfig(threads=1, store=store), "it")
rows = np.ones((int(sys.argv[3]), session.get_inputs()[0].shape[1]), np.float32)
total = float(session.run(None, {session.get_inputs()[0].name: rows})[0].sum())
print(private() - before, total, len(store.opened) if store else 0, flush=True)
sys.stdin.read()
"""


def worker(model: Path, cache: Path, kind: str = "store", rows: int = 1) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SHARDRUN_CACHE": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(model), kind, str(rows)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is only read."""
    return save(mlp((1, 2, 3, 4), size=1024), tmp_path_factory.mktemp("big") / "big.onnx")


def test_processes_hold_the_weights_once(store: Store, big: Path, tmp_path: Path) -> None:
    """16 MB of weights; all start at once, so that one prepares and the others wait for it."""
    running = [worker(big, tmp_path / "cache") for _ in range(3)]
    alone = worker(big, tmp_path / "cache", "plain")
    try:
        said = []
        for process in [*running, alone]:
            assert process.stdout is not None
            said.append(process.stdout.readline().split())
        private = [int(kilobytes) for kilobytes, _, _ in said]
        assert [int(opened) for _, _, opened in said] == [1, 1, 1, 0]
        assert private[3] > 16 << 10  # this measure sees a copy where there is one
        assert max(private[:3]) < 6 << 10
        assert len({total for _, total, _ in said}) == 1
        # All are in use, and after the last one none is.
        assert weight_entries.throw_out(store.folder, 0) == ([], weight_entries.listing(store.folder))
    finally:
        for process in [*running, alone]:
            process.communicate("", timeout=30)
    assert len(made(store)) == 1
    removed, busy = weight_entries.throw_out(store.folder, 0)
    assert len(removed) == 1 and not busy
    assert not [path for path in store.folder.rglob("*") if path.is_file() and path.parent.name != "locks"]


def test_a_run_holds_only_what_is_in_use_at_one_time(store: Store, tmp_path: Path) -> None:
    """Eight lengths of rows, each in two layers: of these buffers a layer uses its input and its output."""
    widths, rows = [256 + 16 * (index % 8) for index in range(17)], 2048
    products = " ".join(f"v{i + 1} = MatMul(v{i}, w{i})" for i in range(16))
    text = f"widths (float[n, 256] v0) => (float[n, 256] v16) {{ {products} }}"
    weights = {f"w{i}": weight(i, *widths[i : i + 2]) for i in range(16)}
    model = graphs.model(text, weights, opset=17)
    process = worker(save(model, tmp_path / "widths.onnx"), tmp_path / "cache", rows=rows)
    said, _ = process.communicate("", timeout=60)
    kilobytes, _, opened = said.split()
    assert opened == "1"
    assert int(kilobytes) << 10 < rows * sum(widths[:8]) * 4


def test_equal_weights_of_one_model_are_packed_once(store: Store, tmp_path: Path) -> None:
    model = save(mlp((3, 3, 3, 3), size=1024), tmp_path / "m.onnx")
    for _ in range(2):
        process = worker(model, tmp_path / "cache")
        out, _ = process.communicate("", timeout=30)
        assert int(out.split()[0]) < 6 << 10


def test_killed_at_any_moment(store: Store, big: Path, tmp_path: Path) -> None:
    expected = plain(big, {"x": np.ones((1, 1024), np.float32)})[0]
    for moment in (0.0, 0.02, 0.04, 0.06, 0.1):
        process = worker(big, tmp_path / "cache")
        deadline = time.monotonic() + 30
        while not any((store.folder / "work").iterdir()) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(moment)
        process.kill()
        process.communicate(timeout=30)
    session = create(big, replace(CONFIG, store=store), "it")
    assert np.allclose(session.run(None, {"x": np.ones((1, 1024), np.float32)})[0], expected, atol=1e-4)
    assert len(store.opened) == 1
    assert not list((store.folder / "work").iterdir())
    wanted = {blob.name for entry in weight_entries.listing(store.folder) for blob in entry.blobs}
    assert {path.name for path in (store.folder / "blobs").iterdir()} == wanted


def test_threads_prepare_once(store: Store, big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []
    original = weight_entries.publish

    def counted(*arguments: Any) -> None:
        prepared.append(arguments)
        original(*arguments)

    monkeypatch.setattr(weight_entries, "publish", counted)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(create(big, replace(CONFIG, store=store), "it")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 and len(prepared) == 1


def test_a_process_does_not_wait_for_ever(store: Store, big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_TIMEOUT", "0.1")
    lock = store.folder / weight_entries.LOCKS / store.key(big, CONFIG)[:2]
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        create(big, replace(CONFIG, store=store), "it")
    assert store.opened == () and made(store) == []


# damage


def first_blob(store: Store) -> Path:
    return max((store.folder / "blobs").iterdir(), key=lambda path: path.stat().st_size)


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(content)


def flip(path: Path, at: int) -> None:
    """One bit is another one, and the file's time of change as before."""
    times = path.stat().st_mtime_ns
    content = bytearray(path.read_bytes())
    content[at] ^= 64
    overwrite(path, bytes(content))
    os.utime(path, ns=(times, times))


def folder_for(path: Path) -> None:
    path.unlink()
    path.mkdir()


def denied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file cannot be read, also where the tests run as root, until another is put in its place."""
    original, inode = os.open, path.stat().st_ino

    def opened(name: Any, *arguments: Any, **options: Any) -> int:
        if name == path and path.stat().st_ino == inode:
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
        return original(name, *arguments, **options)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize(
    "damage",
    [
        "blob gone",
        "blob short",
        "blob bit",
        "graph gone",
        "graph bad",
        "graph bit",
        "entry bad",
        "entry other",
        "entry closed",
        "entry folder",
        "blob folder",
        "graph pipe",
    ],
)
def test_what_is_damaged_is_made_again(
    store: Store,
    tmp_path: Path,
    damage: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = save(mlp(), tmp_path / "m.onnx")
    same(store, model, X)
    (key,) = made(store)
    graph, entry = store.folder / f"{key}.onnx", store.folder / f"{key}.json"
    content = json.loads(entry.read_bytes())
    actions: dict[str, Callable[[], object]] = {
        "blob gone": lambda: first_blob(store).unlink(),
        "blob short": lambda: overwrite(first_blob(store), first_blob(store).read_bytes()[:5000]),
        "blob bit": lambda: flip(first_blob(store), 7),
        "graph bit": lambda: flip(graph, -20),
        "graph gone": graph.unlink,
        "graph bad": lambda: overwrite(graph, graph.read_bytes()[:-10]),
        "entry bad": lambda: overwrite(entry, b'{"format": 2, "blobs": 3}'),
        "entry closed": lambda: denied(entry, monkeypatch),
        "entry folder": lambda: (entry.unlink(), entry.mkdir()),
        "blob folder": lambda: folder_for(first_blob(store)),
        "graph pipe": lambda: (graph.unlink(), os.mkfifo(graph)),
        "entry other": lambda: overwrite(entry, json.dumps({**content, "format": 0}).encode()),
    }
    actions[damage]()
    same(store, model, X)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1 and said[0].endswith("were damaged and are made again")
    assert made(store) == [key]
    same(store, model, X)
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1
    with Store(store.folder, read_only=True).pin([key]):
        pass


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 2}', "[" * 100000, "\\0", '{"format": 1e999}']
)
def test_entries_that_are_none(store: Store, tmp_path: Path, text: str) -> None:
    key = "abc1" * 8
    (store.folder / f"{key}.json").write_text(text)
    assert weight_entries.take(store.folder, key) is None
    assert [entry.what for entry in weight_entries.listing(store.folder)] == ["damaged"]
    weight_entries.throw_out(store.folder, 0)
    assert not weight_entries.listing(store.folder)


def test_an_entry_names_only_files_of_the_store(store: Store, tmp_path: Path) -> None:
    content = {
        "format": weight_entry.FORMAT,
        "what": "x",
        "graph": [0, ""],
        "blobs": [["../../secret", 0]],
        "refused": "",
    }
    content["boot"] = ""
    (store.folder / "abc.json").write_text(json.dumps(content))
    (tmp_path / "secret").write_text("")
    assert weight_entries.take(store.folder, "abc") is None


def crash(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was started again: what was written before may have lost bytes."""
    started = f"another start {len(list(store.folder.iterdir()))} {time.monotonic()}"
    monkeypatch.setattr(durable, "boot_id", lambda: started)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of weights that are read to see whether they are whole."""
    names: list[str] = []

    def counted(path: Path, size: int) -> str:
        names.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(regular_files, "sha256_of", counted)
    return names


def test_weights_are_read_once_after_a_crash(
    store: Store, tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(mlp(), tmp_path / "m.onnx")
    same(store, model, X)
    assert hashed == []  # neither where they were written nor where they are opened in the same run
    crash(store, monkeypatch)
    same(store, model, X)
    blobs = sorted(path.name for path in (store.folder / "blobs").iterdir())
    assert sorted(hashed) == blobs
    crash(store, monkeypatch)
    same(store, model, X)
    with Store(store.folder, read_only=True).pin(made(store)):
        pass
    assert len(hashed) == len(blobs)
    weight_entries.throw_out(store.folder, 0)
    assert not [path for path in store.folder.iterdir() if path.is_file()]


@pytest.mark.parametrize("also", [False, True])
def test_weights_that_a_crash_emptied(
    store: Store, tmp_path: Path, also: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the right size, with zeros inside; ``also``: another model with that weight is prepared first."""
    model = save(mlp(), tmp_path / "m.onnx")
    same(store, model, X)
    (key,) = made(store)
    crash(store, monkeypatch)
    overwrite(first_blob(store), bytes(first_blob(store).stat().st_size))
    if also:
        same(store, save(mlp((2, 1, 3)), tmp_path / "other.onnx"), X)
    with pytest.raises(WeightsError, match="are not in") if not also else contextlib.nullcontext():
        create(model, replace(CONFIG, store=Store(store.folder, read_only=True)), "it")
    same(store, model, X)
    assert key in made(store)
    for path in (store.folder / "blobs").iterdir():
        assert sha256_of(path) == path.name


def test_a_system_that_does_not_tell_its_starts(
    store: Store, tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There weights are flushed to the disk when they are written."""
    flushed: list[Path] = []
    original = durable.flush

    def counted(path: Path) -> None:
        flushed.append(path)
        original(path)

    monkeypatch.setattr(durable, "boot_id", lambda: "")
    monkeypatch.setattr(durable, "flush", counted)
    same(store, save(mlp(), tmp_path / "m.onnx"), X)
    assert {path.name for path in flushed} == {path.name for path in (store.folder / "blobs").iterdir()}
    crash(store, monkeypatch)
    same(store, tmp_path / "m.onnx", X)
    assert hashed == []


# disks


@pytest.mark.parametrize("most", [1 << 20, 9 << 20, 20 << 20])
def test_a_file_that_cannot_be_written(store: Store, big: Path, most: int) -> None:
    """As on a full disk: writing fails at some point, in ONNX Runtime or here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        session = create(big, replace(CONFIG, store=store), "it")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ones = {"x": np.ones((1, 1024), np.float32)}
    assert np.allclose(session.run(None, ones)[0], plain(big, ones)[0], atol=1e-4)
    assert store.opened == () and made(store) == []
    assert not list((store.folder / "work").iterdir()) and not list((store.folder / "blobs").iterdir())


def test_a_disk_that_is_nearly_full(store: Store, big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10**6}))
    create(big, replace(CONFIG, store=store), "it")
    assert store.opened == () and not list((store.folder / "locks").iterdir())


def test_a_folder_that_cannot_be_used(big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", Path("/proc/self/nowhere")):
        monkeypatch.setenv("SHARDRUN_CACHE", str(place))
        assert default_store() is None
        made_there = Store(place / "weights")
        create(big, replace(CONFIG, store=made_there), "it")
        assert made_there.opened == ()
    shared = tmp_path / "shared" / "weights"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "shared"))
    assert default_store() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user(big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "weights"
    folder.mkdir(parents=True, mode=0o700)
    os.chown(folder, 12345, 12345)
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    assert default_store() is None


def test_the_longest_unused_goes_first(store: Store, tmp_path: Path) -> None:
    one = 2 * SIZE * SIZE * 4  # raw and packed
    store.limit = int(2.5 * one)
    models = [save(mlp((seed,)), tmp_path / f"{seed}.onnx") for seed in (1, 2, 3)]
    names = [store.key(model, CONFIG) for model in models]
    for index, model in enumerate(models[:2]):
        create(model, replace(CONFIG, store=store), str(model))
        os.utime(store.folder / f"{names[index]}.json", (index, index))
    held = create(models[0], replace(CONFIG, store=store), "again")  # so the second is unused for longest
    create(models[2], replace(CONFIG, store=store), "third")
    assert set(made(store)) == {names[0], names[2]}
    assert weight_entries.occupied(store.folder) <= store.limit
    # What is in use stays, even where the limit is less.
    os.utime(store.folder / f"{names[0]}.json", (1, 1))
    removed, busy = weight_entries.throw_out(store.folder, 1)
    assert [entry.key for entry in removed] == [names[2]] and [entry.key for entry in busy] == [names[0]]
    del held
    assert [entry.key for entry in weight_entries.throw_out(store.folder, 1)[0]] == [names[0]]
    assert not list((store.folder / "blobs").iterdir())


def test_a_model_larger_than_the_limit(store: Store, big: Path) -> None:
    store.limit = 1 << 20
    create(big, replace(CONFIG, store=store), "it")
    assert store.opened == () and made(store) == []


# pins, read-only stores, the environment


def test_read_only(store: Store, tmp_path: Path) -> None:
    model = save(mlp(), tmp_path / "m.onnx")
    folder = os.open(store.folder, os.O_PATH | os.O_DIRECTORY)
    try:
        given = Store(Path(f"/proc/self/fd/{folder}"), read_only=True)
        with pytest.raises(WeightsError, match=r"the prepared weights of it \([0-9a-f]{32}\) are not in"):
            create(model, replace(CONFIG, store=given), "it")
        create(model, replace(CONFIG, store=store), "it")
        session = create(model, replace(CONFIG, store=given), "it")
        assert np.allclose(session.run(None, X)[0], plain(model, X)[0], atol=1e-5)
        with store.pin(given.opened):
            del session
            assert weight_entries.throw_out(store.folder, 0)[0] == []
        assert len(weight_entries.throw_out(store.folder, 0)[0]) == 1
        with pytest.raises(WeightsError, match="are not in"), store.pin(given.opened):
            pass
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("500MB", 500 * 10**6), ("1.5 gb", 15 * 10**8), ("7", 7), ("2T", 2 * 10**12)],
)
def test_limits(text: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", text)
    assert limit_of(tmp_path) == limit


@pytest.mark.parametrize("text", ["0", "0.0GB", "-1", "x", "1 XB", "inf", "1e9", "٣"])
def test_limits_that_are_none(text: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", text)
    with pytest.raises(ShardrunError, match="SHARDRUN_CACHE_LIMIT must be a size such as 20GB"):
        default_store()


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_WEIGHTS", "off")
    assert default_store() is None
    monkeypatch.setenv("SHARDRUN_WEIGHTS", "maybe")
    with pytest.raises(ShardrunError, match="SHARDRUN_WEIGHTS must be on or off, but is 'maybe'"):
        default_store()


def test_what_cannot_be_prepared_is_tried_once(
    store: Store, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuses(*arguments: Any) -> Any:
        tried.append(arguments)
        raise WeightsError("no way")

    monkeypatch.setattr("ranks.weights.prepared.store.prepare", refuses)
    for _ in range(2):
        create(big, replace(CONFIG, store=store), "it")
    assert len(tried) == 1 and not store.opened
    (entry,) = weight_entries.listing(store.folder)
    assert entry.refused == "no way"
    old = time.time() - weight_entries.REFUSED_SECONDS - 1
    os.utime(store.folder / f"{entry.key}.json", (old, old))
    monkeypatch.undo()
    store.folder.mkdir(exist_ok=True)
    create(big, replace(CONFIG, store=store), "it")
    assert list(store.opened) == [entry.key]


@pytest.mark.parametrize(("hours", "there"), [(23, True), (25, False)])
def test_a_refusal_holds_for_a_day(store: Store, hours: int, there: bool) -> None:
    key = "0" * 32
    weight_entries.make_folders(store.folder)
    with weight_entries.workplace(store.folder) as work:
        weight_entries.refuse(store.folder, key, "it", "no way", work)
    then = time.time() - 3600 * hours
    os.utime(store.folder / f"{key}.json", (then, then))
    assert (weight_entries.take(store.folder, key) is not None) == there


def test_an_entry_that_was_thrown_out_before_it_was_held(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, lock = "0" * 32, locks.lock
    weight_entries.make_folders(store.folder)
    with weight_entries.workplace(store.folder) as work:
        weight_entries.refuse(store.folder, key, "it", "no way", work)
    assert weight_entries.take(store.folder, key) is not None

    def thrown_out(descriptor: int, how: int, path: Path, seconds: float | None = None) -> bool:
        path.unlink()
        return lock(descriptor, how, path, seconds)

    monkeypatch.setattr(locks, "lock", thrown_out)
    assert weight_entries.take(store.folder, key) is None


def test_packed_weights_are_mapped_before_the_first_run(store: Store, big: Path) -> None:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if release < (5, 14):
        pytest.skip("this kernel has no MADV_POPULATE_READ")
    session = create(big, replace(CONFIG, store=store), "it")
    mapped: dict[str, int] = {}
    offset, name = "0", ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            offset, name = fields[2], fields[5] if len(fields) > 5 else ""
        elif fields[0] == "Rss:" and str(store.folder) in name and int(offset, 16):
            mapped[name] = int(fields[1]) << 10
    assert len(mapped) == 4 and min(mapped.values()) >= 1024 * 1024 * 4
    del session


def test_a_session_holds_no_second_copy_of_its_graph(tmp_path: Path, store: Store) -> None:
    """What is written of values inside is inferred again, and vectors are files, which processes share."""
    proto = mlp()
    proto.graph.initializer.append(numpy_helper.from_array(weight(3, 300), "long"))
    proto.graph.initializer.append(numpy_helper.from_array(weight(4, 200), "short"))
    proto.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [300]))
    proto.graph.node.append(helper.make_node("Add", ["more", "long"], ["sum"]))
    proto.graph.node.append(helper.make_node("Abs", ["sum"], ["positive"]))
    proto.graph.node.append(helper.make_node("Slice", ["positive", "from", "to"], ["part"]))
    proto.graph.node.append(helper.make_node("Mul", ["part", "short"], ["z"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0]), "from"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([200]), "to"))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [200]))
    path = save(proto, tmp_path / "model.onnx")
    config = replace(CONFIG, store=store)
    session = create(path, config, "model.onnx")
    (key,) = store.opened
    prepared = onnx.load(store.folder / f"{key}.onnx", load_external_data=False)
    assert not [value.name for value in prepared.graph.value_info if value.type.tensor_type.HasField("shape")]
    outside = {t.name: t.data_location == t.EXTERNAL for t in prepared.graph.initializer}
    assert outside["long"]
    assert not outside["short"]
    assert session._model_bytes is None
    feeds = {"x": weight(5, 2, SIZE), "more": weight(6, 300)}
    for ours, theirs in zip(session.run(None, feeds), plain(path, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_types_that_nothing_infers_are_kept(tmp_path: Path, store: Store) -> None:
    """ONNX Runtime writes operators of its own into convolutions' graphs, and has no types for some."""
    text = """convolutions (float[n, 32, h, wide] x) => (float[n, 32, ?, ?] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        r = Relu(c)
        p = MaxPool <kernel_shape = [2, 2]> (r)
        y = Conv(p, v)
    }"""
    weights = {"w": weight(1, 32, 32, 3, 3), "v": weight(2, 32, 32, 1, 1)}
    path = graphs.save(tmp_path / "model.onnx", text, weights, opset=17)
    session = create(path, replace(CONFIG, store=store), "model.onnx")
    assert store.opened
    feeds = {"x": weight(3, 2, 32, 8, 8)}
    np.testing.assert_allclose(session.run(None, feeds)[0], plain(path, feeds)[0], rtol=1e-4, atol=1e-5)


def test_lists_of_lengths_stay_in_the_graph(store: Store, tmp_path: Path) -> None:
    """ONNX Runtime infers shapes from them, and reads no file for that."""
    long = np.array([2, SIZE, *[1] * 130])
    made, sizes = mlp(seeds=(1,)), np.arange(1000).reshape(1, -1)
    made.graph.input[0].name = "given"
    for name, array in (("long", long), ("table", sizes)):
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    made.graph.node.insert(0, helper.make_node("Reshape", ["given", "long"], ["axes"]))
    made.graph.node.insert(1, helper.make_node("Reshape", ["axes", "short"], ["x"]))
    made.graph.node.append(helper.make_node("Gather", ["table", "at"], ["z"], axis=1))
    made.graph.input.append(helper.make_tensor_value_info("at", TensorProto.INT64, ["k"]))
    made.graph.input.append(helper.make_tensor_value_info("short", TensorProto.INT64, [2]))
    made.graph.output.append(helper.make_tensor_value_info("z", TensorProto.INT64, [1, "k"]))
    path = save(made, tmp_path / "lengths.onnx")
    feeds = {"given": weight(3, 2, SIZE), "at": np.array([7, 999]), "short": np.array([-1, SIZE])}
    for _ in range(2):
        found = store.open(path, CONFIG, "the model").run(None, feeds)
        assert all(np.array_equal(a, b) for a, b in zip(found, plain(path, feeds), strict=True))
    (key,) = store.opened
    assert len(weight_entries.take(store.folder, key)[0].blobs) == 2  # type: ignore[index]


def test_of_operators_of_onnx_runtimes_own_the_types_stay_without_shapes() -> None:
    made = {"a": "", "b": "com.microsoft"}
    nodes = [helper.make_node("Relu", ["x"], [name], domain=domain) for name, domain in made.items()]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in made]
    values.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2]))
    graph = helper.make_graph(nodes, "g", [], [], value_info=values)
    prepare._forget_shapes(graph)
    assert [value.name for value in graph.value_info] == ["b", "s"]
    kept = graph.value_info[0].type.tensor_type
    assert kept.elem_type == TensorProto.FLOAT and not kept.HasField("shape")


def test_processors_are_told_apart_by_what_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(text: str) -> str:
        (tmp_path / "cpuinfo").write_text(text)
        with monkeypatch.context() as patched:
            patched.setattr(keys, "Path", lambda path: tmp_path / Path(path).name)
            return keys.cpu_features.__wrapped__()

    core = "processor\t: 0\nvendor_id\t: A\nmodel\t\t: 143\ncpu MHz\t: 2700.0\nflags\t\t: fpu avx2 amx_tile\n"
    assert hashed(core) == hashed(core.replace("2700", "800"))
    assert hashed(core) == hashed(f"{core}\n{core.replace(': 0', ': 1').replace('amx_tile', '')}")
    assert len({hashed(core), hashed(core.replace("amx_tile", "")), hashed(core.replace("143", "85"))}) == 3
