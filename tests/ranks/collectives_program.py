"""What one rank does in the tests of collectives: `collectives_program.py FOLDER SCENARIO OPTIONS`.

Every rank makes the data of all ranks from the same seeds, so it knows what must come out. Reports are lines
of JSON in the folder; an uncaught error is a failed test.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import json
import os
import signal
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ranks.collectives import host
from ranks.collectives.base import Communicator
from ranks.collectives.hierarchical import HierarchicalCommunicator
from ranks.collectives.shm import phases, sync
from ranks.collectives.shm.communicator import ShmCommunicator
from ranks.errors import CollectiveError, PeerLostError, ShardrunError
from ranks.identity.identity import identify
from ranks.run import group

Array = np.ndarray[Any, np.dtype[Any]]

FLOATS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-15, "complex64": 1e-6}
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
UNSUMMED = ["bool", "float8_e4m3fn"]
KINDS = [*FLOATS, *INTEGERS, *UNSUMMED]
SIZES = [0, 1, 3, 17, 768, 6144, 8192, 32768, 33001, 98304, 262145, 540_001]
"""The last one is more than shared memory's two chunks of float32, for each of two ranks."""


def kind(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


PERIOD = 70_001
"""Large arrays repeat so many values: drawing them takes longer than sending them."""


@functools.cache
def pool(dtype: np.dtype[Any]) -> Array:
    """Random values of this type, of which each contribution is a part: [2 * PERIOD]."""
    rng, count = np.random.default_rng(7), 2 * PERIOD
    if dtype.kind == "b":
        drawn = rng.integers(0, 2, count).astype(dtype)
    elif dtype.name in FLOATS:
        numbers = rng.standard_normal(count) + (1j * rng.standard_normal(count) if dtype.kind == "c" else 0)
        drawn = numbers.astype(dtype)
    else:
        drawn = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    drawn.setflags(write=False)
    return drawn


def values(seed: int, rank: int, count: int, dtype: np.dtype[Any]) -> Array:
    """What ``rank`` contributes to the case ``seed``: [count], or the period of what is longer. Others begin
    elsewhere: the numbers of the two steps share no factor with the period."""
    start = (seed * 7919 + rank * 10_007) % PERIOD
    return pool(dtype)[start : start + min(count, PERIOD)]


def repeated(drawn: Array, shape: tuple[int, ...]) -> Array:
    """The values, again and again, as an array of this shape."""
    return np.resize(drawn, int(np.prod(shape))).reshape(shape)


class Suite:
    """All operations against numpy."""

    def __init__(self, world: Communicator) -> None:
        self.world = world
        self.seed = 0
        self.done: dict[str, int] = {}

    def drawn(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
        """What each rank contributes to a new case; of large arrays the part that they repeat."""
        self.seed += 1
        count = int(np.prod(shape))
        return [values(self.seed, rank, count, dtype) for rank in range(self.world.size)]

    def all_of(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
        return [repeated(part, shape) for part in self.drawn(shape, dtype)]

    def place(self, values: Array, where: str) -> Array:
        """The same values in ordinary memory, in the backend's own, or off any alignment."""
        if where == "allocated":
            buffer = self.world.allocate(values.shape, values.dtype)
        elif where == "odd":
            start = values.itemsize
            buffer = (
                np.empty(values.nbytes + start, np.uint8)[start:].view(values.dtype).reshape(values.shape)
            )
        else:
            buffer = np.empty(values.shape, values.dtype)
        buffer[...] = values
        return buffer

    def sum(self, shape: tuple[int, ...], dtype: np.dtype[Any], where: str = "ordinary") -> None:
        parts = self.drawn(shape, dtype)
        buffer = self.place(repeated(parts[self.world.rank], shape), where)
        self.world.all_reduce(buffer)
        self.check_sum(buffer, parts)

    def check_sum(self, buffer: Array, parts: list[Array]) -> None:
        """``parts``: what each rank gave, by `drawn`; the sum of large arrays repeats itself as they do."""
        dtype = buffer.dtype
        case = f"all_reduce of {dtype}{buffer.shape} over {len(parts)} ranks"
        flat = buffer.reshape(-1)
        pieces = [flat[start : start + PERIOD] for start in range(0, flat.size, PERIOD)]
        if dtype.name in FLOATS:
            wide = {"c": np.complex128, "f": np.longdouble if dtype == np.float64 else np.float64}.get(
                dtype.kind, np.float64
            )
            wanted = sum(part.astype(wide) for part in parts)
            bound = FLOATS[dtype.name] * sum(np.abs(part.astype(wide)) for part in parts) + 1e-30
            for piece in pieces:
                off = np.abs(piece.astype(wide) - wanted[: piece.size])
                assert np.all(off <= bound[: piece.size]), case
        else:
            wanted = parts[0].copy()
            for part in parts[1:]:
                wanted += part
            assert all(np.array_equal(piece, wanted[: piece.size]) for piece in pieces), case
        self.same_bits(buffer, case)
        self.count("sum")

    def same_bits(self, buffer: Array, case: str) -> None:
        mine = np.array([zlib.crc32(buffer.reshape(-1).view(np.uint8).data)], np.uint32)
        every = np.empty(self.world.size, np.uint32)
        self.world.all_gather(mine, every)
        assert len(set(every.tolist())) == 1, f"{case}: not the same bits on every rank"

    def gather(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], axis: int, where: str = "ordinary"
    ) -> None:
        parts = self.all_of(shape, dtype)
        wanted = np.concatenate(parts, axis)
        out = self.place(np.zeros_like(wanted), where)
        mine = self.place(parts[self.world.rank], where)
        self.world.all_gather(mine, out, axis)
        assert same(out, wanted), f"all_gather of {dtype}{shape} along {axis}"
        self.count("gather")
        if type(self.world).gathering is Communicator.gathering:  # is the same call
            return
        again = self.world.gathering(mine, out, axis)
        for turn in range(2):  # what lies in the buffer when it is called
            if turn:
                parts = [np.roll(part.reshape(-1), turn).reshape(shape) for part in parts]
                wanted = np.concatenate(parts, axis)
                mine[...] = parts[self.world.rank]
            else:
                out[...] = 0
            again()
            assert same(out, wanted), f"gathering of {dtype}{shape} along {axis}"

    def exchange(self, shape: tuple[int, ...], dtype: np.dtype[Any], where: str = "ordinary") -> None:
        size, rank = self.world.size, self.world.rank
        shape = (shape[0] * size, *shape[1:])
        parts = self.all_of(shape, dtype)
        out = self.place(np.zeros(shape, dtype), where)
        self.world.all_to_all(self.place(parts[rank], where), out)
        wanted = np.concatenate([np.split(part, size)[rank] for part in parts])
        assert same(out, wanted), f"all_to_all of {dtype}{shape}"
        self.count("exchange")

    def spread(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], root: int, where: str = "ordinary"
    ) -> None:
        parts = self.all_of(shape, dtype)
        buffer = self.place(parts[self.world.rank], where)
        if root == self.world.rank:
            buffer.setflags(write=False)  # the root's is only read
        self.world.broadcast(buffer, root)
        assert same(buffer, parts[root]), f"broadcast of {dtype}{shape} from {root}"
        self.count("spread")

    def pass_on(self, shape: tuple[int, ...], dtype: np.dtype[Any], step: int) -> None:
        """Round a ring, rank 0 first; then between one pair only."""
        size, rank = self.world.size, self.world.rank
        parts = self.all_of(shape, dtype)
        there, back = (rank + step) % size, (rank - step) % size
        if there == rank:
            return
        got = np.zeros(shape, dtype)
        mine = self.place(parts[rank], "ordinary")
        mine.setflags(write=False)
        # Ranks of one ring: those that come first in it send first, the others receive first.
        if rank < there:
            self.world.send(mine, there)
            self.world.recv(got, back)
        else:
            self.world.recv(got, back)
            self.world.send(mine, there)
        assert same(got, parts[back]), f"send/recv of {dtype}{shape} by {step}"
        self.count("pass_on")

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


def same(a: Array, b: Array) -> bool:
    """The same bits in the same places."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    one, other = (np.ascontiguousarray(array) for array in (a, b))
    return ctypes.CDLL(None).memcmp(_place(one), _place(other), ctypes.c_size_t(one.nbytes)) == 0


def _place(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def suite(world: Communicator, largest: int, light: bool, part: bool = False) -> dict[str, Any]:
    """Every operation, type and kind of shape; then random sequences; then the largest message.

    ``light``: fewer sizes and placements, for backends that have no other ways for them. ``part``: of a group
    whose ways for large arrays and for each type the whole has too, which are tried there; one of each kind
    is enough.
    """
    tests = Suite(world)
    sizes = SIZES[: SIZES.index(98_304)] if part else SIZES
    places = ["ordinary"] if light else ["ordinary", "allocated", "odd"]
    size = world.size
    for name in [*FLOATS, *INTEGERS]:
        for where in places:
            for count in (768,) if part else (0, 768, 40_000):
                tests.sum((count,), kind(name), where)
    for count in sizes:
        for where in places:
            tests.sum((count,), kind("float32"), where)
    for shape in [(), (1, 1, 1), (3, 0, 2), (7, 11, 13), (64, 3000)]:
        tests.sum(shape, kind("float32"))
        tests.sum(shape, kind("bfloat16"), "allocated")
    reused = np.empty((300, 200), np.float32)
    for _ in range(20):  # the same buffer again and again, as segments use it
        parts = tests.drawn(reused.shape, reused.dtype)
        reused[...] = repeated(parts[world.rank], reused.shape)
        world.all_reduce(reused)
        tests.check_sum(reused, parts)
    special = np.array(
        [np.nan, np.inf, -np.inf, -0.0, 1e38, np.nan][world.rank :] + [1.0] * world.rank, np.float32
    )
    special.view(np.uint32)[0] |= world.rank  # another NaN on each rank
    with np.errstate(all="ignore"):
        world.all_reduce(special)
    tests.same_bits(special, "all_reduce of NaN and infinities")
    for name in KINDS:
        tests.gather((2, 3, 4), kind(name), 1)
        tests.exchange((3, 5), kind(name))
        tests.spread((4, 5), kind(name), size - 1)
        tests.pass_on((6, 7), kind(name), 1)
    for shape in [(1,), (5, 1), (2, 3, 4, 5), (0, 3), (3, 0)]:
        for axis in range(-len(shape), len(shape)):
            tests.gather(shape, kind("float32"), axis, ("ordinary", "allocated")[axis % 2])
    for shape in [(500, 700)] if part else [(2, 270_001), (500, 700), (1, 530_001, 1)]:
        for axis in range(len(shape))[-2:]:  # before them no other is longer than 1
            tests.gather(shape, kind("float32"), axis, ("ordinary", "allocated")[axis % 2])
    for shape in [(0,), (1,), (1, 0), (70_000,), *([] if part else [(270_001,), (3, 70_000)])]:
        for where in places[:2]:
            tests.exchange(shape, kind("float32"), where)
            for root in range(size):
                tests.spread(shape, kind("float32"), root, where)
        for step in range(1, size):
            tests.pass_on(shape, kind("float32"), step)
    random_sequence(tests, 50 if light else 150, sizes)
    if size > 1:
        refusals(world)
    tests.sum((largest // 4,), kind("float32"), "allocated")
    tests.sum((largest // 4,), kind("float32"))
    tests.gather((2, largest // 8 // size), kind("float32"), 1)
    world.barrier()
    return tests.done


def parts(world: Communicator, groups: list[list[int]], largest: int) -> dict[str, Any]:
    """The suite in every part at the same time, with the whole used in between; then sends across parts."""
    host._PIECE = 1 << 18  # messages of 1 GiB are sent in pieces: here those of 256 KiB
    part = world.split(groups)
    assert world.split(groups) is part, "a part is made once"
    assert part.members == tuple(next(group for group in groups if world.rank in group))
    assert part.members[part.rank] == world.rank and part.size == len(part.members)
    total = np.ones(1000, np.float32)
    world.all_reduce(total)
    assert total[0] == world.size
    done = suite(part, largest, True, part=True)
    columns = world.split([[rank] for rank in range(world.size)])
    assert columns.size == 1 and columns.members == (world.rank,)
    world.barrier()
    whole = Suite(world)
    random_sequence(whole, 30, SIZES[:-2])
    try:
        world.split([[0]])
    except CollectiveError as error:
        assert "do not hold each of the ranks" in str(error)
    else:
        raise AssertionError("groups that lack ranks were taken")
    world.barrier()
    part.close()
    world.barrier()
    try:
        part.barrier()
    except CollectiveError as error:
        assert part.size == 1 or "closed" in str(error)
    else:
        assert part.size == 1, "a closed part can be used"
    return {"part": list(part.members), **done}


def part_killed(world: Communicator, groups: list[list[int]], who: int) -> dict[str, Any]:
    """One rank is killed while its part computes; the other ranks of the part wait for it, and all others
    for the whole."""
    part = world.split(groups)
    world.barrier()
    if world.rank == who:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    report = attempt(part if who in part.members else world, "all_reduce")
    try:
        world.barrier()
    except CollectiveError as error:
        report["whole"] = str(error)
    group.leave()
    return {**report, "seconds": time.monotonic() - start}


def shorten(world: Communicator, seconds: float) -> None:
    """From now on the group waits so long for a peer; to come together the ranks took what they needed."""
    world.timeout = seconds
    if isinstance(world, ShmCommunicator):
        world._phases.timeout = seconds
    elif isinstance(world, HierarchicalCommunicator):
        for group_of, more in ((world._near, 0), (world._flat, 2), (world._far, 2)):
            if group_of is not None:
                shorten(group_of, seconds + more)
    elif world.name == "gloo":
        from torch.distributed import distributed_c10d

        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), world._group)


def part_late(world: Communicator, groups: list[list[int]], who: int, seconds: float) -> dict[str, Any]:
    """One rank does not come to its part in time."""
    part = world.split(groups)
    world.barrier()
    shorten(part, seconds)
    if world.rank == who:
        time.sleep(3 * seconds)
        return {}
    return attempt(part, "all_reduce") if who in part.members else {}


def fenced(world: Communicator, largest: int, light: bool) -> dict[str, Any]:
    """The suite in a new group whose memory is ordered by membarrier(2), as on processors that need it."""
    real, calls = sync.membarrier("x86_64"), [0]

    def counted() -> None:
        calls[0] += 1
        real()

    world.barrier()
    group.leave()
    phases.fence = lambda: counted
    return {**suite(group.join(), largest, light), "barriers": calls[0]}


def open_sockets(world: Communicator) -> dict[str, Any]:
    """What this rank has open to other hosts once all and halves of the ranks have talked."""
    from tests.listening import outside_loopback

    sums = []
    for group_of in (world, world.split([(0, 1), (2, 3)])):
        buffer = np.ones(1 << 16, np.float32)
        group_of.all_reduce(buffer)
        sums.append(float(buffer[0]))
    found = outside_loopback([os.getpid()])
    world.barrier()
    return {"outside": found, "sum": sums}


def tensors(world: Communicator, over: str = "gloo") -> dict[str, Any]:
    """The communicator of device tensors: NCCL, or CPU tensors with Gloo underneath.

    With Gloo without send and recv, as it does not say whether one of those has completed.
    """
    import torch

    from ranks.collectives.torch.device import DeviceCommunicator
    from ranks.collectives.torch.distributed import Membership

    world.barrier()
    group.leave()
    if over == "gloo":
        device = torch.device("cpu")
        members = Membership(identify(), world.timeout, over)
        world = DeviceCommunicator(members, world.timeout, over, device)
    else:
        world = group.join(collectives=over, device="cuda")
        assert isinstance(world, DeviceCommunicator) and world.name == over
        device = world.device
    size, rank, cases = world.size, world.rank, 0

    def alike(found: Any, wanted: Any) -> bool:
        one, other = (t.cpu().reshape(-1).view(torch.uint8) for t in (found, wanted))
        return bool(found.shape == wanted.shape and torch.equal(one, other))

    for name in (*KINDS, "float8_e5m2", "complex128"):
        dtype = getattr(torch, name)
        whole = torch.arange(12 * size).reshape(size, 3, 4)
        numbers = [whole * (r + 1) % 2 if name == "bool" else whole * (r + 1) % 7 for r in range(size)]
        parts = [part.to(dtype).to(device) for part in numbers]
        if name not in {"bool", "float8_e4m3fn", "float8_e5m2"}:
            buffer = world.allocate((size, 3, 4), kind(name))
            buffer.copy_(parts[rank])
            world.all_reduce(buffer)
            assert alike(buffer, sum(numbers).to(dtype)), name
        for axis in (0, 1, 2, -1):
            wanted = torch.cat(numbers, axis).to(dtype)
            out = torch.zeros_like(wanted, device=device)
            world.all_gather(parts[rank], out, axis)
            assert alike(out, wanted), (name, axis)
            cases += 1
        out = torch.zeros_like(parts[0])
        world.all_to_all(parts[rank], out)
        assert alike(out, torch.cat([part.chunk(size)[rank] for part in numbers]).to(dtype)), name
        for root in range(size):
            buffer = parts[rank].clone()
            world.broadcast(buffer, root)
            assert alike(buffer, parts[root]), name
        if over != "gloo":
            buffer = parts[rank].clone()
            if rank == 0:
                world.send(buffer, 1)
            elif rank == 1:
                world.recv(buffer, 0)
                assert alike(buffer, parts[0]), name
        cases += 1
    for count in (1, 768, 98_304, 16_777_216 if over != "gloo" else 1_048_576):
        buffer = torch.full((count,), float(rank + 1), device=device)
        world.all_reduce(buffer)
        assert (buffer == size * (size + 1) / 2).all(), count
    empty = torch.zeros((0, 2), device=device)
    world.all_reduce(empty)
    world.all_gather(empty, torch.zeros((0, 2), device=device), 0)
    for call in (
        lambda: world.all_reduce(np.ones(3)),
        lambda: world.all_reduce(torch.ones(3, dtype=torch.bool)),
        lambda: world.all_reduce(torch.ones(4, 4).T),
        lambda: world.all_reduce(torch.ones(3, device="meta")),
        lambda: world.all_gather(torch.ones(3), torch.ones(3 * size), 1),
        lambda: world.all_gather(torch.ones(3), torch.ones(3 * size + 1), 0),
        lambda: world.all_to_all(torch.ones(size + 1), torch.ones(size + 1)),
        lambda: world.broadcast(torch.ones(3), size),
        lambda: world.send(torch.ones(3), rank),
        lambda: world.allocate((3,), np.dtype("U3")),
    ):
        try:
            call()
        except CollectiveError:
            cases += 1
            continue
        raise AssertionError("a wrong call was not refused")
    world.barrier()
    world.close()
    return {"cases": cases}


def device_killed(world: Communicator, who: int) -> dict[str, Any]:
    """One rank of a group of device tensors is killed; the others' torch is free of the group then."""
    import torch
    import torch.distributed as dist

    from ranks.collectives.torch.device import DeviceCommunicator
    from ranks.collectives.torch.group import Membership

    world.barrier()
    group.leave()
    device = torch.device("cpu")
    members = DeviceCommunicator(Membership(identify(), 60.0, "gloo"), 60.0, "gloo", device)
    part = members.split([[rank] for rank in range(members.size)])
    members.barrier()
    if members.rank == who:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        while True:
            members.all_reduce(torch.ones(100))
    except ShardrunError as error:
        report = {**described(error), "initialised": dist.is_initialized(), "part": part.size}
    members.close()
    return {**report, "seconds": time.monotonic() - start}


def random_sequence(tests: Suite, count: int, sizes: Sequence[int] = SIZES) -> None:
    """Operations in random order, so that what one leaves behind meets every other; ranks come at random."""
    shared = np.random.default_rng(11)
    own = np.random.default_rng(tests.world.rank)
    for _ in range(count):
        dtype = kind(str(shared.choice([*FLOATS, *INTEGERS])))
        shape = (int(shared.choice(sizes)),)
        where = str(shared.choice(["ordinary", "allocated", "odd"]))
        which = int(shared.integers(6))
        root = int(shared.integers(tests.world.size))
        if own.integers(8) == 0:
            time.sleep(float(own.uniform(0, 3e-3)))
        if which == 0:
            tests.sum(shape, dtype, where)
        elif which == 1:
            tests.gather(shape, dtype, 0, where)
        elif which == 2:
            tests.exchange((shape[0] // 4,), dtype, where)
        elif which == 3:
            tests.spread(shape, dtype, root, where)
        elif which == 4:
            tests.pass_on(shape, dtype, 1)
        else:
            tests.world.barrier()


def refusals(world: Communicator) -> None:
    """Wrong arguments are refused on the rank that gives them, and leave the group usable."""
    size, f4 = world.size, np.float32
    read_only = np.ones(3, f4)
    read_only.setflags(write=False)
    calls: list[Callable[[], None]] = [
        lambda: world.all_reduce([1.0]),
        lambda: world.all_reduce(np.array(["a"])),
        lambda: world.all_reduce(np.array([object()])),
        lambda: world.all_reduce(np.ones(3, ">f4")),
        lambda: world.all_reduce(np.ones((4, 4), f4).T[1:]),
        lambda: world.all_reduce(np.ones(8, f4)[::2]),
        lambda: world.all_reduce(read_only),
        lambda: world.all_reduce(np.ones(3, bool)),
        lambda: world.all_gather(np.ones((2, 3), f4), np.ones((2 * size, 3), f4), 1),
        lambda: world.all_gather(np.ones((2, 3), f4), np.ones((2 * size, 3), "f8"), 0),
        lambda: world.all_gather(np.ones((2, 3), f4), np.ones((2 * size, 3), f4), 2),
        lambda: world.all_gather(np.array(1.0, f4), np.ones(size, f4), 0),
        lambda: world.all_to_all(np.ones(size + 1, f4), np.ones(size + 1, f4)),
        lambda: world.all_to_all(np.ones(size, f4), np.ones(size, "i4")),
        lambda: world.all_to_all(read_only, read_only),
        lambda: world.broadcast(np.ones(3, f4), size),
        lambda: world.broadcast(np.ones(3, f4), -1),
        lambda: world.send(np.ones(3, f4), world.rank),
        lambda: world.send(np.ones(3, f4), size),
        lambda: world.recv(read_only, (world.rank + 1) % size),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except CollectiveError as error:
            assert str(error).endswith("."), error
            continue
        raise AssertionError(f"refusal {number} did not come")


def late(world: Communicator, who: list[int], operation: str, seconds: float) -> dict[str, Any]:
    """The ranks in ``who`` do not come in time."""
    world.barrier()
    shorten(world, seconds)
    if world.rank in who:
        time.sleep(2 * seconds)
        return {}
    return attempt(world, operation)


def killed(world: Communicator, who: int, operation: str, after: float) -> dict[str, Any]:
    """One rank is killed; it may be in the middle of an operation."""
    world.barrier()
    if world.rank == who:
        if after:
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return attempt(world, operation)
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(world, operation)


def untold(world: Communicator, seconds: float) -> dict[str, Any]:
    """For the others rank 1 has ended, but Gloo does not notice it."""
    from ranks.collectives.torch.distributed import GlooCommunicator

    assert isinstance(world, GlooCommunicator) and world._membership._rendezvous is not None
    world.barrier()
    if world.rank == 1:
        world._membership._rendezvous.close()
        time.sleep(seconds)
        os._exit(0)
    return attempt(world, "all_reduce")


def failed(world: Communicator, who: list[int], operation: str) -> dict[str, Any]:
    """All ranks fail, and go on; then those in ``who`` alone do."""
    world.barrier()
    alike = world.all_failed("all have a cold")
    number = np.ones(3, np.float32)
    world.all_reduce(number)
    report = {"alike": alike, "sum": float(number[0])}
    if world.rank in who:
        start = time.monotonic()
        report |= {"alone": world.all_failed("this one has a cold"), "seconds": time.monotonic() - start}
        return report
    return {**report, **attempt(world, operation)}


def sending_first(world: Communicator) -> dict[str, Any]:
    """As many sends before the first receive as the backend says that it keeps, of small and large ones."""
    count, other = world.sends_kept, 1 - world.rank
    totals = []
    for size in (1, 1000, 300_000):
        buffer, total = np.full(size, 1 + world.rank, np.float32), 0.0
        for _ in range(count):
            world.send(buffer, other)
        for _ in range(count):
            world.recv(buffer, other)
            total += float(buffer[-1])
        totals.append(total)
    return {"kept": count, "totals": totals}


def forgotten(world: Communicator) -> dict[str, Any]:
    """How many of the buffers that were summed are still there when nobody has them any more."""
    kept = []
    for size in (1, 60_000, 300_000):
        buffer = np.ones(size, np.float32)
        world.all_reduce(buffer)
        kept.append(weakref.ref(buffer))
        del buffer
    gc.collect()
    return {"kept": sum(one() is not None for one in kept)}


def leaving(world: Communicator) -> dict[str, Any]:
    """One rank leaves in order, which others that need it must learn, and others that do not need not."""
    world.barrier()
    if world.rank == world.size - 1:
        group.leave()
        with contextlib.suppress(CollectiveError):
            world.barrier()
            raise AssertionError("a closed group can be used")
        time.sleep(0.5)
        return {}
    return attempt(world, "barrier")


def disagreeing(world: Communicator, how: str) -> dict[str, Any]:
    """Rank 0 makes another call than the others."""
    world.barrier()
    odd = world.rank == 0
    try:
        if how == "shape":
            world.all_reduce(np.ones(3 if odd else 5, np.float32))
        elif how == "type":
            world.all_reduce(np.ones(4, np.int32 if odd else np.float32))
        elif how == "operation":
            world.barrier() if odd else world.all_reduce(np.ones(4, np.float32))
        elif how == "root":
            world.broadcast(np.ones(4, np.float32), 0 if odd else 1)
        elif odd:
            world.send(np.ones(4, np.float32), 1)
            time.sleep(0.5)
        else:
            world.recv(np.ones(5, np.float32), 0)
    except ShardrunError as error:
        return described(error)
    return {}


def idle(world: Communicator, seconds: float) -> dict[str, Any]:
    """Rank 0 waits long for the others, three times: how much of a processor does that take at least?

    A rank that spins takes much each time; what a busy machine adds to one wait is not in all of them.
    """
    shares = []
    for _ in range(3):
        world.barrier()
        if world.rank != 0:
            time.sleep(seconds / 3)
        before, start = time.process_time(), time.monotonic()
        world.barrier()
        shares.append((time.process_time() - before) / max(time.monotonic() - start, 1e-9))
    return {"busy": min(shares)}


def forked(world: Communicator) -> dict[str, Any]:
    """A forked child is no rank: it cannot disturb the group, whatever it calls."""
    child = os.fork()
    if child == 0:
        try:
            world.all_reduce(np.ones(3, np.float32))
        except CollectiveError as error:
            os._exit(7 if "forked" in str(error) else 8)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    time.sleep(0.3)  # threads of a library have fallen asleep
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # no rank and no thread of its parent is there for whom its exit could wait
        sys.exit(5)
    _, ended = os.waitpid(child, 0)
    total = np.ones(1000, np.float32)
    world.all_reduce(total)
    codes = [os.waitstatus_to_exitcode(one) for one in (status, ended)]
    return {"children": codes, "sum": float(total[0])}


def attempt(world: Communicator, operation: str) -> dict[str, Any]:
    """The error that the operation ends with, made again and again; and that the group says so afterwards."""
    count = 16 << 20 if operation == "large" else 100
    buffer = world.allocate((count,), np.dtype(np.float32))
    buffer[...] = 0
    start = time.monotonic()
    try:
        while True:
            if operation == "barrier":
                world.barrier()
            elif operation == "broadcast":
                world.broadcast(buffer, world.size - 1)
            elif operation == "recv":
                world.recv(buffer, world.size - 1)
            else:
                world.all_reduce(buffer)
    except ShardrunError as error:
        report = {**described(error), "seconds": time.monotonic() - start}
    for again in (world.barrier, lambda: world.all_reduce(buffer)):
        try:
            again()
        except CollectiveError as error:
            report["afterwards"] = str(error)
    return report


def described(error: ShardrunError) -> dict[str, Any]:
    peer = error.peer if isinstance(error, PeerLostError) else None
    return {"error": type(error).__name__, "message": str(error), "peer": peer}


def main() -> None:
    folder, scenario, text = sys.argv[1:]
    options = json.loads(text)
    hosts = options.pop("hosts", None)  # each rank's, as if they were several
    # Before others give a rank up that does not join, it says where it stands.
    faulthandler.dump_traceback_later(0.75 * float(os.environ["SHARDRUN_TIMEOUT"]))
    try:
        who = identify()
        world = group.join(replace(who, host=f"host{hosts[who.rank]}") if hosts else who)
        faulthandler.cancel_dump_traceback_later()
    except ShardrunError as error:
        rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
        Path(folder, f"report{rank}.jsonl").write_text(json.dumps(described(error)) + "\n")
        return
    maps = Path("/proc/self/maps").read_text()
    first = {"name": world.name, "rank": world.rank, "size": world.size, "files": "/dev/shm" in maps}
    with Path(folder, f"report{world.rank}.jsonl").open("w") as report:
        print(json.dumps(first), file=report, flush=True)
        result = globals()[scenario](world, **options)
        print(json.dumps({**result, "finished": True}), file=report, flush=True)
        if scenario == "failed" and "mpi" in world.name:
            time.sleep(3)  # MPI ends all ranks as soon as one has failed


if __name__ == "__main__":
    main()
