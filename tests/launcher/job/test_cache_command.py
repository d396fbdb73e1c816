"""`shardrun cache list` and `clear`: what is shown, what goes, and what is in use and stays."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import cli
from launcher.commands import cache as cache_command
from launcher.job import cache, cache_contents
from ranks.cache import locks
from ranks.cache.place import FORMS, prepare
from ranks.sessions.session import SessionConfig, create
from ranks.weights.prepared.store import default_store
from tests.launcher.cli_tools import save_mlp

pytestmark = pytest.mark.usefixtures("folder")


def fill(folder: Path) -> tuple[Path, object]:
    """A sliced model and a prepared one, and the hash of its file; the session keeps the latter in use."""
    model = save_mlp(folder / "m.onnx", width=512)
    store = default_store()
    place = cache.sliced(model, 2)
    locks.PINS.held.clear()  # as if the process that sliced it had ended
    return place, create(model, SessionConfig(threads=1, store=store), str(model))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["cache", *arguments]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def test_an_empty_cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "list").startswith(f"{folder / 'cache'}: 0 B of at most ")
    assert shown(capsys, "clear") == "0 entries removed (0 B)\n"
    assert not (folder / "cache").exists()


@pytest.fixture
def far_east() -> Iterator[None]:
    """Nine hours before the time of Greenwich."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "EAST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_what_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, session = fill(folder)
    text = shown(capsys, "list")
    assert "m.onnx on 2 ranks" in text and place.name in text and "of 3 files and folders" in text
    data = json.loads(shown(capsys, "list", "--json"))
    assert [item["kind"] for item in data["items"]] == ["slices", "hashes", "weights"]
    assert data["items"][2]["what"] == str(folder / "m.onnx")
    assert data["items"][2]["bytes"] > 2 * 512 * 8 * 4
    assert all(abs(time.time() - _seconds(item["used"])) < 600 for item in data["items"])
    assert data["bytes"]["slices"] > 0 and data["limit"] > 0
    del session


def _seconds(text: str) -> float:
    import calendar

    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def test_what_is_in_use_stays_and_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, session = fill(folder)
    weights = next(item for item in cache_contents.contents().items if item.kind == "weights")
    data = next(path for path in place.iterdir() if path.suffix == ".data" and path.stat().st_size)
    with data.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert cli.main(["cache", "clear"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"slices {place.name} (m.onnx on 2 ranks) is in use and stays",
        f"weights {weights.name} ({folder / 'm.onnx'}) is in use and stays",
    ]
    assert "1 entry removed" in out
    assert place.is_dir()
    del session
    found = json.loads(shown(capsys, "clear", "--json"))
    assert [item["kind"] for item in found["removed"]] == ["slices", "weights"] and found["in_use"] == []
    left = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    assert all(path.parent.name == "locks" for path in left)


def test_slices_being_made_stay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, _ = fill(folder)
    with place.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cli.main(["cache", "clear", "slices"]) == 0
    assert f"slices {place.name}" in capsys.readouterr().err and place.is_dir()


@pytest.mark.parametrize("kind", ["slices", "hashes", "weights"])
def test_one_kind(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder)
    shown(capsys, "clear", kind)
    left = {item.kind for item in cache_contents.contents().items}
    assert left == {"slices", "hashes", "weights"} - {kind}


def test_what_a_crash_left_and_what_is_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = fill(folder)[0]
    (place.parent / f"{place.name}.tmpdead").mkdir()
    (place / "manifest.json").write_text("{")
    (folder / "cache" / "weights" / f"{'0' * 32}.json").write_text("{")
    (folder / "cache" / "slices" / "link").symlink_to("/etc")
    text = shown(capsys, "list")
    assert "not finished" in text and text.count("damaged") == 2 and "/etc" not in text
    shown(capsys, "clear")
    assert [item.kind for item in cache_contents.contents().items] == []


def test_wrong_use(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["cache", "clear", "slice"]) == 2
    kinds = "slices, converted, staged, hashes, weights, device, minilm, benchmarks"
    assert f"cache clear: expected any of {kinds}, found 'slice'" in capsys.readouterr().err
    assert cli.main(["cache", "list", "weight"]) == 2 and "found 'weight'" in capsys.readouterr().err
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", "much")
    assert cli.main(["cache", "list"]) == 2
    assert (
        "SHARDRUN_CACHE_LIMIT must be a size such as 20GB or 500MB, above 0, but is 'much'"
        in capsys.readouterr().err
    )
    monkeypatch.delenv("SHARDRUN_CACHE_LIMIT")
    (folder / "file").write_text("")
    for place in (folder / "file" / "inside", folder / "file"):
        monkeypatch.setenv("SHARDRUN_CACHE", str(place))
        for action in ("list", "clear"):
            assert cli.main(["cache", action]) == 2
            assert (
                f"the cache cannot be at {place}: {folder / 'file'} is no folder" in capsys.readouterr().err
            )


def test_use_is_noted(folder: Path) -> None:
    place, _ = fill(folder)
    os.utime(place, (1, 1))
    cache.sliced(folder / "m.onnx", 2)
    assert place.stat().st_mtime > 1


def test_some_kinds_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, session = fill(folder)
    text = shown(capsys, "list", "weights")
    assert place.name not in text and str(folder / "m.onnx") in text
    data = json.loads(shown(capsys, "list", "slices", "hashes", "--json"))
    assert [item["kind"] for item in data["items"]] == ["slices", "hashes"]
    assert set(data["bytes"]) == {"slices", "hashes"}
    assert cache_command._KINDS == cache_contents.KINDS
    del session


def test_what_examples_and_benchmarks_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, key, name in (("minilm", "0" * 12, "minilm"), ("benchmarks", "bert_base", "bert_base")):
        place = prepare(folder / "cache", kind) / key
        place.mkdir()
        (place / f"{name}.onnx").write_bytes(b"x" * 5000)
        place.with_name(f"{key}.tmp123").mkdir()
    text = shown(capsys, "list")
    assert text.count(".onnx, exported") == 2 and text.count("not finished") == 2
    pin = locks.pin(folder / "cache" / "minilm" / ("0" * 12))
    assert cli.main(["cache", "clear"]) == 0
    assert "minilm 000000000000 (minilm.onnx, exported) is in use and stays" in capsys.readouterr().err
    assert pin is not None
    pin.close()
    shown(capsys, "clear", "minilm")
    assert not any(path.is_file() for path in (folder / "cache").rglob("*.onnx"))


def test_no_folder_of_the_cache_is_unlisted() -> None:
    """Whatever our code puts into the cache folder is a kind of `cache list`."""
    root = Path(__file__).parents[3]
    found = {
        name
        for folder in ("ranks", "launcher", "examples", "benchmarks")
        for path in (root / folder).rglob("*.py")
        for name in re.findall(
            r'(?:(?:place_of|prepare)\((?:cache_folder\(\)|cache|root), |\bCache\()"(\w+)"', path.read_text()
        )
    }
    found.add("benchmarks")  # of versions before
    assert found == set(cache_contents.KINDS) == set(FORMS)
    assert cache_command._KINDS == cache_contents.KINDS  # written there too, for help that imports nothing
