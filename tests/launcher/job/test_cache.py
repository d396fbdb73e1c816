"""The cache of sliced models: hits, changes, damage, crashes, several processes at once, closed disks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import sharding
from launcher.errors import ConfigError
from launcher.job import cache
from ranks.cache import folder as cache_folder
from ranks.cache import intact
from ranks.models import model_file
from sharding.demands.options import SliceOptions
from sharding.errors import ModelError, ShardError, SliceError
from sharding.onnx_files.external import Extent
from sharding.slices.manifest import read_manifest
from sharding.slices.mesh import Mesh
from tests.launcher.cli_tools import environment, save_mlp
from tests.sharding import graphs

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def slicings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by one with each real slicing."""
    done: list[Any] = []
    original = sharding.slice_model

    def counted(*arguments: Any, **options: Any) -> Any:
        done.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(sharding, "slice_model", counted)
    return done


def test_a_file_system_that_tells_no_size_takes_slices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=0, used=0, free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert cache.sliced(save_mlp(folder / "m.onnx"), 2).is_dir()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", "/a")
    assert cache.cache_folder() == Path("/a")
    monkeypatch.delenv("SHARDRUN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache.cache_folder() == Path("/b/shardrun")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_folder() == Path.home() / ".cache" / "shardrun"


def test_the_same_model_is_sliced_once(folder: Path, slicings: list[Any]) -> None:
    model = save_mlp(folder / "m.onnx")
    place = cache.sliced(model, 2)
    assert read_manifest(place).world_size == 2
    assert cache.sliced(model, 2) == place
    assert len(slicings) == 1
    # The content counts, not the name's place.
    copy = save_mlp(folder / "sub.onnx")
    copy.rename(folder / "cache" / "m.onnx")
    assert cache.sliced(folder / "cache" / "m.onnx", 2) == place
    assert cache.sliced(model, 4) != place
    assert cache.sliced(model, 2, allow_replicated=True) != place
    assert cache.sliced(model, 2, options=SliceOptions()) == place
    assert len(slicings) == 3
    assert not [p for p in (folder / "cache" / "slices").iterdir() if ".tmp" in p.name]


def test_a_changed_model_is_sliced_again(folder: Path, slicings: list[Any]) -> None:
    model = save_mlp(folder / "m.onnx", external=True)
    first = cache.sliced(model, 2)
    data = folder / "m.onnx.data"
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    assert cache.sliced(model, 2) != first
    assert len(slicings) == 2


def test_a_hash_is_remembered_until_a_file_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_mlp(folder / "m.onnx", external=True)
    hashed: list[Path] = []
    original = cache_folder.hash_of

    def counted(path: Path, parts: Sequence[Extent]) -> str:
        hashed.append(path)
        return original(path, parts)

    monkeypatch.setattr(cache_folder, "hash_of", counted)
    first = cache_folder.fingerprint(model)
    assert [path.name for path in hashed] == ["m.onnx", "m.onnx.data"]
    assert cache_folder.fingerprint(model) == first and len(hashed) == 2
    data = folder / "m.onnx.data"
    os.utime(data, ns=(1, 1))
    assert cache_folder.fingerprint(model) == first and len(hashed) == 4
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)  # in place, and with the time that it had, as when an archive is unpacked
    os.utime(data, ns=(1, 1))
    assert cache_folder.fingerprint(model) != first and len(hashed) == 6
    content[0] ^= 1
    data.write_bytes(content)
    for damaged in ("{", "[]", '{"files": 3}', '{"files": [["m.onnx", null]], "sha256": "x"}', "\0"):
        for memo in (folder / "cache" / "hashes").iterdir():
            memo.write_text(damaged)
        assert cache_folder.fingerprint(model) == first


