"""The checks of ``shardrun doctor``, with programs that say what those of other machines would."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from launcher.checkup import base, far
from launcher.checkup.base import CHECKS, REGISTRY, Asked, Check, Finding
from launcher.checkup.checks import cache, cores, gpus, hosts, limits, memory, mpi, network, python
from launcher.common import programs as asking
from launcher.job.rank_table import make_rank_table
from tests.launcher import processes
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import path_with_quick_torch
from tests.launcher.submission import real_slurm

Programs = Callable[..., None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Programs on a PATH without any others but two."""
    for name in ("sleep", "date"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(**texts: str) -> None:
        for name, text in texts.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)

    return write


def found(name: str, asked: Asked | None = None) -> list[Finding]:
    return list(REGISTRY[name].run(asked or Asked()))


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_every_check_says_something_here_and_what_to_do() -> None:
    seen = base.examine(Asked())
    assert {title for title, _ in seen} == {check.title for check in REGISTRY.own().values()} - {"hosts"}
    for title, finding in seen:
        assert finding.what and (finding.level == "ok" or finding.advice), title
    assert len({check.order for check in REGISTRY.own().values()}) == len(CHECKS.own)
    assert ("Python", "ok") in [(title, finding.level) for title, finding in seen]


def test_a_real_group_is_tried(tmp_path: Path) -> None:
    done = shardrun("doctor", "--ranks", 2, "--json", cwd=tmp_path)
    items = json.loads(done.stdout)
    tried = [item for item in items if item["check"] == "ranks"]
    assert [item["level"] for item in tried] == ["ok", "ok"], tried
    assert "2 on " in tried[0]["found"] and "met by shm" in tried[0]["found"]
    assert "a sum of 4 B takes" in tried[1]["found"] and "/s each way" in tried[1]["found"]
    assert done.returncode == int(any(item["level"] == "fail" for item in items))


