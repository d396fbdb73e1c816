"""SIGTERM and Ctrl-C at the moments where an exception does harm, or is forgotten."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launcher.cli_tools import environment, save_mlp
from tests.turns import in_turns

pytestmark = pytest.mark.timeout(120)

COMMAND = """
import os, signal, sys, threading, time
from launcher import cli
import launcher.commands.cache
NUMBER = {number}
def run(args):
    try:
        {body}
    finally:
        print("undone")
launcher.commands.cache.run = run
sys.argv = ["shardrun", "cache", "list"]
{more}
sys.exit(cli.main())
"""
SIGNALS = [
    (signal.SIGTERM, 143, "terminated"),
    (signal.SIGINT, 130, "interrupted"),
    (signal.SIGHUP, 129, "hung up: its terminal or session was closed"),
]


def ended(place: Path, number: int, body: str, more: str = "") -> subprocess.CompletedProcess[str]:
    """How a command ends that does ``body``."""
    code = COMMAND.format(number=int(number), body=body.replace("\n", "\n        "), more=more)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=environment(), capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip


FORKING = """
from launcher.common.signals import ENDING
from importlib.machinery import ExtensionFileLoader as Loader
calls, bad, PARENT, begun = {}, [], os.getpid(), []

def noted(step):
    def noting(self, given):
        begun.append(self.name)
        try:
            return step(self, given)
        finally:
            begun.pop()
    return noting

for name in ("create_module", "exec_module"):
    setattr(Loader, name, noted(getattr(Loader, name)))

def at_call(frame, event, argument):
    if event != "call" or not begun:
        return
    module = begun[-1]
    calls[module] = calls.get(module, 0) + 1
    if calls[module] not in (10, 100):
        return
    before = dict(ENDING._before)
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 128 + NUMBER:
            bad.append((module, calls[module], code))
    else:  # as if it were the command, which a child is not
        sys.setprofile(None)
        ENDING._owner, ENDING._before = os.getpid(), before
        for number in before:
            signal.signal(number, ENDING.stop)
        os.kill(os.getpid(), NUMBER)
"""


def test_while_a_native_module_sets_itself_up(tmp_path: Path) -> None:
    """Those that slicing imports call Python meanwhile. At such calls a fork gets the signal."""
    body = "sys.setprofile(at_call)\nimport onnx, ml_dtypes\nsys.setprofile(None)\n"
    body += "if os.getpid() != PARENT:\n    time.sleep(60)\nprint(len(calls), bad)\nreturn 0"
    done = ended(tmp_path, signal.SIGTERM, body, FORKING)
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.splitlines()) == {"shardrun: terminated"}, done.stderr
    *forks, found, undone = done.stdout.splitlines()
    modules, bad = found.split(" ", 1)
    assert bad == "[]" and int(modules) >= 2 and len(forks) >= 2
    assert {*forks, undone} == {"undone"}


def test_what_openblas_sends_where_it_may_start_no_thread(tmp_path: Path) -> None:
    """It interrupts the process from inside of numpy's import; that is no Ctrl-C."""
    more = FORKING.replace("child = os.fork()\n    if child:", "if False:")
    more = more.replace("not in (10, 100)", "!= 5") + "\ndef refuse(*_):\n"
    more += '    raise RuntimeError("can\'t start new thread")\nthreading.Thread.start = refuse'
    body = "sys.setprofile(at_call)\nimport onnx\ntime.sleep(60)"
    done = ended(tmp_path, signal.SIGINT, body, more)
    assert (done.returncode, done.stdout) == (1, "undone\n"), done.stderr
    assert done.stderr.startswith("shardrun: error: RuntimeError: can't start new thread: ")
    assert done.stderr.count("\n") == 1


FORGOTTEN = {
    "destructor": "class Last:\n    def __del__(self):\n"
    "        os.kill(os.getpid(), NUMBER)\n        time.sleep(0.01)\n",
    "callback": "import ctypes\n@ctypes.CFUNCTYPE(None)\ndef call():\n"
    "    os.kill(os.getpid(), NUMBER)\n    time.sleep(0.01)\n",
    "caught": "def caught():\n    try:\n        os.kill(os.getpid(), NUMBER)\n        time.sleep(9)\n"
    "    except BaseException:\n        pass\n",
}
CALLS = {"destructor": "Last()", "callback": "call()", "caught": "caught()"}


@pytest.mark.parametrize(("where", "how"), in_turns(list(FORGOTTEN), SIGNALS))
def test_what_is_forgotten_is_raised_again(tmp_path: Path, where: str, how: tuple[int, int, str]) -> None:
    number, code, said = how
    done = ended(tmp_path, number, f"{CALLS[where]}\ntime.sleep(60)\nprint('went on')", FORGOTTEN[where])
    assert (done.returncode, done.stdout, done.stderr) == (code, "undone\n", f"shardrun: {said}\n")


def test_at_the_end_of_the_work_it_is_not_forgotten_either(tmp_path: Path) -> None:
    done = ended(tmp_path, signal.SIGTERM, "Last()\nreturn 0", FORGOTTEN["destructor"])
    assert (done.returncode, done.stdout) == (143, "undone\n"), done.stderr


@pytest.mark.parametrize(("number", "code", "said"), SIGNALS)
def test_what_undoes_the_work_is_not_interrupted(tmp_path: Path, number: int, code: int, said: str) -> None:
    body = "try:\n    os.kill(os.getpid(), NUMBER)\n    time.sleep(60)\nfinally:\n    undo()"
    undo = "def undo():\n    for _ in range(50):\n        time.sleep(0.01)\n    print('slowly')\n"
    done = ended(tmp_path, number, body, undo)
    assert (done.returncode, done.stdout, done.stderr) == (code, "slowly\nundone\n", f"shardrun: {said}\n")


HELD = """
import sys, threading
from launcher import cli
from sharding.writing import stream
append, release = stream.HashedFile._append, threading.Event()
def held(self, data):
    print("writing", flush=True)
    release.wait()  # as in a write to a file system that does not answer
    return append(self, data)
def answer():
    sys.stdin.readline()
    release.set()
stream.HashedFile._append = held
stream.CHUNK_BYTES = 0  # not even a little is written without a thread
threading.Thread(target=answer, daemon=True).start()
sys.argv = ["shardrun", "slice", "m.onnx", "--ranks", "2", "--output", "out"]
sys.exit(cli.main())
"""


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("number", "code", "said"), SIGNALS)
def test_while_a_thread_writes(tmp_path: Path, twice: bool, number: int, code: int, said: str) -> None:
    """Who asks again need not wait for the thread."""
    save_mlp(tmp_path / "m.onnx")
    process = subprocess.Popen(
        [sys.executable, "-c", HELD], cwd=tmp_path, env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        while twice and process.poll() is None:  # each ends one more wait
            time.sleep(0.2)
            process.send_signal(number)
        _, errors = process.communicate(None if twice else "\n", timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (code, f"shardrun: {said}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
