"""Hosts that do not answer: mpirun's ssh gives up, and what it says is understood."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.starters import cause, marks, program
from launcher.starters.mpi.handle import MpirunHandle
from launcher.starters.noise import Noise
from launcher.starters.reach import patience, words
from launcher.starters.reach.ways import Ways
from tests.growth import as_lines_do
from tests.launcher.processes import wait_until

OURS = " ".join(patience.OPTIONS)
NOWHERE = Path("/nonexistent/bin/mpirun")
PRTE, ORTE = "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"
FLAT = "PRTE_MCA_plm_ssh_no_tree_spawn"
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
        ("mpich", {"SLURM_CONF": "/etc/slurm/slurm.conf", "PBS_SERVER": "h"}, MPICH, OURS),  # no job yet
        ("intel", {"LSB_JOBID": "7"}, INTEL, None),
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
    for name in ("orte_rsh_agent", "pls_rsh_agent", "plm_rsh_agent", "plm_ssh_agent"):
        found, arguments = patience.limited("openmpi4", NOWHERE, {}, ["--mca", name, "ssh -F mine", "-v"])
        assert ORTE not in found and arguments == ["--mca", name, f"ssh -F mine {OURS}", "-v"]
    file = tmp_path / ".prte" / "mca-params.conf"
    file.parent.mkdir()
    file.write_text("# of all jobs\nplm_ssh_agent = ssh -F all # keys\noob_tcp_keepalive_time = 77\n")
    found, _ = patience.limited("openmpi", NOWHERE, {"HOME": str(tmp_path)}, [])
    assert found == {PRTE: f"ssh -F all {OURS}", FLAT: "1"}
    found, _ = patience.limited("openmpi", NOWHERE, {"HOME": str(tmp_path), PRTE: "ssh"}, [])
    assert found == {PRTE: f"ssh {OURS}", FLAT: "1"}
    rsh = ["-launcher=rsh"], ["--bootstrap=rsh"], ["-launcher-exec=/opt/reach"]
    for other in (["-launcher", "rsh"], *rsh):
        assert patience.limited("mpich", NOWHERE, {}, other) == ({}, other)
    assert patience.limited("mpich", NOWHERE, {}, ["-launcher=ssh"])[0] == {MPICH: OURS}


def test_open_mpis_daemons_reach_no_hosts_by_half_an_ssh() -> None:
    """They would be told what their ssh is up to the first "=". What is said of it otherwise counts."""
    for given in ([], ["--prtemca", "plm_ssh_agent", "ssh"], ["--prtemca", "plm_ssh_args", "-q"]):
        assert patience.limited("openmpi", NOWHERE, {}, given)[0][FLAT] == "1"
    assert patience.limited("openmpi4", NOWHERE, {}, [])[0]["OMPI_MCA_plm_rsh_no_tree_spawn"] == "1"
    for own in ({FLAT: "0"}, {PRTE: "/opt/reach"}):
        assert FLAT not in patience.limited("openmpi", NOWHERE, own, [])[0]


ARGUMENTS = "PRTE_MCA_plm_ssh_args"


def test_arguments_of_open_mpis_ssh_come_first(tmp_path: Path) -> None:
    """They come after what stands beside its name."""
    told = "-o ConnectTimeout=9"
    found, _ = patience.limited("openmpi", NOWHERE, {ARGUMENTS: told}, [])
    assert found[ARGUMENTS] == f"{told} {OURS}" and PRTE not in found
    words = ["--prtemca", "plm_ssh_args", told, "-v"]
    found, arguments = patience.limited("openmpi", NOWHERE, {ARGUMENTS: "-q"}, words)
    assert not {ARGUMENTS, PRTE} & found.keys()
    assert arguments == [*words[:2], f"{told} {OURS}", "-v"]
    file = tmp_path / ".openmpi" / "mca-params.conf"
    file.parent.mkdir()
    file.write_text(f"plm_rsh_args = {told}\n")
    found, _ = patience.limited("openmpi4", NOWHERE, {"HOME": str(tmp_path)}, [])
    assert found["OMPI_MCA_plm_rsh_args"] == f"{told} {OURS}" and ORTE not in found
    found, _ = patience.limited("openmpi", NOWHERE, {ARGUMENTS: told, PRTE: "/opt/reach"}, [])
    assert not {ARGUMENTS, PRTE} & found.keys()


CONNECTING, LIVING = "-o ConnectTimeout=7", "-o ServerAliveInterval=2 -o ServerAliveCountMax=2"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
def test_what_sshs_files_say_is_kept(tmp_path: Path) -> None:
    """Options on its command line would win. What is said of how a silent host is noticed is one thing."""
    more, file = tmp_path / "more", tmp_path / "config"
    more.write_text("Host slow\n  ServerAliveInterval 30\n")
    file.write_text(f"Include {more}\nHost far\n  ConnectTimeout 60\n")
    ssh = ["ssh", "-F", str(file)]
    found = patience.options(["near", "far", "slow"], ssh)
    assert {host: " ".join(words) for host, words in found.items()} == {
        "near": OURS, "far": LIVING, "slow": CONNECTING,
    }  # fmt: skip
    batch = patience.options(["near", "far", "slow"], [*ssh, "-o", "BatchMode=yes"])
    assert batch == found  # though Debian's ssh has another default with it
    quiet = tmp_path / "quiet"
    quiet.write_text(f"{file.read_text()}Host near slow\n  BatchMode yes\n")
    assert patience.options(["near", "far", "slow"], ["ssh", "-F", str(quiet)]) == found
    assert patience.options(["near"], ["/nonexistent/ssh"]) == {"near": patience.OPTIONS}
    agent, path = " ".join(ssh), {"PATH": os.environ["PATH"]}
    for hosts, ours in ((["near"], OURS), (["near", "far"], LIVING), (["far", "slow"], "")):
        told, _ = patience.limited("openmpi", NOWHERE, {PRTE: agent, **path}, [], hosts)
        assert told[PRTE] == f"{agent} {ours}".rstrip()
        told, _ = patience.limited("mpich", NOWHERE, {MPICH: f"-F {file}", **path}, [], hosts)
        assert told[MPICH] == f"-F {file} {ours}".rstrip()


def test_what_ssh_would_read_is_asked_for_twice(tmp_path: Path) -> None:
    """With its files and without, of many hosts too, where no file speaks of it. With BatchMode Debian's ssh
    has defaults of its own."""
    calls, file = tmp_path / "calls", tmp_path / "config"
    file.write_text("Host *\n  Compression yes\n")
    ssh = tmp_path / "ssh"
    said = "connecttimeout none\nserveraliveinterval 300\nserveralivecountmax 3"
    read = f"debug1: Reading configuration data {file}"
    ssh.write_text(f"#!/bin/sh\necho >>{calls}\necho '{read}' >&2\necho '{said}'\n")
    ssh.chmod(0o755)
    hosts = [f"h{number}" for number in range(9)]
    assert set(patience.options(hosts, [str(ssh)]).values()) == {patience.OPTIONS}
    assert calls.read_text() == "\n\n"


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
        (["Permission denied (publickey,keyboard-interactive)."], "",
         "Permission denied (publickey,keyboard-interactive)"),
        (["Unable to negotiate with b port 22: no matching host key type found. Their offer: ssh-dss"], "b",
         "Unable to negotiate with b port 22: no matching host key type found. Their offer: ssh-dss"),
        (["Received disconnect from b port 22:2: Too many authentication failures"], "b",
         "Received disconnect from b port 22:2: Too many authentication failures"),
        (["  Remote host:   c", "  Daemon exit status: 255"], "c", ""),
        (["Error: Unable to run bstrap_proxy on b (pid 671, exit code 65280)"], "b", ""),
        (["ui_cmd_cb (pmiserv_pmci.c:51): Launch proxy failed."], "", ""),
        (["[a:00178] UNSUPPORTED DAEMON ERROR STATE: NO PATH TO TARGET"], "", ""),
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
        ["open: Permission denied (os error 13)"],
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
    # As OpenSSH calls one that it has left to the connections that others make by now.
    left = "import sys, pathlib; pathlib.Path('/proc/self/comm').write_text('ssh'); input()"
    words = [sys.executable, "-c", left, "ssh: /run/b [mux]"]
    started.append(subprocess.Popen(words, env={"JOB": "mine"}, stdin=subprocess.PIPE))
    assert wait_until(lambda: Path(f"/proc/{started[2].pid}/comm").read_text() == "ssh\n", 20)
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
        assert started[3].wait(20) == -signal.SIGKILL
        program.end_left(-1, "JOB=mine")
        assert started[1].poll() is None and started[2].poll() is None
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
    found = str(cause.launcher_error(cause.Launched("mpirun", code, ended_with(code), False, ["b"])))
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


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("sh: 1: /x: not found", "/x: not found"),
        ("sh: 1: exec: /x: Permission denied", "/x: Permission denied"),
        ("bash: line 1: /x: Permission denied", "/x: Permission denied"),
        ("bash: line 1: /x: cannot execute: required file not found",
         "/x: cannot execute: required file not found"),
        ("bash: /x: /p: bad interpreter: No such file or directory",
         "/x: /p: bad interpreter: No such file or directory"),
        ("zsh:1: command not found: x", "command not found: x"),
        ("zsh:1: no such file or directory: /x", "no such file or directory: /x"),
        ("x: Command not found.", "x: Command not found"),
        ("env: /x: No such file or directory", "/x: No such file or directory"),
        ("tool: /x: Permission denied", ""),  # of a file that it reads
    ],
)  # fmt: skip
def test_what_a_shell_does_not_find(line: str, what: str) -> None:
    assert words.lacking(["something", line]) == what


LONG = {
    "letters": "a", "digits": "1", "names": "a.b-", "paths": "/a", "words": "a ", "brackets": "[a,1]",
    "users": "a@", "hosts": "Remote host: b", "proxies": "[1] [proxy: execvp error on file (",
    "calls": " (a", "exits": "EXIT STRING: (signal ", "tasks": "srun: error: ", "spaces": " ",
}  # fmt: skip


@pytest.mark.parametrize("begin", ["", "[0] [proxy:", "ssh: connect to host ", "bash: "])
@pytest.mark.parametrize("kind", LONG)
def test_a_long_line_takes_no_more_than_its_length(kind: str, begin: str) -> None:
    """Whatever is in it: a program may write a megabyte without a line's end."""
    handle = MpirunHandle(["true"], dict(os.environ), "mpich", None)
    while handle.wait() is not None:
        pass
    for pipe in handle.pipes:
        os.close(pipe.descriptor)

    def read(line: str) -> None:
        words.not_begun("mpirun", [line] * 20, ["b", "c"])
        handle.attribute(line)
        handle.heard(line)
        list(marks.OPEN_MPI_4.finditer(line))
        Noise().sift(line)

    assert as_lines_do(read, LONG[kind], begin)


