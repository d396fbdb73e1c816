"""Which cores each rank of a host gets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ranks.errors import IdentityError
from ranks.identity import binding
from ranks.identity.place import Identity
from ranks.identity.told import Told
from ranks.sessions.session import default_threads
from sharding.common import limits
from sharding.common.ranges import in_ranges


def machine(root: Path, nodes: Sequence[str], siblings: dict[int, str] | None = None) -> Path:
    """The files by which Linux describes processors: NUMA nodes, and hardware threads of one core."""
    for number, text in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{text}\n")
    for cpu, text in (siblings or {}).items():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    return root


def shares(nodes: Sequence[Sequence[binding.Core]], size: int, asked: str = "") -> list[list[int]]:
    return [sorted(binding.share(nodes, place, size, asked)) for place in range(size)]


def plain(*nodes: Sequence[int]) -> list[list[binding.Core]]:
    return [[frozenset([cpu]) for cpu in node] for node in nodes]


@pytest.mark.parametrize(
    ("nodes", "size", "expected"),
    [
        (plain(range(4)), 2, [[0, 1], [2, 3]]),
        (plain(range(5)), 2, [[0, 1], [2, 3, 4]]),
        (plain(range(3)), 3, [[0], [1], [2]]),
        (plain((0, 2, 4, 6), (1, 3, 5, 7)), 2, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (plain((0, 2, 4, 6), (1, 3, 5, 7)), 4, [[0, 2], [4, 6], [1, 3], [5, 7]]),
        (plain((0, 1), (2, 3)), 3, [[0], [1], [2, 3]]),
        (plain((0,), (1, 2, 3)), 4, [[0], [1], [2], [3]]),
    ],
)
def test_ranks_share_no_core(nodes: list[list[binding.Core]], size: int, expected: list[list[int]]) -> None:
    assert shares(nodes, size) == expected
    assert shares(nodes, size, "cores") == expected


def test_hardware_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    root = machine(tmp_path, ["0-7"], {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    nodes = binding.nodes_of(set(range(8)), root)
    assert shares(nodes, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert shares(binding.nodes_of({0, 4, 5}, root), 2) == [[0, 4], [5]]


def test_numa_nodes(tmp_path: Path) -> None:
    nodes = binding.nodes_of(set(range(8)), machine(tmp_path, ["0-3", "4-7"]))
    assert shares(nodes, 2, "numa") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shares(nodes, 4, "numa") == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2
    assert shares(nodes, 1, "numa") == [list(range(8))]


def test_lists() -> None:
    nodes = plain(range(8))
    assert shares(nodes, 2, "4-7") == [[4, 5], [6, 7]]
    assert shares(nodes, 2, "0-1/5,7") == [[0, 1], [5, 7]]


@pytest.mark.parametrize(
    ("asked", "size", "message"),
    [
        ("cores", 9, "9 ranks are on this host, but there are 8 cores for them"),
        ("0", 2, "2 ranks are on this host, but there is 1 core"),
        ("6-9", 1, "may use the cores 0-7, and not 8-9: choose among those"),
        ("0/1", 3, "has cores for 2 ranks, but 3 are on this host"),
    ],
)
def test_cores_that_are_not_there(asked: str, size: int, message: str) -> None:
    with pytest.raises(IdentityError, match=f"^--bind {asked}.*{message}"):
        binding.share(plain(range(8)), 0, size, asked)


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """What this process, which may use four processors, is bound to."""
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: bound.append(set(cpus)))
    monkeypatch.setenv("SHARDRUN_BOUND", "")
    return bound


def test_by_default_where_each_rank_can_have_a_core(affinity: list[set[int]], tmp_path: Path) -> None:
    binding.bind(Identity(1, 2, 1, 2), root=tmp_path)
    assert affinity == [{2, 3}] and os.environ["SHARDRUN_BOUND"] == "1"
    for identity in (Identity(1, 5, 1, 5), Identity(), Identity(1, 2, 0, 1), Identity(1, 2, 1, None)):
        binding.bind(identity, root=tmp_path)
    assert len(affinity) == 1


def test_none_and_what_is_asked_for(
    affinity: list[set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDRUN_BIND", "none")
    binding.bind(Identity(1, 2, 1, 2), root=tmp_path)
    assert affinity == []
    monkeypatch.setenv("SHARDRUN_BIND", "3")
    binding.bind(Identity(), root=tmp_path)
    assert affinity == [{3}]


def test_threads_of_a_bound_rank_are_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = limits.cores()
    assert default_threads(2, {"SHARDRUN_BOUND": "1"}) == cores
    assert default_threads(2, {}) == max(1, cores // 2)
    assert default_threads(2, {"SHARDRUN_BOUND": "1", "SHARDRUN_THREADS": "7"}) == 7
    monkeypatch.setattr(limits, "cpu_quota", lambda root=Path("/"): 2.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert limits.share(2, bound=True, root=tmp_path) == 1  # the quota is of all ranks
    assert limits.share(1, bound=True, root=tmp_path) == 2


def test_only_who_shares_no_core_has_them_alone(
    affinity: list[set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of them would have threads for all."""
    for asked, alone in (("0-1/2-3", True), ("0-1/1-3", False), ("0-3/0-3", False), ("0-3", True)):
        monkeypatch.delenv("SHARDRUN_BOUND", raising=False)
        monkeypatch.setenv("SHARDRUN_BIND", asked)
        binding.bind(Identity(1, 2, 1, 2), root=tmp_path)
        assert ("SHARDRUN_BOUND" in os.environ) == alone, asked
    monkeypatch.delenv("SHARDRUN_BIND")
    for told in (Told(cores="0", alone=True), Told(cores="0")):
        monkeypatch.delenv("SHARDRUN_BOUND", raising=False)
        binding.bind(Identity(1, 2, 1, 2), told, root=tmp_path)
        assert ("SHARDRUN_BOUND" in os.environ) == told.alone
    assert binding.apart(["0", "1", "2-3"]) == [True] * 3
    assert binding.apart(["0", "1,5", "3-5"]) == [True, False, False]
    assert binding.apart(["0", ""]) == [False, False]


