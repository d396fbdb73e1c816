"""What version 1.2 of rank tables has besides: which servers form a super pod, and devices' numbers in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharding.common.rank_table import Checker

VERSION = "1.2"
KEY = "super_pod_list"
LARGEST = 2**32 - 1
"""A device's number in its super pod has 32 bits."""


def check_devices(check: Checker, servers: Sequence[dict[str, object]]) -> None:
    """Notes every device without a number in its super pod."""
    for index, server in enumerate(servers):
        devices = server.get("device")
        for number, device in enumerate(devices if isinstance(devices, list) else []):
            if isinstance(device, dict):
                place = f"$.server_list[{index}].device[{number}]"
                check.number(device, "super_device_id", place, LARGEST)


def check_pods(check: Checker, document: dict[str, object], servers: Sequence[dict[str, object]]) -> None:
    """Notes what is wrong with the list of super pods: each server must be in one of them."""
    names = [server.get("server_id") for server in servers]
    known: set[object] = {name for name in names if isinstance(name, str)}
    seen: dict[str, str] = {}
    pods: dict[str, str] = {}
    for index, pod in enumerate(check.items(document, KEY, "$", "super pods") or ()):
        path = f"$.{KEY}[{index}]"
        name = check.get(pod, "super_pod_id", path, "the super pod's name", _is_text, kind=" as text")
        if isinstance(name, str):
            check.once(pods, name, f"{path}.super_pod_id", "a super pod named once")
        for number, member in enumerate(check.items(pod, "server_list", path, "servers") or ()):
            place, expected = f"{path}.server_list[{number}]", "the name of a server of server_list"
            server = check.get(
                member, "server_id", place, expected, lambda name: _is_text(name) and name in known
            )
            if isinstance(server, str):
                check.once(seen, server, f"{place}.server_id", "a server in one super pod")
    if KEY in document and seen:
        for index, name in enumerate(names):
            if isinstance(name, str) and name not in seen:
                check.fail(
                    f"$.{KEY}",
                    f"every server in a super pod, that of $.server_list[{index}] too",
                    "it in none",
                )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def pods_of(document: dict[str, object]) -> dict[str, list[dict[str, object]]]:
    """The servers of each super pod of a table that was checked."""
    found: dict[str, list[dict[str, object]]] = {}
    pods = document.get(KEY)
    for pod in pods if isinstance(pods, list) else []:
        found[pod["super_pod_id"]] = list(pod["server_list"])
    return found
