"""Which of several ranks use one GPU, as each of them says which it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ranks.devices.cuda_driver import Driver
from ranks.errors import DeviceError


class Shared(NamedTuple):
    """The first two of several that use one GPU, by their place among them, and which GPU it is, in words."""

    first: int
    second: int
    gpu: str


def uuid_of(device: int) -> str:
    """What tells the GPU with this number in this process from all others, on any host."""
    return Driver().uuid(device)


def first_shared(held: Iterable[tuple[str, int]]) -> Shared | None:
    """Who of those that hold these GPUs (its `uuid_of`, "" for one that is not known, and its number in that
    process) come first of those that share one; None where each has its own."""
    holders: dict[str, tuple[int, int]] = {}
    for rank, (uuid, number) in enumerate(held):
        if uuid and uuid in holders:
            first, other = holders[uuid]
            each = f"device {number} of each" if number == other else f"device {other} and {number} of theirs"
            return Shared(first, rank, f"{in_words(uuid)} ({each})")
        holders[uuid] = rank, number
    return None


def refusal(first: int, second: int, gpu: str) -> DeviceError:
    """The error for two ranks that have come to one GPU, which NCCL refuses."""
    return DeviceError(
        f"Ranks {first} and {second} both use {gpu}, but NCCL needs a GPU for each rank: start no more ranks "
        "on a host than it has GPUs, have the scheduler show each rank another one (or all of them to all), "
        "or let ranks share GPUs with --collectives shm, which is slower."
    )


def in_words(uuid: str) -> str:
    """A GPU as NVIDIA's tools name it."""
    parts = uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]
    return f"the GPU GPU-{'-'.join(parts)}"
