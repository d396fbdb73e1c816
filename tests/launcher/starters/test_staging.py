"""Copies over a channel that leads to a process of this machine with a cache of its own, as a host has it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from launcher.errors import ConfigError, LaunchError
from launcher.job.cache_contents import clear, contents
from launcher.job.ports import listen_tcp
from launcher.job.rank_table import make_rank_table
from launcher.starters.base import Handle, Launcher
from launcher.starters.staging import channel as channels
from launcher.starters.staging import sender
from launcher.starters.staging.copies import Copy, needed
from launcher.starters.staging.receiver import Receiver
from ranks.cache import staged
from ranks.cache.folder import cache_folder
from ranks.cache.limit import bound
from ranks.cache.locks import PINS
from ranks.identity.told import NOTHING, Told
from sharding.errors import ShardError
from tests.launcher import slices

TABLE = make_rank_table([("localhost", 1), ("elsewhere.invalid", 1), ("further.invalid", 2)])
DATA = 3 << 20


class Channel(Launcher):
    """``before``: what stands before the receiver in a shell, such as a pipe."""

    name = "channel"

    def __init__(self, before: str = "") -> None:
        self.before = before
        self.asked: list[str] = []

    def on_host(
        self, host: str, module: str, environment: Mapping[str, str]
    ) -> tuple[list[str], Mapping[str, str] | None]:
        self.asked.append(host)
        program = f"{self.before} {shlex.join([sys.executable, '-m', module])}"
        return ["sh", "-c", program], None

    def start(self, *_: object) -> Handle:
        raise NotImplementedError


def entry(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"file": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Slices for four ranks, each with some data of its own."""
    made = slices.make_slices(tmp_path / "slices", 4)
    manifest = json.loads((made / "manifest.json").read_text())
    for rank in manifest["ranks"]:
        data = made / f"rank_{rank['rank']}.data"
        data.write_bytes(np.random.default_rng(rank["rank"]).bytes(DATA))
        rank["files"].append(entry(data))
    (made / "manifest.json").write_text(json.dumps(manifest))
    return made


def send(folder: Path, cache: Path, channel: Channel | None = None, silence: float = 20, **more: str) -> int:
    """Copies what the second host needs; gives the bytes that were sent for it."""
    copies = needed(folder, TABLE)[:1]
    given = {"SHARDRUN_CACHE": str(cache), **more}
    made: list[sender._Sender] = []
    one = sender._Sender(channel or Channel(), copies[0], given, 20, silence)
    made.append(one)
    one.run()
    return one.sent


def kept(cache: Path, copy: Copy) -> dict[str, bytes]:
    place = cache / "slices" / copy.key
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name != "complete.json"}


def test_each_host_gets_the_files_of_its_ranks(folder: Path, tmp_path: Path) -> None:
    first, second = needed(folder, TABLE)
    assert [first.host, second.host] == ["elsewhere.invalid", "further.invalid"]
    assert [file.file for file in first.files] == ["manifest.json", "rank_1.onnx", "rank_1.data"]
    assert {file.file for file in second.files} == {
        "manifest.json", *(f"rank_{rank}.{kind}" for rank in (2, 3) for kind in ("onnx", "data"))
    }  # fmt: skip
    channel = Channel()
    sender.send(channel, [first, second], {"SHARDRUN_CACHE": str(tmp_path / "there")}, 20, 20)
    assert sorted(channel.asked) == ["elsewhere.invalid", "further.invalid"]
    for copy in (first, second):
        whole = {file.file: (folder / file.file).read_bytes() for file in copy.files}
        assert kept(tmp_path / "there", copy) == whole
        place = tmp_path / "there" / "slices" / copy.key
        assert place.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in (tmp_path / "there" / "slices").iterdir()} == {
        name for copy in (first, second) for name in (copy.key, f"{copy.key}.lock")
    }


def test_what_is_there_is_not_sent_again(folder: Path, tmp_path: Path) -> None:
    assert send(folder, tmp_path / "there") > DATA
    assert send(folder, tmp_path / "there") == 0