PLACED = """
import os, sys
from ranks.errors import IdentityError
from ranks.identity.binding import bind
from ranks.identity.place import Identity
from ranks.identity.told import Told
told = Told(cores=sys.argv[1], interface="eth7") if sys.argv[2] == "0" else Told()
try:
    bind(Identity(int(sys.argv[2]), 2, 0, 1, "h"), told)
except IdentityError as error:
    print(error)
print(sorted(os.sched_getaffinity(0)), os.environ.get("GLOO_SOCKET_IFNAME"))
"""


def test_a_rank_table_says_cores_and_interface() -> None:
    """In a process of its own, which it binds."""
    here = sorted(os.sched_getaffinity(0))

    def bound(cores: str, rank: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PLACED, cores, str(rank)], capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        return done.stdout.strip()

    assert bound(str(here[0]), 0) == f"[{here[0]}] eth7"
    assert bound(str(here[0]), 1) == f"{here} None"
    assert "the rank table has the cores 99999 for rank 0" in bound("99999", 0)
    assert "the cores 0-999999 for rank 0, which are no list of cores such as 0-3" in bound("0-999999", 0)
    assert "for rank 0, which are no list of cores such as 0-3: correct the table" in bound("5-3", 0)


HARDWARE = {
    "two sockets, threads numbered last": ("""
available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3 8 9 10 11
node 0 size: 96555 MB
node 1 cpus: 4 5 6 7 12 13 14 15
node 1 size: 96758 MB
node distances:
node   0   1
  0:  10  21
  1:  21  10
""", 8, {2: ["0-3,8-11", "4-7,12-15"], 4: ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]}),
    "two sockets that take turns": ("""
available: 2 nodes (0-1)
node 0 cpus: 0 2 4 6 8 10 12 14
node 1 cpus: 1 3 5 7 9 11 13 15
""", 8, {2: ["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"]}),
    "a socket in four": ("""
available: 4 nodes (0-3)
node 0 cpus: 0 1 2 3
node 1 cpus: 4 5 6 7
node 2 cpus: 8 9 10 11
node 3 cpus: 12 13 14 15
""", 0, {2: ["0-7", "8-15"], 4: ["0-3", "4-7", "8-11", "12-15"], 8: ["0-1", "2-3", "4-5", "6-7", "8-9"]}),
    "nodes 0 and 8, and the memory of GPUs": ("""
available: 5 nodes (0,8,253-255)
node 0 cpus: 0 1 2 3 4 5 6 7
node 8 cpus: 8 9 10 11 12 13 14 15
node 253 cpus:
node 254 cpus:
node 255 cpus:
""", -4, {2: ["0-7", "8-15"], 4: ["0-3", "4-7", "8-11", "12-15"]}),
    "a node of cores and one of memory": ("""
available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3 4 5 6 7
node 0 size: 490310 MB
node 1 cpus:
node 1 size: 97280 MB
""", 0, {2: ["0-3", "4-7"], 4: ["0-1", "2-3", "4-5", "6-7"]}),
    "a kernel without nodes": ("No NUMA available on this system", 0, {2: ["0-7", "8-15"]}),
}  # fmt: skip
"""What `numactl --hardware` prints of kinds of machines; the distance between the hardware threads of a core
(-4: four in a row), and the processors of the first ranks, by how many there are."""

