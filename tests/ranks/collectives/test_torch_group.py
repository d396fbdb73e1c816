"""How groups of devices end when a rank is lost, late or interrupted: with a stand-in for NCCL, whose kernels
never end by themselves."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ranks import worlds
from tests.ranks.threads import until

torch = pytest.importorskip("torch", reason="torch is not installed")

from ranks.collectives.torch import device as torch_device  # noqa: E402
from ranks.collectives.torch import group as torch_group  # noqa: E402
from ranks.collectives.torch import lines, store  # noqa: E402
from ranks.collectives.torch.error import translate  # noqa: E402
from ranks.collectives.torch.joining import attended  # noqa: E402
from ranks.errors import CollectiveError, CollectiveTimeoutError, PeerLostError  # noqa: E402
from ranks.identity.place import Identity  # noqa: E402
from ranks.talk.connect import _connections, cut_to  # noqa: E402
from tests.ranks.fake_nccl import Library, connected, installed  # noqa: E402

TWO, THREE = Identity(0, 2, 0, 1), Identity(0, 3, 0, 1)
REMOTE = (
    "NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error\nncclRemoteError"
)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    installed(made, monkeypatch)
    return made


def ended(library: Library, call: Any, error: type[BaseException], words: str | None) -> None:
    """``call`` fails so, and by then the device does nothing any more."""
    with pytest.raises(error, match=words):
        call()
    assert library.free.is_set(), "the error came before the device was free"


def test_the_device_is_free_before_a_time_out_is_raised(library: Library) -> None:
    world = connected(library, TWO, 0.2)
    library.stuck = True
    late = r"Rank 1 did not come to all_reduce of float32\[3\] within 0.2 s \(rank 0 waited\)"
    ended(library, lambda: world.all_reduce(torch.ones(3)), CollectiveTimeoutError, late)
    with pytest.raises(CollectiveError, match="cannot be used any more: Rank 1 did not come"):
        world.barrier()
    world.close()
    assert library.said == ["init nccl", "all_reduce", "end world", "abort all"]


@pytest.mark.parametrize("call", ["all_reduce", "send", "recv"])
def test_a_lost_rank_of_another_host(library: Library, call: str) -> None:
    """The library finds a connection closed while the kernel waits."""
    world = connected(library, TWO)
    library.stuck, library.error = True, REMOTE
    arguments = () if call == "all_reduce" else (1,)
    lost = r"Rank 1 ended while rank 0 waited in .*remote process exited"
    ended(library, lambda: getattr(world, call)(torch.ones(3), *arguments), PeerLostError, lost)
    world.close()
    assert "abort all" in library.said and not any("destroy" in what for what in library.said)


def test_only_the_group_s_own_connections_are_cut() -> None:
    """Another thread may have connected to something of its own meanwhile."""
    from torch.distributed import HashStore, ProcessGroupGloo

    groups, meeting, made = (
        torch_group.TorchGroups(torch.distributed, "gloo", 30.0),
        HashStore(),
        dict[int, Any](),
    )

    def join(rank: int) -> None:
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(interface="lo")]
        options._timeout = timedelta(seconds=30)
        made[rank] = ProcessGroupGloo(meeting, rank, 2, options)

    with socket.create_server(("127.0.0.1", 0)) as server:
        with groups._connecting(), ThreadPoolExecutor(2) as pool:
            ours, theirs = socket.create_connection(server.getsockname()), server.accept()[0]
            list(pool.map(join, range(2)))
        groups.cut()
        with ours, theirs:
            ours.sendall(b"x")
            assert theirs.recv(1) == b"x"
    with pytest.raises(RuntimeError, match=r"[Cc]onnection"):
        made[0].allreduce([torch.ones(1)]).wait()


def test_the_time_out_begins_when_this_rank_has_come(library: Library) -> None:
    """What it computes before comes first on the stream, however long that takes."""
    world = connected(library, TWO, 0.2)
    began: list[float] = []

    class Begun:
        def record(self) -> None:
            library.said.append("record")

        def synchronize(self) -> None:
            library.said.append("synchronize")
            time.sleep(0.4)
            began.append(time.monotonic())

    world._begun = Begun()
    world.all_reduce(torch.ones(3))
    assert library.said == ["init nccl", "record", "all_reduce", "synchronize"]
    assert world.computing_seconds >= 0.4
    library.stuck = True
    ended(library, lambda: world.all_reduce(torch.ones(3)), CollectiveTimeoutError, "Rank 1 did not come")
    assert time.monotonic() - began[-1] >= 0.2


def test_a_forgotten_group_is_left_whoever_collects_it(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maybe in the middle of the start of a thread, which no other thread can be started in as usual."""
    world = connected(library, TWO)

    def start(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread} waits for the lock of all threads")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        del world
        gc.collect()
    assert library.said == ["init nccl", "destroy all"]


