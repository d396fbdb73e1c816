"""``shardrun run --inputs --outputs``: which files, what is left of them, and how far a run gets."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.job.inputs import save_outputs
from launcher.job.job import Job
from launcher.job.model import Opened
from launcher.job.options import FILES, flags_for_a_rank
from launcher.tasks import pace as pace_module
from launcher.tasks import results
from launcher.tasks.batch import Batch, InTurn
from launcher.tasks.listing import Listing, listed
from launcher.tasks.pace import Pace, duration
from ranks.talk import area
from sharding.slices.manifest import read_manifest
from tests.copies import Copy
from tests.launcher import cli_tools, slices
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import mpirun
from tests.launcher.processes import ROOT, wait_until

pytestmark = pytest.mark.timeout(240)


def feeds(seed: int, rows: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 4)).astype(np.float32)
    return {"x": x, "index": rng.integers(0, slices.ROWS, rows)}


def fill(folder: Path, count: int, first: int = 0) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{seed:04}.npz" for seed in range(first, first + count)]
    for seed, path in enumerate(paths, first):
        np.savez(path, **feeds(seed))
    return paths


@pytest.fixture(scope="module")
def whole(two_slices: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(two_slices / "whole.onnx", providers=["CPUExecutionProvider"])


def right(whole: onnxruntime.InferenceSession, result: Path, seed: int) -> bool:
    with np.load(result) as found:
        return list(found) == ["y"] and bool(
            np.allclose(found["y"], whole.run(None, feeds(seed))[0], atol=1e-5)
        )


# Which files.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "data/b.npz",
        "data/a.npz",
        "data/in/c.npz",
        "data/in/d.npy",
        "data/x=1.npz",
        "data/new\nline.npz",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path


def pairs(*patterns: str, outputs: str = "out", resume: bool = False) -> list[tuple[str, str]]:
    return [(item.path, str(item.target)) for item in listed(patterns, Path(outputs), resume=resume)]


def test_a_folder_whose_name_begins_as_that_of_the_outputs_is_read(place: Path) -> None:
    for name in ("data/out/old.npz", "data/outer/e.npz", "data/out.npz"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"")
    found = [path for path, _ in pairs("data/**/o*.npz", "data/outer/*", outputs="data/out", resume=True)]
    assert found == ["data/out.npz", "data/outer/e.npz"]
    found = [path for path, _ in pairs("data/*/*.npz", outputs="data/out", resume=True)]
    assert found == ["data/in/c.npz", "data/outer/e.npz"]


def test_results_lie_as_their_inputs_do(place: Path) -> None:
    assert pairs("data/[ab].npz") == [("data/a.npz", "out/a.npz"), ("data/b.npz", "out/b.npz")]
    assert pairs("data/**/*.np?")[-2:] == [
        ("data/new\nline.npz", "out/new\nline.npz"),
        ("data/x=1.npz", "out/x=1.npz"),
    ]
    assert ("data/in/d.npy", "out/in/d.npz") in pairs("data/**/*.np?")
    assert pairs("*/in/*.npy") == [("./data/in/d.npy", "out/data/in/d.npz")]
    assert pairs("data/in") == [("data/in/c.npz", "out/c.npz"), ("data/in/d.npy", "out/d.npz")]
    assert pairs("data/b.npz") == [("data/b.npz", "out/b.npz")]
    assert pairs(f"{place}/data/a*") == [(f"{place}/data/a.npz", "out/a.npz")]
    (place / "data/[ab].npz").write_bytes(b"")  # a name, where there is such a file
    assert pairs("data/[ab].npz") == [("data/[ab].npz", "out/[ab].npz")]
    assert not (place / "out").exists()


def test_results_are_no_inputs(place: Path) -> None:
    fill(place / "data/out", 2)
    assert [path for path, _ in pairs("data/**/*.npz", outputs="data/out", resume=True)] == [
        "data/a.npz", "data/b.npz", "data/in/c.npz", "data/new\nline.npz", "data/x=1.npz",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "outputs", "message"),
    [
        (["data/*.bin"], "out", r"--inputs data/\*\.bin: no such file, and no file fits"),
        (["dada/*.npz"], "out", r"--inputs dada/\*\.npz: no such file"),
        (["data/a.npz", "data/[a].npz"], "out", r"data/a\.npz is given twice"),
        (
            ["data/*.npz", "other"],
            "out",
            r"data/a\.npz and of other/a\.npz would both be written to out/a\.npz",
        ),
        (["data/in", "data/in/c.bin"], "out", r"of data/in/c\.npz and of data/in/c\.bin would both"),
        (["data/*.npz"], "data", r"outputs of data/a\.npz would be written over it"),
        (["data/*.npz"], "link", r"there already: --resume keeps what is done"),
        (["data/*.npz"], "data/a.npz", r"expected a folder, found that .*a\.npz is none"),
        (["data/*.npz"], "data/a.npz/out", r"expected a folder, found that .*a\.npz is none"),
        (["data/*.npz"], "n" * 300, r"cannot write there: File name too long"),
        (
            ["data/*.npz"],
            "old",
            r"old/a\.npz is there already: --resume keeps what is done and goes on, or name",
        ),
    ],
)
def test_what_is_refused_before_anything_starts(
    place: Path, patterns: list[str], outputs: str, message: str
) -> None:
    for name in ("other/a.npz", "old/a.npz", "data/in/c.bin"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"mine")
    (place / "link").symlink_to("data")
    before = sorted(place.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        listed(patterns, Path(outputs), resume=False)
    assert sorted(place.rglob("*")) == before


def test_inputs_are_never_their_own_results(place: Path) -> None:
    """Also where what is there already counts as done."""
    with pytest.raises(ConfigError, match=r"outputs of data/a\.npz would be written over it"):
        listed(["data/*.npz"], Path("data"), resume=True)


_HELD = """
import sys, tracemalloc
from pathlib import Path
from launcher.tasks.listing import listed
folder, out = sys.argv[1], Path(sys.argv[2])
listed([f"{folder}/000000.npz"], out, resume=False)  # what is imported for it
tracemalloc.start()
listing = listed([f"{folder}/*.npz"], out, resume=False)
most = tracemalloc.get_traced_memory()[1]
# Without the table of all interned texts, which may grow just then.
traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*pathlib.py")])
print(len(listing), sum(item.size for item in traces.statistics("filename")), most)
"""


def test_names_alone_are_held(tmp_path: Path) -> None:
    """In a process of its own: threads of other tests take memory, too."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(5000):
        (folder / f"{number:06}.npz").touch()
    done = subprocess.run(
        [sys.executable, "-c", _HELD, folder, tmp_path / "out"], capture_output=True, text=True, timeout=60,
        env=cli_tools.environment(PYTHONPATH=str(ROOT)), check=False,
    )  # fmt: skip
    count, held, most = map(int, done.stdout.split())
    assert count == 5000 and held < 5000 * 150 and most < 5000 * 500


