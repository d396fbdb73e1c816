"""Everything ends, at once, with the first cause first, whoever dies and however."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from launcher.group.control import Peer
from launcher.group.starting import run_program
from launcher.group.watch import Job
from ranks.talk import wire
from tests.launcher import slices
from tests.launcher.processes import LIMIT, Runner, Script
from tests.turns import in_turns

HOST = os.uname().nodename

SERVE = """
    import json, os, sys, time
    from launcher import start
    from launcher.errors import ShardrunError
    from tests.launcher import slices

    # No guard: starting ranks must not run this script again.
    model, launcher, mode = sys.argv[1:]
    TIMEOUT = float(os.environ.get("TEST_TIMEOUT", "300"))
    try:
        with start(model, ranks=2, launcher=launcher, timeout=TIMEOUT) as group:
            answer = group.predict(slices.feeds())
            mpirun = group._job._handle._process.pid if launcher == "mpirun" else None
            print(json.dumps({"pids": [s.pid for s in group.stats], "mpirun": mpirun}), flush=True)
            while mode == "busy":
                group.predict(slices.feeds())
            if mode == "idle":
                sys.stdin.read()
                time.sleep(60)
            if mode == "later":
                while True:
                    time.sleep(0.2)
                    if group._job.failure:
                        group.predict(slices.feeds())
    except ShardrunError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
"""


def first_cause(script: Script) -> str:
    """The first line that the launching process wrote itself; it must have failed."""
    code, _, errors = script.end()
    assert code == 1, errors
    assert "Traceback" not in errors
    return next(line for line in errors.splitlines() if not re.match(r"\[\d+@", line))


@pytest.mark.parametrize(
    ("launcher", "rank", "mode"), in_turns(["local", "mpirun"], [0, 1], ["busy", "later"])
)
def test_killed_rank(run_copied: Runner, two_slices: Path, launcher: str, rank: int, mode: str) -> None:
    """Any two of these meet."""
    script = run_copied(SERVE, str(two_slices), launcher, mode)
    os.kill(script.message()["pids"][rank], signal.SIGKILL)
    found = first_cause(script)
    ended = f"error: RankFailedError: rank {rank} on host {HOST} was killed by SIGKILL."
    assert found.startswith(ended), found


def test_killed_rank_under_a_busy_mpirun(run_copied: Runner, two_slices: Path) -> None:
    """mpirun comes to its ranks late, when the other one has noticed the end of the killed one."""
    script = run_copied(SERVE, str(two_slices), "mpirun", "busy")
    message = script.message()
    os.kill(message["mpirun"], signal.SIGSTOP)
    os.kill(message["pids"][0], signal.SIGKILL)
    time.sleep(0.3)
    os.kill(message["mpirun"], signal.SIGCONT)
    found = first_cause(script)
    assert found.startswith(f"error: RankFailedError: rank 0 on host {HOST} was killed by SIGKILL."), found


def test_stopped_rank(run_copied: Runner, two_slices: Path, launcher: str) -> None:
    """A rank that neither works nor dies: the other waits for it as long as it may, and everything ends."""
    script = run_copied(SERVE, str(two_slices), launcher, "busy", TEST_TIMEOUT="10")
    stopped = script.message()["pids"][1]
    os.kill(stopped, signal.SIGSTOP)
    code, _, errors = script.end(within=10 + LIMIT)
    assert code == 1
    assert f"Rank 1 is process {stopped} (" in errors
    assert f"which is stopped by a signal such as SIGSTOP (`kill -CONT {stopped}` lets it go on)." in errors
    said, *rest = errors.splitlines()
    assert said.startswith(f"waiting for rank 1 on host {HOST}, at most 10 s: it is process {stopped} ("), (
        errors
    )
    assert rest[0].startswith(f"error: RankFailedError: rank 0 on host {HOST}: "), errors
    assert "Rank 1 did not come" in errors


@pytest.mark.parametrize("mode", ["busy", pytest.param("idle", marks=pytest.mark.new_ranks)])
def test_ctrl_c(run_copied: Runner, two_slices: Path, launcher: str, mode: str) -> None:
    script = run_copied(SERVE, str(two_slices), launcher, mode)
    script.message()
    script.signal_group(signal.SIGINT)
    code, _, errors = script.end()
    assert code == -signal.SIGINT  # Python ends itself by the signal: 130 in a shell
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert not any(re.match(r"\[\d+@", line) for line in errors.splitlines())


@pytest.mark.parametrize(
    ("launcher", "mode", "number"),
    in_turns(["local", "mpirun"], ["busy", "idle"], [signal.SIGTERM, signal.SIGKILL]),
)
def test_killed_launcher(
    run_copied: Runner, two_slices: Path, launcher: str, mode: str, number: signal.Signals
) -> None:
    """Any two of these meet."""
    script = run_copied(SERVE, str(two_slices), launcher, mode)
    script.message()
    script.process.send_signal(number)
    assert script.end()[0] == -number


@pytest.mark.parametrize("mode", ["busy", "later"])
def test_killed_mpirun(run_copied: Runner, two_slices: Path, mode: str) -> None:
    script = run_copied(SERVE, str(two_slices), "mpirun", mode)
    os.kill(script.message()["mpirun"], signal.SIGKILL)
    found = first_cause(script)
    assert found == "error: RankFailedError: mpirun was killed by SIGKILL while the ranks were running."


def test_terminated_mpirun(run_copied: Runner, two_slices: Path) -> None:
    script = run_copied(SERVE, str(two_slices), "mpirun", "later")
    os.kill(script.message()["mpirun"], signal.SIGTERM)
    found = first_cause(script)
    # MPICH and Intel MPI pass the signal on, so that it may be a rank's end that is seen first.
    assert "mpirun ended with exit code" in found or "was killed by SIGTERM" in found


@pytest.mark.new_ranks
def test_interpreter_exit_without_close(run_copied: Runner, two_slices: Path, launcher: str) -> None:
    script = run_copied(
        """
        import sys
        from launcher import start
        group = start(sys.argv[1], launcher=sys.argv[2])
        print([s.pid for s in group.stats], flush=True)
        """,
        str(two_slices),
        launcher,
    )
    script.message()
    assert script.end()[0] == 0


@pytest.mark.new_ranks
def test_exception_in_the_with(run_copied: Runner, two_slices: Path, launcher: str) -> None:
    script = run_copied(
        """
        import sys
        from launcher import start
        with start(sys.argv[1], launcher=sys.argv[2]) as group:
            print([s.pid for s in group.stats], flush=True)
            raise KeyError("mine")
        """,
        str(two_slices),
        launcher,
    )
    script.message()
    code, _, errors = script.end()
    assert code == 1
    assert errors.splitlines()[-1] == "KeyError: 'mine'"


EXEC = """
    import os, sys
    from launcher.group.starting import run_program
    from launcher.errors import ShardrunError
    try:
        print("[]", flush=True)
        how = {"collectives": os.environ.get("TEST_COLLECTIVES", "auto"), "timeout": 120}
        run_program(["exec", *sys.argv[2:]], ranks=2, launcher=sys.argv[1], **how)
    except ShardrunError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