def test_a_cut_copy_goes_on(folder: Path, tmp_path: Path) -> None:
    (copy, _) = needed(folder, TABLE)
    with pytest.raises(LaunchError, match="the copy was cut"):
        send(folder, tmp_path / "there", Channel(f"stdbuf -o0 head -c {2 << 20} |"))
    (partial,) = (tmp_path / "there").glob("slices/*.tmp*/made/rank_1.data")
    assert 0 < (there := partial.stat().st_size) < DATA
    assert send(folder, tmp_path / "there") == DATA - there
    assert kept(tmp_path / "there", copy)["rank_1.data"] == (folder / "rank_1.data").read_bytes()
    assert not list((tmp_path / "there").glob("slices/*.tmp*"))


def offer_of(files: Mapping[str, bytes]) -> Any:
    return {"files": [(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()]}


def test_nothing_is_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes when it has been looked what is there."""
    (tmp_path / "own").write_bytes(b"the user's")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a").symlink_to("../own")
    monkeypatch.setattr("launcher.starters.staging.receiver._length", lambda path, size: 0)
    with pytest.raises(OSError, match="symbolic links"):
        Receiver(io.BytesIO(b"theirs"), io.BytesIO(), offer_of({"a": b"theirs"})).receive(tmp_path / "made")
    assert (tmp_path / "own").read_bytes() == b"the user's"


def test_what_is_told_of_a_copy_is_never_more_than_all_of_it(tmp_path: Path) -> None:
    """Bytes that were there and are wrong do not count when they come again."""
    right = {"a": b"right", "b": b"all of it"}
    (tmp_path / "a").write_bytes(b"wrong")
    offer: Any = {
        "files": [(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in right.items()]
    }
    receiver = Receiver(io.BytesIO(right["b"] + right["a"]), io.BytesIO(), offer)
    receiver.receive(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == right
    assert receiver.arrived == sum(map(len, right.values()))


def test_what_comes_wrong_twice_is_an_error(tmp_path: Path) -> None:
    said = io.BytesIO()
    receiver = Receiver(io.BytesIO(b"goodbad_ugly"), said, offer_of({"a": b"good", "b": b"right"}))
    receiver._offer["files"][1] = ("b", 4, receiver._offer["files"][1][2])
    with pytest.raises(OSError, match="another hash than its manifest says") as caught:
        receiver.receive(tmp_path / "made")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "made" / "b"))
    assert [json.loads(line) for line in said.getvalue().splitlines()] == [
        {"have": {"a": 0, "b": 0}}, {"again": ["b"]}
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["a"]


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there already needs none; what was begun is in nobody's way."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "a").write_bytes(b"12")
    for free, fits in ((3, True), (2, False)):
        usage = shutil._ntuple_diskusage(9, 9 - free, free)
        monkeypatch.setattr("launcher.starters.staging.receiver.shutil.disk_usage", lambda _, it=usage: it)
        receiver = Receiver(io.BytesIO(b"345"), io.BytesIO(), offer_of({"a": b"12345"}))
        if fits:
            receiver.receive(made)
            (made / "a").write_bytes(b"12")
            continue
        with pytest.raises(OSError, match="3 B are needed there and 2 B are free"):
            receiver.receive(made)
        assert not made.exists()


@pytest.mark.parametrize(("number", "left"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, left: bool) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr("launcher.starters.staging.receiver._write", fail)
    with pytest.raises(OSError, match="no"):
        Receiver(io.BytesIO(b"theirs"), io.BytesIO(), offer_of({"a": b"theirs"})).receive(tmp_path / "made")
    assert (tmp_path / "made").exists() == left


def test_a_damaged_part_is_sent_whole(folder: Path, tmp_path: Path) -> None:
    (copy, _) = needed(folder, TABLE)
    with pytest.raises(LaunchError, match="was cut"):
        send(folder, tmp_path / "there", Channel(f"stdbuf -o0 head -c {2 << 20} |"))
    (partial,) = (tmp_path / "there").glob("slices/*.tmp*/made/rank_1.data")
    partial.write_bytes(bytes(partial.stat().st_size))
    assert send(folder, tmp_path / "there") > DATA
    assert kept(tmp_path / "there", copy)["rank_1.data"] == (folder / "rank_1.data").read_bytes()


@pytest.mark.parametrize("change", ["other bytes", "shorter"])
def test_a_source_that_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """After it was looked at, before it is read."""
    (copy, _) = needed(folder, TABLE)
    path = folder / "rank_1.data"
    data = path.read_bytes()
    path.write_bytes(data[:-1] if change == "shorter" else data[:-1] + bytes([data[-1] ^ 1]))
    monkeypatch.setattr(sys.modules[__name__], "needed", lambda *_: [copy])
    with pytest.raises(LaunchError, match=r"rank_1\.data is not what its manifest says, or was changed"):
        send(folder, tmp_path / "there")
    assert not (tmp_path / "there" / "slices" / copy.key).exists()
    path.write_bytes(data)
    send(folder, tmp_path / "there")
    assert kept(tmp_path / "there", copy)["rank_1.data"] == data


def test_a_host_that_says_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"host elsewhere\.invalid is gone: it has not said anything for 0.5 s"
    ):
        send(folder, tmp_path / "there", Channel("exec sleep 60 #"), silence=0.5)


@pytest.mark.parametrize(
    "said",
    [
        '{"have": 3}', '{"have": {}}', '{"have": {"manifest.json": -5}}', '{"have": {"manifest.json": "1"}}',
        '{"have": {"manifest.json": 1e300}}', '{"have": {"manifest.json": 9223372036854775808}}',
        '{"again": 3}', '{"again": ["manifest.json"]}', 'HAVE {"again": ["../b"]}', 'HAVE {"again": [[]]}',
        'HAVE {"again": ["manifest.json"]} {"again": ["manifest.json"]}', "HAVE HAVE",
    ],
)  # fmt: skip
def test_answers_that_cannot_be(folder: Path, tmp_path: Path, said: str) -> None:
    (copy, _) = needed(folder, TABLE)
    said = said.replace("HAVE", json.dumps({"have": {file.file: file.bytes for file in copy.files}}))
    # What a shell prints, however it is nested, is no answer.
    lines = ["[" * 100_000, *said.replace("} {", "}\n{").splitlines()]
    (tmp_path / "said").write_text("\n".join(lines) + "\n")
    with pytest.raises(LaunchError, match=r"^host elsewhere\.invalid answered what cannot be \('\w+'\)"):
        send(folder, tmp_path / "there", Channel(f"cat {tmp_path / 'said'}; exec sleep 60 #"))


@pytest.mark.parametrize(
    ("key", "name", "size"),
    [
        ("../whole-1", "a", 1), ("KEY.lock", "a", 1), ("KEY", "../a", 1), ("KEY", "..", 1),
        ("KEY", "/tmp/a", 1),
        ("KEY", "a\0b", 1), ("KEY", "complete.json", 1), ("KEY", "a", -1), ("KEY", "", 1),
    ],
)  # fmt: skip
def test_offers_that_cannot_be(tmp_path: Path, key: str, name: str, size: int) -> None:
    """The host writes where the cache says, whatever it is offered."""
    cache = tmp_path / "there"
    offer = {
        "kind": "slices", "key": key.replace("KEY", f"whole-1-{'0' * 24}"), "files": [(name, size, "0" * 64)],
        "environment": {"SHARDRUN_CACHE": str(cache)}, "timeout": 5,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", sender.RECEIVER], input=json.dumps(offer).encode() + b"\nx", timeout=60,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and not done.stderr
    assert re.search("is no name of a copy|cannot be a file of slices", json.loads(done.stdout)["problem"])
    assert not cache.exists()


def test_two_jobs_copy_the_same(folder: Path, tmp_path: Path) -> None:
    """The second waits for the first, and sends nothing."""
    (copy, _) = needed(folder, TABLE)
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(send, folder, tmp_path / "there") for _ in range(2)]
    assert sorted(future.result() for future in sent) == [0, copy.bytes]
    assert kept(tmp_path / "there", copy)["rank_1.data"] == (folder / "rank_1.data").read_bytes()


class Listening(Channel):
    """The input takes a connection, as with mpirun; others connect before, and say other words."""

    input_arrives = False

    def on_host(
        self, host: str, module: str, environment: Mapping[str, str]
    ) -> tuple[list[str], Mapping[str, str] | None]:
        place, _, port = environment["SHARDRUN_CONTROL"].removeprefix("tcp:").rpartition(":")
        self.address = (place, int(port))
        self.strangers = [socket.create_connection(self.address, 10) for _ in range(3)]
        self.strangers[0].sendall(b"0" * 33)
        self.strangers[1].sendall(b"GET / HTTP/1.0\r\n\r\n" * 9)
        self.strangers[2].shutdown(socket.SHUT_WR)
        command, _ = super().on_host(host, module, environment)
        return command, {**os.environ, **environment}


def test_only_who_knows_the_secret_gets_the_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.starters.staging.channel.listen_tcp", lambda _: listen_tcp(["localhost"]))
    (copy, _) = needed(folder, TABLE)
    channel = Listening()
    assert send(folder, tmp_path / "there", channel) == copy.bytes
    for stranger in channel.strangers:
        with stranger, contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def test_nobody_else_connects_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.starters.staging.channel.listen_tcp", lambda _: listen_tcp(["localhost"]))
    launcher = Listening()
    channel = channels.Channel(launcher, "elsewhere.invalid", sender.RECEIVER)
    try:
        channel.streams()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(launcher.address, 10)
    finally:
        channel.end(well=False)
        for stranger in launcher.strangers:
            stranger.close()


def test_a_channel_that_ends_in_the_middle(folder: Path, tmp_path: Path) -> None:
    (copy, _) = needed(folder, TABLE)
    have = {"have": {file.file: file.bytes for file in copy.files}}
    (tmp_path / "said").write_text(json.dumps(have) + "\n")
    with pytest.raises(LaunchError) as caught:
        # What it is offered is read first: an end before that is one before anything was begun.
        said = f"head -c 1 > {tmp_path / 'read'}; cat {tmp_path / 'said'}; echo oh >&2; exit 3 #"
        send(folder, tmp_path / "there", Channel(said))
    assert "is gone: channel ended with exit code 3 while files were copied there (3.15 MB of 3.15 MB" in str(
        caught.value
    )


def test_a_channel_that_cannot_begin(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        send(folder, tmp_path / "there", Channel("echo No route to it >&2; exit 255;"))
    assert (
        "host elsewhere.invalid cannot be reached to copy files there: channel ended with exit code 255"
        in (str(caught.value))
    )
    assert "No route to it" in str(caught.value)


def test_a_cache_that_others_may_write_to(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "there"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(LaunchError, match=r"host elsewhere\.invalid: .*others may write to it"):
        send(folder, cache)
    assert not list(cache.iterdir())


def test_the_limit_and_what_is_not_ours(folder: Path, tmp_path: Path) -> None:
    """An older copy gives way; a folder of the user's own in the place of ours is left alone."""
    cache = tmp_path / "there"
    (cache / "slices").mkdir(parents=True)
    (cache / "slices" / "notes.txt").write_text("mine")
    (copy, _) = needed(folder, TABLE)
    send(folder, cache, SHARDRUN_CACHE_LIMIT="1MB")
    other = cache / "slices-shardrun"
    assert (other / copy.key).is_dir()
    (folder / "rank_1.data").write_bytes(bytes(DATA))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["ranks"][1]["files"][1] = entry(folder / "rank_1.data")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (changed, _) = needed(folder, TABLE)
    assert changed.key != copy.key
    os.utime(other / copy.key, (1, 1))  # a job of long ago
    send(folder, cache, SHARDRUN_CACHE_LIMIT="1MB")
    assert [path.name for path in other.iterdir() if path.is_dir()] == [changed.key]
    assert (cache / "slices" / "notes.txt").read_text() == "mine"


def test_a_copy_waits_for_its_ranks(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody holds it between the copying and their start, when another job may clean the cache."""
    cache = tmp_path / "there"
    (copy, _) = needed(folder, TABLE)
    place = cache / "slices" / copy.key
    monkeypatch.setenv("SHARDRUN_CACHE", str(cache))
    send(folder, cache)
    bound(cache, 1)
    assert place.is_dir() and clear(["slices"])[1]
    staged.here(str(folder), Told(copy=copy.key), "h")  # another job's rank, which ends before
    PINS.held.pop(place).close()
    bound(cache, 1)
    assert place.is_dir()
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 21)  # no rank has come in time
    bound(cache, 1)
    assert not place.exists()


def test_what_cannot_be_copied(folder: Path, tmp_path: Path) -> None:
    (folder / "rank_1.data").unlink()
    with pytest.raises(ShardError, match=r"rank_1\.data, which rank 1 needs, does not exist"):
        needed(folder, TABLE)


def test_rank_models_made_elsewhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's own file, and its weights beside it, whatever folder each has."""
    made = tmp_path / "made"
    for rank in range(4):
        (made / f"rank_{rank}").mkdir(parents=True)
        model = onnx.load(folder / f"rank_{rank}.onnx")
        onnx.save(
            model, made / f"rank_{rank}" / "model.onnx", save_as_external_data=True, location="w.data",
            size_threshold=0,
        )  # fmt: skip
    copies = needed(made / "rank_{}" / "model.onnx", TABLE)
    assert [(copy.host, copy.ranks) for copy in copies] == [
        ("elsewhere.invalid", [1]), ("further.invalid", [2]), ("further.invalid", [3])
    ]  # fmt: skip
    assert [[file.file for file in copy.files] for copy in copies] == [["model.onnx", "w.data"]] * 3
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "there"))
    sender.send(Channel(), copies, {"SHARDRUN_CACHE": os.environ["SHARDRUN_CACHE"]}, 20, 20)
    for copy in copies:
        found = Path(staged.here("gone", Told(copy=copy.key, file=copy.file), "h"))
        for file in copy.files:
            whole = (made / f"rank_{copy.ranks[0]}" / file.file).read_bytes()
            assert (found.parent / file.file).read_bytes() == whole
    assert {item.kind for item in contents(["staged"]).items} == {"staged"}
    (made / "rank_1" / "w.data").unlink()
    with pytest.raises(ConfigError, match=r"w\.data, of .*model\.onnx, cannot be read"):
        needed(made / "rank_{}" / "model.onnx", TABLE)
    (made / "rank_1" / "model.onnx").write_bytes(b"\x08\x09\xff")
    with pytest.raises(ConfigError, match=r"model\.onnx cannot be read"):
        needed(made / "rank_{}" / "model.onnx", TABLE)