def test_an_ssh_that_ends_without_a_word() -> None:
    """As one does whose connection gets silent; what another program means by that code nobody knows."""
    told = str(cause.launcher_error(cause.Launched("ssh", 255, [], False, ["b"])))
    assert told.startswith("host b cannot be reached over ssh, or the connection to it was lost,")
    told = str(cause.launcher_error(cause.Launched("agent", 255, [], False, ["b"])))
    assert told.startswith("agent ended with exit code 255 before the ranks had started")


@pytest.mark.parametrize(
    ("hosts", "said", "told"),
    [
        (["b"], "No route", "host b cannot be reached over ssh (No route), so mpirun starts no ranks there"),
        (["b"], "", "host b cannot be reached over ssh, or the connection to it was lost, so mpirun starts"),
        (["b", "c"], "", "one of the hosts b, c cannot be reached over ssh, or the connection"),
        ([f"h{number}" for number in range(9)], "", "one of the hosts h0, h1, h2, h3, h4, h5, h6, h7 cannot"),
    ],
)
def test_hosts_that_are_not_reached(hosts: list[str], said: str, told: str) -> None:
    text = words.sentence("mpirun", hosts, said)
    assert text.startswith(told) and f"that `ssh {hosts[0]}` connects without a question" in text


@pytest.mark.parametrize(
    ("name", "tail", "code", "told"),
    [
        ("ssh", [], 255, "cannot be reached over ssh"),
        ("ssh", [], 1, ""),
        ("mpirun", [], 255, ""),
        ("ssh", ["something else"], 255, ""),
        (
            "mpirun",
            ["bash: line 1: python3: command not found"],
            1,
            "what it needs there (python3: command not",
        ),
    ],
)
def test_when_nothing_has_begun(name: str, tail: list[str], code: int, told: str) -> None:
    found = words.not_begun(name, tail, ["b"], code)
    assert told in found and bool(found) is bool(told)
