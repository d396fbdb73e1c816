"""Hosts from lists, hostfiles and batch systems, and how many ranks each gets."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from launcher.cli import build_parser
from launcher.errors import ConfigError
from launcher.group.starting import _on_hosts, _say_not_used
from launcher.job.job_file import read_job_file
from launcher.job.places import allocation
from launcher.job.places.host_list import parse_hosts, read_hostfile
from launcher.job.places.placement import Placement, Places, parse_bind, parse_variables, parse_words
from launcher.job.rank_table import make_rank_table
from launcher.job.start_arguments import Start, rank_environment
from sharding.common.bounds import MAX_RANKS
from sharding.common.ranges import in_ranges, parse_ranges

SLURM = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "a[1-2],b07",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NTASKS": "5",
}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [("a", None)]),
        ("a:2,b:1", [("a", 2), ("b", 1)]),
        (" a , 10.0.0.1:3", [("a", None), ("10.0.0.1", 3)]),
        ("[::1]:2,[fe80::1]", [("::1", 2), ("fe80::1", None)]),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[tuple[str, int | None]]) -> None:
    assert list(parse_hosts(text)) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected HOST:N"),
        ("a:0", "a: expected a number of ranks from 1"),
        ("a,,b", "expected HOST:N"),
        ("-oProxyCommand=x", "expected HOST:N"),
        ("a b", "expected HOST:N"),
        ("::1", "put the IPv6 address in brackets"),
        ("[::1", r"expected \[ADDRESS\]:N"),
        ("a:1,a:2", "each host once, found a twice"),
        ("a:4000,b:4000", "at most [0-9]+ ranks in all, found 8000"),
    ],
)
def test_what_is_no_list_of_hosts(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--hosts: .*{message}"):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=2\nb slots=4 max_slots=8 # more\n\n# c\n", [("a", 2), ("b", 4)]),
        ("a:2\nb:3", [("a", 2), ("b", 3)]),
        ("a\nb\n", [("a", None), ("b", None)]),
        ("a\na\nb\na\n", [("a", 3), ("b", None)]),
        ("a slots=2\nb\na slots=3\nb\n", [("a", 5), ("b", 2)]),
    ],
)
def test_hostfiles(tmp_path: Path, text: str, hosts: list[tuple[str, int | None]]) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    assert list(read_hostfile(path)) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lines of HOST, .* found none"),
        ("a\nb c\n", "line 2: expected HOST, .* found 'c' after the host"),
        ("a slots=x", "line 1: expected a number of ranks"),
        ("a:b", "line 1: a: expected a number of ranks"),
    ],
)
def test_what_is_no_hostfile(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"hostfile {path}.*{message}"):
        read_hostfile(path)
    with pytest.raises(ConfigError, match=r"hostfile .*absent: No such file"):
        read_hostfile(tmp_path / "absent")


def test_slurm() -> None:
    found = allocation.find(SLURM)
    assert found == allocation.Allocation("Slurm job 12", (("a1", 2), ("a2", 2), ("b07", 1)), 5, slurm=True)
    without = {name: value for name, value in SLURM.items() if name != "SLURM_NTASKS"}
    assert allocation.find(without).ranks == 3  # type: ignore[union-attr]  # one a node: counts are of cores
    assert allocation.find({**without, "SLURM_NTASKS_PER_NODE": "2"}).ranks == 5  # type: ignore[union-attr]


def test_a_task_of_a_step_has_no_hosts_to_fill() -> None:
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    assert allocation.find({**SLURM, **task}) is None
    batch = {"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert allocation.find({**SLURM, **batch}) is not None
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert allocation.find({**SLURM, **ranks}) is None


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a", ["a"]),
        ("a[1-3,07]", ["a1", "a2", "a3", "a07"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("x,y[1]-z", ["x", "y1-z"]),
    ],
)
def test_slurms_lists_of_nodes(text: str, nodes: list[str]) -> None:
    assert list(allocation.expand(text)) == nodes


@pytest.mark.parametrize(
    "text",
    [
        *("a[", "a]", "a[1-]", "a[2-1]", "a[[1]]", "a,,b", "a[1-999999999]"),
        *("a[0-4000]" * 8, "a[0-4000],b[0-4000]", f"a[{'0-4000,' * 9000}1]"),
    ],
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^SLURM_JOB_NODELIST must be a list of nodes .* --hosts"):
        list(allocation.expand(text))


def test_contradicting_slurm() -> None:
    with pytest.raises(ConfigError, match=r"counts 2 nodes, but SLURM_JOB_NODELIST .* has 3"):
        allocation.find({**SLURM, "SLURM_TASKS_PER_NODE": "2(x2)"})
    with pytest.raises(ConfigError, match=r"SLURM_TASKS_PER_NODE must be numbers"):
        allocation.find({**SLURM, "SLURM_TASKS_PER_NODE": "two"})


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("SLURM_TASKS_PER_NODE", "2(x", "must be numbers above 0 such as"),
        (
            "SLURM_TASKS_PER_NODE",
            "0(x2)",
            "must be numbers above 0 .* but is '0\\(x2\\)': give the hosts with",
        ),
        ("SLURM_TASKS_PER_NODE", "2,1,0", "must be numbers above 0"),
        ("SLURM_TASKS_PER_NODE", "1(x4096)," * 9000 + "1", "of at most 4096 nodes"),
        ("LSB_MCPU_HOSTS", f"a {'9' * 5000}", "each with a number after it"),
        ("LSB_MCPU_HOSTS", "a 0", "each with a number after it"),
        ("PBS_NODEFILE", "/", "hostfile /: not a file"),
    ],
)
def test_odd_variables(variable: str, text: str, message: str) -> None:
    job = {"LSB_JOBID": "1"} if "LSB" in variable else {"PBS_JOBID": "1"} if "PBS" in variable else SLURM
    with pytest.raises(ConfigError, match=message) as caught:
        allocation.find({**job, variable: text})
    assert len(str(caught.value)) < 400


def test_a_number_of_tasks_that_cannot_be(tmp_path: Path) -> None:
    assert allocation.find({**SLURM, "SLURM_NTASKS": f"1{'9' * 5000}"}).ranks == 3  # type: ignore[union-attr]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe: not a file"):
        read_hostfile(tmp_path / "pipe")


def test_pbs_and_lsf(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("n1.site\nn1.site\nn2.site\n")
    hosts = (("n1.site", 2), ("n2.site", 1))
    pbs = allocation.find({"PBS_JOBID": "7.s", "PBS_NODEFILE": str(file)})
    assert pbs == allocation.Allocation("PBS job 7.s", hosts, 3)
    assert allocation.find({"LSB_JOBID": "8", "LSB_DJOB_HOSTFILE": str(file)}) == allocation.Allocation(
        "LSF job 8", hosts, 3
    )
    lsf = allocation.find({"LSB_JOBID": "8", "LSB_MCPU_HOSTS": "n1.site 2 n2.site 1"})
    assert lsf == allocation.Allocation("LSF job 8", hosts, 3)
    with pytest.raises(ConfigError, match="LSB_MCPU_HOSTS must be hosts, each with a number"):
        allocation.find({"LSB_JOBID": "8", "LSB_MCPU_HOSTS": "n1 n2 2"})
    assert allocation.find({}) is None
    for rest in (
        {"LSB_DJOB_HOSTFILE": str(file)}, {"LSB_MCPU_HOSTS": "n1 2"}, {"LSB_JOBID": "8"},
        {"PBS_NODEFILE": str(file)}, {"PBS_JOBID": "7"},
    ):  # fmt: skip
        assert allocation.find(rest) is None  # half of what a job would say


@pytest.mark.parametrize(
    ("hosts", "size", "counts"),
    [
        ([("a", 2), ("b", 2)], 2, [("a", 1), ("b", 1)]),
        ([("a", 2), ("b", 2)], 3, [("a", 2), ("b", 1)]),
        ([("a", 1), ("b", 3)], 4, [("a", 1), ("b", 3)]),
        ([("a", None), ("b", None)], 5, [("a", 3), ("b", 2)]),
        ([("a", 2), ("b", 2)], 1, [("a", 1)]),
        ([("a", None), ("b", 1)], 5, [("a", 4), ("b", 1)]),
    ],
)
def test_ranks_are_spread_over_all_hosts(
    hosts: list[tuple[str, int | None]], size: int, counts: list[tuple[str, int]]
) -> None:
    assert Places("--hosts", tuple(hosts)).spread(size) == counts


def test_more_ranks_than_places() -> None:
    hosts = (("a", 1), ("b", 2))
    with pytest.raises(ConfigError, match=r"--hosts: expected places for 5 ranks, found 3: give more hosts"):
        Places("--hosts", hosts).spread(5)
    assert Places("Slurm job 1", hosts, 3).spread(5) == [("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (1, "Slurm job 1 has 2 hosts, but 1 starts: b is not used"),
        (2, "Slurm job 1 has places for 3 ranks, but 2 start"),
        (3, ""),
        (4, "Slurm job 1 has places for 3 ranks, but 4 start: some share a place"),
    ],
)
def test_what_an_allocation_leaves_unused_is_said(
    caplog: pytest.LogCaptureFixture, size: int, message: str
) -> None:
    with caplog.at_level(logging.WARNING):
        Places("Slurm job 1", (("a", 1), ("b", 2)), 3).say_unused(size)
    assert [record.getMessage() for record in caplog.records] == ([message] if message else [])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, 1),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, 0),
        ({"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}, 0),
        (SLURM, 0),
    ],
    ids=["alone", "one rank", "a rank", "in Slurm"],
)
def test_a_pod_of_an_indexed_job_does_not_know_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], said: int
) -> None:
    """It is said once, when ranks start, however often hosts are asked for before."""
    for name, value in {"JOB_COMPLETION_INDEX": "2", **more}.items():
        monkeypatch.setenv(name, value)
    Placement().places()
    _on_hosts(Start(), 1)
    records = [record.getMessage() for record in caplog.records]
    start = "this is pod 2 of an indexed Job of Kubernetes, which says nothing of its others"
    assert [text.startswith(start) for text in records if "Kubernetes" in text] == [True] * said


def test_hosts_given_go_before_an_allocation(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("c slots=2\n")
    assert Placement().places(SLURM).said_by == "Slurm job 12"  # type: ignore[union-attr]
    assert Placement(hosts=(("x", 1),)).places(SLURM).hosts == (("x", 1),)  # type: ignore[union-attr]
    assert Placement(hostfile=file).places(SLURM).hosts == (("c", 2),)  # type: ignore[union-attr]
    assert Placement(nodes=2).places({}) is None and Placement().places({}) is None


def test_variables_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "a=b c")
    monkeypatch.delenv("NOT_HERE", raising=False)
    assert parse_variables(["HERE", "X=", "Y=1=2"]) == {"HERE": "a=b c", "X": "", "Y": "1=2"}
    for text, message in {
        "NOT_HERE": "NOT_HERE is not set here; give --env NOT_HERE=VALUE",
        "1=2": "expected NAME or NAME=VALUE, found '1=2'",
        "RANK=1": "each rank gets a RANK of its own",
        "SHARDRUN_JOB=x": "each rank gets a SHARDRUN_JOB of its own",
        "OMPI_COMM_WORLD_SIZE=2": "each rank gets",
    }.items():
        with pytest.raises(ConfigError, match=message):
            parse_variables([text])
    assert parse_words("--mca a 'b c'") == ("--mca", "a", "b c")
    with pytest.raises(ConfigError, match="expected words as in a shell"):
        parse_words("'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{RANK: "1"}', r"\$\.env\.RANK: each rank gets a RANK of its own"),
        ('{"A=B": x}', r"\$\.env\.A=B: expected the name of a variable"),
        ('{A: "x\\0y"}', r"\$\.env\.A: expected a text without NUL"),
    ],
)
def test_variables_of_a_job_file(tmp_path: Path, text: str, message: str) -> None:
    """What is refused of a flag is refused there too."""
    (tmp_path / "job.yaml").write_text(f"env: {text}\n")
    with pytest.raises(ConfigError, match=message):
        read_job_file(tmp_path / "job.yaml")


def test_a_batch_job_of_which_only_this_host_is_used(caplog: pytest.LogCaptureFixture) -> None:
    """Batch systems name a host as they like: the short name and the long one are one host."""
    _say_not_used(Places("PBS job 1", (("127.0.0.1", 2),), 2))
    assert not caplog.records
    _say_not_used(Places("PBS job 1", (("a", 2), ("b", 2)), 4))
    assert "PBS job 1 has 2 hosts, but --launcher local starts all ranks on this one" in caplog.text


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["run", "m", "--srun-args", "--time=5", "--ranks", "2"], {"srun_args": ("--time=5",), "ranks": 2}),
        (["run", "m", "--srun-args=-p a"], {"srun_args": ("-p", "a")}),
        (
            ["exec", "--mpi-args", "-x A", "s.py", "--mpi-args", "-q"],
            {"mpi_args": ("-x", "A"), "arguments": ["--mpi-args", "-q"]},
        ),
        (["exec", "-v", "s.py", "--srun-args", "x"], {"arguments": ["--srun-args", "x"], "verbose": 1}),
    ],
)
def test_arguments_for_others_may_begin_with_a_hyphen(words: list[str], options: dict[str, object]) -> None:
    """A script's own, which look alike, stay as they are."""
    given, unknown = build_parser().parse_known_args(words)
    assert {name: vars(given)[name] for name in options} == options and not unknown


