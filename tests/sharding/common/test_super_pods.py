"""Rank tables of version 1.2, as servers of super pods have them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharding.common.documents import DocumentError
from sharding.common.rank_table import find_problems, load_rank_table


def table(first: int = 0, server: str = "node_0", pod: str = "0") -> dict[str, Any]:
    """A table of one server, with keys that are HCCL's own too."""
    devices = [
        {
            "device_id": str(number), "super_device_id": str(3774873600 + number),
            "device_ip": f"192.168.1.{number + 6}", "device_port": "16666", "host_port": "16665",
            "rank_id": str(first + number),
        }
        for number in range(2)
    ]  # fmt: skip
    return {
        "status": "completed",
        "version": "1.2",
        "server_count": "1",
        "server_list": [{"server_id": server, "host_ip": f"172.16.0.10{server[-1]}", "device": devices}],
        "super_pod_list": [{"super_pod_id": pod, "server_list": [{"server_id": server}]}],
    }


def write(folder: Path, data: Any, name: str = "t.json") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(data) if name.endswith("yaml") else json.dumps(data))
    return path


def test_it_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    read = load_rank_table(write(tmp_path, table()))
    places = [(one.rank, one.device_id, one.host, one.device_ip) for one in read.devices]
    assert places == [(0, 0, "172.16.0.100", "192.168.1.6"), (1, 1, "172.16.0.100", "192.168.1.7")]
    assert json.loads(read.to_json()) == table()
    (tmp_path / "t.yaml").write_text(read.to_yaml())
    assert "super_device_id: 3774873600" in read.to_yaml() and "version: '1.2'" in read.to_yaml()
    again = load_rank_table(tmp_path / "t.yaml")
    assert json.loads(again.to_json()) == table()


def test_an_unquoted_version_in_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, {**table(), "version": 1.2}, "t.yaml")
    assert json.loads(load_rank_table(path).to_json())["version"] == "1.2"


def _pods(data: dict[str, Any], *pods: Any) -> None:
    data["super_pod_list"] = list(pods)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("super_pod_list"), "$.super_pod_list: expected a list of super pods, at least one"),
        (_pods, "$.super_pod_list: expected a list of super pods, at least one, found []"),
        (lambda t: _pods(t, 3), "$.super_pod_list[0]: expected an object, found 3"),
        (lambda t: _pods(t, {"super_pod_id": 0, "server_list": [{"server_id": "node_0"}]}), "name as text"),
        (lambda t: _pods(t, {"super_pod_id": "0"}), "$.super_pod_list[0].server_list: expected a list"),
        (
            lambda t: _pods(t, {"super_pod_id": "0", "server_list": [{"server_id": "other"}]}),
            '[0].server_list[0].server_id: expected the name of a server of server_list, found "other"',
        ),
        (
            lambda t: _pods(t, *(2 * [{"super_pod_id": "0", "server_list": [{"server_id": "node_0"}]}])),
            '$.super_pod_list[1].super_pod_id: expected a super pod named once, found "0", also at',
        ),
        (
            lambda t: t["super_pod_list"].append(table(pod="1")["super_pod_list"][0]),
            "expected a server in one super pod",
        ),
        (
            lambda t: t["server_list"].append({"server_id": "b", "device": [
                {"device_id": "0", "super_device_id": "1", "rank_id": "2"}]}) or t.update(server_count="2"),
            "expected every server in a super pod, that of $.server_list[1] too",
        ),
        (lambda t: t["server_list"][0]["device"][1].pop("super_device_id"), "[1].super_device_id: expected"),
        (
            lambda t: t["server_list"][0]["device"][1].update(super_device_id=str(2**32)),
            f'device[1].super_device_id: expected a number as a string, such as "0", found "{2**32}"',
        ),
        (lambda t: t["server_list"][0].update(host_ip="x"), '.host_ip: expected an IP address, found "x"'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    data = copy.deepcopy(table())
    change(data)
    path = write(tmp_path, data)
    assert any(message in problem for problem in find_problems(path)), find_problems(path)
    with pytest.raises(DocumentError):
        load_rank_table(path)