PROCESSORS = """
CPU NODE SOCKET CORE ONLINE
  0    0      0    0    yes
  1    0      0    0    yes
  2    0      0    1    yes
  3    0      0    1    yes
  4    0      0    2    yes
  5    0      0    3    yes
  6    0      0    4    yes
  7    -      -    -     no
"""
"""What `lscpu -e` prints of two cores with two threads each and four with one, of which one is off."""


@pytest.mark.parametrize("kind", HARDWARE)
def test_kinds_of_machines(kind: str, tmp_path: Path) -> None:
    """The files as Linux has them there: whole cores, of one node each where ranks are as many."""
    text, apart, expected = HARDWARE[kind]
    nodes = {
        int(line.split()[1]): [int(word) for word in line.partition(":")[2].split()]
        for line in text.splitlines()
        if " cpus:" in line
    }
    cpus = sorted(cpu for node in nodes.values() for cpu in node) or list(range(16))
    step = abs(apart) or 1
    core = {cpu: cpu // step if apart < 0 else cpu % apart if apart else cpu for cpu in cpus}
    siblings = {cpu: ",".join(str(one) for one in cpus if core[one] == core[cpu]) for cpu in cpus}
    machine(tmp_path, [], siblings)
    for number, own in nodes.items():
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{in_ranges(own)}\n")
    found = binding.nodes_of(set(cpus), tmp_path)
    for size, first in expected.items():
        parts = shares(found, size)
        assert [in_ranges(part) for part in parts[: len(first)]] == first
        assert sorted(cpu for part in parts for cpu in part) == cpus
        assert all(len({core[cpu] for cpu in part} & {core[cpu] for cpu in other}) == 0
                   for part in parts for other in parts if other is not part)  # fmt: skip


def test_a_machine_with_cores_of_two_kinds(tmp_path: Path) -> None:
    """A core of two threads is one core, and a processor that is off is none."""
    rows = [line.split() for line in PROCESSORS.strip().splitlines()[1:]]
    there = {int(row[0]): row[3] for row in rows if row[4] == "yes"}
    siblings = {cpu: ",".join(str(one) for one in there if there[one] == there[cpu]) for cpu in there}
    found = binding.nodes_of(set(there), machine(tmp_path, ["0-6"], siblings))
    assert shares(found, 2) == [[0, 1, 2, 3], [4, 5, 6]]
    assert shares(found, 5) == [[0, 1], [2, 3], [4], [5], [6]]
    with pytest.raises(IdentityError, match="6 ranks are on this host, but there are 5 cores for them"):
        shares(found, 6, "cores")


def test_this_machine_as_lscpu_shows_it() -> None:
    """Another program reads the same files."""
    if shutil.which("lscpu") is None:
        pytest.skip("this machine lacks lscpu")
    done = subprocess.run(
        ["lscpu", "-p=CPU,CORE,NODE"], capture_output=True, text=True, check=True, timeout=60
    )
    mine = os.sched_getaffinity(0)
    rows = [line.split(",") for line in done.stdout.splitlines() if not line.startswith("#")]
    cores: dict[tuple[str, str], set[int]] = {}
    for cpu, core, node in rows:
        if int(cpu) in mine:
            cores.setdefault((node, core), set()).add(int(cpu))
    found = {core for node in binding.nodes_of(mine) for core in node}
    assert found == set(map(frozenset, cores.values()))
    assert len(binding.nodes_of(mine)) == len({node for node, _ in cores})
