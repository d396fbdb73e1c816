"""Who a process is, from what each launcher sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import RankTableError
from launcher.job import rank_table as launcher_table
from ranks.common.sources import alone
from ranks.errors import IdentityError
from ranks.identity.identity import identify
from ranks.identity.place import Identity
from ranks.identity.rank_file import identity_from_table
from sharding.common.documents import MAX_BYTES
from sharding.common.rank_table import load_rank_table

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-h1-1234@1",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "7"}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
SBATCH = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0, 1)),
        (TORCHRUN, (5, 8, 1, 4)),
        (OPENMPI, (1, 4, 1, 2)),
        (MPICH, (3, 4, 1, 2)),
        (SRUN, (2, 3, 0, 1)),
        (
            {**SRUN, "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "8"},
            (2, 3, 0, 1),
        ),  # a step of a part of a job
        ({**SRUN, "PMIX_RANK": "2"}, (2, 3, 0, 1)),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "1(x3)", "SLURM_NODEID": "2"}, (2, 3, 0, 1)),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "what"}, (2, 3, 0, None)),
        ({**SRUN, "PMI_RANK": "2", "PMI_SIZE": "3"}, (2, 3, 0, 1)),  # srun --mpi=pmi2
        ({"RANK_ID": "1", "RANK_SIZE": "2", "DEVICE_ID": "1"}, (1, 2, 1, None)),
        ({"DEVICE_ID": "3"}, (0, 1, 0, 1)),  # one process on one device
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (1, 2, 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, (1, 2, 0, None)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "h9"}, (1, 2, 1, None)),
        ({"RANK": "", "WORLD_SIZE": " "}, (0, 1, 0, 1)),
        # The order: RANK, Open MPI, PMI, Slurm, Ascend.
        ({**SRUN, **OPENMPI}, (1, 4, 1, 2)),
        ({**MPICH, **OPENMPI}, (1, 4, 1, 2)),
        ({**OPENMPI, "RANK_ID": "0", "RANK_SIZE": "9", "DEVICE_ID": "0"}, (1, 4, 1, 2)),
        # A launcher inside another one is the one that counts.
        ({**SRUN, **TORCHRUN}, (5, 8, 1, 4)),
        ({**OPENMPI, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "SHARDRUN_JOB": "ab"}, (0, 2, 0, 2)),
    ],
)
def test_launchers(environ: dict[str, str], expected: tuple[int, int, int, int | None]) -> None:
    found = identify(environ=environ)
    assert (found.rank, found.world_size, found.local_rank, found.local_size) == expected
    assert found.host == os.uname().nodename


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"SLURM_STEP_ID": "4294967291"},  # the batch script's own step
        {"SLURM_STEP_ID": "4294967290"},  # the shell of an interactive allocation
        {"SLURM_STEP_ID": "batch"},
    ],
)
def test_the_script_that_sbatch_starts_is_no_rank(extra: dict[str, str]) -> None:
    found = identify(environ={**SBATCH, **extra})
    assert (found.world_size, found.source) == (1, "single")


def test_the_shell_of_an_allocation_is_no_rank() -> None:
    assert identify(environ={"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}).world_size == 1


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0"}, ["RANK=0 is set", "WORLD_SIZE and LOCAL_RANK are missing"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["RANK=0 and WORLD_SIZE=2 are set", "LOCAL_RANK is missing"]),
        ({"WORLD_SIZE": "2", "RANK": "", "LOCAL_RANK": "0"}, ["RANK is missing"]),
        ({"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ["RANK must be a whole number", "'one'"]),
        ({"RANK": "-1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ["RANK must be a whole number", "'-1'"]),
        ({"RANK": "٣", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, ["RANK must be a whole number"]),
        ({"RANK": "9" * 400, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ["RANK must be a whole number"]),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ["Rank 2 does not exist in a world of 2"]),
        ({"RANK": "0", "WORLD_SIZE": "0", "LOCAL_RANK": "0"}, ["at least 1", "0"]),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, ["Local rank 4 of 4"]),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, ["Local rank 1 of 9", "world of 8"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_SIZE", "missing", "mpirun"]),
        ({"PMI_SIZE": "2"}, ["PMI_SIZE=2 is set", "PMI_RANK is missing"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ["MPI_LOCALRANKID", "missing"]),
        ({"PMIX_RANK": "0"}, ["PMIX_RANK is set to '0'", "how many ranks"]),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, ["SLURM_LOCALID is missing"]),
        ({"RANK_ID": "0"}, ["RANK_ID is set to '0'", "RANK_SIZE is missing"]),
        ({"RANK_SIZE": "2"}, ["RANK_ID is missing"]),
        ({"RANK_ID": "0", "RANK_SIZE": "2"}, ["DEVICE_ID is missing"]),
        (
            {"RANK_TABLE_FILE": "/tmp/t.json"},
            ["RANK_TABLE_FILE is set to '/tmp/t.json'", "RANK_ID is missing"],
        ),
        (
            {"RANK_TABLE_FILE": "/nowhere/t.json", "RANK_ID": "0"},
            ["/nowhere/t.json: cannot read this rank table: No such file"],
        ),
        ({"RANK_TABLE_FILE": "/", "RANK_ID": "0"}, ["/: expected a rank table in a regular file"]),
        # A RANK left over in the environment would make every started process the same rank.
        (
            {**OPENMPI, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
            ["RANK=0 and WORLD_SIZE=1 contradict OMPI_COMM_WORLD_RANK", "rank 1 of 4", "unset RANK"],
        ),
        (
            {**SRUN, "RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0"},
            ["contradict SLURM_PROCID", "rank 2 of 3"],
        ),
    ],
)
def test_half_set_or_contradictory(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(IdentityError) as caught:
        identify(environ=environ)
    for word in words:
        assert word in str(caught.value)


def test_explicit_wins_and_takes_the_job_from_the_environment() -> None:
    given = Identity(1, 2, 1, 2, source="arguments")
    found = identify(given, {**OPENMPI, "SHARDRUN_JOB": "feed"})
    assert (found.rank, found.world_size, found.source, found.key) == (1, 2, "arguments", "job:feed")


@pytest.mark.parametrize(
    "bad", [{"rank": 2}, {"rank": -1}, {"world_size": 0}, {"rank": True}, {"local_rank": "0"}]
)
def test_explicit_is_checked(bad: dict[str, int]) -> None:
    with pytest.raises(IdentityError):
        Identity(**{"world_size": 2, **bad})


def test_ranks_of_one_job_share_a_key_and_jobs_do_not() -> None:
    def key(environ: dict[str, str], **changes: str) -> str:
        return identify(environ={**environ, **changes}).key

    assert key(OPENMPI) == key(
        OPENMPI, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_LOCAL_RANK="0", PMIX_RANK="0"
    )
    assert key(OPENMPI) != key(OPENMPI, PMIX_NAMESPACE="prterun-h1-1235@1")
    assert key(SRUN) == key(SRUN, SLURM_PROCID="1", SLURM_LOCALID="1", SLURM_NODEID="0")
    assert key(SRUN) != key(SRUN, SLURM_STEP_ID="1")
    assert key(TORCHRUN) == key(TORCHRUN, RANK="6", LOCAL_RANK="2")
    assert key(TORCHRUN) != key(TORCHRUN, MASTER_PORT="29501")
    assert key(OPENMPI, SHARDRUN_JOB="a") != key(OPENMPI, SHARDRUN_JOB="b")


def test_start_is_quick_because_nothing_heavy_is_imported() -> None:
    heavy = "torch numpy mpi4py onnx onnxruntime pydantic rich yaml"
    program = (
        f"import sys, ranks.identity.identity; print([m for m in '{heavy}'.split() if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def table(*servers: list[tuple[object, object]]) -> dict[str, object]:
    return {
        "version": "1.0",
        "server_count": str(len(servers)),
        "status": "completed",
        "server_list": [
            {
                "server_id": f"10.0.0.{s}",
                "device": [
                    {"device_id": d, "device_ip": f"192.168.{s}.{d}", "rank_id": r} for d, r in devices
                ],
            }
            for s, devices in enumerate(servers)
        ],
    }


TWO_SERVERS = table([("0", "0"), ("4", "1")], [("2", "3"), ("1", "2")])


def test_rank_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TWO_SERVERS))
    found = identify(
        environ={"RANK_TABLE_FILE": str(path), "RANK_ID": "3", "RANK_SIZE": "4", "DEVICE_ID": "2"}
    )
    assert (found.rank, found.world_size, found.local_rank, found.local_size, found.device) == (3, 4, 1, 2, 2)
    assert not found.shares_host
    other = identity_from_table(path, 0)
    assert other.key == found.key
    assert identity_from_table(path, device=4).rank == 1


def test_rank_table_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(
        "version: 1.0\nserver_count: 1\nstatus: completed\nserver_list:\n- server_id: a\n  device:\n"
        "  - {device_id: 0, rank_id: 0}\n  - {device_id: 1, rank_id: 1}\n"
    )
    found = identity_from_table(path, 1)
    assert (found.rank, found.local_size, found.shares_host) == (1, 2, True)
    same = tmp_path / "table.json"
    same.write_text(load_rank_table(path).to_json())
    assert identity_from_table(same, 0).key == found.key  # one table: its ranks find each other


def test_rank_table_as_ascend_tools_write_it(tmp_path: Path) -> None:
    path = tmp_path / "hccl_2p_01_127.0.0.1.json"
    table = {
        "version": "1.0",
        "server_count": "1",
        "server_list": [
            {
                "server_id": "10.155.111.140",
                "device": [
                    {"device_id": "0", "device_ip": "192.1.27.6", "rank_id": "0"},
                    {"device_id": "1", "device_ip": "192.2.27.6", "rank_id": "1"},
                ],
                "host_nic_ip": "reserve",
            }
        ],
        "status": "completed",
    }
    path.write_text(json.dumps(table))
    assert identity_from_table(path, device=1).rank == 1


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"server_list": [{"server_id": "h", "device": [{"rank_id": "0", "device_id": "0"}]}]}',
        json.dumps(table([("0", "0")])).replace('"rank_id": "0"', '"rank_id": 0').encode(),
        json.dumps(table([("0", "00")])).encode(),
        json.dumps(table([("0", "0")]) | {"status": None}).encode(),
        json.dumps(table([("0", "0")]) | {"x": "x" * MAX_BYTES}).encode(),
    ],
    ids=["cut", "bare", "number", "zeros", "state", "large"],
)
def test_a_rank_by_hand_and_the_command_refuse_the_same_tables(tmp_path: Path, content: bytes) -> None:
    """What the two once judged apart: HCCL needs all four keys, and in JSON numbers as strings."""
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(IdentityError) as by_hand:
        identity_from_table(path, 0)
    with pytest.raises(RankTableError) as by_command:
        launcher_table.load_rank_table(path)
    assert str(by_hand.value) == str(by_command.value)


@pytest.mark.parametrize(
    ("content", "rank", "device", "size", "words"),
    [
        ("", 0, None, None, ["cannot be read"]),
        (b"\xff\xfe\x00", 0, None, None, ["UTF-8"]),
        ('{"server_list": {}}', 0, None, None, ["expected", "more"]),
        (
            table([("0", "0")]) | {"status": "initializing"},
            0,
            None,
            None,
            ['$.status: expected "completed"', '"initializing"'],
        ),
        (table([("0", "x")]), 0, None, None, ["server_list[0].device[0].rank_id", '"x"']),
        (
            table([("0", "0"), ("0", "1")]),
            0,
            None,
            None,
            ["device[1].device_id: expected a device used once"],
        ),
        (table([("0", "0"), ("1", "0")]), 0, None, None, ["rank_id: expected a rank used once"]),
        (table([("0", "0"), ("1", "2")]), 0, None, None, ["expected a rank from 0 to 1", "found 2"]),
        (TWO_SERVERS, 4, None, None, ["Rank 4 is not in rank table", "0 to 3"]),
        (TWO_SERVERS, 0, 3, None, ["device_id 0", "device 3"]),
        (TWO_SERVERS, 0, None, 2, ["RANK_SIZE is 2", "4 ranks"]),
        (TWO_SERVERS, None, 9, None, ["device_id 9 stands 0 times"]),
    ],
)
def test_bad_rank_tables(
    tmp_path: Path, content: object, rank: int | None, device: int | None, size: int | None, words: list[str]
) -> None:
    path = tmp_path / "table.json"
    raw = (
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )
    path.write_bytes(raw)
    with pytest.raises(IdentityError) as caught:
        identity_from_table(path, rank, device, size)
    for word in [str(path), *words]:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("environ", [TORCHRUN, OPENMPI, MPICH, SRUN, {"RANK_TABLE_FILE": "t"}])
def test_a_process_beside_the_ranks_is_no_rank(environ: dict[str, str]) -> None:
    """Of whatever launcher's; what the user set for all of shardrun's processes stays."""
    users = {"SHARDRUN_TIMEOUT": "5", "SHARDRUN_CACHE_LIMIT": "1GB", "OMPI_MCA_btl": "self", "HOME": "/"}
    left = alone({**environ, **users, "SHARDRUN_JOB": "0" * 32, "SHARDRUN_CONTROL": "unix:@c"})
    assert identify(environ=left) == Identity()
    assert users.items() <= left.items() and not {"SHARDRUN_JOB", "SHARDRUN_CONTROL"} & left.keys()