def test_gpus_without_nvidias_driver_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch calls those of other makers CUDA's, too; two ranks may have the first of their host."""
    import torch.distributed as dist

    words = dist.HashStore()
    words.set("1", " 0")
    monkeypatch.setattr(torch_device.devices, "visible", lambda: 0)
    torch_device._demand_own_gpu(TWO, 0, 30.0, words)
    assert words.get("0") == b" 0"


def test_what_earlier_ranks_said_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's store outlives a restart, after which ranks may have other GPUs."""
    import torch.distributed as dist

    kept, heard = dist.HashStore(), []

    def check(words: dist.Store) -> None:
        heard.append(words.check(["1"]))
        words.set("1", "a GPU")

    for restarts in ("0", "1"):
        library = Library()
        installed(library, monkeypatch)
        monkeypatch.setattr(torch_group, "remote_store", lambda identity, timeout: kept)
        monkeypatch.setattr(library, "PrefixStore", dist.PrefixStore)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        torch_group.Membership(TWO, 1.0, "nccl", torch.device("cpu"), check).close()
    assert heard == [False, False]


def test_ranks_of_a_program_that_has_joined_itself_are_asked_for_their_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the store of the program's own group, and before any group of ours."""
    library = Library(initialised=True)
    installed(library, monkeypatch)
    heard: list[tuple[object, list[str]]] = []

    def check(words: Any) -> None:
        heard.append((words, list(library.said)))

    torch_group.Membership(TWO, 1.0, "nccl", torch.device("cpu"), check).close()
    assert heard == [(library, [])]


