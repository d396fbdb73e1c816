# ruff: noqa: E501 - the tables of cases stay one line each
"""Rank tables: reading, writing without loss, and one clear sentence for everything that is wrong."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.common.documents import MAX_BYTES, DocumentError
from sharding.common.rank_table import find_problems, load_rank_table, make_rank_table, parse_rank_table

TABLE: dict[str, Any] = {
    "version": "1.0",
    "server_count": "2",
    "x_site": {"rack": ["b", 1, None, True, 1.5]},
    "server_list": [
        {
            "server_id": "node_0",
            "server_ip": "10.0.0.1",
            "device": [
                {"device_id": "0", "device_ip": "192.168.1.8", "rank_id": "2"},
                {"device_id": "1", "rank_id": "0", "device_port": "16666"},
            ],
            "host_nic_ip": "reserve",
        },
        {"server_id": "node_1", "device": [{"device_id": "7", "rank_id": "1"}, {"rank_id": "3", "device_id": "0"}]},
    ],
    "status": "completed",
}  # fmt: skip


def write(folder: Path, data: Any, name: str = "table.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(data) if name.endswith(".json") else yaml.safe_dump(data, sort_keys=False))
    return path


def test_places_of_ranks(tmp_path: Path) -> None:
    table = load_rank_table(write(tmp_path, TABLE))
    assert [(d.rank, d.host, d.device_id, d.local_rank, d.device_ip) for d in table.devices] == [
        (0, "10.0.0.1", 1, 0, None),
        (1, "node_1", 7, 0, None),
        (2, "10.0.0.1", 0, 1, "192.168.1.8"),
        (3, "node_1", 0, 1, None),
    ]
    assert {host: [d.rank for d in devices] for host, devices in table.hosts.items()} == {
        "10.0.0.1": [0, 2],
        "node_1": [1, 3],
    }


def test_json_and_yaml_are_written_without_loss(tmp_path: Path) -> None:
    table = load_rank_table(write(tmp_path, TABLE))
    again = json.loads(table.to_json())
    assert again == TABLE
    assert json.dumps(again) == json.dumps(TABLE)  # the order of keys too
    text = table.to_yaml()
    assert "rank_id: 2" in text and "server_count: 2" in text and "version: '1.0'" in text
    path = tmp_path / "table.yaml"
    path.write_text(text)
    from_yaml = load_rank_table(path)
    assert from_yaml.devices == table.devices
    assert json.dumps(json.loads(from_yaml.to_json())) == json.dumps(TABLE)


def test_what_yaml_reads_as_numbers_is_text_in_json(tmp_path: Path) -> None:
    """One core, or an interface with a name of digits; and keys of another version stay what they are."""
    (tmp_path / "t.yaml").write_text(
        "version: '1.0'\nserver_count: 1\nstatus: completed\nserver_list:\n- server_id: a\n  interface: 7\n"
        "  device: [{device_id: 0, rank_id: 0, cores: 3, super_device_id: '::1'}]\n"
    )
    table = load_rank_table(tmp_path / "t.yaml")
    again = parse_rank_table(json.loads(table.to_json()), strings_only=True)
    assert again.devices == table.devices and (again.devices[0].cores, again.devices[0].interface) == (
        "3",
        "7",
    )
    assert json.loads(table.to_json())["server_list"][0]["device"][0]["super_device_id"] == "::1"
    (tmp_path / "again.yaml").write_text(table.to_yaml())
    assert load_rank_table(tmp_path / "again.yaml").devices == table.devices


def test_unquoted_version_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "table.yml"
    path.write_text(make_rank_table([("localhost", 1)]).to_yaml().replace("'1.0'", "1.0"))
    assert load_rank_table(path).world_size == 1
    assert json.loads(load_rank_table(path).to_json())["version"] == "1.0"


def test_examples_in_the_repository() -> None:
    folder = Path(__file__).parents[3] / "rank_tables"
    sizes = {path.name: load_rank_table(path).world_size for path in folder.glob("*.[jy]*")}
    assert sizes == {"one_host_two_ranks.json": 2, "two_hosts_four_ranks.yaml": 4}


def edited(*steps: Any, value: Any = ..., key: str | None = None) -> dict[str, Any]:
    """A copy of TABLE with the place at ``steps`` set, or its ``key`` removed."""
    data = copy.deepcopy(TABLE)
    place: Any = data
    for step in steps[:-1] if key is None else steps:
        place = place[step]
    if key is None:
        place[steps[-1]] = value
    else:
        del place[key]
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (edited("version", value="1.1"), '$.version: expected "1.0" or "1.2", found "1.1"'),
        (edited("version", value=1.0), '$.version: expected "1.0" or "1.2", found 1.0'),
        (edited(key="version"), '$.version: expected "1.0" or "1.2", found nothing'),
        (edited("version", value="1.2"), "$.server_list[0].device[0].super_device_id: expected a number"),
        (edited(key="status"), '$.status: expected "completed", found nothing'),
        (edited("status", value="initializing"), '(a table in any other state is not ready), found "initializing"'),
        (edited("server_count", value="3"), '$.server_count: expected 2, the length of server_list, found "3"'),
        (edited("server_count", value=2), '$.server_count: expected a number as a string, such as "0", found 2'),
        (edited("server_list", value=[]), "$.server_list: expected a list of servers, at least one, found []"),
        (edited("server_list", value={}), "$.server_list: expected a list of servers, at least one, found {}"),
        (edited("server_list", 1, value=5), "$.server_list[1]: expected an object, found 5"),
        (edited("server_list", 1, "server_id", value="node_0"), '"node_0", also at $.server_list[0].server_id'),
        (edited("server_list", 1, "server_id", value="-x"), "$.server_list[1].server_id: expected the server's name"),
        (edited("server_list", 0, "server_ip", value="10.0"), "$.server_list[0].server_ip: expected an IP address"),
        (edited("server_list", 0, key="device"), "$.server_list[0].device: expected a list of devices, at least one"),
        (edited("server_list", 0, "device", 1, "cores", value="0,3-1"),
         '$.server_list[0].device[1].cores: expected processors such as "0-3,8", the lower number first, found "0,3-1"'),
        (edited("server_list", 0, "device", 1, "cores", value=""), '[1].cores: expected processors such as "0-3,8"'),
        (edited("server_list", 0, "device", 1, "device_id", value="0"),
         '$.server_list[0].device[1].device_id: expected a device used once on its server, found "0", also at'),
        (edited("server_list", 0, "device", 1, "rank_id", value="2"),
         '$.server_list[0].device[1].rank_id: expected a rank used once, found "2", also at'),
        (edited("server_list", 0, "device", 1, "rank_id", value="4"),
         "$.server_list[0].device[1].rank_id: expected a rank from 0 to 3 (the table has 4 devices), found 4"),
        (edited("server_list", 0, "device", 1, "rank_id", value="-1"), 'found "-1"'),
        (edited("server_list", 0, "device", 1, "rank_id", value="01"), 'found "01"'),
        (edited("server_list", 0, "device", 1, "rank_id", value="9" * 5000), 'found "999'),
        (edited("server_list", 0, "device", 1, "rank_id", value=True), "found true"),
        (edited("server_list", 0, "device", 0, "device_ip", value="1.2.3"), "device_ip: expected an IP address"),
        (edited("server_list", 0, "server_ip", value=5), "$.server_list[0].server_ip: expected text, found 5"),
        (edited("server_list", 1, "host_nic_ip", value=[]),
         "$.server_list[1].host_nic_ip: expected text, found []"),
        (edited("server_list", value=[server | {"server_ip": "10.0.0.9"} for server in TABLE["server_list"]]),
         '$.server_list[1].server_ip: expected an address used once, found "10.0.0.9", also at $.server_list[0]'),
        (edited("group_list", value=[]), 'expected a rank table of version "1.0" with a server_list'),
        (edited("group_list", value=[]), "found the grouped format (group_list); write it anew"),
        (edited("server_group_list", value=[]), "found the grouped format (server_group_list); write it anew"),
        ([], "$: expected an object with version, server_count, server_list and status, found []"),
    ],
)  # fmt: skip
def test_errors_name_file_place_value_and_expected(tmp_path: Path, data: Any, message: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(DocumentError) as caught:
        load_rank_table(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("value", ["-1", None, [], 3])
def test_one_wrong_rank_makes_no_other_wrong(tmp_path: Path, value: Any) -> None:
    """A device whose rank is no number is one of the table's devices all the same."""
    document = edited("server_list", 0, "device", 0, "rank_id", value=value)
    (problem,) = find_problems(write(tmp_path, document))
    assert "device[0].rank_id: expected a number as a string" in problem