def test_a_rank_finds_its_copy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = needed(folder, TABLE)
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "there"))
    sender.send(Channel(), copies, {"SHARDRUN_CACHE": os.environ["SHARDRUN_CACHE"]}, 20, 20)
    places = [cache_folder() / "slices" / copy.key for copy in copies]
    assert [staged.here(str(folder), Told(copy=copy.key), "h") for copy in copies] == [*map(str, places)]
    for told in (NOTHING, Told(copy="../x"), Told(copy=copies[0].key, file="../x")):
        assert staged.here(str(folder), told, "h") == str(folder)
    (places[0] / "rank_1.data").write_bytes(b"")
    with pytest.raises(Exception, match="is not there any more on host h: run it again"):
        staged.here(str(folder), Told(copy=copies[0].key), "h")


def test_a_program_that_cannot_be_started(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lacking(Channel):
        """Whose program is not there."""

        def on_host(self, host: str, module: str, environment: Mapping[str, str]) -> tuple[list[str], None]:
            return [str(tmp_path / "none")], None

    class Refusing(Channel):
        """It cannot reach hosts."""

        def on_host(self, host: str, module: str, environment: Mapping[str, str]) -> Any:
            raise LaunchError("not there")

    with pytest.raises(LaunchError, match=r"^channel cannot be started: .*No such file or directory"):
        send(folder, tmp_path / "there", Lacking())
    with pytest.raises(LaunchError, match=r"^not there$"):
        send(folder, tmp_path / "there", Refusing())
    with monkeypatch.context() as patch, pytest.raises(LaunchError, match=r"Too many open files.*ulimit"):
        patch.setattr(subprocess, "Popen", short_of_files)
        send(folder, tmp_path / "there")


def short_of_files(*_: object, **__: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