"""

# Rank 1 does something; rank 0 waits for it in a collective, so that it can only end by being told.
PROGRAM = """
import os, signal, sys, time
from ranks.run import group
communicator = group.join()
communicator.barrier()
if communicator.rank == 1:
    {deed}
communicator.barrier()
"""


DEEDS = [
    (
        "raise ValueError('no such weight')",
        "rank 1 on host {host}: ValueError: no such weight\nTraceback (most recent call last):\n  File ",
    ),
    ("os._exit(3)", "rank 1 on host {host} ended with exit code 3."),
    ("sys.exit(4)", "rank 1 on host {host} ended with exit code 4."),
    ("os.kill(os.getpid(), signal.SIGSEGV)", "rank 1 on host {host} was killed by SIGSEGV."),
    (
        "os.kill(os.getpid(), signal.SIGXCPU)",
        "rank 1 on host {host} was killed by SIGXCPU. It used the processor time that `ulimit -t`",
    ),
    (
        "os._exit(137)",
        "rank 1 on host {host} was killed by SIGKILL. Someone killed it, or the",
    ),
    ("bytearray(1 << 62)", "rank 1 on host {host}: MemoryError: memory is short ("),
    (
        "sys.exit(0)",
        "rank 0 on host {host}: Rank 1 left the group while rank 0 waited for it in",
    ),
    ("os.abort()", "rank 1 on host {host} was killed by SIGABRT."),
    (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); raise OSError(28, 'No space left')",
        "rank 1 on host {host}: OSError: [Errno 28] No space left",
    ),
]
ALIKE = ("os.kill(os.getpid(), signal.SIGSEGV)", "bytearray(1 << 62)")
"""With mpirun each is told as another one is: a signal's number, and an error that the rank tells itself."""


@pytest.mark.parametrize(
    ("launcher", "deed", "expected"),
    [
        (launcher, *deed)
        for launcher in ("local", "mpirun")
        for deed in DEEDS
        if launcher == "local" or deed[0] not in ALIKE
    ],
)
def test_a_rank_fails(run_copied: Runner, launcher: str, tmp_path: Path, deed: str, expected: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(deed=deed))
    script = run_copied(EXEC, launcher, str(program))
    script.message()
    # Starting is not part of the 5 s, and cannot be told apart here.
    code, _, errors = script.end(within=30)
    assert code == 1
    own = "\n".join(line for line in errors.splitlines() if not re.match(r"\[\d+@", line))
    assert own.startswith("error: RankFailedError: " + expected.format(host=HOST))
    assert "launcher/" not in own and "ranks/" not in own