def test_ranks_that_cannot_meet_fail(tmp_path: Path) -> None:
    table = make_rank_table([("127.0.0.1", 1), ("host.invalid", 1)])
    (tmp_path / "t.json").write_text(table.to_json())
    path = path_with_quick_torch(tmp_path)
    done = shardrun("doctor", "--rank-table", "t.json", "--launcher", "local", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("fail  hosts         host.invalid") for line in lines)
    assert any(line.startswith("fail  ranks         The local launcher starts") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--launcher", "external"], "doctor starts its ranks itself"),
        (["--rank-table", "none.json"], "none.json: cannot read this rank table"),
        (["--ranks", "0"], "expected a whole number"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = shardrun("doctor", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_cards_and_their_links(programs: Programs) -> None:
    row = "NVIDIA H200, 143771, {}"
    topology = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{0}\t0-7\nGPU1\t{0}\t X \t0-7\nLegend:\n"
    text = '[ "$1" = topo ] && printf "{}" || printf "{}\\n{}\\n"'
    programs(nvidia_smi=text.format(topology.format("NV18"), row.format(4), row.format(90000)))
    cards, busy, links = found("gpus")
    assert cards == Finding("ok", "2 x NVIDIA H200 (143771 MiB)")
    assert busy.level == "warn" and busy.what == "in use: 1"
    assert links == Finding("ok", "links: NV18 (1)")
    programs(nvidia_smi=text.format(topology.format("SYS"), row.format(4), row.format(4)))
    assert levels(found("gpus")) == ["ok", "warn"]
    programs(nvidia_smi=text.format(topology.format("SYS"), row.format(1024), row.format(1025)))
    assert [finding.what for finding in found("gpus")][1:] == ["in use: 1", "links: SYS (1)"]
    programs(nvidia_smi="echo 'NVML: Driver/library version mismatch'; exit 18")
    (failed,) = found("gpus")
    assert failed.level == "fail" and "version mismatch" in failed.what


def test_npus(programs: Programs) -> None:
    programs(npu_smi="printf '\\tCard Count : 2\\n\\n\\tNPU ID : 0\\n\\tNPU ID : 1\\n'")
    assert found("gpus") == [Finding("ok", "2 Ascend NPUs")]
    programs(npu_smi="printf '\\tNPU ID : 0\\n'; echo 'dcmi is not there' >&2; exit 1")
    assert found("gpus") == [Finding("fail", "1 Ascend NPU", "npu-smi says: dcmi is not there")]
    chips = "printf 'NPU ID  Chip ID  Chip Logic ID  Chip Name\\n1 0 0 A\\n1 1 1 A\\n1 2 - Mcu\\n'"
    card = "printf 'Total Count : 1\\n\\nNPU ID : 1\\nChip Count : 2\\n'"
    programs(npu_smi=f'if [ "$2" = -m ]; then {chips}; else {card}; fi')
    assert found("gpus") == [Finding("ok", "2 Ascend NPUs")]
    programs(npu_smi="echo 'no card'")
    assert found("gpus") == [Finding("fail", "0 Ascend NPUs", "npu-smi says: no card")]


def test_no_card_at_all(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus.os.path, "exists", lambda path: False)
    assert found("gpus") == [Finding("ok", "none; ranks compute on the CPU")]
    monkeypatch.setattr(gpus.os.path, "exists", lambda path: path == "/dev/nvidiactl")
    assert [one.what for one in found("gpus")][:1] == ["a driver of NVIDIA's, but no nvidia-smi"]


def test_what_hangs_is_ended_with_all_that_it_started(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"doctor-{tmp_path.name}"
    monkeypatch.setenv(processes.MARK, mark)
    monkeypatch.setattr(asking, "PROGRAM_SECONDS", 0.5)
    programs(nvidia_smi="sleep 1000 & trap '' TERM; sleep 1000")
    (finding,) = found("gpus")
    assert finding.level == "fail" and "no answer within 0.5 s" in finding.what
    monkeypatch.delenv(processes.MARK)
    children = {pid: text for pid, text in processes.marked(mark).items() if "sleep" in text}
    assert processes.wait_until(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()], 5)


def test_a_check_that_hangs_or_fails_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CHECK_SECONDS", 0.5)

    def broken(asked: Asked) -> Iterator[Finding]:
        yield Finding("ok", "half")
        raise ValueError("odd\nmachine")

    def hanging(asked: Asked) -> Iterator[Finding]:
        time.sleep(5)
        yield Finding("ok", "late")

    def silent(asked: Asked) -> Iterator[Finding]:
        asking.ask(sys.executable, "-c", "import time; time.sleep(60)", seconds=0.1)
        yield Finding("ok", "never")

    checks = [
        Check("first", 1, hanging),
        Check("second", 2, broken),
        Check("third", 3, lambda asked: [Finding("ok", "x")]),
        Check("fourth", 4, silent),
    ]
    first, second, third, fourth = base.examine(Asked(), checks)
    assert first == ("first", Finding("fail", "no answer within 0 s", "see what this machine is busy with"))
    assert second == ("second", Finding("fail", "this check itself failed (ValueError: odd machine)"))
    assert third == ("third", Finding("ok", "x"))
    said = f"`{sys.executable}` gave no answer within 0.1 s"
    assert fourth == ("fourth", Finding("fail", said, "see what this machine is busy with"))


def ssh(programs: Programs, seconds: str, last: str) -> list[Finding]:
    programs(ssh=f"date -d '{seconds} seconds' +%s.%N; echo node7; {last}")
    return found("hosts", Asked(make_rank_table([("10.9.9.9", 1), ("10.9.9.8", 1)])))


def says(problems: Sequence[Sequence[str]] = (), **versions: str) -> str:
    """What a host's own look at itself prints."""
    told = {"versions": {**far.here()["versions"], **versions}, "problems": problems}
    return f"echo {shlex.quote(json.dumps(told))}"


def test_what_other_hosts_lack(programs: Programs) -> None:
    shown = [
        "10.9.9.9: other versions there: numpy 0.1 (here " + far.here()["versions"]["numpy"] + ")",
        "10.9.9.9: limits: open files 64",
        "10.9.9.9: memory: /dev/shm: 1 MB",
    ]
    problems = [
        ("limits", "warn", "open files 64", "`ulimit -n`"),
        ("memory", "fail", "/dev/shm: 1 MB", "more"),
    ]
    first, *rest = ssh(programs, "+0", says(problems, numpy="0.1"))[:4]
    assert first.level == "ok" and [one.what for one in rest] == shown
    assert [one.level for one in rest] == ["warn", "warn", "fail"]
    for odd in ("[]", '{"versions": 3, "problems": []}', '{"versions": {}, "problems": [[1]]}', "[" * 9000):
        assert "has no shardrun" in ssh(programs, "+0", f"echo '{odd}'")[0].what


def test_a_host_looks_at_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", far.__name__], capture_output=True, text=True, timeout=60, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["Python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert ["limits", "fail", "open files 128"] in [problem[:3] for problem in found["problems"]]


def test_hosts_and_their_clocks(programs: Programs) -> None:
    assert ssh(programs, "+0", says()) == [
        Finding("ok", f"10.9.9.{host} (node7): ssh connects, and the clocks agree") for host in (9, 8)
    ]
    ahead = ssh(programs, "+100", says())
    assert levels(ahead) == ["warn", "warn"] and "s ahead" in ahead[0].what and "100." in ahead[0].what
    assert "s behind" in ssh(programs, "-100", says())[0].what
    here = found("hosts", Asked(make_rank_table([("127.0.0.1", 1), (os.uname().nodename, 1)])))
    assert here == [Finding("ok", "the rank table has this machine only")]
    absent = ssh(programs, "+0", "echo 'No module named ranks' >&2; exit 1")
    assert levels(absent) == ["fail", "fail"] and "has no shardrun (No module named ranks)" in absent[0].what
    programs(ssh="echo 'Permission denied (publickey).' >&2; exit 255")
    (one,) = hosts.CHECK.run(Asked(make_rank_table([("10.9.9.9", 1)])))
    assert one.level == "fail" and "Permission denied" in one.what and "without a question" in one.advice


def test_hosts_of_which_ssh_says_nothing(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(make_rank_table([("10.9.9.9", 1)]))
    assert found("hosts", asked) == [
        Finding("fail", "10.9.9.9: there is no ssh here", "install an ssh client")
    ]
    monkeypatch.setattr(asking, "PROGRAM_SECONDS", 0.1)
    programs(ssh="sleep 1000")
    (silent,) = found("hosts", asked)
    assert silent.level == "fail" and silent.what == "10.9.9.9: `ssh` gave no answer within 0.1 s"


def test_slurm_that_is_there_and_that_is_not(programs: Programs) -> None:
    programs(sinfo="echo 'debug* 2 idle'", srun="echo 'MPI plugin types are...'; echo none; echo pmix")
    assert found("slurm") == [Finding("ok", "debug: 2 idle; srun --mpi: none, pmix")]
    programs(sinfo="echo 'debug* 2 down*'")
    (down,) = found("slurm")
    assert down.level == "warn" and "no node can take a job (debug: 2 down*)" in down.what
    programs(sinfo="echo 'sinfo: error: no controller' >&2; exit 1")
    (silent,) = found("slurm")
    assert silent.level == "warn" and "no controller" in silent.what


@pytest.mark.skipif(bool(real_slurm.missing()), reason=real_slurm.missing() or "-")
def test_a_real_slurm(tmp_path: Path) -> None:
    cluster = real_slurm.Cluster(tmp_path)
    try:
        path = path_with_quick_torch(tmp_path)
        done = shardrun("doctor", cwd=tmp_path, PYTHONPATH=path, **cluster.environment)
        assert "ok    Slurm         debug: 2 idle; srun --mpi: " in done.stdout
    finally:
        cluster.close()


@pytest.mark.parametrize(
    ("library", "level"), [("Open MPI v5.0.11, x", "ok"), ("MPICH Version: 5.0.2", "fail")]
)
def test_mpi_and_mpi4py_must_fit(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, library: str, level: str
) -> None:
    programs(mpirun="echo 'mpirun (Open MPI) 5.0.11'")
    monkeypatch.setattr(mpi, "library_version", lambda environ: library)
    (finding,) = found("mpi")
    assert finding.level == level
    assert level == "ok" or "is openmpi, but mpi4py loads MPICH" in finding.what


def test_few_of_anything_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda number: (100, 100))
    assert "fail" in levels(found("limits")) and "open files 100" in found("limits")[0].what
    unlimited = limits.resource.RLIM_INFINITY
    monkeypatch.setattr(limits.resource, "getrlimit", lambda number: (unlimited, unlimited))
    assert found("limits")[0] == Finding("ok", "open files unlimited")
    assert not [finding for finding in found("limits") if "ulimit" in finding.advice]
    monkeypatch.setattr(cores, "cpu_quota", lambda: 0.5)
    assert levels(found("cores")) == ["warn", "fail"]
    usage = shutil._ntuple_diskusage(64 << 20, 60 << 20, 4 << 20)
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder: usage)
    assert memory.shared(str(tmp_path)).level == "fail"
    assert "cannot be used" in memory.shared(str(tmp_path / "none")).what

    def refuse(*_: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(network.socket, "getaddrinfo", refuse)
    (unknown,) = found("network")
    assert unknown.level == "warn" and "is not known here" in unknown.what and "/etc/hosts" in unknown.advice


def test_how_much_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the edge between what is told of and what is not, and below it."""
    for files, level in ((255, "fail"), (256, "warn"), (1023, "warn"), (1024, "ok")):
        monkeypatch.setattr(
            limits.resource, "getrlimit",
            lambda number, files=files: (files if number == resource.RLIMIT_NOFILE else -1, -1),
        )  # fmt: skip
        assert found("limits")[0].level == level, files
    monkeypatch.setattr(memory, "memory_limit", lambda: None)
    for free, level in (((1 << 30) - 1, "warn"), (1 << 30, "ok"), (None, "ok")):
        monkeypatch.setattr(memory, "free_memory", lambda free=free: free)
        assert found("memory")[0].level == level
    for free, level in (
        ((32 << 20) - 1, "fail"),
        (32 << 20, "warn"),
        ((1 << 30) - 1, "warn"),
        (1 << 30, "ok"),
    ):
        usage = shutil._ntuple_diskusage(2 << 30, (2 << 30) - free, free)
        monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder, usage=usage: usage)
        assert memory.shared(str(tmp_path)).level == level
    seen = len(os.sched_getaffinity(0))
    monkeypatch.setattr(cores.os, "cpu_count", lambda: seen)
    for quota, expected in ((seen, ["ok"]), (seen - 0.5, ["warn"]), (None, ["ok"]), (0.99, ["warn", "fail"])):
        monkeypatch.setattr(cores, "cpu_quota", lambda quota=quota: quota)
        assert levels(found("cores")) == expected or (quota == seen - 0.5 and seen == 1)


def test_what_the_network_has(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_rank_table([("10.9.9.9", 1)])
    known: list[str] = []
    monkeypatch.setattr(
        network.socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (address, 0)) for address in known]
    )
    host = os.uname().nodename
    known[:] = ["127.0.1.1"]
    only = f"ports can be had; {host} is 127.0.1.1 only"
    assert [(one.level, one.what) for one in found("network")] == [("ok", only)]
    assert [(one.level, one.what) for one in found("network", Asked(table))] == [("warn", only)]
    known[:] = ["127.0.1.1", "10.0.0.7"]
    both = Finding("ok", f"ports can be had; {host} is 10.0.0.7, 127.0.1.1")
    assert found("network", Asked(table)) == [both]

    refused: set[str] = set()

    class Full:
        """A socket for which some addresses cannot be had."""

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...

        def bind(self, address: tuple[str, int]) -> None:
            if address[0] in refused:
                raise OSError("taken")

        def listen(self, backlog: int) -> None: ...

    monkeypatch.setattr(network.socket, "socket", Full)
    for address, where in (("", "all interfaces"), ("127.0.0.1", "127.0.0.1")):
        refused.add(address)
        assert [one.what for one in found("network")] == [f"no port can be had on {where} (taken)"]


def test_another_package_brings_a_check(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text(
        "from launcher.checkup.base import Check, Finding\n"
        "CHECK = Check('licence', 50, lambda asked: [Finding('fail', 'none here', 'buy one')])\n"
    )
    (tmp_path / "more-1.dist-info").mkdir()
    (tmp_path / "more-1.dist-info" / "entry_points.txt").write_text(
        "[shardrun.checks]\nlicence = more:CHECK\n"
    )
    done = shardrun("doctor", cwd=tmp_path, PYTHONPATH=f"{path_with_quick_torch(tmp_path)}:{tmp_path}")
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["fail  licence       none here", f"{'':20}-> buy one"], os.linesep.join(lines)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9), "fail"), ((3, 10), "ok"), ((3, 12), "ok"), ((3, 13), "warn")]
)
def test_versions_of_python(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], level: str) -> None:
    told = SimpleNamespace(version_info=(*version, 9, "final", 0), executable="python", platform="linux")
    monkeypatch.setattr(python, "sys", told)
    assert levels(found("python")) == [level]
    told.platform = "darwin"
    assert levels(found("python")) == [level, "fail"]


@pytest.mark.parametrize(("free", "level"), [(2 << 30, "ok"), ((2 << 30) - 1, "warn")])
def test_room_for_the_cache(monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert levels(found("cache")) == [level]
