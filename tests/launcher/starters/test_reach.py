"""Hosts that do not answer: mpirun's ssh gives up, and what it says is understood."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from launcher.starters import cause
from launcher.starters.reach import patience, words
from launcher.starters.reach.ways import Ways
from tests.launcher.processes import wait_until

OURS = " ".join(patience.OPTIONS)
NOWHERE = Path("/nonexistent/bin/mpirun")
PRTE, ORTE = "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"
MPICH, INTEL = "HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"


@pytest.mark.parametrize(
    ("flavour", "environ", "name", "value"),
    [
        ("openmpi", {}, PRTE, f"ssh {OURS} : rsh"),
        ("openmpi4", {}, ORTE, f"ssh {OURS} : rsh"),
        # Of two values of one option ssh takes the first: the user's.
        ("openmpi", {PRTE: "ssh -o ConnectTimeout=2"}, PRTE, f"ssh -o ConnectTimeout=2 {OURS}"),
        ("openmpi", {PRTE: "/opt/bin/ssh -q : rsh"}, PRTE, f"/opt/bin/ssh -q {OURS} : rsh"),
        ("openmpi", {PRTE: "/opt/reach"}, PRTE, "/opt/reach"),
        ("mpich", {}, MPICH, OURS),
        ("mpich", {MPICH: "-v"}, MPICH, f"-v {OURS}"),
        ("mpich", {"HYDRA_LAUNCHER": "rsh"}, MPICH, None),
        ("mpich", {"HYDRA_LAUNCHER_EXEC": "/opt/reach"}, MPICH, None),
        ("mpich", {"HYDRA_LAUNCHER_EXEC": "/opt/ssh"}, MPICH, OURS),
        ("mpich", {"SLURM_JOB_ID": "7"}, MPICH, None),  # srun would get them
        ("mpich", {"SLURM_JOB_ID": "7", "HYDRA_LAUNCHER": "ssh"}, MPICH, OURS),
        ("intel", {}, INTEL, OURS),
        ("intel", {"I_MPI_HYDRA_BOOTSTRAP": "slurm"}, INTEL, None),
    ],
)
def test_ssh_gives_up(flavour: str, environ: dict[str, str], name: str, value: str | None) -> None:
    found, arguments = patience.limited(flavour, NOWHERE, {"HOME": "/nonexistent", **environ}, ["-v"])
    assert found.get(name) == value and arguments == ["-v"]


def test_what_arguments_and_files_say_is_kept(tmp_path: Path) -> None:
    """Of Open MPI arguments win over variables, and variables over files."""
    said = ["--prtemca", "plm_ssh_agent", "ssh -F mine", "--mca", "plm_rsh_agent", "reach", "-v"]
    found, arguments = patience.limited("openmpi", NOWHERE, {}, said)
    assert PRTE not in found
    assert arguments == [*said[:2], f"ssh -F mine {OURS}", *said[3:]]
    file = tmp_path / ".prte" / "mca-params.conf"
    file.parent.mkdir()
    file.write_text("# of all jobs\nplm_ssh_agent = ssh -F all # keys\noob_tcp_keepalive_time = 77\n")
    found, _ = patience.limited("openmpi", NOWHERE, {"HOME": str(tmp_path)}, [])
    assert found == {PRTE: f"ssh -F all {OURS}"}
    found, _ = patience.limited("openmpi", NOWHERE, {"HOME": str(tmp_path), PRTE: "ssh"}, [])
    assert found == {PRTE: f"ssh {OURS}"}
    assert patience.limited("mpich", NOWHERE, {}, ["-launcher", "rsh"]) == ({}, ["-launcher", "rsh"])


@pytest.mark.parametrize(
    ("lines", "host", "said"),
    [
        (["ssh: connect to host b port 22: Connection timed out\r"], "b",
         "connect to host b port 22: Connection timed out"),
        (["ssh: Could not resolve hostname c: Name or service not known"], "c",
         "Could not resolve hostname c: Name or service not known"),
        (["Connection timed out during banner exchange", "  Remote host:   b"], "b",
         "Connection timed out during banner exchange"),
        (["root@c: Permission denied (publickey)."], "c", "root@c: Permission denied (publickey)"),
        (["  Remote host:   c", "  Daemon exit status: 255"], "c", ""),
        (["Error: Unable to run bstrap_proxy on b (pid 671, exit code 65280)"], "b", ""),
        (["ui_cmd_cb (pmiserv_pmci.c:51): Launch proxy failed."], "", ""),
    ],
)  # fmt: skip
def test_what_ssh_says(lines: list[str], host: str, said: str) -> None:
    assert words.unreached(["something", *lines], ["b", "c"]) == (host, said)
    assert words.unreached(lines, ["b"]) == ("b", said) or host == "c"


@pytest.mark.parametrize(
    "lines",
    [
        ["bash: line 1: hydra_pmi_proxy: command not found", "Launch proxy failed."],
        ["  Remote host:   b", "  Daemon exit status: 127"],
        ["a mistake"],
    ],
)
def test_a_program_that_is_missing_there_is_no_such_thing(lines: list[str]) -> None:
    assert words.unreached(lines, ["b"]) is None
    missing = "hydra_pmi_proxy: command not found" if "Launch proxy failed." in lines else ""
    assert words.lacking(lines) == missing


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
def test_the_way_to_a_host() -> None:
    """By what an ssh is told to do there, another host's name may stand in its words. One that has no mark is
    somebody else's."""
    waiting = ("-o", "ProxyCommand=sleep 100", "-F/dev/null", "-oBatchMode=yes", "-x")

    def start(mark: str, *target: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["ssh", *waiting, *target], env={"JOB": mark, "PATH": os.environ["PATH"]})

    started = [start("mine", "root@b", "daemon", "c"), start("another", "c", "true")]
    ways = Ways("JOB=mine")
    try:
        assert wait_until(lambda: not ways.lost(["b", "c"]) and ways._seen == {"b"}, 20)
        started[0].kill()
        started[0].wait()
        assert ways.lost(["b", "c"]) == ""  # mpirun may say why
        assert wait_until(lambda: ways.lost(["b", "c"]) == "b", 20) and ways.lost(["c"]) == ""
        started.append(start("mine", "--", "b"))
        assert wait_until(lambda: not ways.lost(["b", "c"]), 20)
        ways.end()
        assert started[2].wait(20) == -signal.SIGKILL and started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()


