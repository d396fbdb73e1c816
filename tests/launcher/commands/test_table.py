"""Rank tables merged, and made of what a machine says of its devices."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from launcher import cli
from launcher.common import devices_here
from launcher.job.rank_table import load_rank_table, merge_rank_tables, with_places
from tests.sharding.common.test_super_pods import table, write


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(list(map(str, arguments)))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_tables_of_hosts_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        write(tmp_path, table(0, f"node_{number}", pod), f"{number}.json")
        for number, pod in enumerate(("0", "1", "0"))
    ]
    code, out, _ = run(capsys, "table", "merge", *files)
    whole = json.loads(out)
    assert code == 0 and whole["version"] == "1.2" and whole["server_count"] == "3"
    ranks = [[device["rank_id"] for device in server["device"]] for server in whole["server_list"]]
    assert ranks == [["0", "1"], ["2", "3"], ["4", "5"]]
    pods = {
        pod["super_pod_id"]: [one["server_id"] for one in pod["server_list"]]
        for pod in whole["super_pod_list"]
    }
    assert pods == {"0": ["node_0", "node_2"], "1": ["node_1"]}
    code, out, _ = run(capsys, "table", "check", write(tmp_path, whole, "all.json"))
    assert code == 0 and "6 ranks on 3 hosts" in out


def test_tables_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path, table(), "a.json")
    code, out, err = run(capsys, "table", "merge", first, first)
    assert (code, out) == (2, "") and "a.json: the server 'node_0' is also in" in err
    plain = {**table(0, "node_1"), "version": "1.0"}
    code, _, err = run(capsys, "table", "merge", first, write(tmp_path, plain, "b.json"))
    assert code == 2 and "b.json: this rank table is of version 1.0, but" in err
    code, _, err = run(capsys, "table", "merge", first, tmp_path / "none.json")
    assert code == 2 and "none.json: cannot read this rank table" in err


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(devices_here, "HCCN", tmp_path / "hccn.conf")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_table_of_gpus(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(programs, "nvidia-smi", "printf '0\\n1\\n3\\n'")
    code, out, _ = run(capsys, "table", "make", "--gpus")
    (server,) = json.loads(out)["server_list"]
    assert code == 0
    assert [(one["device_id"], one["rank_id"]) for one in server["device"]] == [
        ("0", "0"),
        ("1", "1"),
        ("3", "2"),
    ]
    warned = "printf '0\\nUnable to determine the device handle for GPU 7 : Unknown Error\\n 1 \\n'"
    program(programs, "nvidia-smi", warned)
    (server,) = json.loads(run(capsys, "table", "make", "--gpus")[1])["server_list"]
    assert [one["device_id"] for one in server["device"]] == ["0", "1"]


def test_a_table_of_npus(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(programs, "npu-smi", "printf '\\tTotal Count                    : 2\\n'")
    code, out, _ = run(capsys, "table", "make", "--npus")
    (server,) = json.loads(out)["server_list"]
    assert code == 0 and [one["device_id"] for one in server["device"]] == ["0", "1"]
    listed = "printf '\\tTotal Count : 2\\n\\n\\tNPU ID : 4\\n\\tChip Count : 1\\n\\n\\tNPU ID : 6\\n'"
    program(programs, "npu-smi", listed)
    (server,) = json.loads(run(capsys, "table", "make", "--npus")[1])["server_list"]
    assert [one["device_id"] for one in server["device"]] == ["4", "6"]
    # Two chips a card: each is a device, whose number is another than the card's.
    cards = "printf 'Total Count : 2\\n\\nNPU ID : 1\\nChip Count : 2\\n\\nNPU ID : 2\\nChip Count : 2\\n'"
    for head, rows in (
        ("Chip Logic ID  Chip Name", "1 0 0 A\\n1 1 1 A\\n1 2 - Mcu\\n2 0 2 Ascend 310P3\\n2 1 3 A"),
        (
            "Chip Logic ID  Chip Phy-ID  Chip Name",
            "1 0 9 0 A\\n1 1 8 1 A\\n1 2 - - M\\n2 0 7 2 B\\n2 1 6 3 B",
        ),
    ):
        chips = f"printf '\\tNPU ID  Chip ID  {head} \\n{rows}\\n'"
        program(programs, "npu-smi", f'if [ "$2" = -m ]; then {chips}; else {cards}; fi')
        (server,) = json.loads(run(capsys, "table", "make", "--npus")[1])["server_list"]
        assert [one["device_id"] for one in server["device"]] == ["0", "1", "2", "3"]
    (programs / "hccn.conf").write_text(
        "# cards\naddress_1=192.168.100.102\nnetmask_1=255.255.255.0\naddress_0=192.168.100.101\n"
    )
    code, out, _ = run(capsys, "table", "make", "--npus")
    (server,) = json.loads(out)["server_list"]
    assert [one["device_ip"] for one in server["device"]] == ["192.168.100.101", "192.168.100.102"]


@pytest.mark.parametrize(
    ("flag", "texts", "message"),
    [
        ("--gpus", {}, "--gpus: there is no nvidia-smi on PATH"),
        ("--gpus", {"nvidia-smi": "echo 'no driver' >&2; exit 9"}, "--gpus: nvidia-smi fails (no driver)"),
        ("--gpus", {"nvidia-smi": "echo 'No devices were found'"}, "lists no GPU"),
        ("--npus", {}, "--npus: there is no npu-smi on PATH"),
        ("--npus", {"npu-smi": "echo 'Total Count : 0'"}, "npu-smi lists no NPU"),
        ("--npus", {"hccn.conf": "address_0=1.2.3"}, "address_0: expected an IP address, found '1.2.3'"),
        ("--npus", {"hccn.conf": "x"}, "has no line such as address_0"),
    ],
)  # fmt: skip
def test_no_devices(
    programs: Path, capsys: pytest.CaptureFixture[str], flag: str, texts: dict[str, str], message: str
) -> None:
    for name, text in texts.items():
        if name == "hccn.conf":
            (programs / name).write_text(text)
        else:
            program(programs, name, text)
    code, out, err = run(capsys, "table", "make", flag)
    assert (code, out) == (2, "") and message in err and len(err.splitlines()) == 1


def test_tables_of_hostfiles_and_allocations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ranks(*words: object) -> list[tuple[str, int]]:
        code, out, err = run(capsys, "table", "make", *words)
        assert code == 0, err
        return [(one["server_id"], len(one["device"])) for one in json.loads(out)["server_list"]]

    (tmp_path / "hosts.txt").write_text("# ours\nnode1 slots=2\nnode2:1\nnode3\n")
    assert ranks("--hostfile", tmp_path / "hosts.txt") == [("node1", 2), ("node2", 1), ("node3", 1)]
    with monkeypatch.context() as slurm:
        for name, value in (("NODELIST", "a[1-2],b"), ("ID", "7")):
            slurm.setenv(f"SLURM_JOB_{name}", value)
        slurm.setenv("SLURM_TASKS_PER_NODE", "2(x2),1")
        slurm.setenv("SLURM_NTASKS", "5")
        assert ranks("--allocation") == [("a1", 2), ("a2", 2), ("b", 1)]
    with monkeypatch.context() as pbs:
        (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
        pbs.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
        pbs.setenv("PBS_JOBID", "3.head")
        assert ranks("--allocation") == [("n1", 2), ("n2", 1)]
    with monkeypatch.context() as lsf:
        lsf.setenv("LSB_JOBID", "9")
        lsf.setenv("LSB_MCPU_HOSTS", "m1 1 m2 3")
        assert ranks("--allocation") == [("m1", 1), ("m2", 3)]
    code, out, err = run(capsys, "table", "make", "--allocation")
    assert (code, out) == (2, "") and "--allocation: this is no job of Slurm, PBS or LSF" in err


def test_cores_and_interfaces(tmp_path: Path, capsys: pytest.CaptureFixture[str], programs: Path) -> None:
    words = ("table", "make", "--hosts", "n1:2,n2:2", "--cores", "0-3/4,6", "--interface", "eth0")
    for form in ("json", "yaml"):
        path = tmp_path / f"table.{form}"
        assert run(capsys, *words, "--output", path)[0] == 0
        code, out, _ = run(capsys, "table", "check", path)
        rows = [line.split() for line in out.splitlines()[3:]]
        assert code == 0
        assert rows[0] == ["0", "n1", "0", "0", "-", "0-3", "eth0"]
        assert rows[3] == ["3", "n2", "1", "1", "-", "4,6", "eth0"]
    code, out, err = run(capsys, *words[:5], "0-3")
    assert (code, out) == (2, "") and "--cores 0-3: cores of 1 rank, but n1 has 2" in err
    code, _, err = run(capsys, "table", "make", "--local", 1, "--cores", "all")
    assert code == 2 and "$.server_list[0].device[0].cores: expected processors" in err
    for flag in ("--cores", "--interface"):  # as of a variable of the shell that is not set
        code, out, err = run(capsys, "table", "make", "--local", 1, flag, "")
        assert (code, out) == (2, "") and f"{flag}: expected" in err and "found an empty text" in err
    for cores in ("5-3", "0,0-999999"):
        code, _, err = run(capsys, "table", "make", "--local", 1, "--cores", cores)
        assert code == 2 and "$.server_list[0].device[0].cores: expected processors" in err
    code, _, err = run(capsys, "table", "make", "--local", 1, "--interface", "a b")
    assert code == 2 and "$.server_list[0].interface: expected a network interface" in err
    program(programs, "nvidia-smi", "printf '0\\n1\\n'")
    code, out, _ = run(capsys, "table", "make", "--gpus", "--cores", "0/1")
    (server,) = json.loads(out)["server_list"]
    assert code == 0 and [one["cores"] for one in server["device"]] == ["0", "1"]
    code, _, err = run(capsys, "table", "make", "--gpus", "--cores", "0")
    assert code == 2 and "--cores 0: cores of 1 rank, but there are 2 devices" in err


def test_tables_that_others_are_made_of_stay_as_they_are(tmp_path: Path) -> None:
    tables = [
        load_rank_table(write(tmp_path, table(0, f"node_{number}"), f"{number}")) for number in range(2)
    ]
    before = deepcopy([one.document for one in tables])
    assert merge_rank_tables(tables).world_size == 4
    placed = with_places(tables[0], ["0-1", "2"], "eth0")
    assert [device.cores for device in placed.devices] != [device.cores for device in tables[0].devices]
    assert [one.document for one in tables] == before
