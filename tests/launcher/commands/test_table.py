"""Rank tables merged, and made of what a machine says of its devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher import cli
from launcher.common import devices_here
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
    monkeypatch.setattr(devices_here.of_npus, "__defaults__", (tmp_path / "hccn.conf",))
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


def test_a_table_of_npus(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(programs, "npu-smi", "printf '\\tTotal Count                    : 2\\n'")
    code, out, _ = run(capsys, "table", "make", "--npus")
    (server,) = json.loads(out)["server_list"]
    assert code == 0 and [one["device_id"] for one in server["device"]] == ["0", "1"]
    listed = "printf '\\tTotal Count : 2\\n\\n\\tNPU ID : 4\\n\\tChip Count : 1\\n\\n\\tNPU ID : 6\\n'"
    program(programs, "npu-smi", listed)
    (server,) = json.loads(run(capsys, "table", "make", "--npus")[1])["server_list"]
    assert [one["device_id"] for one in server["device"]] == ["4", "6"]
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
