"""Standard streams that are closed, full or of another encoding, and signals: what the command makes of
them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher import cli_tools, slices
from tests.launcher.cli_tools import environment
from tests.launcher.processes import wait_until
from tests.turns import in_turns

SHARDRUN = f"{sys.executable} -m launcher.cli"
CLOSED = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]
FULL = "standard output cannot be written: No space left on device\n"


def shell(line: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of shell to its end; fails if a process is left."""
    return cli_tools.run(["sh", "-c", line], cwd, 60, **environ)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with slices and a script."""
    folder = tmp_path_factory.mktemp("streams")
    slices.make_slices(folder / "slices")
    (folder / "script.py").write_text("import os\nprint('text')\nos.write(1, b'raw')\n")
    return folder


RUN = "run slices --dim batch=2 --output y.npz"
ALONE = ["slice slices/whole.onnx --ranks 2 --plan-only", "table make --local 2"]


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        *((RUN, closed) for closed in CLOSED),
        *((command, closed) for closed, command in in_turns(CLOSED, ALONE)),
    ],
)
def test_closed_streams_are_no_error(place: Path, command: str, closed: str) -> None:
    """Ranks inherit them; of what runs in one process, two commands take turns."""
    done = shell(f"{SHARDRUN} {command} {closed}", place)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ranks", ["--ranks 2 --launcher local", "--ranks 2 --launcher mpirun"])
def test_scripts_on_ranks_with_closed_streams(place: Path, ranks: str) -> None:
    done = shell(f"{SHARDRUN} exec {ranks} script.py <&- >&- 2>&-", place)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        ("run slices", ""),
        ("run slices", "1"),
        ("table make --local 2", "1"),
        ("--version", ""),
        ("--help", "1"),
        ("run --help", ""),
        ("exec --ranks 2 --launcher local script.py", ""),
        ("exec --ranks 2 --launcher local script.py", "1"),
    ],
)
def test_a_full_device_is_an_error(place: Path, command: str, unbuffered: str) -> None:
    done = shell(f"{SHARDRUN} {command} >/dev/full", place, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (1, f"shardrun: error: {FULL}")


def test_names_that_the_terminal_cannot_show(place: Path) -> None:
    done = shell(f"{SHARDRUN} table make --hosts hôte:1 --format yaml", place, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "h\\xf4te" in done.stdout, done.stderr


def _listens(pid: int) -> bool:
    """Whether a process waits for the other ranks of its job."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(str(link.readlink()))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return any(
        row[-1].startswith("@shardrun-") and f"socket:[{row[6]}]" in own for row in rows if len(row) > 7
    )


@pytest.mark.parametrize(
    ("number", "code", "text"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_to_a_rank_that_was_started_by_hand(place: Path, number: int, code: int, text: str) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "SHARDRUN_JOB": os.urandom(16).hex()}
    command = [sys.executable, "-u", "-m", "launcher.cli", "-v", "run", "slices", "--launcher", "external"]
    process = subprocess.Popen(
        command,
        cwd=place,
        env=environment(**rank),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert wait_until(lambda: _listens(process.pid), 30)
    finally:
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code and errors.splitlines()[-1] == f"shardrun: {text}", errors


def test_children_of_a_script_end_as_without_us(place: Path) -> None:
    (place / "pool.py").write_text(
        "import multiprocessing\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print(pool.map(abs, [-1, 2]))\n"
    )
    for _ in range(3):
        done = shell(f"{SHARDRUN} exec pool.py", place)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")


LEAVING = """
import atexit, sys
from launcher import cli
from launcher.common.signals import Terminated

class Taken:
    def __del__(self):
        print("taken apart")

def run(args):
    HOW

kept = Taken()

atexit.register(print, "exit handler")
import launcher.commands.cache
launcher.commands.cache.run = run
sys.argv = ["shardrun", "cache", "list"]
cli.main()
"""


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("raise Terminated", 143, "terminated\n"),
        ("raise KeyError('x')", 1, "internal error: KeyError: 'x' (run with --debug for the traceback)\n"),
        ("return 3", 3, ""),
    ],
)
def test_the_command_runs_exit_handlers_and_takes_nothing_apart(
    tmp_path: Path, how: str, code: int, told: str
) -> None:
    """After a signal a thread of a library may still be at work on it; else it only costs time."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVING.replace("HOW", how)], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "exit handler\n"), done.stderr
    assert done.stderr == (told and f"shardrun: {told}")


def test_outputs_are_written_though_nobody_reads_what_is_printed(place: Path) -> None:
    done = shell(f"{SHARDRUN} run slices --output kept.npz > /dev/full", place, PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr) == (1, f"shardrun: error: {FULL}")
    assert (place / "kept.npz").stat().st_size