# What is there already.


def marks(*files: str, model: str = "m") -> results.Marks:
    return results.Marks(model, files)


def test_a_result_says_what_it_is_of(tmp_path: Path) -> None:
    source, target = str(fill(tmp_path / "data", 1)[0]), tmp_path / "out" / "a.npz"
    mark = marks().of(source)
    assert results.state(target, mark) == "none"
    results.save(target, {"y": np.arange(3), "ü/z": np.zeros((0, 2))}, mark)
    assert results.state(target, mark) == "done"
    assert results.state(target, marks(model="n").of(source)) == "other"
    assert results.state(target, marks(source).of(source)) == "other"
    with np.load(target) as found:
        assert found["y"].tolist() == [0, 1, 2] and found["ü/z"].shape == (0, 2)
    os.utime(source, ns=(1, 1))
    assert results.state(target, marks().of(source)) == "other"
    results.save(target, {"y": np.arange(4)}, marks().of(source))
    assert (
        results.state(target, marks().of(source)) == "done" and sorted(tmp_path.rglob("*.npz*"))[-1] == target
    )


def test_what_is_whose(tmp_path: Path) -> None:
    source, target = str(fill(tmp_path / "data", 1)[0]), tmp_path / "a.npz"
    mark = marks().of(source)
    results.save(target, {"y": np.arange(300)}, mark)
    data = target.read_bytes()
    for length in (0, 200, len(data) - 1):  # of a machine that lost its power
        target.write_bytes(data[:length])
        assert results.state(target, mark) == "broken", length
    target.write_bytes(bytes(len(data)))
    assert results.state(target, mark) == "broken"
    save_outputs(target, {"y": np.arange(3)})
    assert results.state(target, mark) == "strange"  # somebody's
    for content in (b"PK\3\4 somebody's", b"text", data[200:]):
        target.write_bytes(content)
        assert results.state(target, mark) == ("strange")
    target.unlink()
    target.symlink_to(source)
    assert results.state(target, mark) == "strange"
    target.unlink()
    target.symlink_to("nowhere")
    assert results.state(target, mark) == "strange"
    target.unlink()
    target.mkdir()
    assert results.state(target, mark) == "strange"


