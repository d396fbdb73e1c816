"""Forked children: those of a rank hide nothing of it and end with it; one of the launching program has no
ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launcher import cli_tools
from tests.launcher.processes import Runner
from tests.turns import in_turns

# The child keeps open whatever its parent had open: the control socket, the pipes for output.
WITH_A_CHILD = """
import os, sys, time
from ranks.identity.identity import identify

if identify().rank == 1:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "left":
        os._exit(3)
    if sys.argv[1] == "raised":
        raise ValueError("on purpose")
    sys.exit(0)
if sys.argv[1] != "done":
    time.sleep(60)
"""


@pytest.mark.parametrize(("how", "code"), [("killed", 1), ("left", 3), ("raised", 1), ("done", 0)], ids=str)
def test_the_end_of_a_rank_with_a_child(tmp_path: Path, launcher: str, how: str, code: int) -> None:
    (tmp_path / "script.py").write_text(WITH_A_CHILD)
    command = ("exec", "--ranks", 2, "--launcher", launcher, "script.py", how)
    done = cli_tools.shardrun(*command, cwd=tmp_path, seconds=30)  # it also fails if a process is left
    assert done.returncode == code, done.stderr
    if code:
        assert "rank 1 on host" in done.stderr.splitlines()[0]


WITH_STUBBORN_CHILDREN = """
import os, subprocess, time
from ranks.identity.identity import identify

if identify().rank == 1:
    for what in ("sleep 0.1; echo saved >kept; exit", ""):
        words = f"trap '{what}' TERM; echo; while :; do sleep 0.05; done"
        subprocess.Popen(["sh", "-c", words], stdout=subprocess.PIPE).stdout.readline()
    os._exit(3)
time.sleep(60)
"""


def test_what_a_rank_leaves_is_asked_first(tmp_path: Path) -> None:
    """What keeps shared memory then removes it; who ignores it is killed. Open MPI's `mpirun` itself kills
    what its own host's ranks leave."""
    (tmp_path / "script.py").write_text(WITH_STUBBORN_CHILDREN)
    command = ("exec", "--ranks", 2, "--launcher", "local", "script.py")
    done = cli_tools.shardrun(*command, cwd=tmp_path, seconds=30)  # it also fails if a process is left
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "kept").read_text() == "saved\n"


CHILD_THAT_ENDS = """
import os, sys

pid = os.fork()
if pid == 0:
    if sys.argv[1] == "exit":
        sys.exit(5)
    if sys.argv[1] == "raise":
        raise ValueError("the child's own")
else:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    expected = {"exit": 5, "raise": 1, "return": 0}[sys.argv[1]]
    sys.exit(0 if status == expected else f"{status} instead of {expected}")
"""


@pytest.mark.parametrize(("how", "launcher"), in_turns(["exit", "raise", "return"], ["local", "mpirun"]))
def test_the_end_of_a_child_is_not_the_ranks(tmp_path: Path, launcher: str, how: str) -> None:
    (tmp_path / "script.py").write_text(CHILD_THAT_ENDS)
    done = cli_tools.shardrun("exec", "--ranks", 2, "--launcher", launcher, "script.py", how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


IN_THE_CHILD = """
    import os, sys
    from launcher import start
    from tests.launcher import slices

    with start(sys.argv[1], launcher=sys.argv[2]) as group:
        for how in ("exit", "close", "predict", "leave"):
            pid = os.fork()
            if pid == 0 and how == "exit":
                sys.exit(0)  # the exit handlers of Python and of multiprocessing run
            if pid == 0 and how == "close":
                group.close()
                os._exit(0)
            if pid == 0 and how == "predict":
                try:
                    group.predict(slices.feeds())
                except Exception as error:
                    print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(0)
            if pid == 0:
                break
            os.waitpid(pid, 0)
            group.predict(slices.feeds())
    if pid:
        print("the parent's ranks were good to the end")
"""


def test_a_child_of_the_launching_program(run_script: Runner, two_slices: Path, launcher: str) -> None:
    script = run_script(IN_THE_CHILD, str(two_slices), launcher)
    code, output, errors = script.end(60)
    assert (code, errors) == (0, "")
    refused, good = output.splitlines()
    assert refused.startswith("LaunchError: These ranks were started by process ")
    assert good == "the parent's ranks were good to the end"
