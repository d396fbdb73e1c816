"""A cache folder with files that are not ours, and one that other users can reach."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import ranks
from launcher import cli
from launcher.job import cache
from ranks.cache import intact, limit, locks
from ranks.cache import place as cache_place
from ranks.cache.folder import fingerprint
from ranks.errors import ShardrunError
from ranks.weights.prepared.store import default_store
from sharding.slices.folder import new_folder
from tests.launcher.cli_tools import save_mlp
from tests.launcher.job.test_cache_command import shown

OTHER = 65534  # nobody
KINDS = list(cache_place.FORMS)
THEIRS = (
    *("weights/best.onnx", "weights/blobs/photo.jpg", "weights/work/thesis.txt", "weights/config.json"),
    *(f"weights/blobs/{'ab' * 32}", "weights/run1.boot", "weights/locks/00", "benchmarks/results/run.csv"),
    *("benchmarks/bert_base/notes.txt", "slices/cake/one.data", "slices/m-2-x.tmp/a", "hashes/list.json"),
    *("hashes/passwords.txt", "converted/photo.tmp1/a.raw", "converted/talk/complete.json"),
    *("device/keys/graph.onnx", "minilm/paper.tex", "minilm/tmp12345678/minilm.onnx", ".shardrun/notes"),
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


pytestmark = pytest.mark.usefixtures("folder")


def put(root: Path, names: tuple[str, ...] = THEIRS) -> dict[Path, bytes]:
    content = {root / name: f"{name}, a year of work".encode() for name in names}
    for path, data in content.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return content


def unread(path: Path) -> tuple[int, ...]:
    """What is known of a file or folder, but for when it was read."""
    found = path.stat()
    return found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns


def check(theirs: dict[Path, bytes]) -> None:
    assert {path: path.read_bytes() for path in theirs if path.exists()} == theirs


def share(model: Path) -> None:
    """Shares a model's weights; its answer is that of plain ONNX Runtime."""
    x = np.ones((2, 8), np.float32)
    with ranks.share_weights(str(model)) as owner:
        found = owner.predict([x])[0].get_data_to_numpy()
    plain = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, plain, rtol=1e-5)


