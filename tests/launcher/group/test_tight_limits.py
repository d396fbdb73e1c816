"""Commands under limits of the shell: what is enough works, and what is not is named."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher import cli, start
from launcher.errors import LaunchError, RankFailedError
from launcher.group import control
from launcher.group.control import _listen_unix as listen
from launcher.group.starting import run_program
from ranks.common import heap
from tests.launcher import cli_tools
from tests.launcher.processes import Runner


def limited(kilobytes: int) -> tuple[str, ...]:
    """Words before a command, which run it with so many addresses (``ulimit -v``)."""
    return ("sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh")


def test_less_addresses_than_shared_memory_takes_without_a_limit(two_slices: Path, tmp_path: Path) -> None:
    done = cli_tools.shardrun("run", two_slices, "--dim", "batch=3", cwd=tmp_path, before=limited(500_000))
    assert done.returncode == 0, done.stderr
    assert re.search(r"collectives by +shm", done.stdout)


def short_files(blocks: int) -> tuple[str, ...]:
    """Words before a command, which may then make no longer files than so many blocks of 512 bytes
    (``ulimit -f``)."""
    return ("sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh")


def test_shorter_files_than_shared_memory_takes_without_a_limit(two_slices: Path, tmp_path: Path) -> None:
    done = cli_tools.shardrun("run", two_slices, "--dim", "batch=3", cwd=tmp_path, before=short_files(40_000))
    assert done.returncode == 0, done.stderr
    assert re.search(r"collectives by +shm", done.stdout)


def test_too_short_files_for_shared_memory(two_slices: Path, tmp_path: Path) -> None:
    done = cli_tools.shardrun("run", two_slices, "--dim", "batch=3", cwd=tmp_path, before=short_files(4000))
    assert done.returncode == 1
    assert done.stderr.endswith("cannot be made: File too large: raise the limit `ulimit -f`.\n")
    assert done.stderr.count("\n") == 1


def test_the_command_spares_addresses_where_they_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slicing has threads too, each of which would set 64 MiB aside."""
    calls: list[None] = []
    monkeypatch.setattr(heap, "spare_addresses", lambda: calls.append(None))
    cli.main(["cache", "list"])
    assert not calls
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 40, 1 << 40))
    cli.main(["cache", "list"])
    assert len(calls) == 1


def few_files(number: int) -> tuple[str, ...]:
    """Words before a command, which may then open so many files (``ulimit -n``)."""
    return ("sh", "-c", f'ulimit -n {number}; exec "$@"', "sh")


@pytest.mark.parametrize(("launcher", "number"), [("local", 8), ("local", 15), ("local", 19), ("mpirun", 8)])
def test_too_few_files_to_start_ranks(two_slices: Path, tmp_path: Path, launcher: str, number: int) -> None:
    run = ("run", two_slices, "--dim", "batch=3", "--launcher", launcher)
    done = cli_tools.shardrun(*run, cwd=tmp_path, before=few_files(number))
    assert done.returncode == 1
    assert done.stderr == (
        "shardrun: error: This process cannot start and watch its ranks (Too many open files): "
        f"`ulimit -n` allows {number} open files: raise that limit.\n"
    )


def test_too_few_files_for_mpirun(two_slices: Path, tmp_path: Path) -> None:
    run = ("run", two_slices, "--dim", "batch=3", "--launcher", "mpirun")
    done = cli_tools.shardrun(*run, cwd=tmp_path, before=few_files(20))
    assert done.returncode == 1
    # One sentence, without the places in Open MPI's source that it prints.
    assert done.stderr.endswith("pipes and sockets: `ulimit -n` allows 20 open files: raise that limit.\n")
    assert done.stderr.count("\n") == 1


EXHAUSTED = """
import sys
import numpy as np
from launcher import start
from launcher.errors import ShardrunError

feeds = {"x": np.zeros((30_000, 4), np.float32), "index": np.zeros(30_000, np.int64)}
with start(sys.argv[1], launcher=sys.argv[2], threads=1) as group:
    held = []
    try:
        while True:
            held.append(open("/dev/null"))
    except OSError:
        pass
    try:
        group.predict(feeds)
    except ShardrunError as error:
        message = str(error)
    del held[:]
    print(message, flush=True)
"""


def test_a_result_for_which_the_launcher_has_no_descriptor_left(
    run_script: Runner, two_slices: Path, launcher: str
) -> None:
    script = run_script(
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n" + EXHAUSTED,
        str(two_slices), launcher,
    )  # fmt: skip
    code, out, errors = script.end(within=60)
    assert code == 0, errors
    assert out == (
        "This process cannot start and watch its ranks (Too many open files): `ulimit -n` allows 100 open "
        "files: raise that limit.\n"
    )


@pytest.mark.parametrize("deed", ["[os.dup(1) for _ in range(1 << 20)]", "held.extend(map(open, files))"])
def test_a_rank_that_opens_too_many_files(tmp_path: Path, launcher: str, deed: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))\n"
        f"held, files = [], [os.devnull] * 100\n{deed}\n"
    )
    with pytest.raises(RankFailedError) as caught:
        run_program(["exec", str(program)], ranks=2, launcher=launcher)
    text = str(caught.value)
    assert "Too many open files" in text and "`ulimit -n` allows 80 open files: raise that limit." in text


def test_a_rank_that_cannot_connect_for_want_of_the_launchers_descriptors(
    two_slices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accept` fails as long as there is no room: the ranks are not waited for in silence."""
    monkeypatch.setattr(control, "_PATIENCE", 3)
    monkeypatch.setattr(control, "_listen_unix", full)
    with pytest.raises(LaunchError, match=r"Too many open files\): `ulimit -n` allows \d+ open files: raise"):
        start(two_slices, launcher="local", threads=1, timeout=60)


def full() -> tuple[socket.socket, str]:
    known, address = listen()
    return NoRoom(known.family, known.type, 0, known.detach()), address


class NoRoom(socket.socket):
    """Of a process that has no descriptor left for another connection."""

    def accept(self) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_the_limit_is_named(two_slices: Path, tmp_path: Path) -> None:
    """Too little for Python's threads or for ONNX Runtime, whichever fails first."""
    done = cli_tools.shardrun("run", two_slices, "--dim", "batch=3", cwd=tmp_path, before=limited(150_000))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("shardrun: error: ")
    assert "memory is short" in last


# Of a mount namespace of its own, where the memory file system and the temporary folder are this small.
SMALL = (
    'mount -t tmpfs -o size={size} none /dev/shm && mount -t tmpfs -o size={size} none "$TMPDIR" && exec "$@"'
)


@pytest.fixture(scope="module")
def own_mounts() -> tuple[str, ...]:
    words = ("unshare", "--mount", "--propagation", "private")
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("needs a mount namespace of its own, which only root may have")
    return (*words, "sh", "-c", SMALL.format(size="200k"), "sh")


def test_no_room_for_shared_memory_files(
    two_slices: Path, tmp_path: Path, own_mounts: tuple[str, ...]
) -> None:
    """Ranks that share a host need none; those that talk by MPI are told why it gives up."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run = ("run", two_slices, "--dim", "batch=3", "--launcher", "mpirun")
    done = cli_tools.shardrun(*run, cwd=tmp_path, before=own_mounts, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    by_mpi = (*run, "--collectives", "mpi")
    done = cli_tools.shardrun(*by_mpi, cwd=tmp_path, before=own_mounts, TMPDIR=str(temporary))
    assert done.returncode == 1
    said = f" {temporary} has "
    assert said in done.stderr and "there or in /dev/shm: free some space, or name another" in done.stderr
    assert "os._exit(0)" not in done.stderr