def test_all_problems_are_found_together(tmp_path: Path) -> None:
    path = write(tmp_path, edited("server_list", 0, "device", 1, "device_ip", value="x") | {"status": "?"})
    problems = find_problems(path)
    assert len(problems) == 2
    assert "$.status" in problems[0] and "device[1].device_ip" in problems[1]
    with pytest.raises(DocumentError, match=r"and 1 more: `shardrun table check` lists all"):
        load_rank_table(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json", b"", "cannot be read"),
        ("t.json", b"{", "cannot be read"),
        ("t.json", b'{"a": 1, "a": 2}', 'the key "a" is given twice'),
        ("t.json", b"[" * 100000, "nested deeper"),
        ("t.json", b"[" * 40 + b"]" * 40, "nested deeper"),
        ("t.json", b"9" * 5000, "cannot be read"),
        ("t.json", b"\xff\xfe", "UTF-8 text, found another byte at offset 0"),
        ("t.json", b'{"a": NaN}', "expected a finite number"),
        ("t.json", b'{"a": "\\ud800"}', "surrogate"),
        ("t.yaml", b"a: &x [1]\nb: *x\n", "line 2: anchors and aliases are not allowed"),
        ("t.yaml", b"a: 1\na: 2\n", 'line 2: the key "a" is given twice'),
        ("t.yaml", b"1: 2\n", "keys are text, found 1"),
        ("t.yaml", b"[" * 40 + b"]" * 40, "nested deeper"),
        ("t.yaml", b"[" * 50000, "maximum nesting depth"),
        ("t.yaml", b"a: !!python/object/apply:os.system [ls]\n", "cannot be read"),
        ("t.yaml", b"a: [\n", "line 2"),
        ("t.yaml", b"\x00", "cannot be read"),
        ("t.yaml", b"a: !!binary aGk=\n", 'the tag "!!binary" is not allowed'),
        ("t.yaml", b"", "expected an object"),
        ("t.txt", b'{"a": 1, "a": 2}', 'the key "a" is given twice'),
    ],
)
def test_hostile_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DocumentError) as caught:
        load_rank_table(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for path, message in (
        (tmp_path / "absent.json", "No such file"),
        (tmp_path, "regular file"),
        (tmp_path / "pipe", "regular file"),
        (big, f"at most {MAX_BYTES} bytes, found {MAX_BYTES + 1}"),
        ("nul\0", "is not a file name"),
    ):
        with pytest.raises(DocumentError, match=message):
            load_rank_table(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    place=st.sampled_from([(), ("server_list",), ("server_list", 0), ("server_list", 0, "device", 1)]),
    key=st.sampled_from(["version", "status", "server_count", "server_list", "server_id", "device", "rank_id", "new"]),
    value=json_values,
)  # fmt: skip
def test_any_value_anywhere_is_read_or_refused_with_a_sentence(
    place: tuple[Any, ...], key: str, value: Any
) -> None:
    data = copy.deepcopy(TABLE)
    target: Any = data
    for step in place:
        target = target[step]
    if isinstance(target, list):
        target.append(value)
    else:
        target[key] = value
    try:
        table = parse_rank_table(data)
    except DocumentError as error:
        assert "expected" in str(error)
    else:
        assert [d.rank for d in table.devices] == list(range(table.world_size))


@settings(max_examples=100, deadline=None)
@given(extra=st.dictionaries(st.text(min_size=1).filter("group_list".__ne__), json_values, max_size=3))
def test_unknown_keys_survive_both_formats(
    tmp_path_factory: pytest.TempPathFactory, extra: dict[str, Any]
) -> None:
    data = {**extra, **TABLE}
    folder = tmp_path_factory.mktemp("table")
    path = write(folder, data)
    table = load_rank_table(path)
    assert json.loads(table.to_json()) == data
    (folder / "t.yaml").write_text(table.to_yaml(), encoding="utf-8")
    assert json.loads(load_rank_table(folder / "t.yaml").to_json()) == data


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200), name=st.sampled_from(["t.json", "t.yaml", "t"]))
def test_garbage(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    with pytest.raises(DocumentError):
        load_rank_table(path)
