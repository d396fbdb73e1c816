"""Whether the models of the ranks fit together, found out before they run.

Every rank tells all others what it will exchange, and each rank plays all of it through. So all ranks find a
rank that would wait for ever, here and not by a time-out.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ranks.collectives.base import Communicator
from ranks.collectives.buffers import Memory
from ranks.errors import ShardError
from ranks.models.part import Part
from ranks.sessions.cut import Cut
from ranks.sessions.nodes import POINT_TO_POINT
from sharding.common.arrays import Array

Event: TypeAlias = Sequence[Any]
"""A row of JSON, as `stuck` says."""

_UINT8, _INT64 = 2, 7
Said = TypeVar("Said")


def agree(
    plan: Cut,
    group: Communicator,
    memory: Memory,
    part: Part | None,
    fits: Mapping[str, bool] | None = None,
    *,
    final: bool = False,
) -> str | None:
    """Why the ranks' models cannot run together in their present order of collectives; None if they can.

    Every rank of ``group``, which is the world, must call it. ``final``: there is no other order to try, so
    messages may be sent before their receiver waits for them, as many as the backend keeps. ``fits``: what
    this rank found of its execution plan, if it has one. Raises `ShardError` where the ranks' models come
    from different slicings, and `ModelError` for a plan that fits none of them. ``memory`` learns how many
    ranks share its device.
    """
    simple = not plan.point_to_point and (part is None or part.mesh.size == part.mesh.length("tensor"))
    signature = hashlib.sha256(repr(plan.signatures()).encode()).digest()
    slicing = part.digest if part is not None else b""
    row = signature + hashlib.sha256(slicing).digest() + bytes([simple, bool(fits)])
    rows = _rows(row + memory.place, group, memory)
    rows, places = rows[:, : len(row)], rows[:, len(row) :]
    if any(memory.place):
        memory.shared_by(int((places == places[group.rank]).all(axis=1).sum()))
    if (rows[:, 32:64] != rows[0, 32:64]).any():
        raise ShardError(
            "The ranks' models come from different slicings (their meshes, micro-batches or layouts differ): "
            "give every rank its file of one slicing."
        )
    if rows[:, -1].any():  # also ranks without a plan must take part
        from ranks.precision.convert import check_together

        check_together(gather_json(dict(fits or {}), group, memory))
    rows = rows[:, :-1]
    if rows[:, -1].all():
        same = bool((rows == rows[0]).all())
        return None if same else "the ranks' models do not have the same collectives in the same order."
    everyone = gather_json(_events(plan, part, group.rank), group, memory)
    tensor_groups = part.groups("tensor") if part is not None else (tuple(range(group.size)),)
    why = stuck(everyone, tensor_groups, kept=group.sends_kept if final else 0, announced=part is not None)
    return None if why is None else f"the ranks' models do not fit together: {why}"


def gather_rows(mine: bytes, group: Communicator, memory: Memory) -> list[bytes]:
    """Every rank's bytes, as many on each. A collective."""
    return [row.tobytes() for row in _rows(mine, group, memory)]


def _rows(mine: bytes, group: Communicator, memory: Memory) -> Array:
    with memory.active():
        return _gather(np.frombuffer(mine, np.uint8), group, memory)


def gather_json(value: Said, group: Communicator, memory: Memory) -> list[Said]:
    """Every rank's JSON-able value, tuples as lists. A collective."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with memory.active():
        lengths = _gather(np.array([text.size], np.int64), group, memory)[:, 0].tolist()
        padded = np.zeros(max(lengths), np.uint8)
        padded[: text.size] = text
        rows = _gather(padded, group, memory)
    return [json.loads(rows[rank, :length].tobytes()) for rank, length in enumerate(lengths)]


def stuck(
    events: Sequence[Sequence[Event]],
    groups: Sequence[Sequence[int]],
    *,
    kept: int,
    announced: bool = False,
) -> str | None:
    """Plays the ranks' events through; says who would wait for ever, None if all come to their end.

    ``events`` of each rank: ``["Send" | "Recv", peer, announce]`` or ``["all", anything that the rank's group
    must agree on]``. A sender waits for its receiver, unless no more than ``kept`` messages are on their way
    from the one to the other; a value that is announced, as ``announced`` says of all, takes two.
    """
    at = [0] * len(events)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)  # what is on its way, and whether announced
    home = {rank: group for group in groups for rank in group}

    def head(rank: int) -> Event | None:
        return events[rank][at[rank]] if at[rank] < len(events[rank]) else None

    def messages(values: Sequence[int]) -> int:
        return sum(2 if announced or value else 1 for value in values)

    moved = True
    while moved:
        moved = False
        for rank in range(len(events)):
            while (event := head(rank)) is not None:
                kind, peer = event[0], event[1]
                if kind == "all":
                    if any(head(member) != event for member in home[rank]):
                        break
                    for member in home[rank]:
                        at[member] += 1
                elif kind == "Send" and messages([*sent[rank, peer], event[2]]) <= kept:
                    sent[rank, peer].append(event[2])
                    at[rank] += 1
                elif kind == "Send" and not sent[rank, peer] and head(peer) == ["Recv", rank, event[2]]:
                    at[rank] += 1
                    at[peer] += 1
                elif kind == "Recv" and sent[peer, rank][:1] == [event[2]]:
                    sent[peer, rank].pop(0)
                    at[rank] += 1
                else:
                    break
                moved = True
    waiting = [(event[0] == "all", rank, event) for rank in home if (event := head(rank)) is not None]
    if waiting:  # those that wait for one rank say more than those that wait for a group
        _, rank, event = min(waiting, key=lambda item: item[:2])
        return f"rank {rank} would wait for ever in {_words(event, home[rank])}."
    left = next((pair for pair, unread in sent.items() if unread), None)
    return None if left is None else f"rank {left[0]} sends to rank {left[1]} what that does not receive."


def _words(event: Event, group: Sequence[int]) -> str:
    kind, detail = event[0], event[1]
    if kind == "all":
        return f"{detail[0]} with ranks {', '.join(map(str, group))}"
    return f"a send to rank {detail}" if kind == "Send" else f"a receive from rank {detail}"


def peers(part: Part | None, rank: int, size: int) -> Sequence[int]:
    """The rank that each peer's number in a model stands for: a place on the pipeline axis, or a rank."""
    return range(size) if part is None else part.mesh.group(rank, "pipeline")


def _events(plan: Cut, part: Part | None, rank: int) -> list[Event]:
    ranks = peers(part, rank, 1 << 31)
    events: list[Event] = []
    for level in plan.collectives:
        for c in level:
            if c.op in POINT_TO_POINT:
                events.append([c.op, ranks[c.attributes["peer"]], c.attributes["announce"]])
            else:
                events.append(["all", json.loads(json.dumps(c.signature()))])
    return events


def _gather(mine: Array, group: Communicator, memory: Memory) -> Array:
    """All ranks' arrays of one shape, as rows."""
    element = _UINT8 if mine.dtype == np.uint8 else _INT64
    buffer = memory.allocate((1, mine.size), element, exchanged=True)
    everyone = memory.allocate((group.size, mine.size), element, exchanged=True)
    memory.load(buffer, mine[None])
    group.all_gather(buffer, everyone, 0)
    return memory.fetch(everyone)