# How a run goes.


class _Ranks:
    """Answers when it is told to. ``most``: how many requests waited at once."""

    state: Any = "ready"

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer, self.open, self.most = answer, 0, 0
        self.asked = 0

    def submit(self, asked: Any) -> Future[Any]:
        self.asked += 1
        self.open += 1
        self.most = max(self.most, self.open)
        owner = self

        class Late(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                owner.open -= 1
                return owner._answer(asked)

        return Late()


def batch_of(folder: Path, listing: Listing, **options: Any) -> Batch:
    manifest = read_manifest(folder)
    made = Opened(path=folder, ranks=2, manifest=manifest)
    job = Job(model=folder, files=("data/*",), outputs=listing.outputs, **options)
    pace = Pace("files", len(listing), quiet=True)
    return Batch(job, made, listing, pace)


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "data", 12)
    return listed(["data/*.npz"], Path("out"), resume=False)


def answered(asked: Any) -> Any:
    return {"y": asked["x"]}


def test_few_files_are_held(two_slices: Path, listing: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = _Ranks(answered)
    batch = batch_of(two_slices, listing)
    batch.run(ranks)
    assert ranks.most == area.SLOTS and batch.pace.done == 12 and len(list(Path("out").iterdir())) == 12
    monkeypatch.setattr("launcher.tasks.batch.AHEAD_BYTES", 100)  # a file has 72 bytes of arrays
    ranks = _Ranks(answered)
    batch_of(two_slices, Listing(Path("out2"), listing.names, listing.roots)).run(ranks)
    assert ranks.most == 2


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_full_disk_ends_a_run(
    two_slices: Path, listing: Listing, monkeypatch: pytest.MonkeyPatch, keep_going: bool
) -> None:
    """No other file could be written either: what is done stays."""
    save, saved = results.save, 0

    def full(target: Path, outputs: Any, mark: bytes) -> None:
        nonlocal saved
        saved += 1
        if saved <= 5:
            save(target, outputs, mark)
            return
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as problem:
            raise ConfigError(f"{target}: cannot write the outputs: {problem.strerror}") from None

    monkeypatch.setattr(results, "save", full)
    batch = batch_of(two_slices, listing, keep_going=keep_going)
    with pytest.raises(ConfigError, match=r"0005\.npz: cannot write the outputs: No space left"):
        batch.run(_Ranks(answered))
    assert (saved, batch.pace.done, batch.skipped) == (6, 5, 0)


def test_what_was_asked_before_a_bad_file_is_written(two_slices: Path, listing: Listing) -> None:
    Path("data/0003.npz").write_bytes(b"PK")
    batch = batch_of(two_slices, listing)
    ranks = _Ranks(answered)
    with pytest.raises(ConfigError, match=r"data/0003\.npz: cannot read this \.npz file"):
        batch.run(ranks)
    assert sorted(path.name for path in Path("out").iterdir()) == ["0000.npz", "0001.npz", "0002.npz"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [(RankFailedError, "rank 1 on host h was killed by SIGKILL."), (LaunchError, "mpirun ended by SIGKILL.")],
)
def test_lost_ranks_end_a_run_but_for_a_file_that_they_died_of(
    two_slices: Path,
    listing: Listing,
    capsys: pytest.CaptureFixture[str],
    kind: type[ShardrunError],
    text: str,
) -> None:
    deaths = 0

    def dies(asked: Any) -> Any:
        nonlocal deaths
        if np.array_equal(asked["x"], feeds(4)["x"]):
            deaths += 1
            raise kind(text)
        return answered(asked)

    batch = batch_of(two_slices, listing, keep_going=True, restart="on-failure")
    batch.run(_Ranks(dies))
    assert (batch.skipped, batch.pace.done) == (1, 11)
    assert f"skipped: data/0004.npz: {text}" in capsys.readouterr().err
    ranks = _Ranks(dies)
    ranks.state = "failed"
    again = batch_of(two_slices, Listing(Path("out2"), listing.names, listing.roots), keep_going=True)
    with pytest.raises(kind, match="SIGKILL"):
        again.run(ranks)
    assert again.pace.done == 4 and again.skipped == 0


def test_ranks_that_something_else_started_are_lost_for_all_files(two_slices: Path, listing: Listing) -> None:
    class Led:
        ended = False

        def predict(self, asked: Any) -> Any:
            self.ended = self.ended or np.array_equal(asked["x"], feeds(4)["x"])
            if self.ended:
                raise RankFailedError("rank 1 on host h was lost")
            return answered(asked)

    batch = batch_of(two_slices, listing, keep_going=True)
    with pytest.raises(RankFailedError, match="was lost"):
        batch.run(InTurn(cast(Any, Led())))
    assert batch.pace.done == 4 and batch.skipped == 0


# From the command line.


BAD: dict[str, Callable[[Path], object]] = {
    "junk": lambda path: path.write_bytes(b"junk"),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[:150]),
    "other": lambda path: np.savez(path, x=feeds(0)["x"], z=np.zeros(1)),
    "lacking": lambda path: np.savez(path, x=feeds(0)["x"]),
    "shape": lambda path: np.savez(path, x=np.zeros((3, 5), np.float32), index=feeds(0)["index"]),
    "type": lambda path: np.savez(path, x=np.zeros((3, 4)), index=feeds(0)["index"]),
    "pickled": lambda path: np.savez(path, x=np.array([{}]), index=feeds(0)["index"]),
    "range": lambda path: np.savez(path, **{**feeds(0), "index": np.full(3, 999)}),
    "lost-link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


def test_bad_files_are_said_and_skipped(tmp_path: Path, two_slices: Path, whole: Any) -> None:
    good = fill(tmp_path / "data", 3)
    (tmp_path / "data/linked.npz").symlink_to(good[0])
    for seed, (name, spoil) in enumerate(BAD.items(), 100):
        path = tmp_path / "data" / f"bad-{name}.npz"
        np.savez(path, **feeds(seed))
        spoil(path)
    command = ["run", two_slices, "--launcher", "local", "--inputs", "data/*.npz", "--outputs", "out"]
    done = shardrun(*command, "--keep-going", cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and done.stdout.startswith(f"4 of 15 files are done, {len(BAD)} skipped, ")
    assert len(done.stdout.splitlines()) == 1 and "Traceback" not in done.stderr
    for name in BAD:
        assert sum(f"skipped: data/bad-{name}.npz: " in line for line in lines) == 1, (name, done.stderr)
    assert lines[-1] == f"shardrun: error: {len(BAD)} inputs of 15 skipped, as said above"
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found == ["0000.npz", "0001.npz", "0002.npz", "linked.npz"]
    assert all(right(whole, tmp_path / "out" / f"{seed:04}.npz", seed) for seed in range(3))
    assert right(whole, tmp_path / "out/linked.npz", 0)
    for path in (tmp_path / "data").glob("bad-*"):
        path.unlink()
    (tmp_path / "out/0001.npz").write_bytes((tmp_path / "out/0001.npz").read_bytes()[:100])
    (tmp_path / "out/0002.npz").unlink()
    done = shardrun(*command, "--resume", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert told.pop("seconds") > 0
    assert told == {
        "files": 4, "done": 4, "before": 2, "skipped": 0, "ranks": 2, "restarts": 0, "written": "out",
    }  # fmt: skip
    assert all(right(whole, tmp_path / "out" / f"{seed:04}.npz", seed) for seed in range(3))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--inputs", "data/*.npz"], "--inputs: give --outputs too"),
        (["--outputs", "out"], "--outputs: give --inputs too"),
        (["--resume"], "--resume: give --inputs too"),
        (["--keep-going"], "--keep-going: give --inputs too"),
        (["--inputs", "d", "--outputs", "o", "--verify"], "--inputs and --verify exclude each other"),
        (
            ["--inputs", "d", "--outputs", "o", "--output", "y.npz"],
            "--inputs and --output exclude each other",
        ),
        (["--inputs", "d", "--outputs", "o", "--repeat", "2"], "--inputs and --repeat exclude each other"),
        (["--inputs", "d", "--outputs", "o", "--seed", "0"], "--inputs and --seed exclude each other"),
        (["--inputs", "d", "--outputs", "o"], "--inputs d: no such file"),
        (["--restart", "always"], "restart: expected never, on-failure or on-failure:N"),
        (["--restart", "on-failure", "--launcher", "external"], "external"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, two_slices: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from launcher import cli

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) if "always" in words else pytest.MonkeyPatch.context():
        assert cli.main(["run", str(two_slices), *words]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_files_of_a_job_reach_the_ranks_that_a_script_or_batch_system_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Job(
        model=Path("m"), files=("data/*.npz", "/x y"), outputs=Path("out"), resume=True, keep_going=True
    )
    assert list(flags_for_a_rank(job, FILES)) == [
        ["--inputs", f"{tmp_path}/data/*.npz", "--inputs", "/x y"], ["--outputs", f"{tmp_path}/out"],
        ["--resume"], ["--keep-going"],
    ]  # fmt: skip


def test_a_job_file(tmp_path: Path, two_slices: Path, whole: Any) -> None:
    fill(tmp_path / "job/data", 2)
    np.savez(tmp_path / "job/index.npz", index=feeds(0)["index"])
    for path in (tmp_path / "job/data").iterdir():
        np.savez(path, x=np.load(path)["x"])
    (tmp_path / "job/job.yaml").write_text(
        f"model: {two_slices}\nlauncher: local\ninputs: [index.npz]\nfiles: [data/*.npz]\noutputs: out\n"
        "restart: on-failure:2\n"
    )
    done = shardrun("run", "--config", "job/job.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    want = whole.run(None, {"x": feeds(1)["x"], "index": feeds(0)["index"]})[0]
    assert np.allclose(np.load(tmp_path / "job/out/0001.npz")["y"], want, atol=1e-5)


def test_ranks_that_something_else_started(tmp_path: Path, two_slices: Path, whole: Any) -> None:
    fill(tmp_path / "data", 5)
    np.savez(tmp_path / "data/0002.npz", **{**feeds(2), "index": np.full(3, 99)})
    command = ["run", two_slices, "--inputs", "data", "--outputs", "out", "--keep-going"]
    done = shardrun(*command, cwd=tmp_path, before=mpirun(2))
    assert done.returncode == 2 and "4 of 5 files are done, 1 skipped" in done.stdout, done.stderr
    assert all(right(whole, tmp_path / "out" / f"{seed:04}.npz", seed) for seed in (0, 1, 3, 4))


DATA = ("--inputs", "data", "--outputs", "out")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def begun(place: Path, *words: Any) -> Copy | subprocess.Popen[str]:
    """A run that is under way: some results are there."""
    process = cli_tools.begun("run", *words, *DATA, cwd=place)
    assert wait_until(lambda: (place / "out").exists() and len(names(place / "out")) > 3, 60)
    return process


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_what_is_done_stays_done(
    tmp_path: Path, two_slices: Path, whole: Any, number: signal.Signals, code: int
) -> None:
    fill(tmp_path / "data", 400)
    process = begun(tmp_path, two_slices, "--launcher", "local")
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == code and output == ""
    left = names(tmp_path / "out")
    assert 3 < len(left) < 400 and all(name.endswith(".npz") and name[0] != "." for name in left)
    if number is not signal.SIGKILL:
        said = errors.splitlines()
        assert f"{len(left)} of 400 files are done" in said[-2] and "--resume goes on" in said[-2]
        assert "Traceback" not in errors
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in left}
    done = shardrun("run", two_slices, "--launcher", "local", *DATA, "--resume", cwd=tmp_path)
    assert done.returncode == 0 and f"400 of 400 files are done, {len(left)} of them before" in done.stdout
    assert times == {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in left}
    assert all(right(whole, tmp_path / "out" / f"{seed:04}.npz", seed) for seed in range(0, 400, 7))


def test_a_killed_rank(tmp_path: Path, two_slices: Path, whole: Any) -> None:
    fill(tmp_path / "data", 300)
    process = begun(tmp_path, two_slices, "--launcher", "local", "--restart", "on-failure")
    kill_a_rank(process.pid)
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0 and output.startswith("300 of 300 files are done"), errors
    assert "was killed by SIGKILL: the ranks are started again (1 of at most 5 times in a row)" in errors
    assert all(right(whole, tmp_path / "out" / f"{seed:04}.npz", seed) for seed in range(0, 300, 3))


def test_a_killed_rank_ends_it_without_restart(tmp_path: Path, two_slices: Path) -> None:
    fill(tmp_path / "data", 300)
    process = begun(tmp_path, two_slices, "--launcher", "local", "--keep-going")
    kill_a_rank(process.pid)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and output == "", errors
    said = errors.splitlines()
    assert "--resume goes on" in said[0] and "was killed by SIGKILL" in said[1], errors


def kill_a_rank(pid: int) -> None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    children += [
        child
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
        if child not in children
    ]
    ranks = [child for child in children if b"rank 1" in Path(f"/proc/{child}/cmdline").read_bytes()]
    assert len(ranks) == 1, [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    os.kill(int(ranks[0]), signal.SIGKILL)


# How far it is.


def test_rate_and_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    monkeypatch.setattr(pace_module.time, "monotonic", lambda: now)
    pace = Pace("files", 100)
    with pace.shown():
        for _ in range(40):
            pace.step(before=True)
        assert pace.text() == "40 of 100 files"
        now += 20
        for _ in range(10):
            pace.step()
        assert capsys.readouterr().err == ""
        now += 20
        pace.step()
    assert pace.text() == "51 of 100 files, 0.275 files/s, 2 min 58 s left"
    assert capsys.readouterr().err == "shardrun: 51 of 100 files, 0.275 files/s, 2 min 58 s left\n"
    assert Pace("prompts", None).text() == "0 prompts"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (61, "1 min 1 s"),
        (599, "9 min 59 s"),
        (600, "10 min"),
        (1800, "30 min"),
        (3600, "1 h 0 min"),
        (7260, "2 h 1 min"),
        (86399, "23 h 59 min"),
        (86400, "24 h"),
        (1e6, "278 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_on_a_terminal(tmp_path: Path, two_slices: Path) -> None:
    """A person sees a bar with rate and time left, and the summary is on standard output all the same."""
    fill(tmp_path / "data", 400)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher.cli", "run", two_slices, "--launcher", "local", "--inputs", "data",
         "--outputs", "out"],
        cwd=tmp_path, env=cli_tools.environment(TERM="xterm", COLUMNS="200", PYTHONPATH=str(ROOT)),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True,
    )  # fmt: skip
    os.close(theirs)
    seen = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # its end
            while data := os.read(ours, 4096):
                seen.extend(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    results = tmp_path / "out"
    try:
        assert wait_until(lambda: results.exists() and len(names(results)) > 3, 60)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.1)  # what is done within a second has no bar
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    reader.join(60)
    os.close(ours)
    assert process.returncode == 0 and output.startswith("400 of 400 files are done")
    assert b" of 400 files, " in seen and b" files/s, " in seen and b" left" in seen
