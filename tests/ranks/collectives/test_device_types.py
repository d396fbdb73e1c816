"""Every element type in every collective of device tensors, beside numpy; with a stand-in for NCCL that takes
the types which NCCL takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from ranks.collectives import arrays  # noqa: E402
from ranks.collectives.buffers import HostMemory  # noqa: E402
from ranks.collectives.mpi import MpiCommunicator  # noqa: E402
from ranks.collectives.torch.distributed import GlooCommunicator  # noqa: E402
from ranks.collectives.torch.staged import on_device  # noqa: E402
from ranks.collectives.torch.types import by_element  # noqa: E402
from ranks.common.tensors import ELEMENT_TYPES, element_dtype  # noqa: E402
from ranks.errors import CollectiveError  # noqa: E402
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks  # noqa: E402
from tests.ranks.fake_nccl import on_threads  # noqa: E402

SIZE = 2
TYPES = sorted(number for number, name in ELEMENT_TYPES.values() if name != "object")
NAMES = {number: str(element_dtype(number)) for number in TYPES}


def drawn(element: int, rank: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Values of a rank: all bits of integers, small numbers of others."""
    rng, dtype = np.random.default_rng([element, rank]), element_dtype(element)
    if dtype.kind in "iu":
        return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    return rng.integers(0, 2 if dtype.kind == "b" else 6, shape).astype(dtype)


def tensor(array: np.ndarray[Any, Any]) -> Any:
    kind = by_element()[next(number for number in TYPES if element_dtype(number) == array.dtype)]
    raw = torch.from_numpy(np.array(array).reshape(-1).view(np.uint8))
    return raw.view(kind).reshape(array.shape)


def host(found: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    raw = found.reshape(-1).view(torch.uint8).numpy()
    return raw.view(dtype).reshape(tuple(found.shape))


def same(found: Any, wanted: np.ndarray[Any, Any]) -> bool:
    return host(found, wanted.dtype).tobytes() == wanted.tobytes() and tuple(found.shape) == wanted.shape


@pytest.mark.parametrize("element", TYPES, ids=NAMES.get)
def test_bytes_of_any_type_are_moved(element: int) -> None:
    shape = (2, 3, 4)
    parts = [drawn(element, rank, shape) for rank in range(SIZE)]

    def work(world: FakeCommunicator) -> None:
        group, rank = on_threads(world), world.rank
        mine = tensor(parts[rank])
        for axis in (0, 1, 2, -1):
            wanted = np.concatenate(parts, axis)
            out = group.allocate(wanted.shape, wanted.dtype)
            group.all_gather(mine, out, axis)
            assert same(out, wanted), axis
        out = group.allocate(shape, parts[0].dtype)
        group.all_to_all(mine, out)
        assert same(out, np.concatenate([part[rank : rank + 1] for part in parts]))
        for root in range(SIZE):
            buffer = mine.clone()
            group.broadcast(buffer, root)
            assert same(buffer, parts[root])
        group.send(mine, 1 - rank)
        group.recv(out, 1 - rank)
        assert same(out, parts[1 - rank])
        group.barrier()

    on_ranks(SIZE, work)


@pytest.mark.parametrize("element", TYPES, ids=NAMES.get)
@pytest.mark.parametrize("shape", [(3, 5), ()], ids=str)
def test_sums_are_numpys_or_refused_as_on_the_host(element: int, shape: tuple[int, ...]) -> None:
    parts = [drawn(element, rank, shape) for rank in range(SIZE)]
    try:
        arrays.check_sum(parts[0].copy())
        wanted = (parts[0] + parts[1]).astype(parts[0].dtype)
    except CollectiveError as error:
        refused = str(error).replace("arrays", "tensors")
        wanted = None

    def work(world: FakeCommunicator) -> None:
        group, mine = on_threads(world), tensor(parts[world.rank])
        if wanted is None:
            with pytest.raises(CollectiveError) as found:
                group.all_reduce(mine)
            assert str(found.value) == refused
            group.barrier()  # nothing has happened
            return
        group.all_reduce(mine)
        assert same(mine, np.asarray(wanted))

    on_ranks(SIZE, work)


def test_a_gather_waits_for_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves is in order for what follows on the stream, and the device has other streams."""
    monkeypatch.setattr(torch.cpu, "synchronize", lambda *_: pytest.fail("waited for the whole device"))

    def work(world: FakeCommunicator) -> None:
        out = torch.empty((2, 6))
        on_threads(world).all_gather(torch.full((2, 3), float(world.rank)), out, 1)
        assert out.tolist() == [[0.0] * 3 + [1.0] * 3] * 2

    on_ranks(SIZE, work)


def test_a_part_tells_the_library_ranks_of_the_whole() -> None:
    """Its own callers name roots and peers by their places in the part."""

    def work(world: FakeCommunicator) -> None:
        part = on_threads(world).split(((0, 2), (1, 3)))
        mine, other = torch.full((2,), float(world.rank)), float((world.rank + 2) % 4)
        for root in range(2):
            buffer = mine.clone()
            part.broadcast(buffer, root)
            assert buffer.tolist() == [float(part.members[root])] * 2
        part.send(mine, 1 - part.rank)
        found = torch.empty(2)
        part.recv(found, 1 - part.rank)
        assert found.tolist() == [other] * 2
        part.all_reduce(mine)
        assert mine.tolist() == [world.rank + other] * 2

    on_ranks(4, work)


def test_a_type_that_the_library_refuses_is_an_error_of_ours() -> None:
    def work(world: FakeCommunicator) -> None:
        group = on_threads(world)
        with pytest.raises(CollectiveError, match=r"all_reduce of int32\[2\] failed on rank 0: no int32"):
            group._dist.all_reduce = _refused
            group.all_reduce(torch.ones(2, dtype=torch.int32))

    on_ranks(1, work)


def test_no_send_counts_as_kept() -> None:
    """A kernel that sends waits for its receiver; and the same way does what MPI and Gloo send."""

    def work(world: FakeCommunicator) -> list[int]:
        whole = on_threads(world)
        # By way of the host a message waits where the host's do.
        assert on_device(world, HostMemory(world)).sends_kept == world.sends_kept > 0
        return [one.sends_kept for one in (whole, whole.split(((0, 1),)), whole.split(((0,), (1,))))]

    assert on_ranks(SIZE, work) == [[0, 0, 0]] * SIZE
    assert MpiCommunicator.sends_kept == GlooCommunicator.sends_kept == 0


def test_what_goes_out_by_way_of_the_host_is_not_where_something_comes_in() -> None:
    apart: list[bool] = []

    def noted(source: Any, target: Any, *_: Any) -> None:
        apart.append(not np.shares_memory(source, target))

    def work(world: FakeCommunicator) -> None:
        staged = on_device(world, HostMemory(world))
        world.all_gather = world.all_to_all = noted  # type: ignore[method-assign]
        staged.all_gather(np.ones((2, 3)), np.empty((2, 3)))
        staged.all_to_all(np.ones((2, 3)), np.empty((2, 3)))

    on_ranks(1, work)
    assert apart == [True, True]


def _refused(*_: Any, **__: Any) -> None:
    raise TypeError("no int32 here")