def test_a_rank_that_ends_with_success_before_it_is_done(
    run_copied: Runner, launcher: str, tmp_path: Path
) -> None:
    """``os._exit(0)``: mpirun takes it for a good end, and only the other ranks' errors are left to see."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(deed="os._exit(0)"))
    script = run_copied(EXEC, launcher, str(program))
    script.message()
    code, _, errors = script.end(within=30)
    assert code == 1
    found = next(line for line in errors.splitlines() if line.startswith("error: RankFailedError: "))
    assert "ank 1 on host" in found and "before it was done, as os._exit(0) would" in found


def test_a_rank_becomes_another_program(run_copied: Runner, launcher: str, tmp_path: Path) -> None:
    """It is gone, and its process is there."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(deed="os.execvp('sleep', ['sleep', '100'])"))
    script = run_copied(EXEC, launcher, str(program))
    script.message()
    code, _, errors = script.end(within=30)
    assert code == 1
    found = next(line for line in errors.splitlines() if line.startswith("error: RankFailedError: "))
    expected = (
        rf"error: RankFailedError: rank 1 on host {HOST} is gone: its process \d+ runs on, as \S*sleep\."
    )
    assert re.fullmatch(expected, found), found


@pytest.mark.parametrize("starter", ["local", "ssh"])
def test_news_of_an_end_that_overtake_a_rank_s_own_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, starter: str
) -> None:
    """They come another way; the rank's word that it is done may be on its way for long."""
    message = Job._message

    def late(job: Job, peer: Peer, came: wire.Message) -> None:
        if came.kind is wire.Kind.BYE:
            time.sleep(0.5)
        message(job, peer, came)

    monkeypatch.setattr(Job, "_message", late)
    program = tmp_path / "program.py"
    program.write_text("")
    run_program(["exec", str(program)], ranks=2, launcher=starter, timeout=LIMIT)


@pytest.mark.parametrize(
    ("deed", "expected"),
    [
        (
            "sys.exit(0)",
            "rank 0 on host {host}: Rank 1 left the group while rank 0 waited for it in barrier.",
        ),
        (
            "os._exit(0)",
            "rank 1 on host {host} ended with exit code 0 before it was done, as os._exit(0) would.",
        ),
    ],
)
def test_a_rank_that_leaves_under_mpi(
    run_copied: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, expected: str
) -> None:
    """MPI's shutdown waits for the others, so there is no sign that a rank has left but its own word."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(deed=deed))
    monkeypatch.setenv("TEST_COLLECTIVES", "mpi")
    script = run_copied(EXEC, "mpirun", str(program))
    script.message()
    code, _, errors = script.end(within=40)
    assert code == 1
    found = next(line for line in errors.splitlines() if line.startswith("error: RankFailedError: "))
    assert found == "error: RankFailedError: " + expected.format(host=HOST)
    assert "PRTE" not in errors and "MPI_Abort" not in errors


@pytest.mark.new_ranks
def test_ranks_that_succeed(run_copied: Runner, launcher: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nprint('out', sys.argv[1:])\nprint('err', file=sys.stderr)\nsys.exit(0)\n"
    )
    code, output, errors = run_copied(EXEC, launcher, str(program), "--flag", "a b").end(within=30)
    assert code == 0, errors
    assert sorted(output.splitlines()) == [
        f"[0@{HOST}] out ['--flag', 'a b']",
        f"[1@{HOST}] out ['--flag', 'a b']",
        "[]",
    ]
    assert sorted(errors.splitlines()) == [f"[0@{HOST}] err", f"[1@{HOST}] err"]


def break_missing(folder: Path) -> None:
    (folder / "rank_1.onnx").unlink()


def break_truncated(folder: Path) -> None:
    path = folder / "rank_1.onnx"
    path.write_bytes(path.read_bytes()[:-7])


def break_flipped(folder: Path) -> None:
    path = folder / "rank_1.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("breakage", "launcher"),
    in_turns([break_missing, break_truncated, break_flipped], ["local", "mpirun"]),
)
def test_damaged_shard(run_copied: Runner, two_slices: Path, launcher: str, tmp_path: Path, breakage) -> None:
    folder = tmp_path / "slices"
    shutil.copytree(two_slices, folder)
    breakage(folder)
    script = run_copied(SERVE, str(folder), launcher, "later")
    code, _, errors = script.end(within=30)
    assert code == 1
    first = errors.splitlines()[0]
    assert first.startswith(f"error: RankFailedError: rank 1 on host {HOST}: "), errors
    assert "rank_1.onnx" in first


def test_sliced_for_another_world(run_copied: Runner, tmp_path: Path, launcher: str) -> None:
    folder = slices.make_slices(tmp_path / "three", ranks=3)
    code, _, errors = run_copied(SERVE, str(folder), launcher, "later").end(within=30)
    assert code == 1
    assert errors.startswith("error: ConfigError: ")
    assert f"ranks=2 contradicts the slice folder {folder} (3 ranks)" in errors


def test_port_taken(run_copied: Runner, two_slices: Path, launcher: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        script = run_copied(SERVE, str(two_slices), launcher, "later", MASTER_PORT=port)
        code, _, errors = script.end(within=30)
    assert code == 1
    assert errors.startswith(f"error: LaunchError: Port {port} of 127.0.0.1 (MASTER_PORT) is taken")
