"""Which groups a rank joins for its GPU, and what is asked of the one of the host before NCCL starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranks.devices import devices
from ranks.errors import CollectiveError, DeviceError
from ranks.identity.place import Identity
from ranks.run import gpus, group
from ranks.talk.guard import GUARD

SECOND = Identity(1, 2, 1, 2)
APART = Identity(1, 2, 0, 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is connected and compared, with nothing really joined."""
    made: list[Any] = []

    def connect(identity: Identity, name: str, timeout: float | None, device: str) -> Any:
        made.append((identity.rank, name, timeout, device))
        return SimpleNamespace(name=f"{name} for {device}", close=lambda: made.append(f"close {device}"))

    monkeypatch.setattr(group, "connect", connect)
    monkeypatch.setattr(gpus, "demand_own", lambda host, device: made.append((host.name, device)))
    monkeypatch.setattr(GUARD, "stand", lambda *_: None)
    monkeypatch.setattr(devices, "visible", lambda: 1)
    monkeypatch.setenv("SHARDRUN_COLLECTIVES", "nccl")  # which are none for values on the host
    return made


def test_ranks_of_one_host_compare_their_gpus_first(asked: list[Any]) -> None:
    """As many seconds are waited for the host's group, and a rank that sees one GPU has it."""
    group.Groups().join(SECOND, device="cuda", timeout=7.0)
    assert asked == [(1, "auto", 7.0, "cpu"), ("auto for cpu", 0), (1, "nccl", 7.0, "cuda")]


@pytest.mark.parametrize(("identity", "count"), [(APART, 1), (SECOND, 0)])
def test_no_group_of_the_host_is_made_where_nothing_is_to_be_compared(
    identity: Identity, count: int, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of several hosts compare where they meet, and joining says that there is no GPU."""
    monkeypatch.setattr(devices, "visible", lambda: count)
    group.Groups().join(identity, device="cuda", timeout=7.0)
    assert asked == [(1, "nccl", 7.0, "cuda")]


@pytest.mark.parametrize(("identity", "device"), [(SECOND, "cpu"), (SECOND, "npu"), (Identity(), "cuda")])
def test_others_compare_nothing(identity: Identity, device: str, asked: list[Any]) -> None:
    group.Groups().join(identity, "auto", device, 7.0)
    assert asked == [(identity.rank, "auto", 7.0, device)]


def test_a_gpu_that_two_have_leaves_no_group_of_it(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise DeviceError("both use it")

    monkeypatch.setattr(gpus, "demand_own", refused)
    groups = group.Groups()
    with pytest.raises(DeviceError, match="both use it"):
        groups.join(SECOND, device="cuda")
    assert [one[3] for one in asked] == ["cpu"] and list(groups.joined) == ["cpu"]
    groups.leave()
    assert asked[-1] == "close cpu"


def test_who_has_joined_joins_no_other_group(asked: list[Any]) -> None:
    groups = group.Groups()
    first = groups.join(SECOND, "auto", timeout=7.0)
    assert groups.join(SECOND) is groups.join() is groups.join(Identity(1, 2, 1, 2), "auto") is first
    for other in (Identity(0, 2, 0, 2), Identity(1, 3, 1, 3)):
        with pytest.raises(CollectiveError, match="rank 1 of 2 already and cannot also be rank"):
            groups.join(other)
    with pytest.raises(CollectiveError, match=r"uses the .* collectives already, not gloo"):
        groups.join(SECOND, "gloo")
    assert len(asked) == 1