@pytest.mark.parametrize(
    ("why", "kind", "words"),
    [
        (REMOTE, PeerLostError, "ended while rank 0 waited in split"),
        ("unhandled system error", CollectiveError, "split failed on rank 0: unhandled system error"),
    ],
)
def test_a_split_that_fails_ends_the_whole(
    why: str, kind: type[CollectiveError], words: str, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that have made their part would wait in it for this one."""
    world = connected(library, Identity(0, 4, 0, 1))
    monkeypatch.setattr(library, "new_group", lambda *_, **__: (_ for _ in ()).throw(RuntimeError(why)))
    ended(library, lambda: world.split([[0, 1], [2, 3]]), kind, words)
    assert library.said[-1] == "abort all" and library.keys == {"shardrun-lost-0-world": b"0"}
    with pytest.raises(CollectiveError, match="cannot be used any more"):
        world.barrier()


def test_what_a_lost_rank_had_done_is_no_failure(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have ended after its part, which comes a moment later."""
    world, looked = connected(library, TWO), threading.Event()
    work = SimpleNamespace(is_completed=looked.is_set, wait=lambda: None)

    def lost(**_: Any) -> int:
        looked.set()
        return 1

    world._membership.lost = lost  # type: ignore[method-assign]
    monkeypatch.setattr(library, "all_reduce", lambda *_, **__: work)
    world.all_reduce(torch.ones(3))
    assert looked.is_set()


def test_a_torch_that_takes_no_device_of_a_part(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, made = connected(library, TWO)._membership.groups, library.new_group
    groups._connected = torch.device("cpu")
    groups.part([0, 1], mine=True)
    assert library.devices[-1] == groups._connected

    def old(ranks: Any = None, timeout: Any = None, backend: Any = None) -> Any:
        return made(ranks, timeout, backend)

    monkeypatch.setattr(library, "new_group", old)
    groups.part([0, 1], mine=True)
    assert library.devices[-1] is None


def test_connections_to_a_port_are_cut_and_no_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        pairs = [(socket.create_connection(at.getsockname()), at.accept()[0]) for at in (server, other)]
        cut_to(server.getsockname()[1])
        (ours, theirs), (still, open_) = pairs
        with ours, theirs, still, open_:
            with pytest.raises(BrokenPipeError):
                ours.sendall(b"x")
            assert theirs.recv(1) == b""
            still.sendall(b"x")
            assert open_.recv(1) == b"x"


def test_others_are_told_of_a_lost_rank(library: Library) -> None:
    """Only ranks that were connected to a lost one notice; one that waits for these learns it from them."""
    world = connected(library, THREE)
    library.stuck = True
    threading.Timer(0.2, lambda: library.set(told[0], "2")).start()
    told = ["shardrun-lost-0-world"]
    lost = r"Rank 2 ended while rank 0 waited in all_reduce"
    ended(library, lambda: world.all_reduce(torch.ones(3)), PeerLostError, lost)
    assert library.keys == {told[0]: b"2"}


def test_a_rank_tells_others_that_it_gives_up(library: Library) -> None:
    world = connected(library, THREE, 0.1)
    library.stuck = True
    ended(
        library, lambda: world.all_reduce(torch.ones(3)), CollectiveTimeoutError, "One or more of the other"
    )
    assert library.keys == {"shardrun-lost-0-world": b"0"}


def test_news_of_a_lost_rank_over_torchs_own_store(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever tells it first is right; and where the store's own process is gone, that is the news."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    patience = timedelta(seconds=30)
    server = dist.TCPStore("127.0.0.1", 0, 2, True, patience, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, 2, False, patience, wait_for_workers=False)
    inner = dist.PrefixStore("a", dist.PrefixStore("b", client))
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: inner)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    news = store.News(dist, SimpleNamespace(group_name="0"))
    assert news.lost() is None
    news.tell(2)
    news.tell(1)
    assert news.lost() == 2
    del server
    gc.collect()
    until(lambda: news.lost() == 0)
    news.tell(3)
    assert news.lost() == 0
    news.close()
    assert "frame #" not in capfd.readouterr().err


def test_a_host_that_is_gone_ends_the_connections_to_its_store() -> None:
    """Of it torch would await an answer without an end. (127.0.0.2 counts as another.)"""
    import torch.distributed as dist

    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        place = probe.getsockname()
    made = [store._maker(dist, place, 2, 30, serves=serves)() for serves in (True, False)]
    line = lines.line_to(made[1])
    assert line is not None
    option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
    found = [one.getsockopt(*option) for _, one in _connections() if one.getpeername()[1] == place[1]]
    line.close()
    assert len(found) == 3 and all(0 < seconds <= 10_000 for seconds in found)


def test_a_lost_host_is_not_waited_for_twice() -> None:
    """Whether another rank has left a word is asked after the kernel has given up the host already."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # whoever comes when its places are taken hears nothing
        for _ in range(3):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        there = SimpleNamespace(host="127.0.0.1", port=full.getsockname()[1])
        began = time.monotonic()
        assert not lines.is_there(there)
        asked = time.monotonic() - began
        assert lines.line_to(there) is None
        assert asked < 0.5 * (time.monotonic() - began - asked)


def test_what_was_heard_says_more_than_what_torch_says_later() -> None:
    """Both find that the rank where all meet is gone; to hear why may take its time."""
    heard: list[float] = []
    ended = threading.Event()

    def make() -> None:
        ended.wait(30)
        raise RuntimeError("Connection reset by peer")

    def look() -> None:
        heard.append(time.monotonic())
        ended.set()
        raise PeerLostError("Rank 0 ended: no memory.", 0)

    with pytest.raises(PeerLostError, match="no memory"):
        attended(make, look, None, apart=True)
    assert len(heard) == 1


def test_an_interrupted_wait_leaves_nothing_on_the_device(library: Library) -> None:
    world = connected(library, TWO)
    library.stuck = True

    def interrupted(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    world._membership.lost = interrupted  # type: ignore[method-assign]
    ended(library, lambda: world.all_reduce(torch.ones(3)), KeyboardInterrupt, None)
    with pytest.raises(CollectiveError, match=r"any more: all_reduce of float32\[3\] was interrupted"):
        world.all_reduce(torch.ones(3))


def test_the_part_that_hangs_ends_first(library: Library) -> None:
    """Ending another group first frees memory, for which the library would wait for the kernel that hangs."""
    world = connected(library, Identity(0, 4, 0, 1), 0.1)
    part = world.split([[0, 1], [2, 3]])
    library.stuck = True
    ended(library, lambda: part.all_reduce(torch.ones(3)), CollectiveTimeoutError, "Rank 1 did not come")
    assert library.said[-2:] == ["end group1", "abort all"]
    with pytest.raises(CollectiveError, match="cannot be used any more"):
        world.barrier()


def test_only_our_groups_are_aborted_where_torch_was_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(size=4, initialised=True)
    installed(library, monkeypatch)
    monkeypatch.setattr(torch_group, "remote_store", lambda *_: pytest.fail("a second store"))
    world = connected(library, Identity(0, 4, 0, 1), 0.1)
    part = world.split([[0, 1], [2, 3]])
    library.stuck = True
    ended(library, lambda: part.all_reduce(torch.ones(3)), CollectiveTimeoutError, "Rank 1 did not come")
    assert library.said[-3:] == ["end group2", "abort group2", "abort group1"]


@pytest.mark.parametrize("bound", [False, True])
def test_groups_connect_when_they_are_made(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the first collective, when the settings for it are gone. Where torch's first group is bound to a
    device all others connect anyway, and torch takes no other device."""
    library = Library(size=4, initialised=True)
    library.group.WORLD.bound_device_id = "cuda:0" if bound else None
    installed(library, monkeypatch)
    connected(library, Identity(0, 4, 0, 1)).split([[0, 1], [2, 3]])
    assert library.devices == [None if bound else torch.device("cpu")] * 3


def test_torch_gives_up_later_than_we_do(library: Library) -> None:
    """It would end the process. Gloo raises an error, in which ours has its cause."""
    connected(library, Identity(0, 4, 0, 1), 5.0).split([[0, 1], [2, 3]])
    assert len(library.patience) == 3 and min(library.patience) > 5 + 30
    torch_group.TorchGroups(library, "gloo", 5.0).part([0, 1], mine=False)
    assert library.patience[3:] == [5.0]


def test_a_forked_child_ends_no_group(library: Library) -> None:
    """Its groups are its parent's, which goes on."""
    world = connected(library, TWO)
    gc.collect()  # what other tests left, such as gRPC's, may not be ended in a fork
    child = os.fork()
    if child == 0:
        status = 2
        try:
            world.close()
            gc.collect()
            status = int(library.said != ["init nccl"])
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    world.close()
    assert library.said == ["init nccl", "destroy all"]


def test_leaving_in_order_leaves_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(size=4, initialised=True)
    installed(library, monkeypatch)
    world = connected(library, Identity(0, 4, 0, 1))
    world.split([[0, 1], [2, 3]])
    world.close()
    world.close()
    assert library.said[-2:] == ["destroy group2", "destroy group1"]


def test_leaving_does_not_wait_for_ever(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else the device does, torch waits for; then the group is aborted."""
    monkeypatch.setattr(torch_group, "_ORDERLY", 0.1)
    world = connected(library, TWO)
    library.free.clear()
    world.close()
    assert library.said[-2:] == ["destroy all", "abort all"]


def test_a_group_of_the_host_that_is_torchs_first_is_left_in_time(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All groups of devices end with it, and torch waits for these."""
    monkeypatch.setattr(torch_group, "_ORDERLY", 0.1)
    host = torch_group.Membership(TWO, 60.0, "gloo")
    library.free.clear()
    host.disband()
    assert library.said == ["init gloo", "destroy all", "abort all"]


def test_an_abort_that_hangs_is_left_alone(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_group, "_ABORT", 0.1)
    hangs, given_up = threading.Event(), []
    world = connected(library, TWO, 0.1)
    monkeypatch.setattr(library, "_abort_process_group", lambda group: given_up.append(hangs.wait(60)))
    library.stuck = True
    with pytest.raises(CollectiveTimeoutError):
        world.all_reduce(torch.ones(3))
    world.close()
    assert not given_up, "it was waited for"
    hangs.set()


def test_leaving_where_no_thread_can_be_started(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of Python start none while the interpreter ends."""

    def refused(*_: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    world = connected(library, TWO)
    monkeypatch.setattr(threading.Thread, "start", refused)
    world.close()
    assert library.said == ["init nccl", "destroy all"]


def test_another_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(rank=1, size=8, initialised=True)
    installed(library, monkeypatch)
    with pytest.raises(CollectiveError, match=r"rank 0 of 2, but torch.distributed was .* as rank 1 of 8"):
        connected(Library(), TWO)
    assert not library.said, "the program's own group was ended"


@pytest.mark.parametrize("abort", [False, True])
def test_a_group_that_cannot_be_made_ends_no_other(abort: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(size=2, initialised=True)
    installed(library, monkeypatch)
    monkeypatch.setattr(library, "new_group", lambda **_: (_ for _ in ()).throw(RuntimeError("no NCCL")))
    if abort:  # as where leaving takes too long
        monkeypatch.setattr(torch_group.TorchGroups, "leave", torch_group.TorchGroups.abort)
    with pytest.raises(CollectiveError, match="joining the nccl group failed on rank 0: no NCCL"):
        connected(library, TWO)
    assert not library.said, "the program's own group was ended"


HANDLED = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}


def test_errors_are_left_to_us_and_the_environment_as_it_was(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group of ours, parts too, whatever the user's own groups are told."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.delenv("TORCH_NCCL_ENABLE_MONITORING", raising=False)
    before = dict(os.environ)
    world = connected(library, Identity(0, 4, 0, 1))
    world.split([[0, 1], [2, 3]])
    assert library.settings == [HANDLED] * 3
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (REMOTE, PeerLostError),
        (REMOTE.partition("\n")[0], PeerLostError),
        ("NCCL communicator was aborted: remote process exiting prematurely", PeerLostError),
        ("ncclRemoteError: A call failed possibly due to a network error", PeerLostError),
        ("Connection reset by peer", PeerLostError),
        ("Connection closed by peer", PeerLostError),
        ("Connection refused", PeerLostError),
        ("Broken pipe", PeerLostError),
        ("Timed out waiting", CollectiveTimeoutError),
        ("Wait timeout", CollectiveTimeoutError),
        ("Timeout of 3000 ms", CollectiveTimeoutError),
        ("CUDA error: an illegal memory access was encountered", CollectiveError),
    ],
)  # fmt: skip
def test_what_the_library_says_of_a_failure(text: str, kind: type[CollectiveError]) -> None:
    found = translate(RuntimeError(text), "all_reduce", 0, 3.0, None)
    assert type(found) is kind and str(found).endswith(".") is (kind is not CollectiveError)


@pytest.mark.parametrize(
    ("text", "peer", "said"),
    [
        ("Connection reset", 1, "Rank 1 ended while rank 2 waited in all_reduce (Connection reset)."),
        ("Broken pipe", None, "Another rank ended while rank 2 waited in all_reduce (Broken pipe)."),
        (
            "Timed out",
            1,
            "Rank 1 did not come to all_reduce within 3.5 s (rank 2 waited): look for what holds it up, or "
            "raise SHARDRUN_TIMEOUT.",
        ),
        ("[pair.cc:12] out of memory\nmore", 1, "all_reduce failed on rank 2: out of memory"),
        ("", 1, "all_reduce failed on rank 2: RuntimeError"),
    ],
)
def test_a_failure_is_told_with_its_ranks_and_seconds(text: str, peer: int | None, said: str) -> None:
    assert str(translate(RuntimeError(text), "all_reduce", 2, 3.5, peer)) == said


@pytest.mark.parametrize(
    ("reason", "silent"),
    [
        ("Connection timed out", True),
        ("No route to host", True),
        ("Host is down", True),
        ("Network is unreachable", True),
        ("Connection reset by peer", False),
    ],
)
def test_a_host_that_says_nothing_is_told_from_a_rank_that_ended(reason: str, silent: bool) -> None:
    text = f"Read error [10.0.0.2]:2693: {reason}. This is typically caused by a remote worker hanging. GLHF!"
    found = translate(RuntimeError(text), "all_reduce", 0, 3.0, 1)
    assert isinstance(found, PeerLostError) and (found.peer, found.silent) == (1, silent)
    assert str(found).endswith(f"waited in all_reduce (Read error [10.0.0.2]:2693: {reason}).")
    assert ("down, or the network to it is cut" in str(found)) is silent


def test_who_serves_the_store_waits_for_those_who_read_it() -> None:
    """Else they would be told of a lost rank instead of what is wrong."""
    library, waited = Library(), threading.Event()

    def read() -> None:
        waited.wait(30)
        time.sleep(0.1)
        store.all_have_read(library, Identity(1, 2, 0, 1), 60.0)

    reader = threading.Thread(target=read)
    reader.start()
    check = library.check
    library.check = lambda keys: (waited.set(), check(keys))[1]  # type: ignore[method-assign]
    store.all_have_read(library, TWO, 60.0)
    assert library.keys.keys() == {"read-0", "read-1"}
    reader.join()
    store.all_have_read(Library(), TWO, 0.05)  # one that never comes holds nobody up


def test_what_nccl_says_last_is_the_reason() -> None:
    text = "NCCL error in: /src/NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL "
    text += "version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library."
    last = "\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
    found = [str(translate(RuntimeError(text + end), "joining", 0, 3.0, None)) for end in (last, "")]
    assert found[0] == "joining failed on rank 0: " + last.splitlines()[-1]
    assert found[1].startswith("joining failed on rank 0: NCCL error in: ")


SCRIPT = """
import sys, torch
from ranks.run import group
from ranks.errors import CollectiveError
from tests.ranks import fake_nccl

def script(library, world):
    library.stuck, library.error = True, {error!r}
    world.timeout = 0.1
    kept.append((library, world))
    group.GROUPS.joined["cuda"] = None, "nccl", world
    try:
        world.all_reduce(torch.ones(3))
    except CollectiveError as error:
        print(type(error).__name__, flush=True)
    {end}

kept = []
fake_nccl.main(script)
"""


def run(script: str, folder: Path) -> tuple[int, str, str]:
    """In a process that has imported torch, and is taken apart at its end as any other."""
    output, errors = folder / "output", folder / "errors"
    process = worlds.copies(torch=True).start(["-c", script], os.environ, output=output, errors=errors)
    try:
        said = process.communicate(100)
    finally:
        process.kill()
    return process.wait(), *said


@pytest.mark.parametrize(
    ("end", "error"),
    [("group.leave()", ""), ("pass", REMOTE), ("world.close(); raise SystemExit(3)", "")],
    ids=["leaves", "ends", "closes"],
)
def test_a_script_that_catches_the_error_ends(end: str, error: str, tmp_path: Path) -> None:
    """Leaving, closing, or nothing but the end of the script: a kernel that hangs holds up none of them."""
    began = time.monotonic()
    code, output, errors = run(SCRIPT.format(end=end, error=error), tmp_path)
    assert output.split() == ["PeerLostError" if error else "CollectiveTimeoutError"], errors
    assert code == (3 if "Exit" in end else 0), errors
    assert not errors and time.monotonic() - began < 60


UNCLOSED = """
from tests.ranks import fake_nccl

def script(library, world):
    library.destroy_process_group = lambda group=None: print("destroyed", group)
    kept.append(world)

kept = []
fake_nccl.main(script)
print("end of the script", flush=True)
"""


def test_a_communicator_that_nobody_closes_is_left_at_the_end(tmp_path: Path) -> None:
    code, output, errors = run(UNCLOSED, tmp_path)
    assert code == 0 and not errors, errors
    assert output.splitlines() == ["end of the script", "destroyed None"]


@pytest.mark.parametrize(("count", "index"), [(1, 0), (2, 1), (4, 1)])
def test_the_only_visible_gpu_is_taken_whatever_the_local_rank(
    count: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    current: list[Any] = []  # what libraries take that are told no device
    given = {"is_available": lambda: True, "device_count": lambda: count, "set_device": current.append}
    for name, found in given.items():
        monkeypatch.setattr(torch.cuda, name, found)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch_device, "Membership", lambda *given: given)
    monkeypatch.setattr(torch_device, "DeviceCommunicator", lambda *given: given[-1])
    second = Identity(6, 8, 1, 4)  # of the four ranks of a host
    assert torch_device.connect_device(second, 1.0, "nccl", "cuda") == torch.device("cuda", index)
    assert current == [torch.device("cuda", index)]


def test_on_a_gpu_this_ranks_own_work_is_waited_for_first(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", lambda: "an event")
    for device, begun in ((torch.device("cuda", 1), "an event"), (torch.device("cpu"), None)):
        membership = torch_group.Membership(TWO, 1.0, "nccl", device)
        world = torch_device.DeviceCommunicator(membership, 1.0, "nccl", device)
        assert world._begun == begun
        world.close()


def test_no_place_in_the_source_of_gloo_is_told() -> None:
    text = (
        "[/src/third_party/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:2693: Connection timed out."
    )
    error = translate(RuntimeError(text), "all_reduce", 0, 3.0, 1)
    assert "(Read error [10.0.0.2]:2693: Connection timed out.)" in str(error) and "pair.cc" not in str(error)
    other = translate(RuntimeError("[10.0.0.2]:7 broke: Connection reset"), "all_reduce", 0, 3.0, 1)
    assert "([10.0.0.2]:7 broke: Connection reset)" in str(other)
