"""Processes that end without being taken apart."""

from __future__ import annotations

import errno
import functools
import os
import pstats
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.group.starting import run_program
from ranks import boot
from ranks.common.leaving import Exit
from ranks.errors import ShardrunError
from tests.launcher.cli_tools import ROOT, environment

LEAVING = """
import atexit, sys, threading, time
from ranks.common.leaving import end, leave

class Taken:
    def __del__(self):
        print("taken apart")

def work():
    time.sleep(0.3)
    print("the thread is done")

kept = Taken()
atexit.register(print, "exit handler")
threading.Thread(target=work).start()
print("last line", end=";", file=sys.stdout)
HOW
"""


def ended(how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LEAVING.replace("HOW", how)], env=environment(), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def test_threads_exit_handlers_and_buffers_come_first() -> None:
    done = ended("leave(7)")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "last line;the thread is done\nexit handler\n"


def test_after_a_signal_no_thread_is_waited_for() -> None:
    done = ended("end(9)")
    assert (done.returncode, done.stdout, done.stderr) == (9, "last line;exit handler\n", "")


@pytest.mark.parametrize(("collectives", "said"), [("gloo", 0), ("shm", 2)])
def test_a_script_that_was_in_a_group_of_torch_is_not_taken_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], collectives: str, said: int
) -> None:
    """Threads of torch might come back from C++ meanwhile, and end the process by SIGABRT."""
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit\n"
        "from ranks.run import group\n"
        "class Taken:\n"
        "    def __del__(self):\n"
        "        print('taken apart')\n"
        "kept = Taken()\n"
        "group.join().barrier()\n"
        "group.leave()\n"
        "atexit.register(print, 'exit handler')\n"
    )
    run_program(["exec", str(script)], ranks=2, launcher="local", collectives=collectives, timeout=60)
    out = capfd.readouterr().out
    assert (out.count("exit handler"), out.count("taken apart")) == (2, said)


def test_a_profiler_tells_what_it_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from ranks.common.leaving import leave\nleave(0)\n")
    words = [sys.executable, "-m", "cProfile", "-o", "found", script]
    subprocess.run(words, cwd=tmp_path, env=environment(), timeout=60, check=True)
    assert pstats.Stats(str(tmp_path / "found")).total_calls > 0  # type: ignore[attr-defined]


def test_streams_that_nobody_reads_are_no_error() -> None:
    done = ended("sys.stdout = None; sys.stderr = open('/dev/full', 'w'); sys.stderr.write('x'); leave(5)")
    assert (done.returncode, done.stderr) == (5, "")


@pytest.mark.parametrize("program", [["serve", "model"], ["exec", "script.py"]])
def test_only_a_rank_without_a_program_of_a_user_s_leaves_so(
    monkeypatch: pytest.MonkeyPatch, program: list[str]
) -> None:
    """What a script left for its end, destructors included, happens as in any Python."""
    done: list[object] = []
    monkeypatch.setattr(boot, "main", done.append)
    monkeypatch.setattr(boot, "leave", lambda: done.append("left"))
    monkeypatch.setattr(boot, "EXIT", Exit())  # tests in this process were in groups of torch
    boot.run(program)
    assert done == [program, *(["left"] if program[0] == "serve" else [])]


OF_MPI = """
import mmap, sys
def Is_initialized(): return BEGUN
with open("PLACE", "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
"""


@pytest.mark.parametrize(
    ("by_hydra", "begun", "left"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_a_script_that_begins_mpi_leaves_no_file(
    tmp_path: Path, request: pytest.FixtureRequest, by_hydra: bool, begun: bool, left: bool
) -> None:
    """From then on, however it ends. mpi4py puts a finder of its own first. What is another's stays."""
    ours, other = (Path(f"/dev/shm/mpich_shm_{number}_{os.getpid()}") for number in (1, 2))
    for path in (ours, other):
        path.write_bytes(b"x" * 4096)
        request.addfinalizer(functools.partial(path.unlink, missing_ok=True))
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import sys\nfrom importlib.machinery import PathFinder\nsys.meta_path.insert(0, PathFinder)\n"
    )
    (package / "MPI.py").write_text(OF_MPI.replace("BEGUN", str(begun)).replace("PLACE", str(ours)))
    program = """
import os, signal
from ranks.common.leaving import clear_after_scripts
clear_after_scripts()
import importlib.util
assert importlib.util.find_spec("mpi4py")  # as libraries look whether it is there
from mpi4py import MPI
os.kill(os.getpid(), signal.SIGKILL)
"""
    environ = {**environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}", **({"PMI_RANK": "0"} if by_hydra else {})}
    done = subprocess.run([sys.executable, "-c", program], env=environ, timeout=60, check=False)
    assert done.returncode == -9
    assert (ours.exists(), other.exists()) == (left, True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ShardrunError("odd"), "error: rank 2 on host HOST: odd\n"),
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
            "error: OSError: [Errno 24] Too many open files: ",
        ),
        (KeyError("x"), "Traceback (most recent call last):\n"),
    ],
)
def test_a_rank_without_a_launcher_says_why_it_ends(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)
    spare, other = os.pipe()
    try:
        raise error
    except Exception as raised:
        with pytest.raises(SystemExit) as ended:
            boot._fail(None, 2, raised, [spare])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(said.replace("HOST", os.uname().nodename))
    with pytest.raises(OSError, match="Broken pipe"):
        os.write(other, b"x")
    os.close(other)