def ended_with(code: int) -> list[str]:
    """What Open MPI says of a daemon."""
    text = f"back to prterun:\n  Local host:    a\n  Remote host:   b\n  Daemon exit status: {code}\n"
    return ["A daemon failed to report back after being spawned.", *text.splitlines()]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            213,
            r"ended with exit code 213, as where its folder for temporary files .* is full .*tmpdir_base FO",
        ),
        (1, r"ended with exit code 1: see that its MPI works there, and install the same"),
    ],
)
def test_a_daemon_that_ends_where_ssh_has_connected(code: int, says: str) -> None:
    found = str(cause.launcher_error("mpirun", code, ended_with(code), False, far=["b"]))
    assert re.match(rf"mpirun starts no ranks on host b: its daemon there {says}", found)
    assert "that ssh is installed" not in found and "ssh b" not in found


@pytest.mark.parametrize("code", [127, 255, 0])
def test_other_ends_of_a_daemon(code: int) -> None:
    """Those of a shell that finds no program, of ssh itself, and one that nothing is wrong with."""
    assert words.daemon_ended(ended_with(code), ["b"]) is None


def test_what_slurm_does_not_find() -> None:
    lines = ["srun: error: n2: task 0: Exited with exit code 2"]
    lines.append("slurmstepd-n2: error: execve(): /opt/python: No such file or directory")
    assert words.lacking(lines) == "/opt/python: No such file or directory"