def test_a_users_own_settings_reach_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI passes none of the environment on to another host by itself."""
    monkeypatch.setenv("SHARDRUN_TARGET", "cpu")
    monkeypatch.setenv("SHARDRUN_TIMEOUT", "7")
    monkeypatch.setenv("SHARDRUN_CONTROL", "unix:@somebody")
    told = rank_environment(Start(timeout=5, placement=Placement(bind="numa"), environment={"A": "b"}))
    assert told["SHARDRUN_TARGET"] == "cpu" and told["SHARDRUN_TIMEOUT"] == "5"
    assert told["SHARDRUN_BIND"] == "numa" and told["A"] == "b" and "SHARDRUN_CONTROL" not in told


def test_where_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the address and port that the user sets; not those of a launcher around us, whose port is in use."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "TORCHELASTIC_RUN_ID", "SHARDRUN_JOB"):
        monkeypatch.delenv(name, raising=False)
    far = Start(rank_table=make_rank_table([("10.0.0.7", 1), ("10.0.0.8", 1)]))
    assert rank_environment(Start())["MASTER_ADDR"] == "127.0.0.1"
    assert rank_environment(far)["MASTER_ADDR"] == "10.0.0.7"
    monkeypatch.setenv("MASTER_ADDR", "10.1.1.1")
    monkeypatch.setenv("MASTER_PORT", "29501")
    told = rank_environment(far)
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.1.1.1", "29501")
    monkeypatch.setenv("MASTER_PORT", "0x1")
    with pytest.raises(ConfigError, match="MASTER_PORT"):
        rank_environment(far)
    for name in ("RANK", "TORCHELASTIC_RUN_ID", "SHARDRUN_JOB"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            told = rank_environment(far)
        assert told["MASTER_ADDR"] == "10.0.0.7" and told["MASTER_PORT"] != "29501"


def test_ranges() -> None:
    assert parse_ranges("0-3,8,2") == [0, 1, 2, 3, 8]
    assert in_ranges([8, 3, 2, 1, 0, 3]) == "0-3,8" and in_ranges([]) == ""
    assert [parse_ranges(text) for text in ("", "a", "3-1", "1-", "-1", "1,,2")] == [None] * 6


def test_work_grows_with_the_number_of_ranks_only() -> None:
    """By the lines of Python that run: eight times the ranks are eight times the work, however they lie."""

    def lines(work: Callable[[int], object], size: int) -> int:
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work(size)
        finally:
            sys.settrace(before)
        return count

    uneven = {
        size: Places("--hosts", (("big", size // 2), *((f"h{n}", 1) for n in range(size // 2))))
        for size in (512, 4096)
    }
    for work in (
        lambda size: uneven[size].spread(size),
        lambda size: parse_hosts(",".join(f"h{n}:1" for n in range(size))),
        lambda size: make_rank_table([(f"h{n}", 1) for n in range(size)]),
        lambda size: make_rank_table([("one", size)]),
    ):
        assert lines(work, 4096) < 12 * lines(work, 512)


def test_many_ranks_of_one_host() -> None:
    """What copies lists runs few lines, and is told by its processor time, the best of several."""

    def seconds(size: int) -> float:
        table = make_rank_table([("one", size)])
        found = []
        for _ in range(15):
            began = time.process_time()
            assert len(table.hosts["one"]) == size
            found.append(time.process_time() - began)
        return min(found)

    assert seconds(4096) < 20 * seconds(512)


def test_a_host_is_named_once_in_long_lists_too() -> None:
    with pytest.raises(ConfigError, match="expected each host once, found h7 twice"):
        parse_hosts(",".join([f"h{n}" for n in range(2000)] + ["h7"]))


@pytest.mark.parametrize("text", ["none", "cores", "numa", "0-7", "0-3/4-7"])
def test_what_binds_ranks(text: str) -> None:
    assert parse_bind(text) == text


@pytest.mark.parametrize("text", ["", "core", "0-", "7-0", "0-3/", "a"])
def test_what_binds_no_ranks(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected none, cores, numa, or a list of cores such as .*, found"
    ):
        parse_bind(text)


def test_as_many_ranks_as_there_may_be() -> None:
    most = ((f"h{number}", None) for number in range(2))
    assert parse_hosts(f"a:{MAX_RANKS}") == (("a", MAX_RANKS),)
    assert parse_hosts(f"a:{MAX_RANKS - 2},h0,h1")[1:] == tuple(most)
    for text in (f"a:{MAX_RANKS - 1},h0,h1", f"a:{MAX_RANKS + 1}"):
        with pytest.raises(ConfigError, match=str(MAX_RANKS)):
            parse_hosts(text)


@pytest.mark.parametrize(
    ("hosts", "tasks", "ranks", "room"),
    [
        ((("a", 2), ("b", 3)), None, 5, 5),
        ((("a", None), ("b", 3)), None, 4, None),
        ((("a", 2), ("b", 3)), 2, 2, 5),
        ((("a", None), ("b", None)), None, 2, None),
    ],
)
def test_how_many_ranks_hosts_are_for(hosts: Any, tasks: int | None, ranks: int, room: int | None) -> None:
    places = Places("--hosts", hosts, tasks)
    assert (places.ranks, places.room) == (ranks, room)


def test_all_hosts_have_some_ranks_before_one_has_more() -> None:
    places = Places("--hosts", (("a", 1), ("b", 5), ("c", 3)))
    assert places.spread(5) == [("a", 1), ("b", 2), ("c", 2)]
    assert places.spread(9) == [("a", 1), ("b", 5), ("c", 3)]
    assert Places("Slurm job 1", (("a", 1), ("b", 2)), 3).spread(8) == [("a", 4), ("b", 4)]