def flipped(path: Path) -> None:
    """One bit is another one, and the file's time of change as before."""
    times = path.stat().st_mtime_ns
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(times, times))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "no manifest": lambda place: (place / "manifest.json").unlink(),
    "manifest": lambda place: (place / "manifest.json").write_text("{"),
    "bit of the manifest": lambda place: flipped(place / "manifest.json"),
    "short": lambda place: (place / "rank_1.onnx").write_bytes(b"short"),
    "bit": lambda place: flipped(place / "rank_1.onnx"),
    "bit of the graph": lambda place: flipped(place / "rank_0.onnx"),
    "gone": lambda place: (place / "rank_1.onnx").unlink(),
    "a folder": lambda place: ((place / "rank_1.onnx").unlink(), (place / "rank_1.onnx").mkdir()),
    "no seal": lambda place: (place / "complete.json").unlink(),
    "seal": lambda place: (place / "complete.json").write_text("[" * 100000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_sliced_again(
    folder: Path, slicings: list[Any], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_mlp(folder / "m.onnx")
    place = cache.sliced(model, 2)
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.name != "complete.json"}
    DAMAGE[damage](place)
    assert cache.sliced(model, 2) == place and len(slicings) == 2
    assert caplog.messages == [f"{place} was damaged and is made again"]
    assert {name: (place / name).read_bytes() for name in before} == before
    assert cache.sliced(model, 2) == place and len(slicings) == 2


def test_bytes_that_changed_alone_are_made_again_by_the_next_run(
    folder: Path, slicings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a failing disk: no time of the file tells. The rank, which hashes its shard, finds it."""
    model = save_mlp(folder / "m.onnx")
    place = cache.sliced(model, 2)
    flipped(place / "rank_1.onnx")
    monkeypatch.setattr(intact, "is_known", lambda *_: True)
    assert cache.sliced(model, 2) == place and len(slicings) == 1
    with pytest.raises(ShardError, match=r"SHA-256 .* It lies in the cache: the next run makes it anew\."):
        model_file.find(place).verify(1, 2)
    assert cache.sliced(model, 2) == place and len(slicings) == 2


def test_a_manifest_that_changed_alone_is_made_again_at_once(
    folder: Path, slicings: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The launcher reads it before any rank could find that it is damaged."""
    model = save_mlp(folder / "m.onnx")
    place = cache.sliced(model, 2)
    before = (place / "manifest.json").read_bytes()
    flipped(place / "manifest.json")
    monkeypatch.setattr(intact, "is_known", lambda *_: True)
    assert cache.sliced(model, 2) == place and len(slicings) == 2
    assert caplog.messages == [f"{place} was damaged and is made again"]
    assert (place / "manifest.json").read_bytes() == before


def test_more_files_in_a_folder_are_no_harm(folder: Path, slicings: list[Any]) -> None:
    model = save_mlp(folder / "m.onnx")
    (cache.sliced(model, 2) / "notes.txt").write_text("mine")
    assert (cache.sliced(model, 2) / "notes.txt").read_text() == "mine" and len(slicings) == 1


def test_a_touched_folder_is_read_and_kept(folder: Path, slicings: list[Any]) -> None:
    model = save_mlp(folder / "m.onnx")
    place = cache.sliced(model, 2)
    for path in place.iterdir():
        path.touch()
    assert cache.sliced(model, 2) == place and len(slicings) == 1


def test_a_damaged_note_of_a_hash_is_none(folder: Path) -> None:
    model = save_mlp(folder / "m.onnx")
    right = cache_folder.fingerprint(model)
    (memo,) = cache_folder.hashes_folder().iterdir()
    text = memo.read_text()
    wrong = text.replace(right, right[:-1] + ("0" if right[-1] != "0" else "1"))
    for damaged in (wrong, text[:-5], "", text.replace('"check"', '"chuck"')):
        memo.write_text(damaged)
        assert cache_folder.fingerprint(model) == right
        assert right in memo.read_text()


def test_what_a_crash_left_is_removed(folder: Path) -> None:
    model = save_mlp(folder / "m.onnx")
    place = cache.sliced(model, 2)
    stale = place.parent / f"{place.name}.tmpdead"
    (stale / "slices").mkdir(parents=True)
    (place / "manifest.json").unlink()
    cache.sliced(model, 2)
    assert not stale.exists() and (place / "manifest.json").exists()


@pytest.mark.timeout(60)
def test_what_lies_where_a_crash_leaves_folders_stays(folder: Path) -> None:
    """To open a pipe waits until somebody writes to it."""
    model = save_mlp(folder / "m.onnx")
    place = cache.sliced(model, 2)
    others = [place.parent / f"{place.name}.tmp{what}" for what in ("pipe", "file", "link")]
    os.mkfifo(others[0])
    others[1].write_text("not ours")
    others[2].symlink_to(folder)
    (place / "manifest.json").unlink()
    assert cache.sliced(model, 2) == place
    assert read_manifest(place).world_size == 2
    assert all(os.path.lexists(other) for other in others) and model.is_file()


def test_a_failed_slicing_leaves_nothing(folder: Path) -> None:
    (folder / "bad.onnx").write_bytes(b"not onnx")
    with pytest.raises(ModelError):
        cache.sliced(folder / "bad.onnx", 2)
    with pytest.raises(ModelError, match="does not exist"):
        cache.sliced(folder / "absent.onnx", 2)
    with pytest.raises(SliceError):
        cache.sliced(save_mlp(folder / "m.onnx", width=1), 5)
    assert [p.name for p in (folder / "cache" / "slices").iterdir() if p.suffix != ".lock"] == []


SLICE = "import sys; from launcher.job import cache; print(cache.sliced(sys.argv[1], 2))"


def test_several_processes_at_once(folder: Path) -> None:
    model = save_mlp(folder / "m.onnx", width=4096)
    command = [sys.executable, "-c", SLICE, str(model)]
    environ = environment(SHARDRUN_CACHE=str(folder / "cache"))
    with_pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environ}
    running = [subprocess.Popen(command, **with_pipes) for _ in range(4)]  # type: ignore[call-overload]
    ended = [(*process.communicate(timeout=60), process.returncode) for process in running]
    assert all(code == 0 for _, _, code in ended), ended
    assert len({out for out, _, _ in ended}) == 1
    assert len([p for p in (folder / "cache" / "slices").iterdir() if p.is_dir()]) == 1


def test_a_killed_slicing_does_no_harm(folder: Path) -> None:
    model = save_mlp(folder / "m.onnx", width=1 << 19)
    environ = environment(SHARDRUN_CACHE=str(folder / "cache"))
    process = subprocess.Popen(
        [sys.executable, "-c", SLICE, str(model)], env=environ, stdout=subprocess.DEVNULL
    )
    slices = folder / "cache" / "slices"
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        if slices.is_dir() and any(".tmp" in p.name for p in slices.iterdir()):
            break
        time.sleep(0.002)
    process.kill()
    process.wait(10)
    place = cache.sliced(model, 2)
    assert read_manifest(place).world_size == 2
    assert [p.name for p in slices.iterdir() if p.is_dir()] == [place.name]


@pytest.mark.parametrize("where", ["file", "closed"])
def test_a_cache_that_cannot_be_written(folder: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_mlp(folder / "m.onnx")
    (folder / "file").write_text("")
    # Root may write anywhere but in the kernel's own file systems.
    place = folder / "file" / "cache" if where == "file" else Path("/proc/self/nowhere")
    monkeypatch.setenv("SHARDRUN_CACHE", str(place))
    with pytest.raises(
        ConfigError, match=r"the cache of sliced models at .* cannot be used: .*SHARDRUN_CACHE"
    ):
        cache.sliced(model, 2)


def test_external_data_of_a_hostile_model_is_not_read(folder: Path) -> None:
    model = onnx.load(save_mlp(folder / "m.onnx"))
    for location in ("/dev/zero", "../secret", "pipe"):
        (folder / "x").mkdir(exist_ok=True)
        if location == "pipe" and not (folder / "x" / "pipe").exists():
            os.mkfifo(folder / "x" / "pipe")
        weight = model.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.ClearField("external_data")
        entry = weight.external_data.add()
        entry.key, entry.value = "location", location
        (folder / "x" / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError):
            cache.sliced(folder / "x" / "m.onnx", 2)


def test_every_option_and_the_content_of_files_is_in_the_key(folder: Path, slicings: list[Any]) -> None:
    model = save_mlp(folder / "m.onnx")
    steer, plan = folder / "steer.yaml", folder / "plan.json"
    steer.write_text("w0: column")
    places = {cache.sliced(model, 2), cache.sliced(model, 2, options=SliceOptions(mesh=Mesh.of(data=2)))}
    for options in (
        SliceOptions(memory=10**6),
        SliceOptions(annotations=False),
        SliceOptions(micro_batches=1),
        SliceOptions(steering=steer),
        SliceOptions(dims={"batch": 8}),
        SliceOptions(dims={"batch": 9}),
    ):
        places.add(cache.sliced(model, 2, options=options))
    assert len(places) == len(slicings) == 8
    steer.rename(folder / "other.yaml")
    cache.sliced(model, 2, options=SliceOptions(steering=folder / "other.yaml"))
    assert len(slicings) == 8
    (folder / "other.yaml").write_text("w0: row")
    assert cache.sliced(model, 2, options=SliceOptions(steering=folder / "other.yaml")) not in places
    with pytest.raises(SliceError, match=r"plan\.json: cannot read this saved plan"):
        cache.sliced(model, 2, options=SliceOptions(plan=plan))


def test_a_model_that_no_disk_has_room_for_is_refused_before_it_is_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashing(*_: object) -> str:
        raise AssertionError("it is hashed")

    monkeypatch.setattr(cache_folder, "hash_of", hashing)
    path = graphs.vast(tmp_path / "model.onnx", 1 << 19, 1 << 19)
    with pytest.raises(ConfigError, match=r"cannot be used: 1100 GB are needed, but only .* are free"):
        cache.sliced(path, 2)