def test_a_folder_of_the_users_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that makes, heals, bounds and clears leaves every file there, and works."""
    theirs = put(folder / "cache")
    model = save_mlp(folder / "m.onnx", width=512)
    share(model)
    place = cache.sliced(model, 2)
    check(theirs)
    locks.PINS.held.clear()
    limit.bound(folder / "cache", 0)
    assert not place.exists()
    check(theirs)
    place = cache.sliced(model, 2)
    (place / "rank_0.data").write_bytes(b"")  # damaged, so that it is made again
    locks.PINS.held.clear()
    assert cache.sliced(model, 2) == place and (place / "rank_0.data").stat().st_size
    share(model)
    locks.PINS.held.clear()
    shown(capsys, "clear")
    left = json.loads(shown(capsys, "list", "--json"))
    assert left["items"] == [] and sum(left["bytes"].values()) == 0
    check(theirs)


def test_files_that_a_user_puts_into_our_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_mlp(folder / "m.onnx", width=512)
    share(model)
    place = cache.sliced(model, 2)
    theirs = put(folder / "cache", tuple(name for name in THEIRS if "ab" * 32 not in name))
    mine = put(place, ("notes.txt", "old/rank_0.data", "rank_7.data/a.txt"))
    locks.PINS.held.clear()
    limit.bound(folder / "cache", 0)
    assert not place.exists()
    share(model)
    shown(capsys, "clear")
    check(theirs)
    # What lay in a folder of ours lies beside it.
    (kept,) = place.parent.glob(f"{place.name}.kept*")
    check({kept / path.relative_to(place): data for path, data in mine.items()})


def test_a_cache_of_an_earlier_version_is_known_by_its_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_mlp(folder / "m.onnx", width=512)
    share(model)
    cache.sliced(model, 2)
    locks.PINS.held.clear()
    marks = list((folder / "cache" / ".shardrun").iterdir())
    assert len(marks) == 3
    for mark in marks:
        mark.rmdir()
    found = {item["kind"] for item in json.loads(shown(capsys, "list", "--json"))["items"]}
    assert found == {"slices", "hashes", "weights"}
    share(model)
    assert not list((folder / "cache").glob("*-shardrun"))


def test_another_folder_in_the_place_of_ours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_mlp(folder / "m.onnx", width=512)
    share(model)
    (folder / "cache" / "weights").rename(folder / "away")
    theirs = put(folder / "cache", (f"weights/blobs/{'ab' * 32}", "weights/photo.jpg"))
    share(model)
    shown(capsys, "clear")
    check(theirs)


def test_folders_beside_an_output(folder: Path) -> None:
    """Only what slicing itself leaves when it is killed is removed."""
    names = (
        ".out-backup12.partial/thesis.txt",
        ".out-2024.partial/rank_0.onnx",
        ".out-abcdefgh.partial/rank_0.onnx",
    )
    theirs = put(folder, names)
    for path in theirs:
        os.utime(path.parent, (1, 1))
    with new_folder(folder / "out", 0):
        pass
    stale = theirs.popitem()[0]
    check(theirs)
    assert not stale.exists()


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o077])
def test_modes_do_not_depend_on_the_umask(folder: Path, mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(folder / "new" / "inner" / "cache"))
    model = save_mlp(folder / "m.onnx", width=512)
    before = os.umask(mask)
    try:
        share(model)
        cache.sliced(model, 2)
    finally:
        os.umask(before)
    made = [folder / "new", *(path for path in (folder / "new").rglob("*") if path.is_dir())]
    assert len(made) > 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}
    files = [path for path in (folder / "new").rglob("*") if path.is_file()]
    assert len(files) > 8 and not any(path.stat().st_mode & 0o077 for path in files)


def test_folders_are_usable_whatever_the_umask_takes_away(folder: Path) -> None:
    before = os.umask(0o377)
    try:
        cache_place.make_private(folder / "outer" / "inner")
    finally:
        os.umask(before)
    made = [folder / "outer", folder / "outer" / "inner"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o700]


def spoil(kind: str, place: Path, folder: Path) -> str:
    """Makes a folder one that another user could have put there; gives what is said of it."""
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    if kind == "owner":
        os.chown(place, OTHER, OTHER)
        return f"belongs to another user ({OTHER})"
    if kind == "mode":
        place.chmod(0o777)
        return "others may write to it"
    if kind == "group":
        os.chown(place, -1, OTHER)
        place.chmod(0o770)
        return "others may write to it"
    place.rename(folder / "elsewhere")
    place.symlink_to(folder / "elsewhere")
    return "it is a link"


@as_root
@pytest.mark.parametrize("how", ["owner", "mode", "group", "link"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_check_for_every_kind(
    folder: Path, kind: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folder / "cache"
    cache_place.make_private(root)
    place = cache_place.prepare(root, kind)
    (place / "x").write_text("theirs")
    said = spoil(how, place, folder)
    with pytest.raises(OSError, match="cannot be trusted") as error:
        cache_place.prepare(root, kind)
    assert said in str(error.value) and error.value.filename == str(place)
    with pytest.raises(OSError, match="cannot be trusted"):
        cache_place.ours(root, kind)
    assert cli.main(["cache", "clear", kind]) == 2
    assert said in capsys.readouterr().err
    limit.bound(root, 0)
    assert (place / "x").read_text() == "theirs"


@as_root
@pytest.mark.parametrize("how", ["owner", "mode", "group"])
def test_a_cache_folder_of_others(folder: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_mlp(folder / "m.onnx", width=512)
    said = spoil(how, folder / "cache", folder)
    with pytest.raises(ShardrunError) as error:
        cache.sliced(model, 2)
    assert said in str(error.value) and str(folder / "cache") in str(error.value)
    assert "set SHARDRUN_CACHE to a folder to which you and nobody else may write" in str(error.value)
    with pytest.raises(ShardrunError, match="cannot be trusted"):
        ranks.share_weights(str(model))
    assert default_store() is None
    assert not list((folder / "cache").iterdir())


@as_root
def test_a_forged_memo_is_not_believed(folder: Path) -> None:
    model = save_mlp(folder / "m.onnx", width=512)
    right = fingerprint(model)
    (memo,) = (folder / "cache" / "hashes").iterdir()
    forged = json.loads(memo.read_text()) | {"sha256": "0" * 64}
    forged["check"] = hashlib.sha256(json.dumps([forged["files"], forged["sha256"]]).encode()).hexdigest()
    memo.write_text(json.dumps(forged))
    assert fingerprint(model) == "0" * 64  # this user's own: believed
    os.chown(memo.parent, OTHER, OTHER)
    assert fingerprint(model) == right
    os.chown(memo.parent, 0, 0)
    os.chown(memo, OTHER, OTHER)  # from the time when others could write
    assert fingerprint(model) == right


@as_root
@pytest.mark.parametrize("how", ["owner", "link"])
def test_a_forged_slice_folder_is_made_again(folder: Path, how: str) -> None:
    """One that another user put there while he could."""
    model = save_mlp(folder / "m.onnx", width=512)
    place = cache.sliced(model, 2)
    locks.PINS.held.clear()
    right = (place / "rank_0.data").read_bytes()
    (place / "rank_0.data").chmod(0o600)
    (place / "rank_0.data").write_bytes(bytes(len(right)))  # as long as the right one
    (place / intact.SEAL).unlink()
    intact.note(place, intact.seal(place))  # he can write all that we can
    spoil(how, place, folder)
    assert cache.sliced(model, 2) == place
    assert (place / "rank_0.data").read_bytes() == right and not place.is_symlink()
    if how == "link":
        assert (folder / "elsewhere" / "rank_0.data").read_bytes() == bytes(len(right))


@as_root
def test_a_folder_like_tmp_is_safe(folder: Path) -> None:
    """There, others can put folders, but not replace ours."""
    root = folder / "cache"
    root.mkdir()
    root.chmod(0o1777)
    share(save_mlp(folder / "m.onnx", width=512))
    assert {path.name for path in root.iterdir()} >= {"weights", "hashes", ".shardrun"}
    (root / "slices").mkdir()
    os.chown(root / "slices", OTHER, OTHER)
    with pytest.raises(ShardrunError, match="belongs to another user"):
        cache.sliced(folder / "m.onnx", 2)


@as_root
def test_a_link_of_this_user_to_another_disk(folder: Path) -> None:
    (folder / "disk").mkdir(mode=0o700)
    (folder / "cache").symlink_to(folder / "disk")
    share(save_mlp(folder / "m.onnx", width=512))
    assert (folder / "disk" / "weights").is_dir()
    os.lchown(folder / "cache", OTHER, OTHER)
    assert default_store() is None


@pytest.fixture()
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can reach; the usual temporary one may stand in a closed one."""
    with tempfile.TemporaryDirectory(prefix="shardrun-test-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv("SHARDRUN_CACHE", f"{name}/cache")
        yield Path(name)


@as_root
def test_as_another_user(open_folder: Path) -> None:
    """A user in whose cache folder root owns something, which he cannot replace but root could fill."""
    folder = open_folder
    model = save_mlp(folder / "m.onnx", width=512)
    root = folder / "cache"
    (root / "slices").mkdir(parents=True, mode=0o755)
    os.chown(root, OTHER, OTHER)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    before = unread(folder), unread(root / "slices")
    # The code may lie where root alone can read it: all of it is imported by a first slicing, as root.
    program = (
        "import os, sys, launcher.job.cache\n"
        "place = os.environ['SHARDRUN_CACHE']\n"
        "os.environ['SHARDRUN_CACHE'] = sys.argv[2]\n"
        "launcher.job.cache.sliced(sys.argv[1], 2)\n"
        "os.environ['SHARDRUN_CACHE'] = place\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: launcher.job.cache.sliced(sys.argv[1], 2)\n"
        "except launcher.errors.ConfigError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(model), str(elsewhere / "cache")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"{root / 'slices'} cannot be used: it belongs to another user (0)" in done.stdout, done.stderr
    assert (unread(folder), unread(root / "slices")) == before
